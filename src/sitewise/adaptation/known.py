"""Read the caller's knowledge of g: a prior, a start, or a known prevalence (numbers, or a table by strata of z)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import logit
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.posterior.known import Known
from sitewise.adaptation.posterior.points import Contradiction, Strata
from sitewise.adaptation.rows import Rows
from sitewise.arrays import Problems, align_classes, did_you_mean, read_probability_vector, shortened
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical, Continuous
from sitewise.prevalence import SitePrior
from sitewise.prevalence.base import ConstantPrevalence, Prevalence, finite, is_constant, on_device

Array = np.ndarray[Any, Any]
CONTRADICTED = 0.01  # p-value below which rows and a known prevalence contradict each other
NORMAL_95 = 3.919927969080108  # width of a normal 95% interval, in standard deviations
PREVALENCE, LOW, HIGH = "prevalence", "low", "high"
BAND = re.compile(r"^\s*(-?\d+(?:\.\d+)?)\s*(?:-|–|to)\s*(-?\d+(?:\.\d+)?)\s*$")
BRACKETS = re.compile(r"^\s*([\[(])\s*(-?[\d.]+|-inf)\s*,\s*(-?[\d.]+|inf)\s*([\])])\s*$")
BELOW = re.compile(r"^\s*(<=?)\s*(-?\d+(?:\.\d+)?)\s*$")
ABOVE = re.compile(r"^\s*(>=?)?\s*(-?\d+(?:\.\d+)?)\s*(\+)?\s*$")

FORMS = (
    "known_prevalence must be a probability between 0 and 1 (two classes: of the second), (value, low, high), one "
    "probability a class that sum to one, a dict of either by class, or a table by strata of z, got {value!r}"
)
SENTENCE = (
    "The known prevalence of {name} ({share}) and its rows contradict each other (p = {p:.2g}): without it the "
    "estimate is {without}. Either it is that of other patients, or f does not hold here"
)
OTHER_SCHEMA = (
    "{name} was estimated with other confounders (kinds, levels or ranges) than those given: "
    "leave confounders out, or estimate {name} with confounders= the same"
)


def contradiction_sentence(against: Contradiction, classes: Any = None) -> str:
    """Return a sentence that compares a known prevalence with the rows.

    With two classes it names the second class, with more the class with the largest difference.
    """
    mean, low, high = against.without
    k = int((torch.logit(against.share) - torch.logit(mean.clamp(1e-9, 1 - 1e-9))).abs().argmax())
    k = len(mean) - 1 if len(mean) == 2 else k
    label = k if classes is None else classes[k]
    without = f"{float(mean[k]):.3g} ({float(low[k]):.3g} to {float(high[k]):.3g})"
    share = f"P({label}) = {float(against.share[k]):.3g}"
    return SENTENCE.format(name=against.name, share=share, p=against.p_value, without=without)


def read_known(
    value: Any, names: Sequence[Any], schema: Confounders | None, problems: Problems, device: torch.device | None = None
) -> Known | None:
    """Read a known prevalence; `names` are the names of the classes, and strata are read with the schema of z."""
    if value is None or isinstance(value, Known):
        return value
    if isinstance(value, pd.DataFrame):
        return _read_table(value, list(names), schema, problems, device)
    shares = _read_shares(value, list(names), problems)
    if shares is None:
        return None
    share, error = (torch.tensor(part[None], device=device) for part in shares)
    return Known(share, error)


def _read_shares(value: Any, names: list[Any], problems: Problems) -> tuple[Array, Array] | None:
    """Read P(y), (K,), and the standard deviations of its log-odds, (K,); None if they are not valid."""
    value = value.to_dict() if isinstance(value, pd.Series) else value
    unknown = [key for key in value if key not in names] if isinstance(value, Mapping) else []
    if unknown:
        problems.add(f"known_prevalence: no class is {unknown[0]!r}{did_you_mean(unknown[0], names)}; known: {names}")
        return None
    shares, errors = np.array([_entry(entry) for entry in _entries(value, names)]).reshape(-1, 2).T
    legal = len(shares) == len(names) and bool(((shares > 0) & (shares < 1) & (errors >= 0)).all())
    if not legal or abs(shares.sum() - 1.0) > 1e-6:
        problems.add(FORMS.format(value=value))
        return None
    return shares / shares.sum(), errors


def _entries(value: Any, names: list[Any]) -> list[Any]:
    """Return the entry of each class; with two classes, the entry of one class determines the other."""
    if isinstance(value, Mapping):
        entries = [value.get(name) for name in names]
        if len(names) == 2 and entries.count(None) == 1:
            return [_mirrored(other) if own is None else own for own, other in (entries, entries[::-1])]
        return entries
    if len(names) == 2 and (isinstance(value, Real) or (isinstance(value, tuple) and len(value) == 3)):
        return [_mirrored(value), value]
    return list(value) if isinstance(value, list | tuple | np.ndarray) or hasattr(value, "tolist") else [value]


def _mirrored(value: Any) -> Any:
    """Return the entry of the other of two classes: 1 - value, and bounds in reverse."""
    try:
        return tuple(1.0 - part for part in (value[0], value[2], value[1])) if isinstance(value, tuple) else 1.0 - value
    except (TypeError, IndexError):
        return None


def _entry(value: Any) -> tuple[float, float]:
    """Read a probability and the standard deviation of its log-odds; both are NaN if the entry is not valid."""
    wrong = (float("nan"), float("nan"))
    try:
        parts = [float(part) for part in value] if isinstance(value, tuple | list) else [float(value)]
    except (TypeError, ValueError):
        return wrong
    if len(parts) == 1:
        return parts[0], 0.0
    if len(parts) != 3 or not 0.0 < parts[1] <= parts[0] <= parts[2] < 1.0:
        return wrong
    return parts[0], float(logit(parts[2]) - logit(parts[1])) / NORMAL_95


def _read_table(
    table: pd.DataFrame,
    names: list[Any],
    schema: Confounders | None,
    problems: Problems,
    device: torch.device | None,
) -> Known | None:
    """Read a table with one row for each stratum: columns of z, P(y) and its bounds."""
    table = table.set_axis([str(column) for column in table.columns], axis=1)
    columns = _share_columns(table, names)
    z = [] if schema is None else [variable for variable in schema.variables if variable.name in table]
    used = {"", *(variable.name for variable in z)}.union(*columns)
    if schema is None or not columns or not z or not used.issuperset(table.columns) or not len(table):
        has = () if schema is None else schema.names
        problems.add(
            f"a table of known prevalence needs rows, columns of z (of {list(has)}) and {_wanted(names)}, "
            f"got {list(table.columns)}"
        )
        return None
    rows = [row for _, row in table.iterrows()]
    read = [_read_shares(_by_class(row, columns, names), names, problems) for row in rows]
    strata = _read_strata(table, z, schema, problems)
    problems.raise_if_any()
    assert strata is not None
    titles = tuple(", ".join(f"{variable.name} {row[variable.name]}" for variable in z) for row in rows)
    share, error = (torch.tensor(np.stack(part), device=device) for part in zip(*filter(None, read), strict=True))
    return Known(share, error, Strata(strata.low.to(device), strata.high.to(device)), titles)


def _by_class(row: pd.Series, columns: list[tuple[str, str, str]], names: list[Any]) -> dict[Any, Any]:
    """Return the entries of a row by class; if there are fewer entries than classes, they are of the last classes."""
    entries = [tuple(row[part] for part in own) if own[1] else row[own[0]] for own in columns]
    return dict(zip(names[-len(entries) :], entries, strict=True))


def _wanted(names: list[Any]) -> str:
    if len(names) == 2:
        return f"'{PREVALENCE}' (of {names[1]!r}), with '{LOW}' and '{HIGH}' where it is uncertain"
    return f"a column for each class {names}, with '<class>_{LOW}' and '<class>_{HIGH}' where it is uncertain"


def _share_columns(table: pd.DataFrame, names: list[Any]) -> list[tuple[str, str, str]]:
    """Return the columns of each class: of its share, and of its bounds (empty names without bounds).

    The list is empty if a column of a share is not in the table.
    """
    if len(names) == 2 and PREVALENCE in table:
        wanted = [(PREVALENCE, LOW, HIGH)]
    else:
        wanted = [(f"{name}", f"{name}_{LOW}", f"{name}_{HIGH}") for name in names]
    if not all(share in table for share, _, _ in wanted):
        return []
    return [own if own[1] in table and own[2] in table else (own[0], "", "") for own in wanted]


@dataclass(frozen=True)
class Band:
    """A range of numbers as the caller wrote it; whether its end is included can depend on the other ranges."""

    low: float
    high: float
    whole: bool  # written as two whole numbers, such as "40-59"

    def end(self, starts: set[float]) -> float:
        """Return the exclusive end: "40-59" ends at 60, or at 59 if another band starts at 59."""
        return self.high + 1.0 if self.whole and self.high not in starts else self.high


def read_band(value: Any) -> Band | None:
    """Read a pandas Interval, or text such as "40-59", "<40", "80+", "[40, 60)"; return None for anything else."""
    if isinstance(value, pd.Interval):
        low = np.nextafter(float(value.left), np.inf) if value.open_left else float(value.left)
        high = np.nextafter(float(value.right), np.inf) if value.closed_right else float(value.right)
        return Band(float(low), float(high), whole=False)
    text = str(value)
    if match := BAND.match(text):
        low, high = float(match[1]), float(match[2])
        return Band(low, high, low.is_integer() and high.is_integer())
    if match := BRACKETS.match(text):
        low, high = float(match[2]), float(match[3])
        low = float(np.nextafter(low, np.inf)) if match[1] == "(" else low
        return Band(low, float(np.nextafter(high, np.inf)) if match[4] == "]" else high, whole=False)
    if match := BELOW.match(text):
        high = float(match[2])
        return Band(-np.inf, float(np.nextafter(high, np.inf)) if match[1] == "<=" else high, whole=False)
    if (match := ABOVE.match(text)) and (match[1] or match[3]):
        low = float(match[2])
        return Band(float(np.nextafter(low, np.inf)) if match[1] == ">" else low, np.inf, whole=False)
    return None


def _read_strata(table: pd.DataFrame, z: list[Any], schema: Confounders, problems: Problems) -> Strata | None:
    """Return the strata of the table's rows: for each row, the range of codes of every variable."""
    low = torch.full((len(table), len(schema.variables)), -torch.inf, dtype=torch.float64)
    high = torch.full_like(low, torch.inf)
    for variable in z:
        j, column = schema.names.index(variable.name), table[variable.name]
        if isinstance(variable, Categorical):
            code_of = {_text(level): float(code) for code, level in enumerate(variable.levels)}
            unknown = [value for value in column.tolist() if _text(value) not in code_of]
            if unknown:
                problems.add(
                    f"known_prevalence: {variable.name!r} has no level {unknown[0]!r}: {list(variable.levels)}"
                )
                continue
            codes = torch.tensor([code_of[_text(value)] for value in column.tolist()], dtype=torch.float64)
            low[:, j], high[:, j] = codes - 0.5, codes + 0.5
            continue
        bands = [read_band(value) for value in column]
        if None in bands:
            wrong = column.iloc[bands.index(None)]
            problems.add(
                f"known_prevalence: {variable.name!r} is a number, and {wrong!r} is no band of it; write '40-59', "
                "'<40', '80+', '[40, 60)', or use pandas intervals"
            )
            continue
        starts = {band.low for band in bands if band is not None}
        for number, band in enumerate(bands):
            assert band is not None
            low[number, j], high[number, j] = (_code(variable, at) for at in (band.low, band.end(starts)))
    return Strata(low, high)


def _text(level: Any) -> str:
    """Convert a category to text, so that 1, 1.0 and "1" are the same category."""
    return str(int(level)) if isinstance(level, float) and level.is_integer() else str(level)


def _code(variable: Continuous, value: float) -> float:
    """Return the code of a bound of a stratum.

    Above the learned range it is infinite. Up to the lower end of the range it is between the code of "missing" and 1.
    """
    if value > variable.high:
        return float("inf")
    if value <= variable.low:
        return 0.5 * (1.0 + variable.missing_code)
    return 1.0 + (value / 2 - variable.low / 2) / (variable.high / 2 - variable.low / 2)


def of_rows(known: Known, evidence: Evidence, problems: Problems) -> Known:
    """Keep the strata of a table that have rows at this site; overlapping strata are a problem."""
    if known.strata is None:
        return known
    strata = known.strata

    def held(rows: Rows) -> tuple[Tensor, ...]:
        inside = strata.holds(rows.codes)
        return rows.cell_weight @ inside, (inside.sum(1) > 1).sum()

    sums, overlaps = evidence.rows.total(held) or (torch.zeros_like(known.share[:, 0]), torch.zeros(()))
    if overlaps:
        problems.add("known_prevalence: strata must not overlap, and some rows are in two of them")
    there = (sums > 0).nonzero().flatten()
    if not len(there):
        problems.add("known_prevalence: no row of the site is in any stratum of the table")
    return Known(
        known.share[there],
        known.error[there],
        Strata(strata.low[there], strata.high[there]),
        tuple(known.names[number] for number in there.tolist()),
    )


@dataclass(frozen=True)
class Belief:
    """A prior or a start, as the caller gave it."""

    level: Tensor  # (K,) the constant g, or P(y) of a g(z)
    model: Prevalence | None = None  # g(z), if it depends on z
    schema: Confounders | None = None  # the schema of z, if there is a g(z)
    site_prior: SitePrior | None = None  # the whole prior, if a `SitePrior` was given

    def prior(self) -> SitePrior:
        """Return the prior of a new site's g; K probabilities or another estimate get the default scales."""
        source = ConstantPrevalence(finite(self.level.log())) if self.model is None else self.model
        return SitePrior(source) if self.site_prior is None else replace(self.site_prior, prevalence=source)

    def level_at(self, evidence: Evidence) -> Tensor:
        """Return the mean of g over the site's rows, (K,)."""
        if self.model is None or not evidence.seen_weight:
            return self.level
        model = self.model
        return evidence.mean(lambda codes: model.log_prob(codes).exp())

    def centre_at(self, evidence: Evidence) -> Prevalence:
        """Return the g to which a g(z) at this site is shrunk."""
        if self.model is None or not evidence.seen_weight:
            return ConstantPrevalence(finite(self.level.log()))
        return self.model


def read_belief(
    value: Any, name: str, n_classes: int, columns: Any, device: torch.device, problems: Problems
) -> Belief | None:
    """Read K probabilities, another estimate or a `SitePrior`; `columns` (or None) are class labels for a Series."""
    if value is None:
        return None
    if isinstance(value, SitePrior):
        belief = read_belief(value.prevalence, name, n_classes, columns, device, problems)
        return None if belief is None else replace(belief, site_prior=value)
    model = getattr(value, "prevalence", value)
    if isinstance(model, Prevalence):
        schema = getattr(model, "schema", getattr(value, "confounders", None))
        return _read_model(on_device(model, device), schema, name, n_classes, device, problems)
    try:
        return Belief(read_probability_vector(align_classes(value, columns), n_classes, device))
    except (TypeError, ValueError) as error:
        problems.add(f"{name} must be {n_classes} probabilities or an estimate, got {shortened(value)} ({error})")
        return None


def _read_model(
    model: Prevalence,
    schema: Confounders | None,
    name: str,
    n_classes: int,
    device: torch.device,
    problems: Problems,
) -> Belief | None:
    nothing = torch.zeros(0, dtype=torch.float64, device=device) if schema is None else schema.missing_codes(device)
    level = model.log_prob(nothing[None])[0].exp()
    if len(level) != n_classes:
        problems.add(f"{name} is an estimate for {len(level)} classes, log_ratio has {n_classes}")
        return None
    if is_constant(model) or schema is None:
        return Belief(level)
    return Belief(level, model, schema)


def shared_schema(
    confounders: Confounders | None, prior: Belief | None, start: Belief | None, problems: Problems
) -> Confounders | None:
    """Return the first schema of Z that is not None: `confounders`, that of `prior`, or that of `start`.

    A `prior` or `start` that does not depend on z has no schema. Other schemas must equal the returned one; if one does
    not, this is added to `problems`.
    """
    for name, belief in (("prior", prior), ("start", start)):
        if belief is None or belief.schema is None:
            continue
        if confounders is not None and confounders != belief.schema:
            problems.add(OTHER_SCHEMA.format(name=name))
        confounders = confounders or belief.schema
    return confounders
