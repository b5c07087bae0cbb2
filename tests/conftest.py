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
# Files that took two seconds of work or more, by folder; all of a folder where none is named.
SLOW = {
    ".": "critic inputs monitoring moved package pickling",
    "adaptation": "bootstrap degenerate estimate families joint "
    "partitioned pooling posterior site_prior streaming known_points",
    "artifacts": "replacing",
    "benchmarks": "structure",
    "bench": "demo experiments medical_experiments results_page run_all",
    "bench/cli": "bench",
    "bench/datasets": "digits",
    "bench/experiments": "end_to_end fingerprint real_sites runner",
    "bench/methods": "adjustments contract gpa_paper part_of_z",
    "bench/report": "comparison",
    "calibration": "fit",
    "campaign": "",
    "cli": "bad_input every_command expect_evaluate monitor predict",
    "datasets": "packed",
    "diagnosis": "adapted groups mixture tests",
    "docs": "examples readme site",
    "estimator": "adapted_sklearn adjuster adjuster_sklearn gpa pipelines "
    "rehearsal set_output sklearn solver labeled_sites",
    "estimator/at_site": "outcome reporting updating",
    "estimator/files": "adjuster_saving classifiers exporting forged saving saving_page",
    "estimator/source": "balance",
    "estimator/without_z": "choosing pairs",
    "golden": "",
    "integrations": "",
    "performance": "adapted conformal evaluated expected unlearned",
    "prevalence": "models pooled",
    "properties": "laws",
    "realdata": "",
    "report/page": "browser",
    "samplesize": "plan",
    "tables": "features manifest",
    "training": "checkpoint distributed loop single",
}


def is_slow(path: Path) -> bool:
    """Whether the tests of a file are slow."""
    if not path.is_relative_to(HERE):
        return False
    folder, name = path.relative_to(HERE).parent.as_posix(), path.stem.removeprefix("test_")
    return SLOW.get(folder) == "" or name in SLOW.get(folder, "").split()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Slow files are not even imported if only fast tests are requested."""
    asked = config.option.markexpr == FAST and collection_path.suffix == ".py"
    return True if asked and is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow."""
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)
