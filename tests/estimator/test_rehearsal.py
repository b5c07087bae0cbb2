"""Laws of rehearsal: what adapting to training sites that were left out says, and what it must not see."""

import multiprocessing
import os
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression

import sitewise as sw
from sitewise.estimator import gpa, rehearsing
from sitewise.estimator import model as model_module
from sitewise.estimator.source.rehearsal import ERRORS, SHIFTS, Numbers, Unit, best_trust, learn_numbers
from sitewise.posterior import contrasts
from sitewise.prevalence import SitePrior
from sitewise.prevalence.base import ConstantPrevalence
from sitewise.prevalence.prior import FREEDOM, USUAL_FACTOR, USUAL_LEVEL, USUAL_SITES, student_scale
from sitewise.ratio import RatioObjective
from sitewise.report.wording import REHEARSALS
from sitewise.training.loop import CONTEXT, count_parallel

N_ROWS = 300  # a site
SHARES = (0.2, 0.35, 0.6)
NAMES = ("north", "south", "west")
SHOWN = ["rows", "prevalence", "as_trained", "adapted", "low", "high"]
COLUMNS = [*SHOWN, "nll_as_trained", "nll_adapted", "nll_told", "auroc"]
BREACHES = ["breach_stability", "breach_representation", "breach_mixture"]
FAMILY = sw.SimulatedFamily(levels=(2,), seed=1)


@cache
def classifier():
    """A logistic model of another hospital's rows."""
    there = FAMILY.site(1000, prevalence=(0.7, 0.3), seed=99)
    return LogisticRegression().fit(there.X, there.y)


def probabilities(drawn):
    return classifier().predict_proba(drawn.X)


@cache
def training():
    """Probabilities, labels, sites and z of three sites."""
    sites = [FAMILY.site(N_ROWS, prevalence=(1 - p, p), seed=seed) for seed, p in enumerate(SHARES)]
    return (
        np.concatenate([probabilities(one) for one in sites]),
        np.concatenate([one.y for one in sites]),
        np.repeat(NAMES, N_ROWS),
        pd.concat([one.Z for one in sites], ignore_index=True),
    )


def fitted(y=None, with_z=False, **settings):
    """An adjuster of all three sites, with other labels where they are given."""
    proba, own, site, Z = training()
    adjuster = sw.PrevalenceAdjuster(**settings)
    return adjuster.fit(proba, own if y is None else y, sample_domain=site, sample_confounder=Z if with_z else None)


@pytest.fixture(scope="module")
def model():
    """Rehearsed without z."""
    return fitted()


@pytest.fixture(scope="module")
def with_z():
    """Rehearsed with z."""
    return fitted(with_z=True, prevalence="additive")


@pytest.fixture(scope="module")
def new():
    """Rows of a new site."""
    return FAMILY.site(400, prevalence=(0.3, 0.7), dependence=0.5, seed=7)


@pytest.fixture(params=["without z", "with z"])
def adapted(request, model, with_z, new):
    """A model, rows and weights of a new site, and the model adapted to them."""
    fitted_model, Z = (model, None) if request.param == "without z" else (with_z, new.Z)
    weight = np.random.default_rng(0).uniform(0.2, 3.0, len(new.X))

    def adapt(**options):
        return fitted_model.adapt(probabilities(new), sample_confounder=Z, sample_weight=weight, **options)

    return fitted_model, Z, weight, adapt


class Spy:
    """What the folds were fitted to, and what the numbers were learned from."""

    def __init__(self, monkeypatch):
        self.data, self.units = [], []
        summarize, learn_from_units = model_module.summarize_training, rehearsing.learn_numbers

        def record_data(data):
            self.data.append(data)
            return summarize(data)

        def record_units(units):
            self.units.append(list(units))
            return learn_from_units(units)

        monkeypatch.setattr(model_module, "summarize_training", record_data)  # once for each model that is fitted
        monkeypatch.setattr(rehearsing, "learn_numbers", record_units)


def test_the_table_has_a_row_for_each_site(model):
    _, y, site, _ = training()
    table = model.rehearsal_.table
    assert model.rehearsal_.kind == "sites"
    assert list(table.columns) == [*COLUMNS, *BREACHES]
    assert list(table.index) == list(NAMES)
    assert (table["rows"] == N_ROWS).all()
    for name in NAMES:
        line, own = table.loc[name], site == name
        assert line["prevalence"] == pytest.approx(y[own].mean())
        assert 0 <= line["low"] <= line["adapted"] <= line["high"] <= 1
        # Half a row of penalty aside, no level predicts better than the one that the labels ask for.
        assert line["nll_told"] < line["nll_as_trained"] + 1e-3
        assert line["nll_told"] < line["nll_adapted"] + 1e-3
        assert 0.5 < line["auroc"] < 1
    closer = np.abs(table["adapted"] - table["prevalence"]) < np.abs(table["as_trained"] - table["prevalence"])
    assert closer.loc[["north", "west"]].all()  # the sites whose prevalence is not that of the others


def test_more_classes_have_columns_of_their_own():
    family = sw.SimulatedFamily(n_classes=3, levels=(2,), seed=1)
    shares = ((0.5, 0.3, 0.2), (0.2, 0.5, 0.3))
    sites = [family.site(100, prevalence=share, seed=seed) for seed, share in enumerate(shares)]
    y = np.array(["a", "b", "c"])[np.concatenate([one.y for one in sites])]
    proba = LogisticRegression().fit(sites[0].X, sites[0].y).predict_proba(np.concatenate([one.X for one in sites]))
    table = sw.PrevalenceAdjuster().fit(proba, y, sample_domain=np.repeat(["north", "south"], 100)).rehearsal_.table
    for column in ("prevalence", "as_trained", "adapted"):
        assert table[[f"{column}_{label}" for label in "abc"]].sum(axis=1).to_numpy() == pytest.approx(1.0)


def test_the_sentence_is_the_table_in_words(model):
    table, sentence = model.rehearsal_.table, model.rehearsal_.sentence
    before, after = table["nll_as_trained"].mean(), table["nll_adapted"].mean()
    better = (table["nll_adapted"] < table["nll_as_trained"]).sum()
    assert f"lowered the log loss from {before:.3f} to {after:.3f}" in sentence
    assert f"{better} of 3 sites better" in sentence
    swapped = table.rename(columns={"nll_as_trained": "nll_adapted", "nll_adapted": "nll_as_trained"})
    worse = rehearsing.Rehearsal("sites", swapped, model.rehearsal_.numbers).sentence
    assert f"raised the log loss from {after:.3f} to {before:.3f}" in worse


def test_what_is_not_rehearsed_is_not_claimed():
    plain = fitted(rehearsal=None)
    assert plain.rehearsal_.kind is None
    assert plain.rehearsal_.table.empty
    assert plain.rehearsal_.sentence == REHEARSALS[None]
    assert plain.rehearsal_.numbers == Numbers()


@pytest.mark.parametrize("several", [False, True])
def test_held_out_rows_are_rehearsed_where_that_is_asked_or_all_there_is(several, monkeypatch):
    proba, y, site, _ = training()
    spy = Spy(monkeypatch)
    adjuster = sw.PrevalenceAdjuster(rehearsal="rows" if several else "auto")
    adjuster.fit(proba, y, sample_domain=site if several else None)
    rehearsal = adjuster.rehearsal_
    assert rehearsal.kind == "rows"
    assert list(rehearsal.table.columns) == COLUMNS
    assert len(rehearsal.table) == 1
    assert rehearsal.table["rows"].iloc[0] == len(y)
    assert f"{rehearsal.table['nll_adapted'].iloc[0]:.3f}" in rehearsal.sentence
    assert len(spy.data) == 1  # no fold was fitted
    assert [unit.shifted for unit in spy.units[-1]] == [False]
    as_usual = (USUAL_LEVEL, 1.0, 0.0)  # no site says otherwise
    assert (rehearsal.numbers.level_scale, rehearsal.numbers.slope, rehearsal.numbers.level_error) == as_usual


def test_no_label_of_a_site_reaches_the_model_that_is_adapted_to_it(monkeypatch):
    """The labels of one site are all reversed: its own fold sees none of them and does not change.

    The other sites' models learn from them, and through these the numbers that its row of the table is made with.
    """
    _, y, site, _ = training()
    left_out = NAMES.index("south")
    planted = np.where(site == "south", 1 - y, y)
    runs = []
    for labels in (y, planted):
        spy = Spy(monkeypatch)
        table = fitted(labels).rehearsal_.table
        whole, *parts = spy.data
        assert len(whole.rows) == len(y)
        assert len(parts) == len(NAMES)
        for number, part in enumerate(parts):
            others = site != NAMES[number]
            assert number not in part.rows.site
            assert part.rows.y.tolist() == labels[others].tolist()
        runs.append((spy, table))
        monkeypatch.undo()
    (honest, table), (turned, other_table) = runs
    held, other_held = (spy.units[left_out][-1] for spy in (honest, turned))
    assert torch.equal(held.log_ratio, other_held.log_ratio)
    own, other_own = (spy.units[-1][left_out] for spy in (honest, turned))
    assert own.name == other_own.name == "south"
    assert torch.equal(own.log_ratio, other_own.log_ratio)
    assert torch.equal(own.log_prevalence, other_own.log_prevalence)
    assert own.tempering == other_own.tempering
    assert other_own.y.tolist() == (1 - own.y).tolist()  # they are looked at afterwards
    assert table.loc["south", "as_trained"] == other_table.loc["south", "as_trained"]
    assert table.loc["south", "prevalence"] == pytest.approx(1 - other_table.loc["south", "prevalence"])
    assert table.loc["south", "auroc"] == pytest.approx(1 - other_table.loc["south", "auroc"])
    assert table.loc["north", "as_trained"] != other_table.loc["north", "as_trained"]  # it learns from them


class Remembering(LogisticRegression):
    """A classifier that keeps every X it was fitted to, and every X it was asked about."""

    fits: ClassVar[list] = []

    def fit(self, X, y):
        self.asked = []
        self.fits.append((self, X))
        return super().fit(X, y)

    def predict_proba(self, X):
        self.asked.append(X)
        return super().predict_proba(X)


def test_an_estimator_that_comes_unfitted_is_fitted_without_the_site_it_is_rehearsed_on():
    sites = [FAMILY.site(N_ROWS, prevalence=(1 - p, p), seed=seed) for seed, p in enumerate(SHARES)]
    X, y = (np.concatenate([getattr(one, name) for one in sites]) for name in ("X", "y"))
    Remembering.fits.clear()
    adjuster = sw.PrevalenceAdjuster(Remembering()).fit(X, y, sample_domain=np.repeat(NAMES, N_ROWS))
    assert list(adjuster.rehearsal_.table.index) == list(NAMES)
    for one in sites:
        rows = set(map(tuple, one.X))
        asked = [
            known for known, X_known in Remembering.fits if any(rows <= set(map(tuple, about)) for about in known.asked)
        ]
        learned = [len(rows & set(map(tuple, X_known))) for known, X_known in Remembering.fits if known in asked]
        assert learned == [0]  # by the one classifier that was fitted without the site
    assert adjuster.adapt(X).predict_proba(X).shape == (len(X), 2)


def test_a_sites_row_of_the_table_has_the_numbers_of_the_other_sites(monkeypatch):
    spy = Spy(monkeypatch)
    spied = rehearsing.learn_numbers

    def distrust_south(units):
        """Without trust a site's row shows the model as trained; only the numbers without south's unit are changed."""
        without_south = "south" not in [unit.name for unit in units]
        numbers = spied(units)
        return replace(numbers, trusted_rows=0.0, averaged=False) if without_south else numbers

    monkeypatch.setattr(rehearsing, "learn_numbers", distrust_south)
    model = fitted()
    *of_sites, of_all = spy.units
    assert [unit.name for unit in of_all] == [*NAMES, "held-out rows"]
    for name, units in zip(NAMES, of_sites, strict=True):
        sites = [unit for unit in units if unit.shifted]
        assert [unit.name for unit in sites] == [other for other in NAMES if other != name]
        (held,) = (unit for unit in units if not unit.shifted)
        _, y, site, _ = training()
        assert held.y.tolist() == y[site != name].tolist()
    assert model.rehearsal_.numbers == learn_numbers(of_all)
    table = model.rehearsal_.table
    as_trained = table["nll_adapted"] == table["nll_as_trained"]
    assert as_trained.to_dict() == {name: name == "south" for name in NAMES}


def test_many_sites_are_left_out_in_at_most_eight_folds(monkeypatch):
    proba, y = (part[::2] for part in training()[:2])
    site = np.arange(len(y)) % 11
    site[:10] = 11  # too few rows to learn from
    spy = Spy(monkeypatch)
    table = sw.PrevalenceAdjuster().fit(proba, y, sample_domain=site).rehearsal_.table
    folds = spy.data[1:]
    assert len(folds) == rehearsing.MOST_FOLDS == 8
    assert sorted(table.index) == sorted(str(name) for name in range(11))
    left_out = [sorted(set(range(12)) - set(part.rows.site.tolist())) for part in folds]
    assert sorted(name for sites in left_out for name in sites) == list(range(11))  # each once
    of_sites = dict(zip(table.index, spy.units, strict=False))
    for sites in left_out:
        for name in sites:  # no site of its own fold has a say
            assert not {unit.name for unit in of_sites[str(name)]} & {str(one) for one in sites}


def test_every_fold_trains_on_all_classes(monkeypatch):
    """Two sites hold the third class, and their sizes would put them into one fold."""
    proba, y = (part[::2] for part in training()[:2])
    site = np.repeat(np.arange(12), [35] * 6 + [55, 45] + [35] * 4)
    proba, y = np.column_stack([proba, proba.mean(1)]), y.copy()
    y[np.isin(site, [0, 8]) & (np.arange(len(site)) % 3 == 0)] = 2
    spy = Spy(monkeypatch)
    model = sw.PrevalenceAdjuster().fit(proba / proba.sum(1, keepdims=True), y, sample_domain=site)
    folds = spy.data[1:]
    assert len(folds) == 8
    assert all(set(part.rows.y.tolist()) == {0, 1, 2} for part in folds)
    assert sorted(model.rehearsal_.table.index, key=int) == [str(name) for name in range(12)]


def test_a_site_that_stays_as_trained_is_predicted_by_the_model_itself(adapted, new):
    model, Z, _, adapt = adapted
    proba = probabilities(new)
    here = adapt(policy="as trained")
    assert np.array_equal(here.predict_proba(proba, Z), model.predict_proba(proba, sample_confounder=Z))
    assert not np.array_equal(adapt().predict_proba(proba, Z), here.predict_proba(proba, Z))


def of_one_site(monkeypatch, **numbers):
    """A model of one site, with what its rehearsal is made to say, and rows of a new one."""
    monkeypatch.setattr(rehearsing, "learn_numbers", lambda units: Numbers(**numbers))
    proba, y, _, Z = training()
    return sw.PrevalenceAdjuster().fit(proba, y, sample_confounder=Z)


def test_rows_that_are_not_trusted_leave_the_model_of_one_site_as_trained(new, monkeypatch):
    model, proba = of_one_site(monkeypatch, trusted_rows=0.0), probabilities(new)
    here, as_trained = model.adapt(proba, new.Z), model.predict_proba(proba, sample_confounder=new.Z)
    assert np.array_equal(here.predict_proba(proba, new.Z), as_trained)
    assert here.outcome == "as trained"
    low, high = here.prevalence_interval()
    assert high[1] - low[1] > 0.5  # nothing is known of the level here
    assert low[1] < as_trained[:, 1].mean() < high[1]
    labeled = model.adapt(proba, new.Z, y=np.where(np.arange(len(new.y)) < 50, new.y.astype(float), np.nan))
    assert not np.allclose(labeled.predict_proba(proba, new.Z), as_trained, atol=1e-3)  # labels are trusted
    wide = model.adapt(proba, new.Z, level_scale=3.0)  # and so is a user who knows the site to be different
    assert not np.allclose(wide.predict_proba(proba, new.Z), as_trained, atol=1e-3)


def test_a_failed_check_leaves_the_model_of_one_site_as_trained(new, monkeypatch):
    model, proba = of_one_site(monkeypatch), probabilities(new)
    here = model.adapt(proba, new.Z)
    before = here.predict_proba(proba, new.Z)
    monkeypatch.setattr(type(here), "_failed_check", "stability")
    as_trained = model.predict_proba(proba, sample_confounder=new.Z)
    assert np.array_equal(here.predict_proba(proba, new.Z), as_trained)
    assert not np.allclose(before, as_trained, atol=1e-3)


def test_another_calibration_keeps_what_was_rehearsed(model):
    assert model.with_calibration("temperature").prior_.level_scale == model.rehearsal_.numbers.level_scale
    network, X = tiny_classifier()
    calibrated = network.calibrate(X, np.arange(len(X)) % 2)
    assert vars(network.rehearsal_.numbers).items() <= vars(calibrated.prior_).items()


@pytest.mark.parametrize("policy", ["auto", "as trained", "rows"])
def test_the_prevalence_is_the_mean_of_what_is_predicted(adapted, new, policy):
    _, Z, weight, adapt = adapted
    here = adapt(policy=policy)
    mean = np.average(here.predict_proba(probabilities(new), Z), axis=0, weights=weight)
    assert here.prevalence() == pytest.approx(mean, abs=1e-12)
    low, high = here.prevalence_interval()
    assert (low <= mean + 1e-12).all()
    assert (mean <= high + 1e-12).all()


def test_a_saved_model_keeps_what_was_rehearsed(adapted, new, tmp_path):
    model, Z, _, adapt = adapted
    model.save(tmp_path / "model")
    again = sw.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.rehearsal_.table, model.rehearsal_.table)
    assert again.rehearsal_.kind == model.rehearsal_.kind
    assert again.rehearsal_.numbers == model.rehearsal_.numbers
    assert again.rehearsal_.sentence == model.rehearsal_.sentence
    proba = probabilities(new)
    expected = model.predict_proba(proba, sample_confounder=Z)
    assert np.array_equal(again.predict_proba(proba, sample_confounder=Z), expected)
    expected = model.adapt(proba, sample_confounder=Z).predict_proba(proba, Z)
    predicted = again.adapt(proba, sample_confounder=Z).predict_proba(proba, Z)
    assert np.allclose(predicted, expected, rtol=0, atol=1e-9)  # fitted again, in memory that lies elsewhere
    here = adapt()
    here.save(tmp_path / "site")
    there = sw.load(tmp_path / "site")
    assert np.array_equal(there.predict_proba(proba, Z), here.predict_proba(proba, Z))
    assert np.array_equal(there.prevalence(), here.prevalence())
    assert np.array_equal(there.prevalence_interval(), here.prevalence_interval())


def test_unknown_settings_are_refused_by_name(model, new):
    with pytest.raises(ValueError, match=r"rehearsal must be one of auto, sites, rows, None, got 'site'.*'sites'"):
        fitted(rehearsal="site")
    with pytest.raises(ValueError, match="rehearsal must be one of auto, sites, rows, None, got 'always'"):
        sw.GPAClassifier(rehearsal="always").fit(new.X, new.y)
    with pytest.raises(ValueError, match="policy must be one of auto, as trained, rows, got 'never'"):
        model.adapt(probabilities(new), policy="never")
    for scale in (0, -1.0, float("inf"), "wide"):
        with pytest.raises(ValueError, match="level_scale must be a number above 0"):
            model.adapt(probabilities(new), level_scale=scale)


@pytest.mark.parametrize("kind", [sw.PrevalenceAdjuster, sw.GPAClassifier])
def test_one_site_can_not_be_rehearsed_as_several(kind, new):
    X = probabilities(new) if kind is sw.PrevalenceAdjuster else new.X
    with pytest.raises(ValueError, match="rehearsal='sites' needs at least two sites in sample_domain, got 1"):
        kind(rehearsal="sites").fit(X, new.y)


def test_a_wider_level_follows_the_rows_further(model):
    proba = probabilities(FAMILY.site(20, prevalence=(0.1, 0.9), seed=8))  # few, or they outvote any prior
    narrow, wide = (model.adapt(proba, level_scale=scale).prevalence()[1] for scale in (0.1, 3.0))
    as_trained = model.adapt(proba, policy="as trained").prevalence()[1]
    assert as_trained < narrow < wide - 0.01


def test_a_site_said_to_be_very_different_has_the_trust_that_was_rehearsed_for_it():
    prior = SitePrior(
        ConstantPrevalence(torch.zeros(2, dtype=torch.float64)),
        level_scale=0.5,
        trusted_rows=10.0,
        wide_trusted_rows=300.0,
    )
    assert prior.widened(3.0).trusted_rows == 300.0
    assert prior.widened(0.4).trusted_rows == 10.0
    assert replace(prior, trusted_rows=1000.0).widened(3.0).trusted_rows == 1000.0
    turned, right = (learn_numbers(units(sharpness=sharpness)) for sharpness in (-1.0, 1.0))
    assert turned.wide_trusted_rows == 0.0
    assert right.wide_trusted_rows > 0.0


def units(n_sites=4, n_rows=400, sharpness=1.0, offset=0.0, spread=0.0, seed=0, n_classes=2):
    """Rehearsed sites of simulated rows: log f times a sharpness, its level off by a normal error."""
    rng = np.random.default_rng(seed)
    family = sw.SimulatedFamily(n_classes=n_classes, levels=(2,), effect=0.0, seed=1)
    even = np.full(n_classes, 1 / n_classes)
    prior = SitePrior(ConstantPrevalence(torch.tensor(even).log()))
    runs = []
    for number in range(n_sites):
        logits = spread * rng.normal(size=n_classes)
        drawn = family.site(n_rows, prevalence=np.exp(logits) / np.exp(logits).sum(), seed=100 * seed + number)
        ratio = sharpness * torch.tensor(drawn.log_ratio) + offset * torch.tensor(rng.normal(size=n_classes))
        log_g, weight = prior.log_prob(torch.zeros(n_rows, 0)), torch.ones(n_rows)
        runs.append(Unit.of(str(number), ratio, log_g, torch.tensor(drawn.y), weight, prior, shifted=True))
    return runs


@pytest.mark.parametrize("n_classes", [2, 3])
def test_an_f_that_is_right_is_trusted(n_classes):
    numbers = learn_numbers(units(8 - 2 * n_classes, n_classes=n_classes))  # more classes take longer
    assert numbers.slope == pytest.approx(1.0, abs=0.15)  # of 800 labels it has a standard error of about 0.06
    assert numbers.level_error < 0.3  # log-odds: the labels of a site alone have a standard error of .1
    assert numbers.trusted_rows >= 300


def test_an_f_whose_level_is_off_shows_an_error_of_the_level():
    size, sites = 1.5, units(8, n_rows=1000)
    off = [(-1) ** number * size / 2.0 * torch.tensor([-1.0, 1.0]) for number in range(len(sites))]
    shifted = [replace(unit, log_ratio=unit.log_ratio + by) for unit, by in zip(sites, off, strict=True)]
    # A level of f that is off moves the estimate by more than that: the mean of the posterior follows it.
    assert learn_numbers(shifted).level_error > size
    assert learn_numbers(sites).level_error < 0.3


def test_the_likelihood_of_an_error_is_the_integral_over_levels():
    unit = units(1, n_rows=60, spread=0.5)[0]
    truth, covariance = float(unit.labeled_level[0] * 2**0.5), 2.0 * float(unit.labeled_level[1])
    odds = np.linspace(-14, 14, 2801)
    half = torch.tensor(odds / 2.0)
    joint = unit.log_ratio[:, None, :] + torch.log_softmax(torch.stack([-half, half], 1), 1)
    of_rows = torch.logsumexp(joint, 2).sum(0).numpy()  # the source's g is even and without a shape
    wide, narrow = 30, 16  # two of the grid's errors
    by_hand = []
    for error in (ERRORS[wide], ERRORS[narrow]):
        density = norm.pdf(odds, truth, np.hypot(error, covariance**0.5))
        by_hand.append(np.log(np.trapezoid(np.exp(of_rows - of_rows.max()) * density, odds)))
    learned = unit.error_log_likelihood[[wide, narrow]]
    assert float(learned[0] - learned[1]) == pytest.approx(by_hand[0] - by_hand[1], abs=0.05)  # of the coarse grid


def test_trust_has_the_smallest_regret():
    noisy = torch.tensor([[0.0, -0.3], [0.0, 0.25], [0.0, 0.1]])  # rows help one site and harm two
    assert best_trust(noisy) == 0.0
    assert best_trust(noisy[:1]) > 0.0  # of one site there is no error between sites
    helpful = torch.tensor([[0.0, -0.20, -0.204], [0.0, -0.05, -0.052], [0.0, -0.10, -0.101]])
    assert best_trust(helpful) == 30.0  # the third choice, although the gain over none differs between sites
    by_hand = helpful[:, 1] - helpful[:, 2]
    bound = by_hand.mean() + student.ppf(norm.cdf(1.0), 2) * by_hand.std() / 3**0.5
    assert bound > 0  # the regret of the second
    unsure = torch.tensor([[0.0, -0.5], [0.0, 0.05], [0.0, 0.05]])  # better on average, because of one site
    assert best_trust(unsure) == 0.0  # though the regret of no rows is larger


def test_losses_are_expected_over_the_level_of_a_new_site():
    """Half of them have the unit's own level, half that of the model, each shifted by the prior; here as trained."""
    (unit, *_) = units(spread=2.0)
    numbers = Numbers(level_scale=1.5, averaged=False)
    own, scale = unit.labeled_level[0] @ contrasts(2).T, numbers.level_scale
    assert abs(float(own[1] - own[0])) > 0.5
    loss_of_row = -torch.log_softmax(unit.log_ratio + unit.log_prevalence, 1).gather(1, unit.y[:, None])[:, 0]
    by_hand = 0.0
    for start in (0.0, -float(own[1] - own[0])):
        for size, part in SHIFTS:
            odds = np.clip(start + np.clip(size * scale, -6, 6), -6, 6)
            weight = unit.weight * torch.exp(odds * unit.y)
            by_hand += part / 2 * float(weight @ loss_of_row / weight.sum())
    assert float(unit.expected_losses(numbers)[0]) == pytest.approx(by_hand, abs=1e-9)


def test_an_f_that_is_too_sharp_is_made_less_so():
    numbers = learn_numbers(units(sharpness=2.0))
    assert numbers.slope == pytest.approx(0.5, abs=0.05)


def test_an_f_that_is_turned_around_is_not_trusted():
    assert learn_numbers(units(sharpness=-1.0, spread=0.5)).trusted_rows == 0.0


def test_rows_whose_level_is_off_by_anything_are_hardly_trusted():
    numbers = learn_numbers(units(offset=3.0))
    assert numbers.trusted_rows <= 10 or numbers.level_error > 2.0


def test_predictions_are_averaged_over_the_prior_only_where_that_helped_at_sites():
    assert learn_numbers(units(spread=2.0, sharpness=-1.0)).averaged  # a sharp f that is wrong: any doubt is a gain
    assert not learn_numbers(units(spread=0.0)).averaged  # levels do not differ
    unshifted = [replace(unit, shifted=False) for unit in units(spread=2.0, sharpness=-1.0)]
    assert not learn_numbers(unshifted).averaged  # one site says nothing of others


def test_the_loss_of_a_unit_is_that_of_what_is_predicted():
    unit = units(1, spread=1.0)[0]
    as_trained = torch.log_softmax(unit.log_ratio + unit.log_prevalence, dim=1)
    by_hand = -float(as_trained.gather(1, unit.y[:, None]).mean())
    assert unit.loss(Numbers(trusted_rows=0.0)) == pytest.approx(by_hand, abs=1e-12)
    assert unit.loss(Numbers(trusted_rows=0.0, averaged=True)) != pytest.approx(by_hand, abs=1e-3)


def test_sites_that_differ_more_have_a_wider_prior():
    alike, unlike = (learn_numbers(units(spread=spread)).level_scale for spread in (0.0, 1.5))
    assert alike < USUAL_LEVEL
    assert alike < 0.6 * unlike


def test_nothing_rehearsed_is_as_usual():
    assert learn_numbers([]) == Numbers()


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_scale_of_many_deviations_comes_back(scale):
    draws = scale * np.random.default_rng(0).standard_t(FREEDOM, 5000)
    runs = student_scale(torch.tensor(draws**2), USUAL_LEVEL)
    assert runs == pytest.approx(scale, rel=0.05)  # its standard error is about 1.4 percent
    doubled = student_scale(torch.tensor(draws**2), USUAL_LEVEL, usual_sites=0.0)
    assert student_scale(torch.tensor(4 * draws**2), 2 * USUAL_LEVEL, usual_sites=0.0) == pytest.approx(2 * doubled)


def test_the_usual_scale_counts_as_so_many_sites():
    nothing = torch.zeros(0, dtype=torch.float64)
    assert student_scale(nothing, 1.3) == 1.3
    as_usual = torch.full((3,), 1.3**2, dtype=torch.float64)
    assert student_scale(as_usual, 1.3) == pytest.approx(1.3)
    one_alike = student_scale(torch.zeros(1, dtype=torch.float64), 1.3)
    assert one_alike == pytest.approx(1.3 * (USUAL_SITES / (USUAL_SITES + 1)) ** 0.5)
    assert learn_numbers([]).factor_scale == USUAL_FACTOR


def tiny_classifier(checkpoint=None):
    """A network of two sites that has hardly been trained, with its rows."""
    sites = [FAMILY.site(150, prevalence=(1 - p, p), seed=seed) for seed, p in enumerate((0.3, 0.6))]
    X, y = (np.concatenate([getattr(one, name) for one in sites]) for name in ("X", "y"))
    network = sw.GPAClassifier(epochs=2, batch_size=32, device="cpu", verbose=False, checkpoint=checkpoint)
    return network.fit(X, y, sample_domain=np.repeat(["north", "south"], 150)), X


def test_rehearsals_side_by_side_give_what_they_give_one_after_the_other(monkeypatch):
    straight, X = tiny_classifier()
    monkeypatch.setattr(gpa, "count_parallel", lambda *_: 2)
    beside, _ = tiny_classifier()
    pd.testing.assert_frame_equal(beside.rehearsal_.table, straight.rehearsal_.table, check_exact=False, rtol=1e-4)
    assert np.allclose(beside.adapt(X).predict_proba(X), straight.adapt(X).predict_proba(X), atol=1e-4)


def test_trainings_are_side_by_side_if_a_gpu_has_enough_memory(monkeypatch):
    assert count_parallel(4, "cpu") == 1
    gigabyte = 2**30
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 2 * gigabyte - CONTEXT)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for free, n_parallel in ((1, 1), (5, 2), (100, 4)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free * gigabyte, 141 * gigabyte))
        assert count_parallel(4, "cuda") == n_parallel
    assert count_parallel(4, "cuda", devices=2) == 1
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: multiprocessing.current_process())
    assert count_parallel(4, "cuda") == 1


@pytest.mark.parametrize("name", ["runs", "run.pt"], ids=["folder", "file"])
def test_a_fit_that_is_killed_in_a_rehearsal_goes_on_to_the_same_model(tmp_path, monkeypatch, name):
    begin_epoch, begun, kill_at = RatioObjective.begin_epoch, [], None

    def counted(objective, *progress):
        begun.append(progress)
        if len(begun) == kill_at:
            raise KeyboardInterrupt
        return begin_epoch(objective, *progress)

    monkeypatch.setattr(RatioObjective, "begin_epoch", counted)
    straight, X = tiny_classifier()
    assert len(begun) % 3 == 0  # the model and two folds
    of_one = len(begun) // 3

    begun.clear()
    kill_at = 2 * of_one + 2  # the second epoch of the second fold
    with pytest.raises(KeyboardInterrupt):
        tiny_classifier(tmp_path / name)
    assert len(list(tmp_path.rglob("*.pt"))) == 3

    begun.clear()
    kill_at = None
    resumed, _ = tiny_classifier(tmp_path / name)
    assert len(begun) == of_one - 1  # what is done is not done again
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert np.array_equal(resumed.predict_proba(X), straight.predict_proba(X))
    assert np.array_equal(resumed.adapt(X).predict_proba(X), straight.adapt(X).predict_proba(X))
    assert resumed.rehearsal_.numbers == straight.rehearsal_.numbers
    pd.testing.assert_frame_equal(resumed.rehearsal_.table, straight.rehearsal_.table, check_exact=True)


@pytest.mark.parametrize(
    "learned",
    [{}, {"level_scale": 0.5, "slope": 0.8}, {"level_error": 0.5, "trusted_rows": 100.0}, {"trusted_rows": 0.0}],
    ids=["usual", "narrow", "erroneous", "without rows"],
)
@pytest.mark.parametrize("kind", ["without z", "with z"])
def test_a_unit_predicts_as_the_posterior_of_a_site_does(model, with_z, new, kind, learned):
    """Rehearsal computes the posterior on a coarser grid and without deviations: the same equations, written twice."""
    fitted_model, Z = (model, None) if kind == "without z" else (with_z, new.Z)
    log_ratio = fitted_model.log_ratio(probabilities(new), sample_confounder=Z)
    numbers = Numbers(averaged=True, **learned)
    none = None if fitted_model.prior_.deviation is None else 1e-12 * fitted_model.prior_.deviation
    prior = numbers.put_into(replace(fitted_model.prior_, deviation=none))
    schema = fitted_model.confounders_
    estimate = sw.estimate_prevalence(log_ratio, Z, prior=prior, confounders=schema)
    predicted = estimate.predict_proba(log_ratio, Z)
    codes = torch.zeros(len(log_ratio), 0) if Z is None else schema.encode(Z)[0]
    log_g = prior.prevalence.log_prob(codes)
    y, weight = torch.tensor(new.y), torch.ones(len(log_ratio))
    rehearsed = replace(fitted_model.prior_, trusted_rows=float("inf"))  # before trust was learned
    unit = Unit.of("new", torch.tensor(log_ratio), log_g, y, weight, rehearsed, shifted=True)
    expected = -np.log(predicted[np.arange(len(y)), new.y]).mean()
    assert unit.loss(numbers) == pytest.approx(expected, abs=1e-3)  # of the coarser grid
