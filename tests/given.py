"""Rows laid out as an estimation lays them out, for tests of what is computed from them."""

from typing import Any

import torch

from sitewise.adaptation.evidence import Evidence, read_evidence
from sitewise.arrays import Problems

NOTHING = {"schema": None, "categorical": None, "y": None, "sample_weight": None, "groups": None}


def evidence_of(log_ratio: Any, Z: Any = None, **more: Any) -> Evidence:
    """The evidence of rows; `more` is what else is known of them."""
    matrix = torch.as_tensor(log_ratio, dtype=torch.float64)
    evidence, _ = read_evidence(matrix, Z, Problems("test"), **NOTHING | more)
    return evidence
