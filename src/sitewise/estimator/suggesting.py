"""Suggest columns for z: columns whose relation to the classes differs between labeled sites."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.adaptation import estimate_prevalence
from sitewise.arrays import Problems, read_weight
from sitewise.confounders import Confounders
from sitewise.diagnosis.heterogeneity import ScoreTest, column_features, site_interactions
from sitewise.diagnosis.result import holm
from sitewise.estimator.source.prevalences import by_site, fit_prevalence
from sitewise.estimator.source.reading import read_classes, read_domain
from sitewise.posterior import combine, contrasts
from sitewise.prevalence import SitePrior
from sitewise.prevalence.linear import fit_linear
from sitewise.rows import LabeledRows

MOST_CHOSEN = 5
RIDGE = 1.0  # ridge penalty on the coefficients of f when the choices of z are compared
NOTHING = "none"


@dataclass(frozen=True, eq=False)
class Suggestion:
    """The columns that are suggested for z, with the tests behind the suggestion.

    Attributes
    ----------
    confounders : list of str
        The suggested columns, at most five, in the order in which they were chosen: the one with the smallest p-value
        first. Empty if there is no column whose relation to the classes differs significantly between sites.
    table : DataFrame
        A row for each candidate column. `statistic`, `freedom` (degrees of freedom) and `p_value`: the score test of
        the interaction of the column with the site. The test of a suggested column takes into account the columns that
        were suggested before it. The test of any other column takes into account all suggested columns. `adjusted`: the
        p-value adjusted by Holm's method. `suggested`: whether the column is suggested.
    rehearsal : DataFrame
        A row for each choice of z: none, the first suggested column, the first two, and so on. Each site is left out in
        turn. `as_trained`, `adapted`: the mean log loss at the left-out sites, without and with adaptation. `sites`:
        the number of left-out sites. `gain`: `adapted` without z, minus `adapted` with this choice of z. The table is
        empty with `rehearse=False`.
    level : float
        The significance level. If every column has the same relation to the classes at all sites, the probability that
        any column is suggested is at most this level.

    Examples
    --------
    >>> suggestion = suggest_confounders(X, y, sample_domain)
    >>> suggestion.confounders
    """

    confounders: list[str]
    table: pd.DataFrame
    rehearsal: pd.DataFrame
    level: float

    def __str__(self) -> str:
        said = ", ".join(self.confounders) if self.confounders else "nothing differs between sites beyond chance"
        return f"suggested z: {said}\n{self.table.to_string()}\n{self.rehearsal.to_string()}"


def suggest_confounders(
    X: Any,
    y: Any,
    sample_domain: Any,
    *,
    candidates: Sequence[str] | None = None,
    sample_weight: Any = None,
    level: float = 0.05,
    rehearse: bool = True,
) -> Suggestion:
    """Suggest columns for z: columns whose relation to the classes differs between labeled sites.

    Parameters
    ----------
    X : DataFrame or array-like of shape (n, d)
        All known columns of the rows, including the candidates for z; missing values are allowed.
    y : array-like of shape (n,)
        Labels.
    sample_domain : array-like of shape (n,)
        The site of each row; at least two sites.
    candidates : sequence of str, optional
        Columns that may be suggested. None: all columns.
    sample_weight : array-like of shape (n,), optional
        Weights of the rows.
    level : float
        The significance level. If every column has the same relation to the classes at all sites, the probability that
        any column is suggested is at most this level.
    rehearse : bool
        Whether to compare choices of z (none, the first suggested column, the first two, and so on) by the log loss at
        left-out sites.

    Returns
    -------
    Suggestion
        The suggested columns, the tests, and the log loss of each choice of z.

    Examples
    --------
    >>> suggestion = sw.suggest_confounders(frame[columns], frame["ill"], frame["hospital"])
    >>> suggestion.confounders
    ['age']
    """
    problems = Problems("suggest_confounders")
    frame = X.reset_index(drop=True) if isinstance(X, pd.DataFrame) else _as_frame(X, problems)
    problems.raise_if_any()
    wanted = list(frame.columns) if candidates is None else list(candidates)
    unknown = [name for name in wanted if name not in frame.columns]
    if not 0 < level < 1:
        problems.add(f"level must lie between 0 and 1, got {level}")
    if unknown:
        problems.add(f"candidates must be columns of X; these are not: {unknown}")
    rows, differing = _read(frame, y, sample_domain, sample_weight, problems)
    chosen, tests, adjusted = _select(rows, [differing[name] for name in wanted], level)
    table = pd.DataFrame(
        {
            "statistic": [test.statistic for test in tests],
            "freedom": [test.freedom for test in tests],
            "p_value": [test.p_value for test in tests],
            "adjusted": adjusted,
            "suggested": [j in chosen for j in range(len(wanted))],
        },
        index=pd.Index([str(name) for name in wanted], name="column"),
    ).sort_values("p_value", kind="stable")
    picked = [wanted[j] for j in chosen]
    choices = [picked[:count] for count in range(len(picked) + 1)] if rehearse else []
    return Suggestion([str(name) for name in picked], table, _rehearsal(rows, frame, choices), level)


@dataclass(frozen=True)
class _Rows:
    """Labeled rows: features of all columns (n, D), classes, sites, weights."""

    main: Tensor
    y: Tensor
    site: Tensor
    weight: Tensor
    n_classes: int


def _read(
    frame: pd.DataFrame, y: Any, sample_domain: Any, sample_weight: Any, problems: Problems
) -> tuple[_Rows, dict[Any, Tensor]]:
    """Return the rows, and for each column the features whose effects are tested for differences between sites."""
    classes, target = read_classes(y, problems)
    if len(target) != len(frame):
        problems.add(f"y has {len(target)} row(s), X has {len(frame)}")
    names, site = read_domain(sample_domain, len(frame), problems)
    weight = read_weight(sample_weight, len(frame), problems)
    if len(names) < 2:
        problems.add(f"at least two sites are needed in sample_domain, got {len(names)}")
    problems.raise_if_any()
    parts = {name: column_features(frame[name]) for name in frame.columns}
    main = torch.cat([part for part, _ in parts.values()], dim=1)
    rows = _Rows(main, torch.as_tensor(target, dtype=torch.int64), site, weight, len(classes))
    return rows, {name: differing for name, (_, differing) in parts.items()}


def _select(rows: _Rows, columns: list[Tensor], level: float) -> tuple[list[int], list[ScoreTest], list[float]]:
    """Choose columns in steps: each takes the clearest interaction given those before, until none is significant.

    Return the chosen columns by number, the last test of each column, and its p-value adjusted by Holm's method.
    """
    chosen: list[int] = []
    tests: dict[int, ScoreTest] = {}
    adjusted: dict[int, float] = {}
    while True:
        score_tests = site_interactions(rows.main, columns, rows.y, rows.site, rows.weight, rows.n_classes, chosen)
        open_ = [j for j, test in enumerate(score_tests) if test is not None]
        now = {j: test for j, test in enumerate(score_tests) if test is not None}
        tests |= now
        adjusted |= dict(zip(open_, holm([now[j].p_value for j in open_]), strict=True))
        best = min(open_, key=lambda j: (now[j].p_value, -now[j].statistic), default=None)
        if best is None or adjusted[best] > level or len(chosen) == MOST_CHOSEN:
            break
        chosen.append(best)
    order = range(len(columns))
    return chosen, [tests[j] for j in order], [adjusted[j] for j in order]


def _as_frame(X: Any, problems: Problems) -> pd.DataFrame:
    values = np.asarray(X.cpu() if isinstance(X, Tensor) else X)
    if values.ndim != 2:
        problems.add(f"X must have shape (rows, columns), got shape {values.shape}")
        return pd.DataFrame()
    return pd.DataFrame(values, columns=[f"x{j}" for j in range(values.shape[1])])


def _rehearsal(rows: _Rows, frame: pd.DataFrame, choices: list[list[Any]]) -> pd.DataFrame:
    """Return the table of `Suggestion.rehearsal`: the log loss of each choice of z at left-out sites."""
    lines = []
    for choice in choices:
        losses = [_left_out(rows, frame, choice, site) for site in torch.unique(rows.site).tolist()]
        trained, adapted = np.array([loss for loss in losses if loss is not None]).reshape(-1, 2).T
        name = " + ".join(map(str, choice)) or NOTHING
        lines.append({"z": name, "as_trained": trained.mean(), "adapted": adapted.mean(), "sites": len(adapted)})
    table = pd.DataFrame(lines, columns=["z", "as_trained", "adapted", "sites"]).set_index("z")
    table["gain"] = (table["adapted"].iloc[0] if len(table) else 0.0) - table["adapted"]
    return table


def _left_out(rows: _Rows, frame: pd.DataFrame, choice: list[Any], site: int) -> tuple[float, float] | None:
    """Return the log loss of a left-out site, as trained and adapted; None if the other sites lack a class."""
    inside = rows.site == site
    others, own = (~inside).nonzero().flatten(), inside.nonzero().flatten()
    if len(torch.unique(rows.y[others])) < rows.n_classes:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about z of the left-out site
        schema = Confounders.learn(frame[choice].iloc[others.numpy()]) if choice else None
        codes = rows.main.new_zeros(len(rows.y), 0) if schema is None else schema.encode(frame[choice])[0]
        labeled = LabeledRows(
            X=torch.zeros(len(rows.y), 1), y=rows.y, weight=rows.weight, site=rows.site, codes=codes
        ).take(others)
        options = (rows.n_classes, schema, 0.5, 0)
        models = {
            s: fit_prevalence("auto", labeled.take((labeled.site == s).nonzero().flatten()), *options)
            for s in torch.unique(labeled.site).tolist()
        }
        pooled = fit_prevalence("auto", labeled, *options)
        offset = by_site(labeled.site, models).log_prob(labeled.codes)
        log_ratio = _fit_ratio(rows, others, offset)(rows.main[own])
        estimate = estimate_prevalence(
            log_ratio.numpy(),
            frame[choice].iloc[own.numpy()] if choice else None,
            model="auto" if choice else "constant",
            prior=SitePrior(pooled),
            confounders=schema,
            sample_weight=rows.weight[own].numpy(),
        )
    trained = combine(log_ratio, pooled.log_prob(codes[own])).exp()
    share = rows.weight[own] / rows.weight[own].sum()

    def loss(probability: Tensor) -> float:
        return float(-(share @ probability.gather(1, rows.y[own, None])[:, 0].clamp_min(1e-12).log()))

    return loss(trained), loss(estimate.average(log_ratio, codes[own]))


def _fit_ratio(rows: _Rows, others: Tensor, offset: Tensor) -> Any:
    """Fit log f, linear in the features, by the likelihood of equation 3; `offset` is log g of each row's own site.

    Return a function from features (n, D) to log f (n, K).
    """
    weight = rows.weight[others]
    design = torch.cat([torch.ones(len(rows.y), 1, dtype=torch.float64), rows.main], dim=1)
    penalty = torch.full((design.shape[1],), RIDGE, dtype=torch.float64)
    totals = one_hot(rows.y[others], rows.n_classes).double() * weight[:, None]
    fitted = fit_linear(totals, weight, design[others], penalty, offset).point.reshape(design.shape[1], -1)
    basis = contrasts(rows.n_classes)
    return lambda main: torch.cat([torch.ones(len(main), 1, dtype=torch.float64), main], dim=1) @ fitted @ basis.T
