"""LAME: the outputs at a new site are adjusted so that rows with similar features agree; the network stays as it is."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from sitewise.bench.methods.base import Rule
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.erm import OverERM
from sitewise.ratio import scoring_device

CHUNK = 1024  # rows whose distances are in memory at once
ROUNDS = 100
TOLERANCE = 1e-8  # the largest change of a probability in a round


def nearest(rows: Tensor, among: Tensor, k: int, *, same: bool = False, device: str = "cpu") -> Tensor:
    """The numbers (n, k) of the nearest of `among`; with `same` both are one set and no row is its own neighbour."""
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
    """Log assignments (n, K): the fixed point of z_i = Norm(q_i exp(Σ_j z_j)), j over the neighbours of i."""
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
    """LAME [boudiaf2022parameter]: minimize Σ_i KL(z_i ‖ q_i) - Σ_i Σ_(j near i) z_i·z_j over assignments z_i.

    q_i is the network's P(y|x_i). Row j is near i if it is one of the `neighbours` nearest rows to i, by the network's
    features scaled to length one. The paper minimizes a bound in each round; its solution has a closed form (function
    `agree`). A site's rows are one batch. A row that comes later is assigned by its neighbours among them, which stay
    as they are. A reference of test-time adaptation: it looks for clusters of features, and estimates no prevalence.

    Parameters
    ----------
    neighbours : int
        How many nearest rows count as near.
    """

    neighbours: int = 5
    card: ClassVar[Card] = Card(
        name="LAME", cite="boudiaf2022parameter", note="a row's neighbours at the site decide with it"
    )

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Assign the site's rows; others by their neighbours among these."""
        features, assigned = self.directions(X, Z), self.own_log_proba(self.log_proba, X, Z, y).exp()

        def rule(rows: Any, z: Any) -> Tensor:
            near = nearest(self.directions(rows, z), features, self.neighbours, device=self.place)
            return torch.log_softmax(self.log_proba(rows, z) + assigned[near].sum(1), dim=1)

        return rule, None

    def own_log_proba(self, rule: Rule, X: Any, Z: Any, y: Any) -> Tensor:
        """The assignments themselves."""
        features = self.directions(X, Z)
        near = nearest(features, features, self.neighbours, same=True, device=self.place)
        return agree(self.log_proba(X, Z), near)

    @property
    def place(self) -> str:
        """The device for distances."""
        return str(scoring_device(self.device))

    def directions(self, X: Any, Z: Any) -> Tensor:
        """Features scaled to length one."""
        return normalize(self.features(X, Z), dim=1)
