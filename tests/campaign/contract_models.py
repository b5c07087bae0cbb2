"""Attacks on the models from fit to file, written from the README and the public contract: odd tables, odd labels."""

import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch

import sitewise as sw
from campaign import oracles
from campaign.contract_arrays import check_within, log_softmax, odd_z
from campaign.estimates import check_distribution, quiet
from campaign.files import NAMES, place
from campaign.oracles import Array
from campaign.registry import family
from sitewise.monitoring import monitor

Rng = np.random.Generator
VERDICTS = {"adapt", "care", "do not adapt"}
OUTCOMES = {"adapted", "partly adapted", "as trained"}


def odd_labels(rng: Rng, y: Array) -> Array:
    """Classes of some kind: text, whole numbers of either type, booleans for two."""
    n_classes = int(y.max()) + 1
    words = [name for name in NAMES if name.strip() and "\x00" not in name and "\ud800" not in name]
    kinds: list[Callable[[], Any]] = [
        lambda: np.array(sorted(rng.choice(words, n_classes, replace=False)), dtype=object),
        lambda: np.sort(rng.choice(np.arange(-9, 10), n_classes, replace=False)),
        lambda: np.sort(rng.choice([-2.0, 0.0, 3.0, 7.0], n_classes, replace=False)),
        lambda: np.array([False, True]) if n_classes == 2 else np.arange(n_classes),
    ]
    return np.asarray(kinds[rng.integers(len(kinds))]())[y]


def odd_sites(rng: Rng, n_rows: int) -> Any:
    """Names of sites of some kind; a site may have a row only; None is one site."""
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: np.array(["north", "south"])[np.arange(n_rows) % 2],
        lambda: np.arange(n_rows) % 3,
        lambda: rng.random(n_rows) < 0.5,
        lambda: pd.Series(rng.choice(["a", "b", "c"], n_rows)).astype("category"),
        lambda: np.array([2.5, -1.0])[np.arange(n_rows) % 2],
        lambda: np.where(np.arange(n_rows) == 0, "alone", "all others"),
        lambda: np.array([str(name) for name in NAMES[:3]], dtype=object)[np.arange(n_rows) % 3],
    ]
    return kinds[rng.integers(len(kinds))]()


def draw_rows(rng: Rng, n_rows: int, n_classes: int) -> tuple[Array, Array]:
    """Labels of all classes, and probabilities that know them a little, not at all or all too well."""
    y = np.concatenate([np.arange(2 * n_classes) % n_classes, rng.integers(0, n_classes, n_rows - 2 * n_classes)])
    raw = rng.normal(0, 1, (n_rows, n_classes))
    raw[np.arange(n_rows), y] += rng.choice([0.0, 1.0, 3.0, 40.0])
    probability = np.exp(log_softmax(raw * rng.choice([0.1, 1.0, 3.0]))).astype(float)
    if rng.random() < 0.2:
        probability = np.round(probability, 1) + 1e-12
        probability /= probability.sum(axis=1, keepdims=True)
    return y, probability


@family(short=5, every=4)
def from_fit_to_file(rng: Rng) -> str:
    """An adjuster on an odd table: distributions, decisions, intervals, one outcome; saved, it gives the same bits."""
    n_classes, n_rows = int(rng.integers(2, 4)), int(rng.integers(12, 90))
    index, probability = draw_rows(rng, n_rows, n_classes)
    y, site = odd_labels(rng, index), odd_sites(rng, n_rows)
    Z = odd_z(rng, n_rows) if rng.random() < 0.6 else None
    calibration = str(rng.choice(["vector", "bias_corrected", "temperature", "none"]))
    rehearsal = rng.choice(["auto", "none"], p=[0.2, 0.8])
    model = sw.PrevalenceAdjuster(calibration=calibration, rehearsal=None if rehearsal == "none" else "auto")
    if (
        oracles.attempt(lambda: quiet(lambda: model.fit(probability, y, sample_domain=site, sample_confounder=Z)))
        is None
    ):
        return "refused"
    before = np.asarray(quiet(lambda: model.predict_proba(probability, sample_confounder=Z))[0]).tobytes()
    new = rng.permutation(n_rows)[: int(rng.integers(1, n_rows))]
    Z_new = None if Z is None else Z.iloc[new]
    here, _ = quiet(lambda: model.adapt(probability[new], sample_confounder=Z_new))
    assert np.asarray(quiet(lambda: model.predict_proba(probability, sample_confounder=Z))[0]).tobytes() == before
    answer, _ = quiet(lambda: here.predict_proba(probability[new], sample_confounder=Z_new))
    answer = check_distribution(answer)
    chosen, _ = quiet(lambda: here.predict(probability[new], sample_confounder=Z_new))
    classes = np.asarray(model.classes_)
    assert (np.asarray(chosen) == classes[answer.argmax(axis=1)]).all()
    assert sorted(classes.tolist()) == sorted(set(np.asarray(y).tolist()))
    one_by_one = np.concatenate(
        [
            np.asarray(quiet(lambda i=i: here.predict_proba(probability[[i]], None if Z is None else Z.iloc[[i]]))[0])
            for i in new[:3]
        ]
    )
    np.testing.assert_allclose(one_by_one, answer[:3], atol=1e-12, err_msg="rows do not depend on each other")
    g = check_distribution(here.prevalence())
    low, high = here.prevalence_interval()
    check_within(low, g, high)
    assert str(here.outcome) in OUTCOMES
    assert here.outcome.sentence
    assert here.diagnose().verdict in VERDICTS
    for expected in quiet(here.expected_performance)[0].values():
        assert expected.estimate is None or expected.low <= expected.estimate <= expected.high, expected
    with place() as folder:
        quiet(lambda: here.save(folder / "site"))
        again, _ = quiet(lambda: sw.load(folder / "site"))
        other, _ = quiet(lambda: again.predict_proba(probability[new], sample_confounder=Z_new))
        assert np.asarray(other, dtype=float).tobytes() == answer.tobytes(), "loaded, it gives other bits"
        assert str(again.outcome) == str(here.outcome)
        assert os.listdir(folder) == ["site"]
    return str(here.outcome)


@cache
def fitted() -> tuple[Any, Array, Array, pd.DataFrame]:
    """A model of two classes, and a table that it knows."""
    rng = np.random.default_rng(11)
    n_rows = 120
    y = rng.integers(0, 2, n_rows)
    p = 1 / (1 + np.exp(1 - 2 * (y + rng.normal(0, 0.7, n_rows))))
    Z = pd.DataFrame({"age": rng.normal(60, 10, n_rows), "sex": rng.choice(["f", "m"], n_rows)})
    probability = np.c_[1 - p, p]
    model = sw.PrevalenceAdjuster().fit(probability, y, sample_domain=np.arange(n_rows) % 2, sample_confounder=Z)
    return model, probability, y, Z


@family(short=8, every=2)
def sites_told_and_asked(rng: Rng) -> str:
    """At a site: labels, a known prevalence, a policy; then every question that the contract lists."""
    model, probability, y, Z = fitted()
    rows = rng.choice(len(y), int(rng.integers(1, len(y))), replace=bool(rng.random() < 0.3))
    P, own = probability[rows], Z.iloc[rows].reset_index(drop=True)
    options: dict[str, Any] = {"policy": str(rng.choice(["auto", "as trained", "rows"]))}
    told = rng.random()
    if told < 0.25:
        options["y"] = np.where(rng.random(len(rows)) < 0.5, np.nan, y[rows])
    elif told < 0.5:
        value = float(rng.uniform(0.01, 0.99))
        known = [value, (value, value * 0.8, min(1.0, value * 1.2)), {1: value}]
        options["known_prevalence"] = known[rng.integers(3)]
    found = oracles.attempt(
        lambda: quiet(lambda: model.adapt(P, sample_confounder=own if rng.random() < 0.8 else None, **options))
    )
    if found is None:
        return "refused"
    here, _ = found
    check_distribution(here.prevalence())
    if options["policy"] == "as trained":
        assert str(here.outcome) == "as trained"
    asked = str(rng.choice(["sets", "evaluate", "prevalence", "threshold", "expected", "diagnose", "repr", "sample"]))
    if asked == "sets":
        coverage = float(rng.choice([0.5, 0.9, 0.99]))
        wide, _ = quiet(lambda: here.predict_set(P, own, coverage=coverage))
        assert np.asarray(wide.size).shape == (len(rows),)
        assert set(np.asarray(wide.size).tolist()) <= {0, 1, 2}
    elif asked == "evaluate":
        found = oracles.attempt(lambda: quiet(lambda: here.evaluate(P, y[rows], own)))
        assert len(rows) < 2 if found is None else found[0].to_dict()
    elif asked == "prevalence":
        at_rows = check_distribution(here.prevalence(own))
        low, high = (np.asarray(bound) for bound in here.prevalence_interval(own))
        assert at_rows.shape == low.shape == high.shape == (len(rows), 2)
    elif asked == "threshold":
        choice, _ = quiet(lambda: here.choose_threshold(sensitivity=float(rng.uniform(0.1, 0.99))))
        assert 0 <= choice.threshold <= 1
    elif asked == "expected":
        theirs = rng.integers(0, 2, len(rows))
        found, _ = quiet(lambda: here.expected_performance(y_pred=theirs))
        accuracy = found["accuracy"]
        assert 0 <= accuracy.low <= accuracy.estimate <= accuracy.high <= 1
    elif asked == "diagnose":
        found, _ = quiet(here.diagnose)
        assert found.verdict in VERDICTS
        assert all(finding for finding in found.findings)
    elif asked == "sample":
        if len(rows) < 2:
            assert oracles.refused(lambda: here.sample(1))
            return "refused"
        found, _ = quiet(lambda: here.sample(min(3, len(rows))))
        assert found is not None
    else:
        assert str(here.outcome) in repr(here) or repr(here)
        assert "<script" not in here._repr_html_()
    return asked


@family(short=15)
def wrong_calls(rng: Rng) -> str:
    """What a model must refuse: other widths, other lengths, NaN, unknown sites, unfitted, one class, odd settings."""
    model, probability, y, Z = fitted()
    cases: dict[str, Callable[[], Any]] = {
        "width": lambda: model.adapt(np.full((5, int(rng.choice([1, 3, 9]))), 0.3)),
        "length": lambda: model.adapt(probability, sample_confounder=Z.head(int(rng.integers(0, 100)))),
        "nan": lambda: model.adapt(np.where(rng.random(probability.shape) < 0.05, np.nan, probability)),
        "negative": lambda: model.adapt(probability - 0.5),
        "no rows": lambda: model.adapt(probability[:0]),
        "sums": lambda: model.adapt(probability * rng.choice([0.5, 3.0])),
        "unknown site": lambda: model.predict_proba(probability, sample_domain=np.full(len(y), "nowhere")),
        "not fitted": lambda: sw.PrevalenceAdjuster().predict_proba(probability),
        "one class": lambda: sw.PrevalenceAdjuster().fit(probability, np.zeros(len(y))),
        "labels": lambda: sw.PrevalenceAdjuster().fit(probability, np.where(y == 1, np.nan, 0.0)),
        "short labels": lambda: sw.PrevalenceAdjuster().fit(probability, y[:-3]),
        "calibration": lambda: sw.PrevalenceAdjuster(calibration="no such").fit(probability, y),
        "prevalence": lambda: sw.PrevalenceAdjuster(prevalence="no such").fit(probability, y),
        "inf in z": lambda: model.adapt(probability, sample_confounder=Z.assign(age=np.inf)),
        "policy": lambda: model.adapt(probability, policy="no such"),
        "known": lambda: model.adapt(probability, known_prevalence=float(rng.choice([-0.1, 1.5, np.nan, np.inf]))),
        "known twice": lambda: model.adapt(probability, known_prevalence={0: 0.9, 1: 0.9}),
        "known class": lambda: model.adapt(probability, known_prevalence={"no such": 0.1}),
        "labels at adapt": lambda: model.adapt(probability, y=np.full(len(y), 7.0)),
        "level": lambda: model.adapt(probability).prevalence_interval(level=float(rng.choice([0.0, 1.0, -1.0, 2.0]))),
        "coverage": lambda: model.adapt(probability, sample_confounder=Z).predict_set(probability, Z, coverage=1.5),
        "weights": lambda: sw.PrevalenceAdjuster().fit(probability, y, sample_weight=-np.ones(len(y))),
        "text": lambda: model.adapt(np.full(probability.shape, "x")),
        "generator": lambda: sw.estimate_prevalence(chunk for chunk in [(np.zeros((3, 2)), None)]),
        "settings": lambda: sw.GPAClassifier(epochs=-1).fit(probability, y),
        "knockout": lambda: sw.GPAClassifier(knockout=2.0).fit(probability, y),
        "validation": lambda: sw.GPAClassifier(validation=7.0).fit(probability, y),
        "learning rate": lambda: sw.GPAClassifier(learning_rate=0.0).fit(probability, y),
        "batch": lambda: sw.GPAClassifier(batch_size=0).fit(probability, y),
        "backbone": lambda: sw.GPAClassifier(backbone="no such").fit(probability, y),
        "load": lambda: sw.load(7),
    }
    name = str(rng.choice(sorted(cases)))
    assert oracles.attempt(lambda: quiet(cases[name])) is None, f"{name} was taken"
    return "refused"


@family(short=1, limit_s=120, every=4)
def networks_on_odd_tables(rng: Rng) -> str:
    """`GPAClassifier` on columns that are constant, huge, tiny or alike: the same bits twice and from a file."""
    n_rows = int(rng.integers(24, 80))
    y = np.r_[np.arange(4) % 2, rng.integers(0, 2, n_rows - 4)]
    columns = [rng.normal(size=n_rows) + y, np.full(n_rows, 3.0), 1e6 * rng.normal(size=n_rows), 1e-9 * y]
    X = np.stack([columns[k] for k in rng.integers(0, len(columns), rng.integers(1, 5))], axis=1)
    Z = odd_z(rng, n_rows) if rng.random() < 0.6 else None
    site = odd_sites(rng, n_rows)

    def train() -> Any:
        model = sw.GPAClassifier(epochs=1, batch_size=16, device="cpu", rehearsal=None, random_state=3)
        return model.fit(X, y, sample_domain=site, sample_confounder=Z)

    found = oracles.attempt(lambda: quiet(train))
    if found is None:
        return "refused"
    model, _ = found
    here, _ = quiet(lambda: model.adapt(X, sample_confounder=Z))
    answer = check_distribution(quiet(lambda: here.predict_proba(X, sample_confounder=Z))[0])
    other, _ = quiet(train)
    assert (
        np.asarray(quiet(lambda: other.log_ratio(X, sample_confounder=Z))[0]).tobytes()
        == np.asarray(quiet(lambda: model.log_ratio(X, sample_confounder=Z))[0]).tobytes()
    ), "the same training gave another network"
    with place() as folder:
        quiet(lambda: here.save(folder / "site"))
        again, _ = quiet(lambda: sw.load(folder / "site").predict_proba(X, sample_confounder=Z))
        assert np.asarray(again, dtype=float).tobytes() == answer.tobytes()
    return "answered"


@family(short=10)
def windows_of_time(rng: Rng) -> str:
    """`monitor` on times of any kind and order: windows hold every row once, estimates lie within their intervals."""
    n_rows = int(rng.integers(6, 60))
    matrix = rng.normal(0, 2, (n_rows, 2))
    times: list[Callable[[], Any]] = [
        lambda: rng.permutation(n_rows),
        lambda: rng.normal(0, 1e6, n_rows),
        lambda: pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, n_rows), unit="D"),
        lambda: np.full(n_rows, 3),
        lambda: [f"2021-{m:02}-01" for m in rng.integers(1, 13, n_rows)],
    ]
    time = times[rng.integers(len(times))]()
    window: Any = (
        int(rng.integers(1, n_rows + 5)) if rng.random() < 0.7 else str(rng.choice(["30D", "W", "MS", "x", "0D"]))
    )
    found = oracles.attempt(lambda: quiet(lambda: monitor(matrix, time, window=window)))
    if found is None:
        return "refused"
    frame, _ = found
    assert int(frame["n"].sum()) == n_rows
    assert frame["start"].is_monotonic_increasing
    assert ((frame["low"] <= frame["estimate"] + 1e-9) & (frame["estimate"] <= frame["high"] + 1e-9)).all()
    return "answered"


@family(short=10)
def rows_in_chunks(rng: Rng) -> str:
    """The same rows in one array, in chunks of any size and in a memory map: the same answer."""
    n_rows, n_classes = int(rng.integers(5, 120)), int(rng.integers(2, 4))
    matrix = rng.normal(0, 2, (n_rows, n_classes))
    Z = pd.DataFrame({"z": rng.choice(["a", "b"], n_rows)}) if rng.random() < 0.5 else None
    model = "constant" if Z is None else "table"
    cuts = np.unique(np.r_[0, rng.integers(0, n_rows, 3), n_rows])
    chunks = [(matrix[a:b], None if Z is None else Z.iloc[a:b]) for a, b in pairwise(cuts)]
    strength = float(rng.choice([0.0, 1.0]))
    whole, _ = quiet(lambda: sw.estimate_prevalence(matrix, Z, model=model, strength=strength))
    parts, _ = quiet(lambda: sw.estimate_prevalence(chunks, model=model, strength=strength))
    np.testing.assert_allclose(np.asarray(parts.marginal), np.asarray(whole.marginal), atol=1e-5)
    if torch.is_tensor(parts.marginal):
        assert torch.isfinite(parts.marginal).all()
    return model
