"""Attacks on adapting to a site, written from the README and the public contract: laws that any site obeys.

What is known in advance is met, what must not matter does not, and numbers are those of equations in numpy.
"""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import sitewise as sw
from campaign import oracles
from campaign.contract_arrays import check_within, log_softmax, odd_z
from campaign.contract_models import OUTCOMES, VERDICTS, fitted, odd_labels, odd_sites
from campaign.estimates import check_distribution, quiet
from campaign.files import place
from campaign.oracles import Array
from campaign.registry import family

Rng = np.random.Generator
MOST_CLASSES = 12


def hospital(rng: Rng, n_rows: int, n_classes: int = 2, share: Any = None) -> tuple[Array, Array, pd.DataFrame]:
    """Probabilities of a classifier that knows something, labels of every class, and z of two kinds."""
    even = np.full(n_classes, 1.0 / n_classes)
    drawn = rng.choice(n_classes, n_rows - 2 * n_classes, p=even if share is None else share)
    y = np.concatenate([np.arange(2 * n_classes) % n_classes, drawn])
    raw = rng.normal(0, 1, (n_rows, n_classes)) + 1.5 * np.eye(n_classes)[y]
    probability = np.exp(log_softmax(1.5 * raw)).astype(float)
    Z = pd.DataFrame({"age": rng.normal(60 + 3 * (y == 0), 10), "sex": rng.choice(["f", "m"], n_rows)})
    return probability, y, Z


def check_site(here: Any, X: Any, Z: Any, n_classes: int) -> Array:
    """See that the answers of a site fit together; return the probabilities of these rows."""
    answer = check_distribution(quiet(lambda: here.predict_proba(X, sample_confounder=Z))[0])
    assert answer.shape == (len(X), n_classes)
    low, high = here.prevalence_interval()
    check_within(low, check_distribution(here.prevalence()), high)
    assert str(here.outcome) in OUTCOMES
    assert here.outcome.sentence
    assert here.diagnose().verdict in VERDICTS
    return answer


@cache
def learned(n_classes: int, rehearsal: str | None = None) -> tuple[Any, Array, Array, pd.DataFrame]:
    """A model of so many classes, and the table that it was fitted to."""
    P, y, Z = hospital(np.random.default_rng(n_classes), 60 + 20 * n_classes, n_classes)
    sees = "auto" if n_classes < 5 else "xz"  # f as a function of log p and z takes half a minute
    model = sw.PrevalenceAdjuster(rehearsal=rehearsal, classifier_sees=sees)
    quiet(lambda: model.fit(P, y, sample_domain=np.arange(len(y)) % 3, sample_confounder=Z))
    return model, P, y, Z


@family(short=6, every=3)
def known_prevalences(rng: Rng) -> str:
    """P(y) given in any of its forms: an exact one is met exactly, by predictions too; nonsense is refused."""
    n_classes = int(rng.choice([2, 2, 3, 5]))
    model, *_ = learned(n_classes)
    P, _, Z = hospital(rng, int(rng.integers(2 * n_classes, 120)), n_classes)
    share = rng.dirichlet(np.full(n_classes, 3.0)) * 0.98 + 0.02 / n_classes
    value = float(share[-1])
    bounds = (value, value * 0.8, min(0.999, value * 1.3))
    forms: dict[str, Any] = {
        "classes": {k: float(share[k]) for k in range(n_classes)},
        "vector": share.tolist(),
        "series": pd.Series(share, index=range(n_classes)),
        "sum": {k: float(share[k]) * 1.5 for k in range(n_classes)},
        "negative": [-0.1, *share[1:]],
        "unknown class": {"no such": 0.5},
        "text": "0.1",
        "two numbers": (0.1, 0.2),
        "no table": pd.DataFrame(),
        "other columns": pd.DataFrame({"weight": ["<50"], "prevalence": [0.1]}),
    }
    if n_classes == 2:
        forms |= {
            "number": value,
            "numpy": np.float64(value),
            "bounds": bounds,
            "one class": {1: value},
            "swapped bounds": bounds[::-1],
            "more than one": 1.0 + value,
            "zero": 0.0,
            "nan": float("nan"),
            "strata": pd.DataFrame({"sex": ["f", "m"], "prevalence": [value, 1 - value]}),
            "bands": pd.DataFrame({"age": ["<55", "55+"], "prevalence": [value, 0.3]}),
            "overlap": pd.DataFrame({"age": ["<60", "55+"], "prevalence": [value, 0.3]}),
            "twice": pd.DataFrame({"sex": ["f", "f"], "prevalence": [value, 0.3]}),
            "swapped in a table": pd.DataFrame({"sex": ["f"], "prevalence": [0.3], "low": [0.4], "high": [0.2]}),
        }
    form = str(rng.choice(sorted(forms)))
    wrong = {"sum", "negative", "unknown class", "text", "two numbers", "no table", "other columns", "swapped bounds"}
    wrong |= {"more than one", "zero", "nan", "overlap", "twice", "swapped in a table"}

    def call() -> Any:
        return model.adapt(P, sample_confounder=Z, known_prevalence=forms[form])

    if form in wrong:
        assert oracles.refused(lambda: quiet(call)), f"{form} was taken: {forms[form]!r}"
        return "refused"
    here, _ = quiet(call)
    answer = check_site(here, P, Z, n_classes)
    if form in ("classes", "vector", "series", "number", "numpy", "one class"):
        expected = share if form in ("classes", "vector", "series") else np.array([1 - value, value])
        np.testing.assert_allclose(answer.mean(axis=0), expected, atol=1e-6, err_msg=form)
        np.testing.assert_allclose(here.prevalence(), expected, atol=1e-6, err_msg=form)
        np.testing.assert_allclose(np.ptp(np.asarray(here.prevalence_interval()), axis=0), 0.0, atol=1e-6)
    elif form == "strata":
        for sex, known in (("f", value), ("m", 1 - value)):
            rows = (Z["sex"] == sex).to_numpy()
            assert not rows.any() or abs(answer[rows, 1].mean() - known) < 1e-5, (sex, known, answer[rows, 1].mean())
    elif form == "bands":
        for rows, known in (((Z["age"] < 55).to_numpy(), value), ((Z["age"] >= 55).to_numpy(), 0.3)):
            assert not rows.any() or abs(answer[rows, 1].mean() - known) < 1e-5, (known, answer[rows, 1].mean())
    with place() as folder:
        quiet(lambda: here.save(folder / "site"))
        again, _ = quiet(lambda: sw.load(folder / "site").predict_proba(P, sample_confounder=Z))
        assert np.asarray(again).tobytes() == answer.tobytes()
    return form


@family(short=6, every=5)
def policies_and_scales(rng: Rng) -> str:
    """Every policy with every scale of the shift: as trained is the model to the bit, rows is maximum likelihood."""
    n_classes = int(rng.choice([2, 3, 7]))
    model, *_ = learned(n_classes, "auto" if rng.random() < 0.5 and n_classes == 2 else None)
    share = rng.dirichlet(np.ones(n_classes))
    P, _, Z = hospital(rng, int(rng.integers(2 * n_classes + 1, 150)), n_classes, share)
    Z_given = Z if rng.random() < 0.7 else None
    policy = str(rng.choice(["auto", "as trained", "rows"]))
    scale = [None, 0.01, 0.3, 3.0, 50.0, 0.0, -1.0, float("nan"), float("inf"), "3"][rng.integers(10)]
    legal = scale is None or (isinstance(scale, float) and 0 < scale < np.inf)

    def call() -> Any:
        return model.adapt(P, sample_confounder=Z_given, policy=policy, level_scale=scale)

    if not legal:
        found = oracles.attempt(lambda: quiet(call))
        assert found is None or policy == "rows", f"a scale of {scale!r} was taken"
        return "refused"
    here, _ = quiet(call)
    answer = check_site(here, P, Z_given, n_classes)
    if policy == "as trained":
        expected, _ = quiet(lambda: model.predict_proba(P, sample_confounder=Z_given))
        assert np.asarray(expected).tobytes() == answer.tobytes()
        assert str(here.outcome) == "as trained"
    elif policy == "rows" and Z_given is None:
        f = oracles.ratios(np.asarray(model.log_ratio(P)))
        share = np.asarray(here.prevalence())
        by_hand = f * oracles.em(f, np.ones(len(P)), n_iter=2000)
        by_hand /= by_hand.sum(axis=1, keepdims=True)
        assert np.abs(answer.mean(axis=0) - share).max() < 1e-6
        best = oracles.log_likelihood(f, by_hand.mean(axis=0), np.ones(len(P)))
        assert oracles.log_likelihood(f, share, np.ones(len(P))) >= best - 1e-5 * len(P)
    else:
        np.testing.assert_allclose(answer.mean(axis=0), here.prevalence(), atol=1e-6)
    return policy


@family(short=4, every=3)
def what_must_not_matter(rng: Rng) -> str:
    """At a site: the order of rows, who else is in the batch, rows given twice, names of rows, containers of Z."""
    n_classes = int(rng.choice([2, 3]))
    model, *_ = learned(n_classes)
    P, y, Z = hospital(rng, int(rng.integers(12, 90)), n_classes)
    Z.loc[rng.random(len(Z)) < 0.1, "age"] = np.nan
    policy = str(rng.choice(["auto", "rows"]))
    known = np.where(rng.random(len(P)) < 0.2, y.astype(float), np.nan)
    labels = known if rng.random() < 0.3 and policy == "auto" else None
    weight = rng.integers(1, 3, len(P)).astype(float)

    def at(rows: Array, own: Any, z: pd.DataFrame, **more: Any) -> Any:
        told = None if labels is None else labels[rows]
        return quiet(
            lambda: model.adapt(P[rows], sample_confounder=z, y=told, sample_weight=own, policy=policy, **more)
        )[0]

    everyone = np.arange(len(P))
    here = at(everyone, weight, Z)
    expected = check_site(here, P, Z, n_classes)
    share = np.asarray(here.prevalence())
    order, twice = rng.permutation(len(P)), np.repeat(everyone, weight.astype(int))
    some = rng.choice(len(P), int(rng.integers(1, len(P))), replace=False)
    case = str(rng.choice(["order", "batch", "twice", "names", "columns", "dict", "categories", "scaled weights"]))
    if case == "batch":
        found, _ = quiet(lambda: here.predict_proba(P[some], sample_confounder=Z.iloc[some]))
        np.testing.assert_allclose(np.asarray(found), expected[some], atol=1e-12)
        return case
    others: dict[str, Callable[[], Any]] = {
        "order": lambda: at(order, weight[order], Z.iloc[order]),
        "twice": lambda: at(twice, None, Z.iloc[twice]),
        "names": lambda: at(everyone, weight, Z.set_axis([f"row {i}" for i in order], axis=0)),
        "columns": lambda: at(everyone, weight, Z[["sex", "age"]]),
        "dict": lambda: at(everyone, weight, {name: Z[name].tolist() for name in Z}),  # type: ignore[arg-type]
        "categories": lambda: at(everyone, weight, Z.assign(sex=Z["sex"].astype("category"))),
        "scaled weights": lambda: at(everyone, weight.astype(int).tolist(), Z),
    }
    other = others[case]()
    np.testing.assert_allclose(np.asarray(other.prevalence()), share, atol=1e-5, err_msg=case)
    found, _ = quiet(lambda: other.predict_proba(P, sample_confounder=Z))
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-4, err_msg=case)
    assert str(other.outcome) == str(here.outcome), case
    return case


@family(short=3, every=5)
def many_classes(rng: Rng) -> str:
    """Two to twelve classes from fit to file: permuted classes give permuted answers."""
    n_classes = int(rng.integers(2, MOST_CLASSES + 1))
    P, y, Z = hospital(rng, int(rng.integers(2 * n_classes + 10, 40 + 12 * n_classes)), n_classes)
    P_new, _, Z_new = hospital(rng, int(rng.integers(2 * n_classes, 90)), n_classes, rng.dirichlet(np.ones(n_classes)))
    order = rng.permutation(n_classes)
    given = Z if rng.random() < 0.5 else None
    calibration = str(rng.choice(["vector", "temperature", "bias_corrected", "none"]))

    def adapted(columns: Array) -> Any:
        model = sw.PrevalenceAdjuster(rehearsal=None, calibration=calibration, classifier_sees="xz")
        labels = np.argsort(columns)[y]
        quiet(lambda: model.fit(P[:, columns], labels, sample_domain=np.arange(len(y)) % 2, sample_confounder=given))
        z = None if given is None else Z_new
        return quiet(lambda: model.adapt(P_new[:, columns], sample_confounder=z, policy="rows"))[0], z

    here, z = adapted(np.arange(n_classes))
    answer = check_site(here, P_new, z, n_classes)
    turned, _ = adapted(order)
    found, _ = quiet(lambda: turned.predict_proba(P_new[:, order], sample_confounder=z))
    np.testing.assert_allclose(np.asarray(found)[:, np.argsort(order)], answer, atol=2e-3)
    with place() as folder:
        quiet(lambda: here.save(folder / "site"))
        again, _ = quiet(lambda: sw.load(folder / "site").predict_proba(P_new, sample_confounder=z))
        assert np.asarray(again).tobytes() == answer.tobytes()
    return f"{'few' if n_classes < 5 else 'many'} classes"


@family(short=2, limit_s=120, every=5)
def odd_rehearsals(rng: Rng) -> str:
    """Training sites of one class, of one or three rows, of equal rows, or hundreds of sites: one line for each."""
    case = str(rng.choice(["one class", "three rows", "hundreds", "equal rows", "weights", "groups", "no z at one"]))
    n_rows = int(rng.integers(40, 160))
    P, y, Z = hospital(rng, n_rows)
    site = rng.integers(0, 3, n_rows)
    more: dict[str, Any] = {}
    if case == "one class":
        site[y == 0] = rng.integers(1, 3, int((y == 0).sum()))
    elif case == "three rows":
        site = np.r_[[7, 7, 7, 8], rng.integers(0, 2, n_rows - 4)]
    elif case == "hundreds":
        site = rng.integers(0, n_rows // 2, n_rows)
    elif case == "equal rows":
        P[site == 0] = P[0]
    elif case == "weights":
        more["sample_weight"] = rng.integers(0, 4, n_rows).astype(float) + (np.arange(n_rows) < 4)
    elif case == "groups":
        more["groups"] = np.arange(n_rows) // 3
    else:
        Z.loc[site == 0] = np.nan
    rehearsal = str(rng.choice(["auto", "sites", "rows"]))
    model = sw.PrevalenceAdjuster(rehearsal=rehearsal)
    given = Z if rng.random() < 0.7 else None
    if (
        oracles.attempt(lambda: quiet(lambda: model.fit(P, y, sample_domain=site, sample_confounder=given, **more)))
        is None
    ):
        return "refused"
    told = model.rehearsal_
    assert told.sentence
    table = told.table
    if told.kind == "sites":
        assert set(table.index) <= {str(name) for name in site}, table.index
        assert len(table) <= len(np.unique(site))
    for name in table:
        if str(name).startswith("nll_"):
            values = table[name].to_numpy(dtype=float)
            assert (values[~np.isnan(values)] >= 0).all(), table[name]
    assert repr(told)
    assert told._repr_html_()
    given = None if given is None else given[:20]
    here, _ = quiet(lambda: model.adapt(P[:20], sample_confounder=given))
    check_site(here, P[:20], given, 2)
    return case


@family(short=3, limit_s=120, every=5)
def more_rows_later(rng: Rng) -> str:
    """`update`: as if all rows had come at once; saved and loaded in between, the same bits; the first is unchanged."""
    model, *_ = learned(int(rng.choice([2, 3])), "auto" if rng.random() < 0.2 else None)
    n_classes = len(model.classes_)
    P, y, Z = hospital(rng, int(rng.integers(20, 100)), n_classes)
    cut = int(rng.integers(1, len(P) - 1))
    given = Z if rng.random() < 0.7 else None
    labels = np.where(rng.random(len(P)) < 0.3, y.astype(float), np.nan) if rng.random() < 0.4 else None
    weight = rng.integers(1, 4, len(P)).astype(float) if rng.random() < 0.4 else None
    group = rng.integers(0, len(P), len(P)) if rng.random() < 0.3 else None
    policy = str(rng.choice(["auto", "rows", "as trained"])) if labels is None else "auto"

    def part(rows: slice) -> dict[str, Any]:
        return {
            "sample_confounder": None if given is None else given.iloc[rows],
            "y": None if labels is None else labels[rows],
            "sample_weight": None if weight is None else weight[rows],
            "groups": None if group is None else group[rows],
        }

    first, _ = quiet(lambda: model.adapt(P[:cut], policy=policy, **part(slice(0, cut))))
    before = np.asarray(quiet(lambda: first.predict_proba(P, sample_confounder=given))[0]).tobytes()
    both, _ = quiet(lambda: first.update(P[cut:], **part(slice(cut, None))))
    assert np.asarray(quiet(lambda: first.predict_proba(P, sample_confounder=given))[0]).tobytes() == before
    answer = check_site(both, P, given, n_classes)
    with place() as folder:
        quiet(lambda: first.save(folder / "first"))
        other, _ = quiet(lambda: sw.load(folder / "first").update(P[cut:], **part(slice(cut, None))))
        assert np.asarray(other.predict_proba(P, sample_confounder=given)).tobytes() == answer.tobytes()
        quiet(lambda: other.save(folder / "both"))
        again, _ = quiet(lambda: sw.load(folder / "both").predict_proba(P, sample_confounder=given))
        assert np.asarray(again).tobytes() == answer.tobytes()
    if group is None:
        whole, _ = quiet(lambda: model.adapt(P, policy=policy, **part(slice(None))))
        np.testing.assert_allclose(np.asarray(both.prevalence()), np.asarray(whole.prevalence()), atol=1e-6)
        np.testing.assert_allclose(whole.predict_proba(P, sample_confounder=given), answer, atol=1e-6)
    return policy


@family(short=4, every=3)
def threads_at_one_model(rng: Rng) -> str:
    """Four threads adapt, predict, estimate and ask with one model: each gets the bits that it gets alone."""
    model, P, _, Z = fitted()
    tasks: list[Callable[[], Any]] = []
    for _ in range(4):
        rows = rng.choice(len(P), int(rng.integers(5, 60)), replace=False)
        here, _ = quiet(lambda rows=rows: model.adapt(P[rows], sample_confounder=Z.iloc[rows]))
        tasks.append(
            [
                lambda rows=rows: model.adapt(P[rows], sample_confounder=Z.iloc[rows]).predict_proba(P, Z),
                lambda here=here: here.predict_proba(P, Z),
                lambda here=here: here.prevalence_interval(Z)[0],
                lambda here=here: [v.estimate for v in here.expected_performance().values()],
                lambda rows=rows: sw.estimate_prevalence(model.log_ratio(P[rows], Z.iloc[rows])).marginal,
            ][rng.integers(5)]
        )

    def bits(task: Callable[[], Any]) -> bytes:
        return np.array(task(), dtype=float).tobytes()

    expected = [bits(task) for task in tasks]
    found: list[Any] = [None] * len(tasks)

    def work(i: int) -> None:
        found[i] = bits(tasks[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected, [a == b for a, b in zip(found, expected, strict=True)]
    return "the same bits"


@family(short=2, limit_s=120, every=4)
def pipelines_at_a_site(rng: Rng) -> str:
    """`sw.adapt` of a pipeline: the answers of its last step on what the steps before it give; others are refused."""
    n_rows = int(rng.integers(40, 120))
    y = np.r_[np.arange(4) % 2, rng.integers(0, 2, n_rows - 4)]
    X = rng.normal(size=(n_rows, 3)) * 10.0 ** rng.integers(-3, 4, 3) + y[:, None]
    labels, site = odd_labels(rng, y), odd_sites(rng, n_rows)
    Z = odd_z(rng, n_rows) if rng.random() < 0.5 else None
    front = [StandardScaler(), FunctionTransformer()] if rng.random() < 0.5 else [StandardScaler()]
    case = str(rng.choice(["pipeline", "classifier", "not fitted", "no model", "array"]))
    last = sw.PrevalenceAdjuster(LogisticRegression(), rehearsal=None)
    wrong: dict[str, Callable[[], Any]] = {
        "not fitted": lambda: sw.adapt(make_pipeline(*front, last), X),
        "no model": lambda: sw.adapt(make_pipeline(*front, LogisticRegression()).fit(X, labels), X),
        "array": lambda: sw.adapt(X, X),
    }
    if case in wrong:
        assert oracles.attempt(lambda: quiet(wrong[case])) is None
        return "refused"
    pipeline = make_pipeline(*front, last)
    step = f"{pipeline.steps[-1][0]}__"
    told = {f"{step}sample_domain": site, f"{step}sample_confounder": Z}
    found = oracles.attempt(lambda: quiet(lambda: pipeline.fit(X, labels, **told)))
    if found is None:
        return "refused"
    new = rng.permutation(n_rows)[: int(rng.integers(2, n_rows))]
    Z_new = None if Z is None else Z.iloc[new]
    here, _ = quiet(lambda: sw.adapt(pipeline, X[new], sample_confounder=Z_new))
    answer = check_distribution(quiet(lambda: here.predict_proba(X[new], sample_confounder=Z_new))[0])
    inner = pipeline[:-1].transform(X[new])
    alone, _ = quiet(lambda: sw.adapt(pipeline[-1], inner, sample_confounder=Z_new))
    expected, _ = quiet(lambda: alone.predict_proba(inner, sample_confounder=Z_new))
    assert np.asarray(expected).tobytes() == answer.tobytes()
    if case == "classifier":
        with place() as folder:
            quiet(lambda: alone.save(folder / "site"))
            again, _ = quiet(lambda: sw.load(folder / "site").predict_proba(inner, sample_confounder=Z_new))
            assert np.asarray(again).tobytes() == answer.tobytes()
    return case


@family(short=4, every=2)
def sites_with_the_truth(rng: Rng) -> str:
    """A simulated hospital whose f is known: an interval of nearly one holds its true prevalence."""
    known = sw.SimulatedFamily(seed=int(rng.integers(1 << 20)))
    n_rows = int(rng.integers(300, 1500))
    p = float(rng.uniform(0.03, 0.97))
    site = known.site(n_rows, prevalence=[1 - p, p], seed=int(rng.integers(1 << 20)))
    log_ratio = known.log_ratio(site.X, site.Z)
    model = str(rng.choice(["auto", "additive"]))
    estimate, _ = quiet(lambda: sw.estimate_prevalence(log_ratio, site.Z, model=model))
    low, high = (np.asarray(bound) for bound in estimate.interval(level=0.99999))
    check_within(low, estimate.marginal, high)
    assert (low - 0.005 <= site.marginal).all(), (low, site.marginal)
    assert (site.marginal <= high + 0.005).all(), (site.marginal, high)
    return model


@family(short=2, limit_s=120, every=6)
def networks_of_many_classes(rng: Rng) -> str:
    """`GPAClassifier` of two to twelve classes with weights and groups: rows of weight zero do not exist."""
    n_classes, n_rows = int(rng.integers(2, MOST_CLASSES + 1)), int(rng.integers(60, 140))
    _, y, Z = hospital(rng, n_rows, n_classes)
    X = rng.normal(size=(n_rows, 3)) + y[:, None] * rng.normal(size=3)
    weight = rng.integers(0, 3, n_rows).astype(float)
    weight[: 2 * n_classes] = 1.0
    group = rng.integers(0, n_rows, n_rows) if rng.random() < 0.5 else np.arange(n_rows) // 2
    told = {
        "sample_domain": odd_sites(rng, n_rows),
        "sample_confounder": Z if rng.random() < 0.6 else None,
        "groups": group if rng.random() < 0.5 else None,
        "sample_weight": weight if rng.random() < 0.7 else None,
    }
    model = sw.GPAClassifier(epochs=1, batch_size=32, device="cpu", rehearsal=None, random_state=0)
    if oracles.attempt(lambda: quiet(lambda: model.fit(X, y, **told))) is None:
        return "refused"
    assert model.classes_.tolist() == list(range(n_classes))
    given = None if told["sample_confounder"] is None else Z[:40]
    own = weight[:40]
    here, _ = quiet(lambda: model.adapt(X[:40], sample_confounder=given, sample_weight=own, policy="rows"))
    answer = check_site(here, X[:40], given, n_classes)
    np.testing.assert_allclose(own @ answer / own.sum(), here.prevalence(), atol=1e-5)
    kept = own > 0
    z = None if given is None else given[kept]
    less, _ = quiet(lambda: model.adapt(X[:40][kept], sample_confounder=z, sample_weight=own[kept], policy="rows"))
    np.testing.assert_allclose(np.asarray(less.prevalence()), np.asarray(here.prevalence()), atol=1e-4)
    return "answered"
