"""The mathematics: equations 3 and 7 to 8 of docs/maths.md on plain tensors. No I/O, no randomness, no device.

Shapes: `log_ratio` and `log_prevalence` are (n, K), or (K,) where they are the same for every row; `weight` is (n,).
"""

import torch
from torch import Tensor


def normalize(log_ratio: Tensor) -> Tensor:
    """Fix the free factor of f (equation 1): scale every row so that its ratios sum to one.

    A constant added to a row thus changes nothing. A row with +inf is certain of those classes; a row of -inf
    only says nothing at all, for it is the row of zeros with -inf added.
    """
    certain = log_ratio == torch.inf
    log_ratio = torch.where(certain.any(-1, keepdim=True), torch.where(certain, 0.0, -torch.inf), log_ratio)
    silent = (log_ratio == -torch.inf).all(-1, keepdim=True)
    return torch.log_softmax(torch.where(silent, 0.0, log_ratio), dim=-1)


def combine(log_ratio: Tensor, log_prevalence: Tensor) -> Tensor:
    """Log P(y|x,z), equation 3: log-softmax of log f + log g.

    Where f and g contradict each other (each class impossible to one of them) f decides: g is an estimate.
    """
    joint = log_ratio + log_prevalence
    contradiction = (joint == -torch.inf).all(-1, keepdim=True)
    return torch.log_softmax(torch.where(contradiction, log_ratio, joint), dim=-1)


def responsibilities(log_ratio: Tensor, log_prevalence: Tensor) -> Tensor:
    """P(y|x,z), the E-step."""
    return combine(log_ratio, log_prevalence).exp()


def observed_log_likelihood(log_ratio: Tensor, log_prevalence: Tensor, weight: Tensor) -> Tensor:
    """L(g) = Σ_n w_n log Σ_y f_ny g_ny, equation 7, for rows of f that are normalized."""
    return weight @ torch.logsumexp(log_ratio + log_prevalence, dim=-1)


def em_multiplier(log_ratio: Tensor, log_prevalence: Tensor, weight: Tensor) -> Tensor:
    """The factor (K,) by which an EM step multiplies a constant g: the mean of f_y / Σ_k f_k g_k, equation 8."""
    relative = torch.exp(log_ratio - torch.logsumexp(log_ratio + log_prevalence, dim=-1, keepdim=True))
    return weight @ relative / weight.sum()


def kkt_gap(log_ratio: Tensor, log_prevalence: Tensor, weight: Tensor) -> float:
    """How far a constant g is from the optimum, equation 8: L can rise by less than this per unit of weight."""
    return float(em_multiplier(log_ratio, log_prevalence, weight).max()) - 1.0
