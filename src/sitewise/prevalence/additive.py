"""g as an additive logistic model: splines of numbers, a column for each category, and columns for missing values.

The B-spline basis is computed with torch, on any device. It has the same values as scikit-learn's SplineTransformer.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.posterior import contrasts
from sitewise.prevalence.base import (
    FLOOR,
    SMOOTHING,
    Aggregate,
    Prevalence,
    aggregate,
    finite,
    masked_copies,
    smooth,
)
from sitewise.prevalence.linear import NEWTON_LIMIT, fit_linear, information

STRENGTHS = (10.0, 1.0, 0.1, 0.01)  # candidates for the ridge penalty
FEW = 16  # features and splines are cached if there are at most so many rows
_latest = threading.local()
MISSING_PENALTY = 0.01  # keeps the coefficient of a missing column finite if no row determines it
DEGREE = 3
Nonzero = tuple[Tensor, list[Tensor]]


def spline_basis(nonzero: Nonzero, n_knots: int) -> Tensor:
    """Return the full basis (n, n_knots + degree - 1), whose rows sum to one, from the result of `nonzero_splines`."""
    place, values = nonzero
    basis = values[0].new_zeros(place.shape[0], n_knots + len(values) - 2)
    columns = place[:, None] + torch.arange(len(values), device=place.device)
    return basis.scatter(1, columns, torch.stack(values, dim=1))


def spline_sum(nonzero: Nonzero, coefficients: Tensor) -> Tensor:
    """Return basis @ coefficients, (n, K), without multiplying by the zeros of the basis."""
    place, values = nonzero
    total = values[0][:, None] * coefficients.index_select(0, place)
    for r in range(1, len(values)):
        total = total + values[r][:, None] * coefficients[r:].index_select(0, place)
    return total


@lru_cache(maxsize=256)
def _windows(knots: tuple[float, ...], degree: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the inner knots (I, 1), and the 2 * degree knots around each interval between knots.

    Do not write to the results: they are cached.
    """
    base = torch.tensor(knots, dtype=dtype, device=device)
    steps = torch.arange(1, degree + 1, dtype=dtype, device=device)
    before = base[0] - steps.flip(0) * (base[1] - base[0])
    after = base[-1] + steps * (base[-1] - base[-2])
    grid = torch.cat([before, base, after])
    return base[1:-1, None], grid[1:-1].unfold(0, 2 * degree, 1).contiguous()


def nonzero_splines(values: Tensor, knots: Sequence[float], degree: int = DEGREE) -> Nonzero:
    """Return for each value the index of the first nonzero basis function, and the degree + 1 nonzero values.

    `values` must lie within the knots. The functions are computed by the recursion of Cox and de Boor. Beyond each end,
    the knots are continued at the spacing of the last two knots at this end.
    """
    inner, windows = _windows(tuple(knots), degree, values.dtype, values.device)
    # The interval of a value is the number of inner knots up to the value; the last interval includes its end.
    place = (values >= inner).sum(dim=0)
    around = windows.index_select(0, place)  # (n, 2 degree) knots
    below = [values - knot for knot in around[:, :degree].unbind(1)][::-1]
    above = [knot - values for knot in around[:, degree:].unbind(1)]
    splines = [torch.ones_like(values)]
    for d in range(1, degree + 1):
        carried = torch.zeros_like(values)
        for r in range(d):
            share = splines[r] / (above[r] + below[d - 1 - r])
            splines[r] = carried + above[r] * share
            carried = below[d - 1 - r] * share
        splines.append(carried)
    return place, splines


def features(codes: Tensor, schema: Confounders) -> Tensor:
    """Return the features of z, (n, D).

    The first column is 1. Then, for each variable, come the columns of its splines or levels, and a column that is 1 if
    its value is missing. Do not write to the result: it may be cached, because a prediction needs it several times.
    """
    computed = _computed(codes, schema)
    if "features" not in computed:
        computed["features"] = _features(codes, schema)
    columns: Tensor = computed["features"]
    return columns


def _features(codes: Tensor, schema: Confounders) -> Tensor:
    blocks = [codes.new_ones(codes.shape[0], 1)]
    for j, variable in enumerate(schema.variables):
        column = codes[:, j]
        missing = column == variable.missing_code
        if isinstance(variable, Categorical):
            levels = torch.arange(len(variable.levels), dtype=codes.dtype, device=codes.device)
            blocks.append((column[:, None] == levels).to(codes.dtype))
        elif variable.knots:
            basis = spline_basis(_splines(codes, schema, j, variable.knots), len(variable.knots))
            blocks.append(basis.masked_fill(missing[:, None], 0.0))
        blocks.append(missing.to(codes.dtype)[:, None])
    return torch.cat(blocks, dim=1)


def _splines(codes: Tensor, schema: Confounders, j: int, knots: Sequence[float]) -> Nonzero:
    computed = _computed(codes, schema)
    if j not in computed:
        computed[j] = nonzero_splines(codes[:, j].clamp(1.0, 2.0), knots)
    splines: Nonzero = computed[j]
    return splines


def _computed(codes: Tensor, schema: Confounders) -> dict[Any, Any]:
    """Return the cache for these rows; it is kept for the latest rows only, and only if they are few."""
    if len(codes) > FEW or torch.jit.is_tracing() or codes.is_inference():  # type: ignore[attr-defined]
        return {}
    rows, version, of, computed = getattr(_latest, "entry", (None, 0, None, {}))
    if rows is not codes or version != codes._version or of != schema:
        computed = {}
        _latest.entry = codes, codes._version, schema, computed
    return computed


def logits(codes: Tensor, schema: Confounders, coefficients: Tensor) -> Tensor:
    """Return features @ coefficients, (n, K); only the nonzero features of each row are used."""
    total = coefficients[0].expand(codes.shape[0], -1)
    start = 1
    for j, (variable, end) in enumerate(zip(schema.variables, missing_features(schema), strict=True)):
        column, own = codes[:, j], coefficients[start : end + 1]
        if isinstance(variable, Categorical):
            total = total + own.index_select(0, column.long())
        else:
            missing = (column == variable.missing_code)[:, None]
            known = spline_sum(_splines(codes, schema, j, variable.knots), own[:-1]) if variable.knots else 0.0
            total = total + torch.where(missing, own[-1], known)
        start = end + 1
    return total


def missing_features(schema: Confounders) -> list[int]:
    """Return the position in `features` of each variable's missing column."""
    positions, end = [], 1
    for variable in schema.variables:
        if isinstance(variable, Categorical):
            end += len(variable.levels) + 1
        else:
            end += (len(variable.knots) + DEGREE - 1 if variable.knots else 0) + 1
        positions.append(end - 1)
    return positions


@dataclass(frozen=True)
class AdditivePrevalence:
    """g of an additive model: logits are an intercept plus a term for each variable, plus log g of `centre` if given.

    For a row with all values missing, g is exactly the site's marginal.
    """

    schema: Confounders
    coefficients: Tensor  # (D, K), each row sums to zero
    log_marginal: Tensor  # (K,)
    centre: Prevalence | None = None
    name: str = "additive"

    def features(self, codes: Tensor) -> Tensor:
        """Return the features (n, D) of which the logits are a linear function."""
        return features(codes, self.schema)

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return log g at rows of codes, (n, K)."""
        log_odds = logits(codes, self.schema, self.coefficients)
        if self.centre is not None:
            log_odds = log_odds + self.centre.log_prob(codes)
        all_missing = self.schema.missing(codes).all(dim=1, keepdim=True)
        return torch.where(all_missing, self.log_marginal, torch.log_softmax(log_odds, dim=1).clamp_min(FLOOR))


def ridge(strength: float, n_features: int, device: torch.device | None = None, *, free_level: bool = True) -> Tensor:
    """Return the penalty on each of D features, (D,): `strength`, but zero for the intercept if `free_level`."""
    penalty = torch.full((n_features,), float(strength), dtype=torch.float64, device=device)
    if free_level:
        penalty[0] = 0.0
    return penalty


def fit_additive(
    targets: Tensor,
    codes: Tensor,
    weight: Tensor,
    schema: Confounders,
    *,
    strength: float | None = None,
    knockout: float = 0.5,
    smoothing: float = SMOOTHING,
    centre: Prevalence | None = None,
) -> AdditivePrevalence:
    """Fit to soft labels (n, K) by penalized maximum likelihood.

    With `strength=None`, the strength is chosen by empirical Bayes. All terms are fitted to the rows first. If a
    variable is never missing in the rows, the coefficients of its missing column are then fitted to copies of the rows
    with parts of z hidden (equation 9).
    """
    data = aggregate(smooth(targets, weight, smoothing), codes, weight)
    design = features(data.codes, schema)
    offset = torch.zeros_like(data.totals) if centre is None else centre.log_prob(data.codes)
    flat = _fit_coefficients(data, design, offset, STRENGTHS if strength is None else (strength,))
    coefficients = flat.reshape(design.shape[1], -1) @ contrasts(targets.shape[1], targets.device).T
    marginal = finite((data.totals.sum(0) / data.weight.sum()).log())
    fitted = AdditivePrevalence(schema, coefficients, marginal, centre)
    return fit_missing_columns(fitted, data, knockout)


def _fit_coefficients(data: Aggregate, design: Tensor, offset: Tensor, strengths: tuple[float, ...]) -> Tensor:
    """Return the coefficients (P,) at the strength with the largest marginal likelihood (empirical Bayes).

    With more than `NEWTON_LIMIT` coefficients, only one strength is used.
    """
    n_features, n_classes = design.shape[1], data.totals.shape[1]
    if n_features * (n_classes - 1) > NEWTON_LIMIT:
        strengths = strengths[len(strengths) // 2 :][:1]
    flat, fits = None, []
    for strength in strengths:
        penalty = ridge(strength, n_features, design.device)
        flat = fit_linear(data.totals, data.weight, design, penalty, offset, start=flat).point
        if len(strengths) > 1:
            fits.append((_log_evidence(data, design, offset, penalty, flat), flat))
    assert flat is not None
    return max(fits, key=lambda pair: pair[0])[1] if fits else flat


def _log_evidence(data: Aggregate, design: Tensor, offset: Tensor, penalty: Tensor, flat: Tensor) -> float:
    """Return the log marginal likelihood of the labels under the ridge's normal prior, by Laplace's approximation."""
    basis = contrasts(data.totals.shape[1], flat.device)
    log_g = torch.log_softmax(offset + design @ flat.reshape(design.shape[1], -1) @ basis.T, dim=1)
    wide = penalty[:, None].expand(-1, basis.shape[1]).reshape(-1)
    curvature = information(design, data.weight, log_g.exp()) + torch.diag(wide)
    log_prior = 0.5 * (wide[wide > 0].log().sum() - wide @ flat**2)
    return float((data.totals * log_g).sum() + log_prior - 0.5 * torch.linalg.slogdet(curvature).logabsdet)


def fit_missing_columns(model: AdditivePrevalence, data: Aggregate, knockout: float) -> AdditivePrevalence:
    """Fit the coefficients that apply where a variable is missing, for variables that are never missing in `data`.

    They are fitted to copies of the rows in which parts of z are hidden; the other coefficients are not changed.
    """
    never = ~model.schema.missing(data.codes[data.weight > 0]).any(dim=0)
    columns = [c for c, unseen in zip(missing_features(model.schema), never.tolist(), strict=True) if unseen]
    copies = masked_copies(data, model.schema, knockout)
    kept = ~model.schema.missing(copies.codes).all(dim=1) & (copies.weight > 0)  # none if knockout is zero
    if not columns or not kept.any():
        return model
    codes, weight, totals = copies.codes[kept], copies.weight[kept], copies.totals[kept]
    design = features(codes, model.schema)
    fixed = model.coefficients.clone()
    fixed[columns] = 0.0
    offset = design @ fixed
    if model.centre is not None:
        offset = offset + model.centre.log_prob(codes)
    penalty = torch.full((len(columns),), MISSING_PENALTY, dtype=codes.dtype, device=codes.device)
    flat = fit_linear(totals, weight, design[:, columns], penalty, offset).point
    fixed[columns] = flat.reshape(len(columns), -1) @ contrasts(totals.shape[1], totals.device).T
    return replace(model, coefficients=fixed)
