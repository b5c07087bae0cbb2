"""Identification, calibration, coverage, positivity and optimization, each on data where the answer is known."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from sitewise.calibration import Calibration
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Notes
from sitewise.diagnosis.coverage import TrainingTable, check_coverage, check_positivity
from sitewise.diagnosis.diagnose import diagnose_site
from sitewise.diagnosis.identification import (
    check_identification,
    constant_prevalences,
    draw_calibrations,
    information_gain,
    slope_in_errors,
)
from sitewise.diagnosis.optimization import check_optimization
from sitewise.diagnosis.reliability import calibration_error, check_calibration


def test_all_is_well_where_all_is_well(draw_samples):
    diagnosis = diagnose_site(*draw_samples(0, m=1500))
    assert diagnosis.verdict == "adapt"
    assert [f.name for f in diagnosis.findings] == [
        "stability",
        "representation",
        "identification",
        "mixture",
        "calibration",
        "coverage of z",
        "positivity",
        "optimization",
    ]


def test_a_shift_is_a_reason_not_to_adapt(draw_samples):
    held, site, estimate = draw_samples(1, n=1500, m=1500, move=1.2, signal=3.0)
    diagnosis = diagnose_site(held, site, estimate)
    assert diagnosis.verdict == "do not adapt"
    assert diagnosis["stability"].severity == diagnosis["representation"].severity == "stop"


@pytest.mark.parametrize("seed", range(6))
def test_an_uninformative_f_is_called_so(draw_samples, seed):
    held, site, estimate = draw_samples(seed, n=1500, uninformative=True)
    diagnosis = diagnose_site(held, site, estimate)
    assert diagnosis.verdict == "do not adapt"
    assert "uninformative" in diagnosis["identification"].sentence


def test_nearly_separable_classes_are_not_called_uninformative(draw_samples):
    """Resamples without an error of f have slopes without bound, so the slope is unsure where f is best."""
    held, site, estimate = draw_samples(0, n=300, m=200, signal=5.0)
    own = held.calibration
    resamples = [Calibration(own.method, factor * own.slope, own.bias) for factor in (1.0, 50.0)]
    assert slope_in_errors(own, resamples) < 1
    assert "uninformative" not in check_identification(held, site, estimate, resamples).sentence


def test_few_rows_are_too_few(draw_samples):
    held, site, _ = draw_samples(2, signal=1.0)
    few = site.take(torch.arange(12))
    estimate = sw.estimate_prevalence(few.log_ratio, model="constant")
    finding = check_identification(held, few, estimate, draw_calibrations(held, 0))
    assert finding.severity == "stop"
    assert finding.value > 0.25


def test_the_constant_g_of_many_draws_is_that_of_the_estimator(draw_samples):
    _, site, _ = draw_samples(3, n_classes=3, signal=1.0)
    log_ratio = torch.stack([site.log_ratio, 0.8 * site.log_ratio])
    weight = torch.rand(len(site.weight), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prevalences = constant_prevalences(log_ratio, weight)
    for point, scale in zip(prevalences, (1.0, 0.8), strict=True):
        expected = sw.estimate_prevalence(scale * site.log_ratio, model="constant", sample_weight=weight).marginal
        torch.testing.assert_close(point, expected, atol=1e-6, rtol=0)


def test_draws_from_a_part_of_the_rows_are_as_close_as_all_rows_would_be(draw_samples, monkeypatch):
    held, _, _ = draw_samples(4, m=2000)
    whole = torch.stack([c.slope for c in draw_calibrations(held, 0)]).std(0)
    monkeypatch.setattr("sitewise.diagnosis.identification.RESAMPLED_ROWS", 500)
    part = torch.stack([c.slope for c in draw_calibrations(held, 0)]).std(0)
    assert 0.6 < float(part[0] / whole[0]) < 1.5  # twice as wide as they were drawn


def test_what_f_adds_is_nothing_where_it_says_nothing(draw_samples):
    held, _, _ = draw_samples(5)
    flat = torch.zeros(2).double()
    nothing = replace(held, calibration=Calibration("temperature", flat, flat))
    assert information_gain(nothing)[0] == pytest.approx(0.0, abs=1e-12)
    assert information_gain(held)[0] > 5 * information_gain(held)[1]


def test_calibrated_probabilities_have_little_error_and_wrong_ones_have_it():
    rng = np.random.default_rng(0)
    p = torch.tensor(rng.random(20_000))
    y = torch.tensor((rng.random(20_000) < p.numpy()).astype(int))
    weight = torch.ones(20_000).double()
    error = calibration_error(torch.stack([1 - p, p], dim=1), y, weight)
    assert error.value < 0.01
    assert error.degrees == 10
    assert error.statistic < 30
    wrong = (p + 0.5) / 2
    error = calibration_error(torch.stack([1 - wrong, wrong], dim=1), y, weight)
    assert error.value == pytest.approx(0.125, abs=0.01)  # the mean of |p - ½| / 2
    assert error.statistic > 1000


def test_a_badly_calibrated_f_gives_care(draw_samples):
    held, _, _ = draw_samples(6, m=3000)
    bad = replace(held, calibration=replace(held.calibration, slope=4 * held.calibration.slope))
    assert check_calibration(held, 10.0).severity == "good"
    assert check_calibration(bad, 10.0).severity == "care"
    nobody = held.take(torch.arange(0))
    assert check_calibration(nobody, None).severity == "care"


@pytest.fixture
def training():
    rng = np.random.default_rng(0)
    n = 600
    frame = pd.DataFrame({"age": rng.uniform(20, 90, n), "sex": rng.choice(["f", "m"], n)})
    site = rng.integers(0, 2, n)
    y = rng.integers(0, 2, n)
    return frame, y, site


def table_of(frame, y, site):
    schema = Confounders.learn(frame)
    codes = schema.encode(frame)[0]
    names = ("north", "south")
    return schema, codes, TrainingTable.of(codes, torch.tensor(y), torch.tensor(site), names, 2, schema)


def test_counts_are_those_of_a_cross_table(training):
    frame, y, site = training
    _, _, table = table_of(frame, y, site)
    expected = pd.crosstab([site, frame["sex"]], y).to_numpy().reshape(2, 2, 2)
    assert np.array_equal(table.counts[1].numpy(), expected)
    assert table.counts[0].sum() == len(frame)


def test_new_values_and_missing_ones_give_care(training):
    frame, y, site = training
    schema, _, table = table_of(frame, y, site)
    here = frame.iloc[:200].copy()
    ones = torch.ones(200).double()
    codes, notes = schema.encode(here)
    assert check_coverage(codes, ones, notes, table, schema).severity == "good"
    here.loc[:59, "sex"] = "other"
    here.loc[:99, "age"] = np.nan
    here.loc[100:119, "age"] = 150.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        codes, notes = schema.encode(here)
    finding = check_coverage(codes, ones, notes, table, schema)
    assert finding.severity == "care"
    assert "30.0% of rows have values of 'sex'" in finding.sentence
    assert "10.0% of rows have values of 'age'" in finding.sentence
    assert "'age' is missing in 50% of rows, 0% in training" in finding.sentence
    assert "'sex' is missing" not in finding.sentence


def test_a_class_that_never_occurs_somewhere_is_named(training):
    frame, y, site = training
    ones, supported = torch.ones(len(y)).double(), torch.ones(len(y), dtype=torch.bool)
    schema, codes, table = table_of(frame, y, site)
    assert check_positivity(codes, ones, supported, table, schema).severity == "good"
    lonely = np.where((frame["sex"] == "m") & (site == 0), 0, y)
    schema, codes, table = table_of(frame, lonely, site)
    finding = check_positivity(codes, ones, supported, table, schema)
    assert finding.severity == "good"
    assert "north at sex = 'm'" in finding.sentence
    nowhere = np.where(frame["sex"] == "m", 0, y)
    schema, codes, table = table_of(frame, nowhere, site)
    men = torch.tensor((frame["sex"] == "m").to_numpy())
    finding = check_positivity(codes, ones, ~men, table, schema)
    assert finding.severity == ("stop" if float(men.double().mean()) > 0.5 else "care")
    assert "No training site has every class at sex = 'm'" in finding.sentence
    old = np.where(frame["age"] > 60, 1, y)
    schema, codes, table = table_of(frame, old, site)
    assert "age from" in check_positivity(codes, ones, supported, table, schema).sentence


def test_nothing_to_cover_without_confounders():
    nothing = torch.zeros(3, 0, dtype=torch.float64)
    assert check_coverage(nothing, torch.ones(3).double(), Notes(), None, None).severity == "good"


def test_other_starts_agree_and_a_fit_that_stopped_early_is_named(draw_samples):
    _, site, estimate = draw_samples(7)
    additive = sw.estimate_prevalence(
        site.log_ratio, estimate.confounders.decode(site.codes), model="additive", confounders=estimate.confounders
    )
    finding = check_optimization(site, additive)
    assert finding.severity == "good"
    assert finding.value < 1e-3
    stopped = replace(additive, converged=False)
    assert check_optimization(site, stopped).severity == "care"
    constant = sw.estimate_prevalence(site.log_ratio, model="constant")
    assert "certifies" in check_optimization(site, constant).sentence
