"""Counts of rows for the figures of the page."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
N_BINS = 20


def probability_shares(probability: Array, weight: Array | None = None, n_bins: int = N_BINS) -> Array:
    """The share of rows in equal bins of [0, 1] for each class, (K, bins); the shares of a class sum to one."""
    n_rows, n_classes = probability.shape
    weights = np.ones(n_rows) if weight is None else np.asarray(weight, dtype=np.float64)
    place = np.clip((probability * n_bins).astype(np.int64), 0, n_bins - 1)
    counts = [np.bincount(place[:, k], weights=weights, minlength=n_bins) for k in range(n_classes)]
    return np.asarray(np.stack(counts) / weights.sum())


def called(probability: Array, threshold: float | None = None) -> Array:
    """The decided class of each row, (n,): the most probable one, or by a threshold on the second of two."""
    if threshold is None:
        return np.asarray(probability.argmax(axis=1))
    return np.asarray(probability[:, 1] >= threshold, dtype=np.int64)


def called_shares(probability: Array, weight: Array | None = None, threshold: float | None = None) -> Array:
    """The share of rows of each decided class, (K,): the most probable one, or by a threshold on the second of two."""
    counts = np.bincount(called(probability, threshold), weights=weight, minlength=probability.shape[1])
    return np.asarray(counts / counts.sum())


def most_frequent(rows: Array, limit: int) -> list[int]:
    """The indices of the `limit` largest counts, in their original order; equal counts by position."""
    largest = np.argsort(-np.asarray(rows), kind="stable")[:limit]
    return sorted(largest.tolist())
