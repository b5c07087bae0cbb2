"""The page on growth shows what the committed records give, and its arithmetic is right on records written by hand."""

import sys

import pytest

from scripts import load_script


@pytest.fixture(scope="module")
def page():
    yield load_script("benchmarks/scale_page.py")
    for name in ("scale", "records"):
        sys.modules.pop(name, None)


def test_the_page_has_the_tables_of_the_records(page):
    text, found = page.PAGE.read_text(), page.read()
    assert {block[2] for block in page.BLOCK.finditer(text)} == set(page.BLOCKS)
    assert page.rewrite(text, found) == text
    found["sites"][max(found["sites"])]["wall_seconds"] *= 2
    assert page.rewrite(text, found) != text


def test_exponents_are_those_of_powers(page):
    sizes = [1, 2, 4, 8]
    assert page.exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert page.upper(list(range(7))) == [3, 4, 5, 6]
    assert page.upper([1, 2, 3]) == [1, 2, 3]


def test_the_plan_is_the_measured_rates_multiplied(page, monkeypatch):
    dask = {"size": 100, "seconds": 30.0, "layout_seconds": 10.0, "passes": 4}
    tasks = {n: {"size": n, "seconds_a_pass": 0.5 + 0.01 * n, "record_bytes": 500} for n in (10, 20)}
    read_rate, pass_rate, slope, passes, _ = page.rates({"dask": {100: dask}, "tasks": tasks})
    assert (read_rate, pass_rate, passes) == (5.0, 10.0, 4)
    assert slope == pytest.approx(0.01)


def test_the_last_record_of_a_size_counts(page, tmp_path):
    file = tmp_path / "records.jsonl"
    file.write_text('{"part": "rows", "size": 5, "seconds": 1}\n{"part": "rows", "size": 5, "seconds": 2}\n')
    assert page.read(file) == {"rows": {5: {"part": "rows", "size": 5, "seconds": 2}}}
