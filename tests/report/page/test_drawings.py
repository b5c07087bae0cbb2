"""Scales, ticks and text of the figures."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sitewise.report.page.drawings import Row, Scale, ceiling, curve, element, intervals, path, ticks
from sitewise.report.wording import compact, fixed, percent, plural, shorten, whole


def test_elements_escape_children_and_attributes():
    made = element("text", "<script>", element("b", "&"), class_='"x"', text_anchor=None, x=1.5)
    assert made == '<text class="&#34;x&#34;" x="1.5">&lt;script&gt;<b>&amp;</b></text>'


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_few_and_inside(low, span):
    marks = ticks(low, low + span)
    assert 2 <= len(marks) <= 9
    slack = 1e-6 * span + 1e-9 * abs(low)
    assert all(low - slack <= t <= low + span + slack for t in marks)
    assert np.ptp(np.diff(marks)) <= 1e-6 * span + 1e-9 * abs(low) if len(marks) > 2 else True


@given(st.floats(0, 1))
def test_an_axis_of_probabilities_holds_its_values(value):
    assert max(value, 1e-4) <= ceiling(value) * (1 + 1e-9) <= 1 + 1e-9


def test_a_scale_is_straight_and_ends_at_its_ends():
    scale = Scale(0, 2, 100, 300)
    assert [scale(v) for v in (-1, 0, 0.5, 2, 9)] == [100, 100, 150, 300, 300]
    assert Scale(3, 3, 0, 10)(3) == 5


def test_long_names_are_cut_to_their_columns():
    assert shorten("a" * 500, 10) == "aaaaaa…aaa"
    assert shorten("clinic number 976", 12) == "clinic n…976"
    assert shorten("two\nlines", 20) == "two lines"
    assert shorten("日本語の名前", 6) == "日本…"
    assert shorten("ten letter", 10) == "ten letter"


def test_a_curve_goes_through_its_points():
    points = [
        {"value": z, "rows": 1, "before": [0.5, 0.5], "after": [1 - p, p], "low": [0, p], "high": [0, p]}
        for z, p in ((0.0, 0.0), (1.0, 0.5), (2.0, 1.0))
    ]
    svg = curve("k", points, 1, "z", "title", "desc")
    (d,) = re.findall(r'd="([^"]*)" class="after line"', svg)
    xs, ys = np.array([pair.split() for pair in re.split(" ?[ML]", d)[1:]], dtype=float).T
    assert np.diff(xs) == pytest.approx(np.diff(xs)[0])
    assert ys[1] == pytest.approx((ys[0] + ys[2]) / 2)
    assert ys[2] < ys[0]
    assert d == path(list(zip(xs, ys, strict=True)))


def test_an_interval_spans_its_ends():
    svg = intervals("k", [Row("here", after=0.5, low=0.0, high=1.0)], "title", "desc")
    start, end = (float(v) for v in re.search(r"M([\d.]+) [\d.]+v8M([\d.]+) [\d.]+v8", svg).groups())
    centre = float(re.search(r'cx="([\d.]+)"', svg).group(1))
    assert centre == pytest.approx((start + end) / 2, abs=0.1)


@pytest.mark.parametrize(
    ("share", "words"),
    [(0, "0%"), (1, "100%"), (0.5, "50.0%"), (0.0026, "0.26%"), (1e-7, "<0.01%"), (1 - 1e-7, ">99.99%"), (None, "–")],
)
def test_percent_tells_little_from_nothing(share, words):
    assert percent(share) == words


def test_numbers_in_a_few_digits():
    shown = [compact(v) for v in (1234567, 0.123456, 12.3456, 45.0, 3.2e-9, True, None, "x", 0.0, 123456.7)]
    assert shown == ["1,234,567", "0.123", "12.3", "45", "3.2e-09", "yes", "–", "x", "0", "123,457"]
    assert (fixed(0.5), fixed(None), whole(1234.4), whole(0.26), whole(0.0)) == ("0.500", "–", "1,234", "0.3", "0")
    assert (plural(1, "row"), plural(2000, "row")) == ("1 row", "2,000 rows")
