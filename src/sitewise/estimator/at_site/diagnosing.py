"""What a fitted model and one of its sites hand to the checks of `sitewise.diagnosis`."""

from typing import TYPE_CHECKING

import torch
from sklearn.utils import check_random_state

from sitewise.diagnosis import Diagnosis, Finding, SourceSample, TargetSample, conclude, diagnose_site
from sitewise.diagnosis.diagnose import run_tests
from sitewise.diagnosis.mixture import check_mixture
from sitewise.estimator.without_z.tilting import site_tilt

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier

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
        table=model._training_table,
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
    held, calibration = model._held_out[which], model._calibrations[which]
    tilt, log_ratio = None, rows.log_ratio
    if which and here.joint is not None and rows.without_z is not None and held.known_codes is not None:
        tilt = site_tilt(
            model._joint.bank, here.joint.weights.cpu(), held.known_codes, held.y, held.weight, held.groups
        )
        log_ratio = rows.without_z
    source = SourceSample(
        held.raw_log_ratio if len(held.y) else held.raw_log_ratio.reshape(0, len(model.classes_)),
        calibration,
        held.log_prevalence if len(held.y) else held.log_prevalence.reshape(0, len(model.classes_)),
        held.y,
        held.codes,
        held.weight,
        held.features if len(held.y) else None,
        held.feature_rows,
        tilt,
        held.groups,
    )
    weight = torch.ones(n_rows, dtype=torch.float64) if rows.weight is None else rows.weight.double()
    tested = hidden if which else tested
    own = (rows.features, rows.feature_rows, rows.groups)
    target = TargetSample(log_ratio, rows.codes, weight, tested, rows.supported, *own)
    return source, target
