"""`Evidence`: a site's unlabeled rows, checked and arranged for estimation."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from sitewise.adaptation.rows import Rows, Stream, know_labels, moments, stretch_size, to_ratio
from sitewise.arrays import Problems, distinct_rows, read_groups, read_labels, read_weight
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Notes
from sitewise.posterior import Moments

SAMPLE = 2**15  # largest number of rows in the sample of a site
FEATURES = 16  # chunks of rows with z are cut as if each row had at least so many features

At = Callable[[Tensor], Tensor]  # g (U, K) at U rows of codes (U, V)
T = TypeVar("T")


def _sum_of_logs(rows: Rows, mixed: Tensor) -> Tensor:
    """Return Σ_n w_n log m_n, (B,), for m (n, B)."""
    logs = mixed.clamp_min(1e-300).log_()
    return logs.sum(0) if rows.weight is None else rows.weight @ logs


def _grams(values: Callable[[T], tuple[Rows, Tensor]], n_names: int, parts: Iterable[T]) -> tuple[Tensor, ...]:
    """Return Σ w s sᵀ of the rows' values s, (P, P), and with groups also Σ S Sᵀ of their sums S = Σ w s."""
    plain, sums = torch.zeros(()), torch.zeros(())
    for rows, own in map(values, parts):
        weighted = rows.weighted(own)
        plain = plain + own.T @ weighted
        if n_names:
            sums = sums if sums.ndim else own.new_zeros(n_names, own.shape[1])
            assert rows.groups is not None
            sums.index_add_(0, rows.groups, weighted)
    if not plain.ndim:
        return ()
    return (plain, sums.T @ sums) if n_names else (plain,)


@dataclass(frozen=True)
class Groups:
    """The number of groups of rows (for example, patients), and their mean size."""

    n_names: int  # groups are numbered 0..n_names - 1
    count: int  # number of groups with rows of positive weight
    mean_size: float  # size of a row's group, averaged over rows

    @property
    def factor(self) -> float:
        """G / (G - 1), the correction of sums of squares for the number of groups G; zero if there is only one."""
        return self.count / (self.count - 1) if self.count > 1 else 0.0


@dataclass(frozen=True)
class Evidence:
    """A site's rows of positive weight; rows with all z missing ("blank" rows) are stored separately.

    Shapes: K classes; V variables of z; U distinct z; B constant g that are evaluated together.
    """

    rows: Stream[Rows]  # with at least one known value of z
    blank: Stream[Rows]  # with all z missing
    everything: Stream[Rows]  # all rows, without z
    sample: Rows  # an evenly spaced sample, without z
    n_rows: int
    n_classes: int
    seen_weight: float
    blank_weight: float
    groups: Groups | None
    schema: Confounders | None
    device: torch.device
    weakest_ridge: float = 0.0  # smallest ridge that is tried, if categories with few rows are kept
    label_weight: float = 0.0  # of labeled rows; each is two rows in `rows`, of opposite weights that sum to zero

    @property
    def in_memory(self) -> bool:
        """Whether all rows are in memory."""
        return self.everything.in_memory

    @property
    def total_weight(self) -> float:
        """The weight of all rows and labels."""
        return self.seen_weight + self.label_weight + self.blank_weight

    def mean(self, at: At) -> Tensor:
        """The site's mean of g over rows with z, (K,)."""
        (total,) = self.rows.total(lambda rows: (rows.cell_weight @ at(rows.codes),))
        return total / self.seen_weight

    def log_likelihood(self, at: At) -> float:
        """Return L(g), equation 7; for a blank row, g is the site's mean of g (equation 9)."""
        totals = self.rows.total(lambda rows: (moments(rows, at(rows.codes), 0).log_likelihood.sum(),))
        total = float(totals[0]) if totals else 0.0
        if self.blank_weight:
            total += float(self.blank_moments(self.mean(at), 0).log_likelihood)
        return total

    def log_likelihoods(self, prevalence: Tensor) -> Tensor:
        """Return L, (B,), of many constant g (B, K) in one pass over the rows; for three classes or more."""
        return self.everything.total(lambda rows: (_sum_of_logs(rows, rows.ratio.double() @ prevalence.T),))[0]

    def log_mixings(self, prevalence: Tensor, labels: Tensor, keep: Tensor, add: Tensor) -> Tensor:
        """Return L, (B,), of mixtures of a constant g (K,) and one class, in one pass; for three classes or more.

        A mixture is `keep` times the constant g, plus `add` at the class in `labels`; all three have shape (B,).
        """

        def mixed(rows: Rows) -> Tensor:
            ratio = rows.ratio.double()
            return (ratio @ prevalence)[:, None] * keep + ratio[:, labels] * add

        return self.everything.total(lambda rows: (_sum_of_logs(rows, mixed(rows)),))[0]

    def blank_moments(self, mean: Tensor, order: int) -> Moments:
        """Return the moments of blank rows at the mean of g (K,)."""

        def sums(rows: Rows) -> tuple[Tensor, ...]:
            own = moments(rows, mean[None], order)
            return own.weight, *own.sums

        return Moments(mean[None], *self.blank.total(sums))

    def gram(self, stream: Stream[T], values: Callable[[T], tuple[Rows, Tensor]]) -> tuple[Tensor, Tensor | None]:
        """Return Σ w s sᵀ of the rows' values s (n, P), and G / (G - 1) Σ S Sᵀ of their sums S = Σ w s in G groups.

        Both have shape (P, P). The second is None if there are no groups, or only one.
        """
        factor, n_names = (self.groups.factor, self.groups.n_names) if self.groups else (0.0, 0)
        plain, *grouped = stream.sums(partial(_grams, values, n_names if factor else 0)) or (torch.zeros(()),) * 2
        return plain, factor * grouped[0] if factor else None

    def says_nothing(self) -> bool:
        """Return whether f is not informative: in every row it is the same for all classes."""

        def speaks(rows: Rows) -> bool:
            ratio = rows.ratio
            width = ratio.abs() if ratio.shape[1] == 1 else ratio.amax(1) - ratio.amin(1)
            return bool((width >= 1e-12).any())

        return not (speaks(self.sample) or self.everything.any(speaks))

    def of_sample(self, *, few: bool = False) -> "Evidence":
        """Return a sample of the rows, without z; with `few`, a smaller sample."""
        step = -(-len(self.sample) // few_rows(self.n_classes)) if few else 1
        sample = self.sample.take(0, len(self.sample), step)
        only = Stream([sample])
        return replace(
            self.without_confounders(),
            rows=only,
            everything=only,
            sample=sample,
            n_rows=len(sample),
            seen_weight=float(sample.cell_weight.sum()),
            groups=None,
        )

    def without_confounders(self) -> "Evidence":
        """Return the same rows without z, for a constant g."""
        nothing: Stream[Rows] = Stream(())
        return replace(
            self,
            rows=self.everything,
            blank=nothing,
            seen_weight=self.total_weight,
            blank_weight=0.0,
            schema=None,
        )


def read_evidence(
    matrix: Tensor,
    sample_confounder: Any,
    problems: Problems,
    *,
    schema: Confounders | None,
    categorical: Any,
    y: Any,
    sample_weight: Any,
    groups: Any,
) -> tuple[Evidence, Notes]:
    """Check and arrange rows with log-ratios (n, K); one error lists all problems, including earlier ones."""
    n_rows, n_classes = matrix.shape
    weight = None if sample_weight is None else read_weight(sample_weight, n_rows, problems, matrix.device)
    labels = None if y is None else read_labels(y, n_rows, n_classes, problems)
    group = read_groups(groups, n_rows, problems, matrix.device)
    schema, codes, notes = _read_confounders(sample_confounder, schema, categorical, matrix, problems)
    problems.raise_if_any()
    seen, blank = lay_out(read_ratio(matrix, labels), weight, group, codes, schema)
    named = None if group is None else count_groups(group, weight)
    return put_together(Stream(seen), Stream(blank), named, schema, n_classes, matrix.device), notes


def read_ratio(matrix: Tensor, labels: Any) -> Tensor:
    """Convert log f to f as it is stored in `Rows`; for a row with known label, f is one-hot (equation 7b)."""
    ratio = to_ratio(matrix)
    if labels is None:
        return ratio
    classes = torch.tensor(labels, device=matrix.device)
    rows = (~classes.isnan()).nonzero().flatten()
    know_labels(ratio, rows, classes[rows].long())
    return ratio


def _read_confounders(
    Z: Any, schema: Confounders | None, categorical: Any, matrix: Tensor, problems: Problems
) -> tuple[Confounders | None, Tensor | None, Notes]:
    check_categorical(Z is not None, schema, categorical, problems)
    if Z is None:
        return schema, None, Notes()
    try:
        schema = Confounders.learn(Z, categorical) if schema is None else schema
        codes, notes = schema.encode(Z, matrix.device)
    except ValueError as error:
        problems.add(str(error))
        return schema, None, Notes()
    if len(codes) != len(matrix):
        problems.add(f"sample_confounder has {len(codes)} row(s), log_ratio has {len(matrix)}")
    return schema, codes, notes


def check_categorical(has_z: bool, schema: Confounders | None, categorical: Any, problems: Problems) -> None:
    """Add a problem if `categorical` is given, but there is no z or its schema is known already."""
    if categorical is not None and not has_z:
        problems.add("categorical is given without sample_confounder")
    elif categorical is not None and schema is not None:
        problems.add(
            "categorical is given, but confounders (or the schema of the prior or start estimate) already defines "
            "which variables are categorical: leave one of them out"
        )


def lay_out(
    ratio: Tensor,
    weight: Tensor | None,
    groups: Tensor | None,
    codes: Tensor | None,
    schema: Confounders | None,
) -> tuple[list[Rows], list[Rows]]:
    """Drop rows of weight zero, separate blank rows, and sort the others by z; return chunks of both kinds."""
    whole = Rows(ratio, weight, ratio.new_zeros(1, 0, dtype=torch.float64), None, groups)
    counted = torch.ones(len(ratio), dtype=torch.bool, device=ratio.device) if weight is None else weight > 0
    if schema is None or codes is None:
        return [], _cut(whole if weight is None else whole.pick(counted))
    hidden = schema.missing(codes).all(dim=1)
    seen = (counted & ~hidden).nonzero().flatten()
    distinct, cell = distinct_rows(codes[seen])
    blank = counted & hidden
    outside = _cut(whole.pick(blank)) if blank.any() else []
    if len(distinct) == len(seen):
        return _cut_with_codes(whole.pick(seen), codes[seen], None), outside
    cell, order = torch.sort(cell, stable=True)
    return _cut_with_codes(whole.pick(seen[order]), distinct, cell), outside


def _cut(whole: Rows) -> list[Rows]:
    """Cut rows without z into chunks."""
    size = stretch_size(whole.ratio, whole.ratio.shape[1])
    return [whole.take(start, start + size) for start in range(0, len(whole), size)]


def _cut_with_codes(whole: Rows, codes: Tensor, cell: Tensor | None) -> list[Rows]:
    """Cut rows into chunks with their codes.

    Without `cell`, `codes` has an entry for each row. Otherwise rows are sorted by `cell`, their index into `codes`.
    """
    stretches, size = [], stretch_size(whole.ratio, max(FEATURES, whole.ratio.shape[1]))
    for start in range(0, len(whole), size):
        place = slice(start, start + size)
        part = whole.pick(place)
        if cell is None:
            stretches.append(replace(part, codes=codes[place]))
            continue
        first, last = int(cell[place][0]), int(cell[place][-1])
        local = cell[place] - first if last > first else None
        stretches.append(replace(part, codes=codes[first : last + 1], cell=local))
    return stretches


def put_together(
    rows: Stream[Rows],
    blank: Stream[Rows],
    groups: Groups | None,
    schema: Confounders | None,
    n_classes: int,
    device: torch.device,
) -> Evidence:
    """Make evidence from chunks that are all in memory."""
    everything = _without_codes([*rows.kept, *blank.kept])
    return Evidence(
        rows,
        blank,
        Stream(everything),
        _sample(everything),
        n_rows=sum(map(len, everything)),
        n_classes=n_classes,
        seen_weight=sum(float(part.cell_weight.sum()) for part in rows.kept),
        blank_weight=sum(float(part.cell_weight.sum()) for part in blank.kept),
        groups=groups,
        schema=schema,
        device=device,
    )


def _without_codes(stretches: list[Rows]) -> list[Rows]:
    """Return the same rows without z."""
    return [part.without_codes() for part in stretches]


def _sample(everything: list[Rows]) -> Rows:
    """Return every n-th row, as one chunk; n is chosen by `wanted_sample`."""
    n_rows = sum(map(len, everything))
    step = -(-n_rows // wanted_sample(n_rows, everything[0].n_classes))
    return join([part.take(0, len(part), step) for part in everything])


def wanted_sample(n_rows: int, n_classes: int) -> int:
    """Return the number of rows in the sample of a site with `n_rows` rows."""
    return min(SAMPLE, max(n_rows // 3, few_rows(n_classes)))


def few_rows(n_classes: int) -> int:
    """Return a number of rows that is enough for a first guess of g."""
    return max(4096, 64 * n_classes)


def join(parts: list[Rows]) -> Rows:
    """Join chunks without z into one."""
    weight = None if parts[0].weight is None else torch.cat([p.weight for p in parts if p.weight is not None])
    return Rows(torch.cat([p.ratio for p in parts]), weight, parts[0].codes, None, None)


def count_groups(groups: Tensor, weight: Tensor | None) -> Groups:
    """Count groups, and compute their mean size."""
    sizes = torch.bincount(groups, weight).double()
    count = int((sizes > 0).sum())
    return Groups(len(sizes), count, max(1.0, float((sizes**2).sum() / sizes.sum())) if count > 1 else 1.0)
