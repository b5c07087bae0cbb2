"""Rows in Dask partitions: the answer of one process, from sums that are computed where the rows are."""

import pickle
import subprocess
import sys
import textwrap
import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import sitewise as sw
from sitewise.adaptation import partitioned
from sitewise.adaptation.partitioned import ACROSS, NO_SCHEMA, ROW_BY_ROW
from sitewise.confounders import Confounders
from sitewise.partitions import FAILED

dask = pytest.importorskip("dask", reason="the extra dask is not installed")
dd = pytest.importorskip("dask.dataframe")
da = pytest.importorskip("dask.array")

LOG_RATIO, Z_COLUMNS = ["f0", "f1"], ["age", "sex"]
SAME = 1e-9


def site(n_rows=900, n_classes=2, seed=0):
    """Rows of a site whose g depends on age and sex, some of them without z."""
    rng = np.random.default_rng(seed)
    age, sex = rng.uniform(20, 80, n_rows), rng.choice(["f", "m"], n_rows)
    tilt = (age - 50) / 15 + 0.8 * (sex == "m") - 1
    share = np.exp(np.stack([np.zeros(n_rows), tilt, -tilt], axis=1)[:, :n_classes])
    y = (rng.random(n_rows)[:, None] > (share / share.sum(1, keepdims=True)).cumsum(1)).sum(1).clip(0, n_classes - 1)
    x = rng.normal(1.5 * y, 1.0)
    frame = pd.DataFrame({f"f{k}": -((x - 1.5 * k) ** 2) / 2 for k in range(n_classes)})
    frame["age"], frame["sex"] = age, sex
    frame.loc[::17, Z_COLUMNS] = None
    frame.loc[5::31, "age"] = np.nan
    frame["weight"] = rng.choice([0.0, 1.0, 2.0], n_rows)
    frame["patient"] = np.arange(n_rows) // 3
    frame["label"] = np.where(rng.random(n_rows) < 0.05, y, np.nan)
    return frame


def cut(frame, *places):
    """A Dask frame with these rows in each partition."""
    bounds = [0, *places, len(frame)]
    parts = [frame.iloc[a:b] for a, b in pairwise(bounds)]
    return dd.from_delayed([dask.delayed(part) for part in parts], meta=frame.iloc[:0], verify_meta=False)


@pytest.fixture(autouse=True)
def one_process():
    with dask.config.set(scheduler="synchronous"):
        yield


def both(frame, rows, model, n_classes=2, columns=Z_COLUMNS, **names):
    """Estimates from arrays and from partitions; `names` are columns of what belongs to the rows."""
    log_ratio, schema = [f"f{k}" for k in range(n_classes)], Confounders.learn(frame[columns])
    here = sw.estimate_prevalence(
        frame[log_ratio].to_numpy(),
        frame[columns],
        model=model,
        confounders=schema,
        **{name: frame[column] for name, column in names.items()},
    )
    there = sw.estimate_prevalence(
        rows[log_ratio],
        rows[columns],
        model=model,
        confounders=schema,
        **{name: rows[column] for name, column in names.items()},
    )
    return here, there


def assert_same(here, there, Z):
    assert (here.model, here.strength) == (there.model, there.strength)
    np.testing.assert_allclose(there.marginal, here.marginal, rtol=0, atol=SAME)
    np.testing.assert_allclose(there.log_prevalence(Z), here.log_prevalence(Z), rtol=0, atol=SAME)
    np.testing.assert_allclose(there.interval(), here.interval(), rtol=0, atol=SAME)
    np.testing.assert_allclose(there.interval(Z), here.interval(Z), rtol=0, atol=SAME)


@pytest.mark.parametrize("model", ["constant", "additive", "auto"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_partitions_give_the_answer_of_one_process(model, n_classes):
    frame = site(n_classes=n_classes)
    here, there = both(frame, cut(frame, 300, 480), model, n_classes)
    assert_same(here, there, frame[Z_COLUMNS].iloc[:40])


def test_a_table_with_weights_and_groups_gives_the_answer_of_one_process():
    frame = site()
    names = {"sample_weight": "weight", "groups": "patient"}
    here, there = both(frame, cut(frame, 300, 480), "table", columns=["sex"], **names)
    assert_same(here, there, frame[["sex"]].iloc[:40])


def test_an_additive_g_with_weights_groups_and_labels_gives_the_answer_of_one_process():
    frame = site()
    names = {"sample_weight": "weight", "groups": "patient", "y": "label"}
    here, there = both(frame, cut(frame, 300, 480), "additive", **names)
    assert_same(here, there, frame[Z_COLUMNS].iloc[:40])


def test_a_dask_array_gives_the_answer_of_an_array_however_its_classes_are_cut():
    frame = site(n_classes=3)
    log_ratio = frame[["f0", "f1", "f2"]].to_numpy()
    here = sw.estimate_prevalence(log_ratio)
    there = sw.estimate_prevalence(da.from_array(log_ratio, chunks=(250, 2)))
    np.testing.assert_allclose(there.marginal, here.marginal, rtol=0, atol=SAME)
    assert isinstance(there.marginal, np.ndarray)


def test_partitions_that_do_not_stay_in_memory_are_read_again_in_every_pass(monkeypatch):
    frame = site()
    kept = both(frame, cut(frame, 300, 480), "additive")[1]
    monkeypatch.setattr(partitioned, "KEPT_BYTES", 0)
    assert_same(kept, both(frame, cut(frame, 300, 480), "additive")[1], frame[Z_COLUMNS].iloc[:40])


def test_an_empty_partition_changes_nothing():
    frame = site()
    here, there = both(frame, cut(frame, 0, 300, 300), "additive")
    assert_same(here, there, frame[Z_COLUMNS].iloc[:40])


def test_a_partition_with_its_columns_in_another_order_changes_nothing():
    frame = site()
    turned = frame.iloc[300:, ::-1]
    parts = [dask.delayed(part) for part in (frame.iloc[:300], turned)]
    rows = dd.from_delayed(parts, meta=frame.iloc[:0], verify_meta=False)
    schema = Confounders.learn(frame[Z_COLUMNS])
    own = {"model": "constant", "confounders": schema}
    here = sw.estimate_prevalence(frame[LOG_RATIO], frame[Z_COLUMNS], **own)
    lists = dd.from_delayed([p[LOG_RATIO[::-1]] if i else p[LOG_RATIO] for i, p in enumerate(parts)], verify_meta=False)
    z = dd.from_delayed([p[Z_COLUMNS[::-1]] if i else p[Z_COLUMNS] for i, p in enumerate(parts)], verify_meta=False)
    there = sw.estimate_prevalence(lists, z, **own)
    np.testing.assert_allclose(there.marginal, here.marginal, rtol=0, atol=SAME)
    assert rows.npartitions == 2


def test_a_partition_without_a_column_is_named():
    frame = site()
    parts = [frame[LOG_RATIO].iloc[:300], frame[["f0"]].iloc[300:]]
    rows = dd.from_delayed([dask.delayed(part) for part in parts], meta=frame[LOG_RATIO].iloc[:0], verify_meta=False)
    with pytest.raises(ValueError, match=r"partition 1: log_ratio must have the columns \['f0', 'f1'\], got \['f0'\]"):
        sw.estimate_prevalence(rows)


def test_nan_is_reported_with_its_partition():
    frame = site()
    frame.loc[310, "f0"] = np.nan
    with pytest.raises(ValueError, match="partition 1 of log_ratio has NaN in 1 row"):
        sw.estimate_prevalence(cut(frame, 300)[LOG_RATIO])


def test_a_partition_that_raises_says_so_once():
    frame = site()

    def fails(part):
        raise OSError("the disk is gone")

    rows = dd.from_delayed([dask.delayed(frame), dask.delayed(fails)(1)], meta=frame.iloc[:0], verify_meta=False)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        sw.estimate_prevalence(rows[LOG_RATIO])
    assert caught.value.__notes__ == [FAILED]


def test_groups_across_partitions_are_refused():
    frame = site()
    rows = cut(frame, 301)
    with pytest.raises(ValueError, match=ACROSS.format(first=0, second=1).split(":")[0]):
        sw.estimate_prevalence(rows[LOG_RATIO], groups=rows["patient"])


def test_partitions_need_a_schema():
    rows = cut(site(), 300)
    with pytest.raises(ValueError, match=NO_SCHEMA[:60]):
        sw.estimate_prevalence(rows[LOG_RATIO], rows[Z_COLUMNS])


def test_partitions_that_do_not_belong_together_are_refused():
    frame = site()
    rows = cut(frame, 300)
    with pytest.raises(ValueError, match=r"sample_confounder has 3 partition\(s\), log_ratio has 2"):
        sw.estimate_prevalence(rows[LOG_RATIO], cut(frame, 300, 600)[Z_COLUMNS])
    with pytest.raises(ValueError, match="sample_weight must be a Dask collection"):
        sw.estimate_prevalence(rows[LOG_RATIO], sample_weight=frame["weight"])
    with pytest.raises(ValueError, match="sample_confounder is a Dask collection and log_ratio is not"):
        sw.estimate_prevalence(frame[LOG_RATIO], rows[Z_COLUMNS])
    with pytest.raises(ValueError, match=r"partition \d: sample_confounder has \d00 row\(s\), log_ratio has \d00"):
        sw.estimate_prevalence(
            cut(frame, 200)[LOG_RATIO], rows[Z_COLUMNS], confounders=Confounders.learn(frame[Z_COLUMNS])
        )


def test_no_rows_at_all_are_refused():
    with pytest.raises(ValueError, match="log_ratio is empty"):
        sw.estimate_prevalence(cut(site().iloc[:0], 0)[LOG_RATIO])


def test_what_goes_row_by_row_is_refused():
    frame = site()
    rows = cut(frame, 300)
    schema = Confounders.learn(frame[Z_COLUMNS])
    with pytest.raises(ValueError, match=ROW_BY_ROW[:40]):
        sw.estimate_prevalence(rows[LOG_RATIO], rows[Z_COLUMNS], confounders=schema, model="network")
    estimate = sw.estimate_prevalence(rows[LOG_RATIO])
    with pytest.raises(ValueError, match="bootstrap needs all rows in memory"):
        estimate.interval(method="bootstrap")


def test_unseen_levels_of_all_partitions_are_counted_in_one_warning():
    frame = site()
    schema = Confounders.learn(frame[Z_COLUMNS])
    frame.loc[[3, 800], "sex"] = "x"
    rows = cut(frame, 300)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimate = sw.estimate_prevalence(rows[LOG_RATIO], rows[Z_COLUMNS], confounders=schema, model="constant")
    assert [str(w.message) for w in caught if "sex" in str(w.message)] != []
    assert estimate.notes.unseen == {"sex": 2}


def test_a_posterior_from_partitions_is_that_of_one_process():
    frame = site(n_rows=600)
    schema = Confounders.learn(frame[Z_COLUMNS])
    prior = sw.estimate_prevalence(frame[LOG_RATIO], frame[Z_COLUMNS], confounders=schema, model="additive")
    rows = cut(frame, 200)
    own = {"prior": prior, "confounders": schema}
    here = sw.estimate_prevalence(frame[LOG_RATIO], frame[Z_COLUMNS], y=frame["label"], **own)
    there = sw.estimate_prevalence(rows[LOG_RATIO], rows[Z_COLUMNS], y=rows["label"], **own)
    # Both are quadratures over the same points; only the order of the rows differs.
    np.testing.assert_allclose(there.marginal, here.marginal, rtol=0, atol=1e-6)
    np.testing.assert_allclose(there.interval(), here.interval(), rtol=0, atol=1e-4)


def test_what_leaves_a_partition_is_as_small_as_what_was_asked_for(monkeypatch):
    frame = site(n_rows=50_000)
    sizes = []
    plain = partitioned.compute

    def weighed(tasks):
        as_plain = plain(tasks)
        sizes.append(max(len(pickle.dumps(value)) for value in as_plain) if as_plain else 0)
        return as_plain

    monkeypatch.setattr(partitioned, "compute", weighed)
    sw.estimate_prevalence(cut(frame, 25_000)[LOG_RATIO], model="constant")
    whole = 25_000 * 8  # bytes of the rows of one partition, of which at most a sample may travel
    assert max(sizes) < whole


def test_dask_is_imported_only_if_it_is_used():
    code = """
    import sys
    import numpy as np
    import sitewise as sw
    sw.estimate_prevalence(np.random.default_rng(0).normal(size=(200, 2)), model="constant")
    sw.GPAClassifier, sw.PrevalenceAdjuster
    print([name for name in ("dask", "distributed") if name in sys.modules])
    """
    exported = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert exported.stdout.strip() == "[]"
