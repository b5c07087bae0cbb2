"""Evidence from rows that do not fit into memory: some rows are kept, the others are read again in every pass."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from sitewise.adaptation.evidence import (
    Evidence,
    check_categorical,
    count_groups,
    join,
    lay_out,
    read_ratio,
    wanted_sample,
)
from sitewise.adaptation.rows import LARGE, Rows, Stream
from sitewise.arrays import Problems, read_groups, read_labels, read_weight, view_matrix
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Notes
from sitewise.sources import chunks_from

KEPT_BYTES = 2**29  # bytes of rows that are kept in memory, at most
CHANGED = "the chunked source gave {first} row(s) at first and {now} in a later pass: it must give the same every time"

Kind = Literal["seen", "blank", "everything"]


@dataclass(frozen=True)
class ChunkReader:
    """Reads the chunks of a source; labels, weights and groups of all rows are sliced for each chunk."""

    source: Iterable[Any]
    schema: Confounders | None
    has_z: bool
    labels: Any  # (n,) or None
    weight: Tensor | None
    groups: Tensor | None
    device: torch.device

    def read(
        self,
        chunk: Any,
        position: int,
        offset: int,
        *,
        with_codes: bool,
        notes: Notes | None = None,
        name: str = "chunk",
    ) -> dict[Kind, list[Rows]]:
        """Read the rows of chunk number `position`, whose first row is row `offset` of the source."""
        problems = Problems("estimate_prevalence")
        matrix = view_matrix(chunk[0], f"{name} {position} of log_ratio", problems, self.device)
        problems.raise_if_any()
        assert matrix is not None
        place = slice(offset, offset + len(matrix))
        weight, groups, labels = (None if v is None else v[place] for v in (self.weight, self.groups, self.labels))
        codes = None
        if self.has_z and self.schema is not None and with_codes:
            codes, own = self.schema.encode(chunk[1], self.device, quiet=True)
            if notes is not None:
                notes.add(own)
        seen, blank = lay_out(read_ratio(matrix, labels), weight, groups, codes, self.schema)
        return {"seen": seen, "blank": blank} if with_codes else {"everything": blank}

    def stretches(self, first: int, offset: int, expected: int, kind: Kind) -> Iterator[Rows]:
        """Yield the rows of all chunks from number `first` on; `offset` rows come before them.

        Raise RuntimeError if the source does not have `expected` rows in total.
        """
        total = offset
        for position, chunk in enumerate(chunks_from(self.source, first), first):
            laid_out = self.read(chunk, position, total, with_codes=kind != "everything")
            total += len(chunk[0])
            yield from (rows.in_single_precision() for rows in laid_out[kind])
        if total != expected:
            raise RuntimeError(CHANGED.format(first=expected, now=total))


class Sampler:
    """Keeps every n-th row of a stream; n increases with the number of rows."""

    def __init__(self) -> None:
        self.step, self.parts, self.n_rows = 1, [], 0  # type: int, list[Rows], int

    def add(self, rows: Rows) -> None:
        """Add a chunk of rows."""
        self.parts.append(rows.without_codes().take(0, len(rows), self.step))
        self.n_rows += len(rows)
        while sum(map(len, self.parts)) > 2 * wanted_sample(self.n_rows, rows.n_classes):
            self.step *= 2
            self.parts = [join([part.take(0, len(part), 2) for part in self.parts])]


def read_chunks(
    source: Iterable[Any],
    has_z: bool,
    n_classes: int,
    device: torch.device,
    problems: Problems,
    *,
    schema: Confounders | None,
    categorical: Any,
    y: Any,
    sample_weight: Any,
    groups: Any,
) -> tuple[Evidence, Notes]:
    """Check and arrange rows that come in chunks.

    `y`, `sample_weight` and `groups` are not in chunks: each has an entry for every row.
    """
    check_categorical(has_z, schema, categorical, problems)
    problems.raise_if_any()
    if has_z and schema is None:
        schema = Confounders.learn_in_chunks((chunk[1] for chunk in chunks_from(source)), categorical)
    weight = None if sample_weight is None else read_weight(sample_weight, len(sample_weight), problems, device)
    labels = None if y is None else read_labels(y, len(y), n_classes, problems)
    names = None if groups is None else read_groups(groups, len(groups), problems, device)
    given = {"sample_weight": weight, "y": labels, "groups": names}
    if any(values is not None for values in given.values()):
        n_rows = sum(len(chunk[0]) for chunk in chunks_from(source))
        wrong = {name: len(v) for name, v in given.items() if v is not None and len(v) != n_rows}
        problems.messages += [f"{name} must have one entry a row ({n_rows}), got {n}" for name, n in wrong.items()]
    problems.raise_if_any()
    reader = ChunkReader(source, schema, has_z, labels, weight, names, device)
    evidence, notes = _first_pass(reader, n_classes)
    notes.warn(stacklevel=4)
    return evidence, notes


def _first_pass(reader: ChunkReader, n_classes: int) -> tuple[Evidence, Notes]:
    """Read all rows once: count and sample them, sum their weights, and keep as many as memory allows."""
    kept: dict[Kind, list[Rows]] = {"seen": [], "blank": []}
    weights: dict[Kind, float] = {"seen": 0.0, "blank": 0.0}
    notes, sampler = Notes(), Sampler()
    n_kept, rows_kept, n_rows, n_bytes = 0, 0, 0, 0
    for position, chunk in enumerate(chunks_from(reader.source)):
        laid_out = reader.read(chunk, position, n_rows, with_codes=True, notes=notes)
        n_rows += len(chunk[0])
        for kind, stretches in laid_out.items():
            weights[kind] += sum(float(rows.cell_weight.sum()) for rows in stretches)
            for rows in stretches:
                sampler.add(rows)
        n_bytes += sum(rows.n_bytes() for stretches in laid_out.values() for rows in stretches)
        if n_bytes > KEPT_BYTES:
            continue
        n_kept, rows_kept = position + 1, n_rows
        for kind, stretches in laid_out.items():
            kept[kind] += stretches
    if n_rows * n_classes > LARGE:
        kept = {kind: [rows.in_single_precision() for rows in stretches] for kind, stretches in kept.items()}

    def stream(kind: Kind, first: list[Rows], weight: float) -> Stream[Rows]:
        if n_rows == rows_kept or not weight:
            return Stream(first)
        return Stream(first, partial(reader.stretches, n_kept, rows_kept, n_rows, kind))

    everything = [rows.without_codes() for rows in (*kept["seen"], *kept["blank"])]
    evidence = Evidence(
        stream("seen", kept["seen"], weights["seen"]),
        stream("blank", kept["blank"], weights["blank"]),
        stream("everything", everything, sum(weights.values())),
        join(sampler.parts),
        n_rows,
        n_classes,
        weights["seen"],
        weights["blank"],
        None if reader.groups is None else count_groups(reader.groups, reader.weight),
        reader.schema,
        reader.device,
    )
    return evidence, notes
