"""Methods that see a part of z at the new site: what is hidden changes nothing, what is shown counts."""

import numpy as np
import pandas as pd
import pytest

from sitewise.bench.methods import METHODS
from sitewise.datasets.simulated import SimulatedFamily

FAST = {"epochs": 4, "batch_size": 128, "device": "cpu", "verbose": False}
FAMILY = SimulatedFamily(coupling=3.0, seed=1)


@pytest.fixture(scope="module")
def trained():
    parts = [FAMILY.site(1200, dependence=d, seed=s, name=str(s)) for s, d in enumerate((1.0, 0.5))]
    return METHODS["gpa"](**FAST).fit(
        np.concatenate([part.X for part in parts]),
        np.concatenate([part.y for part in parts]),
        sample_domain=np.repeat(["0", "1"], 1200),
        sample_confounder=pd.concat([part.Z for part in parts], ignore_index=True),
    )


@pytest.fixture(scope="module")
def new():
    return FAMILY.site(800, prevalence=[0.7, 0.3], dependence=-1.0, seed=7)


@pytest.mark.parametrize("name", ["gpa_star", "gpa_joint"])
def test_hidden_variables_are_not_looked_at_and_others_are(trained, new, name):
    method = METHODS[name](**FAST, hidden=["age0", "group1"]).attach(trained.trained_)
    predicted = method.adapt(new.X, new.Z).predict_proba(new.X, new.Z)
    scrambled = new.Z.assign(age0=new.Z["age0"].to_numpy()[::-1], group1="level 1")
    np.testing.assert_allclose(method.adapt(new.X, scrambled).predict_proba(new.X, scrambled), predicted, rtol=1e-12)
    other = new.Z.assign(group0=new.Z["group0"].map({"level 0": "level 1", "level 1": "level 0"}))
    assert np.abs(method.adapt(new.X, other).predict_proba(new.X, other) - predicted).max() > 1e-3


def test_with_nothing_hidden_it_is_gpa_and_with_all_hidden_it_has_no_z(trained, new):
    open_eyed = METHODS["gpa_star"](**FAST, hidden=[]).attach(trained.trained_).adapt(new.X, new.Z)
    expected = trained.adapt(new.X, new.Z).predict_proba(new.X, new.Z)
    np.testing.assert_allclose(open_eyed.predict_proba(new.X, new.Z), expected, rtol=1e-12)
    for name in ("gpa_star", "gpa_joint"):
        every = METHODS[name](**FAST, hidden=list(new.Z)).attach(trained.trained_).adapt(new.X, new.Z)
        none = METHODS[name](**FAST).attach(trained.trained_).adapt(new.X)
        np.testing.assert_allclose(every.predict_proba(new.X, new.Z), none.predict_proba(new.X), atol=1e-6)


def test_a_variable_that_is_not_there_is_named(trained, new):
    method = METHODS["gpa_joint"](**FAST, hidden=["age"]).attach(trained.trained_)
    with pytest.raises(ValueError, match=r"hidden has \['age'\], the variables of z are .*did you mean 'age0'"):
        method.adapt(new.X, new.Z)
