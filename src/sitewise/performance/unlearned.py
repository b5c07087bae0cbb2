"""What f leaves open along predictions that are not its own: equation 16d of docs/maths.md.

Calibration says how far log f is right along itself. Along a direction u(x) of the logits that is not f's own, n
training rows tell a coefficient as well as their Fisher information does: its variance is 1 / (n E[Var(u_y | x)]), with
y by P(y|x) at the training sites. A score that goes with what f may have missed is judged with that variance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sitewise.evaluation import SMALLEST_PROBABILITY
from sitewise.performance.labels import Direction

Array = np.ndarray[Any, Any]
SAME = 1e-9  # of a direction's information: less than this left of it is rounding


@dataclass(frozen=True, eq=False)
class Learned:
    """How many rows f was learned from, P(y|x,z) (n, K) of rows as at the training sites, and draws of their labels."""

    n_rows: float
    probability: Array
    draw: Callable[[Sequence[Direction]], Array]  # more that is open -> labels (B, n)


def unlearned_directions(
    judged: Sequence[Array], known: Sequence[Array], learned: Learned, weight: Array
) -> list[Direction]:
    """One standard deviation of what is open along `judged` logits, each (n, K), beyond those that are `known`."""
    root = np.sqrt(learned.probability * (weight / weight.sum())[:, None])

    def columns(directions: Sequence[Array]) -> Array:
        """Directions whose inner products are the information of a row, (n K, directions)."""
        centred = [u - (learned.probability * u).sum(axis=1, keepdims=True) for u in directions]
        return np.stack([(root * u).ravel() for u in centred], axis=1)

    kept, asked = columns(known), columns(judged)
    share, *_ = np.linalg.lstsq(kept, asked, rcond=SAME)
    left = asked - kept @ share
    values, vectors = np.linalg.eigh(left.T @ left)
    telling = values > SAME * np.trace(asked.T @ asked)
    moved = np.stack(judged, axis=2) - np.stack(known, axis=2) @ share
    found = moved @ (vectors[:, telling] / np.sqrt(learned.n_rows * values[telling]))
    return [Direction(one, np.zeros_like(one)) for one in np.moveaxis(found, 2, 0)]


def logits_of(probability: Array | None, decided: Array | None, n_classes: int) -> list[Array]:
    """The directions that predictions have, (n, K) each: log p, and decisions as one for the class decided."""
    found = [] if probability is None else [np.log(np.clip(probability, SMALLEST_PROBABILITY, 1))]
    return found if decided is None else [*found, np.eye(n_classes)[decided]]
