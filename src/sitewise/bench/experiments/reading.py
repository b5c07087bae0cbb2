"""Reading of an experiment's YAML file. One error lists all problems, with the key and a similar valid name."""

import os
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeGuard

from sitewise.arrays import Problems, did_you_mean
from sitewise.bench.experiments.experiment import (
    ALL,
    ALL_METRICS,
    VALIDATION,
    Draw,
    Entry,
    Experiment,
    SiteSpec,
    Tuning,
)
from sitewise.bench.experiments.kinds import KINDS
from sitewise.bench.experiments.loading import load_yaml
from sitewise.bench.experiments.populations import Kind
from sitewise.bench.methods import METHODS
from sitewise.training import Recipe
from sitewise.training.recipe import RECIPES

REQUIRED = ("data", "seeds", "training", "validation", "tests", "draws", "methods", "metric")
KEYS = ("title", "paper", *REQUIRED, "recipe", "network", "tuning", "reference", "figure", "variants", "quick")
NETWORK = ("backbone", "weights", "normalize")
SET_BY_RUNS = (
    "recipe",
    "validation",
    "device",
    "devices",
    "nodes",
    "strategy",
    "checkpoint",
    "verbose",
    "random_state",
)
NO_TUNING = "methods with a grid need tuning, as in {metric: nll, seeds: 3}"
GRID_IN_VARIANTS = "variants share their settings: methods with a grid can't be chosen for each of them"
UNEQUAL = "every grid must have the same number of settings, for an equal budget, got {sizes}"


def read_experiment(path: str | os.PathLike[str], *, quick: bool = False) -> Experiment:
    """Read an experiment from its YAML file and check it.

    Parameters
    ----------
    path : path
        The YAML file.
    quick : bool
        Whether to read the reduced version of the experiment. Then the values in the section `quick` of the file
        replace those outside it, and null in this section removes a key.

    Returns
    -------
    Experiment
        The content of the file. If the file has problems, one ValueError lists all of them.
    """
    path = Path(path)
    problems = Problems(str(path))
    try:
        raw = load_yaml(path)
    except ValueError as error:
        problems.add(str(error))
    problems.raise_if_any()
    reduced = raw.pop("quick", None)
    raw = _spelled_out(raw)
    reader = _Reader(problems)
    if quick and reduced:
        raw = merge(raw, _spelled_out(reader.mapping(reduced, "quick")))
    variants = reader.mapping(raw.pop("variants", {}), "variants")
    changes = [reader.mapping(part, f"variants.{name}") for name, part in variants.items()]
    parts = tuple(reader.experiment(merge(raw, _spelled_out(part)), path.stem, quick) for part in changes)
    if not parts:
        return reader.experiment(raw, path.stem, quick)
    tests = tuple(site for part in parts for site in part.tests)
    reader.distinct([site.name for site in tests])
    if any(entry.grid for entry in parts[0].methods):
        problems.add(GRID_IN_VARIANTS)
    problems.raise_if_any()
    return replace(parts[0], tests=tests, parts=parts)


def merge(base: Any, changes: Any) -> Any:
    """Merge mappings deeply; changes take precedence, and None in the changes removes a key."""
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return changes
    merged = base | {key: merge(base.get(key), value) for key, value in changes.items()}
    return {key: value for key, value in merged.items() if key not in changes or changes[key] is not None}


class _Reader:
    """Converts parts of the file to parts of an experiment, and collects problems."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems

    def experiment(self, raw: dict[Any, Any], name: str, quick: bool) -> Experiment:
        self.known(raw, KEYS, "")
        for key in REQUIRED:
            if key not in raw:
                self.problems.add(f"{key} is missing")
        data = self.mapping(raw.get("data", {}), "data")
        kind = KINDS[data["kind"]] if _among(data.get("kind"), KINDS) else None
        if "data" in raw and kind is None:
            came = data.get("kind")
            self.problems.add(f"data.kind must be one of {', '.join(KINDS)}, got {came!r}{did_you_mean(came, KINDS)}")
        elif kind is not None:
            self.known(data, ("kind", *kind.data), "data.")
            for fault in kind.data_faults(data):
                self.problems.add(f"data.{fault}")
        methods = tuple(self.entry(str(k), v) for k, v in self.mapping(raw.get("methods", {}), "methods").items())
        read = Experiment(
            name=name,
            title=str(raw.get("title", name)),
            paper=self.mapping(raw.get("paper", {}), "paper"),
            data=data,
            recipe=self.recipe(raw.get("recipe", {"name": "default"})),
            network=self.network(raw.get("network", {})),
            seeds=self.count(raw.get("seeds", 1), "seeds"),
            training=self.sites(raw.get("training", {}), "training", data, kind),
            validation=self.site(VALIDATION, raw["validation"], VALIDATION, data, kind, sized=True)
            if "validation" in raw
            else SiteSpec(VALIDATION, {}),
            tests=self.sites(raw.get("tests", {}), "tests", data, kind),
            draws=tuple(self.draw(str(k), v, kind) for k, v in self.mapping(raw.get("draws", {}), "draws").items()),
            methods=methods,
            tuning=self.tuning(raw.get("tuning"), raw.get("seeds")),
            reference=self.reference(raw.get("reference"), methods),
            metric=self.metric(raw.get("metric", "nll"), "metric"),
            figure=self.mapping(raw.get("figure", {}), "figure"),
            quick=quick,
        )
        self.whole(read, raw)
        self.problems.raise_if_any()
        return read

    def whole(self, read: Experiment, raw: dict[Any, Any]) -> None:
        """Do the checks that need all parts of the experiment."""
        for key in ("training", "tests", "draws", "methods"):
            if key in raw and not getattr(read, key):
                self.problems.add(f"{key}: at least one is needed")
        self.distinct([site.name for site in (*read.training, *read.tests)])
        sizes = {entry.label: len(entry.candidates) for entry in read.methods if entry.grid}
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{label} {size}" for label, size in sizes.items())
            self.problems.add(UNEQUAL.format(sizes=shown))
        if sizes and read.tuning is None and "tuning" not in raw:
            self.problems.add(NO_TUNING)

    def distinct(self, names: list[str]) -> None:
        for name in dict.fromkeys(name for name in names if name == VALIDATION or names.count(name) > 1):
            self.problems.add(f"two sites have the name {name!r}: rename one")

    def sites(self, raw: Any, place: str, data: Any, kind: Kind | None) -> tuple[SiteSpec, ...]:
        sized = place != "tests"
        return tuple(
            self.site(str(name), spec, f"{place}.{name}", data, kind, sized=sized)
            for name, spec in self.mapping(raw, place).items()
        )

    def site(self, name: str, raw: Any, place: str, data: Any, kind: Kind | None, *, sized: bool) -> SiteSpec:
        spec = self.mapping(raw, place)
        options = {key: value for key, value in spec.items() if key != "n" or not sized}
        if kind is not None:
            self.known(spec, (*kind.site, "n") if sized and not kind.real else kind.site, f"{place}.")
            for fault in kind.faults(data, options):
                self.problems.add(f"{place}: {fault}")
        whole = not sized or (kind is not None and kind.real)
        return SiteSpec(name, options, None if whole else self.count(spec.get("n"), f"{place}.n"))

    def draw(self, name: str, raw: Any, kind: Kind | None) -> Draw:
        spec = self.mapping(raw, f"draws.{name}")
        if kind is not None and kind.real:
            if spec != {"score": ALL}:
                self.problems.add(f"draws.{name} must be {{score: {ALL}}}: real sites are scored and adapted to whole")
            return Draw(name, None)
        self.known(spec, ("score", "adapt"), f"draws.{name}.")
        adapt = self.count(spec["adapt"], f"draws.{name}.adapt") if "adapt" in spec else None
        return Draw(name, self.count(spec.get("score"), f"draws.{name}.score"), adapt)

    def entry(self, label: str, raw: Any) -> Entry:
        place = f"methods.{label}"
        spec = self.mapping(raw, place)
        method = spec.get("method")
        grid = self.mapping(spec.get("grid", {}), f"{place}.grid")
        settings = {key: value for key, value in spec.items() if key not in ("method", "grid")}
        if not _among(method, METHODS):
            self.problems.add(
                f"{place}: the methods are {', '.join(METHODS)}, got {method!r}{did_you_mean(method, METHODS)}"
            )
            return Entry(label, str(method), settings, grid)
        self.settings(method, settings, grid, place)
        return Entry(label, method, settings, {k: v if isinstance(v, list) else [v] for k, v in grid.items()})

    def settings(self, method: str, settings: dict[str, Any], grid: dict[str, Any], place: str) -> None:
        """Add a problem for each setting that the method does not have, and for each grid that is not a list."""
        known = [field.name for field in fields(METHODS[method]) if field.name not in SET_BY_RUNS]
        for name in (*settings, *grid):
            if name in SET_BY_RUNS:
                self.problems.add(f"{place}.{name} is the same for all methods and not set here")
            elif name not in known:
                self.problems.add(f"{place}.{name} is not a setting of {method}{_instead(name, known)}")
            if name in settings and name in grid:
                self.problems.add(f"{place}.{name} is given both a value and a grid")
        for name, values in grid.items():
            if not isinstance(values, list) or not values:
                self.problems.add(f"{place}.grid.{name} must be a list of values to try, got {values!r}")

    def network(self, raw: Any) -> dict[str, Any]:
        spec = self.mapping(raw, "network")
        self.known(spec, NETWORK, "network.")
        return spec

    def recipe(self, raw: Any) -> dict[str, Any]:
        spec = {"name": "default"} | self.mapping(raw, "recipe")
        known = [field.name for field in fields(Recipe)]
        self.known(spec, ("name", *known), "recipe.")
        if not _among(spec["name"], RECIPES):
            meant = did_you_mean(spec["name"], RECIPES)
            self.problems.add(f"recipe must be one of {', '.join(RECIPES)}, got {spec['name']!r}{meant}")
        return spec

    def tuning(self, raw: Any, seeds: Any) -> Tuning | None:
        if raw is None:
            return None
        spec = self.mapping(raw, "tuning")
        self.known(spec, ("metric", "seeds"), "tuning.")
        asked = self.count(spec.get("seeds"), "tuning.seeds")
        if isinstance(seeds, int) and asked > seeds:
            self.problems.add(f"tuning.seeds must be at most seeds ({seeds}), got {asked}")
        return Tuning(self.metric(spec.get("metric"), "tuning.metric"), asked)

    def reference(self, raw: Any, methods: tuple[Entry, ...]) -> str | None:
        labels = [entry.label for entry in methods]
        if raw is not None and raw not in labels:
            self.problems.add(f"reference must be one of the methods' labels, got {raw!r}{did_you_mean(raw, labels)}")
        return raw  # type: ignore[no-any-return]

    def metric(self, raw: Any, place: str) -> str:
        if raw not in ALL_METRICS:
            meant = did_you_mean(raw, ALL_METRICS)
            self.problems.add(f"{place} must be one of {', '.join(ALL_METRICS)}, got {raw!r}{meant}")
        return str(raw)

    def count(self, raw: Any, place: str) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or raw < 1:
            self.problems.add(f"{place} must be a whole number of at least 1, got {raw!r}")
            return 1
        return raw

    def mapping(self, raw: Any, place: str) -> dict[Any, Any]:
        if not isinstance(raw, dict):
            self.problems.add(f"{place} must be a mapping of names to values, got {raw!r}")
            return {}
        return raw

    def known(self, spec: dict[Any, Any], known: Iterable[str], place: str) -> None:
        for key in spec:
            if key not in known:
                self.problems.add(f"{place}{key} is not a key here{_instead(key, known)}")


def _instead(word: Any, known: Iterable[str]) -> str:
    """Return an end of a message: a similar name if there is one, otherwise all names."""
    names = list(known)
    return did_you_mean(word, names) or f"; there are {', '.join(names)}" if names else "; there are none"


def _among(value: Any, names: Iterable[str]) -> TypeGuard[str]:
    """Whether a value is a string and one of the names; the value may have any type."""
    return isinstance(value, str) and value in names


def _spelled_out(raw: Any) -> Any:
    """Replace short forms such as `ERM: erm` and `recipe: default` by mappings, so that sections can be merged."""
    if not isinstance(raw, dict):
        return raw
    full = dict(raw)
    if isinstance(raw.get("recipe"), str):
        full["recipe"] = {"name": raw["recipe"]}
    if isinstance(raw.get("methods"), dict):
        methods = raw["methods"].items()
        full["methods"] = {label: {"method": spec} if isinstance(spec, str) else spec for label, spec in methods}
    return full
