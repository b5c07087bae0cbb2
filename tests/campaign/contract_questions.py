"""Attacks on what can be asked of a site or a table, written from the README and the public contract.

Sets, expected performance, subgroups, calibration anew, plans, suggestions, graphs: each against a law of its own.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd

import sitewise as sw
from campaign import oracles
from campaign.contract_arrays import check_within, log_softmax
from campaign.contract_models import odd_sites
from campaign.contract_sites import check_site, hospital, learned
from campaign.estimates import check_distribution, quiet
from campaign.files import place, rows
from campaign.oracles import Array
from campaign.registry import family

Rng = np.random.Generator


def site_of(rng: Rng, n_classes: int) -> tuple[Any, Array, Array, pd.DataFrame]:
    """A site of a model of so many classes: adapted in some way to rows of some prevalence."""
    model, *_ = learned(n_classes)
    P, y, Z = hospital(rng, int(rng.integers(2 * n_classes + 8, 120)), n_classes, rng.dirichlet(np.ones(n_classes)))
    policy = str(rng.choice(["auto", "as trained", "rows"]))
    here, _ = quiet(lambda: model.adapt(P, sample_confounder=Z, policy=policy))
    return here, P, y, Z


@family(short=5, every=4)
def sets_of_classes(rng: Rng) -> str:
    """`predict_set`: wider for more coverage, classes above a threshold of P(y|x), a row's set whoever is beside it."""
    n_classes = int(rng.choice([2, 3, 8]))
    here, P, _, Z = site_of(rng, n_classes)
    if rng.random() < 0.15:
        coverage = [0.0, 1.0, -0.5, 2.0, float("nan"), "much"][rng.integers(6)]
        assert oracles.refused(lambda: quiet(lambda: here.predict_set(P, Z, coverage=coverage)))
        return "refused"
    by_class = bool(rng.random() < 0.4)
    levels = np.sort(rng.choice([0.3, 0.5, 0.8, 0.9, 0.95, 0.99], 2, replace=False))
    narrow, wide = (quiet(lambda c=c: here.predict_set(P, Z, coverage=float(c), by_class=by_class))[0] for c in levels)
    small, large = np.asarray(narrow.member), np.asarray(wide.member)
    assert small.shape == large.shape == (len(P), n_classes)
    assert not (small & ~large).any(), "more coverage took a class away"
    probability = np.asarray(here.predict_proba(P, sample_confounder=Z))
    for member in (small, large):
        for columns in [[k] for k in range(n_classes)] if by_class else [list(range(n_classes))]:
            inside, outside = probability[:, columns][member[:, columns]], probability[:, columns][~member[:, columns]]
            assert not inside.size or not outside.size or inside.min() >= outside.max() - 1e-9
    row = int(rng.integers(len(P)))
    alone, _ = quiet(lambda: here.predict_set(P[[row]], Z.iloc[[row]], coverage=float(levels[0]), by_class=by_class))
    assert (np.asarray(alone.member)[0] == small[row]).all()
    assert [len(labels) for labels in narrow.labels] == narrow.size.tolist()
    return "by class" if by_class else "over all"


@family(short=5, every=3)
def performance_of_others(rng: Rng) -> str:
    """`expected_performance(y_pred, proba)`: ours told as theirs, the accuracy of any rule, what two rules share."""
    n_classes = int(rng.choice([2, 2, 4]))
    here, P, _, Z = site_of(rng, n_classes)
    probability = np.asarray(here.predict_proba(P, sample_confounder=Z))
    classes = np.asarray(here.classes_)
    chosen = rng.integers(0, n_classes, len(P))
    wrong: dict[str, Callable[[], Any]] = {
        "too short": lambda: here.expected_performance(y_pred=chosen[:-1]),
        "no class": lambda: here.expected_performance(y_pred=np.full(len(P), 99)),
        "nan": lambda: here.expected_performance(proba=probability * np.nan),
        "columns": lambda: here.expected_performance(proba=np.full((len(P), n_classes + 1), 0.1)),
        "sums": lambda: here.expected_performance(proba=probability * 2),
        "level": lambda: here.expected_performance(y_pred=chosen, level=1.0),
    }
    if rng.random() < 0.3:
        assert oracles.refused(lambda: quiet(wrong[str(rng.choice(sorted(wrong)))]))
        return "refused"
    ours, _ = quiet(here.expected_performance)
    same, _ = quiet(lambda: here.expected_performance(y_pred=classes[probability.argmax(axis=1)], proba=probability))
    theirs, _ = quiet(lambda: here.expected_performance(y_pred=classes[chosen]))
    for found in (ours, same, theirs):
        for name, metric in found.items():
            if metric.estimate is not None:
                assert metric.low <= metric.estimate <= metric.high, (name, metric)
    expected = probability[np.arange(len(P)), chosen].mean()
    accuracy = theirs["accuracy"]
    assert abs(accuracy.estimate - expected) < 0.05, (accuracy, expected)
    assert theirs["auroc"].estimate is None
    assert abs(same["accuracy"].estimate - ours["accuracy"].estimate) < 0.03
    assert abs(same["brier"].estimate - ours["brier"].estimate) < 0.03
    if n_classes == 2:
        other, _ = quiet(lambda: here.expected_performance(y_pred=classes[1 - chosen]))
        assert abs(other["accuracy"].estimate + accuracy.estimate - 1) < 0.05
    return "answered"


@family(short=5, every=3)
def groups_of_rows(rng: Rng) -> str:
    """`subgroups` by any column: every row in one group, and their prevalences average to that of the site."""
    n_classes = int(rng.choice([2, 3]))
    here, P, _, _ = site_of(rng, n_classes)
    column: dict[str, Any] = {
        "name": "sex",
        "names": ["sex", "age"],
        "series": pd.Series(rng.choice(["a", "b", "c"], len(P)), name="ward"),
        "numbers": rng.normal(size=len(P)),
        "gaps": np.where(rng.random(len(P)) < 0.3, np.nan, rng.normal(size=len(P))),
        "booleans": rng.random(len(P)) < 0.5,
        "each its own": np.arange(len(P)).astype(str),
        "frame": pd.DataFrame({"a": rng.integers(0, 3, len(P)), "b": rng.choice(["<b>", "\u202e"], len(P))}),
    }
    kind = str(rng.choice([*sorted(column), "unknown", "too short", "bands"]))
    if kind in ("unknown", "too short"):
        value = "no such column" if kind == "unknown" else np.arange(len(P) - 1)
        assert oracles.refused(lambda: quiet(lambda: here.subgroups(value)))
        return "refused"
    bands = sorted(rng.normal(60, 8, int(rng.integers(1, 4))).tolist()) if kind == "bands" else None
    value = "age" if kind == "bands" else column[kind]
    if kind == "each its own":
        assert oracles.refused(lambda: quiet(lambda: here.subgroups(value)))
        return "refused"
    found, _ = quiet(lambda: here.subgroups(value, bands=bands))
    for name in dict.fromkeys(group.column for group in found):
        check_groups([group for group in found if group.column == name], here, len(P))
    return kind


def check_groups(groups: list[Any], here: Any, n_rows: int) -> None:
    """See that the groups of a column share the rows, and that their prevalences average to the site's."""
    assert len({group.name for group in groups}) == len(groups)
    counted = sum(group.n_rows for group in groups)
    assert counted <= n_rows
    for group in groups:
        for metric in [*group.prevalence.values(), *group.calibration.values()]:
            assert metric.low <= metric.estimate <= metric.high, (group.name, metric)
        assert group.note or group.performance is not None
        assert json.dumps(group.to_dict(), allow_nan=False)
    if counted == n_rows and all(group.prevalence for group in groups):
        for share, label in zip(np.asarray(here.prevalence()), here.classes_.tolist(), strict=True):
            mean = sum(group.n_rows * group.prevalence[label].estimate for group in groups) / counted
            assert abs(mean - share) < 0.02, (label, mean, share)


@family(short=4, every=3)
def decisions_of_a_site(rng: Rng) -> str:
    """Thresholds, net benefit, rows to label and an evaluation: each computed again by hand."""
    here, P, y, Z = site_of(rng, 2)
    p = np.asarray(here.predict_proba(P, sample_confounder=Z))[:, 1]
    case = str(rng.choice(["threshold", "curve", "sample", "evaluation", "wrong"]))
    if case == "threshold":
        wanted = float(rng.uniform(0.05, 0.99))
        choice, _ = quiet(lambda: here.choose_threshold(sensitivity=wanted))
        assert choice.n_called == (p >= choice.threshold).sum()
        assert choice.performance["recall"].estimate >= wanted - 0.02, (choice, wanted)
        decided = np.asarray(quiet(lambda: here.predict(P, sample_confounder=Z))[0])
        assert ((decided == here.classes_[1]) == (p >= choice.threshold)).all()
    elif case == "curve":
        at = np.sort(rng.uniform(0.02, 0.9, 3))
        curve, _ = quiet(lambda: here.decision_curve(thresholds=at))
        odds = at / (1 - at)
        by_hand = [np.mean((p >= t) * (p - (1 - p) * o)) for t, o in zip(at, odds, strict=True)]
        np.testing.assert_allclose(curve["net_benefit"], by_hand, atol=0.02 * (1 + odds.max()))
        np.testing.assert_allclose(curve["treat_all"], p.mean() - (1 - p.mean()) * odds, atol=0.02 * (1 + odds.max()))
        assert (curve["treat_none"] == 0).all()
    elif case == "sample":
        n = int(rng.integers(2, len(P) + 1))
        drawn, again = (quiet(lambda: here.sample(n, random_state=3))[0] for _ in range(2))
        assert len(drawn) == len(set(drawn.rows.tolist())) == n
        assert set(drawn.rows.tolist()) <= set(range(len(P)))
        assert abs(drawn.weight.sum() - len(P)) < 1e-6 * len(P)
        assert drawn.rows.tolist() == again.rows.tolist()
    elif case == "evaluation":
        weight = rng.integers(0, 3, len(P)).astype(float) + 1e-9 * (np.arange(len(P)) < 2)
        known = np.where(rng.random(len(P)) < 0.8, y.astype(float), np.nan)
        known[:4] = y[:4]
        weight[:4] = 1.0
        found, _ = quiet(lambda: here.evaluate(P, known, Z, sample_weight=weight, n_resamples=3))
        rows_of = ~np.isnan(known)
        own = weight[rows_of] / weight[rows_of].sum()
        values = found.table["value"]
        assert abs(values["accuracy", "adapted"] - own @ ((p > 0.5) == y)[rows_of]) < 1e-6
        assert abs(values["brier", "adapted"] - own @ ((p - y) ** 2)[rows_of]) < 1e-6
    else:
        wrong: list[Callable[[], Any]] = [
            lambda: here.choose_threshold(sensitivity=1.5),
            lambda: here.choose_threshold(sensitivity=0.5, harm_to_benefit=0.2),
            lambda: here.decision_curve(thresholds=[0.0, 1.0]),
            lambda: here.sample(0),
            lambda: here.sample(len(P) + 1),
            lambda: here.evaluate(P, y[:-1], Z),
            lambda: here.evaluate(P, np.full(len(P), np.nan), Z),
            lambda: here.subgroups("sex", level=2.0),
            lambda: here.shift_by_column(pd.DataFrame({"a": [1]})),
        ]
        at_random = int(rng.integers(len(wrong)))
        assert oracles.refused(lambda: quiet(wrong[at_random])), at_random
    return case


@cache
def trained() -> tuple[Any, Array, Array, pd.DataFrame]:
    """A network, with rows that it was trained on."""
    X, _, y, site, Z = rows(120)
    model = sw.GPAClassifier(epochs=2, batch_size=32, device="cpu", rehearsal=None, random_state=1)
    quiet(lambda: model.fit(X, y, sample_domain=site, sample_confounder=Z))
    return model, X, y, Z


@family(short=3, every=4)
def calibrated_anew(rng: Rng) -> str:
    """`calibrate` with a site of its own: a distribution, the same bits twice, and no change of what ranks rows."""
    model, X, _, Z = trained()
    with place() as folder:
        quiet(lambda: model.save(folder / "model"))
        own, _ = quiet(lambda: sw.load(folder / "model"))
        again, _ = quiet(lambda: sw.load(folder / "model"))
    n_rows = int(rng.integers(6, 90))
    y = np.r_[[0, 0, 1, 1], rng.integers(0, 2, n_rows - 4)]
    inputs = rng.normal(size=(n_rows, 3)) + rng.choice([0.0, 1.5, 30.0]) * y[:, None]
    z = pd.DataFrame({"age": rng.normal(60, 10, n_rows), "level": rng.choice(["a", "b", "new"], n_rows)})
    told = {
        "sample_domain": odd_sites(rng, n_rows),
        "sample_confounder": z if rng.random() < 0.7 else None,
        "groups": rng.integers(0, n_rows, n_rows) if rng.random() < 0.3 else None,
    }
    wrong: dict[str, Callable[[], Any]] = {
        "class": lambda: own.calibrate(inputs, np.where(y == 1, 7, 0), **told),
        "one class": lambda: own.calibrate(inputs, np.zeros(n_rows, dtype=int), **told),
        "width": lambda: own.calibrate(inputs[:, :2], y, **told),
        "length": lambda: own.calibrate(inputs, y[:-1], **told),
        "nan": lambda: own.calibrate(np.where(rng.random(inputs.shape) < 0.2, np.nan, inputs), y, **told),
    }
    if rng.random() < 0.3:
        before = np.asarray(own.log_ratio(X, sample_confounder=Z)).tobytes()
        case = str(rng.choice(sorted(wrong)))
        if case != "one class":
            assert oracles.attempt(lambda: quiet(wrong[case])) is None, case
            assert np.asarray(own.log_ratio(X, sample_confounder=Z)).tobytes() == before, "a refusal changed the model"
            return "refused"
        return "refused" if oracles.attempt(lambda: quiet(wrong[case])) is None else "one class"
    found = oracles.attempt(lambda: quiet(lambda: own.calibrate(inputs, y, **told)))
    if found is None:
        return "refused"
    assert found[0] is own
    quiet(lambda: again.calibrate(inputs, y, **told))
    first, second = (np.asarray(one.log_ratio(X, sample_confounder=Z)) for one in (own, again))
    assert np.isfinite(first).all()
    assert first.tobytes() == second.tobytes(), "the same calibration gave other bits"
    alike = Z.assign(age=60.0, level="a")  # g, and so what balances f, is a function of z
    raw, now = (np.asarray(one.log_ratio(X, sample_confounder=alike)) for one in (model, own))
    before, after = raw[:, 1] - raw[:, 0], now[:, 1] - now[:, 0]
    order = np.argsort(before, kind="stable")
    assert (np.diff(after[order]) >= -1e-6 * (1 + np.abs(after).max())).all(), "calibration changed the order of rows"
    here, _ = quiet(lambda: own.adapt(X[:40], sample_confounder=Z[:40]))
    check_site(here, X[:40], Z[:40], 2)
    return "calibrated"


@family(short=3, limit_s=120, every=4)
def plans(rng: Rng) -> str:
    """`plan_sample_size` and `plan_labels`: more rows for a narrower interval; what was asked for is reached."""
    n_classes = int(rng.choice([2, 3]))
    model, P, y, Z = learned(n_classes)
    log_ratio = np.asarray(model.log_ratio(P, sample_confounder=Z))
    told: dict[str, Any] = {"prevalence": rng.dirichlet(np.full(n_classes, 4.0))} if rng.random() < 0.5 else {}
    given = Z if rng.random() < 0.3 else None
    wrong: dict[str, Callable[[], Any]] = {
        "nothing": lambda: sw.plan_sample_size(log_ratio, y),
        "two": lambda: sw.plan_sample_size(log_ratio, y, width=0.1, kl=0.1),
        "zero": lambda: sw.plan_sample_size(log_ratio, y, width=float(rng.choice([0.0, -1.0, np.nan, np.inf]))),
        "prevalence": lambda: sw.plan_sample_size(log_ratio, y, width=0.1, prevalence=[0.9] * n_classes),
        "labels": lambda: sw.plan_sample_size(log_ratio, np.full(len(y), n_classes), width=0.1),
        "level": lambda: sw.plan_sample_size(log_ratio, y, width=0.1, level=1.0),
        "target": lambda: model.plan_labels(),
        "numbers": lambda: model.plan_labels(width=0.2, labels=(50, -3), rows=200, n_simulations=2),
    }
    case = str(rng.choice(["width", "width", "kl", "labels", "wrong"]))
    if case == "wrong":
        name = str(rng.choice(sorted(wrong)))
        assert oracles.refused(lambda: quiet(wrong[name])), name
        return "refused"
    if case == "labels":
        plan, _ = quiet(lambda: model.plan_labels(width=0.3, rows=60, labels=(10, 30), n_simulations=2))
        assert plan.table["n"].tolist() == [0, 10, 30]
        assert plan.answer in (None, 0, 10, 30) or 0 <= plan.answer <= 30
        return case
    if case == "kl":
        plan, _ = quiet(
            lambda: sw.plan_sample_size(log_ratio, y, kl=0.02, sizes=(50, 200, 800), n_simulations=2, **told)
        )
        assert plan.answer is None or 50 <= plan.answer <= 800
        return case
    widths = np.sort(rng.uniform(0.02, 0.6, 2))
    plans_of, _ = quiet(
        lambda: [
            sw.plan_sample_size(log_ratio, y, given, width=float(width), n_simulations=0, **told) for width in widths
        ]
    )
    few, many = plans_of[1].answer, plans_of[0].answer
    assert few is None or few >= 1
    assert many is None or (few is not None and few <= many), (few, many)
    if few is not None:
        reached = next(point.width for point in plans_of[1].points if point.n == few)
        assert reached <= widths[1] * 1.02, (reached, widths)
    return case


@family(short=3, limit_s=120, every=2)
def suggestions(rng: Rng) -> str:
    """`suggest_confounders` on odd columns: p-values for each, the same for other names, units and order of rows."""
    n_rows = int(rng.integers(30, 200))
    y = np.r_[np.arange(4) % 2, rng.integers(0, 2, n_rows - 4)]
    site = rng.choice(["a", "b", "c"], n_rows)
    kinds: list[Callable[[], Any]] = [
        lambda: rng.normal(size=n_rows) + y * (site == "a"),
        lambda: rng.choice(["u", "v"], n_rows),
        lambda: np.full(n_rows, 2.0),
        lambda: np.full(n_rows, np.nan),
        lambda: np.where(rng.random(n_rows) < 0.5, np.nan, rng.normal(size=n_rows)),
        lambda: np.arange(n_rows).astype(str),
        lambda: y.astype(float),
        lambda: 1e9 * rng.normal(size=n_rows),
        lambda: rng.random(n_rows) < 0.5,
    ]
    picked = rng.integers(0, len(kinds), int(rng.integers(1, 5)))
    X = pd.DataFrame({f"c{j}": kinds[k]() for j, k in enumerate(picked)})
    weight = rng.integers(1, 4, n_rows).astype(float) if rng.random() < 0.3 else None
    rehearse = bool(rng.random() < 0.2)

    def suggest(rows_of: Array, table: pd.DataFrame) -> Any:
        own = None if weight is None else weight[rows_of]
        return quiet(
            lambda: sw.suggest_confounders(
                table.iloc[rows_of], y[rows_of], site[rows_of], sample_weight=own, rehearse=rehearse
            )
        )[0]

    found = oracles.attempt(lambda: suggest(np.arange(n_rows), X))
    if found is None:
        return "refused"
    assert sorted(found.table.index) == sorted(X)
    p = found.table["p_value"].to_numpy(dtype=float)
    assert ((p >= 0) & (p <= 1) | np.isnan(p)).all(), found.table
    assert (found.table["adjusted"].to_numpy(dtype=float) >= p - 1e-12)[~np.isnan(p)].all(), found.table
    assert set(found.confounders) == set(found.table.index[found.table["suggested"]])
    assert str(found)
    other = suggest(rng.permutation(n_rows), X.rename(columns={name: f"<{name}>" for name in X}))
    turned = other.table["p_value"].rename(lambda name: name.strip("<>"))[found.table.index]
    np.testing.assert_allclose(turned.to_numpy(dtype=float), p, atol=1e-5, err_msg=str(found.table))
    return "suggested" if found.confounders else "nothing"


@family(short=2, limit_s=120, every=6)
def graphs(rng: Rng) -> str:
    """An ONNX graph of any site, two to nine classes: onnxruntime gives the site's probabilities, gaps included."""
    n_classes = int(rng.integers(2, 10))
    model, *_ = learned(n_classes)
    P, _, Z = hospital(rng, int(rng.integers(2 * n_classes + 3, 80)), n_classes, rng.dirichlet(np.ones(n_classes)))
    P[rng.random(len(P)) < 0.1] = np.eye(n_classes)[int(rng.integers(n_classes))]
    Z.loc[rng.random(len(Z)) < 0.2, "age"] = np.nan
    Z.loc[rng.random(len(Z)) < 0.2, "sex"] = None
    policy = str(rng.choice(["auto", "as trained", "rows"]))
    known = float(rng.uniform(0.05, 0.9)) if n_classes == 2 and policy == "auto" and rng.random() < 0.3 else None
    here, _ = quiet(lambda: model.adapt(P, sample_confounder=Z, policy=policy, known_prevalence=known))
    Z.loc[rng.random(len(Z)) < 0.1, "age"] = 1e6
    expected = check_distribution(quiet(lambda: here.predict_proba(P, sample_confounder=Z))[0])
    with place() as folder:
        path, _ = quiet(lambda: here.export_onnx(folder / "site.onnx"))
        session = onnxruntime.InferenceSession(path)
        described = json.loads(session.get_modelmeta().custom_metadata_map["sitewise"])
    z = np.full((len(P), len(described["z"])), np.nan)
    for j, variable in enumerate(described["z"]):
        column = Z[variable["name"]]
        if "levels" in variable:
            z[:, j] = [variable["levels"].index(level) if level in variable["levels"] else np.nan for level in column]
        else:
            z[:, j] = column.to_numpy(dtype=float)
    kind = np.float64 if "double" in session.get_inputs()[0].type else np.float32
    (found,) = session.run(None, {"x": P.astype(kind), "z": z})
    np.testing.assert_allclose(check_distribution(found), expected, atol=2e-5)
    return policy


@family(short=5, every=4)
def pooled_priors(rng: Rng) -> str:
    """`pool_prevalence` of odd sites, and an estimate that aims at it: order and names of sites are of no account."""
    n_classes, n_rows = int(rng.integers(2, 5)), int(rng.integers(10, 90))
    y = np.r_[np.arange(n_classes), rng.integers(0, n_classes, n_rows - n_classes)]
    site = rng.integers(0, int(rng.choice([2, 3, n_rows])), n_rows)
    Z = pd.DataFrame({"age": rng.normal(60, 10, n_rows), "ward": rng.choice(["a", "b"], n_rows)})
    Z.loc[rng.random(n_rows) < 0.1, "age"] = np.nan
    weight = rng.integers(1, 3, n_rows).astype(float)
    schema = sw.Confounders.learn(Z)

    def pooled(rows_of: Array, sites: Any, own: Any) -> Any:
        return sw.pool_prevalence(
            y[rows_of], Z.iloc[rows_of], sites[rows_of], n_classes=n_classes, confounders=schema, sample_weight=own
        )

    found = oracles.attempt(lambda: quiet(lambda: pooled(np.arange(n_rows), site, weight)))
    if found is None:
        return "refused"
    matrix = rng.normal(0, 2, (n_rows, n_classes))
    order, twice = rng.permutation(n_rows), np.repeat(np.arange(n_rows), weight.astype(int))
    others = {
        "order": lambda: pooled(order, site, weight[order]),
        "names": lambda: pooled(np.arange(n_rows), np.array([f"site {s}" for s in site], dtype=object), weight),
        "twice": lambda: pooled(twice, site, None),
    }
    case = str(rng.choice(sorted(others)))
    other, _ = quiet(others[case])
    estimates = [
        quiet(lambda prior=prior: sw.estimate_prevalence(matrix, Z, prior=prior, confounders=schema))[0]
        for prior in (found[0], other)
    ]
    for estimate in estimates:
        low, high = estimate.interval()
        check_within(low, check_distribution(estimate.marginal), high)
    np.testing.assert_allclose(estimates[0].marginal, estimates[1].marginal, atol=1e-4, err_msg=case)
    return case


@family(short=5)
def calibrated_by_weights(rng: Rng) -> str:
    """`calibrate_log_ratio`: a weight of two is a row given twice, permuted classes the same loss; g of each row."""
    n_classes, n_rows = int(rng.integers(2, 9)), int(rng.integers(20, 90))
    y = np.concatenate([np.arange(2 * n_classes) % n_classes, rng.integers(0, n_classes, n_rows)])
    raw = rng.normal(0, 1, (len(y), n_classes)) + 1.5 * np.eye(n_classes)[y]
    log_g = np.log(rng.dirichlet(np.full(n_classes, 3.0), len(y)))
    weight = rng.integers(1, 4, len(y))
    method = str(rng.choice(["temperature", "bias_corrected", "vector"]))

    def nll(found: Any, columns: Array) -> float:
        chosen = log_softmax(np.asarray(found(raw[:, columns])) + log_g[:, columns])
        return float(-(weight @ chosen[np.arange(len(y)), np.argsort(columns)[y]]) / weight.sum())

    everything, order = np.arange(n_classes), rng.permutation(n_classes)
    base, _ = quiet(lambda: sw.calibrate_log_ratio(raw, y, log_g, method, sample_weight=weight.astype(float)))
    again = np.repeat(np.arange(len(y)), weight)
    doubled, _ = quiet(lambda: sw.calibrate_log_ratio(raw[again], y[again], log_g[again], method))
    turned, _ = quiet(
        lambda: sw.calibrate_log_ratio(
            raw[:, order], np.argsort(order)[y], log_g[:, order], method, sample_weight=weight.astype(float)
        )
    )
    best = nll(base, everything)
    assert abs(nll(doubled, everything) - best) < 1e-7
    assert abs(nll(turned, order) - best) < 1e-7
    assert best <= nll(lambda a: a, everything) + 1e-7, "worse than no calibration"
    return method
