"""Text never changes a fingerprint, behaviour always does; and what runs is in the code that is fingerprinted."""

import shutil
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from sitewise.bench.experiments import fingerprint as module
from sitewise.bench.experiments.fingerprint import (
    ASIDE,
    ENTRY,
    REGISTRY,
    SOURCE,
    closure,
    code_of,
    run_fingerprint,
    script_fingerprint,
)
from sitewise.bench.experiments.plan import final_runs
from sitewise.bench.experiments.scoring import run_one
from sitewise.bench.methods import METHODS

CODE = '''
"""What it is."""

LIMIT = 3  # rows


def double(x, scale=2.0):
    """Twice x."""
    if x > LIMIT:
        raise ValueError("too large")
    return scale * x


class Kept:
    """A record."""

    name: str = "kept"
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""What it is."""', '"""Something else,\n\nat length."""'),
        ("# rows", "# of the table"),
        ('    """Twice x."""\n', ""),
        ("double(x, scale=2.0)", "double(\n    x,\n    scale=2.0,\n)"),
        ("return scale * x", "return (scale*x)"),
        ("2.0", "2.00"),
        ('"kept"', "'kept'"),
    ],
)
def test_text_and_layout_change_nothing(old, new):
    assert old in CODE
    assert code_of(CODE.replace(old, new)) == code_of(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("scale=2.0", "scale=2.5"),
        ("x > LIMIT", "x >= LIMIT"),
        ("scale * x", "x * scale"),
        ('"kept"', '"lost"'),
        ("ValueError", "TypeError"),
        ("def double", "@cached\ndef double"),
        ("    if x > LIMIT:\n", "    if x < 0:\n        return None\n    if x > LIMIT:\n"),
    ],
)
def test_behaviour_always_counts(old, new):
    assert old in CODE
    assert code_of(CODE.replace(old, new)) != code_of(CODE)


def test_a_run_depends_on_the_method_it_names_and_on_what_that_imports():
    gpa = closure([ENTRY, METHODS["gpa"].__module__], REGISTRY)
    for name in (
        "solvers",
        "posterior",
        "adaptation.families",
        "training.loop",
        "estimator.gpa",
        "bench.datasets.digits",
    ):
        assert f"sitewise.{name}" in gpa
    assert "sitewise.bench.methods.copa" not in gpa
    assert "sitewise.adaptation.estimate" not in closure([ENTRY, METHODS["erm"].__module__], REGISTRY)
    assert not any(name.startswith(ASIDE) for name in gpa)


@pytest.mark.filterwarnings("ignore")  # of an f that an epoch has taught next to nothing
def test_every_function_that_runs_is_in_the_code_that_counts(tiny):
    methods = {name: None for name in ("G2", "T", "R")} | {"G": "gpa_joint", "S": "gpa_star", "D": "gpa_guarded"}
    plan = tiny({"methods": methods, "tuning": None, "recipe": {"epochs": 1, "min_steps": 0}, "seeds": 1})
    run = final_runs(plan, {})[0]
    called = set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_name != "<module>":
            called.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        run_one(run, None, "cpu")
    finally:
        sys.setprofile(None)
    ours = {Path(name).relative_to(SOURCE) for name in called if name.startswith(str(SOURCE))}
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in ours}
    known = closure([ENTRY, METHODS["gpa"].__module__], REGISTRY)
    passing = {"sitewise.bench.experiments.fingerprint", "sitewise.bench.experiments.provenance"}
    passing |= {"sitewise.report.wording", "sitewise.report.page", "sitewise.moved"}  # sentences, an import hook
    assert "sitewise.adaptation.posterior.fit" in modules
    assert {name for name in modules if name not in known} - passing <= {"sitewise", *lazy_packages()}


def lazy_packages():
    """The packages whose `__getattr__` looks up a name."""
    files = SOURCE.glob("sitewise/**/__init__.py")
    lazy = (path for path in files if "def __getattr__" in path.read_text(encoding="utf-8"))
    return {".".join(path.parent.relative_to(SOURCE).parts) for path in lazy}


def test_settings_and_methods_change_the_fingerprint(tiny, monkeypatch):
    run = final_runs(tiny(), {})[0]
    fingerprint = run_fingerprint(run)
    assert run_fingerprint(replace(run)) == fingerprint
    assert run_fingerprint(replace(run, seed=run.seed + 1)) != fingerprint
    monkeypatch.setitem(METHODS, run.methods[0].method, METHODS["sees_labels"])
    assert run_fingerprint(run) != fingerprint


def forget():
    """Clear every cache of the module, because sources were edited."""
    for function in vars(module).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the sources that may be edited."""
    shutil.copytree(SOURCE / "sitewise", tmp_path / "sitewise", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "SOURCE", tmp_path)

    def edit(name, old, new):
        path = tmp_path / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    forget()
    yield lambda *change: [edit(*change), forget()]
    forget()


def test_an_edit_far_below_counts_where_it_is_used(copied, tiny):
    methods = {name: None for name in ("G2", "T", "R")}
    runs = [
        final_runs(tiny({"methods": methods | {"G": name}, "tuning": None}), {})[0] for name in ("gpa", "erm", "copa")
    ]
    before = [run_fingerprint(run) for run in runs]
    copied("sitewise/posterior.py", '"""', '"""Words. ')
    copied("sitewise/version.py", '"', '"9.')
    assert [run_fingerprint(run) for run in runs] == before
    copied("sitewise/bench/methods/copa.py", "import", "import math\nimport")
    assert [run_fingerprint(run) == old for run, old in zip(runs, before, strict=True)] == [True, True, False]
    copied("sitewise/adaptation/rare_levels.py", "import", "import math\nimport")
    assert [run_fingerprint(run) == old for run, old in zip(runs, before, strict=True)][:2] == [False, True]


def test_a_script_counts_with_its_neighbours(tmp_path):
    script, neighbour = tmp_path / "study.py", tmp_path / "helper_of_study.py"
    script.write_text(
        textwrap.dedent("""
        import json
        import sitewise as sw
        from helper_of_study import size
        print(sw.estimate_prevalence, size)
        """)
    )
    neighbour.write_text("size = 3\n")
    sources = closure([str(script)])
    assert {"study", "helper_of_study", "sitewise.adaptation.estimate"} <= set(sources)
    assert "sitewise.estimator.gpa" not in sources
    first = script_fingerprint(script)
    for text, same in (("size = 3  # rows\n", True), ("size = 4\n", False)):
        neighbour.write_text(text)
        forget()
        assert (script_fingerprint(script) == first) == same
