"""The demonstration: digits on colored paper at four training sites, and two new sites without labels.

x is an image of a handwritten digit (of scikit-learn, with noise) on green or red paper; y is 1 if the digit is 5 or
more; z is the colour of the paper. At every training site, y = 1 is far more frequent on red paper than on green paper.
At one new site it is rare on both; at the other it is more frequent on green paper.
"""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, cpu_count, delayed, parallel_config
from sklearn.datasets import load_digits

from sitewise.adaptation import adjust, estimate_prevalence
from sitewise.bench.datasets.digits import from_table
from sitewise.bench.report.figures import draw_demo
from sitewise.estimator import AdaptedClassifier, GPAClassifier
from sitewise.evaluation import evaluate, reliability
from sitewise.sites import Site
from sitewise.training import Recipe

Array = np.ndarray[Any, Any]
CONFOUNDER = "paper"
LEVELS = ("green", "red")  # z = 0, 1
METRICS = ("positive_f1", "macro_f1", "nll")
REHEARSED = ("prevalence", "adapted", "low", "high", "nll_as_trained", "nll_adapted")  # columns of the rehearsal table
TRAINING = {"north": (0.08, 0.85), "east": (0.04, 0.6), "south": (0.15, 0.92), "west": (0.03, 0.45)}  # P(y=1|z)
RARE_SITE, REVERSED_SITE = "rare site", "reversed site"
NEW = {RARE_SITE: (0.03, 0.07), REVERSED_SITE: (0.5, 0.1)}  # P(y=1|z); both colours are equally frequent everywhere
REPORTS = {RARE_SITE: "report.html", REVERSED_SITE: "report_reversed.html"}
TEST_SHARE = 0.42  # share of the digits that is reserved for the new sites
TINT = 0.5  # intensity of the paper's colour; the digit is white
MAGNIFIED = 2  # times the original 8 × 8 pixels, so that images can be rotated and shifted by less than such a pixel


BRISK = Recipe(epochs=80, batch_size=32, learning_rate=3e-3, weight_decay=1.0, min_steps=0, augment="affine")


@dataclass(frozen=True)
class DemoSize:
    """The size of the demonstration. No digit occurs twice at a site, so the 1,797 digits limit the numbers of rows."""

    n_train: int = 190  # rows of each training site
    n_test: int = 380  # rows of each new site
    noise: float = 35.0  # standard deviation; pixels have values from 0 to 255
    recipe: Recipe = BRISK
    n_resamples: int = 200


QUICK = DemoSize(recipe=replace(BRISK, epochs=20), n_resamples=100)


@dataclass(frozen=True)
class DemoData:
    """The demo's sites, and for each new site the rows by which methods are scored there (`scored`).

    These are all test digits on both colours, with weights that give the site's P(y, z). The rare site itself has few
    positive rows, which would give an imprecise F1.
    """

    training: dict[str, Site]
    new: dict[str, Site]
    scored: dict[str, Site]


@dataclass(frozen=True)
class Demonstration:
    """The results, ready for JSON (`record`), and GPA adapted to each new site, which can write a report."""

    record: dict[str, Any]
    adapted: dict[str, AdaptedClassifier]


def draw_data(size: DemoSize, seed: int) -> DemoData:
    """Draw the sites. No digit is at two training sites, or at a training site and a new site.

    The two new sites may have the same digits, with different colours. `groups` are the numbers of the digits.
    """
    rng = np.random.default_rng(seed)
    pixels, digit = load_digits(return_X_y=True)
    noisy = pixels.reshape(-1, 8, 8) / 16 + rng.normal(0, size.noise / 255, (len(pixels), 8, 8))
    images = np.clip(noisy, 0, 1).repeat(MAGNIFIED, axis=1).repeat(MAGNIFIED, axis=2)
    is_test = np.zeros(len(digit), dtype=bool)
    for label in range(2):
        own = np.flatnonzero((digit >= 5) == label)
        is_test[rng.choice(own, round(TEST_SHARE * len(own)), replace=False)] = True

    def deal(name: str, given_z: tuple[float, float], n: int, free: Array) -> Site:
        y, z = from_table(n, joint_of(given_z), rng)
        rows = np.empty(n, dtype=np.int64)
        for label in range(2):
            pool = np.flatnonzero(free & ((digit >= 5) == label))
            rows[y == label] = rng.choice(pool, (y == label).sum(), replace=False)
        return Site(name, on_paper(images[rows], z), y, as_frame(z), groups=rows)

    training, free = {}, ~is_test
    for name, given_z in TRAINING.items():
        training[name] = deal(name, given_z, size.n_train, free)
        free[training[name].groups] = False
    new = {name: deal(name, given_z, size.n_test, is_test) for name, given_z in NEW.items()}
    rows, z = np.tile(np.flatnonzero(is_test), 2), np.repeat([0, 1], is_test.sum())
    X, y, Z = on_paper(images[rows], z), (digit[rows] >= 5).astype(np.int64), as_frame(z)
    one_in = np.bincount(y)[y] / 2  # number of test digits with the row's label; each occurs twice in y
    scored = {
        name: Site(name, X, y, Z, groups=rows, sample_weight=len(y) * joint_of(given_z)[y, z] / one_in)
        for name, given_z in NEW.items()
    }
    return DemoData(training, new, scored)


def as_frame(z: Array) -> pd.DataFrame:
    """Return z as a table with one column, as the models expect it."""
    return pd.DataFrame({CONFOUNDER: np.array(LEVELS, dtype=object)[z]})


def joint_of(given_z: tuple[float, float]) -> Array:
    """Return P(y, z) for P(y=1|z) and equally frequent colours, (2, 2), with a row for each y."""
    sick = np.array(given_z) / 2
    return np.stack([0.5 - sick, sick])


def on_paper(images: Array, z: Array) -> Array:
    """Return white digits (n, H, W) with values in [0, 1] on green (z=0) or red (z=1) paper, uint8 (n, 3, H, W)."""
    paper = np.array([[0, TINT, 0], [TINT, 0, 0]])[z][:, :, None, None]
    return np.asarray(np.rint(255 * (images[:, None] + (1 - images[:, None]) * paper)), dtype=np.uint8)


def run_demo(
    *,
    seed: int = 0,
    size: DemoSize | None = None,
    n_jobs: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Demonstration:
    """Train ERM, ERM^Z and GPA, adapt to both new sites and return all results.

    By default, the three models are trained at the same time with one core each, or one after the other with a GPU;
    `n_jobs` is the number of processes. For small networks, this is faster than using all cores for each.
    """
    size = size or DemoSize()
    data = draw_data(size, seed)
    say(f"digits: {len(TRAINING)} training sites of {size.n_train}, two new sites of {size.n_test} without labels")
    say("training GPA, f(x,z), once more without each site; ERM, P(y|x), and ERM^Z, P(y|x,z)")
    models = train_models(data, {"recipe": size.recipe, "random_state": seed, "verbose": False}, n_jobs)
    sites, adapted = {}, {}
    for name, site in data.new.items():
        say(f"adapting to the {name}")
        adapted[name] = models["GPA"].adapt(site.X, sample_confounder=site.Z)
        sites[name] = describe_site(site, data.scored[name], models, adapted[name], size.n_resamples, seed)
    rehearsal = models["GPA"].rehearsal_
    record = {
        "seed": seed,
        "size": asdict(size),
        "confounder": CONFOUNDER,
        "training_prevalence": {name: _given_z(site) for name, site in data.training.items()},
        "rehearsal": {
            "sentence": rehearsal.sentence,
            "sites": rehearsal.table.reset_index()[["site", "rows", *REHEARSED]].to_dict("records"),
        },
        "sites": sites,
    }
    return Demonstration(record, adapted)


def train_models(data: DemoData, settings: dict[str, Any], n_jobs: int | None) -> dict[str, GPAClassifier]:
    """Train GPA, ERM and ERM^Z."""
    if n_jobs is None:
        n_jobs = 1 if torch.cuda.is_available() else min(3, cpu_count())
    rows = join_sites(data.training)
    tasks = {
        "GPA": delayed(train_gpa)(rows, settings),
        "ERM": delayed(train_erm)(replace(rows, Z=None), settings),
        "ERM^Z": delayed(train_erm)(rows, settings),
    }
    with parallel_config(backend="loky", inner_max_num_threads=1) if n_jobs > 1 else nullcontext():
        return dict(zip(tasks, Parallel(n_jobs=n_jobs)(tasks.values()), strict=True))


def join_sites(sites: dict[str, Site]) -> Site:
    """Join the rows of all sites to one `Site`, whose `groups` are the names of the rows' sites."""
    parts = list(sites.values())
    return Site(
        "all",
        np.concatenate([site.X for site in parts]),
        np.concatenate([site.y for site in parts]),
        pd.concat([site.Z for site in parts], ignore_index=True),
        groups=np.concatenate([[site.name] * len(site) for site in parts]),
    )


def train_gpa(rows: Site, settings: dict[str, Any]) -> GPAClassifier:
    """Train GPA with its defaults: a g for each site, knockout, calibration on held-out rows, rehearsal by site."""
    return GPAClassifier(**settings).fit(rows.X, rows.y, sample_domain=rows.groups, sample_confounder=rows.Z)


def train_erm(rows: Site, settings: dict[str, Any]) -> GPAClassifier:
    """Train ERM, calibrated: GPA with all rows as one site, a constant g (the network absorbs it) and no knockout."""
    model = GPAClassifier(prevalence="constant", knockout=0.0, rehearsal=None, **settings)
    return model.fit(rows.X, rows.y, sample_domain=["all"] * len(rows), sample_confounder=rows.Z)


def describe_site(
    site: Site,
    scored: Site,
    models: dict[str, GPAClassifier],
    here: AdaptedClassifier,
    n_resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Adapt every method to the rows of a new site, and score it with labels that no method saw."""
    gpa, erm, erm_z = (models[name] for name in ("GPA", "ERM", "ERM^Z"))
    X, Z = scored.X, scored.Z
    log_ratio = gpa.log_ratio(X, Z)
    true_given_z = np.array(NEW[site.name])
    true_share = true_given_z[(Z[CONFOUNDER] == LEVELS[1]).to_numpy().astype(int)]
    label_shift = estimate_prevalence(erm.log_ratio(site.X), model="constant")
    constant = estimate_prevalence(gpa.log_ratio(site.X, site.Z), model="constant")
    without_z = gpa.adapt(site.X)
    probabilities = {
        "ERM": erm.predict_proba(X),
        "ERM^Z": erm_z.predict_proba(X, sample_confounder=Z),
        "ERM + label-shift EM": adjust(erm.log_ratio(X), np.log(label_shift.marginal)),
        "GPA, constant g": adjust(log_ratio, np.log(constant.marginal)),
        "GPA": here.predict_proba(X, Z),
        "GPA without z": without_z.predict_proba(X),
        "GPA, true g": adjust(log_ratio, np.log(np.stack([1 - true_share, true_share], axis=1))),
    }
    estimates = {
        "ERM + label-shift EM": (label_shift.marginal, *label_shift.interval()),
        "GPA, constant g": (constant.marginal, *constant.interval()),
        "GPA": (here.prevalence(), *here.prevalence_interval()),
        "GPA without z": (without_z.prevalence(), *without_z.prevalence_interval()),
    }
    low, high = here.prevalence_interval({CONFOUNDER: list(LEVELS)})
    given_z = here.prevalence({CONFOUNDER: list(LEVELS)})
    return {
        "true_prevalence": float(true_given_z.mean()),
        "outcome": here.outcome.sentence,
        "methods": {
            name: _score(scored, probability, estimates.get(name), n_resamples, seed)
            for name, probability in probabilities.items()
        },
        "prevalence_given_z": [
            {
                "level": level,
                "true": float(true_given_z[j]),
                "estimate": float(given_z[j, 1]),
                "low": float(low[j, 1]),
                "high": float(high[j, 1]),
            }
            for j, level in enumerate(LEVELS)
        ],
        "reliability": {
            name: reliability(site.y, probability).to_dict("list")
            for name, probability in (("ERM", erm.predict_proba(site.X)), ("GPA", here.predict_proba(site.X, site.Z)))
        },
    }


def write_demo(demonstration: Demonstration, out: Path) -> list[Path]:
    """Write `demo.json`, the figures and a report of each new site into a folder; return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "demo.json"
    path.write_text(json.dumps(demonstration.record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    reports = [here.report(out / REPORTS[name], site=name) for name, here in demonstration.adapted.items()]
    return [path, *draw_demo(demonstration.record, out), *reports]


def _given_z(site: Site) -> list[float]:
    return [float(site.y[(site.Z[CONFOUNDER] == level).to_numpy()].mean()) for level in LEVELS]


def _score(
    scored: Site, probability: Array, estimate: tuple[Array, Array, Array] | None, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Return a method's metrics, and its estimate of P(y=1); None if it has no estimate."""
    about = {"groups": scored.groups, "sample_weight": scored.sample_weight}
    metrics = evaluate(scored.y, probability, **about, n_resamples=n_resamples, random_state=seed)
    scores: dict[str, Any] = {name: asdict(metrics[name]) for name in METRICS}
    if estimate is None:
        return {**scores, "prevalence": None}
    value, low, high = (float(part[1]) for part in estimate)
    return {**scores, "prevalence": {"value": value, "low": low, "high": high}}
