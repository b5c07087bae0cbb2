"""What the curvature of a mixture's likelihood says: covariance of the cells, optimism, what is not identified."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.adaptation.joint.mixture import CURVED_ENTRIES, Mixture

FAINT = 1e-6  # rows' worth: cells at nothing stay there
ROWS_FOR_ONE = 1e4  # where so many rows say less than one labeled row would, they say nothing


@dataclass(frozen=True)
class JointCurvature:
    """The information of the rows about the cells, and their covariance with the pseudo-rows counted in."""

    information: Tensor  # (P, P)
    covariance: Tensor  # (P, P), of weights that sum to one

    @property
    def optimism(self) -> float:
        """By how much the log-likelihood flatters its own rows (equation 10 for cells)."""
        return float((self.covariance * self.information).sum())

    def variances_of(self, marks: Tensor) -> Tensor:
        """The variances of sums of cells, marked by the columns of (P, K)."""
        return ((self.covariance @ marks) * marks).sum(0)


def look_back(mixture: Mixture, cells: Tensor, pseudo: Tensor) -> JointCurvature:
    """The curvature at an optimum, from a sample where rows are many."""
    few, scale = mixture.sample(CURVED_ENTRIES)
    information = few.information(cells) * scale
    covariance = covariance_of(cells, information, pseudo.clamp_min(FAINT))
    return JointCurvature(information, covariance)


def covariance_of(cells: Tensor, information: Tensor, pseudo: Tensor) -> Tensor:
    """Invert information + diag(c / w²) along the directions that keep the sum of the cells, (P, P).

    In units of the cells themselves: those all but zero would make the matrix singular otherwise.
    """
    relative = cells[:, None] * information * cells + torch.diag(pseudo)
    inverse = torch.linalg.inv_ex(0.5 * (relative + relative.T))[0]
    lost = inverse @ cells
    inverse = inverse - lost[:, None] * lost / (cells @ lost)
    covariance: Tensor = cells[:, None] * inverse * cells
    return covariance


def classes_left_open(mixture: Mixture, cells: Tensor, prior: Tensor, marks: Tensor) -> Tensor:
    """Tell for which sums of cells, marked by the columns of (P, K), many rows say less than one labeled row would.

    Asked half-way to the prior, (P,): at the estimate itself a class may be absent, which says nothing about the rows.
    """
    few, _ = mixture.sample()
    between = 0.5 * (cells + prior)
    information = few.information(between) * (ROWS_FOR_ONE / few.total_weight)
    one_row = prior.clamp_min(FAINT / len(prior))
    many, none = (covariance_of(between, known, one_row) for known in (information, torch.zeros_like(information)))
    return ((many @ marks) * marks).sum(0) > 0.5 * ((none @ marks) * marks).sum(0)
