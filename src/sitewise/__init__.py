"""Adapt a classifier to a new site with unlabeled data only.

>>> import sitewise as sw
>>> estimate = sw.estimate_prevalence(log_ratio, Z)      # how common is each class here?
>>> probabilities = sw.adjust(log_ratio, estimate.log_prevalence(Z))

Public names are imported when they are first used, so that ``import sitewise`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from sitewise import moved
from sitewise.version import __version__

moved.install()

_MODULE_OF = {
    "adapt": "estimator.pipelines",
    "adjust": "adaptation",
    "estimate_joint": "adaptation.joint",
    "estimate_prevalence": "adaptation",
    "pool_prevalence": "adaptation.pooling",
    "PrevalenceEstimate": "adaptation",
    "calibrate_log_ratio": "calibration",
    "Calibration": "calibration",
    "Confounders": "confounders",
    "EM": "solvers",
    "ArrayChunks": "sources",
    "ParquetChunks": "sources",
    "AdaptedClassifier": "estimator",
    "GPAClassifier": "estimator",
    "PrevalenceAdjuster": "estimator",
    "load": "estimator.files.saving",
    "save": "estimator.files.saving",
    "suggest_confounders": "estimator.suggesting",
    "expected_performance": "performance",
    "ExpectedPerformance": "performance",
    "plan_labels": "samplesize",
    "plan_sample_size": "samplesize",
    "Recipe": "training",
    "Roles": "tables",
    "TableReader": "tables",
    "Site": "sites",
    "Sites": "sites",
    "SimulatedFamily": "datasets.simulated",
}
__all__ = ["__version__", *_MODULE_OF]

if TYPE_CHECKING:
    from sitewise.adaptation import PrevalenceEstimate as PrevalenceEstimate
    from sitewise.adaptation import adjust as adjust
    from sitewise.adaptation import estimate_prevalence as estimate_prevalence
    from sitewise.adaptation.joint import estimate_joint as estimate_joint
    from sitewise.adaptation.pooling import pool_prevalence as pool_prevalence
    from sitewise.calibration import Calibration as Calibration
    from sitewise.calibration import calibrate_log_ratio as calibrate_log_ratio
    from sitewise.confounders import Confounders as Confounders
    from sitewise.datasets.simulated import SimulatedFamily as SimulatedFamily
    from sitewise.estimator import AdaptedClassifier as AdaptedClassifier
    from sitewise.estimator import GPAClassifier as GPAClassifier
    from sitewise.estimator import PrevalenceAdjuster as PrevalenceAdjuster
    from sitewise.estimator.files.saving import load as load
    from sitewise.estimator.files.saving import save as save
    from sitewise.estimator.pipelines import adapt as adapt
    from sitewise.estimator.suggesting import suggest_confounders as suggest_confounders
    from sitewise.performance import ExpectedPerformance as ExpectedPerformance
    from sitewise.performance import expected_performance as expected_performance
    from sitewise.samplesize import plan_labels as plan_labels
    from sitewise.samplesize import plan_sample_size as plan_sample_size
    from sitewise.sites import Site as Site
    from sitewise.sites import Sites as Sites
    from sitewise.solvers import EM as EM
    from sitewise.sources import ArrayChunks as ArrayChunks
    from sitewise.sources import ParquetChunks as ParquetChunks
    from sitewise.tables import Roles as Roles
    from sitewise.tables import TableReader as TableReader
    from sitewise.training import Recipe as Recipe


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sitewise' has no attribute {name!r}")
    value = getattr(import_module(f"sitewise.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
