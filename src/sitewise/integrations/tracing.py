"""A site's prediction of a few rows as one traced graph: most of the time of one row is Python between operations.

The graph is that of `export_onnx`, run by torch in double precision. It is used only where it gives the numbers of
`predict_proba`.
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
    """P(y|x,z) (n, K) from inputs and codes of z."""

    def __init__(self, graph: AdaptedGraph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        """Each row independently."""
        return self.graph.at(x, codes)


@dataclass(frozen=True)
class TracedSite:
    """A trace, which any number of threads can call."""

    module: Any

    def __call__(self, inputs: Tensor, codes: Tensor) -> Array:
        """P(class) of rows whose inputs and z have been read, (n, K)."""
        with torch.no_grad():
            probability: Array = self.module(inputs, codes).numpy()
        return probability


def trace_site(here: AdaptedClassifier) -> TracedSite | None:
    """The trace of a site; None if it does not say what the site says, or if the site is not a network for tables.

    Rows that lack z and are predicted by the joint model cost all rows the joint: such a site is not traced.
    """
    model = here.model
    if not isinstance(model, GPAClassifier) or model.input_shape_ or here.missing == "joint":
        return None
    if scoring_device(model.device).type != "cpu":
        return None
    inputs, codes = _trial_rows(here, max(CHECKED_ROWS))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of what is constant in the trace; the trial shows whether it may be
            graph = FromCodes(AdaptedGraph(here, torch.float64)).eval()
            example = inputs[:TRACED_ROWS], codes[:TRACED_ROWS]
            site = TracedSite(torch.jit.freeze(torch.jit.trace(graph, example, check_trace=False)))
        same = all(_is_same(here, site, inputs[:n], codes[:n]) for n in CHECKED_ROWS)
    except NOT_TRACED:  # a network of one's own may not be traceable: the site predicts as it is
        return None
    return site if same else None


def _is_same(here: AdaptedClassifier, site: TracedSite, inputs: Tensor, codes: Tensor) -> bool:
    with torch.no_grad():
        expected = here.probability_of(here.model.calibrated_log_ratio(inputs, codes), codes).numpy()
    return all(bool(np.abs(site(inputs, codes) - expected).max() <= TOLERANCE) for _ in "12")  # optimized when repeated


def _trial_rows(here: AdaptedClassifier, n_rows: int) -> tuple[Tensor, Tensor]:
    """Made-up inputs, and z of the site's rows, parts of which are hidden in half of them."""
    generator, schema = torch.Generator().manual_seed(0), here.model.confounders_
    inputs = torch.randn(n_rows, here.model.n_features_in_, generator=generator, dtype=torch.float64)
    codes = here.rows.codes[torch.arange(n_rows) % len(here.rows)].clone()
    if schema is None:
        return inputs, codes
    hidden = torch.rand(codes.shape, generator=generator) < 0.5
    hidden[: n_rows // 2] = False
    return inputs, schema.knock_out(codes, hidden)
