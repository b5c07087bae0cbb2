"""Test-time label-shift adaptation: label shift of the pair (y, z)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from sitewise.adaptation import estimate_prevalence
from sitewise.bench.methods.base import Method, Rule
from sitewise.bench.methods.card import Card, refuse
from sitewise.bench.methods.cells import Cells
from sitewise.bench.methods.network import Trained
from sitewise.bench.methods.objective import Batch, Prepared
from sitewise.calibration import Calibration
from sitewise.calibration.fit import fit_calibration
from sitewise.confounders import Confounders
from sitewise.posterior import combine
from sitewise.rows import LabeledRows

PSEUDO_ROWS = 1.0  # number of added rows, spread evenly over all pairs so that no pair has probability zero


def pair_nll(outputs: Tensor, log_prior: Tensor, possible: Tensor) -> Tensor:
    """Return for each row -log of the sum of softmax(outputs + log p_e(y,z)) over its possible pairs (y, z), (n,)."""
    log_posterior = torch.log_softmax(outputs + log_prior, dim=1)
    return -torch.logsumexp(torch.where(possible, log_posterior, -torch.inf), dim=1)


def sum_out_z(log_pairs: Tensor, n_classes: int) -> Tensor:
    """Return log P(y|x), (n, K), from log P(y,z|x), (n, K·C), whose columns are ordered by y."""
    return torch.logsumexp(log_pairs.reshape(len(log_pairs), n_classes, -1), dim=2)


@dataclass
class Pairs:
    """The pairs (y, cell of z); for the validation loss, the log shares and the possible pairs of held-out rows."""

    cells: Cells
    n_classes: int
    held_log_prior: Tensor
    held_possible: Tensor


@dataclass(kw_only=True, eq=False, repr=False)
class TTLSA(Method):
    """TTLSA [sun2023beyond]: P(y|x) = Σ_z P(y,z|x), where P(y,z|x) is r(x)_(y,z) p(y,z), scaled to sum to one.

    p(y,z) is the distribution of the pairs (y, z) at the site, and r(x)_(y,z) is P(x|y,z) up to a factor that depends
    on x only. The network has one output for each pair, log r(x)_(y,z). It is trained by the NLL of
    softmax(log r(x) + log p(y,z)), with the p of the training site of each row. Its outputs are then calibrated on
    held-out rows, by one slope and a bias for each pair (only the slope if a pair has few held-out rows). At a new
    site, p is the maximum a posteriori estimate from unlabeled x, with a symmetric Dirichlet prior. Assumes that
    P(x|y,z) is the same at every site. The published method is for one training site. Here there may be several,
    because each row is trained with the p of its site.

    Parameters
    ----------
    concentration : float
        The concentration of the Dirichlet prior, at least 1.
    bins : int or None
        The number of bins into which a continuous variable of z is cut; with None, a continuous variable is an error.
    """

    concentration: float = 2.0
    bins: int | None = None
    card: ClassVar[Card] = Card(
        name="TTLSA",
        cite="sun2023beyond",
        continuous_z=False,
        high_dimensional_z=None,
        estimates_g="indirectly, EM over (y, z)",
        without_z="sum over z",
        note="several sites through each site's own p(y, z)",
    )

    def refusal(self, n_sites: int, confounders: Confounders | None, n_unlabeled: int) -> str | None:
        """Return the reason why TTLSA cannot be used; None if it can.

        It cannot be used if there is no z, if z has a continuous variable and `bins` is None, or if `concentration` is
        below 1.
        """
        if confounders is None:
            return "TTLSA models the pair (y, z) and needs confounders in training: give sample_confounder"
        if self.concentration < 1:
            return f"concentration must be at least 1, got {self.concentration}"
        return refuse(self.card, n_sites, None if self.bins else confounders)

    def prepare(self, training: LabeledRows, held: LabeledRows, schema: Confounders | None, n: int) -> Prepared:
        """Number the pairs (y, z); compute log p(y,z) of each training site, and for each row which pairs are possible.

        A pair is possible for a row if it agrees with the row's label and its known parts of z.
        """
        cells = Cells.learn(schema, training.codes, self.bins)
        possible = _possible(cells, training, n)
        sites = torch.unique(training.site, return_inverse=True)[1]
        log_prior = torch.stack(
            [_shares(possible[sites == s], training.weight[sites == s]).log() for s in range(int(sites.max()) + 1)]
        )
        held_possible = _possible(cells, held, n)
        memory = Pairs(cells, n, _others_log_shares(held_possible, held.weight, held.site), held_possible)
        return Prepared({"log_prior": log_prior.float()[sites], "possible": possible}, memory)

    def n_outputs(self, n_classes: int, prepared: Prepared) -> int:
        """Return the number of pairs (y, z): the network has one output for each."""
        return n_classes * len(prepared.memory.cells)

    def loss(self, module: nn.Module, batch: Batch, memory: Pairs) -> Tensor:
        """Return the NLL of the pairs (y, z) of the batch; p is the share of each pair at the site of the row."""
        losses = pair_nll(module(batch.x, batch.z), batch.columns["log_prior"], batch.columns["possible"])
        return (batch.weight * losses).sum() / batch.weight.sum()

    def validation_loss(self, outputs: Tensor, rows: LabeledRows, memory: Pairs) -> Tensor:
        """Return the NLL of the pairs (y, z) of the held-out rows.

        The p of a row is the share of each pair among the other held-out rows of its site.
        """
        log_prior = memory.held_log_prior.to(outputs)
        losses = pair_nll(outputs, log_prior, memory.held_possible.to(outputs.device))
        return (rows.weight * losses).sum() / rows.weight.sum()

    def settle(self, trained: Trained) -> None:
        """Calibrate r on the held-out rows."""
        pairs: Pairs = trained.memory
        self._calibration = _calibrate(trained.held_out_outputs, pairs, trained.held_out.weight.double())

    def log_proba(self, X: Any, Z: Any) -> Tensor:
        """Return log P(y|x) as trained, (n, K): with a p(y,z) that is the same for all pairs."""
        log_pairs = torch.log_softmax(self._calibration.apply(self.outputs(X)), dim=1)
        return sum_out_z(log_pairs, len(self.classes_))

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate the site's p(y,z) from x alone; return the rule that predicts with it, and the estimate of P(Y)."""
        log_ratio = self._calibration.apply(self.outputs(X))
        n_pairs = log_ratio.shape[1]
        strength = (self.concentration - 1) * n_pairs
        estimate = estimate_prevalence(
            log_ratio.numpy(),
            model="constant",
            strength=strength,
            prior=np.full(n_pairs, 1 / n_pairs),
        )
        joint = torch.tensor(np.asarray(estimate.marginal))
        log_joint = joint.clamp_min(1e-12).log()
        n_classes = len(self.classes_)

        def rule(rows: Any, z: Any) -> Tensor:
            return sum_out_z(combine(self._calibration.apply(self.outputs(rows)), log_joint), n_classes)

        return rule, joint.reshape(n_classes, -1).sum(1).numpy()


def _possible(cells: Cells, rows: LabeledRows, n_classes: int) -> Tensor:
    """Return the possible pairs of each labeled row, (n, K·C), ordered by y: those with its label and known z."""
    own_class = one_hot(rows.y, n_classes).bool()
    return (own_class[:, :, None] & cells.possible(rows.codes)[:, None, :]).reshape(len(rows), -1)


def _spread(possible: Tensor, weight: Tensor) -> Tensor:
    """Return the weight of each row, spread evenly over its possible pairs, (n, K·C)."""
    return weight.double()[:, None] * possible / possible.sum(1, keepdim=True).clamp_min(1)


def _shares(possible: Tensor, weight: Tensor) -> Tensor:
    """Return the shares of the pairs among rows, (K·C,)."""
    counts = _spread(possible, weight).sum(0) + PSEUDO_ROWS / possible.shape[1]
    return counts / counts.sum()


def _others_log_shares(possible: Tensor, weight: Tensor, site: Tensor) -> Tensor:
    """Return for each row the log shares of the pairs among the other rows of its site, (n, K·C)."""
    own = _spread(possible, weight)
    total = torch.zeros(int(site.max()) + 1 if len(site) else 1, possible.shape[1], dtype=torch.float64)
    total.index_add_(0, site, own)
    counts = (total[site] - own).clamp_min(0) + PSEUDO_ROWS / max(possible.shape[1], 1)
    return (counts / counts.sum(1, keepdim=True)).log()


def _calibrate(outputs: Tensor, pairs: Pairs, weight: Tensor) -> Calibration:
    """Fit a bias-corrected temperature, or a temperature alone if a pair has fewer than 5 held-out rows.

    With fewer than 20 held-out rows, or if they have only one pair, there is no calibration.
    """
    n_pairs = pairs.n_classes * len(pairs.cells)
    targets = _spread(pairs.held_possible, torch.ones(len(weight)))
    counts = targets.sum(0)
    if len(weight) < 20 or int((counts > 0).sum()) < 2:
        flat = torch.zeros(n_pairs, dtype=torch.float64)
        return Calibration("none", flat + 1, flat)
    certainty = ((counts + 1) / (counts + 2)).clamp_max(1.0)
    kept = targets * certainty
    soft = kept + (1 - kept.sum(1, keepdim=True)) / n_pairs
    method = "bias_corrected" if float(counts.min()) >= 5 else "temperature"
    return fit_calibration(outputs, soft, pairs.held_log_prior, weight, method)
