"""The common style of all figures: a backend that needs no screen, and colours that differ in lightness."""

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
    """Make a function draw with matplotlib's default settings, because some libraries change them on import."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.style.context("default", after_reset=True):
            figure = draw(*args, **kwargs)
            figure.draw_without_rendering()  # ticks are created when first drawn
            return figure

    return drawn
