"""Figures: what is drawn where, that nothing is cut off or over another thing, that colour is not needed."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Text

from sitewise.bench.report.comparison import (
    DASHES,
    DIFFERENCE_WIDTH,
    LINE_MARKERS,
    PANEL_WIDTH,
    comparison_figure,
    curve_figure,
    save_figure,
)
from sitewise.bench.report.summary import INFORMED_MARK

MEANS = {"ERM": 0.66, "ERM^Z": 0.71, "CoPA": 0.85, "GPA": 0.858, "IRM": "needs two sites"}
LONG = {f"ERM^c + label-shift EM, vector scaling, {number}": 0.5 + number / 100 for number in range(24)} | {"GPA": 0.8}


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def marks(axis):
    """Every point of an axis: x, y, marker, filled."""
    lines = [
        line for line in axis.lines if line.get_marker() not in ("None", "", None, "|", "_") and len(line.get_xdata())
    ]
    lines = [line for line in lines if isinstance(line.get_marker(), str)]
    return [(line.get_xdata()[0], line.get_ydata()[0], line.get_marker(), line.get_mfc() != "white") for line in lines]


def drawn_texts(figure):
    """All texts that are drawn, with their extents in pixels."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    texts = [*figure.texts]
    for legend in figure.legends:
        texts += [legend.get_title(), *legend.get_texts()]
    for axis in figure.axes:
        titles = [text for text in axis.get_children() if isinstance(text, Text) and text not in axis.texts]
        texts += [*titles, axis.xaxis.label, axis.yaxis.label]
        for side, limits in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
            ticks = [tick for tick in side.get_major_ticks() if min(limits) <= tick.get_loc() <= max(limits)]
            texts += [tick.label1 for tick in ticks if tick.label1.get_visible()]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text().strip()]


def assert_tidy(figure):
    """No text leaves the figure and no two texts overlap."""
    width, height = figure.get_size_inches() * figure.dpi
    texts = drawn_texts(figure)
    assert len(texts) > 8
    for text, box in texts:
        assert box.x0 >= -1, text
        assert box.y0 >= -1, text
        assert box.x1 <= width + 1, text
        assert box.y1 <= height + 1, text
    for number, (first, box) in enumerate(texts):
        for second, other in texts[:number]:
            over = (
                min(box.x1, other.x1) - max(box.x0, other.x0) > 1 and min(box.y1, other.y1) - max(box.y0, other.y0) > 1
            )
            assert not over, f"{first!r} over {second!r}"


def test_many_sites_are_drawn_two_by_two(summary):
    figure = comparison_figure(summary(MEANS, sites=tuple("abcde")), "positive_f1", "GPA")
    titles = [axis.get_title("left") for axis in figure.axes]
    assert [title for title in titles if title] == list("abcde")
    assert len(figure.axes) == 10
    figure.draw_without_rendering()
    tops = {axis.get_title("left"): round(axis.get_position().y1, 2) for axis in figure.axes}
    assert tops["a"] == tops["b"] > tops["c"] == tops["d"] > tops["e"]
    wide, high = figure.get_size_inches()
    assert (wide, high) < (2.2 * PANEL_WIDTH + 2.2 * DIFFERENCE_WIDTH + 3, 20)


def test_points_are_at_their_means_and_differences(summary):
    figure = comparison_figure(summary(MEANS, told={"CoPA"}), "positive_f1", "GPA", title="Color MNIST")
    points, differences = figure.axes
    assert [x for x, *_ in marks(points)] == [0.66, 0.71, 0.85, 0.858]
    assert [x for x, *_ in marks(differences)] == pytest.approx([0.66 - 0.858, 0.71 - 0.858, 0.85 - 0.858])
    assert [label.get_text() for label in points.get_yticklabels()] == [
        *("ERM", r"ERM$^{\mathrm{Z}}$", f"CoPA {INFORMED_MARK}", "GPA")
    ]
    assert points.get_ylim()[0] > points.get_ylim()[1]  # the first method is on top
    assert points.get_xlabel() == "positive-class F1"


def test_informed_methods_are_hollow_the_reference_is_bold_and_what_is_left_out_is_named(summary):
    figure = comparison_figure(summary(MEANS, told={"CoPA"}), "positive_f1", "GPA")
    assert [filled for *_, filled in marks(figure.axes[0])] == [True, True, False, True]
    weights = [label.get_fontweight() for label in figure.axes[0].get_yticklabels()]
    assert weights == ["normal", "normal", "normal", "bold"]
    notes = figure.legends[0].get_title().get_text()
    assert "left out: IRM" in notes
    assert INFORMED_MARK in notes
    assert "mean over 20 seeds" in notes


def test_draws_differ_in_marker_and_place_and_have_a_legend(summary):
    frame = summary(MEANS, draws=("30,000", "1,000", "adapted on 1,000"))
    figure = comparison_figure(frame, "positive_f1", "GPA")
    of_erm = marks(figure.axes[0])[:3]
    assert len({marker for _, _, marker, _ in of_erm}) == len({y for _, y, _, _ in of_erm}) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["30,000", "1,000", "adapted on 1,000"]


@pytest.mark.parametrize(
    ("means", "sites", "draws", "seeds"),
    [
        (MEANS, ("site A",), ("1,000",), 20),
        (MEANS, ("site A",), ("1,000",), 1),
        (LONG, ("paper's site (β = 0.3)", "flipped site", "another site"), ("30,000", "1,000"), 5),
        (LONG, ("site A",), ("30,000",), 5),
    ],
)
def test_no_text_is_cut_off_or_over_another(summary, means, sites, draws, seeds):
    frame = summary(means, told={"CoPA"}, sites=sites, draws=draws, seeds=seeds)
    assert_tidy(comparison_figure(frame, "positive_f1", "GPA", title="Color MNIST, confounded"))


def test_the_figure_grows_with_methods_and_sites(summary):
    few = comparison_figure(summary(MEANS), "positive_f1", "GPA").get_size_inches()
    many = comparison_figure(summary(LONG), "positive_f1", "GPA").get_size_inches()
    wide = comparison_figure(summary(MEANS, sites=("a", "b", "c")), "positive_f1", "GPA").get_size_inches()
    assert many[1] > 2 * few[1]
    assert wide[0] > 2 * few[0]
    assert wide[1] == few[1]


def test_without_differences_there_is_one_panel_a_site(summary):
    frame = summary({"GPA": 0.8}, sites=("a", "b"))
    assert len(comparison_figure(frame, "positive_f1", "GPA").axes) == 2


SIZES = {"50": 50, "300": 300, "1,000": 1000, "3,000": 3000, "10,000": 10000}


def test_a_curve_passes_its_means_in_the_order_of_the_numbers(summary):
    frame = summary({"ERM": 0.66, "GPA": 0.8}, draws=tuple(reversed(SIZES)))
    frame["mean"] += frame["draw"].map(SIZES) / 1e5
    figure = curve_figure(
        frame, "positive_f1", SIZES, over="draw", label="unlabeled samples", log=True, reference="GPA"
    )
    axis = figure.axes[0]
    line = next(line for line in axis.lines if line.get_lw() > 2)
    assert line.get_ydata() == pytest.approx([0.8 + number / 1e5 for number in SIZES.values()])
    assert line.get_xdata() == pytest.approx(list(SIZES.values()), rel=0.2)
    assert axis.get_xscale() == "log"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == list(SIZES)
    assert axis.get_xlabel() == "unlabeled samples"


def test_lines_differ_without_colour(summary):
    means = {f"m{number}": 0.5 for number in range(len(LINE_MARKERS) * len(DASHES))} | {"GPA": 0.8}
    frame = summary(means, draws=tuple(SIZES), told={"m3"})
    figure = curve_figure(frame, "positive_f1", SIZES, over="draw", label="n", log=True, reference="GPA")
    handles = figure.legends[0].legend_handles
    assert len({(handle.get_marker(), handle.get_linestyle(), handle.get_lw()) for handle in handles}) == len(means)
    assert [handle.get_label() for handle in handles if handle.get_mfc() == "white"] == [f"m3 {INFORMED_MARK}"]


def test_over_sites_the_draws_are_panels_and_sites_without_a_number_are_not_drawn(summary):
    frame = summary(MEANS, sites=("β = 0.1", "β = 0.3", "flipped"), draws=("30,000", "1,000"))
    numbers = {"β = 0.1": 0.1, "β = 0.3": 0.3}
    figure = curve_figure(frame, "positive_f1", numbers, over="site", label="β", reference="GPA")
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["draw: 30,000", "draw: 1,000"]
    assert all(len(line.get_xdata()) <= 2 for axis in figure.axes for line in axis.lines)


@pytest.mark.parametrize(("means", "seeds"), [(MEANS, 1), (LONG, 5)])
def test_curves_have_no_text_cut_off_or_over_another(summary, means, seeds):
    frame = summary(means, sites=("paper's site (β = 0.3)", "flipped site"), draws=tuple(SIZES), seeds=seeds)
    figure = curve_figure(
        frame, "positive_f1", SIZES, over="draw", label="unlabeled samples", log=True, title="A title"
    )
    assert_tidy(figure)


def test_ticks_that_would_touch_are_left_out(summary):
    sizes = {"1": 1, "2": 2, "3": 3, "30,000": 30000, "30,100": 30100}
    figure = curve_figure(summary(MEANS, draws=tuple(sizes)), "positive_f1", sizes, over="draw", label="n")
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1", "30,000"]


def test_numbers_that_cannot_be_drawn_are_named(summary):
    frame = summary(MEANS, draws=("a", "b"))
    with pytest.raises(ValueError, match="needs numbers above 0, but 'a' has 0"):
        curve_figure(frame, "positive_f1", {"a": 0, "b": 1}, over="draw", label="n", log=True)
    with pytest.raises(ValueError, match="no draw of the summary has a number"):
        curve_figure(frame, "positive_f1", {"c": 1}, over="draw", label="n")


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_figures_are_written_and_let_go(summary, tmp_path, suffix):
    path = save_figure(comparison_figure(summary(MEANS), "positive_f1", "GPA"), tmp_path / "deep" / f"f.{suffix}")
    assert path.stat().st_size > 5000
    assert not plt.get_fignums()


def test_an_interval_that_rounding_turned_around_is_drawn(summary):
    frame = summary(MEANS)
    frame["low"] = frame["mean"] + 1e-17
    frame["high"] = np.nextafter(frame["mean"], 0)
    turned = comparison_figure(frame, "positive_f1", "GPA")
    usual = comparison_figure(summary(MEANS), "positive_f1", "GPA")
    assert [point[:2] for point in marks(turned.axes[0])] == [point[:2] for point in marks(usual.axes[0])]
    assert len(marks(turned.axes[0])) >= 4


def test_intervals_of_two_seeds_do_not_hide_the_points(summary):
    figure = comparison_figure(summary(MEANS, seeds=2, half=5.0), "positive_f1", "GPA")
    low, high = figure.axes[0].get_xlim()
    assert low < 0.66
    assert high > 0.858
    assert high - low < 0.5
    assert "without an end go beyond" in figure.legends[0].get_title().get_text()
    figure = comparison_figure(summary(MEANS, half=0.05), "positive_f1", "GPA")
    low, high = figure.axes[0].get_xlim()
    assert low < 0.66 - 0.05 < 0.858 + 0.05 < high
    assert "without an end" not in figure.legends[0].get_title().get_text()
    frame = summary(MEANS, seeds=2, half=5.0, draws=tuple(SIZES))
    curve = curve_figure(frame, "positive_f1", SIZES, over="draw", label="n", log=True)
    assert np.ptp(curve.axes[0].get_ylim()) < 0.5


def test_a_library_that_changes_all_fonts_does_not_change_ours(summary):
    with matplotlib.rc_context({"font.size": 18, "figure.dpi": 200}):
        figure = comparison_figure(summary(MEANS), "positive_f1", "GPA")
        assert_tidy(figure)
    plain = comparison_figure(summary(MEANS), "positive_f1", "GPA")
    sizes = [[(box.width, box.height) for _, box in drawn_texts(drawn)] for drawn in (figure, plain)]
    assert sizes[0] == sizes[1]
