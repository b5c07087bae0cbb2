"""Old import paths of the comparison suite: an error that names the new path, and the new path is there."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from sitewise.moved import MOVED

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_is_an_error_that_names_the_new_one(old):
    with pytest.raises(ImportError, match=f"{old} has moved: import {MOVED[old]} instead"):
        importlib.import_module(old)
    importlib.import_module(MOVED[old])


@pytest.mark.parametrize(
    "statement",
    [
        "from sitewise import methods",
        "from sitewise.methods import METHODS",
        "from sitewise.methods.gpa import GPA",
        "from sitewise.datasets import digits",
        "import sitewise.benchmark.runner",
    ],
)
def test_every_way_of_importing_it_says_so(statement):
    with pytest.raises(ImportError, match=r"has moved: import sitewise\.bench\."):
        exec(statement)


def test_the_method_works_without_the_suite():
    """Nothing that `import sitewise` offers loads a module of the suite."""
    code = (
        "import sys, sitewise as sw; [getattr(sw, name) for name in sw.__all__];"
        "print([name for name in sys.modules if name.startswith('sitewise.bench')])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


SCRIPTS = sorted(path for folder in ("benchmarks", "experiments") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_what_a_script_imports_of_the_package_exists(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sitewise":
            module = importlib.import_module(node.module)
            absent = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert [name for name in absent if importlib.util.find_spec(f"{node.module}.{name}") is None] == []
