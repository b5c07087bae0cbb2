"""Rows of one patient: p-values by groups are those of patients, not of rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom

import sitewise as sw
from sitewise.confounders import Confounders
from sitewise.diagnosis.diagnose import diagnose_site, matched, run_tests
from sitewise.diagnosis.identification import draw_calibrations, information_gain, slope_in_errors
from sitewise.diagnosis.matching import RIDGE
from sitewise.diagnosis.reliability import calibration_error
from sitewise.diagnosis.samples import SourceSample, TargetSample, add_up, scatter
from sitewise.diagnosis.stability import make_strata

TESTS = ("stability", "representation", "mixture", "calibration")


def alone(sample):
    """The same rows, each a group of its own."""
    return replace(sample, groups=torch.arange(len(sample.weight)))


def repeated(sample, times, *, grouped=True):
    """Every row several times, the copies in one group; numbers of groups are in no order."""
    n_rows = len(sample.weight)
    rows = torch.arange(n_rows).repeat_interleave(times)
    groups = torch.randperm(n_rows, generator=torch.Generator().manual_seed(0))[rows] if grouped else None
    copies = replace(sample.take(rows), groups=groups)
    return replace(copies, features=sample.features[rows], feature_rows=torch.arange(len(rows)))


def p_values(held, site, estimate):
    diagnosis = diagnose_site(held, site, estimate)
    return np.array([diagnosis[name].p_value for name in TESTS])


def test_a_scatter_over_groups_is_that_of_their_sums():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    groups = torch.randint(5, 17, (50,), generator=generator)
    sums = torch.stack([scores[groups == g].sum(0) for g in torch.unique(groups)])
    torch.testing.assert_close(add_up(scores, groups), sums)
    factor = len(sums) / (len(sums) - 1)
    torch.testing.assert_close(scatter(scores, groups), factor * sum(torch.outer(s, s) for s in sums))


def test_one_group_alone_tells_nothing_about_groups():
    scores = torch.randn(20, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.equal(scatter(scores, torch.full((20,), 7)), scatter(scores, None))


def test_a_patients_leverage_is_what_leaving_the_patient_out_shows(draw_samples):
    """(I - H)⁻¹ 1 = 1 / (1 - h) for the rows of one patient, who have the same z and class: CR3, block by block."""
    held, site, estimate = draw_samples(3, n=300, m=300)
    both = matched(repeated(held, 3), repeated(site, 3), estimate)
    functions = torch.randn(900, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    leverage = both.residuals(functions, functions)[2][:, 0]
    for patient in range(0, 300, 10):
        rows = (both.source_groups == patient).nonzero().flatten()
        alike = (both.y == both.y[rows[0]]).nonzero().flatten()
        design, weight = both.source_features[alike], both.source_weight[alike]
        gram = design.T @ (weight[:, None] * design)
        gram = gram + RIDGE * weight.sum() * torch.eye(len(gram), dtype=torch.float64)
        mine, own = both.source_features[rows], both.source_weight[rows]
        hat = mine @ torch.linalg.solve(gram, mine.T * own)
        ones = torch.ones(3, dtype=torch.float64)
        pulled = torch.linalg.solve(torch.eye(3, dtype=torch.float64) - hat, ones)
        torch.testing.assert_close(1 / (1 - leverage[rows]), pulled)


def test_groups_of_one_row_are_no_groups(draw_samples):
    held, site, estimate = draw_samples(0, n=600, m=1000)
    plain, grouped = (matched(*both, estimate) for both in ((held, site), (alone(held), alone(site))))
    torch.testing.assert_close(plain.effective_rows(), grouped.effective_rows())
    functions = held.features[:, :3].double(), site.features[:, :3].double()
    before, after = plain.compare(*functions), grouped.compare(*functions)
    torch.testing.assert_close(before.mean, after.mean)
    source_part = before.covariance - scatter_of_target(plain, *functions)
    expected = source_part * 1000 / 999 + scatter_of_target(plain, *functions) * 600 / 599
    torch.testing.assert_close(after.covariance, expected)
    np.testing.assert_allclose(
        p_values(held, site, estimate), p_values(alone(held), alone(site), estimate), rtol=0.02, atol=1e-4
    )


def scatter_of_target(both, source, target):
    _, own, _ = both.residuals(source, target)
    parts = both.target_weight[:, None] * (own - both.target_weight @ own)
    return parts.T @ parts


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_row_that_comes_again_and_again_is_one_row(draw_samples, n_classes):
    held, site, estimate = draw_samples(1, n=400, m=900, move=0.15, n_classes=n_classes)
    once = p_values(alone(held), alone(site), estimate)
    again = p_values(repeated(held, 4), repeated(site, 4), estimate)
    np.testing.assert_allclose(again, once, rtol=1e-3)
    taken_for_rows = p_values(repeated(held, 4, grouped=False), repeated(site, 4, grouped=False), estimate)
    assert (taken_for_rows[:2] < 0.2 * once[:2]).all()


def test_one_sample_may_have_groups_and_the_other_none(draw_samples):
    held, site, estimate = draw_samples(1, n=400, m=900, move=0.15)
    once = run_tests(held, site, estimate)[0].p_value
    assert run_tests(held, repeated(site, 4), estimate)[0].p_value == pytest.approx(once, rel=0.02)
    assert run_tests(repeated(held, 4), site, estimate)[0].p_value == pytest.approx(once, rel=0.02)


def test_a_few_patients_are_few_however_many_rows_they_have(draw_samples):
    held, site, estimate = draw_samples(0, n=600, m=1000)
    groups = torch.arange(1000) % 40
    diagnosis = diagnose_site(replace(held, groups=groups), site, estimate)
    assert "50 held-out groups of every class ([40, 40] here)" in diagnosis["stability"].sentence
    diagnosis = diagnose_site(held, replace(site, groups=torch.arange(600) % 19), estimate)
    assert "20 groups of the site with the same parts of z (19 here)" in diagnosis["stability"].sentence
    assert diagnosis["mixture"].severity == "unknown"


def test_the_calibrations_doubt_is_that_of_patients(draw_samples):
    held, _, _ = draw_samples(2, m=600)
    again = repeated(held, 6)
    once, grouped, rows = (
        slope_in_errors(held.calibration, draw_calibrations(sample, 0))
        for sample in (held, again, replace(again, groups=None))
    )
    assert grouped == pytest.approx(once, rel=0.35)
    assert rows > 1.7 * grouped
    assert information_gain(again) == pytest.approx(information_gain(alone(held)))
    everyone = replace(held, groups=torch.zeros(600, dtype=torch.int64))
    assert len(draw_calibrations(everyone, 0)) == len(draw_calibrations(held, 0))
    assert information_gain(everyone) == information_gain(held)


def test_labels_that_patients_share_are_no_miscalibration():
    """Rows of a patient have one label; the p-values are spread as they should be only by groups."""
    rng = np.random.default_rng(0)
    alarms = np.zeros(2)
    for _ in range(100):
        own = rng.uniform(0.1, 0.9, 150).repeat(8)
        y = torch.tensor((rng.random(150).repeat(8) < own).astype(int))
        p = torch.tensor(own + rng.uniform(-1e-6, 1e-6, 1200))
        groups = torch.arange(150).repeat_interleave(8)
        for i, given in enumerate((groups, None)):
            error = calibration_error(torch.stack([1 - p, p], dim=1), y, torch.ones(1200).double(), given)
            alarms[i] += error.p_value(0) < 0.05
    assert alarms[0] <= 12
    assert alarms[1] >= 90


def test_the_findings_say_that_they_are_by_groups(draw_samples):
    held, site, estimate = draw_samples(0, n=300, m=500)
    diagnosis = diagnose_site(repeated(held, 2), repeated(site, 3), estimate)
    assert diagnosis["stability"].details["held_out_groups"] == 500
    assert diagnosis["stability"].details["groups"] == diagnosis["identification"].details["groups"] == 300
    assert "by groups" in diagnosis["stability"].sentence
    assert "by groups" in diagnosis["representation"].sentence
    assert "900 rows of 300 groups" in diagnosis["identification"].sentence
    assert "On 1000 held-out rows of 500 groups" in diagnosis["calibration"].sentence
    plain = diagnose_site(held, site, estimate)
    assert "groups" not in str(plain) + str(plain.to_dict())


def patients(family, rng, n_patients, likeness, **settings):
    """Rows of patients with 4 to 10 images each: y, z and a part of the noise in x are the patient's own."""
    site = family.site(n_patients, seed=int(rng.integers(2**31)), **settings)
    means = family.means(site.Z)[np.arange(n_patients), site.y]
    rows = np.arange(n_patients).repeat(rng.integers(4, 11, n_patients))
    noise = rng.normal(size=(len(rows), means.shape[1]))
    X = means[rows] + likeness**0.5 * (site.X - means)[rows] + (1 - likeness) ** 0.5 * noise
    Z = site.Z.iloc[rows].reset_index(drop=True)
    return X, family.log_ratio(X, Z), site.y[rows], Z, site.log_prevalence[rows], rows


def patient_samples(seed, likeness=0.8):
    rng = np.random.default_rng(seed)
    family = sw.SimulatedFamily(seed=seed % 3, signal=2.0)
    source = patients(family, rng, 500, likeness, dependence=0.6)
    target = patients(family, rng, 200, likeness, dependence=-0.2)
    schema = Confounders.learn(source[3])
    calibration = sw.calibrate_log_ratio(source[1], source[2], source[4], method="vector")
    codes, own = (schema.encode(part[3], quiet=True)[0] for part in (source, target))
    here = calibration(target[1])
    estimate = sw.estimate_prevalence(here, target[3], confounders=schema, groups=target[5], model="additive")
    ones, everything = (torch.ones(len(part[2])).double() for part in (source, target))
    every = everything.bool()
    raw, prior, y, features = (torch.tensor(source[i]) for i in (1, 4, 2, 0))
    held = SourceSample(
        raw_log_ratio=raw,
        calibration=calibration,
        log_prevalence=prior,
        y=y,
        codes=codes,
        weight=ones,
        features=features,
        feature_rows=torch.arange(len(y)),
    )
    site = TargetSample(
        log_ratio=torch.tensor(here),
        codes=own,
        weight=everything,
        tested=every,
        supported=every,
        features=torch.tensor(target[0]),
        feature_rows=torch.arange(len(here)),
    )
    return replace(held, groups=torch.tensor(source[5])), replace(site, groups=torch.tensor(target[5])), estimate


def test_images_of_one_patient_raise_no_false_alarm():
    """Sites where the assumption holds: alarms at 5% by groups, and by rows."""
    n_sites, alarms = 24, np.zeros((2, 2))
    for seed in range(n_sites):
        held, site, estimate = patient_samples(seed)
        for i, both in enumerate(((held, site), (replace(held, groups=None), replace(site, groups=None)))):
            alarms[i] += [test.p_value < 0.05 for test in run_tests(*both, estimate)]
    assert (alarms[0] <= binom.isf(0.005, n_sites, 0.05)).all(), alarms
    assert (alarms[1] >= 0.5 * n_sites).all(), alarms


def test_few_patients_of_a_stratum_are_few_and_a_class_at_nothing_is_floored_by_patients(draw_samples):
    held, site, estimate = draw_samples(3, n=300, m=600)
    schema = estimate.confounders
    few = torch.where(site.codes[:, 1] == 1, 0, torch.arange(300))  # one patient has all rows of a level
    counted = [make_strata(held.codes, site.codes, schema, None, groups)[1].shape[1] for groups in (None, few)]
    assert counted[1] == counted[0] - 1
    nobody = replace(estimate, prevalence=Nobody())
    once, again = (matched(held, sample, nobody) for sample in (site, repeated(site, 4)))
    torch.testing.assert_close(again.prevalence[::4], once.prevalence)


class Nobody:
    """A g of which the last class has next to nothing."""

    name = "nobody"

    def log_prob(self, codes):
        return torch.tensor([0.0, -30.0], dtype=torch.float64).expand(len(codes), 2)
