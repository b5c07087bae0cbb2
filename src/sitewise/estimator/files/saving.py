"""Save models as folders and load them: each kind of model is taken apart, and put together again.

A new kind of model needs an entry in `KINDS`. A new class among the parts of a model needs an entry in `RECORDS`;
families of g define their own records.
"""

import math
import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.pipeline import Pipeline
from sklearn.utils.metadata_routing import MetadataRequest
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from sitewise.adaptation import PrevalenceEstimate
from sitewise.adaptation.joint import JointEstimate
from sitewise.adaptation.records import all_records
from sitewise.arrays import Problems, brief, did_you_mean
from sitewise.artifacts import Record
from sitewise.artifacts.folders import Folder, read_folder, versions, write_folder
from sitewise.artifacts.hints import fits, hints_of
from sitewise.artifacts.packing import ODD, odd_entry, pack, unpack
from sitewise.backbones.build import SMALL
from sitewise.calibration import Calibration
from sitewise.critic import Bank, Critic
from sitewise.diagnosis import Diagnosis, Finding, Grounds, Outcome
from sitewise.diagnosis.coverage import TrainingTable
from sitewise.estimator.adapted import AdaptedClassifier
from sitewise.estimator.adjuster import PrevalenceAdjuster
from sitewise.estimator.files.card import adjuster_card, held_out_metrics, model_card, pipeline_card, site_card
from sitewise.estimator.files.classifiers import read_classifier, unknown_types, write_classifier
from sitewise.estimator.gpa import GPAClassifier
from sitewise.estimator.model import SiteModel
from sitewise.estimator.rehearsing import Rehearsal
from sitewise.estimator.scoring.probabilities import is_ready
from sitewise.estimator.scoring.ratios import AdditiveRatio, PooledRatio
from sitewise.estimator.source.held_out import Balance
from sitewise.estimator.source.reading import SiteSummary, TrainingSummary
from sitewise.estimator.source.regions import Region
from sitewise.estimator.source.rehearsal import Numbers
from sitewise.estimator.without_z.joint import JointModel
from sitewise.estimator.without_z.pairs import PairModel, PairRatio, pair_reader
from sitewise.prevalence.base import Prevalence
from sitewise.ratio import Scorer, build_ratio
from sitewise.rows import HeldOut, ScoredRows
from sitewise.solvers import EM
from sitewise.tables.reader import RECORDS as TABLE_RECORDS
from sitewise.training import Recipe

Values = dict[str, Any]
MOST_INPUTS = 2**28  # the largest number of values in one input
METHODS = ("fit", "predict", "predict_proba", "score", "transform")  # methods to which scikit-learn routes metadata
PLACES = ("cache", "checkpoint")  # settings that name places to write to; a loaded folder must not choose them

OWN_NETWORK = (
    "load: this model was trained around a network of your own ({name}), whose code is not saved: "
    "pass it, sw.load(path, backbone={short}(...)), built as for training"
)
NO_OWN_NETWORK = "load: backbone is given, but this model has its own ({backbone!r}): leave backbone out"
OWN_ESTIMATOR = (
    "load: this adjustment was made around a classifier of your own ({name}), which is not in the folder: "
    "pass the same fitted classifier: sw.load(path, estimator=...)"
)
NO_OWN_ESTIMATOR = "load: estimator is given, but the saved model needs no classifier: leave estimator out"
UNWRITTEN_STEPS = "save: the steps of the pipeline cannot be written by skops, see the warning: save its last step"
OTHER_NETWORK = "the saved weights do not fit the network: {error}"


@dataclass(frozen=True)
class Parts:
    """The parts of a model: values to pack, its card, and the models that it contains, by name."""

    values: Values
    card: str
    inside: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of model that can be saved: its class, and functions that take it apart and put it together.

    The arguments of `put_together` are the values, the contained models, and the objects that the caller of `load`
    passes (for example a backbone).
    """

    model: type
    take_apart: Callable[[Any], Parts]
    put_together: Callable[[Values, dict[str, Any], Mapping[str, Any]], Any]


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Save a model, an adapted site, or a pipeline that ends in one, as a folder that `load` reads.

    The folder is written completely or not at all. An earlier saved model at the same path is replaced; any other
    existing file or folder raises an error. The steps of a pipeline before the last one and the classifier of a
    `PrevalenceAdjuster` are written by skops, everything else as JSON and safetensors. The code of a torch module of
    your own is not saved. If it is a backbone, its trained weights are saved.

    Parameters
    ----------
    model : GPAClassifier, PrevalenceAdjuster, AdaptedClassifier or Pipeline
        The fitted model.
    path : path
        The folder.

    Examples
    --------
    >>> sw.save(sw.adapt(pipeline, X_new, sample_confounder=Z_new), "site/")
    >>> sw.load("site/").predict_proba(X, sample_confounder=Z)
    """
    write_folder(_to_folder(model), path)


def load(
    path: str | os.PathLike[str],
    *,
    backbone: nn.Module | None = None,
    estimator: Any = None,
    trusted: Sequence[str] = (),
) -> Any:
    """Load a model that `save` wrote. Its predictions are exactly those of the saved model.

    Loading never runs code from the folder.

    Parameters
    ----------
    path : path
        The folder.
    backbone : torch module, optional
        Only for a model that was trained with your own torch module: this module, built as for training. The saved
        weights are loaded into it.
    estimator : estimator or torch module, optional
        The fitted classifier of a `PrevalenceAdjuster`. It is required if the classifier is not in the folder (a torch
        module, or a classifier that skops could not write). Otherwise it replaces the saved classifier.
    trusted : sequence of str
        Only for a folder with parts that skops wrote (a classifier, or steps of a pipeline): the names of types that
        may be loaded in addition to the allowed types of scikit-learn. Name only types that you trust. A type in the
        folder that is neither allowed nor named raises an error.

    Returns
    -------
    GPAClassifier, PrevalenceAdjuster, AdaptedClassifier or Pipeline
        The model that was saved.

    Examples
    --------
    >>> model.save("model/")
    >>> here = sw.load("model/").adapt(X_new, sample_confounder=Z_new)
    >>> here.save("site/")
    >>> sw.load("site/").predict_proba(X, sample_confounder=Z)
    """
    if backbone is not None and not isinstance(backbone, nn.Module):
        raise TypeError(f"load: backbone must be a torch module, got {type(backbone).__name__}")
    return _from_folder(read_folder(path), {"backbone": backbone, "estimator": estimator, "trusted": tuple(trusted)})


def _to_folder(model: Any) -> Folder:
    name = next((name for name, kind in KINDS.items() if kind.model is type(model)), None)
    if name is None:
        known = ", ".join(kind.model.__name__ for kind in KINDS.values())
        raise TypeError(f"save: a {type(model).__name__} cannot be saved, only {known}")
    parts = KINDS[name].take_apart(model)
    content, tensors = pack(parts.values, all_records() | RECORDS)
    inside = {place: _to_folder(inner) for place, inner in parts.inside.items()}
    return Folder(name, content, tensors, parts.card, versions(), inside)


def _from_folder(folder: Folder, attached: Mapping[str, Any]) -> Any:
    if folder.kind not in KINDS:
        meant = did_you_mean(folder.kind, KINDS)
        raise ValueError(f"load: this folder holds a {brief(folder.kind)!r}, known are {', '.join(KINDS)}{meant}")
    inside = {place: _from_folder(inner, attached) for place, inner in folder.inside.items()}
    try:
        values = unpack(folder.content, folder.tensors, all_records() | RECORDS)
        return KINDS[folder.kind].put_together(values, inside, attached)
    except ODD as error:
        if str(error).startswith("load: "):  # the message is already complete
            raise
        raise odd_entry(folder.kind, error) from error


def _take_classifier(model: GPAClassifier) -> Parts:
    check_is_fitted(model)
    settings = {**model.get_params(deep=False), **dict.fromkeys(PLACES)}
    fitted = _fitted(model, {*settings, "scorer_"})
    if isinstance(model.backbone, nn.Module):
        settings["backbone"] = {"own": type(model.backbone).__qualname__}
    network = {name: _narrow(value) for name, value in model.scorer_.module.state_dict().items()}
    values = {"settings": settings, "metrics": held_out_metrics(model), "fitted": fitted, "network": network}
    return Parts(values, model_card(model))


def _fitted(model: SiteModel, others: Container[str]) -> Values:
    """Return the learned attributes by their names in folders, which are the names of the first version."""
    return {_on_disk(name): value for name, value in vars(model).items() if name not in others}


def _on_disk(name: str) -> str:
    return f"_{name[:-1]}" if name in LEARNED else name


def _in_memory(fitted: Values) -> Values:
    names = {_on_disk(name): name for name in LEARNED}
    return {names.get(name, name): value for name, value in fitted.items()}


def _make_classifier(values: Values, inside: dict[str, Any], attached: Mapping[str, Any]) -> GPAClassifier:
    settings, fitted = _parts(values, settings=Values, fitted=Values, network=dict[str, Tensor])[:2]
    settings |= {name: None for name in PLACES if name in settings}
    settings["backbone"] = _read_backbone(settings["backbone"], attached["backbone"])
    if attached["estimator"] is not None:
        raise ValueError(NO_OWN_ESTIMATOR)
    _check_settings(settings, GPAClassifier())
    _check_fitted(fitted, settings, GPAClassifier)
    model = GPAClassifier(**settings)
    model.__dict__.update(_in_memory(fitted))
    model.scorer_ = Scorer(_build_network(model, values["network"]), model.device)
    _check_shapes(model, {"all sites": model.pooled_prevalence_, **model.site_prevalences_})
    return model


def _take_adjuster(model: PrevalenceAdjuster) -> Parts:
    check_is_fitted(model)
    settings = model.get_params(deep=False)
    fitted = _fitted(model, {*settings, "estimator_", "classifier_"})
    if model.estimator_ is not None:
        settings["estimator"] = {"own": type(model.estimator_).__qualname__}
    values = {"settings": settings, "metrics": held_out_metrics(model), "fitted": fitted}
    if model.estimator_ is not None and not isinstance(model.estimator_, nn.Module):
        values["classifier"] = write_classifier(model.estimator_)
    return Parts({**values, "floor": model.classifier_.floor}, adjuster_card(model, values.get("classifier")))


def _make_adjuster(values: Values, inside: dict[str, Any], attached: Mapping[str, Any]) -> PrevalenceAdjuster:
    settings, fitted, floor = _parts(values, settings=Values, fitted=Values, floor=float)
    if attached["backbone"] is not None:
        raise ValueError(NO_OWN_NETWORK.format(backbone="no network"))
    estimator = attached["estimator"]
    if estimator is None and values.get("classifier") is not None:
        estimator = read_classifier(values["classifier"], attached["trusted"])
    estimator = settings["estimator"] = _read_estimator(settings["estimator"], estimator)
    _check_settings(settings, PrevalenceAdjuster())
    _check_fitted(fitted, settings, PrevalenceAdjuster)
    model = PrevalenceAdjuster(**settings)
    model.__dict__.update(_in_memory(fitted), estimator_=estimator)
    model.classifier_ = pair_reader(estimator, model.classes_, model.joint, floor)
    _check_estimator(model)
    _check_shapes(model, {"all sites": model.pooled_prevalence_, **model.site_prevalences_})
    return model


def _read_estimator(saved: Any, given: Any) -> Any:
    if saved is not None and given is None:
        raise ValueError(OWN_ESTIMATOR.format(name=saved["own"]))
    if saved is None and given is not None:
        raise ValueError(NO_OWN_ESTIMATOR)
    if given is not None and not is_ready(given):
        raise ValueError(f"load: the estimator ({type(given).__name__}) is not fitted: fit it as before, then load")
    return given


def _check_estimator(model: PrevalenceAdjuster) -> None:
    """Check that the given estimator has the classes and the number of features of the saved model."""
    problems = Problems("load")
    for name in ("classes_", "n_features_in_") if model.joint is None else ("n_features_in_",):
        saved, attached = (np.asarray(getattr(part, name, None)).tolist() for part in (model, model.estimator_))
        if model.estimator_ is not None and None not in (saved, attached) and saved != attached:
            problems.add(f"the estimator has {name} = {attached}, the saved adjustment {saved}: pass its own estimator")
    problems.raise_if_any()


def _check_settings(settings: Mapping[str, Any], model: Any) -> None:
    unknown = sorted(set(settings) - set(model.get_params(deep=False)))
    if unknown:
        raise ValueError(f"load: the model has settings that this version does not know: {', '.join(unknown)}")


def _check_fitted(fitted: Values, settings: Values, kind: type[SiteModel]) -> None:
    """Check that all declared attributes of a fitted model exist, and that they have their declared types."""
    hints = hints_of(kind)
    known = {*settings, *kind().get_params(deep=False)}  # settings that the folder lacks have their defaults
    needed = {_on_disk(name): hints[name] for name in hints if name not in known and not hasattr(kind, name)}
    _parts(fitted, "fitted/", **needed)
    _check_attributes(fitted, "fitted/", kind, {_on_disk(name): hint for name, hint in hints.items()})


def _check_attributes(values: Values, place: str, kind: type, hints: Mapping[str, Any]) -> None:
    """Check the types of attributes, and that no attribute hides a method or a property of the class."""
    for name, value in values.items():
        known = getattr(kind, name, None)
        if name.startswith("__") or callable(known) or hasattr(known, "__get__"):
            raise odd_entry(place + name, TypeError("it would hide an attribute of the class"))
        if not fits(value, hints.get(name, Any)):
            raise odd_entry(place + name, TypeError(f"got {type(value).__name__}"))


def _parts(values: Mapping[str, Any], place: str = "", **expected: Any) -> tuple[Any, ...]:
    """Return some entries of `values` in the given order; raise an error if one is missing or has another type."""
    for name, hint in expected.items():
        if name not in values or not fits(values[name], hint):
            came = type(values[name]).__name__ if name in values else "nothing"
            raise odd_entry(place + name, TypeError(f"got {came}"))
    return tuple(values[name] for name in expected)


def _take_adapted(here: AdaptedClassifier) -> Parts:
    computed = {name for name, part in vars(AdaptedClassifier).items() if isinstance(part, cached_property)}
    card = site_card(here)  # the card computes the outcome, which is saved with the site
    values = {name: value for name, value in vars(here).items() if name not in computed and name != "model"}
    outcome = here.outcome
    values["_outcome"] = {"word": str(outcome), **vars(outcome)}
    return Parts({"site": values}, card, {"model": here.model})


def _make_adapted(values: Values, inside: dict[str, Any], attached: Mapping[str, Any]) -> AdaptedClassifier:
    (site,) = _parts(values, site=Values)
    (model,) = _parts(inside, model=SiteModel)
    _parts(site, "site/", estimate=PrevalenceEstimate, rows=ScoredRows, classes_=np.ndarray)
    _check_attributes(site, "site/", AdaptedClassifier, SITE)
    here = AdaptedClassifier.__new__(AdaptedClassifier)
    outcome = site.get("_outcome")
    here.__dict__.update(site, model=model, _outcome=None if outcome is None else Outcome(**outcome))
    _check_shapes(here.model, {"this site": here.estimate.prevalence})
    return here


def _take_pipeline(pipeline: Pipeline) -> Parts:
    check_is_fitted(pipeline)
    *front, (name, last) = pipeline.steps
    steps = write_classifier([[step, made] for step, made in front])
    if steps is None:
        raise TypeError(UNWRITTEN_STEPS)
    return Parts({"steps": steps, "last": name}, pipeline_card(pipeline, unknown_types(steps)), {"last": last})


def _make_pipeline(values: Values, inside: dict[str, Any], attached: Mapping[str, Any]) -> Pipeline:
    front = read_classifier(values["steps"], attached["trusted"])
    return Pipeline([*map(tuple, front), (values["last"], inside["last"])])


def _read_backbone(saved: Any, given: nn.Module | None) -> Any:
    own = isinstance(saved, dict)
    if own and given is None:
        name = str(saved.get("own"))
        raise ValueError(OWN_NETWORK.format(name=name, short=name.rpartition(".")[2]))
    if not own and given is not None:
        raise ValueError(NO_OWN_NETWORK.format(backbone=saved))
    return given if own else saved


def _build_network(model: GPAClassifier, state: dict[str, Tensor]) -> nn.Module:
    """Build the network as at `fit`, for inputs of the same shape, and load the saved weights."""
    shape = model.input_shape_ or (model.n_features_in_,)
    small = isinstance(model.backbone, str) and model.backbone in SMALL  # it has at least one weight for each input
    if math.prod(shape) > (sum(value.numel() for value in state.values()) if small else MOST_INPUTS):
        raise ValueError(f"inputs of shape {shape}, for which there are too few weights")
    like = torch.zeros(1, *shape, dtype=torch.uint8 if model.input_shape_ else torch.float32)
    schema, n_classes = model.confounders_, len(model.classes_)
    network = build_ratio(model.backbone, like, schema, n_classes, seed=0, normalize=model.normalize).eval()
    problems = Problems("load")
    try:
        network.load_state_dict(state, assign=True)
    except RuntimeError as error:
        problems.add(OTHER_NETWORK.format(error=error))
    problems.raise_if_any()
    return network


def _narrow(weights: Tensor) -> Tensor:
    """Return weights in single precision if this changes no value; scoring may have converted them to double."""
    narrow = weights.float() if weights.dtype == torch.float64 else weights
    return narrow if torch.equal(narrow.to(weights.dtype), weights) else weights


def _check_shapes(model: SiteModel, prevalences: Mapping[Any, Prevalence]) -> None:
    """Check that prevalences and calibrations have the number of classes and the confounders of the model."""
    problems = Problems("load")
    n_classes, schema = len(model.classes_), model.confounders_
    blank = torch.zeros(1, 0, dtype=torch.float64) if schema is None else schema.missing_codes()[None]
    for name, g in prevalences.items():
        try:
            shape = tuple(g.log_prob(blank).shape)
        except (RuntimeError, IndexError) as error:
            problems.add(f"the prevalence of {name!r} does not fit the confounders ({error})")
            continue
        if shape != (1, n_classes):
            problems.add(f"the prevalence of {name!r} is for {shape[1]} classes, the model has {n_classes}")
    for calibration in model.calibrations_:
        if calibration.slope.shape != (n_classes,) or calibration.bias.shape != (n_classes,):
            problems.add(f"a calibration is for {len(calibration.slope)} classes, the model has {n_classes}")
    problems.raise_if_any()


def _make_critic(parts: Values) -> Critic:
    critic = Critic(**parts)
    sizes = tuple(critic.state[name].shape for name in ("x_mean", "z_mean"))
    if sizes != ((critic.n_features,), (critic.n_inputs,)):
        raise ValueError(f"a critic of {critic.n_features} and {critic.n_inputs} inputs with weights for {sizes}")
    return critic


def _take_scored(rows: ScoredRows) -> Values:
    """Return the fields of a site's rows; labels have their name of the first version."""
    return {"labels" if f.name == "y" else f.name: getattr(rows, f.name) for f in fields(rows)}


def _make_scored(parts: Values) -> ScoredRows:
    return ScoredRows(**{"y" if name == "labels" else name: value for name, value in parts.items()})


def _take_grounds(grounds: Grounds) -> Values:
    """Return the numbers of an outcome; the applied share has its name of the first version."""
    return {"believed" if f.name == "applied_share" else f.name: getattr(grounds, f.name) for f in fields(grounds)}


def _make_grounds(parts: Values) -> Grounds:
    return Grounds(**{"applied_share" if name == "believed" else name: value for name, value in parts.items()})


def _take_rehearsal(rehearsal: Rehearsal) -> Values:
    return {"kind": rehearsal.kind, "table": rehearsal.table.reset_index(), "numbers": rehearsal.numbers}


def _make_rehearsal(parts: Values) -> Rehearsal:
    table = parts["table"]
    return Rehearsal(parts["kind"], table.set_index("site") if "site" in table else table[[]], parts["numbers"])


def _take_table(table: pd.DataFrame) -> Values:
    return {str(name): table[name].tolist() for name in table}


def _take_requests(requests: MetadataRequest) -> Values:
    return {name: dict(getattr(requests, name).requests) for name in METHODS if getattr(requests, name).requests}


def _make_requests(parts: Values) -> MetadataRequest:
    requests = MetadataRequest(owner="loaded")
    for name in METHODS:
        for param, alias in parts.get(name, {}).items():
            getattr(requests, name).add_request(param=param, alias=alias)
    return requests


def _take_random_state(state: np.random.RandomState) -> Values:
    name, keys, *rest = state.get_state(legacy=True)
    return {"name": name, "keys": np.asarray(keys).tolist(), "rest": list(rest)}


def _make_random_state(parts: Values) -> np.random.RandomState:
    state = np.random.RandomState()
    state.set_state((parts["name"], np.array(parts["keys"], dtype=np.uint32), *parts["rest"]))
    return state


RECORDS: dict[str, Record] = {
    **TABLE_RECORDS,
    "AdditiveRatio": Record(AdditiveRatio),
    "Balance": Record(Balance),
    "Bank": Record(Bank),
    "Calibration": Record(Calibration),
    "Critic": Record(Critic, put_together=_make_critic),
    "JointModel": Record(JointModel),
    "EM": Record(EM),
    "Diagnosis": Record(Diagnosis, dropped=("fallback", "in_use")),
    "Finding": Record(Finding),
    "Grounds": Record(Grounds, _take_grounds, _make_grounds),
    "HeldOut": Record(HeldOut),
    "KeptRows": Record(ScoredRows, _take_scored, _make_scored),
    "PairModel": Record(PairModel),
    "PairRatio": Record(PairRatio),
    "PooledRatio": Record(PooledRatio),
    "MetadataRequest": Record(MetadataRequest, _take_requests, _make_requests),
    "Numbers": Record(Numbers),
    "Rehearsal": Record(Rehearsal, _take_rehearsal, _make_rehearsal),
    "RandomState": Record(np.random.RandomState, _take_random_state, _make_random_state),
    "Recipe": Record(Recipe),
    "Region": Record(Region),
    "SiteSummary": Record(SiteSummary),
    "Table": Record(pd.DataFrame, _take_table, pd.DataFrame),
    "TrainingSummary": Record(TrainingSummary),
    "TrainingTable": Record(TrainingTable),
}

LEARNED = (
    "site_prevalences_",
    "pooled_prevalence_",
    "unsupported_",
    "training_table_",
    "held_out_",
    "calibrations_",
    "balance_",
    "deviation_",
    "prior_",
    "joint_",
    "ratio_",
)  # in a folder these attributes begin with an underscore instead of ending with one

SITE = {  # attributes of an adapted site
    "threshold_": float | None,
    "policy": str,
    "site_name": str | None,
    "joint": JointEstimate | None,
    "n_rows_": int | None,
    "mean_probability_": Tensor | None,
    "_fallback": str | None,
    "_diagnosis": Diagnosis | None,
}

KINDS = {
    "GPAClassifier": Kind(GPAClassifier, _take_classifier, _make_classifier),
    "PrevalenceAdjuster": Kind(PrevalenceAdjuster, _take_adjuster, _make_adjuster),
    "AdaptedClassifier": Kind(AdaptedClassifier, _take_adapted, _make_adapted),
    "Pipeline": Kind(Pipeline, _take_pipeline, _make_pipeline),
}
