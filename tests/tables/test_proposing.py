"""Roles proposed for tables without a description: by names and values, with reasons."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sitewise.tables import Roles
from sitewise.tables.proposing import propose_roles
from sitewise.tables.values import as_rows

N = 200


def frame(**columns):
    rng = np.random.default_rng(0)
    base = {"hospital": rng.choice(["A", "B"], N), "outcome": rng.integers(0, 2, N), "age": rng.normal(60, 9, N)}
    return as_rows(pd.DataFrame(base | {"bp": rng.normal(120, 10, N)} | columns))


def test_names_say_most():
    proposed = propose_roles(frame(patient_id=np.arange(N) // 2, Sex=["f", "m"] * (N // 2)))
    assert proposed.roles == Roles(
        target="outcome", site="hospital", confounders=("age", "Sex"), features=("bp",), group="patient_id"
    )
    assert set(proposed.reasons) == {"target", "site", "confounders", "features", "group"}
    assert not proposed.left_out


def test_what_is_known_stays():
    proposed = propose_roles(frame(died=[0, 1] * (N // 2)), Roles(target="outcome", confounders=("bp",)))
    assert proposed.roles.target == "outcome"
    assert proposed.roles.confounders == ("bp",)
    assert proposed.roles.features == ("age", "died")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (lambda y: np.where(y == 1, "ill", "well"), "determines outcome exactly"),
        (lambda y: np.where(y == 1, 7.0, np.where(np.arange(N) % 2, 3.0, 4.0)), "determines outcome exactly"),
        (lambda y: [f"note {i}" for i in range(N)], "too many different values"),
        (lambda y: [None] * N, "it is empty"),
        (lambda y: [3] * N, "it is constant"),
        (lambda y: pd.date_range("2020-01-01", periods=N), "dates"),
    ],
)
def test_what_is_no_feature_is_left_out_with_the_reason(values, why):
    y = np.asarray(frame().column("outcome"))
    proposed = propose_roles(frame(odd=values(y)))
    assert proposed.roles.features == ("bp",)
    assert why in proposed.left_out["odd"]


def test_a_feature_that_nearly_tells_the_label_stays():
    y = np.asarray(frame().column("outcome")).copy()
    y[0] = 1 - y[0]
    assert propose_roles(frame(marker=y)).roles.features == ("bp", "marker")


def test_images_and_probabilities_are_seen():
    paths = propose_roles(frame(file=[f"scans/{i}.png" for i in range(N)]))
    assert (paths.roles.image, paths.roles.features) == ("file", ())
    p = np.random.default_rng(1).random(N)
    scores = propose_roles(frame(p_0=1 - p, p_1=p))
    assert (scores.roles.proba, scores.roles.features) == (("p_0", "p_1"), ())
    assert propose_roles(frame(p_0=p, p_1=p)).roles.proba == ()


def test_the_plainest_name_of_a_site_is_taken():
    proposed = propose_roles(frame(hospital_group=["x", "y"] * (N // 2)))
    assert proposed.roles.site == "hospital"
    assert "another name of a site" in proposed.left_out["hospital_group"]


def test_a_table_without_any_label_gets_no_target():
    rows = pa.table({"bp": np.random.default_rng(0).normal(size=50), "age": np.arange(50)})
    assert propose_roles(rows).roles.target is None


@pytest.mark.parametrize("name", ["study", "trial", "cohort", "centre", "Center", "clinic", "country", "vendor"])
def test_sites_are_known_by_their_names(name):
    n_rows = 120
    frame = pd.DataFrame({name: np.repeat(["a", "b", "c"], 40), "beds": np.repeat([10, 20, 30], 40)})
    frame = frame.assign(x=np.arange(n_rows) * 0.37 % 5, y=np.arange(n_rows) % 2)
    proposed = propose_roles(pa.Table.from_pandas(frame))
    assert (proposed.roles.site, proposed.roles.features) == (name, ("x",))
    assert "constant within each" in proposed.left_out["beds"]
    assert proposed.unsure == ()


def test_a_site_without_a_telling_name_is_known_by_what_never_varies_within_it():
    n_rows = 120
    frame = pd.DataFrame({"src": np.repeat(["a", "b", "c"], 40), "beds": np.repeat([10, 20, 20], 40)})
    frame = frame.assign(x=np.arange(n_rows) * 0.37 % 5, y=np.arange(n_rows) % 2)
    proposed = propose_roles(pa.Table.from_pandas(frame))
    assert (proposed.roles.site, proposed.roles.features) == ("src", ("x",))
    assert "by its values, not by its name" in proposed.unsure[0]
    alone = propose_roles(pa.Table.from_pandas(frame.drop(columns=["src", "beds"])))
    assert alone.roles.site is None
    assert "no column looks like the site" in alone.unsure[0]


def test_a_confounder_that_is_the_same_within_sites_is_asked_about():
    frame = pd.DataFrame({"hospital": np.repeat(["a", "b"], 40), "race": np.repeat(["u", "v"], 40)})
    frame = frame.assign(x=np.arange(80) * 0.37 % 5, y=np.arange(80) % 2)
    proposed = propose_roles(pa.Table.from_pandas(frame))
    assert "cannot be separated from the site" in proposed.unsure[0]


@pytest.mark.parametrize("name", ["__index_level_0__", "Unnamed: 0"])
def test_an_index_that_pandas_wrote_is_no_feature(name):
    proposed = propose_roles(frame(**{name: np.arange(N)}))
    assert proposed.roles.features == ("bp",)
    assert "index that pandas wrote" in proposed.left_out[name]
