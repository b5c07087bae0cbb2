"""Settings every test shares, and which tests are slow."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("quick", max_examples=20, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=200, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

HERE = Path(__file__).parent
FAST = "not slow"  # the expression of `make test-fast`
# Files that took four seconds of work or more, by folder; all of a folder where none is named.
SLOW = {
    "adaptation": "bootstrap degenerate estimate families joint posterior site_prior streaming told",
    "artifacts": "replacing",
    "bench/cli": "bench",
    "bench/experiments": "end_to_end runner",
    "bench/methods": "adjustments contract gpa_paper part_of_z",
    "bench/report": "comparison",
    "bench": "demo experiments medical_experiments results_page run_all",
    "calibration": "fit",
    "cli": "bad_input every_command monitor predict",
    "diagnosis": "adapted groups mixture",
    "docs": "examples readme site",
    "estimator/at_site": "outcome reporting updating",
    "estimator/files": "adjuster_saving classifiers exporting saving",
    "estimator/source": "balance",
    "estimator": "adapted_sklearn adjuster adjuster_sklearn gpa rehearsal set_output sklearn solver told_sites",
    "estimator/without_z": "choosing pairs",
    "performance": "adapted conformal expected",
    "prevalence": "models",
    "properties": "laws",
    "samplesize": "plan",
    "tables": "manifest",
    ".": "critic inputs monitoring moved package pickling",
    "training": "checkpoint distributed loop single",
    "campaign": "",
    "realdata": "",
    "golden": "",
    "integrations": "",
}


def is_slow(path: Path) -> bool:
    """Whether the tests of a file are slow."""
    folder, name = path.relative_to(HERE).parent.as_posix(), path.stem.removeprefix("test_")
    return SLOW.get(folder) == "" or name in SLOW.get(folder, "").split()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Slow files are not even imported where only fast ones are asked for."""
    asked = config.option.markexpr == FAST and collection_path.suffix == ".py"
    return True if asked and is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow."""
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)
