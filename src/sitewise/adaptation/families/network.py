"""The network family of the paper: algorithm 1 by EM, or direct maximization of the observed likelihood."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.families.base import Family, Request, SiteLikelihood
from sitewise.adaptation.fit import Fit
from sitewise.adaptation.linear import KNOCKOUT, aggregate_rows, linear_fit, linear_problem
from sitewise.artifacts import Record
from sitewise.confounders import Confounders
from sitewise.prevalence.additive import ridge
from sitewise.prevalence.base import finite
from sitewise.prevalence.network import (
    NetworkPrevalence,
    build_network,
    cross_entropy,
    fit_missing_inputs,
    fit_network,
    minimize_module,
)
from sitewise.solvers import EM, Solution, em

PAPER_ITERATIONS = 5  # the paper's T
M_STEP_ITERATIONS = 20  # of L-BFGS
DIRECT_ITERATIONS = 100
TOLERANCE = 1e-5
LAST_LAYER_PENALTY = 1.0


@dataclass(frozen=True)
class NetworkProblem(SiteLikelihood):
    """The observed likelihood as a function of the network of g, whose inputs are the U distinct z with F columns."""

    inputs: Tensor  # (U, F)

    def prevalence(self, module: nn.Sequential) -> Tensor:
        """Return g at all distinct z, (U, K)."""
        return torch.softmax(module(self.inputs), dim=1)

    def n_rows(self) -> Tensor:
        """Return the number of rows with each distinct z, (U,); with dropout, each row has its own mask."""
        return torch.cat([rows.cell_weight for rows in self.stretches]).round().clamp_min(1).long()

    def loss(self, module: nn.Sequential) -> Tensor:
        """Return -L divided by the weight of the rows, in a form from which autograd gets the known gradient of L."""
        prevalence = self.prevalence(module)
        value, slope = self.likelihood(prevalence.detach())
        return -(value + (slope * (prevalence - prevalence.detach())).sum()) / self.evidence.total_weight

    def e_step(self, module: nn.Sequential) -> Tensor:
        """Return responsibilities summed over rows with equal z, (U, K)."""
        with torch.no_grad():
            return self.soft_labels(self.prevalence(module))


def _take_network(model: NetworkPrevalence) -> dict[str, Any]:
    dropout = next((layer.p for layer in model.module if isinstance(layer, nn.Dropout)), 0.0)
    parts = {"schema": model.schema, "log_marginal": model.log_marginal, "dropout": dropout}
    return {**parts, "state": dict(model.module.state_dict())}


def _make_network(parts: dict[str, Any]) -> NetworkPrevalence:
    schema, log_marginal = parts["schema"], parts["log_marginal"]
    module = build_network(schema, len(log_marginal), dropout=parts["dropout"])
    module.load_state_dict(parts["state"])
    return NetworkPrevalence(schema, module, log_marginal)


@dataclass(frozen=True)
class Network(Family):
    """The network of the paper, for reproduction. It is fitted to the rows alone, without a prior.

    `dropout` is used in the fit to labels and in EM's M-steps. It is not used when g is evaluated, nor when the
    likelihood is maximized directly.
    """

    dropout: float = 0.0

    name: ClassVar[str] = "network"
    solvers: ClassVar[tuple[str, ...]] = ("auto", "lbfgs", "em")
    quick: ClassVar[bool] = False
    takes_prior: ClassVar[bool] = False
    advice: ClassVar[str] = "its T is a limit, not a success: raise EM(iterations=...), or use model='auto'"
    records: ClassVar[Mapping[str, Record]] = {
        "NetworkPrevalence": Record(NetworkPrevalence, _take_network, _make_network, methods=("features", "log_prob")),
    }

    def fit_labels(
        self, targets: Tensor, codes: Tensor, weight: Tensor, schema: Confounders, *, knockout: float, seed: int
    ) -> NetworkPrevalence:
        """Fit by Adam, with knockout."""
        return fit_network(targets, codes, weight, schema, knockout=knockout, dropout=self.dropout, seed=seed)

    def with_dropout(self, dropout: float) -> "Network":
        """Return the family with the given share of hidden units dropped."""
        return replace(self, dropout=dropout)

    def fit_rows(self, request: Request) -> Fit:
        """Estimate by the paper's algorithm 1, or by direct maximization from the constant g."""
        return fit_network_terms(request, self.dropout)


def fit_network_terms(request: Request, dropout: float = 0.0) -> Fit:
    """Estimate g as a network. EM without a given start begins at random, as in the paper; else a constant g is used.

    This constant g is the given start, or the one fitted to the rows.
    """
    evidence, solver, seed = request.evidence, request.solver, request.seed
    schema = evidence.schema
    assert schema is not None
    stretches = list(evidence.rows)
    problem = NetworkProblem(evidence, stretches, torch.cat([schema.inputs(rows.codes) for rows in stretches]))
    module = build_network(schema, evidence.n_classes, dropout=dropout, seed=seed).to(evidence.device)
    if request.started or not isinstance(solver, EM):
        last = module[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(0.01)
            last.bias.copy_(request.level.log())
    if isinstance(solver, EM):
        solution = _algorithm_one(problem, module, solver, seed)
    else:
        solution = minimize_module(module, problem.loss, tolerance=TOLERANCE, max_iter=DIRECT_ITERATIONS)
    network = solution.point

    def at(codes: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.softmax(network(schema.inputs(codes)), dim=1)

    model = NetworkPrevalence(schema, network, finite(evidence.mean(at).log()))
    model = fit_missing_inputs(model, aggregate_rows(evidence, model), KNOCKOUT)
    return _with_last_layer(evidence, model, solution)


def _algorithm_one(problem: NetworkProblem, module: nn.Sequential, solver: EM, seed: int) -> Solution[nn.Sequential]:
    """Run the paper's algorithm 1: in each of T iterations, the network is fitted to the current responsibilities."""
    dropping = any(isinstance(layer, nn.Dropout) for layer in module)
    copies = problem.n_rows() if dropping else torch.ones_like(problem.inputs[:, 0]).long()
    inputs, seeds = problem.inputs.repeat_interleave(copies, dim=0), count(seed)

    def m_step(totals: Tensor, current: nn.Sequential) -> nn.Sequential:
        own = next(seeds)
        targets = (totals / copies[:, None]).repeat_interleave(copies, dim=0)

        def loss(candidate: nn.Sequential) -> Tensor:
            with _dropping(candidate, own) if dropping else nullcontext():
                return cross_entropy(candidate, inputs, targets)

        if solver.m_step == "lbfgs":
            return minimize_module(current, loss, tolerance=0.0, max_iter=M_STEP_ITERATIONS).point
        optimizer = torch.optim.SGD(current.parameters(), lr=solver.learning_rate)
        optimizer.zero_grad()
        loss(current).backward()
        optimizer.step()
        return current

    def objective(current: nn.Sequential) -> Tensor:
        with torch.no_grad():
            return problem.loss(current)

    return em(
        module,
        problem.e_step,
        m_step,
        objective,
        gap=lambda current: _largest_gradient(current, problem.loss),
        tolerance=TOLERANCE,
        max_iter=solver.iterations or PAPER_ITERATIONS,
    )


@contextmanager
def _dropping(module: nn.Sequential, seed: int) -> Iterator[None]:
    """Switch dropout on, with a seed: all evaluations of one M-step have the same masks, as a line search requires."""
    devices = [p.device for p in module[0].parameters() if p.device.type == "cuda"][:1]
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        module.train()
        try:
            yield
        finally:
            module.eval()


def _largest_gradient(module: nn.Sequential, loss: Callable[[nn.Sequential], Tensor]) -> Tensor:
    gradients = torch.autograd.grad(loss(module), list(module.parameters()))
    return torch.stack([g.abs().max() for g in gradients]).max()


def _with_last_layer(evidence: Evidence, model: NetworkPrevalence, solution: Solution[nn.Sequential]) -> Fit:
    """Make a fit whose curvature, for intervals, is that of the last layer: logits are linear in its inputs."""
    last = model.module[-1]
    assert isinstance(last, nn.Linear)
    penalty = ridge(LAST_LAYER_PENALTY, last.in_features + 1, evidence.device)
    problem = linear_problem(evidence, model.features, None, penalty)
    flat = (torch.cat([last.bias[:, None], last.weight], dim=1).detach().T @ problem.basis).reshape(-1)
    at_end = Solution(flat, solution.gap, solution.converged, solution.n_iter, solution.trace)
    return linear_fit(problem, at_end, model, model.features, strength=0.0, tolerance=TOLERANCE)
