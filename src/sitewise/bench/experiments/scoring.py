"""Doing a run: train once, adapt and score each method at each site, and return the record."""

import math
import time
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from sitewise.artifacts.folders import versions
from sitewise.bench.experiments.experiment import TEST, VALIDATION
from sitewise.bench.experiments.fingerprint import run_fingerprint
from sitewise.bench.experiments.plan import Run, make_method
from sitewise.bench.experiments.populations import Population, Truth
from sitewise.bench.experiments.provenance import commit
from sitewise.bench.experiments.records import FINGERPRINT, Record
from sitewise.bench.experiments.sites import Folder, World, world_of
from sitewise.bench.methods import Method
from sitewise.bench.methods.base import fit_together, remembering
from sitewise.confounders import Confounders
from sitewise.evaluation import evaluate
from sitewise.sites import Site

Array = np.ndarray[Any, Any]
NO_TRUTH = "the true P(y|z) of these sites is not known"


@dataclass(frozen=True)
class Task:
    """Rows to adapt on and rows to score, from one population; they may be the same rows.

    `source_shares` are the class shares among the validation rows, (K,).
    """

    adaptation: Site
    scored: Site
    population: Population
    source_shares: Array


def run_one(run: Run, data_dir: Folder = None, device: str = "auto", **processes: Any) -> Record:
    """Do a run and return its record, with its settings, versions, commit and device.

    If a method refuses the data, its result is the reason. `processes` are `devices`, `nodes` and `strategy` of
    `make_method`, if several devices train together.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        results = _results(run, world_of(run, data_dir), {"device": device, **processes})
    return {
        "id": run.id,
        FINGERPRINT: run_fingerprint(run),
        "experiment": run.experiment,
        **run.plain(),
        "versions": versions(),
        "commit": commit(),
        "device": device_name(device, processes.get("devices", 1)),
        "started": started.isoformat(timespec="seconds"),
        "seconds": time.perf_counter() - clock,
        "warnings": list(dict.fromkeys(str(warning.message) for warning in caught)),
        "results": results,
    }


def device_name(device: str, devices: int | str = 1) -> str:
    """Return the name of the GPU or "cpu", and the number of devices if it is not 1."""
    gpu = device in ("auto", "cuda", "gpu") and torch.cuda.is_available()
    name = torch.cuda.get_device_name() if gpu else "cpu" if device in ("auto", "cpu") else device
    return name if devices == 1 else f"{name} x {devices}"


def score(task: Task, probability: Array, prevalence: Array | None) -> dict[str, Any]:
    """Return all metrics of predicted probabilities at a site, and the errors of the estimated P(y).

    `prevalence_error` is mean_y |p̂(y) - p(y)|, where p is the P(y) of the population. `weight_mse` is the mean over y
    of (ŵ_y - w_y)² with ŵ = p̂ / q and w = r / q. Here q are the class shares among the validation rows, and r those
    among the rows adapted on, which are the best possible estimate. Both errors are None if the method estimates no
    P(y); undefined metrics are None, too.
    """
    metrics = evaluate(task.scored.y, probability, n_resamples=0)
    scored: dict[str, Any] = {name: metric.value for name, metric in metrics.items()}
    scored |= {"true_prevalence": task.population.marginal.tolist(), "prevalence": None}
    scored |= {"prevalence_error": None, "weight_mse": None}
    if prevalence is not None:
        source = task.source_shares
        seen = class_shares(task.adaptation.y, len(source))
        scored["prevalence"] = prevalence.tolist()
        scored["prevalence_error"] = float(np.abs(prevalence - task.population.marginal).mean())
        if (source > 0).all():
            scored["weight_mse"] = float((((prevalence - seen) / source) ** 2).mean())
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in scored.items()}


def class_shares(y: Any, n_classes: int) -> Array:
    """Return the share of each class among the rows, (K,)."""
    return np.bincount(np.asarray(y), minlength=n_classes) / len(y)


def _results(run: Run, world: World, devices: dict[str, Any]) -> dict[str, Any]:
    """Return the results by label; {"skipped": reason} if the method refuses the data."""
    rows, unlabeled = world.training_rows(run), world.unlabeled_rows(run)
    methods = {
        choice.label: make_method(choice, run.recipe, run.network, run.seed, **devices) for choice in run.methods
    }
    schema = None if rows.sample_confounder is None else Confounders.learn(rows.sample_confounder)
    n_unlabeled = sum(map(len, (unlabeled or {}).values()))
    reasons = {label: _refusal(method, run, world, schema, n_unlabeled) for label, method in methods.items()}
    able = {label: method for label, method in methods.items() if reasons[label] is None}
    results: dict[str, Any] = {label: {"skipped": reason} for label, reason in reasons.items() if reason}
    if able:
        fit_together(
            list(able.values()),
            rows.X,
            rows.y,
            sample_domain=rows.sample_domain,
            sample_confounder=rows.sample_confounder,
            groups=rows.groups,
            unlabeled=unlabeled,
        )
        with remembering(list(able.values())):
            results |= {label: _at_every_site(method, run, world) for label, method in able.items()}
    return {choice.label: results[choice.label] for choice in run.methods}


def _refusal(method: Method, run: Run, world: World, schema: Confounders | None, n_unlabeled: int) -> str | None:
    """Return the reason why a method cannot be used; None if it can.

    The reason may be that of its trainer, or that the true g which the method needs is not known.
    """
    for one in (method, method.trainer()):
        reason = one.refusal(len(run.training), schema, n_unlabeled)
        if reason:
            return reason
    populations = [world.population(run.validation, VALIDATION), *(world.population(site, TEST) for site in run.tests)]
    needs_truth = method.card.labels_at_test == "true g"
    return NO_TRUTH if needs_truth and any(population.given_z is None for population in populations) else None


def _at_every_site(method: Method, run: Run, world: World) -> dict[str, Any]:
    """Return the scores at the validation site, by which settings are chosen, and at each test site and draw."""
    validation, population = world.labeled(run.validation, VALIDATION), world.population(run.validation, VALIDATION)
    shares = class_shares(validation.y, len(population.marginal))
    return {
        VALIDATION: _score_at(method, Task(validation, validation, population, shares)),
        "sites": {
            site.name: {
                draw.name: _score_at(method, Task(*world.test_rows(site, draw), world.population(site, TEST), shares))
                for draw in run.draws
            }
            for site in run.tests
        },
    }


def _score_at(method: Method, task: Task) -> dict[str, Any]:
    """Adapt a method and score it. It gets labels or the true g only if its card says that it needs them."""
    seen, scored = task.adaptation, task.scored
    try:
        here = method.adapt(seen.X, seen.Z, **_given(method, seen, task.population.given_z))
        probability = here.own_proba() if seen is scored else here.predict_proba(scored.X, scored.Z)
    except Exception as error:
        error.add_note(f"{method.card.name} at {scored.name!r}, adapted on {len(seen)} row(s)")
        raise
    return score(task, probability, here.prevalence())


def _given(method: Method, site: Site, truth: Truth | None) -> dict[str, Any]:
    asked = method.card.labels_at_test
    if asked == "true g":
        return {"prevalence": truth}
    return {"y": site.y} if asked in ("labels", "P(Y)") else {}
