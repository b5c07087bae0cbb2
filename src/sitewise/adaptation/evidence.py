"""What a site's unlabeled rows say: read, checked, and laid out for the estimators."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sitewise.arrays import (
    Problems,
    distinct_rows,
    read_groups,
    read_labels,
    read_weight,
)
from sitewise.confounders import Confounders, Notes
from sitewise.posterior import know_labels, normalize


@dataclass(frozen=True)
class Evidence:
    """Rows of positive weight, those with some z apart from those with none ("blank").

    Equal rows of z are kept once: `codes[cell[n]]` is row n's z, and the same for every sum over rows of one z.
    """

    ratio: Tensor  # (n, K) f, each row scaled to sum to one
    weight: Tensor  # (n,)
    cell: Tensor  # (n,) index into codes
    codes: Tensor  # (U, V) distinct rows of z
    blank_ratio: Tensor  # (m, K)
    blank_weight: Tensor  # (m,)
    groups: Tensor | None  # (n + m,), blank rows last
    schema: Confounders | None

    @property
    def n_classes(self) -> int:
        """The number of classes K."""
        return self.ratio.shape[1]

    @cached_property
    def cell_weight(self) -> Tensor:
        """The weight of each distinct row of z, (U,)."""
        return self.sum_by_cell(self.weight)

    @property
    def total_weight(self) -> float:
        """The weight of all rows."""
        return float(self.weight.sum() + self.blank_weight.sum())

    def sum_by_cell(self, values: Tensor) -> Tensor:
        """Add (n, ...) values up over equal rows of z."""
        return values.new_zeros(len(self.codes), *values.shape[1:]).index_add_(0, self.cell, values)

    def log_likelihood(self, prevalence: Tensor) -> Tensor:
        """L(g), equation 7, for g (U, K) at the distinct rows of z; a blank row has their mean (equation 9)."""
        total = self.weight @ (self.ratio * prevalence[self.cell]).sum(1).log()
        if len(self.blank_weight):
            total = total + self.blank_weight @ (self.blank_ratio @ self.mean(prevalence)).log()
        return total

    def mean(self, prevalence: Tensor) -> Tensor:
        """The site's mean of g (U, K) over rows with z, (K,)."""
        return self.cell_weight @ prevalence / self.weight.sum()

    def responsibilities(self, prevalence: Tensor) -> Tensor:
        """P(y|x,z) of the rows with z for g (U, K)."""
        joint = self.ratio * prevalence[self.cell]
        return joint / joint.sum(1, keepdim=True)

    def without_confounders(self) -> "Evidence":
        """The same rows with one and the same z: what a constant g sees."""
        ratio = torch.cat([self.ratio, self.blank_ratio])
        weight = torch.cat([self.weight, self.blank_weight])
        cell = torch.zeros(len(weight), dtype=torch.int64, device=weight.device)
        return Evidence(ratio, weight, cell, ratio.new_zeros(1, 0), ratio[:0], weight[:0], self.groups, None)


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
    """Check what came with the log-ratios (n, K) and lay it out; one error names all problems, earlier ones too."""
    n_rows, n_classes = matrix.shape
    weight = read_weight(sample_weight, n_rows, problems, matrix.device)
    labels = None if y is None else read_labels(y, n_rows, n_classes, problems)
    group = read_groups(groups, n_rows, problems, matrix.device)
    schema, codes, notes = _read_confounders(sample_confounder, schema, categorical, matrix, problems)
    problems.raise_if_any()
    evidence = normalize(matrix)
    if labels is not None:
        known = torch.tensor(labels, device=matrix.device)
        rows = (~known.isnan()).nonzero().flatten()
        evidence = know_labels(evidence, rows, known[rows].long())
    return _lay_out(evidence.exp(), weight, group, codes, schema), notes


def _read_confounders(
    Z: Any, schema: Confounders | None, categorical: Any, matrix: Tensor, problems: Problems
) -> tuple[Confounders | None, Tensor | None, Notes]:
    if Z is None:
        if categorical is not None:
            problems.add("categorical is given without sample_confounder")
        return schema, None, Notes()
    if schema is not None and categorical is not None:
        problems.add(
            "categorical is given, but confounders (or the prior or start estimate, whose schema is taken) says "
            "already which variables are categorical: leave one of them out"
        )
    try:
        schema = Confounders.learn(Z, categorical) if schema is None else schema
        codes, notes = schema.encode(Z, matrix.device)
    except ValueError as error:
        problems.add(str(error))
        return schema, None, Notes()
    if len(codes) != len(matrix):
        problems.add(f"sample_confounder has {len(codes)} row(s), log_ratio has {len(matrix)}")
    return schema, codes, notes


def _lay_out(
    ratio: Tensor, weight: Tensor, groups: Tensor | None, codes: Tensor | None, schema: Confounders | None
) -> Evidence:
    """Drop rows of weight zero, set blank rows apart and keep equal rows of z once."""
    if schema is None or codes is None:
        width = 0 if schema is None else len(schema.variables)
        codes = (
            ratio.new_zeros(len(ratio), width)
            if schema is None
            else schema.missing_codes(ratio.device).expand(len(ratio), width)
        )
        blank = torch.ones(len(ratio), dtype=torch.bool, device=ratio.device)
    else:
        blank = schema.missing(codes).all(dim=1)
    counted = weight > 0
    seen, unseen = counted & ~blank, counted & blank
    distinct, cell = distinct_rows(codes[seen])
    order = None if groups is None else torch.cat([groups[seen], groups[unseen]])
    return Evidence(ratio[seen], weight[seen], cell, distinct, ratio[unseen], weight[unseen], order, schema)
