"""What the library's answers are compared with, in plain numpy and from the formulas alone."""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def ratios(log_ratio: Array) -> Array:
    """f (n, K), each row scaled to sum to one; +inf is certain, a row of -inf only says nothing."""
    certain = (log_ratio == np.inf).any(axis=1, keepdims=True)
    logs = np.where(certain, np.where(log_ratio == np.inf, 0.0, -np.inf), log_ratio)
    top = logs.max(axis=1, keepdims=True)
    logs = np.where(np.isneginf(top), 0.0, logs - np.where(np.isneginf(top), 0.0, top))
    f = np.exp(logs)
    return np.asarray(f / f.sum(axis=1, keepdims=True))


def log_likelihood(f: Array, g: Array, weight: Array, pseudo: Array | None = None) -> float:
    """Σ w log Σ f g + Σ c log g."""
    total = float(weight @ np.log(np.maximum(f @ g, 1e-300)))
    if pseudo is not None:
        total += float(pseudo[pseudo > 0] @ np.log(np.maximum(g[pseudo > 0], 1e-300)))
    return total


def optimality_gap(f: Array, g: Array, weight: Array, pseudo: Array | None = None) -> float:
    """By how much per unit of weight the concave log-likelihood can rise from g at most: max_y slope_y / N - 1."""
    mixed = f @ g
    slope = (weight / mixed) @ f
    total = weight.sum()
    if pseudo is not None:
        slope = slope + np.divide(pseudo, g, out=np.zeros_like(g), where=pseudo > 0)
        total = total + pseudo.sum()
    return float(slope.max() / total - 1.0)


def joint_gap(r: Array, cells: Array, weight: Array, pseudo: Array) -> float:
    """The same of a mixture over cells: r (n, P), each row scaled by its largest entry."""
    return optimality_gap(r, cells, weight, pseudo)


def em(f: Array, weight: Array, pseudo: Array | None = None, n_iter: int = 3000) -> Array:
    """The maximum-likelihood g by EM from the even start, for a lower bound on the best likelihood."""
    g = np.full(f.shape[1], 1.0 / f.shape[1])
    for _ in range(n_iter):
        counts = g * ((weight / np.maximum(f @ g, 1e-300)) @ f)
        counts = counts if pseudo is None else counts + pseudo
        g = counts / counts.sum()
    return np.asarray(g)


def attempt(call: Callable[[], object]) -> Any:
    """What a call gives; None where it ends in one error that is neither empty nor endless."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        text = str(error)
    assert 10 < len(text) < 4000, f"an error should say what is wrong, briefly: {text[:200]!r}"
    return None


def refused(call: Callable[[], object]) -> bool:
    """Whether a call ends in one clear error of the library: ValueError or TypeError with a text of its own."""
    try:
        call()
    except (ValueError, TypeError) as error:
        text = str(error)
        assert 10 < len(text) < 4000, f"an error should say what is wrong, briefly: {text[:200]!r}"
        said = ("must", "needs", "expected", "should", "not supported", ": ")
        assert any(word in text for word in said), f"what was expected? {text!r}"
        return True
    return False
