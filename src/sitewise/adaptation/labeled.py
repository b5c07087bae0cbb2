"""Rows of a site whose label is known, picked from all of them with log f as it is."""

from collections.abc import Iterable
from typing import Any

import torch

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.posterior.labels import KnownLabels
from sitewise.arrays import Problems, read_groups, read_labels, read_weight, view_matrix
from sitewise.sites import take_rows


def read_labeled(
    chunks: Iterable[Any], y: Any, weight: Any, groups: Any, evidence: Evidence, problems: Problems
) -> KnownLabels | None:
    """The labeled rows of positive weight among chunks of (log_ratio, Z); None where there are none."""
    if y is None:
        return None
    device, schema = evidence.device, evidence.schema
    n_rows = len(y)
    labels = torch.tensor(read_labels(y, n_rows, evidence.n_classes, problems), device=device)
    weights, names = read_weight(weight, n_rows, problems, device), read_groups(groups, n_rows, problems, device)
    ratios, codes, start = [], [], 0
    picked = ~labels.isnan() & (weights > 0)
    for chunk in chunks:
        matrix = view_matrix(chunk[0], "log_ratio", problems, device)
        if matrix is None:
            return None
        own = picked[start : start + len(matrix)].nonzero().flatten()
        start += len(matrix)
        ratios.append(matrix[own].double())
        blank = ratios[-1].new_zeros(0) if schema is None else schema.missing_codes(device)
        at = blank.expand(len(own), -1)
        if schema is not None and chunk[1] is not None and len(own):
            at = schema.encode(take_rows(chunk[1], own.cpu().numpy()), device, quiet=True)[0]
        codes.append(at)
    if start != n_rows:
        problems.add(f"y must have one entry a row ({start}), got {n_rows}")
        return None
    if not len(found := labels[picked].long()):
        return None
    return KnownLabels(
        log_ratio=torch.cat(ratios),
        codes=torch.cat(codes),
        y=found,
        weight=weights[picked],
        groups=None if names is None else names[picked],
    )
