"""The classes that a saved estimate may contain: its g, its diagnostics, its rows, and the curvature for intervals.

The curvature itself is saved, so that a later version of the package gives the same intervals.
"""

from dataclasses import fields, replace
from typing import Any

import pandas as pd

from sitewise.adaptation.answer import PrevalenceEstimate, fit_of
from sitewise.adaptation.evidence import Evidence, Groups, put_together
from sitewise.adaptation.families import FAMILIES, finish
from sitewise.adaptation.families.base import RefitByEM
from sitewise.adaptation.fit import Candidate, Finisher, Fit, PostFit, no_curvature
from sitewise.adaptation.joint import JointEstimate
from sitewise.adaptation.posterior.fit import RefitLevel
from sitewise.adaptation.posterior.known import Known
from sitewise.adaptation.posterior.points import Contradiction, Points, Posterior, Strata
from sitewise.adaptation.rows import Rows, Stream
from sitewise.arrays import Container
from sitewise.artifacts import Record
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical, Continuous, Notes
from sitewise.prevalence import SitePrior
from sitewise.solvers import EM
from sitewise.uncertainty import CellCurvature, LinearCurvature

Parts = dict[str, Any]

NOT_IN_MEMORY = (
    "save: a saved site keeps the scores of its rows, and these are streamed: "
    "adapt from log-ratios in memory before saving"
)


def _fields(value: Any, *left_out: str) -> Parts:
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name not in left_out}


def _take_estimate(estimate: PrevalenceEstimate) -> Parts:
    candidates = [[candidate.fit, candidate.weight] for candidate in fit_of(estimate).candidates]
    return {**_fields(estimate), "rivals": candidates}


def _make_estimate(parts: Parts) -> PrevalenceEstimate:
    finishers = ((fit, weight, Finisher(fit, parts["_evidence"], finish)) for fit, weight in parts.pop("rivals"))
    candidates = tuple(Candidate(*each) for each in finishers)
    return PrevalenceEstimate(**{**parts, "_fit": replace(parts["_fit"], candidates=candidates)})


def _take_fit(fit: Fit) -> Parts:
    return {
        **_fields(fit, "post_fit", "candidates"),
        "hindsight": None if fit.post_fit is no_curvature else fit.diagnostics,
    }


def _make_fit(parts: Parts) -> Fit:
    diagnostics: PostFit | None = parts.pop("hindsight")
    return Fit(**parts, post_fit=no_curvature if diagnostics is None else diagnostics)


def _take_evidence(evidence: Evidence) -> Parts:
    if not evidence.in_memory:
        raise ValueError(NOT_IN_MEMORY)
    parts = {"rows": list(evidence.rows), "blank": list(evidence.blank)}
    return {**parts, "groups": evidence.groups, "schema": evidence.schema, "n_classes": evidence.n_classes}


def _make_evidence(parts: Parts) -> Evidence:
    rows, blank = Stream(parts.pop("rows")), Stream(parts.pop("blank"))
    stretches, groups = [*rows, *blank], parts["groups"]
    n_rows = sum(map(len, stretches))
    if not n_rows or (groups is not None and groups.n_names > n_rows):
        raise ValueError(f"{n_rows} rows, with the groups {groups}")
    device = stretches[0].ratio.device
    return put_together(rows, blank, **parts, device=device)


def _take_container(container: Container) -> Parts:
    return {"kind": container.kind, "columns": None if container.columns is None else list(container.columns)}


def _make_container(parts: Parts) -> Container:
    return Container(parts["kind"], columns=None if parts["columns"] is None else pd.Index(parts["columns"]))


RECORDS = {
    "Confounders": Record(Confounders),
    "Continuous": Record(Continuous),
    "Categorical": Record(Categorical),
    "Notes": Record(Notes),
    "EM": Record(EM),
    "SitePrior": Record(SitePrior),
    "Points": Record(Points),
    "Posterior": Record(Posterior),
    "Contradiction": Record(Contradiction),
    "Known": Record(Known),
    "Strata": Record(Strata),
    "RefitLevel": Record(RefitLevel),
    "PrevalenceEstimate": Record(PrevalenceEstimate, _take_estimate, _make_estimate),
    "JointEstimate": Record(JointEstimate),
    "Container": Record(Container, _take_container, _make_container),
    "Evidence": Record(Evidence, _take_evidence, _make_evidence),
    "Rows": Record(Rows, dropped=("known",)),
    "Groups": Record(Groups),
    "Fit": Record(Fit, _take_fit, _make_fit),
    "Hindsight": Record(PostFit),
    "CellCurvature": Record(CellCurvature),
    "LinearCurvature": Record(LinearCurvature),
    "RefitByEM": Record(RefitByEM),
}


def all_records() -> dict[str, Record]:
    """Return the records of all classes in saved estimates, by name; some belong to a family of g only."""
    return RECORDS | {name: record for family in FAMILIES.values() for name, record in family.records.items()}
