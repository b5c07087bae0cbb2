import subprocess
from pathlib import Path

import pytest

from scripts import load_script
from sitewise.bench.experiments import provenance

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "records.py"


@pytest.fixture(autouse=True)
def ask_anew(monkeypatch):
    monkeypatch.delenv("SITEWISE_COMMIT", raising=False)
    provenance.commit.cache_clear()
    yield
    provenance.commit.cache_clear()


@pytest.fixture
def script():
    return load_script("benchmarks/records.py")


def test_the_environment_names_the_commit_of_copied_files(monkeypatch):
    monkeypatch.setenv("SITEWISE_COMMIT", "0123456789abcdef")
    assert provenance.commit() == "0123456789ab"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one commit and a file in src, which stands for the package's own."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1\n")
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "one"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path.resolve())
    return tmp_path


def test_the_commit_has_a_plus_where_src_differs(repository):
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True)
    assert provenance.commit() == head.stdout[:12]
    provenance.commit.cache_clear()
    (repository / "src" / "a.py").write_text("a = 2\n")
    assert provenance.commit() == head.stdout[:12] + "+"


def test_inside_a_repository_of_something_else_the_commit_is_unknown(repository, monkeypatch, script):
    monkeypatch.setattr(provenance, "ROOT", (repository / "src").resolve())
    assert provenance.commit() == provenance.UNKNOWN
    with pytest.raises(SystemExit, match="set SITEWISE_COMMIT"):
        script.provenance(SCRIPT)


def test_scripts_take_versions_and_commit_from_here(monkeypatch, script):
    monkeypatch.setenv("SITEWISE_COMMIT", "0123456789abcdef")
    assert script.provenance(SCRIPT)["commit"] == "0123456789ab"
    assert set(script.provenance(SCRIPT)) == {"sitewise", "torch", "numpy", "commit", "fingerprint"}
