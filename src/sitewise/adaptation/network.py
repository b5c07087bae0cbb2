"""g as the paper's network from unlabeled rows: algorithm 1 by EM, or a direct climb of the observed likelihood."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import Fit
from sitewise.adaptation.linear import KNOCKOUT, LinearProblem, linear_fit
from sitewise.prevalence import NetworkPrevalence
from sitewise.prevalence.base import Aggregate, finite
from sitewise.prevalence.network import build_network, cross_entropy, fit_missing_inputs, minimize_module
from sitewise.solvers import EM, Solution, em

PAPER_ITERATIONS = 5  # the paper's T
M_STEP_ITERATIONS = 20
DIRECT_ITERATIONS = 100
TOLERANCE = 1e-5
LAST_LAYER_PENALTY = 1.0


def fit_network_terms(evidence: Evidence, start: Tensor, solver: str | EM, seed: int) -> Fit:
    """Estimate the network g; the default starts at the constant g `start` (K,), EM at random as the paper does."""
    assert evidence.schema is not None
    schema = evidence.schema
    inputs = schema.inputs(evidence.codes)
    module = build_network(schema, evidence.n_classes, seed=seed).to(inputs.device)

    def prevalence_of(candidate: nn.Sequential) -> Tensor:
        return torch.softmax(candidate(inputs), dim=1)

    def loss(candidate: nn.Sequential) -> Tensor:
        return -evidence.log_likelihood(prevalence_of(candidate)) / evidence.total_weight

    if isinstance(solver, EM):
        found = _algorithm_one(evidence, module, inputs, loss, solver)
    else:
        last = module[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(0.01)
            last.bias.copy_(start.log())
        found = minimize_module(module, loss, tolerance=TOLERANCE, max_iter=DIRECT_ITERATIONS)
    with torch.no_grad():
        prevalence = prevalence_of(found.point)
    totals = evidence.sum_by_cell(evidence.weight[:, None] * evidence.responsibilities(prevalence))
    model = NetworkPrevalence(schema, found.point, finite(evidence.mean(prevalence).log()))
    model = fit_missing_inputs(model, Aggregate(evidence.codes, evidence.cell, evidence.cell_weight, totals), KNOCKOUT)
    return _with_last_layer(evidence, model, found)


def _algorithm_one(
    evidence: Evidence, module: nn.Sequential, inputs: Tensor, loss: Callable[[nn.Sequential], Tensor], solver: EM
) -> Solution[nn.Sequential]:
    """The paper's algorithm 1: T rounds of responsibilities and a fit of the network to them."""

    def e_step(current: nn.Sequential) -> Tensor:
        with torch.no_grad():
            prevalence = torch.softmax(current(inputs), dim=1)
        totals = evidence.sum_by_cell(evidence.weight[:, None] * evidence.responsibilities(prevalence))
        if len(evidence.blank_weight):
            relative = evidence.blank_ratio / (evidence.blank_ratio @ evidence.mean(prevalence))[:, None]
            share = evidence.cell_weight / evidence.weight.sum()
            totals = totals + share[:, None] * prevalence * (evidence.blank_weight @ relative)
        return totals

    def m_step(totals: Tensor, current: nn.Sequential) -> nn.Sequential:
        if solver.m_step == "lbfgs":
            return minimize_module(
                current,
                lambda candidate: cross_entropy(candidate, inputs, totals),
                tolerance=0.0,
                max_iter=M_STEP_ITERATIONS,
            ).point
        optimizer = torch.optim.SGD(current.parameters(), lr=solver.learning_rate)
        optimizer.zero_grad()
        cross_entropy(current, inputs, totals).backward()
        optimizer.step()
        return current

    def objective(current: nn.Sequential) -> Tensor:
        with torch.no_grad():
            return loss(current)

    return em(
        module,
        e_step,
        m_step,
        objective,
        gap=lambda current: _largest_gradient(current, loss),
        tolerance=TOLERANCE,
        max_iter=solver.iterations or PAPER_ITERATIONS,
    )


def _largest_gradient(module: nn.Sequential, loss: Callable[[nn.Sequential], Tensor]) -> Tensor:
    gradients = torch.autograd.grad(loss(module), list(module.parameters()))
    return torch.stack([g.abs().max() for g in gradients]).max()


def _with_last_layer(evidence: Evidence, model: NetworkPrevalence, found: Solution[nn.Sequential]) -> Fit:
    """Add intervals from the last layer's curvature: given the hidden features the logits are linear in them."""
    hidden = model.module[:-1]

    def feature_map(codes: Tensor) -> Tensor:
        with torch.no_grad():
            activations = hidden(model.schema.inputs(codes))
        return torch.cat([activations.new_ones(len(codes), 1), activations], dim=1)

    last = model.module[-1]
    assert isinstance(last, nn.Linear)
    design = feature_map(evidence.codes)
    penalty = torch.full((design.shape[1],), LAST_LAYER_PENALTY, dtype=design.dtype, device=design.device)
    penalty[0] = 0.0
    offset = design.new_zeros(len(design), evidence.n_classes)
    problem = LinearProblem(evidence, design, offset, penalty)
    flat = (torch.cat([last.bias[:, None], last.weight], dim=1).detach().T @ problem.basis).reshape(-1)
    at_end = Solution(flat, found.gap, found.converged, found.n_iter, found.trace)
    return linear_fit(problem, at_end, model, feature_map, strength=0.0, tolerance=TOLERANCE)
