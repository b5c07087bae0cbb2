"""The figures of docs/architecture.md are those of the tree, and its limits hold."""

import importlib.util
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import sitewise as sw

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


def steps(first, last):
    """The functions of these steps of a row's walk on the page, each with its file."""
    found = re.findall(r"^\| (\d+) \| `([\w.]+)` \| `([\w./]+)` \|", PAGE, re.MULTILINE)
    assert [int(number) for number, *_ in found] == list(range(1, len(found) + 1))
    return [(name.rpartition(".")[2], file) for number, name, file in found if first <= int(number) <= last]


def called(root, call):
    """The functions of the package that run in a call, by name and file, in the order in which each is first called."""
    names = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(root)):
            owner = code.co_qualname.partition(".")[0] if code.co_name == "__init__" else code.co_name
            names.setdefault((owner, Path(code.co_filename).relative_to(root).as_posix()))

    sys.setprofile(note)
    try:
        return call(), list(names)
    finally:
        sys.setprofile(None)


def test_a_row_goes_the_way_that_the_page_describes(structure, tmp_path):
    family = sw.SimulatedFamily(seed=1)
    rows, new = family.site(300, seed=1), family.site(150, prevalence=[0.9, 0.1], seed=2)
    X, Z = new.X, new.Z  # computed before calls are noted
    training = {"sample_domain": np.repeat(["a", "b"], 150), "sample_confounder": rows.Z}
    model = sw.GPAClassifier(epochs=1, device="cpu", verbose=False, rehearsal="rows")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one epoch
        inputs = rows.X, rows.y
        _, fit = called(structure.ROOT, lambda: model.fit(*inputs, **training))
        here, adapt = called(structure.ROOT, lambda: model.adapt(X, sample_confounder=Z))
        _, outcome = called(structure.ROOT, here.diagnose)
        _, predict = called(structure.ROOT, lambda: here.predict_proba(X, sample_confounder=Z))
        _, report = called(structure.ROOT, lambda: here.report(tmp_path / "site.html"))
    for names, numbers in (
        (fit, (1, 13)),
        (adapt, (14, 19)),
        (predict, (20, 22)),
        (outcome, (23, 30)),
        (report, (31, 35)),
    ):
        described = steps(*numbers)
        assert [step for step in described if step not in names] == []
        assert sorted(described, key=names.index) == described


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
