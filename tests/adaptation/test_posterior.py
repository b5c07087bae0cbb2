"""Laws of the posterior of a site's g: estimates with a prior (section 18 of docs/maths.md)."""

from dataclasses import replace
from functools import cache, cached_property

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit, log_softmax
from scipy.stats import norm
from scipy.stats import t as student

import sitewise as sw
from sitewise.adaptation import adjust, estimate_prevalence
from sitewise.adaptation.posterior.deviation import SIZES, average_sizes
from sitewise.adaptation.posterior.fit import KEPT, choose_points, tilt
from sitewise.adaptation.posterior.levels import REACH
from sitewise.prevalence import SitePrior
from sitewise.prevalence.base import ConstantPrevalence
from sitewise.prevalence.prior import FREEDOM, USUAL_LEVEL

SAYS_NOTHING = "the log-ratios are not informative about y here"
EXPECTED = {2: (0.8, 0.2), 3: (0.6, 0.3, 0.1)}  # of the prior
ACTUAL = {2: (0.4, 0.6), 3: (0.2, 0.5, 0.3)}  # at the site
DOUBTFUL = {"level_error": 0.4, "slope": 0.7, "n_source": 150.0, "missing": 0.6, "trusted_rows": 300.0}
ROUNDING = 1e-6  # solvers stop short of the last bits

both = pytest.mark.parametrize("n_classes", [2, 3])
with_and_without_z = pytest.mark.parametrize("with_z", [False, True], ids=["without z", "with z"])


@cache
def site(n_classes, n_rows=150, prevalence=None, dependence=-1.0, seed=5, signal=2.0):
    """A simulated site; its relation of z and y is the reverse of that at the source."""
    family = sw.SimulatedFamily(n_classes=n_classes, levels=(2,), signal=signal, seed=1)
    shares = ACTUAL[n_classes] if prevalence is None else prevalence
    return family.site(n_rows, prevalence=shares, dependence=dependence, seed=seed)


@cache
def source(n_classes):
    """Another site's estimate, which depends on z."""
    there = site(n_classes, 400, EXPECTED[n_classes], 1.0, 0)
    return estimate_prevalence(there.log_ratio, there.Z, model="additive")


def prior_of(n_classes, with_z, **numbers):
    """The prior: a g that depends on z, or the same for all."""
    log_level = torch.tensor(EXPECTED[n_classes], dtype=torch.float64).log()
    return SitePrior(source(n_classes).prevalence if with_z else ConstantPrevalence(log_level), **numbers)


def permuted(prior, order):
    """The prior of classes in another order."""
    g = replace(prior.prevalence, log_marginal=prior.prevalence.log_marginal[order])
    if hasattr(g, "coefficients"):
        g = replace(g, coefficients=g.coefficients[:, order])
    return replace(prior, prevalence=g)


def as_trained(prior, log_ratio, Z):
    """P(y|x,z) by the prior's own g."""
    if Z is None:
        return adjust(log_ratio, prior.prevalence.log_marginal.numpy())
    codes = prior.schema.encode(Z)[0]
    return adjust(log_ratio, prior.log_prob(codes).numpy())


def answers(estimate, log_ratio, Z):
    """All that an estimate says: of the site and of some rows."""
    low, high = estimate.interval()
    return np.vstack([estimate.marginal, low, high, estimate.predict_proba(log_ratio, Z)])


def assert_same(estimate, other, log_ratio, Z):
    """Both say the same of the site and of these rows."""
    assert answers(estimate, log_ratio, Z) == pytest.approx(answers(other, log_ratio, Z), abs=ROUNDING)


class Case:
    """A site's rows with a prior, to be estimated from again and again."""

    def __init__(self, n_classes, with_z, doubtful):
        drawn = site(n_classes)
        self.log_ratio, self.Z = drawn.log_ratio, drawn.Z if with_z else None
        self.prior = prior_of(n_classes, with_z, **(DOUBTFUL if doubtful else {}))

    @cached_property
    def whole(self):
        """The estimate from all rows as they are."""
        return self.estimate()

    def estimate(self, rows=None, log_ratio=None, prior=None, **options):
        """From some of the rows, by their numbers."""
        rows = np.arange(len(self.log_ratio)) if rows is None else rows
        ratios = self.log_ratio if log_ratio is None else log_ratio
        Z = None if self.Z is None else self.Z.iloc[rows]
        return estimate_prevalence(ratios[rows], Z, prior=prior or self.prior, **options)


@pytest.fixture(
    scope="module",
    params=[(2, False, False), (2, False, True), (2, True, False), (2, True, True), (3, False, True), (3, True, True)],
    ids=lambda at: f"{at[0]} classes with{'' if at[1] else 'out'} z{', doubtful' if at[2] else ''}",
)
def case(request):
    return Case(*request.param)


@both
@with_and_without_z
def test_no_evidence_is_the_prior(n_classes, with_z):
    Z = site(n_classes).Z if with_z else None
    prior = source(n_classes) if with_z else EXPECTED[n_classes]
    silent = np.zeros((150, n_classes))
    with pytest.warns(UserWarning, match=SAYS_NOTHING):
        estimate = estimate_prevalence(silent, Z, prior=prior)
    expected = np.exp(source(n_classes).log_prevalence(Z)).mean(0) if with_z else EXPECTED[n_classes]
    assert estimate.predict_proba(silent, Z).mean(0) == pytest.approx(expected, abs=ROUNDING)
    assert estimate.marginal == pytest.approx(expected, abs=ROUNDING)


@both
@with_and_without_z
def test_next_to_no_evidence_is_next_to_the_prior(n_classes, with_z):
    Z = site(n_classes).Z if with_z else None
    prior = source(n_classes) if with_z else EXPECTED[n_classes]
    whisper = 1e-9 * np.random.default_rng(0).normal(size=(150, n_classes))
    estimate = estimate_prevalence(whisper, Z, prior=prior)
    expected = adjust(whisper, source(n_classes).log_prevalence(Z) if with_z else np.log(EXPECTED[n_classes])).mean(0)
    assert estimate.predict_proba(whisper, Z).mean(0) == pytest.approx(expected, abs=ROUNDING)


@both
@with_and_without_z
@pytest.mark.parametrize("numbers", [{}, {"slope": 0.5, "level_error": 0.7}], ids=["f as it is", "f discounted"])
def test_rows_that_are_not_trusted_leave_the_mean_as_trained(n_classes, with_z, numbers):
    drawn = site(n_classes)
    Z = drawn.Z if with_z else None
    prior = prior_of(n_classes, with_z, trusted_rows=0.0, **numbers)
    estimate = estimate_prevalence(drawn.log_ratio, Z, prior=prior)
    expected = as_trained(prior, drawn.log_ratio, Z).mean(0)
    assert estimate.predict_proba(drawn.log_ratio, Z).mean(0) == pytest.approx(expected, abs=ROUNDING)
    trusted = estimate_prevalence(drawn.log_ratio, Z, prior=replace(prior, trusted_rows=float("inf")))
    moved = trusted.predict_proba(drawn.log_ratio, Z).mean(0) - expected
    assert np.abs(moved).max() > 0.05  # the same rows are evidence against it, if they are used


def test_rows_that_are_not_trusted_leave_the_mean_of_many_rows_as_trained():
    """Of more rows than the prior is located with (4096)."""
    drawn = site(2, 9000)
    prior = prior_of(2, False, trusted_rows=0.0)
    estimate = estimate_prevalence(drawn.log_ratio, prior=prior)
    expected = as_trained(prior, drawn.log_ratio, None).mean(0)
    assert estimate.predict_proba(drawn.log_ratio).mean(0) == pytest.approx(expected, abs=ROUNDING)


def test_weight_two_is_two_rows(case):
    weight = np.random.default_rng(0).integers(1, 4, len(case.log_ratio))
    rows = np.repeat(np.arange(len(weight)), weight)
    weighted, repeated = case.estimate(sample_weight=weight), case.estimate(rows)
    assert_same(weighted, repeated, case.log_ratio, case.Z)


def test_the_order_of_rows_changes_nothing(case):
    for seed in range(1 if case.prior.prevalence.log_marginal.numel() > 2 else 3):
        order = np.random.default_rng(seed).permutation(len(case.log_ratio))
        assert_same(case.estimate(order), case.whole, case.log_ratio, case.Z)


def test_a_constant_added_to_a_row_changes_nothing(case):
    shift = 5 * np.random.default_rng(0).normal(size=(len(case.log_ratio), 1))
    moved = case.estimate(log_ratio=case.log_ratio + shift)
    assert_same(moved, case.whole, case.log_ratio, case.Z)
    again = moved.predict_proba(case.log_ratio + shift, case.Z)
    assert again == pytest.approx(moved.predict_proba(case.log_ratio, case.Z))


def test_permuted_classes_permute_the_answer(case):
    n_classes = case.log_ratio.shape[1]
    for order in (np.roll(np.arange(n_classes), 1), np.arange(n_classes)[::-1].copy())[: n_classes - 1]:
        ratios = case.log_ratio[:, order]
        other = case.estimate(log_ratio=ratios, prior=permuted(case.prior, torch.tensor(order)))
        expected = answers(case.whole, case.log_ratio, case.Z)[:, order]
        assert answers(other, ratios, case.Z) == pytest.approx(expected, abs=ROUNDING)


@both
@with_and_without_z
def test_many_informative_rows_give_maximum_likelihood(n_classes, with_z):
    n_rows = 3000 // (2 * n_classes - 3)  # more classes take longer
    drawn = site(n_classes, n_rows, signal=3.0)
    Z = drawn.Z if with_z else None
    model = "additive" if with_z else "constant"
    likeliest = estimate_prevalence(drawn.log_ratio, Z, model=model)
    estimate = estimate_prevalence(drawn.log_ratio, Z, prior=prior_of(n_classes, with_z))
    low, high = estimate.interval()
    # Student's log-density is no steeper than 2 / (sqrt(3) 1.5) = 0.8 in log-odds, less than one label can be. Rows
    # carry most of a label's information here, so that it moves P(y) by about 1/n. Samples add a part of the width.
    margin = 3 / n_rows + 0.1 * (high - low)
    assert (np.abs(estimate.marginal - likeliest.marginal) < margin).all()
    assert (np.abs(np.subtract(EXPECTED[n_classes], likeliest.marginal)) > 5 * margin).all()


def brute_force(log_ratio, prior, level_error=0.0, n_source=np.inf, missing=1.0):
    """Mean of P(y=1), averaged predictions and 95% bounds: two classes, no z, on a fine grid of log-odds.

    The prior is Student's, cut off where the library looks no further, and so located that predictions over it
    average to the mean of the model as trained.
    """
    score, n_rows = log_ratio[:, 1] - log_ratio[:, 0], len(log_ratio)
    step = 0.02
    odds = np.arange(-30, 30 + step, step)
    share = expit(odds)
    trained = np.log(prior[1] / prior[0])
    predicted = expit(score[:, None] + odds) if n_rows <= 200 else None
    mean = predicted.mean(0) if predicted is not None else np.array([expit(score + at).mean() for at in odds])

    def log_prior(centre):
        away = odds - centre
        return np.where(np.abs(away) <= REACH, student.logpdf(away / USUAL_LEVEL, FREEDOM), -np.inf)

    def weights(log_weight):
        found = np.exp(log_weight - log_weight.max())
        return found / found.sum()

    target = expit(score + trained).mean()
    centre = brentq(lambda at: weights(log_prior(at)) @ mean - target, trained - 8, trained + 8, xtol=1e-6)
    log_f = log_softmax(log_ratio, axis=1)
    log_likelihood = np.zeros_like(odds)
    for at in log_f:
        log_likelihood += np.logaddexp(at[0] + np.log1p(-share), at[1] + np.log(share))
    log_likelihood /= 1 + n_rows * missing / n_source
    if level_error:
        reach = np.arange(-8 * level_error, 8 * level_error + step / 2, step)
        likelihood = np.convolve(np.exp(log_likelihood - log_likelihood.max()), norm.pdf(reach / level_error), "same")
        log_likelihood = np.log(np.maximum(likelihood, 1e-300))
    weight = weights(log_prior(centre) + log_likelihood)
    averaged = np.array([weight @ expit(at + odds) for at in score])
    bounds = np.interp([0.025, 0.975], np.cumsum(weight) - weight / 2, share)
    return weight @ share, averaged, bounds


@pytest.mark.parametrize(
    "numbers",
    [{}, {"level_error": 0.5}, {"n_source": 100.0, "missing": 0.5}],
    ids=["f right", "level off", "f estimated"],
)
@pytest.mark.parametrize("n_rows", [20, 200, 2000])
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_the_posterior_is_that_of_a_fine_grid(n_rows, numbers, share):
    drawn = site(2, n_rows, (1 - share, share), seed=n_rows, dependence=1.0)
    estimate = estimate_prevalence(drawn.log_ratio, prior=prior_of(2, False, **numbers))
    mean, averaged, bounds = brute_force(drawn.log_ratio, EXPECTED[2], **numbers)
    low, high = estimate.interval()
    assert estimate.marginal[1] == pytest.approx(mean, abs=2e-3)
    assert estimate.predict_proba(drawn.log_ratio)[:, 1] == pytest.approx(averaged, abs=6e-3)  # 64 points of it
    assert [low[1], high[1]] == pytest.approx(bounds.tolist(), abs=0.01)


def test_level_and_factor_are_those_of_a_fine_grid():
    drawn = site(2, 1000, (0.5, 0.5), 0.5)
    flat = prior_of(2, True)
    codes = flat.schema.encode(drawn.Z)[0]
    n_features = flat.prevalence.features(codes).shape[1]
    prior = replace(flat, deviation=torch.zeros(n_features, dtype=torch.float64))
    points = estimate_prevalence(drawn.log_ratio, drawn.Z, prior=prior).prevalence

    log_g = flat.log_prob(codes).numpy()
    shape, score = log_g[:, 1] - log_g[:, 0], drawn.log_ratio[:, 1] - drawn.log_ratio[:, 0]
    factor, level = np.linspace(-1.5, 3.5, 201), np.linspace(-6, 6, 301)
    log_density = np.empty((len(factor), len(level)))
    for at, row in zip(factor, log_density, strict=True):
        share = expit((at * (shape - shape.mean()))[:, None] + level)
        row[:] = np.log1p(share * np.expm1(score)[:, None]).sum(0) - 0.5 * ((at - 1) / prior.factor_scale) ** 2
    away = level - float(points.centre[1] - points.centre[0])  # where the prior lies hardly matters to 1,000 rows
    log_density += student.logpdf(away / USUAL_LEVEL, FREEDOM)
    weight = np.exp(log_density - log_density.max()).sum(1)
    mean = weight @ factor / weight.sum()
    deviation = np.sqrt(weight @ (factor - mean) ** 2 / weight.sum())
    found = float(points.weight @ points.factor)
    spread = float((points.weight @ (points.factor - found) ** 2).sqrt())
    assert found == pytest.approx(mean, abs=0.1 * deviation)
    assert spread == pytest.approx(deviation, rel=0.1)


def test_a_size_is_weighed_by_how_well_it_predicts():
    variance, curvature, best = 0.09, 40.0, 0.5  # of the prior, and the likelihood's curvature and maximum
    at = np.linspace(-8, 8, 400_001)
    likelihood = norm.pdf(at, best, curvature**-0.5)
    sizes = [np.zeros_like(at) if size == 0 else norm.pdf(at, 0, size * variance**0.5) for size in SIZES]
    sizes[SIZES.index(0.0)][np.abs(at).argmin()] = 1.0 / (at[1] - at[0])
    posterior = likelihood * sum(sizes)
    posterior /= posterior.sum()
    mean = posterior @ at
    mode = best * curvature / (curvature + 1.0 / variance)
    one = torch.ones(1, dtype=torch.float64)
    average = average_sizes((curvature + 1.0 / variance) * one[None], mode * one, variance * one)
    assert float(average.mean) == pytest.approx(mean, rel=1e-3)
    assert float(average.covariance) == pytest.approx(posterior @ (at - mean) ** 2, rel=1e-3)


def test_a_deviation_that_rows_say_nothing_of_is_the_prior():
    variance = torch.tensor([0.1, 0.4], dtype=torch.float64)
    average = average_sizes(torch.diag(1.0 / variance), torch.zeros(2, dtype=torch.float64), variance)
    expected = variance * np.square(SIZES).mean()
    assert torch.equal(average.mean, torch.zeros(2, dtype=torch.float64))
    assert torch.allclose(average.covariance, torch.diag(expected))
    assert torch.allclose(average.variance, expected)


def test_an_estimate_is_of_sound_probabilities(case):
    estimate = case.whole
    probability = estimate.predict_proba(case.log_ratio, case.Z)
    assert probability.sum(1) == pytest.approx(1.0)
    assert (probability > 0).all()
    certain = np.zeros((2, case.log_ratio.shape[1]))
    certain[0, 0] = certain[1, 1] = 300.0  # as good as certain, but not quite
    assert (estimate.predict_proba(certain, None if case.Z is None else case.Z.iloc[:2]) > 0).all()
    for level in (0.5, 0.95):
        low, high = estimate.interval(level=level)
        assert (low <= estimate.marginal).all()
        assert (estimate.marginal <= high).all()
        assert (low >= 0).all()
        assert (high <= 1).all()
    assert len(estimate.prevalence) <= KEPT == 64
    assert float(estimate.prevalence.weight.sum()) == pytest.approx(1.0)


def test_draws_have_the_mean_of_the_points(case):
    estimate = case.whole
    draws = estimate.draws(4000, random_state=0).marginal
    error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - estimate.marginal) < 4 * error).all()
    low, high = estimate.interval()
    inside = ((draws > low) & (draws < high)).mean(0)
    assert (inside > 0.85).all()


@both
def test_tilted_weights_reach_the_mean_that_is_wanted(n_classes):
    rng = np.random.default_rng(0)
    values = torch.tensor(rng.dirichlet(np.ones(n_classes), 64))
    weight = torch.tensor(rng.dirichlet(np.ones(64)))
    wanted = torch.tensor(EXPECTED[n_classes], dtype=torch.float64)
    values, wanted = values[:, 1:], wanted[1:]
    tilted = tilt(weight, values, wanted)
    assert float(tilted.sum()) == pytest.approx(1.0)
    assert (tilted > 0).all()
    assert (tilted @ values).numpy() == pytest.approx(wanted.numpy(), abs=1e-9)
    assert tilt(weight, values, weight @ values).numpy() == pytest.approx(weight.numpy(), abs=1e-9)
    assert tilt(weight, values, 0.0 * wanted) is None  # no weights of these values have this mean


@both
def test_points_that_are_kept_represent_all(n_classes):
    rng = np.random.default_rng(0)
    mean = torch.tensor(rng.dirichlet(np.full(n_classes, 5.0), 1000))
    weight, factor = torch.tensor(rng.dirichlet(np.ones(1000))), torch.tensor(rng.normal(size=1000))
    kept, share = choose_points(mean, weight, factor)
    assert len(kept) == len(share) <= KEPT
    assert float(share.sum()) == pytest.approx(1.0)
    widest = int((weight @ (mean - weight @ mean) ** 2).argmax())
    spread = float((weight @ (mean - weight @ mean) ** 2)[widest] ** 0.5)
    # Strata a tenth of a standard deviation wide, each of them stood for by a point inside of it.
    assert float((share @ mean[kept])[widest]) == pytest.approx(float((weight @ mean)[widest]), abs=0.05 * spread)
    heavy = torch.arange(1000) % 50 == 0  # a few points that carry nearly all, among many that carry next to nothing
    kept_of_few, share_of_few = choose_points(mean, torch.where(heavy, 1.0, 1e-6).double() / 20.00098, factor)
    assert float(share_of_few[~heavy[kept_of_few]].sum()) < 1e-3
    order = torch.tensor(rng.permutation(1000))
    again, same_share = choose_points(mean[order], weight[order], factor[order])
    assert torch.equal(mean[order][again], mean[kept])
    assert torch.equal(same_share, share)


@both
def test_copies_in_one_group_count_as_one_row(n_classes):
    drawn = site(n_classes, 120)
    rows = np.repeat(np.arange(120), 5)
    once, by_groups, by_rows = (
        estimate_prevalence(ratios, prior=EXPECTED[n_classes], **options)
        for ratios, options in (
            (drawn.log_ratio, {}),
            (drawn.log_ratio[rows], {"groups": rows}),
            (drawn.log_ratio[rows], {}),
        )
    )

    def width(estimate):
        low, high = estimate.interval()
        return high - low

    # The design effect of copies is their number, but for n / (n - 1) of sampling whole groups.
    assert by_groups.marginal == pytest.approx(once.marginal, abs=0.05 * width(once).max())
    assert width(by_groups) == pytest.approx(width(once), rel=0.05)
    assert width(by_rows) == pytest.approx(width(once) / 5**0.5, rel=0.15)


@both
@with_and_without_z
def test_known_labels_move_the_answer_where_f_says_nothing(n_classes, with_z):
    n_rows = 150
    drawn = site(n_classes, n_rows)
    Z, labels = drawn.Z if with_z else None, drawn.y.astype(float)
    share = np.bincount(drawn.y, minlength=n_classes) / n_rows
    prior = prior_of(n_classes, with_z)
    silent = 1e-9 * np.random.default_rng(0).normal(size=(n_rows, n_classes))

    def marginal_given(known):
        return estimate_prevalence(silent, Z, prior=prior, y=np.where(known, labels, np.nan)).marginal

    number = np.arange(n_rows)
    of_last = number[labels == n_classes - 1]
    before, few, all_but_one, everything = (
        marginal_given(known) for known in (number < 0, np.isin(number, of_last[:5]), number > 0, number >= 0)
    )
    # The prior's slope is less than a label's (0.8 against 1 in log-odds): it moves shares by about 1 / n.
    assert all_but_one == pytest.approx(share, abs=5 / n_rows)
    assert everything == pytest.approx(share, abs=5 / n_rows)
    assert np.abs(before - share).max() > 0.15
    assert before[-1] + 0.2 < few[-1] < 1  # five labels, all of one class


@both
def test_known_labels_count_where_rows_are_not_trusted(n_classes):
    drawn = site(n_classes, 300)
    labels = np.where(np.arange(300) < 200, drawn.y, np.nan)
    share = np.bincount(drawn.y[:200], minlength=n_classes) / 200
    prior = prior_of(n_classes, False, trusted_rows=0.0)
    estimate = estimate_prevalence(drawn.log_ratio, prior=prior, y=labels)
    # The score of a level is zero where predictions of labeled rows have their mean; the prior moves it by about 1 / n.
    assert estimate.predict_proba(drawn.log_ratio[:200]).mean(0) == pytest.approx(share, abs=5 / 200)
