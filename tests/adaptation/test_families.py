"""What every family of g must do, run over the registry, and over a family that a user adds."""

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import sitewise as sw
from sitewise.adaptation.answer import N_REFITS
from sitewise.adaptation.families import FAMILIES, Family
from sitewise.adaptation.records import all_records
from sitewise.artifacts import Record
from sitewise.artifacts.packing import pack, unpack
from sitewise.prevalence import fit_constant
from sitewise.prevalence.base import Prevalence

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # small sites converge badly, which is not asked here


@dataclass(frozen=True)
class HalvesPrevalence:
    """One level below the middle code of the first variable, one from there on, the marginal where it is missing."""

    schema: sw.Confounders
    levels: torch.Tensor  # (2, K)
    marginal: torch.Tensor  # (K,)
    name: str = "of_a_user"

    def log_prob(self, codes):
        known = torch.where(codes[:, :1] < 0.5, self.levels[0], self.levels[1])
        return torch.where(self.schema.missing(codes)[:, :1], self.marginal, known)


class Halves(Family):
    name = "of_a_user"
    records: ClassVar = {"HalvesPrevalence": Record(HalvesPrevalence)}

    def fit_labels(self, targets, codes, weight, schema, *, knockout, seed):
        upper, known = codes[:, 0] >= 0.5, ~schema.missing(codes)[:, 0]
        parts = (torch.where(part & known, weight, 1e-6 * weight) for part in (~upper, upper))
        levels = torch.stack([fit_constant(targets, part).log_marginal for part in parts])
        return HalvesPrevalence(schema, levels, fit_constant(targets, weight).log_marginal)


@pytest.fixture(params=[*FAMILIES, "of_a_user"])
def name(request, monkeypatch):
    monkeypatch.setitem(FAMILIES, "of_a_user", Halves())
    monkeypatch.setattr("sitewise.prevalence.network.STEPS", 20)
    return request.param


def site(n_rows=240, n_classes=3, seed=0):
    """Discrete z, which every family takes."""
    family = sw.SimulatedFamily(n_classes=n_classes, n_continuous=0, levels=(2, 3), signal=3.0, seed=seed)
    return family.site(n_rows, missing=0.1, seed=seed)


def labels(site):
    schema = sw.Confounders.learn(site.Z)
    targets = torch.eye(site.log_ratio.shape[1], dtype=torch.float64)[site.y]
    return targets, schema.encode(site.Z)[0], torch.ones(len(targets), dtype=torch.float64), schema


def test_the_registry_names_its_families():
    assert all(family.name == key for key, family in FAMILIES.items())


def test_a_g_from_labels_is_a_distribution_at_every_z(name):
    targets, codes, weight, schema = labels(site())
    g = FAMILIES[name].fit_labels(targets, codes, weight, schema, knockout=0.5, seed=0)
    nothing = schema.missing_codes()[None]
    log_prob = g.log_prob(torch.cat([codes, nothing]))
    assert isinstance(g, Prevalence)
    assert g.name == name
    assert torch.isfinite(log_prob).all()
    torch.testing.assert_close(log_prob.exp().sum(1), torch.ones(len(log_prob), dtype=torch.float64))
    torch.testing.assert_close(log_prob[-1].exp(), targets.mean(0), atol=0.02, rtol=0.0)


def test_a_label_of_weight_two_is_two_labels(name):
    if not FAMILIES[name].quick:
        pytest.skip("draws its batches by row")
    targets, codes, weight, schema = labels(site())
    twice = torch.arange(len(codes)).repeat_interleave(1 + (torch.arange(len(codes)) % 2))
    weight = torch.bincount(twice).double()
    fit = FAMILIES[name].fit_labels
    weighted = fit(targets, codes, weight, schema, knockout=0.5, seed=0)
    repeated = fit(targets[twice], codes[twice], torch.ones(len(twice)).double(), schema, knockout=0.5, seed=0)
    torch.testing.assert_close(weighted.log_prob(codes), repeated.log_prob(codes), atol=1e-6, rtol=0.0)


def test_unlabeled_rows_give_a_g_close_to_that_of_their_labels(name):
    rows = site(1500)
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z, model=name, random_state=0)
    assert estimate.model == name
    np.testing.assert_allclose(estimate.marginal, np.bincount(rows.y) / len(rows.y), atol=0.05)
    np.testing.assert_allclose(np.exp(estimate.log_prevalence(rows.Z)).mean(0), estimate.marginal, atol=0.01)


def test_an_estimate_is_saved_and_says_the_same(name):
    rows = site()
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z, model=name, random_state=0)
    tree, tensors = pack({"it": estimate}, all_records())
    again = unpack(json.loads(json.dumps(tree)), tensors, all_records())["it"]
    np.testing.assert_array_equal(again.log_prevalence(rows.Z), estimate.log_prevalence(rows.Z))
    assert f"by {name} g" in repr(again)
    assert repr(again) == repr(estimate)
    np.testing.assert_array_equal(again.interval(), estimate.interval())
    np.testing.assert_array_equal(again.draws(9, random_state=0).marginal, estimate.draws(9, random_state=0).marginal)


def test_a_family_without_curvature_has_the_intervals_and_draws_of_its_bootstrap(monkeypatch):
    monkeypatch.setitem(FAMILIES, "of_a_user", Halves())
    rows = site()
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z, model="of_a_user")
    refits = estimate.bootstrap(N_REFITS, random_state=0)
    np.testing.assert_array_equal(estimate.interval(), refits.interval())
    at_z = refits.interval(lambda g: np.exp(g.log_prevalence(rows.Z[:5])))
    np.testing.assert_allclose(estimate.interval(rows.Z[:5]), at_z, rtol=1e-12)
    draws = estimate.draws(N_REFITS, random_state=3)
    np.testing.assert_allclose(np.sort(draws.marginal[:, 1]), np.sort(refits.marginal[:, 1]), rtol=1e-12)
    np.testing.assert_allclose(np.exp(next(draws.log_prevalence(rows.Z))).mean(0), draws.marginal[0], atol=0.05)
    assert len(estimate.draws(3 * N_REFITS + 1)) == 3 * N_REFITS + 1
    with pytest.raises(ValueError, match=r"no curvature.*bootstrap"):
        estimate.interval(method="curvature")


def test_every_quick_family_can_be_bootstrapped(name):
    if not FAMILIES[name].quick:
        pytest.skip("not fitted many times over")
    rows = site()
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z, model=name)
    low, high = estimate.interval(method="bootstrap", n_resamples=20, random_state=0)
    assert (low < high).all()
    assert (low - 0.02 <= estimate.marginal).all()
    assert (estimate.marginal <= high + 0.02).all()


def test_a_model_is_fitted_adapted_and_saved_with_it(name, tmp_path):
    train, new = site(300, n_classes=2), site(150, n_classes=2, seed=5)
    proba = np.asarray(sw.adjust(train.log_ratio, np.zeros(2)))
    model = sw.PrevalenceAdjuster(prevalence=name, rehearsal=None, random_state=0)
    model.fit(proba, train.y, sample_confounder=train.Z)
    here = model.adapt(np.asarray(sw.adjust(new.log_ratio, np.zeros(2))), sample_confounder=new.Z)
    low, high = here.prevalence_interval()
    assert ((low <= here.prevalence()) & (here.prevalence() <= high)).all()
    here.save(tmp_path / "site")
    again = sw.load(tmp_path / "site")
    np.testing.assert_array_equal(again.predict_proba(proba, train.Z), here.predict_proba(proba, train.Z))
    np.testing.assert_array_equal(again.prevalence_interval(new.Z), here.prevalence_interval(new.Z))


def test_a_site_of_a_family_without_curvature_answers_everything_by_its_rows_alone(monkeypatch, tmp_path):
    monkeypatch.setitem(FAMILIES, "of_a_user", Halves())
    monkeypatch.setattr("sitewise.adaptation.answer.N_REFITS", 30)
    train, new = site(300, n_classes=2), site(150, n_classes=2, seed=5)
    proba, proba_new = (np.asarray(sw.adjust(rows.log_ratio, np.zeros(2))) for rows in (train, new))
    model = sw.PrevalenceAdjuster(prevalence="of_a_user", rehearsal=None, random_state=0)
    model.fit(proba, train.y, sample_confounder=train.Z)
    here = model.adapt(proba_new, sample_confounder=new.Z, policy="rows")
    identification = next(finding for finding in here.diagnose().findings if finding.name == "identification")
    low, high = here.estimate.interval()
    assert identification.details["half_width_given_f"] == pytest.approx(float((high - low).max()) / 2)
    assert here.outcome.grounds.half_width == pytest.approx(float((high - low).max()) / 2)
    estimate, low, high = here.expected_performance()["accuracy"]
    assert low < estimate < high
    assert "95% interval" in repr(here)
    assert here.report(tmp_path / "site.html").exists()
    here.save(tmp_path / "site")
    again = sw.load(tmp_path / "site")
    np.testing.assert_array_equal(again.prevalence_interval(), here.prevalence_interval())
    assert again.outcome == here.outcome


def test_a_name_that_no_family_has_is_refused():
    rows = site(60)
    proba = np.asarray(sw.adjust(rows.log_ratio, np.zeros(3)))
    with pytest.raises(ValueError, match=r"model must be one of auto, .*additive.*got 'aditive'.*additive"):
        sw.estimate_prevalence(rows.log_ratio, rows.Z, model="aditive")
    with pytest.raises(ValueError, match=r"prevalence must be one of auto, .*additive.*got 'aditive'"):
        sw.PrevalenceAdjuster(prevalence="aditive").fit(proba, rows.y, sample_confounder=rows.Z)
    with pytest.raises(ValueError, match=r"prevalence must be one of auto, .*additive.*got 'aditive'"):
        sw.GPAClassifier(prevalence="aditive").fit(rows.X, rows.y, sample_confounder=rows.Z)
