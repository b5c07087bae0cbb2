"""The model card in a saved folder: training data, method, performance on held-out rows, and limits of the model."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from sitewise.artifacts.folders import versions
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.estimator.at_site.showing import counted_rows
from sitewise.estimator.files.classifiers import unknown_types
from sitewise.estimator.settings import CHANGES
from sitewise.evaluation import evaluate
from sitewise.posterior import combine

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier
    from sitewise.estimator.adjuster import PrevalenceAdjuster
    from sitewise.estimator.gpa import GPAClassifier
    from sitewise.estimator.model import SiteModel
    from sitewise.rows import HeldOut

LONGEST = 60  # the largest number of characters of a name that are shown
SHOWN = 50  # the largest number of rows of a table that are shown
ESCAPED = "\\`*_[]<>|#"
METRICS = ("nll", "brier", "auroc", "accuracy", "macro_f1", "ece")

LIMITS = """\
- It relies on P(x | y, z) being the same at every site. A new scanner, protocol or case mix within a class breaks
  that; `adapt(...).diagnose()` looks for signs of it, but no check on unlabeled data can exclude it.
- It knows only the classes above: any other condition is assigned to one of them.
- The held-out numbers are from the training sites; at another site they will differ.
- Rows that lack part of the confounders are predicted by an approximation, less well than complete ones."""

NOT_IN_SAMPLE = """\
- The classifier's probabilities of the labeled rows are assumed to be out-of-sample. If it was trained on the
  same rows, all results are over-confident."""


def model_card(model: "GPAClassifier") -> str:
    """Return the card of a trained model."""
    parts = [
        "# A classifier trained by sitewise",
        "It predicts P(y | x, z) by Generalized Prevalence Adjustment: a ratio that is the same at all sites, times "
        "the prevalence at the site. At a new site `adapt` estimates that prevalence from unlabeled rows.",
        *_about(model),
        "## Trained on",
        _training_table(model),
        f"Classes: {', '.join(_name(label) for label in model.classes_.tolist())}. Inputs: {_inputs(model)}. "
        f"Fingerprint of the training data: {model.training_summary_.fingerprint}.",
        "## Confounders (z)",
        "None." if model.confounders_ is None else _confounders(model.confounders_),
        "## How",
        _recipe(model),
        "## Rehearsal",
        model.rehearsal_.sentence,
        "## On held-out rows of the training sites",
        _held_out(model.held_out_[0], model),
        "## Known limits",
        "\n".join([LIMITS, *_regions(model)]),
        "## Use",
        _use('model = sw.load("FOLDER")', "here = model.adapt(X_new, sample_confounder=Z_new)"),
    ]
    return "\n\n".join(parts) + "\n"


def adjuster_card(model: "PrevalenceAdjuster", classifier: Tensor | None) -> str:
    """Return the card of an adjuster; `classifier` is the classifier as bytes, or None if the folder lacks it."""
    around = "the probabilities of a classifier"
    load = 'model = sw.load("FOLDER")'
    if classifier is not None:
        unknown = unknown_types(classifier)
        around = f"a classifier ({_name(type(model.estimator_).__name__)}), which is in this folder by skops,"
        load = f'model = sw.load("FOLDER"{_trusting(unknown)})'
    elif model.estimator_ is not None:
        around = f"a classifier ({_name(type(model.estimator_).__name__)}) that is not in this folder"
        load = 'model = sw.load("FOLDER", estimator=YOUR_CLASSIFIER)'
    sees = "P(y | x, z): z is among its inputs" if model.classifier_sees_ == "xz" else "P(y | x): z is not its input"
    complete, incomplete = model.calibrations_
    parts = [
        "# An adjustment of a classifier by sitewise",
        f"It turns {around} into P(y | x, z) at each site, by a ratio that is the same at all sites, times the "
        "prevalence at the site. At a new site `adapt` estimates that prevalence from unlabeled rows.",
        *_about(model),
        "## Learned from",
        _training_table(model),
        f"Classes, in the order of the columns: {', '.join(_name(label) for label in model.classes_.tolist())}. "
        f"Fingerprint of the data: {model.training_summary_.fingerprint}.",
        "## Confounders (z)",
        "None." if model.confounders_ is None else _confounders(model.confounders_),
        "## How",
        f"The classifier is assumed to give {sees}. Prevalence of the labeled sites: {model.prevalence}. Calibration: "
        f"{complete.method} for rows with all of z, {incomplete.method} for others. "
        f"Saved with {', '.join(f'{name} {version}' for name, version in versions().items())}.",
        "## Rehearsal",
        model.rehearsal_.sentence,
        "## On the labeled rows",
        _held_out(model.held_out_[0], model),
        "## Known limits",
        "\n".join([LIMITS, NOT_IN_SAMPLE, *_regions(model)]),
        "## Use",
        _use(load, "here = model.adapt(X_new, sample_confounder=Z_new)"),
    ]
    return "\n\n".join(parts) + "\n"


def pipeline_card(pipeline: Pipeline, unknown: list[str]) -> str:
    """Return the card of a pipeline that ends in a model; `unknown` are the types that users must trust to load it."""
    names = ", ".join(f"{_name(name)} ({_name(type(step).__name__)})" for name, step in pipeline.steps)
    parts = [
        "# A pipeline of scikit-learn and sitewise",
        f"Its steps: {names}. The last one is in the folder `last`, with a card of its own; the others are here, by "
        "skops.",
        "## Use",
        _use(f'pipeline = sw.load("FOLDER"{_trusting(unknown)})', "pipeline.predict_proba(X)"),
    ]
    return "\n\n".join(parts) + "\n"


def _trusting(unknown: list[str]) -> str:
    return f", trusted={unknown!r}" if unknown else ""


def site_card(here: "AdaptedClassifier") -> str:
    """Return the card of a model adapted to a site."""
    estimate = here.estimate
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `adapt` has already warned about these rows
        prevalence, (low, high) = here.prevalence(), here.prevalence_interval()
    rows = [
        [_name(label), f"{p:.4f}", f"{a:.4f} to {b:.4f}"]
        for label, p, a, b in zip(here.classes_.tolist(), prevalence, low, high, strict=True)
    ]
    estimator = getattr(here.model, "estimator_", None)
    attach = ", estimator=YOUR_CLASSIFIER" if isinstance(estimator, nn.Module) else ""
    settled = "converged" if estimate.converged else "did NOT converge"
    parts = [
        "# A classifier adapted to one site by sitewise",
        _plain(here.outcome.sentence),
        f"{here.outcome.risk} Verdict: {here.diagnose().verdict}.",
        f"Adapted on {counted_rows(here)} without labels, or with few. The model behind it is in the folder "
        "`model`, with a card of its own.",
        "## Prevalence here",
        _table(["class", "P(class)", "95% interval"], rows),
        f"Model of g: {estimate.model}, strength {estimate.strength:g}; it {settled} in {estimate.n_iter} iterations "
        f"(gap {estimate.gap:.1e}).",
        "## Predictions",
        f"Policy: {here.policy}. Threshold: {_threshold(here)}.",
        "## What is stored of the site's rows",
        "The model's scores (log f), the codes of the confounders, weights, numbers of groups, known labels, and for "
        "some rows the network's features. No images, no other inputs, no names of patients. Treat the folder as "
        "patient data all the same.",
        "## Use",
        _use(f'here = sw.load("FOLDER"{attach})', "here.predict_proba(X, sample_confounder=Z)"),
    ]
    return "\n\n".join(parts) + "\n"


def _about(model: "SiteModel") -> list[str]:
    """Return the lines for the entries of `about_`: outcome, positive class, intended use, contact."""
    words = {
        "outcome_name": "Outcome",
        "positive": "Positive class",
        "intended_use": "Intended use",
        "contact": "Contact",
    }
    lines = [
        f"- {word}: {_plain(' '.join(model.about_[name].split()))}"
        for name, word in words.items()
        if name in model.about_
    ]
    return ["\n".join(lines)] if lines else []


def _training_table(model: "SiteModel") -> str:
    summary = model.training_summary_
    header = ["site", "rows", *(f"P({_name(label)})" for label in model.classes_.tolist())]
    rows = [
        [_name(site.name), str(site.n_rows), *(f"{count / max(site.n_rows, 1):.3f}" for count in site.class_counts)]
        for site in summary.sites
    ]
    return _table(header, rows)


def _inputs(model: "GPAClassifier") -> str:
    if model.input_shape_:
        return f"images of shape {tuple(model.input_shape_)} (channels, height, width)"
    return f"a table of {model.n_features_in_} column(s)"


def _confounders(schema: Confounders) -> str:
    rows = []
    for variable in schema.variables:
        if isinstance(variable, Categorical):
            more = f" and {len(variable.levels) - SHOWN} more" if len(variable.levels) > SHOWN else ""
            rows.append([_name(variable.name), "levels", ", ".join(map(_name, variable.levels[:SHOWN])) + more])
        else:
            rows.append([_name(variable.name), "number", f"{variable.low:g} to {variable.high:g}"])
    return _table(["name", "kind", "seen in training"], rows)


def _recipe(model: "GPAClassifier") -> str:
    backbone = model.backbone if isinstance(model.backbone, str) else type(model.backbone).__name__
    recipe = model.recipe if isinstance(model.recipe, str) else "of its own"
    changes = [f"{name} {getattr(model, name)}" for name in CHANGES if getattr(model, name) is not None]
    trained = [f"backbone {backbone}", f"recipe {recipe}", *changes, f"knockout of z {model.knockout:g}"]
    complete, incomplete = model.calibrations_
    calibration = f"{complete.method} for rows with all of z, {incomplete.method} for others"
    libraries = ", ".join(f"{name} {version}" for name, version in versions().items())
    return (
        f"Ratio: {', '.join(trained)}; {len(model.training_history_)} epoch(s), the snapshot of epoch "
        f"{model.best_epoch_} kept. Prevalence of the training sites: {model.prevalence}. Calibration: {calibration}. "
        f"Saved with {libraries}."
    )


def _held_out(held_out: "HeldOut", model: "SiteModel") -> str:
    if not len(held_out):
        return "No rows were held out: its performance is unknown, and it is not calibrated."
    metrics = held_out_metrics(model)
    rows = [[name, "not defined" if value is None else f"{value:.4f}"] for name, value in metrics.items()]
    count = f"{len(held_out)} row(s) with all of z; the calibration was fitted to the same rows."
    return f"{_table(['metric', 'value'], rows)}\n\n{count}"


def held_out_metrics(model: "SiteModel") -> dict[str, float | None]:
    """Return metrics of the calibrated model on its held-out rows with all of z; empty if there are no such rows."""
    held_out = model.held_out_[0]
    if not len(held_out):
        return {}
    calibrated_log_ratio = model.calibrations_[0].apply(held_out.raw_log_ratio)
    probability = combine(calibrated_log_ratio, held_out.log_prevalence).exp().numpy()
    metrics = evaluate(held_out.y.numpy(), probability, sample_weight=held_out.weight.numpy())
    return {name: metrics[name].value for name in METRICS}


def _regions(model: "SiteModel") -> list[str]:
    lines = []
    for region in model.unsupported_:
        assert model.confounders_ is not None
        variable = model.confounders_.variables[region.variable]
        assert isinstance(variable, Categorical)
        level, label = variable.levels[int(region.code)], model.classes_.tolist()[region.label]
        lines.append(
            f"- At {_name(variable.name)} = {_name(level)} class {_name(label)} never occurred in training: the "
            "training prevalence is kept there."
        )
    return lines


def _threshold(here: "AdaptedClassifier") -> str:
    return "none, the most probable class is predicted" if here.threshold_ is None else f"{here.threshold_:g}"


def _use(load: str, then: str) -> str:
    return f"```python\nimport sitewise as sw\n\n{load}\n{then}\n```"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows[:SHOWN]]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\n({len(rows) - SHOWN} more are not shown.)" if len(rows) > SHOWN else text


def _name(value: Any) -> str:
    """Return a name from the data as text on one line, shortened and with special characters escaped."""
    text = " ".join(str(value.item() if isinstance(value, np.generic) else value).split())
    return _plain(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")


def _plain(text: str) -> str:
    """Return a text with the special characters of Markdown escaped."""
    return "".join(f"\\{letter}" if letter in ESCAPED else letter for letter in text)
