"""The demonstration: colored digits at two training sites, and two new ones where colour relates to them otherwise.

Training sites follow the paper's confounded model (β = 0.9 and 0.7), the snapshot and the calibration come from a third
(β = 0.5); the new sites are the paper's (β = 0.3) and one where P(y|z) is flipped.
"""

import copy
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, cpu_count, delayed, parallel_config

from sitewise.adaptation import adjust, estimate_prevalence
from sitewise.bench.datasets.digits import ALPHA, FLIPPED, colored_site, true_joint
from sitewise.bench.datasets.mnist import Digits, load_digits
from sitewise.bench.report.figures import draw_demo
from sitewise.estimator import AdaptedClassifier, GPAClassifier
from sitewise.evaluation import evaluate, reliability
from sitewise.sites import Site
from sitewise.training import Recipe

Array = np.ndarray[Any, Any]
CONFOUNDER = "color"
LEVELS = ("green", "red")  # z = 0, 1
METRICS = ("positive_f1", "macro_f1", "nll")
TRAINING_BETAS = {"β = 0.9": 0.9, "β = 0.7": 0.7}
PAPER_SITE, FLIPPED_SITE = "paper's test site", "flipped site"
REPORTS = {PAPER_SITE: "report.html", FLIPPED_SITE: "report_flipped.html"}


BRISK = Recipe(epochs=8, batch_size=128, learning_rate=5e-3, weight_decay=0.1, min_steps=0, augment="affine")


@dataclass(frozen=True)
class DemoSize:
    """How much of everything."""

    n_train: int = 5000  # at each training site
    n_validation: int = 1000
    n_test: int = 5000
    recipe: str | Recipe = BRISK
    n_resamples: int = 200


QUICK = DemoSize(
    n_train=1500,
    n_validation=500,
    n_test=1500,
    recipe=replace(BRISK, epochs=5, batch_size=32, augment=None),
    n_resamples=100,
)


@dataclass(frozen=True)
class DemoData:
    """The demo's sites, with the true joint P(y,z) of the new ones."""

    training: dict[str, Site]
    validation: Site
    new: dict[str, Site]
    joint: dict[str, Array]


@dataclass(frozen=True)
class Demonstration:
    """Everything that was found, ready for JSON, and GPA adapted to each new site, for its report."""

    record: dict[str, Any]
    adapted: dict[str, AdaptedClassifier]


def draw_data(digits: Digits, size: DemoSize, seed: int) -> DemoData:
    """Draw all sites; no digit is shared between training, validation and test."""
    train, held, test = digits.split(seed)
    training = {
        name: colored_site(train, size.n_train, beta=beta, name=name, seed=seed + i)
        for i, (name, beta) in enumerate(TRAINING_BETAS.items())
    }
    new = {
        PAPER_SITE: colored_site(test, size.n_test, beta=0.3, name=PAPER_SITE, seed=seed + 11),
        FLIPPED_SITE: colored_site(test, size.n_test, joint=FLIPPED, name=FLIPPED_SITE, seed=seed + 12),
    }
    joint = {PAPER_SITE: true_joint("confounded", ALPHA, 0.3), FLIPPED_SITE: FLIPPED}
    validation = colored_site(held, size.n_validation, beta=0.5, name="validation", seed=seed + 10)
    return DemoData(training, validation, new, joint)


def run_demo(
    *,
    seed: int = 0,
    size: DemoSize | None = None,
    data_dir: str | None = None,
    n_jobs: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Demonstration:
    """Train ERM, ERM^Z and GPA, and adapt to both new sites.

    The three train side by side, a core each (`n_jobs`; one after the other where there is a GPU): small networks gain
    more from that than from sharing all cores.
    """
    size = size or DemoSize()
    digits = load_digits(data_dir)
    data = draw_data(digits, size, seed)
    say(f"{digits.name}: two training sites of {size.n_train:,}, two new sites of {size.n_test:,} without labels")
    say("training ERM, P(y|x), ERM^Z, P(y|x,z), and GPA, f(x,z)")
    models = train_models(data, {"recipe": size.recipe, "random_state": seed, "verbose": False}, n_jobs)
    sites, adapted = {}, {}
    for name, site in data.new.items():
        say(f"adapting to the {name}")
        adapted[name] = models["GPA"].adapt(site.X, sample_confounder=site.Z, groups=same_digit(site.X))
        sites[name] = describe_site(site, data.joint[name], models, adapted[name], size.n_resamples, seed)
    record = {
        "digits": digits.name,
        "seed": seed,
        "size": asdict(size),
        "confounder": CONFOUNDER,
        "training_prevalence": {name: _given_z(site) for name, site in data.training.items()},
        "sites": sites,
    }
    return Demonstration(record, adapted)


def train_models(data: DemoData, settings: dict[str, Any], n_jobs: int | None) -> dict[str, GPAClassifier]:
    """Train every model of the demo."""
    if n_jobs is None:
        n_jobs = 1 if torch.cuda.is_available() else min(3, cpu_count())
    tasks = {
        "GPA": delayed(train_gpa)(data, settings),
        "ERM": delayed(train_erm)(data, settings, with_confounder=False),
        "ERM^Z": delayed(train_erm)(data, settings, with_confounder=True),
    }
    with parallel_config(backend="loky", inner_max_num_threads=1) if n_jobs > 1 else nullcontext():
        models = dict(zip(tasks, Parallel(n_jobs=n_jobs)(tasks.values()), strict=True))
    return {**models, "ERM, calibrated": calibrate_erm(models["ERM"], data)}


def same_digit(X: Array) -> Array:
    """The number of each row's digit: one that was drawn before is the same, whatever its colour."""
    shapes = X.max(axis=1).reshape(len(X), -1)
    return np.asarray(np.unique(shapes, axis=0, return_inverse=True)[1].reshape(-1))


def pooled(data: DemoData) -> dict[str, Any]:
    """Training and validation rows together, with the name of each one's site and the number of its digit."""
    sites = [*data.training.values(), data.validation]
    X = np.concatenate([site.X for site in sites])
    return {
        "X": X,
        "groups": same_digit(X),
        "y": np.concatenate([site.y for site in sites]),
        "domain": np.concatenate([[site.name] * len(site) for site in sites]),
        "Z": {CONFOUNDER: np.concatenate([site.Z[CONFOUNDER] for site in sites])},
    }


def train_gpa(data: DemoData, settings: dict[str, Any]) -> GPAClassifier:
    """GPA as the paper has it: a g for each site, knockout, calibration on the validation site."""
    rows = pooled(data)
    model = GPAClassifier(validation="validation", **settings)
    labeled = {"sample_domain": rows["domain"], "sample_confounder": rows["Z"], "groups": rows["groups"]}
    return model.fit(rows["X"], rows["y"], **labeled)


def train_erm(data: DemoData, settings: dict[str, Any], *, with_confounder: bool) -> GPAClassifier:
    """Empirical risk minimization: one site, a constant g (which the network could absorb) and no knockout."""
    rows = pooled(data)
    domain = np.where(rows["domain"] == "validation", "validation", "training")
    model = GPAClassifier(prevalence="constant", knockout=0.0, calibration="none", validation="validation", **settings)
    Z = rows["Z"] if with_confounder else None
    model.fit(rows["X"], rows["y"], sample_domain=domain, sample_confounder=Z)
    return model


def calibrate_erm(erm: GPAClassifier, data: DemoData) -> GPAClassifier:
    """A copy of ERM, vector-scaled on the validation site: what label-shift EM needs."""
    copied = copy.deepcopy(erm)
    copied.set_params(calibration="vector")
    return copied.calibrate(data.validation.X, data.validation.y)


def describe_site(
    site: Site,
    joint: Array,
    models: dict[str, GPAClassifier],
    here: AdaptedClassifier,
    n_resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Every method's probabilities at a new site, scored with the labels that none of them saw."""
    gpa = models["GPA"]
    true_given_z = joint / joint.sum(axis=0)
    z = (site.Z[CONFOUNDER] == LEVELS[1]).to_numpy().astype(int)
    log_ratio = gpa.log_ratio(site.X, site.Z)
    digit = same_digit(site.X)
    here_without_z = gpa.adapt(site.X, groups=digit)
    constant = estimate_prevalence(log_ratio, model="constant", groups=digit)
    label_shift = models["ERM, calibrated"].adapt(site.X, groups=digit)
    methods: dict[str, tuple[Array, Any, Any]] = {
        "ERM": (_as_trained(models["ERM"], site.X), None, None),
        "ERM^Z": (_as_trained(models["ERM^Z"], site.X, site.Z), None, None),
        "ERM + label-shift EM": _adapted(label_shift, site.X),
        "GPA, constant g": (adjust(log_ratio, np.log(constant.marginal)), constant.marginal[1], constant.interval()),
        "GPA": _adapted(here, site.X, site.Z),
        "GPA without z": _adapted(here_without_z, site.X),
        "GPA, true g": (adjust(log_ratio, np.log(true_given_z.T[z])), None, None),
    }
    low, high = here.prevalence_interval({CONFOUNDER: list(LEVELS)})
    given_z = here.prevalence({CONFOUNDER: list(LEVELS)})
    return {
        "true_prevalence": float(joint[1].sum()),
        "methods": {
            name: _score(site.y, probability, prevalence, interval, n_resamples, seed)
            for name, (probability, prevalence, interval) in methods.items()
        },
        "prevalence_given_z": [
            {
                "level": level,
                "true": float(true_given_z[1, j]),
                "estimate": float(given_z[j, 1]),
                "low": float(low[j, 1]),
                "high": float(high[j, 1]),
            }
            for j, level in enumerate(LEVELS)
        ],
        "reliability": {
            name: {column: values.tolist() for column, values in reliability(site.y, methods[name][0]).items()}
            for name in ("ERM", "GPA")
        },
    }


def write_demo(found: Demonstration, out: Path) -> list[Path]:
    """Write `demo.json`, the figures drawn from it, and a report of each new site into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "demo.json"
    path.write_text(json.dumps(found.record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    reports = [here.report(out / REPORTS[name], site=name) for name, here in found.adapted.items()]
    return [path, *draw_demo(found.record, out), *reports]


def _as_trained(erm: GPAClassifier, X: Array, Z: Any = None) -> Array:
    return np.asarray(erm.predict_proba(X, sample_domain=["training"] * len(X), sample_confounder=Z))


def _adapted(here: AdaptedClassifier, X: Array, Z: Any = None) -> tuple[Array, Any, Any]:
    return here.predict_proba(X, Z), here.prevalence()[1], here.prevalence_interval()


def _given_z(site: Site) -> list[float]:
    return [float(site.y[(site.Z[CONFOUNDER] == level).to_numpy()].mean()) for level in LEVELS]


def _score(y: Array, probability: Array, prevalence: Any, interval: Any, n_resamples: int, seed: int) -> dict[str, Any]:
    """A method's metrics, and its estimate of P(y=1) where it has one."""
    metrics = evaluate(y, probability, n_resamples=n_resamples, random_state=seed)
    scored: dict[str, Any] = {name: asdict(metrics[name]) for name in METRICS}
    scored["prevalence"] = None
    if prevalence is not None:
        low, high = interval
        scored["prevalence"] = {"value": float(prevalence), "low": float(low[1]), "high": float(high[1])}
    return scored
