"""Predict a few rows at a site by a traced graph.

This is faster, because for a single row most of the time is spent in Python between the operations. The graph is that
of `export_onnx`, run by torch in double precision. It is used only if its probabilities differ by at most `TOLERANCE`
from those of the site on trial rows.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.jit.frontend import FrontendError

from sitewise.estimator import AdaptedClassifier, GPAClassifier
from sitewise.estimator.files.graph import AdaptedGraph
from sitewise.ratio import scoring_device

Array = np.ndarray[Any, Any]
TRACED_ROWS, CHECKED_ROWS = 3, (1, 5, 16)
TOLERANCE = 1e-13
NOT_TRACED = (RuntimeError, TypeError, torch.jit.Error, FrontendError)  # raised by torch while tracing or running


class FromCodes(nn.Module):
    """Module that computes P(y|x,z), (n, K), from inputs and codes of z."""

    def __init__(self, graph: AdaptedGraph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        """Return the probabilities; each row is computed independently of the others."""
        return self.graph.at(x, codes)


@dataclass(frozen=True)
class TracedSite:
    """The traced graph of a site; several threads may call it at the same time."""

    module: Any

    def __call__(self, inputs: Tensor, codes: Tensor) -> Array:
        """Return P(class), (n, K), of rows from their inputs and their codes of z."""
        with torch.no_grad():
            probability: Array = self.module(inputs, codes).numpy()
        return probability


def trace_site(here: AdaptedClassifier) -> TracedSite | None:
    """Return the traced graph of a site; None if the graph cannot be used.

    This is so if its probabilities differ from those of the site, if the model is not a network for tables, or if the
    model is scored on a GPU. A site that predicts rows without z by the joint model is not traced either, because its
    graph would compute the joint model for all rows.
    """
    model = here.model
    if not isinstance(model, GPAClassifier) or model.input_shape_ or here.missing == "joint":
        return None
    if scoring_device(model.device).type != "cpu":
        return None
    inputs, codes = _trial_rows(here, max(CHECKED_ROWS))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # about values that become constants; the trial rows show if that is wrong
            graph = FromCodes(AdaptedGraph(here, torch.float64)).eval()
            example = inputs[:TRACED_ROWS], codes[:TRACED_ROWS]
            site = TracedSite(torch.jit.freeze(torch.jit.trace(graph, example, check_trace=False)))
        same = all(_is_same(here, site, inputs[:n], codes[:n]) for n in CHECKED_ROWS)
    except NOT_TRACED:  # some networks of users cannot be traced: then the site predicts without a graph
        return None
    return site if same else None


def _is_same(here: AdaptedClassifier, site: TracedSite, inputs: Tensor, codes: Tensor) -> bool:
    with torch.no_grad():
        expected = here.probability_of(here.model.calibrated_log_ratio(inputs, codes), codes).numpy()
    return all(bool(np.abs(site(inputs, codes) - expected).max() <= TOLERANCE) for _ in "12")  # the 2nd is optimized


def _trial_rows(here: AdaptedClassifier, n_rows: int) -> tuple[Tensor, Tensor]:
    """Return random inputs, and the z of rows of the site. In half of the rows, random parts of z are hidden."""
    generator, schema = torch.Generator().manual_seed(0), here.model.confounders_
    inputs = torch.randn(n_rows, here.model.n_features_in_, generator=generator, dtype=torch.float64)
    codes = here.rows.codes[torch.arange(n_rows) % len(here.rows)].clone()
    if schema is None:
        return inputs, codes
    hidden = torch.rand(codes.shape, generator=generator) < 0.5
    hidden[: n_rows // 2] = False
    return inputs, schema.knock_out(codes, hidden)
