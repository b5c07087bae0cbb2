"""z is read at the door of `adapt`: each column is encoded once, and the codes travel from there."""

import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import sitewise as sw
from sitewise.confounders.variables import Categorical, Continuous


def encoded_columns(call):
    """How often each variable of z is encoded in a call."""
    counted = Counter()

    def note(frame, event, _):
        if event == "call" and frame.f_code in (Continuous.encode.__code__, Categorical.encode.__code__):
            counted[frame.f_locals["self"].name] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return counted


def rows(n, share, seed):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < share).astype(int)
    X = rng.normal(size=(n, 3)) + y[:, None]
    return X, y, pd.DataFrame({"age": rng.uniform(20, 80, n), "sex": rng.choice(["f", "m"], n)})


@pytest.mark.parametrize("kind", ["network", "adjuster"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # two epochs, and no diagnosis is asked for
def test_one_adapt_encodes_each_column_of_z_once(kind):
    X, y, Z = rows(300, 0.4, 0)
    settings = {"rehearsal": None, "random_state": 0}
    if kind == "network":
        model = sw.GPAClassifier(epochs=2, device="cpu", verbose=False, **settings)
    else:
        model = sw.PrevalenceAdjuster(LogisticRegression().fit(X, y), **settings)
    model.fit(X, y, sample_confounder=Z)
    X, _, Z = rows(200, 0.1, 1)
    given = {"sample_confounder": Z, "sample_weight": np.full(200, 2.0), "groups": np.arange(200) // 2}
    assert encoded_columns(lambda: model.adapt(X, **given)) == {"age": 1, "sex": 1}
