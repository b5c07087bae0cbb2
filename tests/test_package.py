"""The package as a whole: lazy, typed, and the contract's names and signatures."""

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sitewise as sw


def test_importing_sitewise_imports_neither_torch_nor_pandas():
    code = "import sys, sitewise; print(sorted({'torch', 'pandas', 'numpy', 'sklearn', 'scipy'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_a_wheel_holds_every_file_of_the_package():
    root = Path(__file__).parents[1]
    package = root / "src" / "sitewise"
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    named = {path for pattern in settings["package-data"]["sitewise"] for path in package.glob(pattern)}
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert named == {path for path in files if path.suffix != ".py"}
    folders = {path.parent for path in files if path.suffix == ".py"}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


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
        *("y", "sample_weight", "groups", "start", "random_state", "known_prevalence"),
    ]
    assert list(inspect.signature(sw.adjust).parameters) == ["log_ratio", "log_prevalence"]
    calibrate = inspect.signature(sw.calibrate_log_ratio).parameters
    assert list(calibrate)[:4] == ["log_ratio", "y", "log_prevalence", "method"]
    assert calibrate["method"].default == "vector"
