"""Attacks on the doors: masked arrays, dates, complex numbers, odd tensors, swapped columns, in every function."""

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch

import sitewise as sw
from campaign import oracles
from campaign.estimates import check_distribution, quiet
from campaign.oracles import Array
from campaign.registry import family
from sitewise.evaluation import evaluate
from sitewise.monitoring import monitor

Spoil = Callable[[Array], Any]

NOT_NUMBERS: dict[str, Spoil] = {
    "masked": lambda a: np.ma.array(a, mask=np.arange(a.size).reshape(a.shape) == a.size // 2),
    "masked rows": lambda a: [np.ma.array(row, mask=np.arange(row.size).reshape(row.shape) == 0) for row in a],
    "dates": lambda a: (np.asarray(a) * 1e6).astype("datetime64[s]"),
    "spans": lambda a: (np.asarray(a) * 1e6).astype("timedelta64[s]"),
    "spans as objects": lambda a: (np.asarray(a) * 1e6).astype("timedelta64[s]").astype(object),
    "frame of dates": lambda a: pd.DataFrame((np.asarray(a) * 1e6).astype("datetime64[s]").reshape(len(a), -1)),
    "complex": lambda a: np.asarray(a) + 1j,
    "complex tensor": lambda a: torch.tensor(np.asarray(a) + 1j),
    "sparse": lambda a: torch.tensor(a).to_sparse(),
    "meta": lambda a: torch.tensor(a).to("meta"),
    "quantized": lambda a: torch.quantize_per_tensor(torch.tensor(a).float(), 0.1, 0, torch.qint8),
    "nested": lambda a: torch.nested.nested_tensor([torch.tensor(row) for row in a]),
    "huge": lambda a: [[10**400 for _ in np.ravel(row)] for row in a],
    "records": lambda a: np.zeros(len(a), dtype=[("a", float), ("b", float)]),
    "words": lambda a: np.full(np.shape(a), "x"),
    "nothing": lambda a: np.full(np.shape(a), None, dtype=object),
    "datetimes": lambda a: np.full(np.shape(a), datetime.datetime(2020, 1, 1), dtype=object),
    "a dict": lambda a: {"a": np.asarray(a)},
    "a set": lambda a: set(np.ravel(a).tolist()),
    "a number": lambda a: 3.0,
    "a function": lambda a: np.mean,
}

HARMLESS: dict[str, Spoil] = {
    "unmasked": lambda a: np.ma.array(a, mask=np.zeros(np.shape(a), dtype=bool)),
    "with gradient": lambda a: torch.tensor(a, requires_grad=True),
    "in a list": lambda a: np.asarray(a).tolist(),
    "backwards twice": lambda a: np.asarray(a)[::-1][::-1],
    "by columns": np.asfortranarray,
    "read only": lambda a: _read_only(np.array(a)),
    "as objects": lambda a: np.asarray(a).astype(object),
    "a frame": lambda a: pd.DataFrame(np.asarray(a)),
    "a matrix of a view": lambda a: np.asarray(a).repeat(2, axis=0)[::2],
}


def _read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


def scores(rng: np.random.Generator, n_rows: int = 12) -> tuple[Array, Array, Array]:
    """Log-ratios, labels and probabilities of two classes."""
    log_ratio = rng.normal(0, 2, (n_rows, 2))
    y = np.concatenate([[0, 1], rng.integers(0, 2, n_rows - 2)])
    second = 1 / (1 + np.exp(-log_ratio[:, 1] + log_ratio[:, 0]))
    return log_ratio, y, np.c_[1 - second, second]


def array_calls(rng: np.random.Generator) -> dict[str, tuple[Array, Callable[[Any], Any]]]:
    """Every public function of arrays: a legal argument, and the call as a function of it."""
    log_ratio, y, probability = scores(rng)
    time = np.arange(len(y))
    estimate = sw.estimate_prevalence(log_ratio)
    log_g = np.log([0.6, 0.4])
    calibration = sw.calibrate_log_ratio(log_ratio, y, log_g, "temperature")
    return {
        "estimate_prevalence": (log_ratio, lambda a: sw.estimate_prevalence(a).marginal),
        "adjust": (log_ratio, lambda a: sw.adjust(a, log_g)),
        "adjust, log_prevalence": (np.tile(log_g, (len(y), 1)), lambda a: sw.adjust(log_ratio, a)),
        "estimate_joint": (log_ratio, lambda a: sw.estimate_joint(_cube(a), strength=1.0).marginal),
        "predict_proba": (log_ratio, estimate.predict_proba),
        "evaluate": (probability, lambda a: [m.value for m in evaluate(y, a).values()]),
        "calibrate_log_ratio": (log_ratio, lambda a: sw.calibrate_log_ratio(a, y, log_g, "temperature").slope),
        "calibration": (log_ratio, calibration),
        "expected_performance": (
            log_ratio,
            lambda a: sw.expected_performance(a, estimate, n_draws=5, random_state=0)["accuracy"],
        ),
        "monitor": (log_ratio, lambda a: monitor(a, time, window=12)["estimate"].to_numpy()),
        "PrevalenceAdjuster": (probability, lambda a: sw.PrevalenceAdjuster().fit(a, y).sites_),
    }


def _cube(value: Any) -> Any:
    """(n, K) as (n, 1, K), of any kind that has it; the rest as it is."""
    return value[:, None, :] if isinstance(value, np.ndarray | torch.Tensor) and value.ndim == 2 else value


@family(short=60)
def no_numbers(rng: np.random.Generator) -> str:
    """What holds no numbers, or hides some, where numbers are wanted: one clear error."""
    calls = array_calls(rng)
    name = str(rng.choice(sorted(calls)))
    kind = str(rng.choice(sorted(NOT_NUMBERS)))
    legal, call = calls[name]
    spoiled = NOT_NUMBERS[kind](legal)
    assert oracles.refused(lambda: quiet(lambda: call(spoiled))), f"{name} took {kind}"
    return "refused"


@family(short=40)
def other_containers(rng: np.random.Generator) -> str:
    """The same numbers in another container: the same answer."""
    calls = array_calls(rng)
    name = str(rng.choice(sorted(calls)))
    kind = str(rng.choice(sorted(HARMLESS)))
    legal, call = calls[name]
    if name == "estimate_joint" and kind in ("a frame", "in a list"):
        return "not for this one"
    expected, _ = quiet(lambda: call(legal))
    found, _ = quiet(lambda: call(HARMLESS[kind](legal)))
    if name != "PrevalenceAdjuster" and not hasattr(found, "low"):
        found = found.detach() if isinstance(found, torch.Tensor) else found
        np.testing.assert_allclose(
            np.asarray(found, float), np.asarray(expected, float), atol=1e-9, err_msg=f"{name}: {kind}"
        )
    return "answered"


@family(short=40)
def masked_confounders(rng: np.random.Generator) -> str:
    """A masked entry of Z is a missing one, in every function that takes Z, whatever value is under the mask."""
    log_ratio, y, probability = scores(rng, 40)
    numbers = rng.normal(50, 10, (40, 2))
    mask = rng.random(numbers.shape) < 0.3
    mask[:4] = False
    explicit = np.where(mask, np.nan, numbers)
    hidden = np.ma.array(np.where(mask, rng.choice([1e9, -1.0, 0.0]), numbers), mask=mask)
    if rng.random() < 0.5:  # text
        words = np.array(["a", "b", "c"])[rng.integers(0, 3, 40)]
        explicit = np.where(mask[:, 0], None, words.astype(object))[:, None]
        hidden = np.ma.array(words, mask=mask[:, 0])
    schema = sw.Confounders.learn(explicit)
    estimate, _ = quiet(lambda: sw.estimate_prevalence(log_ratio, explicit, model="additive", strength=10.0))
    calls: dict[str, Callable[[Any], Any]] = {
        "schema": lambda z: schema.encode(z)[0].numpy(),
        "learn": lambda z: sw.Confounders.learn(z) == schema,
        "estimate_prevalence": lambda z: sw.estimate_prevalence(log_ratio, z, model="additive", strength=10.0).marginal,
        "log_prevalence": estimate.log_prevalence,
        "interval": lambda z: np.stack(estimate.interval(z)),
        "predict_proba": lambda z: estimate.predict_proba(log_ratio, z),
        "adjuster": lambda z: (
            sw.PrevalenceAdjuster(rehearsal=None)
            .fit(probability, y, sample_confounder=z)
            .predict_proba(probability, sample_confounder=z)
        ),
    }
    name = str(rng.choice(sorted(calls)))
    expected, _ = quiet(lambda: calls[name](explicit))
    found, _ = quiet(lambda: calls[name](hidden))
    np.testing.assert_allclose(np.asarray(found, float), np.asarray(expected, float), atol=1e-9, err_msg=name)
    return name


@family(short=20)
def columns_of_probabilities(rng: np.random.Generator) -> str:
    """A frame of probabilities at a new site: columns by their names, whatever their order, or a refusal."""
    n_classes = int(rng.integers(2, 4))
    raw = rng.normal(size=(60, n_classes))
    y = (raw + rng.normal(0, 1.5, raw.shape)).argmax(axis=1)
    if len(np.unique(y)) < n_classes:
        return "too few classes"
    probability = np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True)
    labels = np.array(["ill", "well", "unsure"][:n_classes])
    names = [f"p{k}" for k in range(n_classes)] if rng.random() < 0.7 else sorted(labels.tolist())
    order = np.sort(labels)
    frame = pd.DataFrame(probability, columns=names)
    model = sw.PrevalenceAdjuster(rehearsal=None).fit(frame, order[y])
    expected = np.asarray(model.adapt(frame).predict_proba(frame))
    turned = frame[[names[k] for k in rng.permutation(n_classes)]]
    here, _ = quiet(lambda: model.adapt(turned))
    np.testing.assert_allclose(np.asarray(here.predict_proba(turned)), expected, atol=1e-9)
    check_distribution(np.asarray(here.predict_proba(frame)))
    other = frame.set_axis([f"other{k}" for k in range(n_classes)], axis=1)
    assert oracles.refused(lambda: model.adapt(other))
    return "matched"


@family(short=20)
def odd_columns(rng: np.random.Generator) -> str:
    """Groups, labels, weights, times and Z of odd kinds: an answer or one clear error, never another exception."""
    log_ratio, y, probability = scores(rng, 12)
    odd: dict[str, Any] = {
        "lists": [[1, 2]] * 12,
        "dicts": [{"a": 1}] * 12,
        "sets": [{1}] * 12,
        "huge": [10**400, *range(11)],
        "too short": list(range(5)),
        "masked": np.ma.array(np.arange(12) % 2, mask=np.arange(12) == 3),
        "with gradient": torch.arange(12.0, requires_grad=True),
        "sparse": torch.arange(12.0).to_sparse(),
        "meta": torch.arange(12.0).to("meta"),
        "quantized": torch.quantize_per_tensor(torch.arange(12.0), 0.1, 0, torch.qint8),
        "mixed": [1, "a", None, 2.5, True, np.nan, "b", 3, 4, 5, 6, 7],
        "dates": pd.date_range("2020", periods=12),
        "complex": np.arange(12) + 1j,
        "tuples": [(1, 2)] * 12,
        "two columns": np.zeros((12, 2)),
        "infinite": [np.inf] * 12,
        "text": "abcdefghijkl",
        "bytes": [b"x"] * 12,
    }
    calls: dict[str, Callable[[Any], Any]] = {
        "groups": lambda v: sw.estimate_prevalence(log_ratio, groups=v).interval(),
        "weight": lambda v: sw.estimate_prevalence(log_ratio, sample_weight=v),
        "y": lambda v: sw.estimate_prevalence(log_ratio, y=v),
        "Z": lambda v: sw.estimate_prevalence(log_ratio, v),
        "Z in a frame": lambda v: sw.estimate_prevalence(log_ratio, {"z": v}),
        "evaluate y": lambda v: evaluate(v, probability),
        "evaluate groups": lambda v: evaluate(y, probability, groups=v, n_resamples=5),
        "calibrate y": lambda v: sw.calibrate_log_ratio(log_ratio, v, np.zeros(2)),
        "fit y": lambda v: sw.PrevalenceAdjuster(rehearsal=None).fit(probability, v),
        "fit domain": lambda v: sw.PrevalenceAdjuster(rehearsal=None).fit(probability, y, sample_domain=v),
        "fit groups": lambda v: sw.PrevalenceAdjuster(rehearsal=None).fit(probability, y, groups=v),
        "fit Z": lambda v: sw.PrevalenceAdjuster(rehearsal=None).fit(probability, y, sample_confounder=v),
        "pool domain": lambda v: sw.pool_prevalence(y, np.arange(12.0), v),
        "monitor time": lambda v: monitor(log_ratio, v, window=12),
    }
    call, value = str(rng.choice(sorted(calls))), str(rng.choice(sorted(odd)))
    try:
        return "refused" if oracles.refused(lambda: quiet(lambda: calls[call](odd[value]))) else "answered"
    except Exception as error:
        error.add_note(f"{call}: {value}")
        raise
