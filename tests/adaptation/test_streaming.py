"""Rows beyond memory: the same answer."""

import numpy as np
import pandas as pd
import pytest

import sitewise as sw
from given import evidence_of
from sitewise.adaptation import rows as rows_module
from sitewise.adaptation import streaming


class Chunks:
    """A re-iterable that counts how often it is gone through."""

    def __init__(self, log_ratio, Z, size=130):
        self.log_ratio, self.Z, self.size, self.passes = log_ratio, Z, size, 0

    def __iter__(self):
        self.passes += 1
        for start in range(0, len(self.log_ratio), self.size):
            place = slice(start, start + self.size)
            yield self.log_ratio[place], None if self.Z is None else self.Z.iloc[place]


@pytest.fixture
def nothing_kept(monkeypatch):
    """Everything is read anew in every pass."""
    monkeypatch.setattr(streaming, "KEPT_BYTES", 0)


def make_site(n_classes=2, discrete=False, missing=0.2, n_rows=1000):
    shape = {"n_continuous": 0, "levels": (2, 2)} if discrete else {}
    family = sw.SimulatedFamily(n_classes=n_classes, signal=2.5, seed=1, **shape)
    return family.site(n_rows, dependence=1.0, missing=missing, seed=2)


def compare(streamed, whole, Z, atol=1e-5):
    assert streamed.model == whole.model
    assert streamed.strength == whole.strength
    assert streamed.converged
    np.testing.assert_allclose(streamed.marginal, whole.marginal, atol=atol)
    np.testing.assert_allclose(streamed.interval(), whole.interval(), atol=10 * atol)
    assert streamed.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-6)
    if Z is not None:
        np.testing.assert_allclose(np.exp(streamed.log_prevalence(Z)), np.exp(whole.log_prevalence(Z)), atol=10 * atol)
        np.testing.assert_allclose(streamed.interval(Z.iloc[:7]), whole.interval(Z.iloc[:7]), atol=20 * atol)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("model", ["auto", "constant", "additive", "table"])
def test_rows_that_are_read_again_in_every_pass_give_the_same_answer(nothing_kept, model, n_classes):
    site = make_site(n_classes, discrete=model == "table")
    chunks = Chunks(site.log_ratio, site.Z)
    streamed = sw.estimate_prevalence(chunks, model=model)
    assert chunks.passes > 4
    compare(streamed, sw.estimate_prevalence(site.log_ratio, site.Z, model=model), site.Z)


@pytest.mark.parametrize("budget", [0, 6000, 2**29])
def test_any_part_of_the_rows_may_be_kept(monkeypatch, budget):
    monkeypatch.setattr(streaming, "KEPT_BYTES", budget)
    site = make_site()
    chunks = Chunks(site.log_ratio, None)
    streamed = sw.estimate_prevalence(chunks, model="constant")
    compare(streamed, sw.estimate_prevalence(site.log_ratio, model="constant"), None)
    assert (chunks.passes > 5) == (budget < 2**29)


def test_weights_labels_and_groups_go_along_with_the_chunks(monkeypatch):
    monkeypatch.setattr(streaming, "KEPT_BYTES", 0)
    site = make_site()
    weight = 1.0 + np.arange(1000) % 3
    weight[::7] = 0.0
    y = np.where(np.arange(1000) % 5 == 0, site.y, np.nan)
    details = {"sample_weight": weight, "y": y, "groups": np.arange(1000) // 4, "model": "additive", "strength": 3.0}
    streamed = sw.estimate_prevalence(Chunks(site.log_ratio, site.Z), **details)
    compare(streamed, sw.estimate_prevalence(site.log_ratio, site.Z, **details), site.Z)
    monkeypatch.undo()
    kept = sw.estimate_prevalence([(site.log_ratio, None)], sample_weight=weight, model="constant")
    assert len(kept.bootstrap(3, random_state=0)) == 3  # rows of weight zero are not drawn
    with pytest.raises(ValueError, match=r"sample_weight must have one entry a row \(1000\), got 999"):
        sw.estimate_prevalence(Chunks(site.log_ratio, site.Z), sample_weight=weight[1:])


def test_a_memory_mapped_array_is_read_in_chunks(tmp_path, nothing_kept):
    site = make_site()
    np.save(tmp_path / "f.npy", site.log_ratio.astype(np.float32))
    mapped = np.load(tmp_path / "f.npy", mmap_mode="r")
    estimate = sw.estimate_prevalence(mapped, site.Z, model="additive", strength=1.0)
    whole = sw.estimate_prevalence(np.array(mapped), site.Z, model="additive", strength=1.0)
    compare(estimate, whole, site.Z)


def test_a_parquet_file_is_read_in_chunks(tmp_path, nothing_kept):
    site = make_site()
    frame = site.Z.assign(f0=site.log_ratio[:, 0], f1=site.log_ratio[:, 1])
    frame.to_parquet(tmp_path / "site.parquet")
    source = sw.ParquetChunks(tmp_path / "site.parquet", ["f0", "f1"], list(site.Z.columns), rows=300)
    compare(sw.estimate_prevalence(source), sw.estimate_prevalence(site.log_ratio, site.Z), site.Z)


def test_a_source_that_changes_is_refused(nothing_kept):
    site = make_site()

    class Shrinking(Chunks):
        def __iter__(self):
            chunks = list(super().__iter__())
            return iter(chunks if self.passes < 5 else chunks[:-1])

    with pytest.raises(RuntimeError, match=r"1000 row\(s\) at first and \d+ in a later pass"):
        sw.estimate_prevalence(Shrinking(site.log_ratio, None), model="constant")


def test_bad_chunks_are_named_and_odd_levels_warned_of_once(nothing_kept):
    site = make_site()
    broken = site.log_ratio.copy()
    broken[300, 1] = np.nan
    with pytest.raises(ValueError, match=r"chunk 2 of log_ratio has NaN in 1 row\(s\), first at row 40"):
        sw.estimate_prevalence(Chunks(broken, site.Z))
    schema = sw.Confounders.learn(site.Z)
    odd = site.Z.assign(group0="elsewhere")
    with pytest.warns(UserWarning, match="1000 row") as caught:
        sw.estimate_prevalence(Chunks(site.log_ratio, odd), confounders=schema, model="constant")
    assert sum("not seen before" in str(w.message) for w in caught) == 1
    with pytest.raises(ValueError, match="carries its own Z"):
        sw.estimate_prevalence(Chunks(site.log_ratio, site.Z), site.Z)


def test_the_schema_is_learned_in_chunks_as_it_is_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    Z = pd.DataFrame({"age": rng.gamma(3.0, 10.0, 5000), "sex": rng.choice(["m", "f", None], 5000), "parity": 1})
    Z.loc[::9, "age"] = np.nan
    parts = [Z.iloc[i : i + 700] for i in range(0, 5000, 700)]
    assert sw.Confounders.learn_in_chunks(parts) == sw.Confounders.learn(Z)
    monkeypatch.setattr("sitewise.confounders.variables.MANY_VALUES", 1000)
    thinned = sw.Confounders.learn_in_chunks(parts)
    assert thinned == sw.Confounders.learn(Z)
    assert thinned.variables[0].low == Z["age"].min()
    late = [Z.assign(sex=np.nan).iloc[:50], Z.iloc[50:]]
    assert sw.Confounders.learn_in_chunks(late).variables[1].levels == ("f", "m")
    with pytest.raises(ValueError, match="infinite"):
        sw.Confounders.learn_in_chunks([Z, Z.assign(age=np.inf)])


def test_many_rows_are_kept_in_single_precision_and_certified_all_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    y = rng.random(600_000) < 0.03
    log_ratio = np.c_[np.zeros(len(y)), 2 * rng.normal(2.0 * y) - 2]
    large = sw.estimate_prevalence(log_ratio)
    monkeypatch.setattr(rows_module, "LARGE", 2**40)
    double = sw.estimate_prevalence(log_ratio)
    assert large.log_likelihood != double.log_likelihood  # rounded f
    assert large.gap < 1e-9
    assert double.gap < 1e-9
    np.testing.assert_allclose(large.marginal, double.marginal, atol=1e-8)
    np.testing.assert_allclose(large.interval(), double.interval(), atol=1e-6)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("model", ["constant", "additive", "table"])
def test_the_length_of_a_stretch_changes_nothing(monkeypatch, model, n_classes):
    site = make_site(n_classes, discrete=model == "table")
    whole = sw.estimate_prevalence(site.log_ratio, site.Z, model=model, groups=np.arange(1000) // 2)
    monkeypatch.setattr(rows_module, "STRETCH", 700)
    short = sw.estimate_prevalence(site.log_ratio, site.Z, model=model, groups=np.arange(1000) // 2)
    assert len(evidence_of(site.log_ratio, site.Z).everything.kept) > 10
    compare(short, whole, site.Z, atol=1e-7)


@pytest.mark.parametrize("n_classes", [5, 40])
def test_many_rows_and_classes_by_way_of_a_sample(n_classes):
    """Against the certificate of equation 8, taken by hand."""
    rng = np.random.default_rng(0)
    y = rng.choice(n_classes, 60_000, p=rng.dirichlet(np.ones(n_classes)))
    log_ratio = rng.normal(size=(len(y), n_classes)) + 3.0 * np.eye(n_classes)[y]
    estimate = sw.estimate_prevalence(log_ratio)
    f = np.exp(log_ratio)
    multiplier = (f / (f @ estimate.marginal)[:, None]).mean(0)
    assert multiplier.max() - 1 < 1e-8
    assert estimate.gap < 1e-9
