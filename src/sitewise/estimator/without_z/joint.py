"""The joint model: r(x,y,z) over a bank of points of z, from f and a critic (equation 15d).

The critic is trained on features of the backbone. f does not need the information about z in x, because z is given to
it. Therefore the last features lose this information (for example the colour of a digit), while earlier layers keep it.
The critic reads both. It gives a score to each pair of a row's features and a z; up to a term that depends on x only,
the score is log P_s(z|x) / P_s(z) of the training population.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from sitewise.adaptation.joint.mixture import log_balance
from sitewise.confounders import Confounders
from sitewise.critic import Bank, Critic, Pairs, log_lift, make_bank, train_critic
from sitewise.estimator.source.reading import evenly
from sitewise.estimator.source.regions import Region, in_regions
from sitewise.inputs import Inputs
from sitewise.prevalence.base import Prevalence
from sitewise.ratio import RatioNetwork, Scorer, scoring_device
from sitewise.rows import LabeledRows

if TYPE_CHECKING:
    from sitewise.estimator.gpa import GPAClassifier

POINTS = 128  # the largest number of points of the bank
MOST_CELLS = 2048  # the largest number of points times classes; the solver uses a full matrix of this size
ENOUGH_ROWS = 50  # the smallest number of rows with all of z to fit or to calibrate a critic
TEMPERATURE_ROWS = 2000  # the largest number of rows on which the critic is calibrated
BALANCED_ENTRIES = 2**22  # the largest number of entries (row, point, class) on which r is balanced
LARGEST_TEMPERATURE = 3.0
SCORED_ENTRIES = 2**18  # the largest number of entries (row, point) that are scored together
CHANNELS = 256  # most channels that are read of a block; wider blocks are late, and the last features represent them


@dataclass(frozen=True)
class JointModel:
    """The parts of r(x,y,z) besides f: the bank, the g of the training population, the critic and its slope.

    M is the number of points z_m of the bank, K the number of classes.
    """

    bank: Bank
    source: Prevalence  # g_s of the training rows that have all of z
    possible: Tensor  # (M, K) False where the class never occurred in training
    log_balance: Tensor = field(repr=False)  # (M, K) log h of equation 15e
    critic: Critic = field(repr=False)
    temperature: float = 1.0  # slope of the critic: the factor on its scores
    trusted: bool = True  # False: `missing="auto"` uses knockout, see `judged`

    @property
    def prior(self) -> Tensor:
        """P_s(z_m, y) over the bank, (M, K)."""
        return self.bank.share[:, None] * self.source.log_prob(self.bank.codes).exp()

    def log_ratio(self, log_f: Tensor, scores: Tensor) -> Tensor:
        """Return log r (n, M, K) from calibrated log f at the bank's points and the critic's scores (n, M).

        This is equation 15d. For each x, the mean of r over P_s(z, y) of the training population is one, before r is
        set to zero where `possible` is False.
        """
        lift = log_lift(self.temperature * scores, self.bank.share)
        both = stable_part(log_f, self.source.log_prob(self.bank.codes)) + lift[..., None] + self.log_balance
        mean = torch.logsumexp(both + self.prior.log(), dim=(1, 2), keepdim=True)
        return torch.where(self.possible, both - mean, -torch.inf)

    def ratios(self, model: "GPAClassifier", X: Inputs) -> Iterator[tuple[slice, Tensor]]:
        """Yield consecutive chunks of rows: a slice of the c rows of a chunk, and log r (c, M, K)."""
        return self.ratios_of(model, layer_features(model.scorer_, X))

    def ratios_of(self, model: "GPAClassifier", features: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the chunks of `ratios` from the result of `layer_features`."""
        for part, log_f, scores in over_points(model, self.critic, features, self.bank):
            yield part, self.log_ratio(log_f, scores)


def stable_part(log_f: Tensor, log_source: Tensor) -> Tensor:
    """Return log P_s(y|x,z) / P_s(y|z) of the training population: log f without its arbitrary factor."""
    return log_f - torch.logsumexp(log_f + log_source, dim=2, keepdim=True)


def at_points(network: RatioNetwork, features: Tensor, inputs: Tensor) -> Tensor:
    """Return raw log f of each row at each point, (n, M, K).

    The first layer of the fusion is a sum of a term of x and a term of z, so each term is computed only once. The first
    columns of `features` are the features of the backbone.
    """
    first = network.fusion[0]
    assert isinstance(first, nn.Linear)
    width = first.in_features - inputs.shape[1]
    of_x = features[:, :width] @ first.weight[:, :width].T + first.bias
    of_z = inputs @ first.weight[:, width:].T
    return network.fusion[1:](of_x[:, None] + of_z)  # type: ignore[no-any-return]


def over_points(
    model: "GPAClassifier", critic: Critic, features: Tensor, bank: Bank
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield for each chunk of c rows: its slice, calibrated log f (c, M, K) at a bank's points, and scores (c, M).

    The scores are those of the critic.
    """
    scorer, calibration = model.scorer_, model.calibrations_[0]
    assert isinstance(scorer.module, RatioNetwork)
    device = scoring_device(scorer.device)
    dtype = next(scorer.module.parameters()).dtype
    network, judge = scorer.module.to(device), critic.network(torch.zeros(0, dtype=dtype, device=device))
    inputs = bank.inputs.to(device, dtype)
    size = max(1, SCORED_ENTRIES // len(bank.codes))
    with torch.no_grad():
        for first in range(0, len(features), size):
            part = slice(first, first + size)
            x = features[part].to(device, dtype)
            raw_log_f, scores = (
                model.balanced(at_points(network, x, inputs).double().cpu(), bank.codes),
                judge(x, inputs),
            )
            shape = raw_log_f.shape
            log_f = calibration.apply(raw_log_f.reshape(-1, shape[2])).reshape(shape)
            yield part, log_f, scores.double().cpu()
    scorer.module.to("cpu")


def fit_joint_model(
    model: "GPAClassifier", training: LabeledRows, validation: LabeledRows, seed: int
) -> JointModel | None:
    """Fit the critic to features of the training rows with all of z; return None if there are too few of these rows.

    f is already trained and is not changed.
    """
    schema = model.confounders_
    assert schema is not None
    rows, held = with_all_of_z(training, schema), with_all_of_z(validation, schema)
    if len(rows) < ENOUGH_ROWS:
        return None
    pairs, held_pairs = (_pairs(model.scorer_, part, schema.inputs(part.codes)) for part in (rows, held))
    critic = train_critic(pairs, held_pairs, device=model.device, seed=seed)
    bank, point_of = make_bank(schema, rows.codes, rows.weight, n_points(len(model.classes_)))
    possible = ~unseen_classes(bank.codes, len(model.classes_), model.unsupported_)
    model_of_r = JointModel(bank, model.fit_prevalence(rows, seed), possible, torch.zeros(possible.shape), critic)
    return balance_critic(model, calibrate_critic(model, model_of_r, held, seed), pairs, point_of, rows.y)


def n_points(n_classes: int) -> int:
    """Return the largest number of points of a bank, which is smaller if there are many classes."""
    return min(POINTS, max(2, MOST_CELLS // n_classes))


def balance_critic(model: "GPAClassifier", joint: JointModel, pairs: Pairs, point_of: Tensor, y: Tensor) -> JointModel:
    """Balance r on training rows: the joint P(z, y) estimated from their x becomes their true joint (equation 15e).

    `point_of` (n,) and `y` (n,) are the cells of the rows. Their true joint is computed from these cells and not from
    g_s, so that noise of the labels cancels.
    """
    known = (point_of >= 0).nonzero().flatten()
    rows = known[evenly(len(known), max(ENOUGH_ROWS, BALANCED_ENTRIES // joint.prior.numel()))]
    weight = pairs.weight[rows].double()
    own = joint.prior.clone()  # one row in addition, so that no cell is empty
    own.index_put_((point_of[rows], y[rows]), weight / weight.mean(), accumulate=True)
    ratios = torch.cat([part.float() for _, part in joint.ratios_of(model, pairs.features[rows])])
    return replace(joint, log_balance=log_balance(ratios, own / own.sum(), weight))


def with_all_of_z(rows: LabeledRows, schema: Confounders) -> LabeledRows:
    """Return the rows that have all of z."""
    return rows.take(~schema.missing(rows.codes).any(dim=1))


def _pairs(scorer: Scorer, rows: LabeledRows, inputs: Tensor) -> Pairs:
    features = layer_features(scorer, rows.X) if len(rows) else torch.zeros(0, 1)
    return Pairs(features.float(), inputs.float(), rows.weight.float())


def unseen_classes(codes: Tensor, n_classes: int, regions: tuple[Region, ...]) -> Tensor:
    """Return which classes never occurred in training at each point, (M, K)."""
    unseen = torch.zeros(len(codes), n_classes, dtype=torch.bool)
    for region in regions:
        unseen[:, region.label] |= in_regions(codes, (region,))
    return unseen


def calibrate_critic(model: "GPAClassifier", joint: JointModel, held: LabeledRows, seed: int) -> JointModel:
    """Choose the slope of the critic: the factor on its scores that minimizes the NLL of (y, z) given x.

    The NLL is that of the held-out rows with all of z; P(y, z) is estimated from their labels and z. `joint` is
    returned unchanged if there are too few of these rows.
    """
    schema = joint.bank.schema
    held = with_all_of_z(held, schema)
    if len(held) < ENOUGH_ROWS:
        return joint
    few = held.take(evenly(len(held), TEMPERATURE_ROWS))
    features = layer_features(model.scorer_, few.X)
    bank, _ = make_bank(schema, few.codes, few.weight, n_points(len(model.classes_)))
    log_own, log_source = model.fit_prevalence(held, seed).log_prob(bank.codes), joint.source.log_prob(bank.codes)
    offsets, scores = [], []
    for _, log_f, score in over_points(model, joint.critic, features, bank):
        offsets.append(bank.share.log() + torch.logsumexp(stable_part(log_f, log_source) + log_own, dim=2))
        scores.append(score)
    offset, score, weight = torch.cat(offsets), torch.cat(scores), few.weight.double()
    own = joint.critic.of_pairs(features.double(), schema.inputs(few.codes))

    def nll(temperature: float) -> float:
        return float(weight @ (torch.logsumexp(offset + temperature * score, dim=1) - temperature * own))

    best = minimize_scalar(nll, bounds=(0.0, LARGEST_TEMPERATURE), method="bounded")
    return replace(joint, temperature=float(best.x))


def blocks_of(backbone: nn.Module) -> list[nn.Module]:
    """Return the blocks of a backbone that have parameters: its children, or those of its only child, in order."""
    learning = [part for part in backbone.children() if any(True for _ in part.parameters())]
    return blocks_of(learning[0]) if len(learning) == 1 and any(True for _ in learning[0].children()) else learning


def over_places(output: Tensor) -> Tensor:
    """Return the mean of each channel over all positions, (n, C), of images (n, C, ...) or tokens (n, positions, C)."""
    if output.ndim == 3:
        return output.mean(1)
    return output.flatten(2).mean(2) if output.ndim > 3 else output


class Layers(nn.Module):
    """A module that returns a backbone's features (n, W), followed by the channel means (n, W') of its blocks."""

    def __init__(self, network: RatioNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the features and the channel means, (n, W + W'); z is not used."""
        seen: dict[int, Tensor] = {}

        def keep(part: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim >= 2 and len(output) == len(x):
                means = over_places(output)
                seen[id(part)] = means if means.shape[1] <= CHANNELS else means[:, evenly(means.shape[1], CHANNELS)]

        backbone = self.network.backbone
        hooks = [part.register_forward_hook(keep) for part in blocks_of(backbone)]
        try:
            features = backbone(x)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([features, *(part for part in seen.values() if part is not features)], dim=1)


def layer_features(scorer: Scorer, X: Inputs) -> Tensor:
    """Return the critic's features of each row, (n, W + W'), on the CPU; the fusion reads the first W columns."""
    assert isinstance(scorer.module, RatioNetwork)
    return Scorer(Layers(scorer.module), scorer.device)(X, torch.zeros(len(X), 0))
