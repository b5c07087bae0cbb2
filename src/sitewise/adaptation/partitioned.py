"""Evidence from rows in Dask partitions: workers arrange the rows of their partitions, and return only sums."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence, Groups, check_categorical, join, wanted_sample
from sitewise.adaptation.posterior.labels import KnownLabels, read_labeled
from sitewise.adaptation.posterior.likelihood import subset
from sitewise.adaptation.rows import LARGE, Rows, Stream, add_up
from sitewise.adaptation.streaming import KEPT_BYTES, ChunkReader
from sitewise.arrays import Problems, read_groups, read_labels, read_weight
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Notes
from sitewise.partitions import Partition, Partitions, add_tasks, compute, current_client, persist

T = TypeVar("T")
S = TypeVar("S")
CPU = torch.device("cpu")
NO_SCHEMA = (
    "rows in Dask partitions need a schema of z that is fixed beforehand: pass confounders=, such as "
    "Confounders.learn(Z.head(100_000, npartitions=-1)), or a prior that has one"
)
ACROSS = (
    "groups must lie within partitions, and a group of partition {first} has rows in partition {second} too: put them "
    "together by frame.shuffle(on=...) or set_index(...)"
)
ROW_BY_ROW = (
    "this goes through the rows themselves, and rows in Dask partitions are only ever added up: use model='auto', "
    "'constant', 'table' or 'additive' with solver='auto', and interval() without bootstrap"
)


@dataclass(frozen=True)
class LaidOut:
    """The rows of one partition, in chunks: rows with some z, and blank rows."""

    seen: list[Rows]
    blank: list[Rows]


@dataclass(frozen=True)
class Summary:
    """Counts, weights and notes of one partition, after its rows were sorted by z into chunks."""

    seen: list[int]  # number of rows in each chunk
    blank: list[int]
    seen_weight: float
    blank_weight: float
    n_bytes: int
    notes: Notes
    weights: list[float]  # the smallest positive and the largest weight; empty without weights
    group_sizes: Tensor  # (G,) of the partition's G groups
    group_names: np.ndarray[Any, Any]  # hashes of the names of groups

    @property
    def n_rows(self) -> int:
        """The number of rows of positive weight."""
        return sum(self.seen) + sum(self.blank)


@dataclass(frozen=True)
class PartitionReader:
    """Arranges the rows of a partition, with `ChunkReader`."""

    schema: Confounders | None
    n_classes: int

    def __call__(self, rows: Partition) -> tuple[LaidOut, Summary]:
        """Read, check and arrange the rows of a partition; return them with a summary."""
        if not rows.n_rows:
            nothing = Summary([], [], 0.0, 0.0, 0, Notes(), [], torch.zeros(0), np.zeros(0, np.uint64))
            return LaidOut([], []), nothing
        problems = Problems(f"partition {rows.number}")
        n_rows = rows.n_rows
        weight = self._weight(rows, problems)
        labels = None if rows.y is None else read_labels(rows.y, n_rows, self.n_classes, problems)
        groups = read_groups(rows.groups, n_rows, problems)
        problems.raise_if_any()
        reader = ChunkReader((), self.schema, rows.sample_confounder is not None, labels, weight, groups, CPU)
        notes = Notes()
        chunk = rows.log_ratio, rows.sample_confounder
        laid_out = reader.read(chunk, rows.number, 0, with_codes=True, notes=notes, name="partition")
        laid = LaidOut(*([_without_the_rest(part) for part in laid_out[kind]] for kind in ("seen", "blank")))
        counted = [] if weight is None else [float(weight[weight > 0].min()), float(weight.max())]
        return laid, Summary(
            [len(part) for part in laid.seen],
            [len(part) for part in laid.blank],
            sum(float(part.cell_weight.sum()) for part in laid.seen),
            sum(float(part.cell_weight.sum()) for part in laid.blank),
            sum(part.n_bytes() for part in (*laid.seen, *laid.blank)),
            notes,
            counted,
            torch.zeros(0) if groups is None else torch.bincount(groups, weight).double(),
            np.zeros(0, np.uint64) if groups is None else _hashed(rows.groups),
        )

    def _weight(self, rows: Partition, problems: Problems) -> Tensor | None:
        """Read the weights of a partition's rows; unlike the weights of a whole site, they may all be zero."""
        if rows.sample_weight is None:
            return None
        own = Problems(problems.call)
        weight = read_weight(rows.sample_weight, rows.n_rows, own)
        if bool((weight == 0).all()):
            return weight
        problems.messages += own.messages
        return weight


def _hashed(groups: Any) -> np.ndarray[Any, Any]:
    names = pd.Series(np.asarray(groups)).dropna().drop_duplicates()
    return np.asarray(pd.util.hash_pandas_object(names, index=False).to_numpy())


def _summarized(kept: tuple[LaidOut, Summary]) -> Summary:
    return kept[1]


def _of_kept(function: Callable[[LaidOut], S], kept: tuple[LaidOut, Summary]) -> S:
    return function(kept[0])


def _of_read(function: Callable[[LaidOut], S], reader: PartitionReader, rows: Partition) -> S:
    return function(reader(rows)[0])


@dataclass(frozen=True)
class Cluster:
    """The partitions of a site. Workers keep the first ones in memory; the others are read again in every pass."""

    partitions: Partitions
    reader: PartitionReader
    kept: list[Any]  # delayed values of the partitions in memory
    client: Any  # of the Dask cluster that keeps them; None if this process does

    def tasks(self, function: Callable[[LaidOut], S]) -> list[Any]:
        """Return delayed results of a function for each partition."""
        from dask import delayed

        kept = self.kept if self.client is None or self.client.status == "running" else []
        of_kept = delayed(partial(_of_kept, function), pure=False)
        others = self.partitions.tasks(partial(_of_read, function, self.reader), first=len(kept))
        return [*map(of_kept, kept), *others]

    def sums(self, function: Callable[[LaidOut], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Apply a function to each partition and add up the results."""
        total: tuple[Tensor, ...] = add_tasks(self.tasks(function), add_up)
        return total

    def collect(self, function: Callable[[LaidOut], S]) -> list[S]:
        """Return the results of a function for all partitions."""
        return compute(self.tasks(function))


class PartitionStream(Stream[T]):
    """Chunks of rows in partitions: sums are computed on the workers, and the rows cannot be iterated here."""

    def __init__(self, cluster: Cluster, get: Callable[[LaidOut], Iterable[T]]) -> None:
        super().__init__(())
        self.cluster, self.get = cluster, get

    def __iter__(self) -> NoReturn:
        raise ValueError(ROW_BY_ROW)

    def __reduce__(self) -> Any:
        """Pickle as an empty stream: a task may contain an object with a stream, but it does not read this stream."""
        return Stream, ((),)

    @property
    def in_memory(self) -> bool:
        """Always false."""
        return False

    def map(self, function: Callable[[T], S], *, keep: bool = True) -> "PartitionStream[S]":
        """Apply a function to all items, again in every pass."""
        return PartitionStream(self.cluster, partial(_mapped, function, self.get))

    def followed_by(self, other: Stream[T]) -> Stream[T]:
        """Return a stream of the items of both streams; items of one partition stay together."""
        if isinstance(other, PartitionStream):
            return PartitionStream(self.cluster, partial(_both, self.get, other.get))
        return StreamsApart(self, other)

    def sums(self, function: Callable[[Iterable[T]], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Apply a function to the items of each partition and add up the results."""
        return self.cluster.sums(partial(_apply, function, self.get))

    def collect(self, function: Callable[[T], S]) -> list[S]:
        """Return the results of a function for all items."""
        return [one for values in self.cluster.collect(partial(_each, function, self.get)) for one in values]

    def any(self, function: Callable[[T], bool]) -> bool:
        """Return whether a condition holds for any item."""
        return any(self.collect(function))


class StreamsApart(Stream[T]):
    """A stream of items in partitions, and a second stream of items in this process."""

    def __init__(self, first: PartitionStream[T], second: Stream[T]) -> None:
        super().__init__(())
        self.first, self.second = first, second

    def __iter__(self) -> NoReturn:
        raise ValueError(ROW_BY_ROW)

    @property
    def in_memory(self) -> bool:
        """Always false."""
        return False

    def map(self, function: Callable[[T], S], *, keep: bool = True) -> "StreamsApart[S]":
        """Apply a function to the items of both streams."""
        return StreamsApart(self.first.map(function), self.second.map(function, keep=keep))

    def sums(self, function: Callable[[Iterable[T]], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Add up the sums of both streams."""
        return add_up([self.first.sums(function), self.second.sums(function)])

    def collect(self, function: Callable[[T], S]) -> list[S]:
        """Return the results of a function for all items of both streams."""
        return [*self.first.collect(function), *self.second.collect(function)]


def _mapped(function: Callable[[T], S], get: Callable[[LaidOut], Iterable[T]], laid: LaidOut) -> Iterator[S]:
    return map(function, get(laid))


def _both(first: Callable[[LaidOut], Iterable[T]], second: Callable[[LaidOut], Iterable[T]], laid: LaidOut) -> list[T]:
    return [*first(laid), *second(laid)]


def _apply(function: Callable[[Iterable[T]], S], get: Callable[[LaidOut], Iterable[T]], laid: LaidOut) -> S:
    return function(get(laid))


def _each(function: Callable[[T], S], get: Callable[[LaidOut], Iterable[T]], laid: LaidOut) -> list[S]:
    return [_without_the_rest(function(one)) for one in get(laid)]


def _without_the_rest(value: Any) -> Any:
    """Copy tensors that are views, because a view would be sent to another process with its whole storage."""
    if isinstance(value, Tensor):
        return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
    if isinstance(value, tuple):
        return tuple(map(_without_the_rest, value))
    if isinstance(value, Rows):
        return replace(value, **{field.name: _without_the_rest(getattr(value, field.name)) for field in fields(value)})
    return value


def _stretches(kinds: tuple[str, ...], rounded: bool, laid: LaidOut) -> list[Rows]:
    stretches = [rows for kind in kinds for rows in getattr(laid, kind)]
    return [rows.in_single_precision() for rows in stretches] if rounded else stretches


def _without_codes(rows: Rows) -> Rows:
    return rows.without_codes()


def read_partitions(
    partitions: Partitions, n_classes: int, problems: Problems, *, schema: Confounders | None, categorical: Any
) -> tuple[Evidence, Notes]:
    """Check rows in partitions, arrange them, count and sample them; return them as evidence, with notes about z."""
    check_categorical(partitions.has_z, schema, categorical, problems)
    if partitions.has_z and schema is None:
        problems.add(NO_SCHEMA)
    problems.raise_if_any()
    cluster, summaries = _lay_out(partitions, PartitionReader(schema if partitions.has_z else None, n_classes))
    notes = replace(next((summary.notes for summary in summaries if summary.n_rows), Notes()), clipped={}, unseen={})
    for summary in summaries:
        notes.add(summary.notes)
    n_rows = sum(summary.n_rows for summary in summaries)
    weights = [weight for summary in summaries for weight in summary.weights]
    if weights:
        read_weight(weights, len(weights), problems)
    if not n_rows:
        problems.add("log_ratio is empty: at least one row is needed")
    problems.raise_if_any()
    groups = _count_groups(summaries, problems) if "groups" in partitions.given else None
    notes.warn(stacklevel=5)
    rounded = n_rows * n_classes > LARGE
    seen, blank, every = (
        PartitionStream(cluster, partial(_stretches, kinds, rounded))
        for kinds in (("seen",), ("blank",), ("seen", "blank"))
    )
    seen_weight, blank_weight = (sum(getattr(s, f"{kind}_weight") for s in summaries) for kind in ("seen", "blank"))
    everything, step = every.map(_without_codes), -(-n_rows // wanted_sample(n_rows, n_classes))
    evidence = Evidence(
        seen if seen_weight else Stream(()),
        blank if blank_weight else Stream(()),
        everything,
        join(everything.collect(lambda rows: rows.take(0, len(rows), step))),
        n_rows,
        n_classes,
        seen_weight,
        blank_weight,
        groups,
        schema,
        CPU,
    )
    return evidence, notes


def _lay_out(partitions: Partitions, reader: PartitionReader) -> tuple[Cluster, list[Summary]]:
    """Arrange all partitions; keep the first ones in memory, in growing batches, up to `KEPT_BYTES` per worker."""
    from dask import delayed

    client = current_client()
    n_workers = 1 if client is None else max(1, len(client.nthreads()))
    kept: list[Any] = []
    summaries: list[Summary] = []
    room, largest, batch = KEPT_BYTES * n_workers, 0, 2 * n_workers
    while len(kept) < len(partitions) and batch:
        more = persist(partitions.tasks(reader, first=len(kept), last=len(kept) + batch))
        more_summaries: list[Summary] = compute([delayed(_summarized, pure=False)(part) for part in more])
        kept, summaries = [*kept, *more], [*summaries, *more_summaries]
        room -= sum(summary.n_bytes for summary in more_summaries)
        largest = max(largest, *(summary.n_bytes for summary in more_summaries))
        batch = min(2 * batch, max(0, room // max(largest, 1)))
    summaries += compute(partitions.tasks(partial(_summary_of, reader), first=len(kept)))
    return Cluster(partitions, reader, kept, client), summaries


def _summary_of(reader: PartitionReader, rows: Partition) -> Summary:
    return reader(rows)[1]


def _count_groups(summaries: list[Summary], problems: Problems) -> Groups:
    """Count groups; add a problem if rows of one group are in two partitions."""
    names = np.concatenate([summary.group_names for summary in summaries])
    where = np.repeat(np.arange(len(summaries)), [len(summary.group_names) for summary in summaries])
    order = np.argsort(names, kind="stable")
    twice = np.flatnonzero(np.diff(names[order]) == 0)
    if len(twice):
        first, second = where[order][twice[0] : twice[0] + 2]
        problems.add(ACROSS.format(first=first, second=second))
        problems.raise_if_any()
    sizes = torch.cat([summary.group_sizes for summary in summaries])
    count = int((sizes > 0).sum())
    n_names = max(len(summary.group_sizes) for summary in summaries)
    return Groups(n_names, count, max(1.0, float((sizes**2).sum() / sizes.sum())) if count > 1 else 1.0)


def read_labeled_partitions(partitions: Partitions, evidence: Evidence) -> KnownLabels | None:
    """Return the labeled rows of all partitions, which should be few; None if there are none."""
    if "y" not in partitions.given:
        return None
    bare = replace(
        evidence, rows=Stream(()), blank=Stream(()), everything=Stream(()), sample=evidence.sample.take(0, 0)
    )
    by_partition = compute(partitions.tasks(partial(_labeled, bare)))
    parts = [part for part in by_partition if part is not None]
    together = parts[0] if parts else None
    for part in parts[1:]:
        assert together is not None
        together = together.join(part)
    return together


def _labeled(evidence: Evidence, rows: Partition) -> KnownLabels | None:
    if not rows.n_rows:
        return None
    problems = Problems(f"partition {rows.number}")
    chunks = [(rows.log_ratio, rows.sample_confounder)]
    labels = read_labeled(chunks, rows.y, rows.sample_weight, rows.groups, evidence, problems)
    problems.raise_if_any()
    return labels


def stand_in(evidence: Evidence, at_most: int) -> Evidence:
    """Return a sample of the rows, in memory, that stands in for all rows.

    Weights are scaled so that the sample weighs as much as all rows, divided by the mean size of groups.
    """
    some = subset(evidence, at_most)
    share = evidence.total_weight / some.total_weight / (evidence.groups.mean_size if evidence.groups else 1.0)

    def heavier(rows: Rows) -> Rows:
        weight = rows.codes.new_ones(len(rows)) if rows.weight is None else rows.weight
        return replace(rows, weight=share * weight)

    streams = {kind: getattr(some, kind).map(heavier) for kind in ("rows", "blank", "everything")}
    return replace(
        some,
        **streams,
        sample=heavier(some.sample),
        seen_weight=share * some.seen_weight,
        blank_weight=share * some.blank_weight,
        groups=None,
    )
