"""LAME: adjust predictions at a new site so that rows with similar features agree; the network is not changed."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from sitewise.bench.methods.base import Rule
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.erm import OverERM
from sitewise.ratio import scoring_device

CHUNK = 1024  # number of rows whose distances are in memory at the same time
ROUNDS = 100
TOLERANCE = 1e-8  # rounds end when no probability changes by this much


def nearest(rows: Tensor, among: Tensor, k: int, *, same: bool = False, device: str = "cpu") -> Tensor:
    """Return the indices of the k rows of `among` that are nearest to each of `rows`, (n, k).

    If `same`, `rows` and `among` are the same set, and a row is not its own neighbour.
    """
    k = min(k, len(among) - int(same))
    rows, among = rows.to(device), among.to(device)
    neighbours = []
    for start in range(0, len(rows), CHUNK):
        distance = torch.cdist(rows[start : start + CHUNK], among)
        if same:
            own = torch.arange(start, start + len(distance), device=device)
            distance[own - start, own] = torch.inf
        neighbours.append(distance.topk(k, largest=False).indices.cpu())
    return torch.cat(neighbours)


def agree(log_proba: Tensor, neighbours: Tensor) -> Tensor:
    """Return log assignments, (n, K): the fixed point of z_i = Norm(q_i exp(Σ_j z_j)) with j over the neighbours of i.

    q_i is row i of exp(`log_proba`). Iteration ends after `ROUNDS` rounds at the latest.
    """
    log_z = log_proba
    for _ in range(ROUNDS):
        moved = torch.log_softmax(log_proba + log_z.exp()[neighbours].sum(1), dim=1)
        change = (moved.exp() - log_z.exp()).abs().max()
        log_z = moved
        if float(change) < TOLERANCE:
            break
    return log_z


@dataclass(kw_only=True, eq=False, repr=False)
class LAME(OverERM):
    """LAME [boudiaf2022parameter]: minimize Σ_i KL(p_i ‖ q_i) - Σ_i Σ_(j near i) p_i·p_j over the predictions p_i.

    i are the rows that `adapt` gets. q_i are the probabilities that the network predicts for row i, and p_i those that
    LAME predicts. Row j is near i if it is one of the `neighbours` rows with the smallest distance to i; the distance
    is that of the network's features, scaled to length one. As in the paper, each round minimizes an upper bound of the
    objective: p_i ← Norm(q_i exp(Σ_(j near i) p_j)). A row that is predicted later gets its prediction by the same
    formula, from the rows near it among those that `adapt` got; the predictions of these do not change. `TENT` and LAME
    represent test-time adaptation in the comparison. LAME makes rows with similar features agree, and does not estimate
    P(y).

    Parameters
    ----------
    neighbours : int
        The number of nearest rows that count as near a row.
    """

    neighbours: int = 5
    card: ClassVar[Card] = Card(
        name="LAME", cite="boudiaf2022parameter", note="a row's neighbours at the site decide with it"
    )

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Predict the rows of the site; return the rule for later rows, and None, as P(Y) is not estimated."""
        features, assigned = self.directions(X, Z), self.own_log_proba(self.log_proba, X, Z, y).exp()

        def rule(rows: Any, z: Any) -> Tensor:
            near = nearest(self.directions(rows, z), features, self.neighbours, device=self.place)
            return torch.log_softmax(self.log_proba(rows, z) + assigned[near].sum(1), dim=1)

        return rule, None

    def own_log_proba(self, rule: Rule, X: Any, Z: Any, y: Any) -> Tensor:
        """Return the log of LAME's predictions for the rows of the site, (n, K)."""
        features = self.directions(X, Z)
        near = nearest(features, features, self.neighbours, same=True, device=self.place)
        return agree(self.log_proba(X, Z), near)

    @property
    def place(self) -> str:
        """The device on which distances between rows are computed."""
        return str(scoring_device(self.device))

    def directions(self, X: Any, Z: Any) -> Tensor:
        """Return the features of each row, scaled to length one, (n, D)."""
        return normalize(self.features(X, Z), dim=1)
