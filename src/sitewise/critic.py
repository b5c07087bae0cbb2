"""Estimate log P_s(z|x) / P_s(z) by a contrastive critic (equation 15d).

s is the pooled training population. The critic scores pairs of z and a backbone's features of x. Training maximizes the
softmax probability of each row's own z among all z of the batch. The trained scores are the log-ratio up to a term that
depends on x only.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.training import Recipe
from sitewise.training.checkpoint import digest
from sitewise.training.loop import train

HIDDEN = 128
WIDTH = 64
RECIPE = Recipe(epochs=10, batch_size=512, learning_rate=3e-3, weight_decay=0.1, min_steps=400)
VALIDATION_BATCH = 1024


class CriticNetwork(nn.Module):
    """A perceptron for the features of x and one for z. The score of a pair is the inner product of their outputs."""

    x_mean: Tensor
    x_spread: Tensor
    z_mean: Tensor
    z_spread: Tensor

    def __init__(self, n_features: int, n_inputs: int) -> None:
        super().__init__()
        self.of_x = nn.Sequential(nn.Linear(n_features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
        self.of_z = nn.Sequential(nn.Linear(n_inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH + 1))
        for name, size in (("x", n_features), ("z", n_inputs)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_spread", torch.ones(size))

    def standardize(self, features: Tensor, inputs: Tensor) -> None:
        """Store the means and standard deviations of the training rows, which `parts` uses to standardize inputs."""
        for name, values in (("x", features), ("z", inputs)):
            scale = values.std(0)
            setattr(self, f"{name}_mean", values.mean(0))
            setattr(self, f"{name}_spread", torch.where(scale > 1e-6 * scale.max().clamp_min(1e-30), scale, 1.0))

    def parts(self, features: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings of length D of x, (n, D), and of z, (m, D), whose inner products are the scores."""
        x = self.of_x((features - self.x_mean) / self.x_spread) / WIDTH**0.5
        return torch.cat([x, torch.ones_like(x[:, :1])], dim=1), self.of_z((inputs - self.z_mean) / self.z_spread)

    def forward(self, features: Tensor, inputs: Tensor) -> Tensor:
        """Return the score of every x with every z, (n, m)."""
        x, z = self.parts(features, inputs)
        return x @ z.T


def contrastive_nll(scores: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean of -log P(own z), given the scores (n, n) of every x with every z of a batch.

    P is a softmax over all z of the batch, in which each z counts by its weight.
    """
    logits = scores + weight.clamp_min(1e-30).log()
    return (weight * (torch.logsumexp(logits, dim=1) - logits.diagonal())).sum() / weight.sum()


@dataclass
class Pairs:
    """Rows of a data set: the features of x, the input columns of z, and the weight of each row."""

    features: Tensor
    inputs: Tensor
    weight: Tensor

    def to(self, device: torch.device) -> None:
        """Move the tensors to a device, in place."""
        self.features, self.inputs, self.weight = (
            column.to(device) for column in (self.features, self.inputs, self.weight)
        )

    def __len__(self) -> int:
        return len(self.weight)


@dataclass
class CriticObjective:
    """The contrastive loss of a batch. Held-out rows are always divided into the same batches."""

    training: Pairs
    validation: Pairs
    sites: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sites = torch.zeros(len(self.training), dtype=torch.int64)

    def to(self, device: torch.device) -> None:
        """Move the data to the device."""
        self.training.to(device)
        self.validation.to(device)

    def begin_epoch(self, generator: torch.Generator, progress: float) -> None:
        """Do nothing: all epochs are alike."""

    def reading(self, upcoming: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Do nothing: features are in memory."""
        return nullcontext()

    def loss(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Return the contrastive loss of a batch, given its row numbers."""
        pairs = self.training
        return contrastive_nll(module(pairs.features[rows], pairs.inputs[rows]), pairs.weight[rows])

    def validation_loss(self, module: nn.Module) -> float | None:
        """Return the contrastive loss of the held-out rows; None if there are fewer than two."""
        pairs = self.validation
        if len(pairs) < 2:
            return None
        losses, weights = [], []
        for first in range(0, len(pairs), VALIDATION_BATCH):
            batch = slice(first, first + VALIDATION_BATCH)
            losses.append(contrastive_nll(module(pairs.features[batch], pairs.inputs[batch]), pairs.weight[batch]))
            weights.append(pairs.weight[batch].sum())
        return float(torch.stack(losses) @ torch.stack(weights) / sum(weights))

    def identity(self) -> dict[str, str]:
        """Return a hash of the training rows."""
        return {"critic": digest(self.training.features, self.training.inputs, self.training.weight)}

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: only the network is learned."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""


@dataclass(frozen=True)
class Critic:
    """A trained critic, stored as the sizes and weights of its network."""

    n_features: int
    n_inputs: int
    state: dict[str, Tensor] = field(repr=False)

    def network(self, like: Tensor) -> CriticNetwork:
        """Build the network on the device and in the precision of the tensor `like`."""
        network = CriticNetwork(self.n_features, self.n_inputs)
        network.load_state_dict(self.state)
        return network.to(like.device, like.dtype).eval()

    def of_pairs(self, features: Tensor, inputs: Tensor) -> Tensor:
        """Return the score of each row with its own z, (n,)."""
        with torch.no_grad():
            x, z = self.network(features).parts(features, inputs.to(features))
            return (x * z).sum(1)


def train_critic(training: Pairs, validation: Pairs, *, device: str, seed: int) -> Critic:
    """Train a critic on rows with their z; held-out rows select the snapshot."""
    sizes = training.features.shape[1], training.inputs.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = CriticNetwork(*sizes)
    network.standardize(training.features, training.inputs)
    objective = CriticObjective(replace(training), replace(validation))  # copies, which are moved to the device
    trained = train(network, objective, RECIPE, device=device, seed=seed, verbose=False, label="training the critic")
    return Critic(*sizes, {name: value.clone() for name, value in trained.module.state_dict().items()})


@dataclass(frozen=True)
class Bank:
    """M points that represent the distribution of z: their codes, and the share of training rows of each point."""

    schema: Confounders
    codes: Tensor  # (M, V)
    share: Tensor  # (M,)

    @property
    def inputs(self) -> Tensor:
        """The input columns of the points, (M, D)."""
        return self.schema.inputs(self.codes)

    def log_agreement(self, codes: Tensor) -> Tensor:
        """Return the log agreement of each point with the known values of each row's z, (n, M).

        It is 0 for the point that agrees best, and -inf for points with another level. Continuous values are compared
        by a normal kernel. If no point has the levels of a row, the row is treated as a row without z.
        """
        total = codes.new_zeros(codes.shape[0], len(self.codes), dtype=torch.float64)
        missing = self.schema.missing(codes)
        for j, variable in enumerate(self.schema.variables):
            own, points = codes[:, j : j + 1], self.codes[:, j]
            if isinstance(variable, Categorical):
                agreement = torch.where(own == points, 0.0, -torch.inf)
            else:
                agreement = -0.5 * ((own - points) / self._width(points)) ** 2
            total = total + torch.where(missing[:, j : j + 1], 0.0, agreement)
        best = total.amax(1, keepdim=True)
        return torch.where(best == -torch.inf, 0.0, total - best.clamp_min(-1e300))

    def _width(self, points: Tensor) -> float:
        """Return the width of the kernel, about the distance between neighbouring points."""
        return max(0.5 * float(points.std()) * len(points) ** -0.2, 1e-6) if len(points) > 1 else 1.0


def make_bank(schema: Confounders, codes: Tensor, weight: Tensor, size: int) -> tuple[Bank, Tensor]:
    """Reduce rows of complete z (n, V) to at most `size` points; return the points, and the point of each row, (n,).

    Each combination of levels gets at least one point, and more points if its rows have more weight. Its rows are split
    repeatedly along the continuous variable with the widest range, until there is one part for each point. The point
    of a part is the row nearest to the mean of the part. If there are more than `size` combinations, the rows of the
    rarest ones have no point (-1).
    """
    kinds = [isinstance(variable, Categorical) for variable in schema.variables]
    levels = codes[:, [j for j, kind in enumerate(kinds) if kind]]
    numbers = codes[:, [j for j, kind in enumerate(kinds) if not kind]]
    cell = torch.unique(levels, dim=0, return_inverse=True)[1] if levels.shape[1] else torch.zeros(len(codes)).long()
    mass = torch.zeros(int(cell.max()) + 1, dtype=torch.float64).index_add_(0, cell, weight.double())
    kept = torch.argsort(mass, descending=True)[:size]
    wanted = size * mass.sqrt() / mass[kept].sqrt().sum()
    points: list[Tensor] = []
    shares: list[Tensor] = []
    point_of = torch.full((len(codes),), -1)
    for number in kept.tolist():
        rows = (cell == number).nonzero().flatten()
        for near in _split(rows, numbers, max(1, int(wanted[number]))):
            distance = (numbers[near] - numbers[near].mean(0)).square().sum(1)
            point_of[near] = len(points)
            points.append(near[distance.argmin()])
            shares.append(weight[near].double().sum())
    share = torch.stack(shares)
    return Bank(schema, codes[torch.stack(points)].double(), share / share.sum()), point_of


def _split(rows: Tensor, numbers: Tensor, n_parts: int) -> list[Tensor]:
    """Split rows into at most `n_parts` parts of similar values, each time along the variable with the widest range."""
    widths = numbers[rows].amax(0) - numbers[rows].amin(0) if numbers.shape[1] else torch.zeros(1)
    if n_parts < 2 or float(widths.max()) <= 0:
        return [rows]
    values = numbers[rows, int(widths.argmax())]
    first = n_parts // 2
    cut = torch.sort(values).values[len(rows) * first // n_parts]
    below = values < cut if bool((values < cut).any()) else values <= cut
    return _split(rows[below], numbers, first) + _split(rows[~below], numbers, n_parts - first)


def log_lift(scores: Tensor, share: Tensor) -> Tensor:
    """Return log P_s(z_m|x) / P_s(z_m), (n, M), from a critic's scores (n, M) and the shares P_s(z_m) of M points.

    The result is normalized so that P_s(z_m|x) sums to one over the points.
    """
    return scores - torch.logsumexp(scores + share.log(), dim=1, keepdim=True)
