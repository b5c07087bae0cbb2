"""What scaled worse than it must: seconds now, or a limit that is said before the work starts."""

import numpy as np
import pandas as pd
import pytest

import sitewise as sw
from patience import no_hang
from sitewise.tables.files import TableFile, open_table
from sitewise.uncertainty import Fall


def classes_site(n_classes, n_rows):
    rng = np.random.default_rng(0)
    log_ratio = rng.normal(0, 1, (n_rows, n_classes))
    log_ratio[np.arange(n_rows), rng.integers(0, n_classes, n_rows)] += 3
    return log_ratio, pd.DataFrame({"age": rng.uniform(20, 90, n_rows), "sex": rng.choice(["f", "m"], n_rows)})


def test_intervals_of_many_classes():
    log_ratio, Z = classes_site(300, 1000)
    with no_hang():
        low, high = sw.estimate_prevalence(log_ratio).interval()
    assert (low < high).all()
    log_ratio, Z = classes_site(45, 400)  # 2 s; class by class, 30 classes took 49
    with no_hang():
        low, high = sw.estimate_prevalence(log_ratio, Z, model="additive", strength=1.0).interval()
    assert (low < high).all()


def test_the_classes_of_a_constant_g_are_looked_at_together(monkeypatch):
    """Class by class, the intervals of a thousand classes took 107 s."""
    one_by_one = []
    original = Fall.farthest
    monkeypatch.setattr(Fall, "farthest", lambda self, path: one_by_one.append(path) or original(self, path))
    log_ratio, _ = classes_site(30, 60)
    low, high = sw.estimate_prevalence(log_ratio).interval()
    assert (low < high).all()
    assert not one_by_one


def test_too_many_classes_to_pool_are_refused_at_once(monkeypatch):
    """The work takes more than 6 GB: here it must not begin."""

    def begun(*arguments):
        raise AssertionError("the work began")

    monkeypatch.setattr("sitewise.adaptation.pooling.pool_sites", begun)
    _, Z = classes_site(2, 100)
    with pytest.raises(ValueError, match=r"features of the confounders .* for 1000 classes are more than 2,000"):
        sw.pool_prevalence(np.arange(100) % 2, Z, np.arange(100) % 4, n_classes=1000)


def test_a_hundred_thousand_columns_are_opened_in_seconds(tmp_path):
    path = tmp_path / "wide.csv"
    names = [f"cg{j:08d}" for j in range(100_000)]
    path.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    with no_hang():
        table = open_table(path)
    assert isinstance(table, TableFile)
    path.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(ValueError, match=r"duplicate column name\(s\): 'a'"):
        open_table(path)


def test_a_network_of_many_classes_and_few_rows_is_fitted_in_seconds():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 60
    Z = pd.DataFrame({"age": rng.normal(60, 10, 120), "sex": rng.choice(["f", "m"], 120)})
    model = sw.GPAClassifier(epochs=1, rehearsal=None, device="cpu", missing="joint")
    with no_hang():
        model.fit(rng.normal(size=(120, 3)) + y[:, None], y, sample_confounder=Z)
    assert len(model.joint_.bank.codes) * 60 <= 2048  # cells, for each pair of which there is a number: 2.6 GB once
