"""What the page shows of many rows, counted."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
N_BINS = 20


def probability_shares(probability: Array, weight: Array | None = None, n_bins: int = N_BINS) -> Array:
    """The share of rows in equal bins of [0, 1] for every class, (K, bins); each class's shares sum to one."""
    n_rows, n_classes = probability.shape
    weights = np.ones(n_rows) if weight is None else np.asarray(weight, dtype=np.float64)
    place = np.clip((probability * n_bins).astype(np.int64), 0, n_bins - 1)
    counts = [np.bincount(place[:, k], weights=weights, minlength=n_bins) for k in range(n_classes)]
    return np.asarray(np.stack(counts) / weights.sum())


def called(probability: Array, threshold: float | None = None) -> Array:
    """The class each row is called, (n,): the most probable one, or by a threshold on the second of two."""
    if threshold is None:
        return np.asarray(probability.argmax(axis=1))
    return np.asarray(probability[:, 1] >= threshold, dtype=np.int64)


def called_shares(probability: Array, weight: Array | None = None, threshold: float | None = None) -> Array:
    """The share of rows called each class, (K,): the most probable one, or by a threshold on the second of two."""
    counts = np.bincount(called(probability, threshold), weights=weight, minlength=probability.shape[1])
    return np.asarray(counts / counts.sum())


def most_frequent(rows: Array, limit: int) -> list[int]:
    """The places of the `limit` largest counts, in their own order; equal counts by which comes first."""
    largest = np.argsort(-np.asarray(rows), kind="stable")[:limit]
    return sorted(largest.tolist())
