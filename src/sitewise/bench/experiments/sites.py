"""The sites of a run. Each has its own seed, so that all methods get the same rows; no row has two roles."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from sitewise.bench.experiments.experiment import ALL, TEST, TRAINING, VALIDATION, Draw, Experiment, SiteSpec
from sitewise.bench.experiments.images import join_images
from sitewise.bench.experiments.kinds import KINDS
from sitewise.bench.experiments.plan import Run
from sitewise.bench.experiments.populations import Population
from sitewise.sites import Site

Folder = str | os.PathLike[str] | None
SCORED, ADAPTATION = "scored", "adaptation"


@dataclass(frozen=True)
class TrainingRows:
    """The rows of all training sites and of the validation site, as arguments of `Method.fit`."""

    X: Any
    y: Any
    sample_domain: Any
    sample_confounder: Any
    groups: Any


@dataclass(frozen=True)
class World:
    """All populations and rows that are drawn with one seed; repeated calls return the same objects."""

    data: dict[str, Any]
    seed: int
    parts: dict[str, Any]  # the part of the source for each role; empty for simulated data
    kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def population(self, spec: SiteSpec, part: str) -> Population:
        """Return the population of a site. Values that are drawn once for a site, such as its P(y), are kept."""
        key = f"{part} {spec.name} {json.dumps(spec.options, sort_keys=True)}"
        if key not in self.kept:
            rng = np.random.default_rng(derived_seed(self.seed, part, spec.name))
            kind = KINDS[self.data["kind"]]
            options = self.data if kind.real else {name: value for name, value in self.data.items() if name != "kind"}
            self.kept[key] = kind.populate(options, spec.name, spec.options, self.parts.get(part), rng)
        return self.kept[key]  # type: ignore[no-any-return]

    def rows(self, spec: SiteSpec, part: str, role: str, n: int | None) -> Site:
        """Draw n rows of a site for a role; all rows if n is None.

        The seed depends on the run's seed, the site, the role and n. Therefore draws that score equally many rows score
        the same rows.
        """
        key = f"{part} {spec.name} {json.dumps(spec.options, sort_keys=True)} {role} {n}"
        if key not in self.kept:
            seed = derived_seed(self.seed, part, spec.name, role, n or ALL)
            self.kept[key] = self.population(spec, part).draw(n, seed)
        return self.kept[key]  # type: ignore[no-any-return]

    def labeled(self, spec: SiteSpec, part: str) -> Site:
        """Return the labeled rows of a training site or of the validation site."""
        return self.rows(spec, part, part, spec.n)

    def test_rows(self, spec: SiteSpec, draw: Draw) -> tuple[Site, Site]:
        """Return the rows to adapt on and the rows to score; they are the same rows if `draw.adapt` is None."""
        scored = self.rows(spec, TEST, SCORED, draw.score)
        return (scored if draw.adapt is None else self.rows(spec, TEST, ADAPTATION, draw.adapt)), scored

    def training_rows(self, run: Run) -> TrainingRows:
        """Return all labeled rows of a run: those of the training sites and of the validation site."""
        sites = [*(self.labeled(spec, TRAINING) for spec in run.training), self.labeled(run.validation, VALIDATION)]
        return TrainingRows(
            X=join_images([site.X for site in sites]),
            y=np.concatenate([site.y for site in sites]),
            sample_domain=np.repeat([site.name for site in sites], [len(site) for site in sites]),
            sample_confounder=None if sites[0].Z is None else pd.concat([site.Z for site in sites], ignore_index=True),
            groups=None if sites[0].groups is None else np.concatenate([site.groups for site in sites]),
        )

    def unlabeled_rows(self, run: Run) -> dict[str, Any] | None:
        """Return the unlabeled rows for training: those of the validation site, and the adaptation rows of the target.

        None if the training uses no unlabeled rows.
        """
        if run.unlabeled is None:
            return None
        adaptation, _ = self.test_rows(run.tests[0], run.unlabeled)
        return {VALIDATION: self.labeled(run.validation, VALIDATION).X, run.tests[0].name: adaptation.X}


def world_of(run: Run, data_dir: Folder = None) -> World:
    """Return the world of a run; a process keeps the last world for further runs with the same data and seed."""
    return _world(json.dumps(run.data, sort_keys=True), run.seed, _folder(data_dir))


def source_name(data: dict[str, Any], data_dir: Folder = None) -> str | None:
    """Return the name of the source of an experiment's data; None if they are simulated."""
    return None if KINDS[data["kind"]].load is None else str(_source_of(data, data_dir).name)


def prepare_data(experiment: Experiment, data_dir: Folder = None) -> None:
    """Prepare the data before the first run: check that each site exists, and pack images."""
    prepare = KINDS[experiment.data["kind"]].prepare
    for part in experiment.variants if prepare is not None else ():
        assert prepare is not None
        prepare(_source_of(part.data, data_dir), part)


def forget_data() -> None:
    """Clear the kept data, so that the next run reads and draws them again, for example after files have changed."""
    _source.cache_clear()
    _world.cache_clear()


def derived_seed(seed: int, *names: str | int) -> int:
    """Derive a seed from a seed and names, so that other names give other seeds."""
    words = [int.from_bytes(hashlib.sha256(str(name).encode()).digest()[:8], "big") for name in names]
    return int(np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)[0])


@lru_cache(maxsize=1)
def _world(data: str, seed: int, data_dir: str | None) -> World:
    options = json.loads(data)
    split = KINDS[options["kind"]].split
    parts = {} if split is None else split(_source_of(options, data_dir), derived_seed(seed, "digits"))
    return World(options, seed, parts)


def _source_of(data: dict[str, Any], data_dir: Folder) -> Any:
    """Return the source of the sites, which is read once for all runs."""
    options = data if KINDS[data["kind"]].real else {"kind": data["kind"]}
    return _source(json.dumps(options, sort_keys=True), _folder(data_dir))


def _folder(data_dir: Folder) -> str | None:
    """Return the folder of the data; by default it is the value of the environment variable SITEWISE_DATA."""
    return (os.environ.get("SITEWISE_DATA") or None) if data_dir is None else os.fspath(data_dir)


@lru_cache(maxsize=1)
def _source(data: str, data_dir: str | None) -> Any:
    options = json.loads(data)
    load = KINDS[options["kind"]].load
    assert load is not None
    return load(options, data_dir)
