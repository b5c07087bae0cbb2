"""Attacks on the array functions, written from the public contract: what is promised of every call, whatever its input.

Answers are compared with equations written out in numpy, with a search by brute force, and with themselves.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize

import sitewise as sw
from campaign import oracles
from campaign.estimates import check_distribution, quiet
from campaign.oracles import Array
from campaign.registry import family
from sitewise.evaluation import evaluate

Rng = np.random.Generator


def log_softmax(values: Array) -> Array:
    """In extended precision; a row of -inf only says nothing and is even."""
    values = np.asarray(values, dtype=np.longdouble)
    certain = (values == np.inf).any(axis=-1, keepdims=True)
    values = np.where(certain, np.where(values == np.inf, 0, -np.inf), values)
    top = values.max(axis=-1, keepdims=True)
    values = np.where(np.isneginf(top), 0, values - np.where(np.isneginf(top), 0, top))
    with np.errstate(divide="ignore"):
        return np.asarray(values - np.log(np.exp(values).sum(axis=-1, keepdims=True)))


def odd_matrix(rng: Rng, n_rows: int, n_classes: int, *, infinite: bool = True) -> Array:
    """Numbers of any size, sign and repetition."""
    draws = [
        lambda: rng.normal(0, 10.0 ** rng.uniform(-4, 2.5), (n_rows, n_classes)),
        lambda: rng.standard_cauchy((n_rows, n_classes)),
        lambda: rng.integers(-3, 4, (n_rows, n_classes)).astype(float),
        lambda: np.repeat(rng.normal(0, 3, (1, n_classes)), n_rows, axis=0),
        lambda: np.outer(rng.normal(0, 5, n_rows), np.ones(n_classes)),
        lambda: np.log(rng.dirichlet(np.full(n_classes, 0.2), n_rows) + 1e-300),
    ]
    matrix = np.asarray(draws[rng.integers(len(draws))](), dtype=float)
    matrix += rng.choice([0.0, 0.0, 700.0, -1e4]) * rng.random((n_rows, 1))
    if infinite and rng.random() < 0.3:
        matrix[rng.random(matrix.shape) < 0.15] = -np.inf
    if infinite and rng.random() < 0.1:
        matrix[rng.integers(n_rows), rng.integers(n_classes)] = np.inf
    return matrix


def odd_z(rng: Rng, n_rows: int) -> pd.DataFrame:
    """A frame of one to three confounders of any kind that the contract knows, with gaps."""
    kinds = [
        lambda: rng.choice(["a", "b", "c"], n_rows),
        lambda: rng.choice(np.array(["x", "", "ä€", "NaN", None], dtype=object), n_rows),
        lambda: pd.Categorical(rng.choice(["u", "v"], n_rows), categories=["v", "unused", "u"]),
        lambda: rng.random(n_rows) < 0.4,
        lambda: rng.integers(0, 2, n_rows),
        lambda: rng.integers(-5, 90, n_rows),
        lambda: rng.normal(50, 20, n_rows),
        lambda: rng.lognormal(0, 4, n_rows),
        lambda: np.where(rng.random(n_rows) < 0.3, np.nan, rng.normal(size=n_rows)),
        lambda: pd.array(np.where(rng.random(n_rows) < 0.3, None, rng.integers(0, 9, n_rows)), dtype="Int64"),
        lambda: np.full(n_rows, 3.5),
        lambda: pd.array(rng.choice(["p", "q"], n_rows), dtype="string"),
        lambda: rng.normal(0, 1e-12, n_rows),
        lambda: 1e12 + rng.normal(0, 1.0, n_rows),
    ]
    return pd.DataFrame({f"z{j}": kinds[k]() for j, k in enumerate(rng.integers(0, len(kinds), rng.integers(1, 4)))})


def give(rng: Rng, matrix: Array) -> tuple[Any, Any]:
    """A matrix in some container, and what answers to it must be instances of."""
    kinds = [(matrix, np.ndarray), (torch.tensor(matrix), torch.Tensor), (pd.DataFrame(matrix), object)]
    kinds += [(matrix.tolist(), np.ndarray), (np.asfortranarray(matrix), np.ndarray)]
    return kinds[rng.integers(len(kinds))]


def check_within(low: Any, value: Any, high: Any) -> None:
    """See that bounds are probabilities and hold what they are about."""
    low, value, high = (np.asarray(part, dtype=float) for part in (low, value, high))
    assert (low >= 0).all(), low
    assert (high <= 1).all(), high
    assert (low <= value + 1e-9).all(), (low, value)
    assert (high >= value - 1e-9).all(), (value, high)


@family(short=15)
def any_estimate(rng: Rng) -> str:
    """Any legal call of `estimate_prevalence`: distributions, their mean, intervals in order, the same bits twice."""
    n_classes, n_rows = int(rng.integers(2, 6)), int(rng.integers(1, 70))
    matrix = odd_matrix(rng, n_rows, n_classes)
    given, kind = give(rng, matrix)
    Z = odd_z(rng, n_rows) if rng.random() < 0.6 else None
    model = str(rng.choice(["constant", "table", "additive", "auto"]))
    if Z is None and model in ("table", "additive"):
        model = "constant"
    if model == "table" and Z is not None:
        Z = Z[[name for name in Z if Z[name].dtype == object or Z[name].dtype == bool]]
        Z, model = (Z, model) if Z.shape[1] else (None, "constant")
    weight = rng.integers(0, 4, n_rows).astype(float) if rng.random() < 0.3 else None
    if weight is not None and not weight.any():
        weight = None
    labels = np.where(rng.random(n_rows) < 0.8, np.nan, rng.integers(0, n_classes, n_rows).astype(float))
    options: dict[str, Any] = {"model": model, "sample_weight": weight}
    if rng.random() < 0.2:
        options["y"] = labels
    if rng.random() < 0.2:
        options["groups"] = rng.integers(0, max(2, n_rows // 3), n_rows)
    if rng.random() < 0.2:
        options["prior"] = rng.dirichlet(np.ones(n_classes))
    if rng.random() < 0.3 and model != "auto":
        options["strength"] = float(10.0 ** rng.uniform(-3, 3))

    def call() -> Any:
        return sw.estimate_prevalence(given, Z, **options)

    found = oracles.attempt(lambda: quiet(call))
    if found is None:
        return "refused"
    estimate, _ = found
    marginal = np.asarray(estimate.marginal)
    assert marginal.dtype == np.float64
    check_distribution(marginal)
    log_g = np.log(np.maximum(marginal, 1e-300)) + np.zeros((n_rows, 1))
    if Z is not None:
        log_g, _ = quiet(lambda: estimate.log_prevalence(Z))
    at_rows = check_distribution(np.exp(np.asarray(log_g, dtype=float)))
    assert at_rows.shape == (n_rows, n_classes)
    own = np.ones(n_rows) if weight is None else weight
    np.testing.assert_allclose(own @ at_rows / own.sum(), marginal, atol=1e-6)
    inner, outer = (quiet(lambda lv=level: estimate.interval(level=lv))[0] for level in (0.5, 0.95))
    for low, high in (inner, outer):
        assert np.shape(low) == np.shape(high) == (n_classes,)
        check_within(low, marginal, high)
    assert (np.asarray(outer[0]) <= np.asarray(inner[0]) + 1e-9).all()
    assert (np.asarray(outer[1]) >= np.asarray(inner[1]) - 1e-9).all()
    if Z is not None:
        low, high = (np.asarray(bound) for bound in quiet(lambda: estimate.interval(Z))[0])
        assert low.shape == (n_rows, n_classes)
        check_within(low, at_rows, high)
    posterior = check_distribution(sw.adjust(matrix, np.asarray(log_g)))
    assert posterior.shape == (n_rows, n_classes)
    assert np.isfinite(float(np.max(np.asarray(estimate.gap, dtype=float))))
    again, _ = quiet(call)
    assert np.asarray(again.marginal).tobytes() == marginal.tobytes(), "the same call gave other bits"
    answer = sw.adjust(given, log_g)
    assert isinstance(answer, kind)
    return str(estimate.model)


@family(short=40)
def by_brute_force(rng: Rng) -> str:
    """Two classes and a constant g: a search over g finds nothing better, labels and pseudo-rows included."""
    n_rows = int(rng.integers(1, 40))
    matrix = odd_matrix(rng, n_rows, 2, infinite=False)
    weight = 10.0 ** rng.uniform(-2, 2, n_rows) if rng.random() < 0.5 else np.ones(n_rows)
    strength = float(rng.choice([0.0, 0.0, 0.01, 1.0, 50.0]))
    labels = np.where(rng.random(n_rows) < 0.7, np.nan, rng.integers(0, 2, n_rows)) if rng.random() < 0.4 else None
    f = np.exp(log_softmax(matrix)).astype(float)
    if labels is not None:
        f = np.where(np.isnan(labels)[:, None], f, np.eye(2)[np.nan_to_num(labels).astype(int)])
    if (np.abs(f[:, 0] - f[:, 1]) < 1e-9).all():
        return "not identified"
    estimate, _ = quiet(
        lambda: sw.estimate_prevalence(matrix, model="constant", strength=strength, sample_weight=weight, y=labels)
    )
    pseudo = np.full(2, strength / 2) if strength else None

    def loss(second: Array) -> Array:
        g = np.stack([1 - second, second])
        with np.errstate(divide="ignore"):
            total = weight @ np.log(np.maximum(f @ g, 1e-300))
            return np.asarray(total if pseudo is None else total + pseudo @ np.log(np.maximum(g, 1e-300)))

    grid = np.unique(np.r_[np.linspace(0, 1, 4001), np.logspace(-12, -1, 400), 1 - np.logspace(-12, -1, 400)])
    found = float(loss(np.asarray(estimate.marginal)[1:])[0])
    best = float(loss(grid).max())
    total = weight.sum() + strength
    assert found >= best - 1e-6 * total, (found, best, estimate)
    return "answered"


@family(short=40)
def any_posterior(rng: Rng) -> str:
    """`adjust` is equation 3, in any container and to the last digits, and refuses what is no log-ratio."""
    n_classes, n_rows = int(rng.integers(2, 7)), int(rng.integers(1, 30))
    matrix = odd_matrix(rng, n_rows, n_classes)
    log_g = np.log(rng.dirichlet(np.full(n_classes, rng.choice([0.05, 1.0])), n_rows) + 1e-290)
    if rng.random() < 0.3:
        log_g = np.log(np.eye(n_classes)[rng.integers(0, n_classes, n_rows)] * 0.5 + 0.5 / n_classes)
    single = bool(rng.random() < 0.3)
    given, kind = give(rng, matrix)
    if rng.random() < 0.2:
        spoiled = matrix.copy()
        spoiled[rng.integers(n_rows), rng.integers(n_classes)] = np.nan
        assert oracles.refused(lambda: sw.adjust(spoiled, log_g))
        assert oracles.refused(lambda: sw.adjust(matrix[:, :1], log_g[:, :1]))
        assert oracles.refused(lambda: sw.adjust(matrix, log_g[:, :-1]))
        return "refused"
    answer = sw.adjust(given, log_g[0] if single else log_g)
    assert isinstance(answer, kind)
    own = np.broadcast_to(log_g[0], log_g.shape) if single else log_g
    blank = np.isneginf(matrix).all(axis=1)
    expected = np.exp(log_softmax(log_softmax(matrix) + own))
    found = check_distribution(answer)
    np.testing.assert_allclose(found[~blank], expected.astype(float)[~blank], atol=1e-12)
    return "answered"


@family(short=25)
def any_joint(rng: Rng) -> str:
    """`estimate_joint`: cells and marginal agree, the posterior is equation 10, and no cells by search are better."""
    n_points, n_classes, n_rows = int(rng.integers(1, 4)), int(rng.integers(2, 4)), int(rng.integers(1, 25))
    cube = odd_matrix(rng, n_rows, n_points * n_classes).reshape(n_rows, n_points, n_classes)
    if rng.random() < 0.15:
        cube[rng.integers(n_rows), 0, 0] = np.nan
        assert oracles.refused(lambda: sw.estimate_joint(cube))
        return "refused"
    strength = float(rng.choice([0.0, 0.5, 20.0]))
    estimate, _ = quiet(lambda: sw.estimate_joint(cube, strength=strength))
    cells = check_distribution(np.asarray(estimate.joint).reshape(-1)).reshape(n_points, n_classes)
    np.testing.assert_allclose(cells.sum(axis=0), estimate.marginal, atol=1e-9)
    r = np.exp(log_softmax(cube.reshape(n_rows, -1))).astype(float).reshape(cube.shape)
    telling = ~np.isneginf(cube).all(axis=(1, 2))
    mixed = (r * cells).sum(axis=1)
    clear = telling & (mixed.sum(axis=1) > 1e-200)
    expected = mixed[clear] / mixed[clear].sum(axis=1, keepdims=True)
    found = check_distribution(estimate.posterior(cube))
    np.testing.assert_allclose(found[clear], expected, atol=1e-6)
    flat = r.reshape(n_rows, -1)
    pseudo = np.full(flat.shape[1], strength / flat.shape[1]) if strength else None
    own = np.ones(n_rows)
    best = oracles.log_likelihood(flat, oracles.em(flat, own, pseudo, n_iter=400), own, pseudo)
    reached = oracles.log_likelihood(flat, cells.reshape(-1), own, pseudo)
    assert reached >= best - 1e-6 * (n_rows + strength), (reached, best)
    return "answered"


@family(short=25)
def any_calibration(rng: Rng) -> str:
    """`calibrate_log_ratio`: another library finds no smaller loss, and a column's own constant changes nothing."""
    n_classes = int(rng.integers(2, 5))
    y = np.concatenate([np.arange(2 * n_classes) % n_classes, rng.integers(0, n_classes, rng.integers(10, 60))])
    raw = rng.normal(0, 1, (len(y), n_classes))
    raw[np.arange(len(y)), y] += rng.choice([0.0, 0.5, 1.0])
    raw *= 10.0 ** rng.uniform(-2, 2)
    log_g = np.log(rng.dirichlet(np.full(n_classes, 2.0)))
    weight = rng.integers(1, 4, len(y)).astype(float)
    method = str(rng.choice(["temperature", "bias_corrected", "vector"]))
    found, said = quiet(lambda: sw.calibrate_log_ratio(raw, y, log_g, method, sample_weight=weight))
    shifted, _ = quiet(
        lambda: sw.calibrate_log_ratio(raw + rng.normal(0, 9, (len(y), 1)), y, log_g, method, sample_weight=weight)
    )
    centred = raw - raw.mean(axis=1, keepdims=True)
    scale = np.sqrt(np.mean(centred**2))

    def loss(slope: Array, bias: Array) -> float:
        chosen = log_softmax(slope * centred + bias + log_g)[np.arange(len(y)), y]
        return float(-(weight @ chosen) / weight.sum())

    def unfold(free: Array) -> tuple[Array, Array]:
        many = method == "vector"
        slope = free[:n_classes] if many else np.full(n_classes, free[0])
        bias = np.zeros(n_classes) if method == "temperature" else np.r_[0.0, free[n_classes if many else 1 :]]
        return slope / scale, bias

    n_slopes = n_classes if method == "vector" else 1
    n_free = n_slopes + (0 if method == "temperature" else n_classes - 1)
    best = minimize(
        lambda free: loss(*unfold(free)),
        np.r_[np.ones(n_slopes), np.zeros(n_free - n_slopes)],
        method="L-BFGS-B",
        bounds=[(0, None)] * n_slopes + [(None, None)] * (n_free - n_slopes),
    ).fun
    reached = loss(np.asarray(found.slope), np.asarray(found.bias))
    assert reached <= best + 1e-6, (reached, best, said)
    assert abs(loss(np.asarray(shifted.slope), np.asarray(shifted.bias)) - reached) < 1e-7
    applied = np.asarray(found(raw))
    assert applied.shape == raw.shape
    assert np.isfinite(applied).all()
    return method


@family(short=10)
def other_units(rng: Rng) -> str:
    """Units and origins of numbers, names of levels, order of columns and rows, labels of rows: the same answer."""
    n_rows, n_classes = int(rng.integers(20, 80)), int(rng.integers(2, 4))
    matrix = rng.normal(0, 2, (n_rows, n_classes))
    Z = pd.DataFrame({"age": rng.uniform(20, 90, n_rows), "ward": rng.choice(["a", "b", "c"], n_rows)})
    Z.loc[rng.random(n_rows) < 0.1, "age"] = np.nan
    model = str(rng.choice(["additive", "auto"]))
    strength: Any = "auto" if model == "auto" else float(rng.choice([1.0, 10.0]))

    def marginal(ratio: Array, z: pd.DataFrame) -> Array:
        found, _ = quiet(lambda: sw.estimate_prevalence(ratio, z, model=model, strength=strength))
        return check_distribution(found.marginal)

    expected = marginal(matrix, Z)
    factor, origin = 10.0 ** rng.uniform(-6, 6), float(rng.normal(0, 100))
    variants = {
        "units": (matrix, Z.assign(age=Z["age"] * factor)),
        "origin": (matrix, Z.assign(age=Z["age"] + origin)),
        "direction": (matrix, Z.assign(age=-Z["age"])),
        "names": (matrix, Z.assign(ward=Z["ward"].map({"a": "zz", "b": "", "c": "ü"}))),
        "columns": (matrix, Z[["ward", "age"]]),
        "labels": (matrix, Z.set_axis(rng.permutation(n_rows) * 7 - 3, axis=0)),
        "kind": (matrix, Z.assign(ward=Z["ward"].astype("category"))),
    }
    name = str(rng.choice(sorted(variants)))
    np.testing.assert_allclose(marginal(*variants[name]), expected, atol=2e-4, err_msg=f"{name} {factor} {origin}")
    return name


@family(short=20)
def columns_that_differ(rng: Rng) -> str:
    """Z of another site, by name: absent and unseen is missing, extra is ignored, and said; the rest is refused."""
    n_rows = 40
    matrix = rng.normal(0, 2, (n_rows, 2))
    Z = pd.DataFrame({"age": rng.uniform(20, 90, n_rows), "ward": rng.choice(["a", "b"], n_rows)})
    estimate, _ = quiet(lambda: sw.estimate_prevalence(matrix, Z, model="additive", strength=3.0))
    case = str(rng.choice(["absent", "extra", "unseen", "outside", "none", "inf", "width", "order", "empty"]))
    new = Z.sample(7, random_state=int(rng.integers(1 << 30))).reset_index(drop=True)
    if case == "absent":
        answer, said = quiet(lambda: estimate.log_prevalence(new[["age"]]))
        expected, _ = quiet(lambda: estimate.log_prevalence(new.assign(ward=None)))
        assert said
    elif case == "extra":
        answer, said = quiet(lambda: estimate.log_prevalence(new.assign(extra=1)))
        expected, _ = quiet(lambda: estimate.log_prevalence(new))
        assert any("extra" in text for text in said)
    elif case == "unseen":
        answer, said = quiet(lambda: estimate.log_prevalence(new.assign(ward="never seen")))
        expected, _ = quiet(lambda: estimate.log_prevalence(new.assign(ward=None)))
        assert said
    elif case == "outside":
        answer, _ = quiet(lambda: estimate.log_prevalence(new.assign(age=1e6)))
        expected, _ = quiet(lambda: estimate.log_prevalence(new.assign(age=Z["age"].max())))
    elif case == "order":
        answer, _ = quiet(lambda: estimate.log_prevalence(new[["ward", "age"]]))
        expected, _ = quiet(lambda: estimate.log_prevalence(new))
    elif case == "empty":
        answer, _ = quiet(lambda: estimate.log_prevalence(new.head(0)))
        expected = np.zeros((0, 2))
    else:
        wrong: dict[str, Any] = {
            "none": pd.DataFrame({"other": [1, 2]}),
            "inf": new.assign(age=np.inf),
            "width": np.zeros((3, 3)),
        }
        assert oracles.refused(lambda: quiet(lambda: estimate.log_prevalence(wrong[case])))
        return "refused"
    np.testing.assert_allclose(np.asarray(answer), np.asarray(expected), atol=1e-9)
    return case


@family(short=30)
def any_evaluation(rng: Rng) -> str:
    """Metrics of any probabilities and labels: accuracy, Brier score and NLL by hand, AUROC by counting pairs."""
    n_rows = int(rng.integers(4, 60))
    y = np.r_[0, 1, rng.integers(0, 2, n_rows - 2)]
    even, few, same, sharp = rng.random(n_rows), rng.choice([0.0, 0.5, 1.0], n_rows), 0.3, rng.beta(0.01, 0.01, n_rows)
    p = (even, few, np.full(n_rows, same), sharp)[rng.integers(4)]
    found, _ = quiet(lambda: evaluate(y, np.c_[1 - p, p]))
    values = {name: metric.value for name, metric in found.items()}
    pairs = [(a > b) + 0.5 * (a == b) for a in p[y == 1] for b in p[y == 0]]
    expected = {
        "auroc": np.mean(pairs),
        "brier": np.mean((p - y) ** 2),
        "nll": -np.mean(np.log(np.maximum(np.where(y == 1, p, 1 - p), 1e-15))),
        "accuracy": np.mean((p > 0.5) == y),
    }
    for name, value in expected.items():
        assert abs(values[name] - value) < 1e-9, (name, values[name], value)
    return "answered"
