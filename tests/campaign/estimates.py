"""Attacks on the numbers: few rows, odd weights, classes that nothing speaks for, many levels, many classes."""

import warnings
from typing import Any

import numpy as np
import pandas as pd

import sitewise as sw
from campaign import oracles
from campaign.oracles import Array
from campaign.registry import family

LOG_SCALES = (0.01, 0.5, 2.0, 5.0, 20.0, 60.0)


def draw_log_ratio(rng: np.random.Generator, n_rows: int, n_classes: int) -> Array:
    """Log-ratios of any size, with ties, equal columns, shifts and impossible classes."""
    log_ratio = rng.normal(0, rng.choice(LOG_SCALES), (n_rows, n_classes))
    if rng.random() < 0.3:
        log_ratio = np.round(log_ratio)
    if rng.random() < 0.2:
        log_ratio += rng.choice([5.0, -10.0]) * np.arange(n_classes)
    if rng.random() < 0.2:
        log_ratio[:, 1] = log_ratio[:, 0]
    if rng.random() < 0.2:
        log_ratio[rng.random(log_ratio.shape) < 0.3] = -np.inf
    if rng.random() < 0.1:
        log_ratio[rng.random(log_ratio.shape) < 0.1] = np.inf
    if rng.random() < 0.3:
        log_ratio += rng.normal(0, 300, (n_rows, 1))
    return log_ratio


def draw_weight(rng: np.random.Generator, n_rows: int) -> Array | None:
    """None, or weights over up to eleven orders of magnitude, some of them zero."""
    if rng.random() < 0.5:
        return None
    weight = 10.0 ** (rng.uniform(0, 1, n_rows) * rng.choice([0.5, 3.0, 6.0, 11.0]) + rng.choice([-6.0, -3.0, 0.0]))
    if rng.random() < 0.3:
        weight[rng.random(n_rows) < 0.4] = 0.0
    return weight if weight.any() else None


def quiet(call: Any) -> tuple[Any, list[str]]:
    """What a call returns, and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    return found, [str(one.message) for one in caught]


def check_distribution(g: Any) -> Array:
    g = np.asarray(g, dtype=float)
    assert np.isfinite(g).all(), g
    assert (g >= 0).all(), g
    np.testing.assert_allclose(g.sum(axis=-1), 1.0, atol=1e-9)
    return g


def check_interval(estimate: Any) -> None:
    low, high = (np.asarray(bound) for bound in estimate.interval())
    g = np.asarray(estimate.marginal)
    assert np.isfinite(low).all(), low
    assert np.isfinite(high).all(), high
    assert (low >= 0).all(), low
    assert (high <= 1).all(), high
    assert (low <= g + 1e-9).all(), (low, g)
    assert (high >= g - 1e-9).all(), (g, high)


@family(short=60)
def few_rows(rng: np.random.Generator) -> str:
    """A constant g from fewer rows than classes or a few more: concave, so its certificate must be reached."""
    n_classes = int(rng.integers(2, 16))
    n_rows = int(rng.integers(1, n_classes + 5))
    log_ratio, weight = draw_log_ratio(rng, n_rows, n_classes), draw_weight(rng, n_rows)
    strength = float(10 ** rng.uniform(-9, 4)) if rng.random() < 0.3 else 0.0
    estimate, _ = quiet(
        lambda: sw.estimate_prevalence(log_ratio, model="constant", sample_weight=weight, strength=strength)
    )
    g = check_distribution(estimate.marginal)
    f, own = oracles.ratios(log_ratio), np.ones(n_rows) if weight is None else weight
    if (f.max(axis=1) - f.min(axis=1) < 1e-12).all():
        return "not identified"
    pseudo = np.full(n_classes, strength / n_classes) if strength else None
    assert estimate.converged, estimate
    assert oracles.optimality_gap(f, g, own, pseudo) < 1e-6
    check_interval(estimate)
    return "answered"


@family(short=30)
def few_rows_a_cell(rng: np.random.Generator) -> str:
    """A table whose cells have a few rows each: every cell's problem is concave."""
    n_classes, n_cells = int(rng.integers(2, 9)), int(rng.integers(2, 8))
    n_rows = int(rng.integers(n_cells, 4 * n_cells))
    log_ratio, weight = draw_log_ratio(rng, n_rows, n_classes), draw_weight(rng, n_rows)
    cell = np.concatenate([np.arange(n_cells), rng.integers(0, n_cells, n_rows - n_cells)])
    own = np.ones(n_rows) if weight is None else weight
    f, strength = oracles.ratios(log_ratio), float(rng.choice([0.0, 1e-3, 1.0, 30.0]))
    if (f[own > 0].max(axis=1) - f[own > 0].min(axis=1) < 1e-12).all():
        return "not identified"
    Z = pd.DataFrame({"cell": [f"c{c}" for c in cell]})
    estimate, _ = quiet(
        lambda: sw.estimate_prevalence(log_ratio, Z, model="table", strength=strength, sample_weight=weight)
    )
    assert estimate.converged, estimate
    constant, _ = quiet(lambda: sw.estimate_prevalence(log_ratio, model="constant", sample_weight=weight))
    level = np.asarray(constant.marginal)
    level = np.where(level < 1e-9, 0.0, level)
    at_rows = check_distribution(np.exp(np.asarray(estimate.log_prevalence(Z))))
    for c in range(n_cells):
        rows = (cell == c) & (own > 0)
        if rows.any():
            pseudo = strength * level / level.sum() if strength else None
            assert oracles.optimality_gap(f[rows], at_rows[rows][0], own[rows], pseudo) < 1e-5
    check_interval(estimate)
    return "answered"


@family(short=30)
def em_as_written(rng: np.random.Generator) -> str:
    """`solver="em"` from any start: finite always, and where it says that it converged, optimal."""
    n_classes, n_rows = int(rng.integers(2, 7)), int(rng.integers(1, 25))
    log_ratio, weight = draw_log_ratio(rng, n_rows, n_classes), draw_weight(rng, n_rows)
    seed = int(rng.integers(1 << 30))
    estimate, said = quiet(
        lambda: sw.estimate_prevalence(
            log_ratio, model="constant", solver=sw.EM(iterations=300), sample_weight=weight, random_state=seed
        )
    )
    g, f = check_distribution(estimate.marginal), oracles.ratios(log_ratio)
    own = np.ones(n_rows) if weight is None else weight
    if (f.max(axis=1) - f.min(axis=1) < 1e-12).all():
        return "not identified"
    assert np.isfinite(estimate.gap), estimate
    assert estimate.converged or any("did not converge" in text for text in said)
    if estimate.converged:
        assert oracles.optimality_gap(f, g, own) < 1e-6
    return "converged" if estimate.converged else "warned"


@family(short=25)
def invariances(rng: np.random.Generator) -> str:
    """Order of rows and of classes, a constant added to a row, a weight of two for a doubled row: nothing changes."""
    n_classes, n_rows = int(rng.integers(2, 5)), int(rng.integers(6, 60))
    log_ratio = rng.normal(0, rng.choice([0.5, 2.0, 5.0]), (n_rows, n_classes))
    model = str(rng.choice(["constant", "table", "additive", "auto"]))
    Z = None
    if model != "constant":
        Z = pd.DataFrame({"a": rng.choice(["u", "v", "w"], n_rows)})
        if model != "table":
            Z["age"] = rng.uniform(20, 90, n_rows)
    strength: Any = "auto" if model in ("constant", "auto") else float(rng.choice([1.0, 10.0]))
    counts = rng.integers(1, 3, n_rows)
    schema = None if Z is None else sw.Confounders.learn(Z)

    def marginal(ratio: Array, z: Any, weight: Array) -> Array:
        found, _ = quiet(
            lambda: sw.estimate_prevalence(
                ratio, z, model=model, strength=strength, sample_weight=weight, confounders=schema
            )
        )
        return check_distribution(found.marginal)

    expected = marginal(log_ratio, Z, counts.astype(float))
    rows, classes = rng.permutation(n_rows), rng.permutation(n_classes)
    again = np.repeat(np.arange(n_rows), counts)
    variants = {
        "rows": marginal(log_ratio[rows], None if Z is None else Z.iloc[rows], counts[rows].astype(float)),
        "constants": marginal(log_ratio + rng.normal(0, 50, (n_rows, 1)), Z, counts.astype(float)),
        "doubled": marginal(log_ratio[again], None if Z is None else Z.iloc[again], np.ones(len(again))),
        "classes": marginal(log_ratio[:, classes], Z, counts.astype(float))[np.argsort(classes)],
    }
    for name, found in variants.items():
        np.testing.assert_allclose(found, expected, atol=2e-4, err_msg=name)
    return model


@family(short=40)
def odd_weights(rng: np.random.Generator) -> str:
    """Weights of any size: an answer with its certificate, or one sentence of refusal."""
    n_classes, n_rows = int(rng.integers(2, 4)), int(rng.integers(2, 40))
    log_ratio = rng.normal(0, 2, (n_rows, n_classes))
    weight = 10.0 ** rng.uniform(-1, 1, n_rows) ** int(rng.choice([1, 3]))
    weight *= 10.0 ** rng.choice([0.0, 0.0, -30.0, -300.0, 6.0, 12.0, 154.0, 300.0])
    weight[: n_rows // 2] *= 10.0 ** rng.choice([0.0, -3.0, -9.0, 9.0, 15.0])
    Z = pd.DataFrame({"z": rng.choice(["a", "b"], n_rows)}) if rng.random() < 0.6 else None
    strength: Any = rng.choice(["auto", "1e-9", "1.0"])
    strength = strength if strength == "auto" or Z is None else float(strength)
    prior = rng.dirichlet(np.ones(n_classes)) if rng.random() < 0.4 else None

    def call() -> Any:
        options: dict[str, Any] = {} if Z is None else {"strength": strength}
        return sw.estimate_prevalence(log_ratio, Z, sample_weight=weight, prior=prior, **options)

    positive = weight[weight > 0]
    extreme = not 1e-12 <= weight.max() <= 1e15 or positive.min() < 1e-12 * weight.max()
    if extreme:
        assert oracles.refused(call)
        return "refused"
    estimate, _ = quiet(call)
    check_distribution(estimate.marginal)
    check_interval(estimate)
    if Z is None and prior is None:
        assert oracles.optimality_gap(oracles.ratios(log_ratio), np.asarray(estimate.marginal), weight) < 1e-6
    return "answered"


@family(short=20)
def joint_mixtures(rng: np.random.Generator) -> str:
    """`estimate_joint` with impossible and certain cells, few rows and any strength: concave, so certified."""
    n_points, n_classes, n_rows = int(rng.integers(1, 5)), int(rng.integers(2, 4)), int(rng.integers(1, 60))
    log_ratio = draw_log_ratio(rng, n_rows, n_points * n_classes)
    strength = float(rng.choice([0.0, 0.1, 3.0, 100.0]))
    cube = log_ratio.reshape(n_rows, n_points, n_classes)
    weight = draw_weight(rng, n_rows)
    estimate, _ = quiet(lambda: sw.estimate_joint(cube, strength=strength, sample_weight=weight))
    cells = check_distribution(np.asarray(estimate.joint).reshape(-1))
    f, own = oracles.ratios(log_ratio), np.ones(n_rows) if weight is None else weight
    assert estimate.converged, estimate
    pseudo = np.full(len(cells), strength / len(cells)) if strength else None
    assert oracles.optimality_gap(f, np.maximum(cells, 1e-300), own, pseudo) < 1e-6
    check_distribution(estimate.posterior(cube))
    check_interval(estimate)
    return "answered"


@family(short=12)
def missing_z(rng: np.random.Generator) -> str:
    """Rows that lack some or all of z, in any model: a distribution for every row, and a table's certificate."""
    n_classes, n_rows = int(rng.integers(2, 5)), int(rng.integers(4, 60))
    log_ratio = rng.normal(0, rng.choice([0.5, 2.0, 5.0]), (n_rows, n_classes))
    model = str(rng.choice(["table", "additive", "auto"]))
    Z = pd.DataFrame({"z": rng.choice(np.array(["a", "b", "c", None], dtype=object), n_rows)})
    Z["w"] = rng.choice(np.array(["u", "v", None], dtype=object), n_rows)
    strength: Any = "auto" if model == "auto" else float(rng.choice([0.0, 1.0, 10.0]))
    if Z.isna().all().any():
        return "nothing known"
    estimate, _ = quiet(lambda: sw.estimate_prevalence(log_ratio, Z, model=model, strength=strength))
    check_distribution(np.exp(np.asarray(estimate.log_prevalence(Z))))
    if estimate.model == "table":
        assert estimate.converged, estimate
    check_interval(estimate)
    return model


@family(short=12)
def priors(rng: np.random.Generator) -> str:
    """K probabilities as a prior: refused where they are none, and else an answer between the prior and the rows."""
    n_classes, n_rows = int(rng.integers(2, 5)), int(rng.integers(2, 200))
    log_ratio = rng.normal(0, 2, (n_rows, n_classes))
    prior = rng.dirichlet(np.full(n_classes, rng.choice([0.3, 1.0, 10.0])))
    wrong = rng.random() < 0.5
    if wrong:
        spoiled: list[Any] = [prior * 1.8, prior * 0.5, -prior, prior * np.nan, np.append(prior, 0.0), "prior", 1.0]
        chosen = spoiled[int(rng.integers(len(spoiled)))]
        assert oracles.refused(lambda: sw.estimate_prevalence(log_ratio, prior=chosen))
        return "refused"
    estimate, _ = quiet(lambda: sw.estimate_prevalence(log_ratio, prior=prior))
    check_distribution(estimate.marginal)
    check_distribution(estimate.predict_proba(log_ratio))
    check_interval(estimate)
    return "answered"


@family(short=6)
def crowded_levels(rng: np.random.Generator) -> str:
    """A confounder with a level for a row or two, which tells nothing: the answer is hardly worse than without it."""
    n_rows = int(rng.integers(60, 500))
    n_levels = int(n_rows / rng.choice([1.0, 1.5, 2.0, 3.0]))
    truth = float(rng.uniform(0.05, 0.5))
    y = rng.random(n_rows) < truth
    x = rng.normal(2.0 * y, 1.0)
    log_ratio = np.c_[np.zeros(n_rows), 2.0 * x - 2.0]
    Z = pd.DataFrame({"id": rng.permutation(np.arange(n_rows) % n_levels).astype(str)})
    if rng.random() < 0.5:
        Z["sex"] = rng.choice(["f", "m"], n_rows)
    estimate, _ = quiet(lambda: sw.estimate_prevalence(log_ratio, Z))
    constant, _ = quiet(lambda: sw.estimate_prevalence(log_ratio))
    at_rows = check_distribution(np.exp(np.asarray(estimate.log_prevalence(Z))))[:, 1]
    expected = np.full(n_rows, constant.marginal[1])
    if "sex" in Z:  # which few rows may show to matter by chance
        without, _ = quiet(lambda: sw.estimate_prevalence(log_ratio, Z[["sex"]]))
        expected = np.exp(np.asarray(without.log_prevalence(Z[["sex"]])))[:, 1]

    def loss(g: Array) -> float:
        g = np.clip(g, 1e-6, 1 - 1e-6)
        return float(np.mean(truth * np.log(truth / g) + (1 - truth) * np.log((1 - truth) / (1 - g))))

    assert loss(at_rows) <= loss(expected) + 0.05, (loss(at_rows), estimate.model)
    assert abs(estimate.marginal[1] - constant.marginal[1]) < 0.05
    return estimate.model


@family(short=2, limit_s=120.0, every=10)
def large_problems(rng: np.random.Generator) -> str:
    """Thousands of levels, a hundred classes and more: an answer in seconds, or a refusal before the work."""
    kind = str(rng.choice(["levels", "classes", "classes and z", "pooling"]))
    if kind == "levels":
        n_rows, n_levels = int(rng.integers(5_000, 20_000)), int(rng.integers(2_000, 10_000))
        Z: Any = pd.DataFrame({"id": rng.integers(0, n_levels, n_rows).astype(str)})
        quiet(lambda: sw.estimate_prevalence(rng.normal(0, 2, (n_rows, 2)), Z).interval())
        return kind
    n_classes, n_rows = int(rng.integers(60, 200)), int(rng.integers(100, 600))
    y = rng.integers(0, n_classes, n_rows)
    log_ratio = rng.normal(0, 1, (n_rows, n_classes))
    log_ratio[np.arange(n_rows), y] += 3
    Z = pd.DataFrame({"age": rng.uniform(20, 90, n_rows)})
    if kind == "pooling":
        domain = np.arange(n_rows) % 2
        many = 1000
        assert oracles.refused(lambda: sw.pool_prevalence(y, Z, domain, n_classes=many))
        return "refused"
    if kind == "classes":
        estimate, _ = quiet(lambda: sw.estimate_prevalence(log_ratio))
        assert estimate.converged
    else:
        Z = Z if n_classes < 80 else None
        estimate, _ = quiet(lambda: sw.estimate_prevalence(log_ratio, Z))
    check_distribution(estimate.marginal)
    check_interval(estimate)
    return kind
