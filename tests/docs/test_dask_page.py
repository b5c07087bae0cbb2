"""The guide on a hundred million rows: its code runs as printed, at its small size."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "dask.md"
RUN = re.compile(r"(?<!-->\n\n)^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)  # but the block marked "not run"


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # pandas, of what Dask does when it writes Parquet
def test_the_code_on_the_page_runs(tmp_path, monkeypatch):
    dask = pytest.importorskip("dask", reason="the extra `dask` is not installed")
    monkeypatch.chdir(tmp_path)
    names = {}
    with dask.config.set(scheduler="synchronous"):
        for code in RUN.findall(PAGE.read_text()):
            exec(compile(code, str(PAGE), "exec"), names)
    assert {"predicted", "site"} < set(os.listdir(tmp_path))
    assert names["here"].n_rows_ == 60_000
    np.testing.assert_array_equal(names["again"].prevalence(), names["here"].prevalence())
    assert names["estimate"].converged
