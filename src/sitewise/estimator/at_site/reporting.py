"""Compute the content of a site's report, as a plain dict."""

import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sitewise.adaptation.draws import PrevalenceDraws
from sitewise.artifacts.folders import versions
from sitewise.confounders.variables import Categorical, Continuous, Notes, Variable
from sitewise.estimator.at_site.showing import ABOUT, about, class_names
from sitewise.estimator.source.reading import evenly
from sitewise.estimator.source.regions import in_regions
from sitewise.performance import clinical_performance
from sitewise.posterior import combine
from sitewise.report.page.content import MOST_LEVELS, Content, Profile, TrainingSite, build_content, most_frequent

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier
    from sitewise.estimator.model import SiteModel

Array = np.ndarray[Any, Any]
STEPS = 32  # number of steps of a curve over a numeric confounder
REACH = 3  # in steps: rows within this distance of a point of the curve are averaged
N_DRAWS, ROWS_NEAR = 200, 100  # for a band: number of draws of g; rows near each of its points at which g is drawn
MOST_GROUPS = 12  # the most groups of a confounder that are shown by default
MOST_CONFOUNDERS = 6  # the most confounders whose groups are shown by default
GROUP_METRICS = ("recall", "specificity", "precision")


def report_content(
    here: "AdaptedClassifier",
    site: str,
    level: float,
    made: str | None = None,
    *,
    subgroups: Any = None,
    bands: Any = None,
) -> Content:
    """Return the content of a site's report; `made` is its date, by default now."""
    rows, model = here.rows, here.model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `adapt` has already warned about these rows
        low, high = here.prevalence_interval(level=level)
        expected, rehearsal = here.expected_performance(level=level), model.rehearsal_
        return build_content(
            site=site,
            classes=class_names(model),
            prevalence=here.prevalence(),
            low=low,
            high=high,
            pooled=_pooled(model),
            before=_as_trained(here).numpy(),
            after=_probability(here),
            training_sites=_training_sites(model),
            profiles=list(_profiles(here, level)),
            held_out=_held_out(model),
            performance=expected.to_dict() | _clinical(here, level),
            subgroups=_subgroups(here, subgroups, bands, level),
            diagnosis=here.diagnose().to_dict(),
            rehearsal={"sentence": rehearsal.sentence, "sites": _rehearsed(rehearsal.table)},
            about={name: about(model, name) for name in ABOUT},
            kind="images" if getattr(model, "input_shape_", None) else "tables",
            done=_done(here),
            threshold=here.threshold_,
            sample_weight=None if rows.weight is None else rows.weight.numpy(),
            level=level,
            made=made or f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        )


def _as_trained(here: "AdaptedClassifier") -> Tensor:
    """Return P(y|x,z) of the rows that were passed to `adapt`, (n, K), by the model as trained."""
    rows = here.rows.by_knockout()
    return combine(rows.log_ratio, here.model.pooled_prevalence_.log_prob(rows.codes)).exp()


def _probability(here: "AdaptedClassifier") -> Array:
    """Return P(y|x,z) of the rows that were passed to `adapt`, (n, K), as `predict_proba` does."""
    rows = here.rows_in_use
    return np.asarray(here.probability_of(rows.log_ratio, rows.codes))


def _rehearsed(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a dict for each rehearsed site: the log loss as trained, adapted, and with the true P(y) given."""
    if not len(table):
        return []
    columns = {"rows": "rows", "before": "nll_as_trained", "after": "nll_adapted", "told": "nll_told"}
    return [{"name": name, **{key: line[column] for key, column in columns.items()}} for name, line in table.iterrows()]


def _training_sites(model: "SiteModel") -> list[TrainingSite]:
    return [
        TrainingSite(site.name, site.n_rows, np.array(site.class_counts) / site.n_rows)
        for site in model.training_summary_.sites
    ]


def _pooled(model: "SiteModel") -> Array:
    """Return the share of each class in all training rows, (K,)."""
    counts = np.array([site.class_counts for site in model.training_summary_.sites]).sum(axis=0)
    return np.asarray(counts / counts.sum())


def _profiles(here: "AdaptedClassifier", level: float) -> Iterator[Profile]:
    """Yield P(Y | one confounder) for each confounder: the mean prediction of the rows at, or near, each value.

    Because these are means of predictions, they agree with the prevalence on the page.
    """
    schema, rows = here.model.confounders_, here.rows
    if schema is None:
        return
    before, after = _as_trained(here), torch.as_tensor(_probability(here))
    draws = here.estimate_in_use.draws(N_DRAWS, random_state=here.model.random_state)
    weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight
    missing = schema.missing(rows.codes)
    for j, variable in enumerate(schema.variables):
        known = ~missing[:, j] & (weight > 0)
        codes, counts, left_out = _points(variable, rows.codes[known, j])
        near = _nearness(variable, rows.codes[:, j], known, codes) * weight
        shown = _average(near, after)
        low, high = _band(here, draws, near, shown, level)
        at = schema.missing_codes().repeat(len(codes), 1)
        at[:, j] = codes
        yield Profile(
            variable.name,
            schema.decode(at)[variable.name].tolist(),
            counts,
            _average(near, before).numpy(),
            shown.numpy(),
            low.numpy(),
            high.numpy(),
            is_number=isinstance(variable, Continuous) and len(codes) > 1,
            rows_missing=int(missing[:, j].sum()),
            left_out=left_out,
            notes=tuple(_notes(here.estimate.notes, variable)),
        )


def _band(
    here: "AdaptedClassifier", draws: PrevalenceDraws, near: Tensor, shown: Tensor, level: float
) -> tuple[Tensor, Tensor]:
    """Return the bounds (codes, K) of intervals for averages of g, from draws of g at some rows near each code."""
    if not len(near):
        return shown, shown
    places = [row.nonzero().flatten() for row in near]
    some = torch.unique(torch.cat([place[evenly(len(place), ROWS_NEAR)] for place in places]))
    codes = here.rows.codes[some]
    kept = in_regions(codes, here.model.unsupported_)[:, None]  # the training g is kept there, so nothing is drawn
    at_training = here.model.pooled_prevalence_.log_prob(codes)
    drawn = (torch.where(kept, at_training, log_g).exp() for log_g in draws.log_prob(codes))
    averages = torch.stack([_average(near[:, some], g) for g in drawn])
    low, high = torch.quantile(averages, averages.new_tensor([0.5 - level / 2, 0.5 + level / 2]), dim=0)
    return torch.minimum(low, shown), torch.maximum(high, shown)


def _points(variable: Variable, known: Tensor) -> tuple[Tensor, Array, tuple[int, int]]:
    """Return the codes at which a confounder is shown, the number of rows at each, and the levels and rows left out.

    The last result is a pair: the number of levels and the number of rows that are not shown.
    """
    if not len(known):
        return known, np.zeros(0, dtype=np.int64), (0, 0)
    if isinstance(variable, Categorical):
        counts = torch.bincount(known.long(), minlength=len(variable.levels)).numpy()
        shown = [level for level in most_frequent(counts, MOST_LEVELS) if counts[level]]
        left_out = int((counts > 0).sum()) - len(shown), int(counts.sum() - counts[shown].sum())
        return torch.tensor(shown, dtype=torch.float64), counts[shown], left_out
    low, high = float(known.min()), float(known.max())
    if high <= low:
        return known[:1], np.array([len(known)]), (0, 0)
    nearest = ((known - low) / (high - low) * STEPS).round().long()
    codes = torch.linspace(low, high, STEPS + 1, dtype=torch.float64)
    return codes, torch.bincount(nearest, minlength=STEPS + 1).numpy(), (0, 0)


def _nearness(variable: Variable, column: Tensor, known: Tensor, codes: Tensor) -> Tensor:
    """Return the weight of each row at each code, (codes, rows): positive for equal levels or nearby numbers."""
    apart = (codes[:, None] - column).abs()
    if isinstance(variable, Continuous) and len(codes) > 1:
        reach = REACH * (codes[1] - codes[0])
        nearest = apart.masked_fill(~known, torch.inf).min(dim=1, keepdim=True).values
        near = (1 - apart / torch.maximum(reach, 2 * nearest)).clamp_min(0)  # reach the nearest rows if no row is near
    else:
        near = (apart == 0).double()
    return near * known


def _average(near: Tensor, g: Tensor) -> Tensor:
    """Return for each code the mean of g (rows, K), weighted by the nearness of the rows to the code, (codes, K)."""
    return near @ g / near.sum(dim=1, keepdim=True)


def _notes(notes: Notes, variable: Variable) -> Iterator[str]:
    """Yield a sentence about each kind of unusual values of a confounder at this site."""
    name = variable.name
    if name in notes.absent:
        yield "It is not among the columns here and counts as missing."
    if notes.clipped.get(name) and isinstance(variable, Continuous):
        span = f"{variable.low:g} to {variable.high:g}"
        yield f"{notes.clipped[name]:,} value(s) lie outside the training range, {span}, and count as its nearest end."
    if notes.unseen.get(name):
        levels = sorted(notes.levels.get(name, ()))
        shown = ", ".join(levels[:5]) + (" and others" if len(levels) > 5 else "")
        yield f"{notes.unseen[name]:,} row(s) have a level not seen in training ({shown}) and count as missing."


def _held_out(model: "SiteModel") -> tuple[Array, Array] | None:
    """Return classes and calibrated probabilities of the held-out rows with all of z.

    If no row has all of z, all held-out rows are used. None if no rows were held out.
    """
    complete, hidden = model.held_out_
    held, calibration = (complete, model.calibrations_[0]) if len(complete.y) else (hidden, model.calibrations_[1])
    if not len(held.y):
        return None
    return held.y.numpy(), combine(calibration.apply(held.raw_log_ratio), held.log_prevalence).exp().numpy()


def _subgroups(here: "AdaptedClassifier", by: Any, bands: Any, level: float) -> list[dict[str, Any]]:
    """Return prevalence, a few metrics and calibration of each subgroup; by default, of confounders with few groups."""
    if by is None:
        z = here.drawn_rows.z
        # Numeric confounders always have few groups, because they are cut at their quartiles.
        few = [name for name in z if pd.api.types.is_numeric_dtype(z[name]) or z[name].nunique() <= MOST_GROUPS]
        by = z[few[:MOST_CONFOUNDERS]]
    main = "positive_f1" if len(here.classes_) == 2 else "macro_f1"
    return [
        {
            "column": group.column,
            "name": group.name,
            "rows": group.n_rows,
            "note": group.note,
            "prevalence": [value._asdict() for value in group.prevalence.values()],
            "metrics": {}
            if group.performance is None
            else {name: group.performance[name]._asdict() for name in (main, *GROUP_METRICS)},
            "calibration": {
                name: group.calibration[name]._asdict() for name in group.calibration if name == "oe_ratio"
            },
        }
        for group in here.subgroups(by, bands=bands, level=level)
    ]


def _clinical(here: "AdaptedClassifier", level: float) -> dict[str, Any]:
    """Return clinical metrics and the decision curve for two classes; an empty dict for more classes."""
    if len(here.classes_) != 2:
        return {}
    threshold = here.threshold_ if here.threshold_ is not None and 0 < here.threshold_ < 1 else None
    clinical = clinical_performance(here.drawn_rows, threshold=threshold, level=level)
    curve = here.decision_curve(level=level)[["threshold", "net_benefit", "treat_all", "treat_none"]]
    named = curve.set_axis(["threshold", "predictions", "treat all", "treat none"], axis=1)
    return {"clinical": {name: v._asdict() for name, v in clinical.items()}, "decision_curve": named.to_dict("records")}


def _done(here: "AdaptedClassifier") -> dict[str, dict[str, Any]]:
    """Return facts about the site, the estimate, the training and the software, by heading."""
    model, rows, estimate = here.model, here.rows, here.estimate
    names = () if model.confounders_ is None else model.confounders_.names
    known = 0 if rows.y is None else int((~rows.y.isnan()).sum())
    return {
        "This site": {
            "rows": len(rows) if here.n_rows_ is None else here.n_rows_,
            **({} if here.n_rows_ is None else {"rows that checks and expected performance are from": len(rows)}),
            "rows with a known label": known,
            "groups": None if rows.groups is None else len(torch.unique(rows.groups)),
            "weighted": rows.weight is not None,
            "confounders": ", ".join(names) or "none",
            "rows at z where a class never occurred in training": int((~rows.supported).sum()),
        },
        "Estimate": {
            "model of the prevalence": estimate.model,
            "shrinkage (strength)": float(estimate.strength),
            "converged": estimate.converged,
            "gap": float(estimate.gap),
            "iterations": estimate.n_iter,
            "log-likelihood": float(estimate.log_likelihood),
            "policy": here.policy,
            "outcome": str(here.outcome),
            "threshold": "most probable class" if here.threshold_ is None else float(here.threshold_),
        },
        "Training": {
            "sites": len(model.training_summary_.sites),
            "rows": model.training_summary_.n_rows,
            "held-out rows": len(model.held_out_[1].y),
            **model.facts(),
            "calibration": model.calibrations_[0].method,
            "seed": str(model.random_state),
            "fingerprint of the data": model.training_summary_.fingerprint,
        },
        "Software": versions(),
    }
