"""The figures of docs/architecture.md are those of the tree, and its limits hold."""

import importlib.util
import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STALE = 0.05  # relative difference beyond which a figure is out of date
MOST_COMPLEX = 18


@pytest.fixture(scope="module")
def structure():
    spec = importlib.util.spec_from_file_location("structure", ROOT / "benchmarks" / "structure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tree(structure):
    return structure.count()


def figures_now(heading):
    """The numbers in the last column of a row of the page's table."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {heading} |")]
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", row.split("|")[-2])]


def test_no_function_is_too_complex(tree):
    assert tree["all"]["highest complexity"] <= MOST_COMPLEX


def test_no_code_asks_of_which_family_a_g_is(tree):
    assert tree["all"]["isinstance on a family of g"] == 0


def test_private_attributes_of_a_model_are_its_own(tree):
    assert tree["all"]["private attributes of a model read from outside"] == 0


@pytest.mark.parametrize(
    ("heading", "figure"),
    [
        ("modules of the method, of all", "modules"),
        ("code lines of the method, without `bench/`, and of all", "code lines"),
        ("imports of the package a module, method and all", "imports of the package a module"),
        ("functions of complexity above 10, of the method and of all", "functions of complexity above 10"),
    ],
)
def test_the_page_has_the_figures_of_the_tree(tree, heading, figure):
    assert figures_now(heading) == pytest.approx([tree[part][figure] for part in ("method", "all")], rel=STALE)


def test_the_page_has_the_files_of_each_call(structure):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows, two epochs
        walks = structure.walks()
    said = {call: figures_now(f"files of `{call}`") for call in ("fit", "adapt", "diagnose", "estimate_prevalence")}
    assert said == {call: [pytest.approx(walks[call], rel=STALE)] for call in said}
    adjuster = [walks["fit of the adjuster"], walks["adapt of the adjuster"]]
    assert figures_now("files of `fit` and `adapt` of a `PrevalenceAdjuster`") == pytest.approx(adjuster, rel=STALE)
