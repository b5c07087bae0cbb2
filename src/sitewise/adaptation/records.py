"""What a saved estimate may hold: its g, its certificate, the rows behind it, and what intervals are made of.

The curvature is saved as it is, so that a later version answers with the intervals of the one that saved it.
"""

from dataclasses import fields, replace
from functools import cache
from typing import Any

import pandas as pd
from torch import nn

from sitewise.adaptation.answer import PrevalenceEstimate
from sitewise.adaptation.cells import RefitConstant, one_cell
from sitewise.adaptation.evidence import Evidence, Groups, put_together
from sitewise.adaptation.fit import Fit, Hindsight, Rival
from sitewise.adaptation.joint import JointEstimate
from sitewise.adaptation.linear import RefitAdditive, RefitFinished
from sitewise.adaptation.posterior.fit import RefitLevel, no_curvature
from sitewise.adaptation.posterior.known import Known
from sitewise.adaptation.posterior.points import Contradiction, Points, Posterior, Strata
from sitewise.adaptation.rows import Rows, Stream
from sitewise.adaptation.selection import RefitTable, finish
from sitewise.arrays import Container
from sitewise.artifacts import Record
from sitewise.confounders import Categorical, Confounders, Continuous, Notes
from sitewise.prevalence import (
    AdditivePrevalence,
    ConstantPrevalence,
    NetworkPrevalence,
    SitePrior,
    TablePrevalence,
)
from sitewise.prevalence.network import build_network
from sitewise.solvers import EM
from sitewise.uncertainty import CellCurvature, LinearCurvature

Parts = dict[str, Any]

NOT_IN_MEMORY = (
    "save: a saved site keeps the scores of its rows, and these are streamed or spread over processes: "
    "adapt in one process, from log-ratios in memory, before saving"
)


def _fields(value: Any, *left_out: str) -> Parts:
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name not in left_out}


def _take_estimate(estimate: PrevalenceEstimate) -> Parts:
    rivals = [[rival.fit, rival.weight] for rival in estimate._fit.rivals]
    return {**_fields(estimate), "rivals": rivals}


def _make_estimate(parts: Parts) -> PrevalenceEstimate:
    evidence = parts["_evidence"]

    def rival(fit: Fit, weight: float) -> Rival:
        return Rival(fit, weight, cache(lambda: finish(fit, evidence)))

    rivals = tuple(rival(fit, weight) for fit, weight in parts.pop("rivals"))
    return PrevalenceEstimate(**{**parts, "_fit": replace(parts["_fit"], rivals=rivals)})


def _take_fit(fit: Fit) -> Parts:
    return {**_fields(fit, "look_back", "rivals"), "hindsight": None if fit.posterior is not None else fit._hindsight}


def _make_fit(parts: Parts) -> Fit:
    hindsight: Hindsight | None = parts.pop("hindsight")
    return Fit(**parts, look_back=no_curvature if hindsight is None else lambda: hindsight)


def _take_evidence(evidence: Evidence) -> Parts:
    if not evidence.in_memory:
        raise ValueError(NOT_IN_MEMORY)
    parts = {"rows": list(evidence.rows), "blank": list(evidence.blank)}
    return {**parts, "groups": evidence.groups, "schema": evidence.schema, "n_classes": evidence.n_classes}


def _make_evidence(parts: Parts) -> Evidence:
    rows, blank = Stream(parts.pop("rows")), Stream(parts.pop("blank"))
    device = next(iter((*rows, *blank))).ratio.device
    return put_together(rows, blank, **parts, device=device)


def _take_container(container: Container) -> Parts:
    return {"kind": container.kind, "columns": None if container.columns is None else list(container.columns)}


def _make_container(parts: Parts) -> Container:
    return Container(parts["kind"], columns=None if parts["columns"] is None else pd.Index(parts["columns"]))


def _take_network(model: NetworkPrevalence) -> Parts:
    dropout = next((layer.p for layer in model.module if isinstance(layer, nn.Dropout)), 0.0)
    parts = {"schema": model.schema, "log_marginal": model.log_marginal, "dropout": dropout}
    return {**parts, "state": dict(model.module.state_dict())}


def _make_network(parts: Parts) -> NetworkPrevalence:
    schema, log_marginal = parts["schema"], parts["log_marginal"]
    module = build_network(schema, len(log_marginal), dropout=parts["dropout"])
    module.load_state_dict(parts["state"])
    return NetworkPrevalence(schema, module, log_marginal)


RECORDS = {
    "Confounders": Record(Confounders),
    "Continuous": Record(Continuous),
    "Categorical": Record(Categorical),
    "Notes": Record(Notes),
    "EM": Record(EM),
    "ConstantPrevalence": Record(ConstantPrevalence),
    "TablePrevalence": Record(TablePrevalence, methods=("agreement",)),
    "AdditivePrevalence": Record(AdditivePrevalence, methods=("features", "log_prob")),
    "NetworkPrevalence": Record(NetworkPrevalence, _take_network, _make_network, methods=("features", "log_prob")),
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
    "Rows": Record(Rows),
    "Groups": Record(Groups),
    "Fit": Record(Fit, _take_fit, _make_fit),
    "Hindsight": Record(Hindsight),
    "CellCurvature": Record(CellCurvature),
    "LinearCurvature": Record(LinearCurvature),
    "one_cell": Record(one_cell),
    "RefitConstant": Record(RefitConstant),
    "RefitTable": Record(RefitTable),
    "RefitAdditive": Record(RefitAdditive, lambda refit: _fields(refit, "_problem")),
    "RefitFinished": Record(RefitFinished),
}
