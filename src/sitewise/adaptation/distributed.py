"""Evidence that is spread over processes: each holds its rows, only sums travel."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence, Groups
from sitewise.adaptation.rows import Rows, Stream


def across_processes(evidence: Evidence, fabric: Any) -> Evidence:
    """Let the processes of a Lightning Fabric answer for all their rows together.

    The rows of a group have to be in one process.
    """

    def reduce(total: Tensor) -> Tensor:
        summed: Tensor = fabric.all_reduce(total.to(fabric.device).contiguous(), reduce_op="sum")
        return summed.to(total.device)

    def gather(own: Tensor) -> Tensor:
        parts: list[Any] = [None] * fabric.world_size
        torch.distributed.all_gather_object(parts, own.cpu())
        return torch.cat(parts).to(own.device)

    groups = evidence.groups
    sums = [evidence.n_rows, evidence.seen_weight, evidence.blank_weight]
    sums += [0.0, 0.0] if groups is None else [groups.count, groups.mean_size * evidence.total_weight]
    together = reduce(torch.tensor(sums, dtype=torch.float64, device=evidence.device)).tolist()
    n_rows, seen, blank, n_groups, sizes = together
    counted = None if groups is None else Groups(groups.n_names, int(n_groups), sizes / (seen + blank))
    return replace(
        evidence,
        rows=_never_empty(evidence.rows, evidence, n_codes=0),
        blank=_never_empty(evidence.blank, evidence, n_codes=1),
        n_rows=int(n_rows),
        seen_weight=seen,
        blank_weight=blank,
        groups=counted,
        reduce=reduce,
        gather=gather,
    )


def _never_empty(stream: Stream[Rows], evidence: Evidence, n_codes: int) -> Stream[Rows]:
    """Let a process without rows of a kind take part in their sums all the same."""
    width = 0 if evidence.schema is None else len(evidence.schema.variables)
    nothing = evidence.sample.take(0, 0)
    return Stream([*stream.kept, replace(nothing, codes=nothing.codes.new_zeros(n_codes, width))], stream.rest)
