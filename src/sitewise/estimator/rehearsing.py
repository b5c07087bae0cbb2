"""Rehearsal: adapt to training sites that were left out of training, then score the predictions with their labels."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.adaptation.families import quick_model
from sitewise.estimator.adapted import AdaptedClassifier
from sitewise.estimator.at_site.diagnosing import breaches
from sitewise.estimator.source.reading import TrainingData
from sitewise.estimator.source.regions import in_regions
from sitewise.estimator.source.rehearsal import Numbers, Unit, learn_numbers
from sitewise.inputs import Inputs
from sitewise.posterior import combine
from sitewise.report.wording import rehearsal_sentence
from sitewise.rows import ScoredRows

if TYPE_CHECKING:
    from sitewise.estimator.model import SiteModel

REHEARSALS = ("auto", "sites", "rows", None)
MOST_FOLDS = 8
FEWEST_ROWS = 20  # the smallest site that is rehearsed

NO_SITES = "rehearsal='sites' needs at least two sites in sample_domain, got {count}: use 'auto' or 'rows'"


@dataclass(frozen=True)
class RemainingSites:
    """Training data without some sites."""

    name: str  # the names of the sites that are left out
    rows: Tensor  # numbers of the remaining rows
    data: TrainingData


@dataclass(frozen=True)
class Fold:
    """A model fitted without some sites, and a function that returns its inputs for rows of given numbers."""

    model: "SiteModel"
    inputs: Callable[[Tensor], Inputs]


MakeFolds = Callable[[list[RemainingSites]], Iterator[Fold]]


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal: how well adaptation worked at the training sites.

    Attributes
    ----------
    kind : str or None
        "sites": training sites were left out in turn, at most eight times; if there are more sites, several are left
        out together. A site is not left out if it has fewer than 20 rows, or if one of the classes occurs at no other
        site. "rows": no site was left out; the model was adapted to held-out rows as if they came from a new site.
        None: nothing was rehearsed.
    table : DataFrame
        A row for each rehearsed site; for "rows", one row. `rows`: the number of rows. `prevalence`: P(y) by the
        labels. `as_trained`: P(y) by the model as trained. `adapted`, `low`, `high`: P(y) by the adapted model, with
        its interval. With two classes, the columns from `prevalence` to `high` are for the second class; with more,
        each class has such columns, with its name appended. `nll_as_trained`, `nll_adapted`: the log loss of the model
        as trained and of the adapted model. `nll_told`: the log loss of the model as trained, after its level (a number
        for each class that is added to the log-probabilities) was fitted to the labels of the site, as if P(y) were
        known. `auroc`: the AUROC of the model as trained. `breach_*`: for each check of the assumption, the size of the
        violation (only for "sites").
    numbers : Numbers
        The numbers that were learned: the scales of a new site's prior, and how many of its rows are trusted. Its
        fields are explained at `SitePrior`.

    Examples
    --------
    >>> print(model.rehearsal_.sentence)
    >>> model.rehearsal_.table[["nll_as_trained", "nll_adapted"]]
    """

    kind: str | None
    table: pd.DataFrame
    numbers: Numbers

    @cached_property
    def breaches(self) -> dict[str, float]:
        """The largest violation at rehearsed sites, by the name of the check of the assumption."""
        if self.kind != "sites":
            return {}
        checks = [name for name in self.table if str(name).startswith("breach_") and self.table[name].notna().any()]
        return {str(name).removeprefix("breach_"): float(self.table[name].max()) for name in checks}

    @property
    def sentence(self) -> str:
        """A summary of the table in one sentence."""
        if self.kind is None or not len(self.table):
            return rehearsal_sentence(None, 0.0, 0.0, 0, 0)
        before, after = (float(self.table[f"nll_{name}"].mean()) for name in ("as_trained", "adapted"))
        better = int((self.table["nll_adapted"] < self.table["nll_as_trained"]).sum())
        return rehearsal_sentence(self.kind, before, after, better, len(self.table))

    def __repr__(self) -> str:
        return "\n".join([self.sentence, *([self._shown.to_string()] if len(self.table) else [])])

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.sentence)}</p>{self._shown.to_html() if len(self.table) else ''}"

    @property
    def _shown(self) -> pd.DataFrame:
        return self.table[["rows", "nll_as_trained", "nll_adapted", "nll_told", "auroc"]].round(3)


def rehearse(model: "SiteModel", data: TrainingData, make_folds: MakeFolds) -> Rehearsal:
    """Rehearse as the setting `model.rehearsal` requires; the result contains the numbers for the model's prior."""
    kind = model.rehearsal
    if kind == "auto":
        kind = "sites" if len(data.site_names) > 1 else "rows"
    if kind is None:
        return Rehearsal(None, pd.DataFrame(), Numbers())
    held = held_rows(model)
    own = [] if held is None else [held.unit()]
    if kind == "rows":
        numbers = learn_numbers(own)
        return Rehearsal(kind, _table([] if held is None else [_line(held, numbers)]), numbers)
    folds = site_folds(data)
    parts = [_without(data, sites) for sites in folds]
    rehearsed: list[_Rehearsed] = []
    for number, (sites, fold) in enumerate(zip(folds, make_folds(parts), strict=True)):
        for site in sites:
            rows = (data.rows.site == site).nonzero().flatten()
            rehearsed.append(_scored(fold, number, str(data.site_names[site]), data, rows))
    units = [one.unit() for one in rehearsed]
    lines = []
    for one in rehearsed:  # its numbers are learned from the sites of other folds and the held-out rows of its model
        others = [unit for unit, other in zip(units, rehearsed, strict=True) if other.fold != one.fold]
        numbers = learn_numbers([*others, *row_units(one.model)])
        lines.append(_line(one, numbers))
    return Rehearsal(kind, _table(lines), learn_numbers([*units, *own]))


def site_folds(data: TrainingData) -> list[list[int]]:
    """Return the sites of each fold, which are left out together: one site, or several if there are more than eight.

    Each site is put into the smallest fold for which the sites outside the fold still have all classes. A site for
    which there is no such fold is not rehearsed.
    """
    counts = torch.bincount(data.rows.site, minlength=len(data.site_names))
    able = [s for s in range(len(counts)) if int(counts[s]) >= FEWEST_ROWS and _can_train(data, [s])]
    folds: list[list[int]] = [[] for _ in range(min(MOST_FOLDS, len(able)))]
    for site in sorted(able, key=lambda s: -int(counts[s])):
        able_folds = [fold for fold in folds if _can_train(data, [*fold, site])]
        if able_folds:
            min(able_folds, key=lambda fold: int(counts[fold].sum()) if fold else 0).append(site)
    return folds


def _can_train(data: TrainingData, left_out: list[int]) -> bool:
    """Whether all classes occur at the other sites."""
    remaining = ~torch.isin(data.rows.site, torch.tensor(left_out))
    return len(torch.unique(data.rows.y[remaining])) == len(data.classes)


def _without(data: TrainingData, sites: Sequence[int]) -> RemainingSites:
    """Return the training data without the rows of some sites."""
    left = (~torch.isin(data.rows.site, torch.tensor(sites))).nonzero().flatten()
    name = ", ".join(str(data.site_names[s]) for s in sites)
    return RemainingSites(name, left, replace(data, rows=data.rows.take(left)))


@dataclass(frozen=True)
class _Rehearsed:
    """A site's rows, scored by a model that was trained without this site."""

    fold: int
    name: str
    model: "SiteModel"
    rows: ScoredRows
    y: Tensor
    log_prevalence: Tensor | None = None  # log g of the rows, if they are held-out rows (no shift); None for a site

    def unit(self) -> Unit:
        """Return the rows at which f is identified as a `Unit`, from which the numbers are learned."""
        log_g, shifted, use = self.log_prevalence, self.log_prevalence is None, self.rows.supported
        if log_g is None:
            log_g = self.model.pooled_prevalence_.log_prob(self.rows.codes)
        rows = self.rows.take(use)
        return Unit.of(
            self.name, rows.log_ratio, log_g[use], self.y[use], rows.weights, self.model.prior_, shifted=shifted
        )


def _scored(fold: Fold, number: int, name: str, data: TrainingData, rows: Tensor) -> _Rehearsed:
    part, fitted = data.rows.take(rows), fold.model
    raw_log_ratio, features, feature_rows = fitted.score_raw(fold.inputs(rows), part.codes)
    scored = part.extended(
        ScoredRows,
        y=None,  # as at a new site
        weight=part.weight.double(),
        log_ratio=fitted.calibrated(raw_log_ratio, part.codes),
        supported=~in_regions(part.codes, fitted.unsupported_),
        features=features,
        feature_rows=feature_rows,
    )
    return _Rehearsed(number, name, fitted, scored, part.y)


def row_units(model: "SiteModel") -> list[Unit]:
    """Return the held-out rows, cross-calibrated, as one unit without a shift; empty if no rows were held out."""
    held = held_rows(model)
    return [] if held is None else [held.unit()]


def held_rows(model: "SiteModel") -> _Rehearsed | None:
    """Return the cross-calibrated held-out rows with all of z; if there are none, all of them with z hidden.

    None if no rows were held out.
    """
    complete, hidden = model.telling_rows()
    held = complete if len(complete) else hidden
    if not len(held):
        return None
    everywhere = torch.ones(len(held), dtype=torch.bool)
    rows = held.extended(ScoredRows, y=None, log_ratio=model.cross_calibrated(held), supported=everywhere)
    return _Rehearsed(0, "held-out rows", model, rows, held.y, held.log_prevalence)


def _line(site: _Rehearsed, numbers: Numbers) -> dict[str, Any]:
    """Return a row of the table: adapt to the site without its labels, then score the predictions with its labels."""
    rows, y, model = site.rows, site.y, site.model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training has already warned about these rows
        estimate = _adapted(site, numbers)
    share = rows.weights / rows.weights.sum()
    as_trained = combine(rows.log_ratio, model.pooled_prevalence_.log_prob(rows.codes)).exp()
    stays = ~rows.supported | (not numbers.trusted_rows and not numbers.averaged)
    adapted = torch.where(stays[:, None], as_trained, estimate.average(rows.log_ratio, rows.codes))
    low, high = (np.asarray(bound) for bound in estimate.interval())
    truth = torch.zeros(len(model.classes_), dtype=torch.float64).index_add_(0, y, share)
    mean = share @ adapted
    line: dict[str, Any] = {"site": site.name, "rows": len(rows)}
    shares = {
        "prevalence": truth,
        "as_trained": share @ as_trained,
        "adapted": mean,
        "low": np.minimum(low, mean.numpy()),
        "high": np.maximum(high, mean.numpy()),
    }
    classes = model.classes_.tolist()
    for k in [1] if len(classes) == 2 else range(len(classes)):
        suffix = "" if len(classes) == 2 else f"_{classes[k]}"
        line |= {f"{column}{suffix}": float(values[k]) for column, values in shares.items()}

    def nll(probability: Tensor) -> float:
        return float(-(share @ probability.gather(1, y[:, None])[:, 0].clamp_min(1e-12).log()))

    line |= {"nll_as_trained": nll(as_trained), "nll_adapted": nll(adapted), "nll_told": site.unit().labeled_level[2]}
    line["auroc"] = _auroc(y.numpy(), as_trained.numpy(), rows.weights.numpy())
    if site.log_prevalence is None:  # a site that was left out, where the assumption may be violated
        line |= {f"breach_{name}": size for name, size in breaches(AdaptedClassifier(model, estimate, rows)).items()}
    return line


def _adapted(site: _Rehearsed, numbers: Numbers) -> PrevalenceEstimate:
    """Estimate g from the rows at which f is identified, without their labels."""
    model, schema = site.model, site.model.confounders_
    rows = site.rows.take(site.rows.supported)
    Z = None if schema is None or bool(schema.missing(rows.codes).all()) else schema.decode(rows.codes)
    return estimate_prevalence(
        rows.log_ratio.numpy(),
        Z,
        model="constant" if Z is None else quick_model(model.prevalence),
        prior=numbers.put_into(model.prior_),
        confounders=schema,
        sample_weight=rows.weights.numpy(),
        groups=None if rows.groups is None else rows.groups.numpy(),
    )


def _auroc(y: Any, probability: Any, weight: Any) -> float:
    """Return the AUROC: with more than two classes, the mean of each class against all others; NaN without a class."""
    if len(np.unique(y)) < probability.shape[1]:
        return float("nan")
    scores = [roc_auc_score(y == k, probability[:, k], sample_weight=weight) for k in range(probability.shape[1])]
    return float(scores[1] if len(scores) == 2 else np.mean(scores))


def _table(lines: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(lines).set_index("site") if lines else pd.DataFrame()
