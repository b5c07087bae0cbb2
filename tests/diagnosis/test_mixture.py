"""Whether a site can be a mixture of the classes: with normal x given y, where f and everything about it is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import sitewise as sw
from sitewise.diagnosis.mixture import check_mixture
from sitewise.diagnosis.samples import SourceSample, TargetSample


def log_ratio(x, centres):
    """log f of classes that are normal around their centres, (n, K)."""
    return torch.tensor(-0.5 * (x[:, None] - np.asarray(centres)) ** 2)


def held_out(centres, n, rng):
    """As many rows of each class."""
    y = np.repeat(np.arange(len(centres)), n)
    even = torch.full((len(y), len(centres)), 1 / len(centres), dtype=torch.float64).log()
    ratio = log_ratio(rng.normal(size=len(y)) + np.asarray(centres)[y], centres)
    nothing = sw.calibrate_log_ratio(ratio.numpy(), y, even.numpy(), method="none")
    codes, weight = torch.zeros(len(y), 0, dtype=torch.float64), torch.ones(len(y), dtype=torch.float64)
    return SourceSample(
        raw_log_ratio=ratio, calibration=nothing, log_prevalence=even, y=torch.tensor(y), codes=codes, weight=weight
    )


def at_site(x, centres):
    """A site's rows and its estimate."""
    ratio, everything = log_ratio(x, centres), torch.ones(len(x), dtype=torch.bool)
    codes, weight = torch.zeros(len(x), 0, dtype=torch.float64), torch.ones(len(x), dtype=torch.float64)
    rows = TargetSample(log_ratio=ratio, codes=codes, weight=weight, tested=everything, supported=everything)
    return rows, sw.estimate_prevalence(ratio, model="constant")


@pytest.mark.parametrize("share", [0.0, 0.03])
def test_false_alarms_are_as_rare_as_the_level_says(share):
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(300):
        held = held_out((0.0, 1.0), 150, rng)
        x = rng.normal(size=600) + (rng.random(600) < share)
        p_values.append(check_mixture(held, *at_site(x, (0.0, 1.0))).p_value)
    assert np.mean(np.array(p_values) < 0.05) < 0.08
    assert np.mean(np.array(p_values) < 0.01) < 0.03


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_rows_that_moved_away_from_a_class_have_no_prevalence_that_explains_them(order):
    rng = np.random.default_rng(1)
    centres = np.array([0.0, 1.0])[list(order)]
    finding = check_mixture(held_out(centres, 300, rng), *at_site(rng.normal(size=1500) - 0.5, centres))
    assert finding.severity == "stop"
    assert finding.p_value < 1e-6
    assert finding.details["class"] == order.index(1)
    # E[t] by a quadrature of its own: t = 1 / (1 + exp(1/2 - x)), x around 0 and around -1/2.
    x, mass = np.polynomial.hermite_e.hermegauss(60)
    before, after = (mass @ (1 / (1 + np.exp(0.5 - x - move))) / mass.sum() for move in (0.0, -0.5))
    assert finding.details["shortfall"] == pytest.approx(1 - after / before, abs=0.06)


def test_a_class_that_is_estimated_as_absent_gives_care_even_if_the_rows_agree():
    rng = np.random.default_rng(3)
    for _ in range(20):
        site, estimate = at_site(rng.normal(size=1000), (0.0, 2.0))
        if estimate.at_bound[1]:
            break
    finding = check_mixture(held_out((0.0, 2.0), 400, rng), site, estimate)
    assert finding.severity == "care"
    assert finding.p_value > 0.05
    assert "not to occur" in finding.sentence


def test_of_three_classes_one_that_rows_moved_away_from_tells():
    rng = np.random.default_rng(4)
    centres = (-1.0, 0.0, 1.0)
    held = held_out(centres, 500, rng)
    moved = check_mixture(held, *at_site(rng.normal(size=1500) - 1.5, centres))
    assert moved.severity == "stop"
    assert moved.details["class"] in (1, 2)
    everyone = np.concatenate([rng.normal(size=500) + centre for centre in centres])
    still = check_mixture(held, *at_site(everyone, centres))
    assert still.severity == "good"
    assert still.details["tested"] == [0, 1, 2]


def test_nothing_is_said_with_too_few_rows():
    rng = np.random.default_rng(5)
    held = held_out((0.0, 1.0), 300, rng)
    site, estimate = at_site(np.concatenate([rng.normal(size=500), rng.normal(size=500) + 1]), (0.0, 1.0))
    few = held.take(torch.cat([torch.arange(10), torch.arange(300, 310)]))
    assert check_mixture(few, site, estimate).severity == "unknown"
    untested = replace(site, tested=~site.tested)
    assert check_mixture(held, untested, estimate).p_value is None
    assert check_mixture(held, site, estimate).severity == "good"


def test_rows_that_come_again_in_one_group_count_once():
    rng = np.random.default_rng(6)
    held = held_out((0.0, 1.0), 200, rng)
    site, estimate = at_site(rng.normal(size=300) - 0.15, (0.0, 1.0))
    held, site = (replace(part, groups=torch.arange(len(part.weight))) for part in (held, site))
    once = check_mixture(held, site, estimate).p_value
    assert 1e-3 < once < 0.2
    copies = [part.take(torch.arange(len(part.weight)).repeat(4)) for part in (held, site)]
    assert check_mixture(*copies, estimate).p_value == pytest.approx(once, rel=1e-6)
    taken_for_rows = check_mixture(*(replace(part, groups=None) for part in copies), estimate)
    assert taken_for_rows.p_value < 0.1 * once
    few = [replace(part, groups=torch.arange(len(part.weight)) % 19) for part in (held, site)]
    assert check_mixture(few[0], site, estimate).p_value is None
    assert check_mixture(held, few[1], estimate).p_value is None
