"""A small experiment with methods that train in no time, and a way to change one thing about it."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml

from sitewise.bench.experiments.experiment import ALL_METRICS
from sitewise.bench.experiments.reading import merge, read_experiment
from sitewise.bench.methods import METHODS, Card, Method
from sitewise.datasets import simulated


@dataclass(kw_only=True, eq=False, repr=False)
class Guess(Method):
    """Says `share` for class 1 everywhere and trains nothing; notes what it is handed."""

    share: float = 0.3
    extra: float = 0.0
    network: str = "one"
    card: ClassVar[Card] = Card(name="Guess", cite="none")
    noted: ClassVar[list] = []

    def trainer(self):
        return self.trained_by()(**{name: value for name, value in self.get_params().items() if name != "share"})

    def trained_by(self):
        return Guess

    def train(self, X, y, domain, Z, groups, weight, unlabeled):
        self.noted.append(SimpleNamespace(what="train", n=len(X), domain=domain, unlabeled=unlabeled))
        if self.network == "broken":
            raise FloatingPointError("no luck")
        return SimpleNamespace(classes=np.unique(y), input_shape=None, n_features=X.shape[1], remembered=None)

    def rule_at(self, X, Z, y, prevalence):
        self.noted.append(SimpleNamespace(what="adapt", method=type(self).__name__, X=X, y=y, prevalence=prevalence))
        logs = torch.tensor([[1 - self.share, self.share]], dtype=torch.float64).log()
        return (lambda rows, z: logs.expand(len(rows), -1)), np.array([1 - self.share, self.share])


@dataclass(kw_only=True, eq=False, repr=False)
class SeesTarget(Guess):
    card: ClassVar[Card] = Card(name="SeesTarget", cite="none", unlabeled_in_training=True)

    def trained_by(self):
        return SeesTarget


@dataclass(kw_only=True, eq=False, repr=False)
class SeesLabels(Guess):
    card: ClassVar[Card] = Card(name="SeesLabels", cite="none", labels_at_test="labels")


@dataclass(kw_only=True, eq=False, repr=False)
class KnowsTruth(Guess):
    card: ClassVar[Card] = Card(name="KnowsTruth", cite="none", labels_at_test="true g")


@dataclass(kw_only=True, eq=False, repr=False)
class Refuses(Guess):
    card: ClassVar[Card] = Card(name="Refuses", cite="none")

    def refusal(self, n_sites, confounders, n_unlabeled):
        return f"not with {n_sites} sites"


FAKES = {
    "guess": Guess,
    "sees_target": SeesTarget,
    "sees_labels": SeesLabels,
    "knows_truth": KnowsTruth,
    "refuses": Refuses,
}

TINY = {
    "title": "Tiny",
    "data": {"kind": "simulated", "levels": [2], "n_continuous": 0},
    "recipe": "default",
    "seeds": 3,
    "training": {"a": {"n": 40}, "b": {"n": 30, "prevalence": [0.7, 0.3]}},
    "validation": {"n": 20},
    "tests": {"near": {}, "far": {"prevalence": [0.9, 0.1], "dependence": -1}},
    "draws": {"all": {"score": 50}, "apart": {"score": 50, "adapt": 10}},
    "methods": {
        "G": "guess",
        "G2": {"method": "guess", "share": 0.4},
        "T": "sees_target",
        "R": {"method": "guess", "grid": {"share": [0.1, 0.2], "extra": [1, 2]}},
    },
    "tuning": {"metric": "nll", "seeds": 2},
    "reference": "G",
    "metric": "positive_f1",
}


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    """The fake methods, registered for one test; and simulated sites set their level on fewer draws, for speed."""
    monkeypatch.setattr(simulated, "REFERENCE", 200)
    for name, method in FAKES.items():
        monkeypatch.setitem(METHODS, name, method)
    Guess.noted.clear()
    return Guess.noted


@pytest.fixture
def write(tmp_path):
    """Write the tiny experiment with changes (None drops a key) and return its path."""

    def write_yaml(changes=None, name="tiny", text=None) -> Path:
        path = tmp_path / f"{name}.yaml"
        raw = merge(copy.deepcopy(TINY), changes or {})
        path.write_text(text or yaml.safe_dump(raw, sort_keys=False, allow_unicode=True), encoding="utf-8")
        return path

    return write_yaml


@pytest.fixture
def tiny(write):
    """Read the tiny experiment with changes."""
    return lambda changes=None, quick=False: read_experiment(write(changes), quick=quick)


@pytest.fixture
def by_hand():
    """A record of a run written by hand: metrics of the validation site and of each test site."""

    def record(run, validation=None, sites=None, **metrics):
        blank = dict.fromkeys(ALL_METRICS)
        results = {
            choice.label: {
                "validation": blank | (validation or {}),
                "sites": {
                    site.name: {draw.name: blank | metrics | (sites or {}).get(site.name, {}) for draw in run.draws}
                    for site in run.tests
                },
            }
            for choice in run.methods
        }
        return json.loads(json.dumps({"id": run.id, **run.plain(), "results": results}))

    return record
