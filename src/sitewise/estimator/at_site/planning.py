"""A plan of sample size from what a model has held out."""

from typing import TYPE_CHECKING, Any

from sitewise.adaptation.families import quick_model
from sitewise.samplesize import LabelPlan, SamplePlan, plan_labels, plan_sample_size

if TYPE_CHECKING:
    from sitewise.estimator.model import SiteModel

NOTHING_HELD_OUT = (
    "plan: the model has no held-out rows (validation=None): train with validation=0.2, "
    "or calibrate it on a site of its own"
)


def plan_from_held_out(model: "SiteModel", **wanted: Any) -> SamplePlan:
    """Plan a number of rows from what was held out."""
    return plan_sample_size(**_labeled_rows(model), **wanted)


def plan_labels_from_held_out(model: "SiteModel", **wanted: Any) -> LabelPlan:
    """Plan a number of labels from what was held out."""
    return plan_labels(**_labeled_rows(model), **wanted)


def _labeled_rows(model: "SiteModel") -> dict[str, Any]:
    """The held-out rows with all of z, or, where there are none, all of them with z hidden."""
    complete, hidden = model.held_out_
    held, calibration = (complete, model.calibrations_[0]) if len(complete) else (hidden, model.calibrations_[1])
    if not len(held):
        raise ValueError(NOTHING_HELD_OUT)
    schema = model.confounders_ if held is complete else None
    return {
        "log_ratio": calibration.apply(held.raw_log_ratio),
        "y": held.y,
        "sample_confounder": None if schema is None else schema.decode(held.codes),
        "prior": model.prior_,
        "confounders": schema,
        "sample_weight": held.weight,
        "model": "auto" if schema is None else quick_model(model.prevalence),
    }
