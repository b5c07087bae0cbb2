"""Where the real data is: the folder that SITEWISE_DATA names, else ../shared/data beside the checkout."""

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("SITEWISE_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(scope="session")
def real_data():
    """The folder of one set of real data; the test is skipped where it is absent."""

    def find(name):
        if not (ROOT / name).is_dir():
            pytest.skip(f"there is no real data {name} in {ROOT} (set SITEWISE_DATA)")
        return ROOT / name

    return find
