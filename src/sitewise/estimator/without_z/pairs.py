"""Classifiers that give P(y, z|x): log f and r(x,y,z) from their probabilities of pairs (z_m, y), (n, M, K), for M z.

r(x,y,z_m) = P_s(y,z_m|x) / P_s(y,z_m) (equation 15), where P_s is the training population of the classifier. A z_m is
called a z-point.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.adaptation.joint.mixture import log_balance
from sitewise.arrays import Problems
from sitewise.calibration import Calibration
from sitewise.calibration.fit import fit_calibration
from sitewise.confounders import Confounders
from sitewise.critic import Bank
from sitewise.estimator.scoring.probabilities import Classifier
from sitewise.estimator.source.held_out import ENOUGH_TO_CALIBRATE
from sitewise.estimator.source.reading import Array, evenly
from sitewise.estimator.source.regions import Region
from sitewise.estimator.without_z.joint import ENOUGH_ROWS, unseen_classes, with_all_of_z
from sitewise.prevalence.base import Prevalence
from sitewise.rows import LabeledRows

if TYPE_CHECKING:
    from sitewise.estimator.adjuster import PrevalenceAdjuster

CALIBRATION_ENTRIES = 2**21  # the largest number of entries (row, pair) on which r is calibrated
STRETCH = 2**20  # the largest number of entries of r that are computed together

NO_CONFOUNDERS = "joint is given, but there is no z among the source rows: give fit sample_confounder"
NOT_FITTED = "with joint the estimator must already be fitted to pairs (z, y): fit it, or pass its probabilities"
SEES_X = "a classifier of P(y, z|x) knows z: leave classifier_sees at 'auto', got 'x'"
NO_PAIRS = "missing='joint' needs a classifier that gives P(y, z|x): give the z of its columns by joint="


@dataclass(frozen=True)
class PairClassifier(Classifier):
    """The source of log P(y, z_m|x), with M K columns: first the K classes of z_1, then those of z_2, and so on."""

    n_points: int = 1

    @property
    def columns(self) -> list[str]:
        """A name of the class and the z-point of each column."""
        return [f"{label} at z-point {m}" for m in range(self.n_points) for label in self.classes.tolist()]

    def probabilities(self, X: Any) -> Tensor:
        """Return the probabilities (n, M K) for X; given probabilities may also have shape (n, M, K)."""
        if self.estimator is None and getattr(X, "ndim", 2) == 3:
            shape = (self.n_points, len(self.classes))
            if tuple(X.shape[1:]) != shape:
                raise ValueError(
                    f"PrevalenceAdjuster: probabilities must have shape (rows, {shape[0]}, {shape[1]}), z-points of "
                    f"joint by classes, got {tuple(X.shape)}"
                )
            X = X.reshape(len(X), -1)
        return super().probabilities(X)

    def by_class(self, log_proba: Tensor) -> Tensor:
        """Return log P(y|x), (n, K), as the sum over z-points."""
        return torch.logsumexp(log_proba.reshape(len(log_proba), self.n_points, -1), dim=1)


def read_points(joint: Any, schema: Confounders | None) -> Tensor:
    """Return the codes of the z-points (M, V); ValueError if values are missing, unknown or duplicate."""
    problems = Problems("PrevalenceAdjuster")
    if schema is None:
        problems.add(NO_CONFOUNDERS)
        problems.raise_if_any()
    assert schema is not None
    codes, notes = schema.encode(joint, quiet=True)
    if notes.absent:
        problems.add(f"joint lacks {', '.join(notes.absent)}: every z-point needs all of {', '.join(schema.names)}")
    for name, levels in notes.levels.items():
        problems.add(f"joint has {name} = {', '.join(sorted(levels))}, which no source row has")
    bare = schema.missing(codes).any(dim=1).nonzero().flatten().tolist()
    if bare and not problems.messages:
        problems.add(
            f"joint lacks a value in {len(bare)} z-point(s), first at row {bare[0]}: each point needs all values"
        )
    if len(torch.unique(codes, dim=0)) < len(codes):
        problems.add("joint has a duplicate z-point: each z-point must have its own columns")
    problems.raise_if_any()
    return codes


@dataclass(frozen=True)
class PairRatio:
    """log f = log P_s(y|x,z) - log g_s(z), where P_s(y|x,z) is summed over the points that agree with the known z."""

    bank: Bank
    prevalence: Prevalence

    def log_ratio(self, log_proba: Tensor, codes: Tensor) -> Tensor:
        """Return log f (n, K) from log-probabilities of pairs (n, M K) and codes of z (n, V)."""
        pairs = log_proba.unflatten(1, (len(self.bank.codes), -1))
        at_z = torch.logsumexp(pairs + self.bank.log_agreement(codes)[..., None], dim=1)
        return torch.log_softmax(at_z, dim=1) - self.prevalence.log_prob(codes)


@dataclass(frozen=True)
class PairModel:
    """The parts of r(x,y,z_m) besides P_s(y,z_m|x): the points, P_s(z_m,y), and a calibration and balance of log r."""

    bank: Bank
    prior: Tensor  # (M, K) P_s(z_m, y)
    possible: Tensor  # (M, K) False where the class never occurs in the source rows
    log_balance: Tensor = field(repr=False)  # (M, K) log h of equation 15e
    calibration: Calibration = field(repr=False)
    trusted: bool = True  # False: `missing="auto"` uses knockout, see `judged`

    def ratios(self, model: Any, X: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield chunks of rows: a slice of the c rows of a chunk, and log r (c, M, K), from log-probabilities (n, M K).

        `model` is not used.
        """
        size = max(1, STRETCH // self.prior.numel())
        for first in range(0, len(X), size):
            part = slice(first, first + size)
            yield part, self.log_ratio(X[part])

    def log_ratio(self, log_proba: Tensor) -> Tensor:
        """Return log r (n, M, K) from log-probabilities (n, M K).

        For each x, the mean of r over P_s(z, y) of the training population is one, before r is set to zero where
        `possible` is False.
        """
        log_prior = self.prior.log()
        raw_log_ratio = log_proba - log_prior.flatten()
        both = self.calibration.apply(raw_log_ratio).unflatten(1, self.prior.shape) + self.log_balance
        scale = torch.logsumexp(both + log_prior, dim=(1, 2), keepdim=True)
        return torch.where(self.possible, both - scale, -torch.inf)


def fit_pairs(rows: LabeledRows, codes: Tensor, schema: Confounders, n_classes: int) -> tuple[Bank, Tensor]:
    """Return the points with their shares, and P_s(z_m, y) (M, K): the mean of the probabilities of the source rows."""
    assert isinstance(rows.X, Tensor)
    share = rows.weight.double() / rows.weight.double().sum()
    prior = (share @ rows.X.exp()).reshape(len(codes), n_classes)
    prior = prior / prior.sum()
    return Bank(schema, codes, prior.sum(1)), prior


def fit_pair_model(
    rows: LabeledRows, bank: Bank, prior: Tensor, unsupported: tuple[Region, ...], calibration: str
) -> PairModel:
    """Calibrate log r on the source rows with all of z, given the shares of the pairs at the site of each row.

    Then balance r, so that the joint estimated from the source rows is the classifier's mean (equation 15e). Without
    calibration, or with too few rows, r is neither calibrated nor balanced.
    """
    possible = ~unseen_classes(bank.codes, prior.shape[1], unsupported)
    flat = torch.zeros(prior.numel(), dtype=torch.float64)
    plain = PairModel(bank, prior, possible, torch.zeros_like(prior), Calibration("none", flat + 1, flat))
    full = with_all_of_z(rows, bank.schema)
    full = full.take(evenly(len(full), max(ENOUGH_ROWS, CALIBRATION_ENTRIES // prior.numel())))
    agreement = bank.log_agreement(full.codes)
    full, agreement = _known(full, agreement)
    if calibration == "none" or len(full) < ENOUGH_ROWS:
        return plain
    own = one_hot(agreement.argmax(1) * prior.shape[1] + full.y, prior.numel()).double()
    method = "bias_corrected" if int(own.sum(0).min()) >= ENOUGH_TO_CALIBRATE else "temperature"
    assert isinstance(full.X, Tensor)
    raw_log_ratio, weight = full.X - prior.log().flatten(), full.weight.double()
    fitted = fit_calibration(raw_log_ratio, own, _others_log_shares(own, full, prior.flatten()), weight, method)
    calibrated = replace(plain, calibration=fitted)
    few = rows.take(evenly(len(rows), max(ENOUGH_ROWS, CALIBRATION_ENTRIES // prior.numel())))
    assert isinstance(few.X, Tensor)
    ratios = torch.cat([part for _, part in calibrated.ratios(None, few.X)])
    return replace(calibrated, log_balance=log_balance(ratios, prior, few.weight.double()))


def _known(rows: LabeledRows, agreement: Tensor) -> tuple[LabeledRows, Tensor]:
    """Return the rows whose levels occur among the points, with their agreement; other rows agree with all points."""
    several = agreement.shape[1] > 1
    known = (agreement.amin(1) < 0).nonzero().flatten() if several else torch.arange(len(agreement))
    return rows.take(known), agreement[known]


def _others_log_shares(own: Tensor, rows: LabeledRows, prior: Tensor) -> Tensor:
    """Return for each row the log shares of the pairs among the other rows of its site, smoothed towards `prior`."""
    weighted, n_pairs = own * rows.weight.double()[:, None], own.shape[1]
    total = own.new_zeros(int(rows.site.max()) + 1, n_pairs).index_add_(0, rows.site, weighted)
    counts = total[rows.site] - weighted + n_pairs * prior
    return (counts / counts.sum(1, keepdim=True)).log()


def pair_problems(model: "PrevalenceAdjuster", ready: bool) -> list[str]:
    """Return the problems of the settings that concern pairs."""
    if model.joint is None:
        return [NO_PAIRS] if model.missing == "joint" else []
    problems = [] if ready else [NOT_FITTED]
    return problems + ([SEES_X] if model.classifier_sees == "x" else [])


def pair_reader(estimator: Any, classes: Array, joint: Any, floor: float) -> Classifier:
    """Return the reader of the classifier's probabilities: of classes, or of pairs if z-points are given."""
    return (
        Classifier(estimator, classes, floor)
        if joint is None
        else PairClassifier(estimator, classes, floor, len(joint))
    )
