"""Labeled source rows that represent a new site, because they are weighted to its assumed prevalence (equation 17)."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.adaptation.families import FAMILIES
from sitewise.arrays import Problems, read_labels, read_matrix, read_weight
from sitewise.confounders import Confounders
from sitewise.confounders.schema import Encoded
from sitewise.performance.metrics import Predictions, confusion_metrics
from sitewise.posterior import combine, normalize
from sitewise.prevalence import fit_constant
from sitewise.prevalence.additive import fit_additive

Array = np.ndarray[Any, Any]
ENOUGH_ROWS = 4000  # largest number of labeled rows that are used
FEW = 10  # rows of a class below which a warning is given

RARE = "class {label} has {count} labeled row(s): results for a site of this prevalence depend on them"


@dataclass(frozen=True)
class Population:
    """Labeled rows, weighted to represent the new site, with the site's g at each row."""

    log_ratio: Array  # (m, K)
    y: Array  # (m,)
    weight: Array  # (m,), sums to one
    codes: Tensor  # (m, V)
    z: pd.DataFrame | None  # the decoded z
    schema: Confounders | None
    log_prevalence: Array  # (m, K), the site's g
    model: str
    prior: Any = None  # as in `estimate_prevalence`

    def estimate(self, counts: Array) -> PrevalenceEstimate:
        """Estimate g from the rows, where each row occurs as often as `counts` (m,) says."""
        kept = counts > 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about simulated sites are irrelevant
            return estimate_prevalence(
                self.log_ratio[kept],
                None if self.z is None else self.z[kept],
                model=self.model,
                prior=self.prior,
                confounders=self.schema,
                sample_weight=counts[kept],
            )

    def losses(self, estimate: PrevalenceEstimate) -> tuple[float, float]:
        """Return KL(g || estimate), averaged over the population, and the expected F1 lost by use of the estimate.

        The loss is the F1 with the true g minus the F1 with the estimate.
        """
        log_g = estimate.prevalence.log_prob(self.codes).numpy()
        kl = float(self.weight @ (np.exp(self.log_prevalence) * (self.log_prevalence - log_g)).sum(axis=1))
        return kl, self.f1(self.log_prevalence) - self.f1(log_g)

    def posterior(self, log_prevalence: Array) -> Array:
        """Return P(y|x,z) of each row with the given log g, (m, K)."""
        return np.asarray(combine(torch.tensor(self.log_ratio), torch.tensor(log_prevalence)).exp().numpy())

    @cached_property
    def truth(self) -> Array:
        """P(y|x,z) with the site's true g, (m, K). It evaluates decisions with less noise than labels do."""
        return self.posterior(self.log_prevalence)

    def f1(self, log_prevalence: Array) -> float:
        """Return the expected F1 if the most probable class is predicted with this g; for K > 2, macro F1."""
        predictions = Predictions.of(self.posterior(log_prevalence))
        metrics = confusion_metrics(predictions.confusion(self.truth.T[None], self.weight))
        return float(np.nan_to_num(metrics["positive_f1" if self.truth.shape[1] == 2 else "macro_f1"][0]))


def read_population(
    log_ratio: Any,
    y: Any,
    Z: Any,
    prevalence: Any,
    model: str,
    schema: Confounders | None,
    sample_weight: Any,
    problems: Problems,
    prior: Any = None,
) -> Population:
    """Check the labeled rows, and adjust their weights and g(z) to the assumed prevalence (equation 17)."""
    matrix = read_matrix(log_ratio, "log_ratio", problems)
    if matrix is None:
        problems.raise_if_any()
    assert matrix is not None
    n_rows, n_classes = matrix.shape
    labels = read_labels(y, n_rows, n_classes, problems)
    if np.isnan(labels).any():
        problems.add(f"y has {int(np.isnan(labels).sum())} unknown label(s): planning needs labeled rows only")
    weight = read_weight(sample_weight, n_rows, problems).cpu().numpy()
    if Z is None and model in FAMILIES and FAMILIES[model].quick and FAMILIES[model].needs_z:
        problems.add(f"model={model!r} needs sample_confounder; without confounders use model='constant'")
    z = None if Z is None else _read_confounders(Z, schema, n_rows, problems)
    problems.raise_if_any()
    known = labels.astype(np.int64)
    source = np.bincount(known, weight, n_classes) / weight.sum()
    assumed = _read_prevalence(prevalence, source, problems)
    problems.raise_if_any()
    for label, count in enumerate(np.bincount(known, minlength=n_classes)):
        if count < FEW and assumed[label] > 0:
            warnings.warn(RARE.format(label=label, count=count), stacklevel=4)
    own = _own_prevalence(one_hot(torch.tensor(known), n_classes).double(), torch.tensor(weight), z)
    tilt = np.divide(assumed, source, out=np.zeros(n_classes), where=source > 0)
    tilted = torch.log_softmax(own + torch.tensor(np.log(np.maximum(tilt, 1e-12))), dim=1).numpy()
    kept = np.flatnonzero(tilt[known] * weight > 0)
    if len(kept) > ENOUGH_ROWS:
        kept = kept[np.arange(ENOUGH_ROWS) * len(kept) // ENOUGH_ROWS]
    share = (tilt[known] * weight)[kept]
    rows = normalize(matrix).cpu().numpy()[kept], known[kept], share / share.sum()
    if z is None:
        return Population(*rows, torch.zeros(len(kept), 0), None, None, tilted[kept], "constant", prior)
    z = z[torch.tensor(kept)]
    return Population(*rows, z.codes, z.schema.decode(z.codes), z.schema, tilted[kept], model, prior)


def _own_prevalence(targets: Tensor, weight: Tensor, z: Encoded | None) -> Tensor:
    """Return log g fitted to the labeled rows, at these rows, (n, K)."""
    if z is None:
        return fit_constant(targets, weight).log_prob(torch.zeros(len(targets), 0))
    return fit_additive(targets, z.codes, weight, z.schema).log_prob(z.codes)


def _read_confounders(Z: Any, schema: Confounders | None, n_rows: int, problems: Problems) -> Encoded | None:
    """Return z encoded by the given schema, or by a schema learned from z; None if it cannot be encoded."""
    try:
        schema = Confounders.learn(Z) if schema is None else schema
        codes = schema.encode(Z, quiet=True)[0]
    except ValueError as error:
        problems.add(str(error))
        return None
    if len(codes) != n_rows:
        problems.add(f"sample_confounder has {len(codes)} row(s), log_ratio has {n_rows}")
    return Encoded(schema, codes)


def _read_prevalence(prevalence: Any, source: Array, problems: Problems) -> Array:
    """Return the assumed P(y), (K,); by default that of the labeled rows, `source`."""
    if prevalence is None:
        return source
    try:
        value = np.asarray(prevalence, dtype=float)
    except (TypeError, ValueError):
        value = np.empty(0)
    if value.ndim == 0 and len(source) == 2:
        value = np.array([1 - value, value])
    legal = value.shape == source.shape and bool((value >= 0).all() and abs(value.sum() - 1) < 1e-6)
    if not legal:
        one = ", or the share of class 1" if len(source) == 2 else ""
        problems.add(f"prevalence must be {len(source)} shares that sum to one{one}, got {prevalence!r}")
        return source
    absent = np.flatnonzero((value > 0) & (source <= 0))
    if len(absent):
        problems.add(f"no labeled row is of class {', '.join(map(str, absent))}: set its prevalence to zero")
    return value
