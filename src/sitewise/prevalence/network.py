"""g as the paper's network, for reproduction: two hidden layers of 100 with ReLU, optionally with dropout."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sitewise.confounders import Confounders
from sitewise.prevalence.base import SMOOTHING, Aggregate, aggregate, finite, masked_copies, smooth
from sitewise.solvers import Solution, lbfgs

HIDDEN = 100
BATCH = 4096
ALL_MASKS = 6  # largest number of variables for which all knockout patterns are used in every step
STEPS = 500
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class NetworkPrevalence:
    """g as the softmax of a network's output; for a row with all values missing, g is exactly the site's marginal."""

    schema: Confounders
    module: nn.Sequential
    log_marginal: Tensor  # (K,)
    name: str = "network"

    def features(self, codes: Tensor) -> Tensor:
        """Return the features (n, 101) of which the logits are a linear function: 1 and the last hidden activations."""
        with torch.no_grad():
            activations = self.module[:-1](self.schema.inputs(codes))
        return torch.cat([activations.new_ones(len(codes), 1), activations], dim=1)

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return log g at rows of codes, (n, K)."""
        with torch.no_grad():
            logits = self.module(self.schema.inputs(codes))
        blank = self.schema.missing(codes).all(dim=1, keepdim=True)
        return torch.where(blank, self.log_marginal, finite(torch.log_softmax(logits, dim=1)))

    def traceable(self) -> "NetworkPrevalence":
        """Return the same g in a form that can be traced for export."""
        return replace(self, module=copy.deepcopy(self.module).requires_grad_(False))


def build_network(schema: Confounders, n_classes: int, *, dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    """Build the paper's network in float64, in evaluation mode, from a seed."""
    width = len(schema.missing_columns()) and schema.missing_columns()[-1] + 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for fan_in in (width, HIDDEN):
            layers += [nn.Linear(fan_in, HIDDEN), nn.ReLU()] + ([nn.Dropout(dropout)] if dropout else [])
        return nn.Sequential(*layers, nn.Linear(HIDDEN, n_classes)).double().eval()


def minimize_module(
    module: nn.Sequential,
    loss: Callable[[nn.Sequential], Tensor],
    *,
    tolerance: float,
    max_iter: int,
) -> Solution[nn.Sequential]:
    """Minimize a loss over a copy of a module by L-BFGS with a line search."""
    working = copy.deepcopy(module)
    chosen = list(working.parameters())

    def value_and_gradient(flat: Tensor) -> tuple[Tensor, Tensor]:
        vector_to_parameters(flat, chosen)
        value = loss(working)
        gradients = torch.autograd.grad(value, chosen)
        return value.detach(), parameters_to_vector(gradients)

    solution = lbfgs(value_and_gradient, parameters_to_vector(chosen).detach(), tolerance=tolerance, max_iter=max_iter)
    vector_to_parameters(solution.point, chosen)
    return Solution(working, solution.gap, solution.converged, solution.n_iter, solution.trace)


def cross_entropy(module: nn.Sequential, inputs: Tensor, totals: Tensor) -> Tensor:
    """Return the mean of -Σ_y t_y log g(z)_y over the weighted soft labels t = `totals`: minus EM's objective."""
    return -(totals * torch.log_softmax(module(inputs), dim=1)).sum() / totals.sum()


def fit_network(
    targets: Tensor,
    codes: Tensor,
    weight: Tensor,
    schema: Confounders,
    *,
    knockout: float = 0.5,
    dropout: float = 0.0,
    smoothing: float = SMOOTHING,
    seed: int = 0,
) -> NetworkPrevalence:
    """Fit to soft labels (n, K) by Adam; each variable of a row is knocked out with probability `knockout`.

    If there are few distinct z and no dropout, every step uses all z with all knockout patterns, weighted by their
    probabilities. Otherwise rows and patterns are drawn for each step.
    """
    targets = smooth(targets, weight, smoothing)
    whole = None if dropout else _every_mask(aggregate(targets, codes, weight), schema, knockout)
    module = build_network(schema, targets.shape[1], dropout=dropout, seed=seed).to(codes.device)
    module.train()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def draw() -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(codes), (min(BATCH, len(codes)),), generator=generator)
        mask = torch.rand(len(rows), len(schema.variables), generator=generator) < knockout
        inputs = schema.inputs(schema.knock_out(codes[rows], mask.to(codes.device)))
        return inputs, targets[rows] * weight[rows, None]

    with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        torch.manual_seed(seed)
        for _ in range(STEPS):
            inputs, totals = draw() if whole is None else whole
            optimizer.zero_grad()
            cross_entropy(module, inputs, totals).backward()
            optimizer.step()
            schedule.step()
    module.eval()
    marginal = finite((weight @ targets / weight.sum()).log())
    return NetworkPrevalence(schema, module, marginal)


def _every_mask(data: Aggregate, schema: Confounders, knockout: float) -> tuple[Tensor, Tensor] | None:
    """Return inputs and weighted soft labels for every knockout pattern; None if there are more than a batch."""
    n = len(schema.variables)
    if n > ALL_MASKS or len(data.codes) * 2**n > BATCH:
        return None
    masked, blank = masked_copies(data, schema, knockout), schema.missing_codes().to(data.codes).reshape(1, -1)
    codes = torch.cat([data.codes, masked.codes, blank])
    all_of_it = data.totals.sum(0, keepdim=True)
    totals = torch.cat([(1 - knockout) ** n * data.totals, masked.totals, knockout**n * all_of_it])
    return schema.inputs(codes), totals


def fit_missing_inputs(model: NetworkPrevalence, data: Aggregate, knockout: float) -> NetworkPrevalence:
    """Fit the missing columns of variables that are never missing in `data`, on copies with parts of z hidden.

    The g at the rows of `data` does not change (equation 9), because these columns are zero there.
    """
    never = ~model.schema.missing(data.codes[data.weight > 0]).any(dim=0)
    columns = [c for c, unseen in zip(model.schema.missing_columns(), never.tolist(), strict=True) if unseen]
    copies = masked_copies(data, model.schema, knockout)
    kept = ~model.schema.missing(copies.codes).all(dim=1)
    if not columns or not kept.any():
        return model
    inputs, totals = model.schema.inputs(copies.codes[kept]), copies.totals[kept]
    base = copy.deepcopy(model.module)
    first = base[0]
    assert isinstance(first, nn.Linear)
    frozen = first.weight.detach().clone()

    def with_columns(values: Tensor) -> Tensor:
        return frozen.index_copy(1, torch.tensor(columns, device=frozen.device), values)

    def value_and_gradient(flat: Tensor) -> tuple[Tensor, Tensor]:
        values = flat.reshape(HIDDEN, -1).clone().requires_grad_()
        hidden = nn.functional.linear(inputs, with_columns(values), first.bias)
        loss = cross_entropy(nn.Sequential(*list(base)[1:]), hidden, totals)
        (gradient,) = torch.autograd.grad(loss, values)
        return loss.detach(), gradient.reshape(-1)

    solution = lbfgs(value_and_gradient, frozen[:, columns].reshape(-1), tolerance=1e-5, max_iter=50)
    with torch.no_grad():
        first.weight.copy_(with_columns(solution.point.reshape(HIDDEN, -1)))
    return NetworkPrevalence(model.schema, base, model.log_marginal)
