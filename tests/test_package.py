"""The package as a whole: lazy, typed, and the contract's names and signatures."""

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import sitewise as sw


def test_importing_sitewise_imports_neither_torch_nor_pandas():
    code = "import sys, sitewise; print(sorted({'torch', 'pandas', 'numpy', 'sklearn', 'scipy'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


IMPORT_ALL = """
import pkgutil, sys
for name in sys.argv[1:]:
    sys.modules[name] = None  # importing it fails, as where it is not there
import sitewise
found = [module.name for module in pkgutil.walk_packages(sitewise.__path__, "sitewise.", onerror=print)]
for name in found:
    if not name.endswith("__main__"):
        __import__(name)
print(len(found))
"""


POSIX = ("fcntl", "pwd", "grp", "resource", "termios", "pty")
EXTRAS = (
    "lightning_fabric",
    "lightning",
    "monai",
    "onnx",
    "onnxruntime",
    "quapy",
    "abstention",
    "mlxtend",
    "polars",
    "mlflow",
    "fastapi",
    "uvicorn",
)


@pytest.mark.parametrize("absent", [POSIX, EXTRAS], ids=["of POSIX systems", "of the extras"])
def test_every_module_is_imported_without_modules(absent):
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", IMPORT_ALL, *absent], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout.splitlines()[-1]) > 200


WORK = """
import sys


class Without:  # finders that do not find some packages, as where these are not installed
    def __init__(self, finder, names):
        self.finder, self.names = finder, names

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self.names else self.finder.find_spec(name, path, target)


sys.meta_path[:] = [Without(finder, sys.argv[2:]) for finder in sys.meta_path]
import numpy as np, pandas as pd, sitewise as sw
from sklearn.linear_model import LogisticRegression
from sitewise.cli import main
from sitewise.tables import Roles, TableReader

rng = np.random.default_rng(0)
frame = pd.DataFrame({"x": rng.normal(size=200), "w": rng.choice(["u", "v"], 200), "age": rng.normal(60, 9, 200)})
frame["y"] = (frame["x"] + rng.normal(size=200) > 0).astype(int)
reader = TableReader.learn(frame, Roles(target="y", confounders=("age",), features=("x", "w")))
rows = reader.read(frame)
network = sw.GPAClassifier(epochs=1, device="cpu", rehearsal=None)
adjuster = sw.PrevalenceAdjuster(LogisticRegression(), rehearsal=None)
for name, model in {"network": network, "adjuster": adjuster}.items():
    model.fit(rows.X, rows.y, sample_confounder=rows.Z).table_reader_ = reader
    here = model.adapt(rows.X, sample_confounder=rows.Z)
    here.save(sys.argv[1] + name)
    here.report(sys.argv[1] + name + ".html")
    again = sw.load(sys.argv[1] + name).predict_proba(rows.X, sample_confounder=rows.Z)
    assert (again == here.predict_proba(rows.X, sample_confounder=rows.Z)).all()
frame.to_csv(sys.argv[1] + "rows.csv", index=False)
sys.argv = ["sitewise", "predict", sys.argv[1] + "network", sys.argv[1] + "rows.csv", "--out", sys.argv[1] + "p.csv"]
main()
"""


def test_a_plain_install_fits_adapts_saves_reports_and_predicts(tmp_path):
    """Without any extra: from a table to predictions, by Python and by the command line."""
    command = [sys.executable, "-W", "ignore", "-c", WORK, f"{tmp_path}/", *EXTRAS]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 201


def test_the_plain_install_is_tested_with_what_the_tests_need():
    """Its job installs no extra: what `tests/conftest.py` and the files it names import has to be named with pytest."""
    root = Path(__file__).parents[1]
    workflow = yaml.safe_load((root / ".github/workflows/checks.yml").read_text(encoding="utf-8"))
    install, run = (step["run"] for step in workflow["jobs"]["plain-install"]["steps"] if "run" in step)
    assert {"pytest", "hypothesis"} <= set(install.split())
    named = [root / word for word in run.split() if word.startswith("tests")]
    assert named
    assert [path for path in named if not path.exists()] == []


def test_tests_that_the_makefile_names_are_there():
    root = Path(__file__).parents[1]
    named = re.findall(r"\btests/[\w/]+(?:\.py)?", (root / "Makefile").read_text(encoding="utf-8"))
    assert len(named) > 5
    assert [path for path in named if not (root / path).exists()] == []


def test_a_wheel_holds_every_file_of_the_package():
    root = Path(__file__).parents[1]
    package = root / "src" / "sitewise"
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    named = {path for pattern in settings["package-data"]["sitewise"] for path in package.glob(pattern)}
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert named == {path for path in files if path.suffix != ".py"}
    folders = {path.parent for path in files if path.suffix == ".py"}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_versions_and_the_citation_agree():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["version"] == cited["version"] == sw.__version__
    assert cited["license"] == project["license"]
    assert cited["abstract"] == project["description"]
    workflow = yaml.safe_load((root / ".github/workflows/checks.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python-version"] == ["3.11", "3.12", "3.13"]


def test_compromised_versions_are_excluded():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for name in ("gpu", "dev"):
        (fabric,) = (line for line in extras[name] if line.startswith("lightning-fabric"))
        assert {"!=2.6.2", "!=2.6.3"} <= set(fabric.replace(">", ",>").split(","))
    assert not [line for line in project["dependencies"] if "lightning" in line]


def test_every_public_name_can_be_imported_and_is_listed():
    for name in sw.__all__:
        assert getattr(sw, name) is not None
        assert name in dir(sw)
    with pytest.raises(AttributeError, match="no attribute 'estimate_prevalance'"):
        _ = sw.estimate_prevalance


def test_signatures_are_the_contracts():
    estimate = inspect.signature(sw.estimate_prevalence)
    assert str(estimate).startswith("(log_ratio: Any, sample_confounder: Any = None, *, model: str = 'auto'")
    assert list(estimate.parameters) == [
        *("log_ratio", "sample_confounder", "model", "solver", "strength", "prior", "confounders", "categorical"),
        *("y", "sample_weight", "groups", "start", "random_state", "known_prevalence", "dropout"),
    ]
    assert list(inspect.signature(sw.adjust).parameters) == ["log_ratio", "log_prevalence"]
    calibrate = inspect.signature(sw.calibrate_log_ratio).parameters
    assert list(calibrate)[:4] == ["log_ratio", "y", "log_prevalence", "method"]
    assert calibrate["method"].default == "vector"
