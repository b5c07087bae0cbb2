"""`here.monitor`: what it is handed is checked before anything is done with it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sitewise as sw

SAVED = Path(__file__).parents[1] / "files" / "saved_by_0.1.0"


@pytest.mark.parametrize(
    "time",
    [
        np.arange(29),
        np.arange(31.0),
        [],
        pd.Series(pd.date_range("2024", periods=3)),
        pd.Series(range(31), index=range(5, 36)),
        7,
    ],
    ids=["short", "long", "none", "dates", "series", "number"],
)
def test_times_of_another_length_are_refused(time):
    here, rows = sw.load(SAVED / "adjusted"), np.load(SAVED / "rows.npz")
    Z = pd.DataFrame({"age": rows["age"], "level": rows["level"]})
    with pytest.raises(ValueError, match=r"monitor: time must (have one entry a row \(30\)|be one column)"):
        here.monitor(rows["adjusted_X"], time, Z, window=10)
    frame = here.monitor(rows["adjusted_X"], np.arange(30), Z, window=10)
    assert frame["n"].sum() == 30
