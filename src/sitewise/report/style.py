"""What all figures share: a backend that needs no screen, colours that differ in lightness, settings of their own."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import matplotlib

matplotlib.use("Agg")
import matplotlib.style
from matplotlib.figure import Figure

INK, ACCENT, GREY = "#222222", "#0b6e8f", "#9a9a9a"
GRID, STRIPE = "#dddddd", "#f4f4f4"


P = ParamSpec("P")


def in_house_style(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw with matplotlib's own settings, whatever else in the process has changed (some libraries do, on import)."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.style.context("default", after_reset=True):
            figure = draw(*args, **kwargs)
            figure.draw_without_rendering()  # ticks are made when they are first drawn
            return figure

    return drawn
