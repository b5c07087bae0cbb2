"""A figure of example images with a row for each site. z is below each image; a heavy red border marks y = 1."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sitewise.bench.datasets.examples import Examples
from sitewise.report.style import INK, in_house_style

POSITIVE = "#c1121f"
MISSING = "?"
CELL, LINE, MARGIN = 1.35, 0.135, 0.1  # inches: an image with its gap, a line of text, the margin
# Column of site names: characters in a line, inches of a character, least inches of the column.
SITE_CHARACTERS, SITE_CHARACTER, LEAST_SITE_WIDTH = 20, 0.093, 1.35
CAPTION_CHARACTERS, NOTE_CHARACTERS = 23, 15.5  # characters of a line below an image; characters of a note per inch
HEAVY, THIN = 4.0, 1.0  # width of a border in points
TIED = "\u00a0"  # no-break space


@in_house_style
def example_figure(sites: Sequence[Examples], *, title: str = "") -> Figure:
    """Draw a row of images for each site. Width and colour of an image's border show y; its caption has y and z."""
    n_columns = max(1, *(len(site.images) for site in sites))
    names = [textwrap.wrap(site.site, SITE_CHARACTERS) for site in sites]
    aside = max(LEAST_SITE_WIDTH, 2 * MARGIN + SITE_CHARACTER * max(len(line) for name in names for line in name))
    width = aside + CELL * n_columns
    captions = [[_caption(site, place) for place in range(len(site.images))] for site in sites]
    heights = [CELL + LINE * max((text.count("\n") + 1 for text in row), default=0) for row in captions]
    notes = _notes(sites, int(width * NOTE_CHARACTERS))
    top, bottom = (0.4 if title else MARGIN), MARGIN + LINE * 1.1 * len(notes)
    height = sum(heights) + top + bottom
    figure = Figure(figsize=(width, height))

    def write(left: float, down: float, text: str, size: float, **style: Any) -> None:
        figure.text(left / width, 1 - down / height, text, ha="left", fontsize=size, color=INK, **style)

    down = top
    for site, name, row, row_height in zip(sites, names, captions, heights, strict=True):
        write(MARGIN, down + CELL / 2, "\n".join(name), 10, va="bottom", fontweight="bold")
        write(MARGIN, down + CELL / 2 + 0.04, _about(site), 8, va="top", linespacing=1.3)
        for place, caption in enumerate(row):
            side, left = CELL * 0.88, aside + CELL * place
            box = (left / width, 1 - (down + CELL * 0.06 + side) / height, side / width, side / height)
            _draw(figure.add_axes(box), site, place, caption)
        down += row_height
    write(MARGIN, MARGIN, title, 12, va="top")
    write(MARGIN, height - 0.08, "\n".join(notes), 8, va="bottom")
    return figure


def caption_of(Z: pd.DataFrame, row: int) -> str:
    """Return the values of z of a row in the order of the columns, with ? for missing values: `55 / torso / ?`."""
    return " / ".join(_value(value) for value in Z.iloc[row])


def _value(value: Any) -> str:
    if pd.isna(value):
        return MISSING
    return f"{value:.3g}" if isinstance(value, float | np.floating) else str(value)


def _caption(site: Examples, place: int) -> str:
    lines = [] if site.labels is None else [f"y = {site.labels[place]}"]
    if site.Z is not None:
        lines += _wrapped(caption_of(site.Z, place))
    return "\n".join(lines)


def _wrapped(caption: str) -> list[str]:
    """Split a caption into lines; a line ends after a slash, and never within a value."""
    parts = (part.replace(" ", TIED) for part in caption.split(" / "))
    return textwrap.wrap(f"{TIED}/ ".join(parts), CAPTION_CHARACTERS, break_long_words=False, break_on_hyphens=False)


def _draw(axes: Axes, site: Examples, place: int, caption: str) -> None:
    image = site.images[place]
    positive = site.labels is not None and site.positive is not None and site.labels[place] == site.positive
    shown = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    axes.imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_edgecolor(POSITIVE if positive else INK)
        spine.set_linewidth(HEAVY if positive else THIN)
    axes.set_xlabel(caption, fontsize=7.2, color=INK, fontweight="bold" if positive else "normal", labelpad=4)


def _about(site: Examples) -> str:
    said = f"{site.n_rows:,} images"
    return said if site.prevalence is None else f"{said}\nP(y = {site.positive}) = {site.prevalence:.3f}"


def _notes(sites: Sequence[Examples], width: int) -> list[str]:
    """Return notes that explain borders and captions, if there are any."""
    said = []
    positive = next((site.positive for site in sites if site.positive is not None), None)
    if positive is not None:
        said.append(
            f"Heavy red border and bold caption: y = {positive}. Images are chosen at random, half of a row with "
            f"y = {positive} if there are enough."
        )
    shown = [site.Z for site in sites if site.Z is not None]
    if shown:
        names = " / ".join(str(name).replace("_", " ") for name in shown[0].columns)
        missing = f"; {MISSING} is missing" if any(z.isna().to_numpy().any() for z in shown) else ""
        said.append(f"Captions: {names}{missing}.")
    return [line for text in said for line in textwrap.wrap(text, width)]
