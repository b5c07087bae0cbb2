"""The uncertainty of f along the predictions of another model: equation 16d of docs/maths.md.

The resamples of the calibration show errors of log f along log f itself. Another model's score may depend on x in a way
that f does not contain: along another direction u(x) of the logits. The error of log f along u is taken as that of a
coefficient estimated from n training rows. By Fisher information, its variance is 1 / (n E[Var(u_y | x, z)]), with y
from P(y|x,z) at the training sites.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sitewise.evaluation import SMALLEST_PROBABILITY
from sitewise.performance.labels import Direction

Array = np.ndarray[Any, Any]
SAME = 1e-9  # share of a direction's information; a smaller remainder is rounding error


@dataclass(frozen=True, eq=False)
class Learned:
    """The number of rows from which f was learned, P(y|x,z) as trained (n, K), and a function for B draws of labels."""

    n_rows: float
    probability: Array
    draw: Callable[[Sequence[Direction]], Array]  # from further directions of uncertainty to labels (B, n)


def unlearned_directions(
    judged: Sequence[Array], known: Sequence[Array], learned: Learned, weight: Array
) -> list[Direction]:
    """Return steps of one standard deviation along the parts of `judged` logits (n, K) orthogonal to `known` ones."""
    root = np.sqrt(learned.probability * (weight / weight.sum())[:, None])

    def columns(directions: Sequence[Array]) -> Array:
        """Return the directions, scaled so that inner products are the mean information of a row, (n K, directions)."""
        centred = [u - (learned.probability * u).sum(axis=1, keepdims=True) for u in directions]
        return np.stack([(root * u).ravel() for u in centred], axis=1)

    kept, asked = columns(known), columns(judged)
    share, *_ = np.linalg.lstsq(kept, asked, rcond=SAME)
    left = asked - kept @ share
    values, vectors = np.linalg.eigh(left.T @ left)
    telling = values > SAME * np.trace(asked.T @ asked)
    moved = np.stack(judged, axis=2) - np.stack(known, axis=2) @ share
    steps = moved @ (vectors[:, telling] / np.sqrt(learned.n_rows * values[telling]))
    return [Direction(step, np.zeros_like(step)) for step in np.moveaxis(steps, 2, 0)]


def logits_of(probability: Array | None, decided: Array | None, n_classes: int) -> list[Array]:
    """Return predictions as logits, (n, K) each: the log of the probabilities, and the decisions as one-hot rows."""
    directions = [] if probability is None else [np.log(np.clip(probability, SMALLEST_PROBABILITY, 1))]
    return directions if decided is None else [*directions, np.eye(n_classes)[decided]]
