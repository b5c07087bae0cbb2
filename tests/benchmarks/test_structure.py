"""The walks and the figures of docs/architecture.md are those of the code, and its limits hold.

The functions of the table of equations in docs/maths/method.md run where it says so.
"""

import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import sitewise as sw
from scripts import load_script
from sitewise.adaptation.families import FAMILIES, Family
from sitewise.adaptation.families.table import Table
from sitewise.bench.datasets.digits import Digits, colored_site
from sitewise.bench.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
METHOD = (ROOT / "docs" / "maths" / "method.md").read_text(encoding="utf-8")
STALE = 0.05  # relative difference beyond which a figure is out of date
MOST_COMPLEX = 18
MOST_WORDS = 2_000  # of what is to be read in ten minutes
PAPER_EQUATIONS = 31


@pytest.fixture(scope="module")
def structure():
    return load_script("benchmarks/structure.py")


@pytest.fixture(scope="module")
def tree(structure):
    return structure.count()


def figures_now(heading):
    """The numbers in the last column of a row of the page's table."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {heading} |")]
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", row.split("|")[-2])]


def section(page, heading):
    """The text below a heading, up to the next one."""
    return re.split(r"^#+ ", page.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


WALK = section(PAGE, "A row from `fit` to the report")


def steps(first, last):
    """The functions of these steps of a row's walk on the page, each with its file."""
    found = re.findall(r"^\| (\d+) \| `([\w.]+)` \| `([\w./]+)` \|", WALK, re.MULTILINE)
    assert [int(number) for number, *_ in found] == list(range(1, len(found) + 1))
    return [(name, file) for number, name, file in found if first <= int(number) <= last]


def functions_of(text):
    """The functions of the tables of a text that have a column for the function and one for its file."""
    found = re.findall(r"`([\w.]+)` \| `([\w./]+)` \|", text)
    assert found
    return found


def functions_by_file(cell):
    """The functions that a cell names after their file: `file.py`: `name`, `name`."""
    parts = re.findall(r"`([\w/]+\.py)`:((?:,? `[A-Za-z][\w.]*`)+)", cell)
    return [(name, file) for file, names in parts for name in re.findall(r"`([\w.]+)`", names)]


def called(root, call):
    """The functions of the package that run in a call, by name and file, in the order in which each is first called."""
    names = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(root)):
            names.setdefault((code.co_qualname, Path(code.co_filename).relative_to(root).as_posix()))

    sys.setprofile(note)
    try:
        return call(), list(names)
    finally:
        sys.setprofile(None)


def place(step, names):
    """The position of the first call of a function, or of a method of a class, that a page names; None if not called.

    A page may put the name of the module before the name of a function.
    """
    name, file = step
    plain = name.removeprefix("sw.").removeprefix(f"{Path(file).stem}.")
    places = [i for i, (own, at) in enumerate(names) if at == file and (own == plain or own.startswith(f"{plain}."))]
    return min(places, default=None)


def not_called(described, names):
    """The described functions that are not called."""
    return [step for step in described if place(step, names) is None]


def assert_in_order(described, names):
    """The functions are called, and first called in this order."""
    assert not_called(described, names) == []
    assert sorted(described, key=lambda step: place(step, names)) == described


@dataclass(frozen=True)
class Data:
    """Rows of two training sites, and of a new site."""

    family: sw.SimulatedFamily
    X: np.ndarray
    y: np.ndarray
    site: np.ndarray
    Z: pd.DataFrame
    new: sw.Site
    X_new: np.ndarray
    Z_new: pd.DataFrame

    @classmethod
    def of(cls, family):
        """Draw the rows; computed before calls are noted."""
        parts = [family.site(150, prevalence=[1 - p, p], seed=s) for p, s in ((0.5, 1), (0.4, 3))]
        new = family.site(150, prevalence=[0.9, 0.1], seed=2)
        X, y = np.concatenate([one.X for one in parts]), np.concatenate([one.y for one in parts])
        Z = pd.concat([one.Z for one in parts], ignore_index=True)
        return cls(family, X, y, np.repeat(["a", "b"], 150), Z, new, new.X, new.Z)

    @property
    def known(self):
        """What `fit` gets besides X and y."""
        return {"sample_domain": self.site, "sample_confounder": self.Z}


@pytest.fixture(scope="module")
def data():
    return Data.of(sw.SimulatedFamily(seed=1))


@pytest.fixture(scope="module")
def network(structure, data):
    """A network model, and the functions that its `fit` calls, with a rehearsal of each site."""
    model = sw.GPAClassifier(epochs=1, device="cpu", verbose=False, missing="joint")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one epoch
        return called(structure.ROOT, lambda: model.fit(data.X, data.y, **data.known))


@pytest.mark.filterwarnings("ignore")
def test_a_row_goes_the_way_that_the_page_describes(structure, data, tmp_path):
    X, Z = data.X_new, data.Z_new
    model = sw.GPAClassifier(epochs=1, device="cpu", verbose=False, rehearsal="rows")
    _, fit = called(structure.ROOT, lambda: model.fit(data.X, data.y, **data.known))
    here, adapt = called(structure.ROOT, lambda: model.adapt(X, sample_confounder=Z))
    fresh = model.adapt(X, sample_confounder=Z)
    _, outcome = called(structure.ROOT, here.diagnose)
    _, predict = called(structure.ROOT, lambda: here.predict_proba(X, sample_confounder=Z))
    _, first = called(structure.ROOT, lambda: fresh.predict_proba(X, sample_confounder=Z))
    _, report = called(structure.ROOT, lambda: here.report(tmp_path / "site.html"))
    last = len(re.findall(r"^\| \d+ \|", WALK, re.MULTILINE))
    assert last == 38
    for names, numbers in (
        (fit, (1, 14)),
        (adapt, (15, 20)),
        (outcome, (22, 26)),
        (outcome, (29, 32)),
        (report, (33, last)),
    ):
        assert_in_order(steps(*numbers), names)
    assert_in_order(steps(21, 28), first)  # with the checks, which are needed for the first time
    assert_in_order([*steps(21, 21), *steps(27, 28)], predict)


@pytest.mark.filterwarnings("ignore")
def test_x_meets_the_network_where_the_page_says(structure, network, data):
    model, fit = network
    step = re.findall(r"^\| N \| `([\w.]+)` \| `([\w./]+)` \|", WALK, re.MULTILINE)
    here, adapt = called(structure.ROOT, lambda: model.adapt(data.X_new, sample_confounder=data.Z_new))
    _, predict = called(structure.ROOT, lambda: here.predict_proba(data.X_new, sample_confounder=data.Z_new))
    score, log_ratio = ((f"GPAClassifier.{name}", "estimator/gpa.py") for name in ("score_raw", "raw_log_ratio"))
    assert_in_order([*steps(10, 10), score, *step], fit)
    assert_in_order([*steps(15, 15), score, *step], adapt)
    assert_in_order([*steps(21, 21), log_ratio, *step], predict)
    assert place(score, predict) is place(log_ratio, adapt) is None


def test_a_rehearsal_has_the_steps_of_the_page(network):
    assert_in_order(functions_of(section(PAGE, "The rehearsal, step by step")), network[1])


@pytest.mark.filterwarnings("ignore")
def test_rows_that_lack_z_have_the_steps_of_the_page(structure, network, data):
    here, adapt = called(structure.ROOT, lambda: network[0].adapt(data.X_new, level_scale=3.0))
    here = here.unchecked()
    assert here.joint_in_use is not None
    described = functions_of(section(PAGE, "Rows that lack z, step by step"))
    assert_in_order(described, adapt)
    _, predict = called(structure.ROOT, lambda: here.predict_proba(data.X_new))
    assert_in_order([*steps(21, 21), *steps(27, 27), *described[-1:], *steps(28, 28)], predict)


@pytest.mark.filterwarnings("ignore")
def test_the_posterior_has_the_steps_of_the_page(structure, network, data):
    here, adapt = called(structure.ROOT, lambda: network[0].adapt(data.X_new, sample_confounder=data.Z_new))
    *described, last = functions_of(section(PAGE, "The posterior, step by step"))
    assert_in_order(list(dict.fromkeys(described)), adapt)
    _, average = called(structure.ROOT, lambda: here.estimate.average(here.rows.log_ratio, here.rows.codes))
    assert not_called([last], average) == []


@pytest.mark.filterwarnings("ignore")
def test_an_adjuster_differs_as_the_page_says(structure, data):
    adjuster = sw.PrevalenceAdjuster(LogisticRegression())
    _, names = called(structure.ROOT, lambda: adjuster.fit(data.X, data.y, **data.known))
    _, adapt = called(structure.ROOT, lambda: adjuster.adapt(data.X_new, sample_confounder=data.Z_new))
    sexes = np.where(np.arange(300) % 2, "f", "m")
    pairs = sw.PrevalenceAdjuster(joint=pd.DataFrame({"sex": ["f", "m"]}), rehearsal=None)
    proba = np.random.default_rng(0).dirichlet(np.ones(4), 300).reshape(300, 2, 2)
    known = {"sample_domain": data.site, "sample_confounder": pd.DataFrame({"sex": sexes})}
    _, joint = called(structure.ROOT, lambda: pairs.fit(proba, data.y, **known))
    described = functions_of(section(PAGE, "The same for a `PrevalenceAdjuster`"))
    own = [step for step in described if "pairs" not in step[0]]
    assert_in_order(own, [*names, *adapt])
    assert not_called([step for step in described if step not in own], joint) == []
    assert len(described) == len(own) + 1


def test_what_is_read_in_ten_minutes_is_short():
    paper = section(METHOD, "The paper's equations and algorithms in the code")
    unfolded = re.sub("<details.*?</details>", "", PAGE.partition("## Reference")[0], flags=re.DOTALL)
    assert 0 < len(f"{unfolded} {paper}".split()) <= MOST_WORDS


def test_the_page_has_every_equation_and_algorithm_of_the_paper():
    text = section(METHOD, "The paper's equations and algorithms in the code")
    spans = re.findall(r"^\| \((\d+)\)(?:(?: to |, )\((\d+)\))? \|", text, re.MULTILINE)
    numbers = [number for low, high in spans for number in range(int(low), int(high or low) + 1)]
    assert numbers == list(range(1, PAPER_EQUATIONS + 1))
    assert re.findall(r"^\| algorithm (\d)", text, re.MULTILINE) == ["1", "2", "3", "3", "3", "3"]


@pytest.mark.filterwarnings("ignore")
def test_each_function_of_the_paper_runs(structure, monkeypatch):
    """The functions of the table of equations run, in calls of the method that they are said to be part of."""
    monkeypatch.setattr("sitewise.prevalence.network.STEPS", 20)
    monkeypatch.setitem(FAMILIES, "own", OwnFamily())
    data = Data.of(sw.SimulatedFamily(n_continuous=0, levels=(2,), seed=1))
    log_ratio, Z = data.new.log_ratio, data.Z_new
    digits = Digits(np.zeros((20, 28, 28), dtype=np.uint8), np.arange(20) % 10, "blank")
    settings = {"epochs": 1, "device": "cpu"}

    def calls():
        model = sw.GPAClassifier(**settings, verbose=False, rehearsal=None).fit(data.X, data.y, **data.known)
        here = model.adapt(data.X_new, sample_confounder=Z)
        here.predict(data.X_new, sample_confounder=Z)
        sw.adjust(log_ratio, np.log(here.estimate.marginal))
        here.prevalence()
        for name in FAMILIES:
            sw.estimate_prevalence(log_ratio, Z, model=name, solver=sw.EM(2), random_state=0)
        for name in ("copa_star", "gpa_paper", "gpa_paper_star"):
            method = METHODS[name](**settings).fit(data.X, data.y, **data.known)
            method.adapt(data.X_new, Z, prevalence=np.array([0.5, 0.5])).predict_proba(data.X_new, Z)
        for causal in ("confounded", "y_causes_z", "z_causes_y"):
            colored_site(digits, 50, model=causal, beta=0.5)

    _, names = called(structure.ROOT, calls)
    rows = section(METHOD, "The paper's equations and algorithms in the code").splitlines()
    described = [step for row in rows if row.startswith("| ") for step in functions_by_file(row)]
    assert len(described) > 30
    assert not_called(described, names) == []
    assert not_called([("RatioNetwork.backward", "ratio.py")], names) != []


class OwnFamily(Table):
    """A family of a user, which is estimated from unlabeled rows as `Family` does it."""

    name = "own"
    fit_rows = Family.fit_rows


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
    calls = ("fit", "adapt", "diagnose", "report", "estimate_prevalence")
    said = {call: figures_now(f"files of `{call}`") for call in calls}
    checked = "files of `predict_proba`, the first time, with the checks that decide whether rows are trusted"
    said["predict_proba"] = figures_now(checked)
    walk = "different files of the whole walk: `fit`, `adapt`, `predict_proba`, `diagnose` and `report`"
    said["the whole walk"] = figures_now(walk)
    assert said == {call: [pytest.approx(walks[call], rel=STALE)] for call in said}
    adjuster = [walks["fit of the adjuster"], walks["adapt of the adjuster"]]
    assert figures_now("files of `fit` and `adapt` of a `PrevalenceAdjuster`") == pytest.approx(adjuster, rel=STALE)
