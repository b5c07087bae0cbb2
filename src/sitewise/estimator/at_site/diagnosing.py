"""What a fitted model and one of its sites hand to the checks of `sitewise.diagnosis`."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from sklearn.utils import check_random_state
from torch import Tensor

from sitewise.critic import Bank
from sitewise.diagnosis import Diagnosis, Finding, SourceSample, TargetSample, conclude, diagnose_site
from sitewise.diagnosis.diagnose import run_tests
from sitewise.diagnosis.groups import add_up
from sitewise.diagnosis.matching import EFFECTIVE, balance, z_features
from sitewise.diagnosis.mixture import check_mixture

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier

ENOUGH = 2 * EFFECTIVE  # even rows that the tilted ones of a class are worth
POWERS = (1.0, 0.5, 0.25)
NO_SITES = Finding(
    "training sites",
    "care",
    None,
    None,
    "The model was trained without sample_domain: how sites differ is not known, and was not rehearsed.",
    "Train it again with the site of every row as sample_domain.",
)


def diagnose(here: "AdaptedClassifier") -> Diagnosis:
    """All checks of an adapted model."""
    model = here.model
    found = diagnose_site(
        *samples_of(here),
        here.estimate,
        table=model.training_table_,
        random_state=int(check_random_state(model.random_state).randint(2**31 - 1)),
    )
    return found if model.training_summary_.named else conclude((*found.findings, NO_SITES))


def breaches(here: "AdaptedClassifier") -> dict[str, float]:
    """How far each check finds the assumption broken at a site; NaN where it cannot be made."""
    source, target = samples_of(here)
    stability, representation = run_tests(source, target, here.estimate)
    mixture = check_mixture(source, target, here.estimate).details
    return {
        "stability": float("nan") if stability is None else stability.gap,
        "representation": float("nan") if representation is None else representation.auc,
        "mixture": float(mixture.get("shortfall", float("nan"))),
    }


def samples_of(here: "AdaptedClassifier") -> tuple[SourceSample, TargetSample]:
    """Held-out rows and the site's, as the checks want them.

    The tests look at rows that have all of z; where most rows have none of it, at those, with z hidden in the
    held-out rows too. Where a joint of (z, y) was estimated, these are weighted to it: P(x|y) shifts with z unseen.
    """
    model, rows = here.model, here.rows
    n_rows = len(rows)
    hidden = torch.zeros(n_rows, dtype=torch.bool)
    tested = ~hidden
    if model.confounders_ is not None:
        missing = model.confounders_.missing(rows.codes)
        hidden, tested = missing.all(dim=1), ~missing.any(dim=1)
    which = int(hidden.sum()) > int(tested.sum())
    held, calibration = model.held_out_[which], model.calibrations_[which]
    tilt, log_ratio = None, rows.log_ratio
    if which and here.joint is not None and rows.without_z is not None and held.known_codes is not None:
        tilt = site_tilt(
            model.joint_.bank, here.joint.weights.cpu(), held.known_codes, held.y, held.weight, held.groups
        )
        log_ratio = rows.without_z
    if not len(held):
        nothing = held.raw_log_ratio.reshape(0, len(model.classes_))
        held = replace(held, raw_log_ratio=nothing, log_prevalence=nothing, features=None)
    source = held.extended(SourceSample, calibration=calibration, tilt=tilt)
    own = {"log_ratio": log_ratio, "weight": rows.weights, "tested": hidden if which else tested}
    target = rows.extended(TargetSample, **own)
    return source, target


def site_tilt(
    bank: Bank, joint: Tensor, codes: Tensor, y: Tensor, weight: Tensor, groups: Tensor | None = None
) -> Tensor:
    """What to multiply the weights of labeled rows with known z by, (n,), to have a site's joint (M, K) over a bank.

    Within each class the rows get the weights closest to their own with the joint's means of simple features of z; an
    estimated joint is a set of spikes, of which no more than that is sure. A tilt that leaves few rows to compare is
    weakened: x then says little of z, or the joint would not be so far off, and the tilt matters as little. Rows of a
    group count as one.
    """
    own, points = (z_features(part, bank.codes, bank.schema) for part in (codes, bank.codes))
    tilt = torch.ones_like(weight)
    for label in range(joint.shape[1]):
        rows = ((y == label) & (weight > 0)).nonzero().flatten()
        if len(rows):
            goal = joint[:, label].clamp_min(1e-9) @ points
            base = weight[rows] / weight[rows].sum() * goal[0]
            full = balance(own[rows], base, goal) / weight[rows]
            own_groups = None if groups is None else groups[rows]
            strong = (full**p for p in POWERS if _worth(weight[rows] * full**p, own_groups) >= ENOUGH)
            tilt[rows] = next(strong, tilt[rows])
    return tilt


def _worth(weight: Tensor, groups: Tensor | None) -> float:
    """How many even rows, or groups, weighted ones are worth."""
    return float(weight.sum() ** 2 / (add_up(weight[:, None], groups) ** 2).sum().clamp_min(1e-300))
