"""Two samples of a simulated family, with known f: what the checks compare."""

import warnings

import numpy as np
import pytest
import torch

import sitewise as sw
from sitewise.confounders import Confounders
from sitewise.datasets import simulated
from sitewise.diagnosis.samples import SourceSample, TargetSample


@pytest.fixture(autouse=True)
def _cheap_levels(monkeypatch):
    """Levels of simulated sites from fewer draws: they cost more than everything else here."""
    monkeypatch.setattr(simulated, "REFERENCE", 200)


@pytest.fixture
def draw_samples():
    return samples


def samples(seed, n=600, m=800, *, move=0.0, n_classes=2, signal=2.0, positive=None, uninformative=False):
    """Held-out source rows, a site's rows with one feature moved, and the site's estimate."""
    rng = np.random.default_rng(seed)
    family = sw.SimulatedFamily(seed=seed % 5, signal=signal, n_classes=n_classes)
    even = np.full(n_classes, 1 / n_classes)
    first = even if positive is None else np.array([1 - positive, positive])
    source = family.site(m, dependence=0.6, seed=int(rng.integers(2**31)))
    target = family.site(n, prevalence=first, dependence=-0.4, z_shift=0.3, seed=int(rng.integers(2**31)))
    X = target.X.copy()
    X[:, 0] += move
    log_ratio = family.log_ratio(X, target.Z)
    raw = 1.3 * source.log_ratio
    raw_here = 1.3 * log_ratio
    if uninformative:
        raw, raw_here = rng.normal(size=raw.shape), rng.normal(size=raw_here.shape)
    calibration = sw.calibrate_log_ratio(raw, source.y, source.log_prevalence, method="vector")
    schema = Confounders.learn(source.Z)
    codes, own = (schema.encode(Z, quiet=True)[0] for Z in (source.Z, target.Z))
    here = calibration(raw_here)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimate = sw.estimate_prevalence(here, target.Z, confounders=schema)
    held = SourceSample(
        raw_log_ratio=torch.tensor(raw),
        calibration=calibration,
        log_prevalence=torch.tensor(source.log_prevalence),
        y=torch.tensor(source.y),
        codes=codes,
        weight=torch.ones(m).double(),
        features=torch.tensor(source.X).float(),
        feature_rows=torch.arange(m),
    )
    everything = torch.ones(n, dtype=torch.bool)
    site = TargetSample(
        log_ratio=torch.tensor(here),
        codes=own,
        weight=torch.ones(n).double(),
        tested=everything,
        supported=everything,
        features=torch.tensor(X).float(),
        feature_rows=torch.arange(n),
    )
    return held, site, estimate
