"""Laws of a site with some known labels, or a known prevalence (section 20 of docs/maths.md)."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from sitewise.adaptation import adjust, estimate_prevalence
from sitewise.adaptation.answer import fit_of
from sitewise.adaptation.known import read_band
from sitewise.prevalence import SitePrior
from sitewise.prevalence.base import ConstantPrevalence

EXPECTED = {2: (0.8, 0.2), 3: (0.6, 0.3, 0.1)}  # of the prior
ACTUAL = {2: (0.4, 0.6), 3: (0.2, 0.5, 0.3)}  # at the site
DOUBTFUL = {"level_error": 0.4, "slope": 0.7, "slope_scale": 0.3, "trusted_rows": 100.0}
ROUNDING = 1e-6
CONTRADICT = "contradict each other"

CASES = [(2, False), (2, True), (3, False), (3, True)]
every = pytest.mark.parametrize(("n_classes", "with_z"), CASES, ids=lambda value: str(value))


@cache
def site(n_classes, n_rows=120, seed=5):
    """A simulated site whose prevalence is not the prior's."""
    family = sw.SimulatedFamily(n_classes=n_classes, levels=(2,), signal=1.5, seed=1)
    return family.site(n_rows, prevalence=ACTUAL[n_classes], dependence=-1.0, seed=seed)


@cache
def source(n_classes):
    """Another site's g, which depends on z."""
    family = sw.SimulatedFamily(n_classes=n_classes, levels=(2,), signal=1.5, seed=1)
    there = family.site(400, prevalence=EXPECTED[n_classes], dependence=1.0, seed=0)
    return estimate_prevalence(there.log_ratio, there.Z, model="additive").prevalence


def prior_of(n_classes, with_z, **numbers):
    log_level = torch.tensor(EXPECTED[n_classes], dtype=torch.float64).log()
    return SitePrior(source(n_classes) if with_z else ConstantPrevalence(log_level), **numbers)


def estimate(n_classes, with_z, rows=None, log_ratio=None, y=None, prior=None, **options):
    """From some of the site's rows, labels being class numbers or NaN."""
    drawn = site(n_classes)
    rows = np.arange(len(drawn.y)) if rows is None else rows
    ratios = drawn.log_ratio if log_ratio is None else log_ratio
    Z = drawn.Z.iloc[rows] if with_z else None
    prior = prior_of(n_classes, with_z, **DOUBTFUL) if prior is None else prior
    return estimate_prevalence(ratios[rows], Z, prior=prior, y=None if y is None else y[rows], **options)


def partial(y, n_known):
    return np.where(np.arange(len(y)) < n_known, y, np.nan)


def answers(found, log_ratio, Z):
    low, high = found.interval()
    return np.vstack([found.marginal, low, high, found.predict_proba(log_ratio, Z)])


def own(n_classes, with_z):
    drawn = site(n_classes)
    return drawn.log_ratio, drawn.Z if with_z else None


@every
def test_no_label_is_as_no_labels(n_classes, with_z):
    rows = own(n_classes, with_z)
    without = answers(estimate(n_classes, with_z), *rows)
    unknown = np.full(len(rows[0]), np.nan)
    answer = answers(estimate(n_classes, with_z, y=unknown), *rows)
    assert answer == pytest.approx(without, abs=1e-11)  # the last bits hang on where arrays lie in memory


@pytest.mark.parametrize("n_known", [10, 40])
def test_labels_beside_rows_without_z(n_known):
    """The deviation of g is certified where some rows lack z and some labels are known."""
    drawn = site(2)
    Z = drawn.Z.copy()
    Z.iloc[::2] = np.nan
    given = {"prior": prior_of(2, True), "confounders": source(2).schema, "y": partial(drawn.y, n_known)}
    site_estimate = estimate_prevalence(drawn.log_ratio, Z, **given)
    assert site_estimate.converged
    assert site_estimate.n_iter < 50


@every
def test_p_of_y_is_one_number_with_labels(n_classes, with_z):
    ratios, Z = own(n_classes, with_z)
    site_estimate = estimate(n_classes, with_z, y=partial(site(n_classes).y, 40))
    low, high = site_estimate.interval()
    assert site_estimate.predict_proba(ratios, Z).mean(0) == pytest.approx(site_estimate.marginal, abs=ROUNDING)
    assert (low < site_estimate.marginal).all()
    assert (site_estimate.marginal < high).all()


@every
def test_all_labels_give_the_sites_frequency(n_classes, with_z):
    drawn = site(n_classes)
    site_estimate = estimate(n_classes, with_z, y=drawn.y.astype(float))
    share = np.bincount(drawn.y, minlength=n_classes) / len(drawn.y)
    # Where labels decide, predictions have their mean; the prior moves it by about a label's worth.
    assert site_estimate.marginal == pytest.approx(share, abs=3 / len(drawn.y))


@every
def test_labels_permute_with_the_classes(n_classes, with_z):
    ratios, Z = own(n_classes, with_z)
    prior = prior_of(n_classes, with_z, **DOUBTFUL)
    order = np.arange(n_classes)[::-1].copy()
    g = replace(prior.prevalence, log_marginal=prior.prevalence.log_marginal[order])
    if hasattr(g, "coefficients"):
        g = replace(g, coefficients=g.coefficients[:, order])
    y = partial(site(n_classes).y, 30)
    expected = answers(estimate(n_classes, with_z, y=y), ratios, Z)[:, order]
    other = estimate(
        n_classes, with_z, log_ratio=ratios[:, order], y=n_classes - 1 - y, prior=replace(prior, prevalence=g)
    )
    assert answers(other, ratios[:, order], Z) == pytest.approx(expected, abs=ROUNDING)


@every
def test_weight_two_is_two_labeled_rows(n_classes, with_z):
    ratios, Z = own(n_classes, with_z)
    y = partial(site(n_classes).y, 30)
    weight = np.random.default_rng(0).integers(1, 4, len(y))
    weighted = estimate(n_classes, with_z, y=y, sample_weight=weight)
    repeated = estimate(n_classes, with_z, np.repeat(np.arange(len(y)), weight), y=y)
    assert answers(weighted, ratios, Z) == pytest.approx(answers(repeated, ratios, Z), abs=ROUNDING)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_copies_of_a_label_in_one_group_count_as_one_label(n_classes):
    drawn = site(n_classes)
    y, rows = partial(drawn.y, 40), np.repeat(np.arange(len(drawn.y)), 4)
    once = estimate(n_classes, False, y=y)
    by_groups = estimate(n_classes, False, rows, y=y, groups=rows)
    by_rows = estimate(n_classes, False, rows, y=y)

    def width(found):
        low, high = found.interval()
        return high - low

    assert by_groups.marginal == pytest.approx(once.marginal, abs=0.05 * width(once).max())
    assert width(by_groups) == pytest.approx(width(once), rel=0.15)
    assert (width(by_rows) < 0.75 * width(once)).all()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_with_a_right_f_a_label_is_the_rows_whole_word(n_classes):
    """P(y|x,z) and what x says by itself make P(x, y|z): the label's own likelihood."""
    drawn = site(n_classes)
    prior = prior_of(n_classes, False)
    y = drawn.y.astype(float)
    labeled = estimate(n_classes, False, y=y, prior=prior)
    certain = np.where(np.eye(n_classes)[drawn.y] > 0, 0.0, -200.0)  # f that is certain of the class
    expected = estimate(n_classes, False, log_ratio=certain, prior=prior)
    for found in (labeled, expected):
        assert found.marginal == pytest.approx(np.bincount(drawn.y) / len(y), abs=3 / len(y))
    low, high = labeled.interval()
    wanted_low, wanted_high = expected.interval()
    assert high - low == pytest.approx(wanted_high - wanted_low, rel=0.25)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_label_counts_at_least_as_its_row(n_classes):
    drawn = site(n_classes)
    prior = prior_of(n_classes, False)

    def width(n_known):
        low, high = estimate(n_classes, False, y=partial(drawn.y, n_known), prior=prior).interval()
        return (high - low).max()

    assert width(120) < width(60) < width(0)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("wrong", [0.4, 2.0])
def test_labels_tell_the_slope_of_f(n_classes, wrong):
    """Log-ratios that are off by a factor: with labels, predictions come near those of the right f."""
    family = sw.SimulatedFamily(n_classes=n_classes, levels=(2,), signal=1.5, seed=1)
    drawn = family.site(600, prevalence=ACTUAL[n_classes], seed=3)
    prior = prior_of(n_classes, False, trusted_rows=0.0, slope_scale=0.7)
    truth = np.bincount(drawn.y) / 600
    right = adjust(drawn.log_ratio, np.log(truth))

    def off(n_known):
        y = partial(drawn.y, n_known)
        site_estimate = estimate_prevalence(drawn.log_ratio / wrong, prior=prior, y=y)
        predicted = site_estimate.predict_proba(drawn.log_ratio / wrong)
        return (right * np.log(right / predicted)).sum(1).mean()

    assert off(400) < 0.01
    assert off(400) < 0.3 * off(0)
    fixed = replace(prior, slope_scale=0.0)
    kept = estimate_prevalence(drawn.log_ratio / wrong, prior=fixed, y=partial(drawn.y, 400))
    assert set(kept.prevalence.slope.tolist()) == {1.0}


@every
@pytest.mark.parametrize("n_known", [0, 30])
def test_an_exact_prevalence_is_the_mean_of_the_predictions(n_classes, with_z, n_known):
    ratios, Z = own(n_classes, with_z)
    y = partial(site(n_classes).y, n_known) if n_known else None
    weight = np.random.default_rng(0).integers(1, 4, len(ratios))
    known = {2: (0.5, 0.5), 3: (0.25, 0.5, 0.25)}[n_classes]
    site_estimate = estimate(n_classes, with_z, y=y, sample_weight=weight, known_prevalence=list(known))
    mean = weight @ site_estimate.predict_proba(ratios, Z) / weight.sum()
    assert mean == pytest.approx(known, abs=1e-9)
    assert site_estimate.marginal == pytest.approx(known, abs=1e-9)
    low, high = site_estimate.interval()
    assert low == pytest.approx(known, abs=1e-9)
    assert high == pytest.approx(known, abs=1e-9)


def test_a_prevalence_can_be_said_in_several_ways():
    ratios, Z = own(2, True)
    ways = [0.6, [0.4, 0.6], np.array([0.4, 0.6]), {1: 0.6}, {0: 0.4}, {0: 0.4, 1: 0.6}, pd.Series({0: 0.4, 1: 0.6})]
    first, *others = (answers(estimate(2, True, known_prevalence=way), ratios, Z) for way in ways)
    for other in others:
        assert other == pytest.approx(first, abs=ROUNDING)


@every
def test_an_uncertain_prevalence_is_between_the_rows_and_the_known(n_classes, with_z):
    said = estimate(n_classes, with_z).marginal
    without = said[-1]
    known = without + 0.1
    rest = [(1 - known) * share / (1 - without) for share in said[:-1]]

    def marginal(width):
        entries = dict(enumerate([(share, share - width * share, share + width * share) for share in [*rest, known]]))
        site_estimate = estimate(n_classes, with_z, known_prevalence=entries)
        low, high = site_estimate.interval()
        return site_estimate.marginal[-1], high[-1] - low[-1]

    (narrow, narrow_width), (wide, wide_width) = marginal(0.02), marginal(0.5)
    assert without < wide < narrow < known + 0.01
    assert narrow == pytest.approx(known, abs=0.02)
    assert narrow_width < wide_width


def test_the_rows_prevalence_contradicts_nothing_and_another_does():
    prior = prior_of(2, False)
    said = estimate(2, False, prior=prior)
    low, high = said.interval()
    same = estimate(2, False, prior=prior, known_prevalence=float(said.marginal[1]))
    assert fit_of(same).posterior.against.p_value > 0.5
    with pytest.warns(UserWarning, match=CONTRADICT):
        other = estimate(2, False, prior=prior, known_prevalence=float(low[1]) / 4)
    against = fit_of(other).posterior.against
    assert against.p_value < 0.01
    assert against.without[0].numpy() == pytest.approx(said.marginal, abs=0.02)
    assert [against.without[1, 1], against.without[2, 1]] == pytest.approx([low[1], high[1]], abs=0.02)


def test_a_table_holds_in_every_stratum():
    rng = np.random.default_rng(0)
    n = 300
    Z = pd.DataFrame({"sex": rng.choice(["f", "m"], n), "age": rng.uniform(20, 90, n)})
    y = rng.integers(0, 2, n)
    ratios = rng.normal(size=(n, 2))
    ratios[np.arange(n), y] += 1.0
    schema = sw.Confounders.learn(Z)
    prior = replace(SitePrior(estimate_prevalence(ratios, Z, y=y.astype(float), model="additive").prevalence))

    def estimated(table):
        site_estimate = estimate_prevalence(ratios, Z, prior=prior, confounders=schema, known_prevalence=table)
        return site_estimate, site_estimate.predict_proba(ratios, Z)[:, 1]

    table = pd.DataFrame({"sex": ["f", "m"], "prevalence": [0.5, 0.4]})
    site_estimate, p = estimated(table)
    for sex, wanted in (("f", 0.5), ("m", 0.4)):
        assert p[(Z["sex"] == sex).to_numpy()].mean() == pytest.approx(wanted, abs=1e-9)
    assert site_estimate.marginal[1] == pytest.approx(p.mean(), abs=ROUNDING)
    bands = pd.DataFrame(
        {"age": ["<40", "40-59", "60+"], "sex": ["f", "f", "f"], "prevalence": [0.5, 0.5, 0.6]}
        | {"low": [0.5, 0.4, 0.55], "high": [0.5, 0.6, 0.65]}
    )
    site_estimate, p = estimated(bands)
    young = ((Z["age"] < 40) & (Z["sex"] == "f")).to_numpy()
    assert p[young].mean() == pytest.approx(0.5, abs=1e-9)
    low, high = site_estimate.interval()
    assert low[1] < site_estimate.marginal[1] < high[1]
    assert site_estimate.marginal[1] == pytest.approx(p.mean(), abs=ROUNDING)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("40-59", (40, 59, 59.9), (39.9, 60)),
        ("40 to 60", (40, 60), (61,)),
        ("<40", (-5, 39.9), (40,)),
        ("<=40", (40,), (40.1,)),
        (">80", (80.1,), (80,)),
        ("80+", (80, 1000), (79.9,)),
        ("[40, 60)", (40, 59.9), (60,)),
        ("(40, 60]", (40.1, 60), (40, 60.1)),
        (pd.Interval(40, 60), (40.1, 60), (40, 60.1)),
    ],
)
def test_bands_hold_what_they_say(text, inside, outside):
    band = read_band(text)
    end = band.end({band.low})
    assert all(band.low <= value < end for value in inside)
    assert not any(band.low <= value < end for value in outside)


def test_a_band_ends_where_the_next_begins():
    first, second = read_band("40-60"), read_band("60-80")
    assert first.end({40.0, 60.0}) == second.low
    assert read_band("old") is None


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (1.2, "known_prevalence must be a probability between 0 and 1"),
        (0.0, "known_prevalence must be a probability between 0 and 1"),
        ([0.2, 0.2], "that sum to one"),
        ((0.5, 0.6, 0.7), "known_prevalence must be"),
        ("much", "known_prevalence must be"),
        ({"yes": 0.2}, "no class is 'yes'"),
        (pd.DataFrame({"prevalence": [0.2]}), "needs rows, columns of z"),
        (pd.DataFrame({"z0": [0], "risk": [0.2]}), "needs rows, columns of z"),
        (pd.DataFrame({"z0": [7], "prevalence": [0.2]}), "has no level 7"),
        (pd.DataFrame({"z0": ["level 0", "level 0"], "prevalence": [0.2, 0.3]}), "must not overlap"),
    ],
)
def test_a_prevalence_that_makes_no_sense_is_refused(known, message):
    drawn = site(2)
    if isinstance(known, pd.DataFrame):
        known = known.rename(columns={"z0": next(name for name in drawn.Z if drawn.Z[name].nunique() == 2)})
    with pytest.raises(ValueError, match=message):
        estimate(2, True, known_prevalence=known)


def test_a_known_prevalence_needs_a_prior():
    with pytest.raises(ValueError, match="needs a prior"):
        estimate_prevalence(site(2).log_ratio, known_prevalence=0.2)


def test_labels_of_chunks_are_those_of_all_rows():
    drawn = site(2)
    y, prior = partial(drawn.y, 40), prior_of(2, True, **DOUBTFUL)
    schema = prior.schema
    chunks = [(drawn.log_ratio[part], drawn.Z.iloc[part]) for part in (slice(0, 50), slice(50, 120))]
    site_estimate = estimate_prevalence(chunks, prior=prior, confounders=schema, y=y)
    expected = estimate(2, True, y=y)
    assert answers(site_estimate, *own(2, True)) == pytest.approx(answers(expected, *own(2, True)), abs=ROUNDING)


def test_labels_must_be_as_many_as_rows():
    drawn = site(2)
    with pytest.raises(ValueError, match="y must have one entry a row"):
        estimate_prevalence(drawn.log_ratio, prior=list(EXPECTED[2]), y=drawn.y[:5].astype(float))
