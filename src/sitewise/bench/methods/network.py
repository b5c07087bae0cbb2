"""Training of a method's network: read and split the data, build the network, train it and keep the results."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.bench.methods.objective import MethodObjective
from sitewise.confounders import Confounders
from sitewise.estimator.settings import build_network, train_network
from sitewise.estimator.source.reading import read_inputs, read_training_data, split_validation
from sitewise.ratio import Scorer, for_network, network_inputs
from sitewise.rows import LabeledRows
from sitewise.training import Recipe
from sitewise.training.augmentation import AUGMENTATIONS

if TYPE_CHECKING:
    from sitewise.bench.methods.base import Method

Array = np.ndarray[Any, Any]


@dataclass
class Trained:
    """A trained network, its held-out rows without inputs, and values that the method computed from the data."""

    scorer: Scorer
    classes: Array
    schema: Confounders | None
    shares: Tensor  # weighted shares of the classes among the training rows, (K,)
    held_out: LabeledRows
    held_out_outputs: Tensor  # the network's outputs for them
    memory: Any
    history: list[dict[str, float]]
    input_shape: tuple[int, ...] | None
    n_features: int
    remembered: dict[tuple[int, int], tuple[Any, Any, Tensor]] | None = None


def train_method(
    method: "Method",
    X: Any,
    y: Any,
    domain: Any,
    Z: Any,
    groups: Any,
    weight: Any,
    unlabeled: Mapping[str, Any] | None,
) -> Trained:
    """Train the network of a method on the rows of all sites, with the settings and hooks of the method."""
    recipe = method.resolved_recipe()
    inputs = read_inputs(method, method.see(X), reset=True)
    data = read_training_data(inputs, y, domain, Z, groups, weight)
    seed = int(check_random_state(method.random_state).randint(2**31 - 1))
    kept, held = split_validation(data, method.validation, seed)
    training, held_out = data.rows.take(kept), data.rows.take(held)
    numbers = torch.unique(training.site, return_inverse=True)[1]
    pools = [read_inputs(method, method.see(pool), reset=False) for pool in (unlabeled or {}).values()]
    pools = pools if method.card.unlabeled_in_training else []
    reason = method.refusal(int(numbers.max()) + 1, data.schema, sum(map(len, pools)))
    if reason:
        raise ValueError(reason)
    n_classes = len(data.classes)
    prepared = method.prepare(training, held_out, data.schema, n_classes)
    schema = data.schema if method.reads_z else None
    network = build_network(method, for_network(training.X), schema, method.n_outputs(n_classes, prepared), seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        module = method.build(network, int(numbers.max()) + 1 + len(pools), prepared)
    objective = MethodObjective(
        method,
        replace(training, X=for_network(training.X), site=numbers),
        _for_validation(held_out, recipe),
        schema,
        prepared,
        [for_network(pool) for pool in pools],
        AUGMENTATIONS[recipe.augment] if recipe.augment else None,
        method.own_settings(),
    )
    label = f"training {method.card.name}"
    result = train_network(method, module, objective, recipe, seed, label, checkpoint=method.checkpoint)
    scorer = Scorer(result.module, method.device)
    shares = (training.weight[:, None] * one_hot(training.y, n_classes)).sum(0).double()
    return Trained(
        scorer=scorer,
        classes=data.classes,
        schema=data.schema,
        shares=shares / shares.sum(),
        held_out=replace(held_out, X=inputs[:0]),
        held_out_outputs=scorer(held_out.X, network_inputs(schema, held_out.codes)) if len(held) else shares[:0],
        memory=prepared.memory,
        history=result.history,
        input_shape=method.input_shape_,
        n_features=method.n_features_in_,
    )


def _for_validation(rows: LabeledRows, recipe: Recipe) -> LabeledRows:
    """Return the held-out rows that choose the best epoch; the recipe says whether all classes get the same weight."""
    held = replace(rows, X=for_network(rows.X))
    return held.balanced() if recipe.balance_validation else held
