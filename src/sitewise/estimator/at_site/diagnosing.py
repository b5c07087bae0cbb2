"""Run the checks of `sitewise.diagnosis` on a site's rows; test along which columns P(y|z) differs from training."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from sitewise.critic import Bank
from sitewise.diagnosis import Diagnosis, Finding
from sitewise.diagnosis.diagnose import diagnose_site, run_tests
from sitewise.diagnosis.heterogeneity import column_features, shift_concentration
from sitewise.diagnosis.matching import EFFECTIVE, balance, z_features
from sitewise.diagnosis.mixture import check_mixture
from sitewise.diagnosis.result import conclude
from sitewise.diagnosis.samples import SourceSample, TargetSample, add_up

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier

ENOUGH = 2 * EFFECTIVE  # the smallest effective number of rows of a class after reweighting
POWERS = (1.0, 0.5, 0.25)  # powers of the weight factors, the strongest first
NO_SITES = Finding(
    "training sites",
    "care",
    None,
    None,
    "The model was trained without sample_domain: differences between sites are unknown and were not rehearsed.",
    "Train it again with sample_domain, the site of each row.",
)


def check_site(here: "AdaptedClassifier") -> Diagnosis:
    """Compute all checks, which compare a site's rows with the held-out rows of its model."""
    model = here.model
    diagnosis = diagnose_site(
        *samples_of(here),
        here.estimate,
        table=model.training_table_,
        random_state=int(check_random_state(model.random_state).randint(2**31 - 1)),
    )
    return diagnosis if model.training_summary_.named else conclude((*diagnosis.findings, NO_SITES))


def breaches(here: "AdaptedClassifier") -> dict[str, float]:
    """Return the size of the violation at a site for each check of the assumption; NaN if a check is not possible."""
    source, target = samples_of(here)
    stability, representation = run_tests(source, target, here.estimate)
    mixture = check_mixture(source, target, here.estimate).details
    return {
        "stability": float("nan") if stability is None else stability.gap,
        "representation": float("nan") if representation is None else representation.auc,
        "mixture": float(mixture.get("shortfall", float("nan"))),
    }


def rows_by_z(here: "AdaptedClassifier") -> tuple[Tensor, Tensor]:
    """Return which rows of the site have no z (n,), and which rows have all of z (n,)."""
    schema, rows = here.model.confounders_, here.rows
    if schema is None:
        hidden = torch.zeros(len(rows), dtype=torch.bool)
        return hidden, ~hidden
    missing = schema.missing(rows.codes)
    return missing.all(dim=1), ~missing.any(dim=1)


def checked_without_z(here: "AdaptedClassifier") -> bool:
    """Whether more rows have no z than have all of z; the checks then use the rows that have no z."""
    hidden, tested = rows_by_z(here)
    return int(hidden.sum()) > int(tested.sum())


def samples_of(here: "AdaptedClassifier") -> tuple[SourceSample, TargetSample]:
    """Return the held-out rows and the site's rows in the form that the checks read.

    The checks use the rows that have all of z. If more rows have no z, the checks use these rows, and z is hidden in
    the held-out rows too. If a joint P(z, y) was estimated, the held-out rows are then weighted to match it, because
    P(x|y) depends on the distribution of z.
    """
    model, rows = here.model, here.rows
    hidden, tested = rows_by_z(here)
    which = checked_without_z(here)
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
    """Return factors (n,) for the weights of labeled rows, so that their P(z, y) is like that of a site.

    P(z, y) of the site is `joint` (M, K), at the M points of z in `bank`. `codes`, `y`, `weight` and `groups` describe
    the labeled rows, whose z is known. Within each class, the weights change as little as possible such that the means
    of simple features of z are those of the site. Only these means are matched: an estimated joint is concentrated on
    few points, and to match all of it would leave few effective rows. If too few effective rows remain, a smaller
    change is made. Rows of a group count as one.
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
    """Return the effective number of weighted rows, or of groups if there are groups."""
    return float(weight.sum() ** 2 / (add_up(weight[:, None], groups) ** 2).sum().clamp_min(1e-300))


def shift_by_column(here: "AdaptedClassifier", columns: pd.DataFrame | None) -> pd.DataFrame:
    """Return a test for each column, the smallest p-value first; rows at which f is not identified are left out."""
    rows, model = here.rows, here.model
    if columns is None:
        if model.confounders_ is None:
            raise ValueError(
                "shift_by_column: the model has no confounders; give columns of the rows that were passed to adapt"
            )
        columns = model.confounders_.decode(rows.codes)
    if len(columns) != len(rows):
        raise ValueError(f"shift_by_column: columns has {len(columns)} row(s), the site was adapted on {len(rows)}")
    use = rows.supported
    features = [column_features(columns[name].reset_index(drop=True))[1][use] for name in columns]
    rows = rows.take(use)
    tests = shift_concentration(rows.log_ratio, model.pooled_prevalence_.log_prob(rows.codes), features, rows.weights)
    table = pd.DataFrame([vars(test) for test in tests], index=pd.Index([str(name) for name in columns], name="column"))
    return table.sort_values(["p_value", "statistic"], ascending=[True, False], kind="stable")
