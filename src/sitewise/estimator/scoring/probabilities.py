"""Read and check a classifier's probabilities, which are given or computed by an estimator or a torch module."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.validation import check_is_fitted, has_fit_parameter
from torch import Tensor, nn

from sitewise.arrays import Problems, as_pandas, view_tensor
from sitewise.estimator.source.reading import CROSS_FIT_FOLDS, Array, without_gaps
from sitewise.ratio import CHANGING, SCORED_VALUES, SCORING_BATCH

TINY = 1e-12  # the smallest value of a probability
SUM_TOLERANCE = 1e-3  # allowed difference of a sum of probabilities from one, because they may be rounded
FEWEST_TO_SUSPECT = 20  # rows of each class; fewer rows may be separated by chance

SEPARATED = (
    "the probabilities classify all {count} labeled rows correctly: was the classifier trained on these rows? Then "
    "they are over-confident, and so are all results. Pass out-of-sample probabilities, for example from "
    "sklearn.model_selection.cross_val_predict(..., method='predict_proba')"
)


def read_probabilities(values: Any, classes: Array, problems: Problems) -> Tensor:
    """Read probabilities (n, K); columns of a DataFrame are matched by name if they are named after the classes.

    Errors are added to `problems`, with the first row in which they occur.
    """
    values = _by_class(values, classes, problems)
    n_classes = len(classes)
    try:
        probabilities = view_tensor(values).double()
    except (TypeError, ValueError) as error:
        problems.add(f"probabilities must be numbers ({error})")
        return torch.full((0, n_classes), 1 / n_classes, dtype=torch.float64)
    if probabilities.ndim != 2 or probabilities.shape[1] != n_classes:
        hint = ": give a column for each class, np.column_stack([1 - p, p])" if probabilities.ndim == 1 else ""
        shape = f"(rows, {n_classes}), a column for each class of {classes.tolist()}"
        problems.add(f"probabilities must have shape {shape}, got {tuple(probabilities.shape)}{hint}")
        return torch.full(
            (len(probabilities) if probabilities.ndim else 0, n_classes), 1 / n_classes, dtype=torch.float64
        )
    if not len(probabilities):
        problems.add("probabilities are empty: at least one row is needed")
        return probabilities
    probabilities = probabilities.cpu()
    off = (probabilities.sum(dim=1) - 1).abs()
    if float(off.max()) <= SUM_TOLERANCE and float(probabilities.min()) >= 0:  # NaN compares as false
        return probabilities
    _note(
        probabilities.isnan().any(dim=1),
        probabilities,
        "hold NaN",
        "drop such rows or correct the classifier",
        problems,
    )
    _note(
        (probabilities < 0).any(dim=1), probabilities, "are negative", "are these logits? Apply softmax first", problems
    )
    wrong = ~(off <= SUM_TOLERANCE) & ~probabilities.isnan().any(dim=1) & ~(probabilities < 0).any(dim=1)
    _note(
        wrong, probabilities, "do not sum to one", "give a column for each class, or apply softmax to logits", problems
    )
    return probabilities


def _note(bad: Tensor, probabilities: Tensor, what: str, advice: str, problems: Problems) -> None:
    rows = bad.nonzero().flatten().tolist()
    if rows:
        shown = ", ".join(f"{value:.4g}" for value in probabilities[rows[0]].tolist()[:5])
        problems.add(f"probabilities {what} in {len(rows)} row(s), first at row {rows[0]} ({shown}): {advice}")


def _by_class(values: Any, classes: Array, problems: Problems) -> Any:
    """Return a DataFrame with its columns in the order of the classes, if they are named after the classes.

    Other values are returned unchanged.
    """
    values = as_pandas(values)
    if not isinstance(values, pd.DataFrame):
        return values
    names, wanted = list(column_names(values)), [str(label) for label in classes.tolist()]
    if names == wanted or not set(names) & set(wanted):
        return values
    if sorted(names) != sorted(wanted):
        problems.add(
            f"probabilities have the columns {names}, the classes are {wanted}: name all columns after classes, or none"
        )
        return values
    return values.iloc[:, [names.index(name) for name in wanted]]


def column_names(values: pd.DataFrame) -> tuple[str, ...]:
    """Return the names of a DataFrame's columns as text."""
    return tuple(str(name) for name in values.columns)


def find_floor(probabilities: Tensor) -> float:
    """Return the value that replaces a probability of zero.

    If there are zeros, it is half the smallest positive probability, otherwise TINY. For example, a forest of 100 trees
    may return 0 for a probability below 1/100.
    """
    positive = probabilities[probabilities > 0]
    if len(positive) == probabilities.numel() or not len(positive):
        return TINY
    return max(TINY, float(positive.min()) / 2)


def warn_separated(log_proba: Tensor, y: Tensor) -> None:
    """Warn if all labeled rows are classified correctly, because such probabilities are rarely out-of-sample.

    With two classes, rows count as classified correctly if some threshold separates the classes.
    """
    counts = torch.bincount(y, minlength=log_proba.shape[1])
    if int(counts.min()) < FEWEST_TO_SUSPECT:
        return
    if log_proba.shape[1] == 2:
        odds = log_proba[:, 1] - log_proba[:, 0]
        apart = bool(odds[y == 1].min() > odds[y == 0].max())
    else:
        apart = bool((log_proba.argmax(dim=1) == y).all())
    if apart:
        warnings.warn(SEPARATED.format(count=len(y)), stacklevel=3)


@dataclass(frozen=True)
class Classifier:
    """A classifier that gives log p: X itself (if `estimator` is None), an estimator, or a torch module with logits."""

    estimator: Any
    classes: Array
    floor: float = TINY

    @property
    def columns(self) -> list[Any]:
        """The class of each column."""
        return self.classes.tolist()  # type: ignore[no-any-return]

    def log_proba(self, X: Any) -> Tensor:
        """Return log P(y|x), (n, K), from X; invalid values raise ValueError with the first row where they occur."""
        if isinstance(self.estimator, nn.Module):
            return self._from_logits(module_outputs(self.estimator, X))
        if self.gives_probabilities:
            return self.probabilities(X).clamp_min(self.floor).log()
        return self._from_logits(
            torch.as_tensor(np.asarray(self.estimator.decision_function(without_gaps(X)))).double()
        )

    def probabilities(self, X: Any) -> Tensor:
        """Return the probabilities for X, in which zeros are not replaced."""
        problems = Problems("PrevalenceAdjuster")
        values = X if self.estimator is None else self.estimator.predict_proba(without_gaps(X))
        probabilities = read_probabilities(values, np.array(self.columns), problems)
        problems.raise_if_any()
        return probabilities

    def by_class(self, log_proba: Tensor) -> Tensor:
        """Return log P(y|x), (n, K), from the result of `log_proba`."""
        return log_proba

    @property
    def gives_probabilities(self) -> bool:
        """Whether the classifier gives probabilities, in which zeros can occur, and not logits."""
        return self.estimator is None or hasattr(self.estimator, "predict_proba")

    def _from_logits(self, logits: Tensor) -> Tensor:
        """Return the log-softmax of logits; a single column is the log-odds of the second of two classes."""
        columns = self.columns
        if len(columns) == 2 and (logits.ndim == 1 or logits.shape[1] == 1):
            odds = logits.reshape(-1)
            logits = torch.stack([torch.zeros_like(odds), odds], dim=1)
        if logits.ndim != 2 or logits.shape[1] != len(columns):
            raise ValueError(
                f"PrevalenceAdjuster: the estimator gives scores of shape {tuple(logits.shape)}, expected a column for "
                f"each class of {columns}"
            )
        bad = (~torch.isfinite(logits)).any(dim=1).nonzero().flatten().tolist()
        if bad:
            raise ValueError(
                f"PrevalenceAdjuster: the estimator gives NaN or infinite scores in {len(bad)} row(s), first at row "
                f"{bad[0]}: correct its inputs there"
            )
        return torch.log_softmax(logits, dim=1)


def module_outputs(module: nn.Module, X: Any) -> Tensor:
    """Return the outputs of a torch module, in float64 on the CPU, computed in batches in evaluation mode.

    Several threads may call this function at the same time. If the module is in training mode, they compute one after
    the other, because a change of its mode affects all of them. Floats are converted to the precision of the module's
    weights; other types (bytes of images) are not converted.
    """
    weights = next(module.parameters(), None)
    inputs = without_gaps(X)
    inputs = inputs if isinstance(inputs, Tensor) else torch.as_tensor(np.asarray(inputs))
    dtype = weights.dtype if weights is not None and inputs.is_floating_point() else None
    device = None if weights is None else weights.device
    size = min(SCORING_BATCH, max(1, SCORED_VALUES // max(1, inputs.shape[1:].numel())))

    def outputs() -> Tensor:
        with torch.no_grad():
            parts = [module(part.to(device=device, dtype=dtype)).double().cpu() for part in inputs.split(size)]
        return torch.cat(parts)

    with CHANGING:
        training = {layer: layer.training for layer in module.modules()}
        if any(training.values()):
            module.eval()
            try:
                return outputs()
            finally:
                module.train(training[module])
                for layer, mode in training.items():  # some layers may have been in evaluation mode before
                    layer.training = mode
    return outputs()


def is_ready(estimator: Any) -> bool:
    """Return whether an estimator can be used without a fit: a torch module, or a frozen or fitted estimator."""
    if isinstance(estimator, nn.Module | FrozenEstimator):
        return True
    try:
        check_is_fitted(estimator)
    except (NotFittedError, TypeError):
        return False
    return True


def estimator_problem(estimator: Any) -> str | None:
    """Return the reason why an object cannot be used as a classifier; None if it can be used."""
    if estimator is None or isinstance(estimator, nn.Module):
        return None
    if isinstance(estimator, type):
        return f"estimator must be an object, got the class {estimator.__name__}: call it, {estimator.__name__}(...)"
    scores = hasattr(estimator, "predict_proba") or hasattr(estimator, "decision_function")
    if not scores or not (is_classifier(estimator) or hasattr(estimator, "classes_")):
        return (
            "estimator must be a classifier with predict_proba or decision_function, or a torch module that gives "
            f"logits, got {type(estimator).__name__}"
        )
    return None


def cross_fit_classifier(
    estimator: Any, X: Any, y: Array, classes: Array, groups: Tensor | None, weight: Array | None, seed: int
) -> tuple[Classifier, Tensor]:
    """Fit an estimator to all rows; return it with cross-fitted log p of the rows, (n, K).

    log p of a row comes from a copy of the estimator that was fitted to other rows. Groups are kept whole.
    """
    options = {} if weight is None or not has_fit_parameter(estimator, "sample_weight") else {"sample_weight": weight}
    (X,) = indexable(X)
    counts = np.unique(y, return_counts=True)[1]
    n_splits = max(2, min(CROSS_FIT_FOLDS, int(counts.max())))
    splitter = (StratifiedKFold if groups is None else StratifiedGroupKFold)(n_splits, shuffle=True, random_state=seed)
    scored = np.zeros((len(y), len(classes)))
    are_probabilities = hasattr(estimator, "predict_proba")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        folds = list(splitter.split(np.zeros(len(y)), y, None if groups is None else groups.numpy()))
    fitted = clone(estimator).fit(X, y, **options)
    for train, test in folds:
        own = {name: value[train] for name, value in options.items()}
        copy = clone(estimator).fit(_safe_indexing(X, train), y[train], **own)
        known = Classifier(copy, copy.classes_)
        rows = _safe_indexing(X, test)
        held_out = (known.probabilities(rows) if are_probabilities else known.log_proba(rows).exp()).numpy()
        scored[np.ix_(test, [classes.tolist().index(label) for label in copy.classes_.tolist()])] = held_out
    probabilities = torch.tensor(scored)
    floor = find_floor(probabilities)
    return Classifier(fitted, classes, floor), probabilities.clamp_min(floor).log()
