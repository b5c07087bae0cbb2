"""Summaries written by hand."""

import numpy as np
import pandas as pd
import pytest

from sitewise.bench.report.summary import COLUMNS


@pytest.fixture
def summary():
    """A function from {method: mean, or the reason it was skipped} to a summary with the same numbers everywhere."""

    def make(
        means,
        *,
        told=(),
        reference="GPA",
        sites=("site A",),
        draws=("1,000",),
        metric="positive_f1",
        seeds=20,
        half=0.01,
    ):
        rows = []
        for method, mean in means.items():
            for site in sites:
                for draw in draws:
                    skipped = mean if isinstance(mean, str) else ""
                    value = np.nan if skipped else mean
                    gap = np.nan if method == reference else value - means[reference]
                    width = half if seeds > 1 else np.nan
                    interval = (value, value - width, value + width, gap, gap - width, gap + width)
                    rows.append(
                        (method, site, draw, metric, 0 if skipped else seeds, *interval, method in told, skipped)
                    )
        return pd.DataFrame(rows, columns=list(COLUMNS))

    return make
