"""Check coverage and positivity: values of z that did not occur in training, and classes absent in parts of z."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical, Notes
from sitewise.diagnosis.result import Finding

NEW_SHARE = 0.05  # share of rows with values of one variable that did not occur in training; above it: care
MISSING_RISE = 0.2  # increase of the share of rows that lack a variable; above it: care
EXPECTED_ROWS = 10.0  # expected number of rows of a class from which their absence counts
KEPT_SHARE = 0.5  # share of the site's rows at which f is not identified; above it: stop


@dataclass(frozen=True)
class TrainingTable:
    """Counts of training rows by site, class and part of each confounder's range, and the shares of missing values.

    The parts of a categorical variable are its levels. The parts of a continuous variable are the intervals between its
    knots.
    """

    sites: tuple[str, ...]
    counts: tuple[Tensor, ...]  # for each variable (sites, parts, K)
    missing: Tensor  # (V,) share of rows that lack the variable

    @classmethod
    def of(
        cls, codes: Tensor, y: Tensor, site: Tensor, names: tuple[str, ...], n_classes: int, schema: Confounders | None
    ) -> "TrainingTable":
        """Count training rows with these codes of z (n, V), classes (n,) and indices of sites (n,)."""
        counts = []
        for j, variable in enumerate(() if schema is None else schema.variables):
            known = codes[:, j] != variable.missing_code
            part, n_parts = parts_of(codes[known, j], variable.knots if not isinstance(variable, Categorical) else None)
            n_parts = len(variable.levels) if isinstance(variable, Categorical) else n_parts
            place = (site[known] * n_parts + part) * n_classes + y[known]
            flat = torch.bincount(place, minlength=len(names) * n_parts * n_classes)
            counts.append(flat.reshape(len(names), n_parts, n_classes))
        missing = torch.zeros(0).double() if schema is None else schema.missing(codes).double().mean(0)
        return cls(names, tuple(counts), missing)


def parts_of(column: Tensor, knots: tuple[float, ...] | None) -> tuple[Tensor, int]:
    """Return the index of the part in which each code (n,) lies, and the number of parts.

    The parts are the intervals between knots. Without knots they are levels, and the number is returned as 0.
    """
    if knots is None:
        return column.long(), 0
    inner = torch.tensor(knots[1:-1], dtype=torch.float64)
    return torch.bucketize(column, inner), len(inner) + 1


def check_coverage(
    codes: Tensor, weight: Tensor, notes: Notes, table: TrainingTable | None, schema: Confounders | None
) -> Finding:
    """Check for new levels, values outside the range of training, and more missing values than in training."""
    name = "coverage of z"
    if schema is None:
        return Finding(name, "good", 0.0, NEW_SHARE, "The model uses no confounders.")
    n_rows = len(codes)
    new = {v: (notes.unseen.get(v, 0) + notes.clipped.get(v, 0)) / n_rows for v in schema.names}
    here = weight @ schema.missing(codes).double() / weight.sum()
    before = torch.zeros_like(here) if table is None else table.missing
    # An unseen level counts as missing, but it is reported as unseen.
    unseen = torch.tensor([notes.unseen.get(v, 0) / n_rows for v in schema.names]).double()
    rise = dict(zip(schema.names, (here - unseen - before).tolist(), strict=True))
    grave = [v for v in schema.names if new[v] > NEW_SHARE]
    sparse = [v for v in schema.names if rise[v] > MISSING_RISE]
    said = [f"{100 * new[v]:.1f}% of rows have values of {v!r} that training never saw" for v in grave]
    said += [
        f"{v!r} is missing in {100 * (rise[v] + float(b)):.0f}% of rows, {100 * float(b):.0f}% in training"
        for v, b in zip(schema.names, before, strict=True)
        if v in sparse
    ]
    worst = max(new.values())
    sentence = "; ".join(said) + "." if said else f"At most {100 * worst:.1f}% of rows have a value of z that is new."
    advice = "Unseen levels count as missing and values outside the range as its end: check units and spelling of z."
    details = {"new": new, "missing": dict(zip(schema.names, here.tolist(), strict=True)), "missing_rise": rise}
    details["training_missing"] = dict(zip(schema.names, before.tolist(), strict=True))
    return Finding(name, "care" if said else "good", worst, NEW_SHARE, sentence, advice, details=details)


def check_positivity(
    codes: Tensor, weight: Tensor, supported: Tensor, table: TrainingTable | None, schema: Confounders | None
) -> Finding:
    """Check for parts of z in which a class occurs at no training site, or only at some of them."""
    name = "positivity"
    if schema is None or table is None:
        return Finding(name, "good", 0.0, KEPT_SHARE, "The model uses no confounders.")
    kept = float(weight[~supported].sum() / weight.sum())
    nowhere, somewhere = [], []
    for j, (variable, counts) in enumerate(zip(schema.variables, table.counts, strict=True)):
        known = codes[:, j] != variable.missing_code
        part, _ = parts_of(codes[known, j], None if isinstance(variable, Categorical) else variable.knots)
        present = torch.bincount(part, minlength=counts.shape[1]) > 0
        share = counts.sum((0, 1)) / counts.sum().clamp_min(1)
        lonely = (counts == 0) & (counts.sum(2, keepdim=True) * share >= EXPECTED_ROWS) & present[:, None]
        empty = (counts.sum(0) == 0) & (counts.sum((0, 2))[:, None] * share >= EXPECTED_ROWS) & present[:, None]
        nowhere += [part_name(variable, p) for p in empty.any(1).nonzero().flatten().tolist()]
        somewhere += [f"{table.sites[s]} at {part_name(variable, p)}" for s, p in lonely.any(2).nonzero().tolist()]
    advice = "Where a class was never seen f cannot be known: collect labeled rows of it there."
    details = {"nowhere": nowhere, "at_some_sites": somewhere, "share_kept": kept}
    if nowhere or kept > 0:
        severity = "stop" if kept > KEPT_SHARE else "care"
        sentence = (
            f"No training site has every class at {listed(nowhere)}; "
            f"{100 * kept:.1f}% of the rows here keep the training prevalence."
        )
        return Finding(name, severity, kept, KEPT_SHARE, sentence, advice, details=details)
    if somewhere:
        sentence = f"Some training sites lack a class in part of z ({listed(somewhere)}), others have it there."
        return Finding(name, "good", 0.0, KEPT_SHARE, sentence, advice, details=details)
    sentence = "Every class occurs in training wherever this site has rows."
    return Finding(name, "good", 0.0, KEPT_SHARE, sentence, details=details)


def part_name(variable: object, part: int) -> str:
    """Describe a level, or an interval of a number's range."""
    if isinstance(variable, Categorical):
        return f"{variable.name} = {variable.levels[part]!r}"
    name, low, high = (getattr(variable, field) for field in ("name", "low", "high"))
    knots = getattr(variable, "knots", ()) or (1.0, 2.0)
    ends = [low + (knot - 1) * (high - low) for knot in knots[part : part + 2]]
    return f"{name} from {ends[0]:.3g} to {ends[-1]:.3g}"


def listed(names: list[str], at_most: int = 4) -> str:
    """Return a text with the first names and the number of the others."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return (", ".join(names[:at_most]) or "some level") + more
