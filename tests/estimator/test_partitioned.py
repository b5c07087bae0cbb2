"""A site whose rows lie in Dask partitions: adapted to, asked, saved; and on a cluster that loses a worker."""

import os
import signal

import numpy as np
import pandas as pd
import pytest

import sitewise as sw
from sitewise.confounders import Confounders
from sitewise.estimator.at_site import partitioned

dask = pytest.importorskip("dask", reason="the extra dask is not installed")
dd = pytest.importorskip("dask.dataframe")
distributed = pytest.importorskip("distributed")

F, Z = ["f0", "f1"], ["age", "sex"]


def rows_of(n_rows, shift, seed):
    """Probabilities of a classifier, labels and z."""
    rng = np.random.default_rng(seed)
    age, sex = rng.uniform(20, 80, n_rows), rng.choice(["f", "m"], n_rows)
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-((age - 50) / 15 + 0.8 * (sex == "m") - 1 + shift)))).astype(int)
    x = rng.normal(1.5 * y, 1.0)
    p = 1 / (1 + np.exp(-(1.5 * x - 2.1)))
    return np.stack([1 - p, p], axis=1), y, pd.DataFrame({"age": age, "sex": sex})


@pytest.fixture(scope="module")
def model():
    parts = [rows_of(500, shift, seed) for seed, shift in enumerate((-0.4, 0.0, 0.4))]
    proba, y = (np.concatenate([part[i] for part in parts]) for i in range(2))
    z = pd.concat([part[2] for part in parts], ignore_index=True)
    return sw.PrevalenceAdjuster().fit(proba, y, sample_confounder=z, sample_domain=np.repeat(["a", "b", "c"], 500))


@pytest.fixture(scope="module")
def new(model):
    proba, _, z = rows_of(700, 1.0, 9)
    frame = pd.DataFrame(model.log_ratio(proba, z), columns=F)
    return pd.concat([frame, z, pd.DataFrame(proba, columns=["p0", "p1"])], axis=1)


@pytest.fixture(scope="module")
def sites(model, new):
    """The same rows adapted to at once and in partitions."""
    with dask.config.set(scheduler="synchronous"):
        there = dd.from_pandas(new, npartitions=3, sort=False)
        return model.adapt_log_ratio(new[F].to_numpy(), new[Z]), model.adapt_log_ratio(there[F], there[Z]), there


def test_a_site_in_partitions_predicts_as_one_adapted_to_at_once(sites, new):
    here, there, rows = sites
    whole = here.adjust(new[F].to_numpy(), new[Z])
    with dask.config.set(scheduler="synchronous"):
        computed = there.adjust(rows[F], rows[Z]).compute()
        classes = there.predict(rows[["p0", "p1"]], rows[Z]).compute()
    # The posterior is a quadrature over the same points, whose location is read from all rows where these are few.
    np.testing.assert_allclose(computed.to_numpy(), whole, rtol=0, atol=1e-6)
    np.testing.assert_allclose(there.prevalence(), here.prevalence(), rtol=0, atol=1e-6)
    assert computed.columns.tolist() == here.classes_.tolist()
    assert (classes.to_numpy() == here.predict(new[["p0", "p1"]].to_numpy(), new[Z])).mean() > 0.999


def test_questions_are_answered_from_a_sample_whose_size_is_said(model, new, sites, monkeypatch):
    monkeypatch.setattr(partitioned, "SAMPLE_ROWS", 200)
    rows = dd.from_pandas(new, npartitions=3, sort=False)
    with dask.config.set(scheduler="synchronous"):
        here = model.adapt_log_ratio(rows[F], rows[Z])
    assert here.n_rows_ == 700
    assert 150 <= len(here.rows) <= 250
    assert f"700 rows in partitions; checks and expected performance are from {len(here.rows)} of them" in repr(here)
    of_all_rows = sites[0]
    assert here.diagnose().verdict == of_all_rows.diagnose().verdict
    accuracy, of_all = (site.expected_performance()["accuracy"].estimate for site in (here, of_all_rows))
    assert accuracy == pytest.approx(of_all, abs=0.05)
    for call in (lambda: here.sample(10), lambda: here.update(new[["p0", "p1"]].to_numpy(), new[Z])):
        with pytest.raises(ValueError, match="of this site's 700 rows, which were in Dask partitions"):
            call()


@pytest.mark.parametrize("policy", ["auto", "rows"])
def test_a_site_in_partitions_is_saved_and_loaded(model, new, tmp_path, policy):
    rows = dd.from_pandas(new, npartitions=3, sort=False)
    with dask.config.set(scheduler="synchronous"):
        here = model.adapt_log_ratio(rows[F], rows[Z], policy=policy)
    here.save(tmp_path / "site")
    again = sw.load(tmp_path / "site")
    np.testing.assert_array_equal(again.adjust(new[F].to_numpy(), new[Z]), here.adjust(new[F].to_numpy(), new[Z]))
    np.testing.assert_array_equal(again.prevalence(), here.prevalence())
    np.testing.assert_array_equal(again.prevalence_interval(), here.prevalence_interval())
    assert again.n_rows_ == 700


def test_a_known_prevalence_is_refused(model, new):
    rows = dd.from_pandas(new, npartitions=2, sort=False)
    with pytest.raises(ValueError, match="known_prevalence is not supported with rows in Dask partitions"):
        model.adapt_log_ratio(rows[F], rows[Z], known_prevalence=0.3)


def test_scores_and_probabilities_of_dask_arrays_are_those_of_arrays(sites, model, new):
    here = sites[1]
    import dask.array as da

    X, z = (
        da.from_array(new[["p0", "p1"]].to_numpy(), chunks=(300, 2)),
        dd.from_pandas(new[Z], chunksize=300, sort=False),
    )
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(
            here.predict_proba(X, z), here.predict_proba(new[["p0", "p1"]].to_numpy(), new[Z])
        )
        np.testing.assert_array_equal(model.log_ratio(X, z), model.log_ratio(new[["p0", "p1"]].to_numpy(), new[Z]))
    with pytest.raises(ValueError, match="X is a Dask collection and sample_confounder is not"):
        here.predict_proba(X, new[Z])


def cut(*parts):
    """A frame whose partitions are these frames, whatever the order of their columns."""
    return dd.from_delayed([dask.delayed(part) for part in parts], meta=parts[0].iloc[:0], verify_meta=False)


def test_predictions_of_empty_partitions_and_of_columns_in_another_order(sites, model, new):
    here, P = sites[0], ["p0", "p1"]

    def odd(names):
        return cut(new[names].iloc[:300], new[names[::-1]].iloc[:0], new[names[::-1]].iloc[300:])

    calls = {here.adjust: F, here.predict_proba: P, here.predict: P, model.log_ratio: P}
    with dask.config.set(scheduler="synchronous"):
        for call, names in calls.items():
            computed = call(odd(names), odd(Z)).compute().to_numpy()
            np.testing.assert_array_equal(computed, call(new[names].to_numpy(), new[Z]))


def test_predictions_of_a_partition_without_a_column_or_with_other_rows_are_refused(sites, new):
    here, z = sites[0], cut(new[Z].iloc[:300], new[Z].iloc[300:])
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(ValueError, match=r"X must have the columns \['f0', 'f1'\], got \['f0'\]"):
            here.adjust(cut(new[F].iloc[:300], new[["f0"]].iloc[300:]), z).compute()
        with pytest.raises(ValueError, match=r"sample_confounder has \d00 row\(s\), X has \d00"):
            here.adjust(cut(new[F].iloc[:200], new[F].iloc[200:]), z).compute()


def lose_worker_once(part, marker):
    """End this worker while it reads the partition, the first time."""
    if not os.path.exists(marker):
        with open(marker, "w", encoding="utf-8"):
            os.kill(os.getpid(), signal.SIGKILL)
    return part


@pytest.mark.flaky(reruns=2)  # the scheduler hears of the dead worker, and starts another, when the system lets it
def test_a_worker_that_is_killed_changes_nothing(new, tmp_path):
    schema = Confounders.learn(new[Z])
    expected = sw.estimate_prevalence(new[F], new[Z], model="additive", confounders=schema)
    new.to_parquet(tmp_path / "rows.parquet", row_group_size=200)
    rows = dd.read_parquet(f"file://{tmp_path}/rows.parquet", split_row_groups=True)
    marker = str(tmp_path / "killed")
    deadly = dd.from_delayed(
        [dask.delayed(lose_worker_once)(part, marker) if i == 2 else part for i, part in enumerate(rows.to_delayed())],
        meta=new.iloc[:0],
        verify_meta=False,
    )
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "60s"}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
    ):
        estimate = sw.estimate_prevalence(deadly[F], deadly[Z], model="additive", confounders=schema)
    assert os.path.exists(marker)
    np.testing.assert_allclose(estimate.marginal, expected.marginal, rtol=0, atol=1e-9)
    assert estimate.strength == expected.strength
