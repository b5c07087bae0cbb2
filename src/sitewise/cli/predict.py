"""`sitewise predict`: predict the adapted probabilities of the rows of a table, in chunks."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sitewise.cli.output import AsJson, Data, Encoding, Force, Output, Packed, Quiet, Separator, check_out

if TYPE_CHECKING:
    import pyarrow as pa

    from sitewise.tables import TableReader
    from sitewise.tables.files import TableFile

DECISION, AS_TRAINED = "decision", "as_trained"
IMAGE_ROWS = 512  # images of a chunk
WORKERS = 2  # chunks predicted at the same time


def predict(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    data: Data,
    out: Annotated[Path, typer.Option(help="Predictions, .csv or .parquet.", show_default=False)],
    id: Annotated[
        str | None, typer.Option(help="Column that identifies a row; by default that of the model, or the row number.")
    ] = None,
    only_site: Annotated[
        str | None, typer.Option("--site", help="Use only the rows of this site, if DATA holds several sites.")
    ] = None,
    as_trained: Annotated[
        bool, typer.Option("--as-trained", help="Also write the probabilities of the model as trained.")
    ] = False,
    packed: Packed = None,
    separator: Separator = None,
    encoding: Encoding = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict P(class) of each row at an adapted site, and the class by the site's threshold; tables of any length."""
    start = time.perf_counter()
    output = Output(quiet, as_json)
    check_out(out, force, reading=[data], suffixes=(".csv", ".parquet"))
    with output.working(f"reading {site}"):
        from sitewise.cli.loading import load_site, open_pack, reader_of
        from sitewise.tables.files import open_table

        here = load_site(site)
        reader = reader_of(here.model, site)
        table = open_table(data, separator=separator, encoding=encoding)
        table.find([] if id is None else [id])
        table.refuse_kinds([] if id is None else [id])
        output.note(*reader.notes(table.columns))
        name = id or (reader.roles.id if reader.roles.id in table.columns else None)
    with output.gathering(), _progress(table.n_rows, output.bars) as advance:
        chunks = Predictions(here, reader, table, name, only_site, open_pack(packed), as_trained)
        outcome = here.outcome
        n_rows = chunks.write(out, advance)
    record = {
        "predictions": str(out),
        "rows": n_rows,
        "columns": chunks.schema.names,
        "threshold": here.threshold_,
        "outcome": outcome.to_dict(),
        "seconds": round(time.perf_counter() - start, 3),
    }
    rule = "the most probable class" if here.threshold_ is None else f"threshold {here.threshold_:.4g}"
    said = f"wrote {n_rows:,} rows to {out} ({', '.join(chunks.schema.names)}); decision by {rule}"
    output.tell(record, outcome.sentence, said)


class Predictions:
    """The predictions for the rows of a table. Reading, predicting and writing run at the same time."""

    def __init__(
        self,
        here: Any,
        reader: "TableReader",
        table: "TableFile",
        id: str | None,
        site: str | None,
        packed: Any,
        as_trained: bool = False,
    ) -> None:
        import pyarrow as pa

        self.here, self.reader, self.table, self.id, self.site = here, reader, table, id, site
        self.packed, self.as_trained = packed, as_trained
        self.sites: set[str] = set()
        labels = here.classes_.tolist()
        label_type = pa.infer_type(labels) if all(isinstance(label, int) for label in labels) else pa.string()
        columns = [f"p_{label}" for label in labels]
        columns += [f"{name}_{AS_TRAINED}" for name in columns] if as_trained else []
        if id in (DECISION, *columns):
            raise ValueError(f"--id {id} is also a column name of the predictions: rename it in {table.path}")
        name = pa.field("row", pa.int64()) if id is None else pa.field(id, table.type_of(id))
        shares = [pa.field(column, pa.float64()) for column in columns]
        self.labels = pa.array(labels, type=label_type)
        self.schema = pa.schema([name, *shares, pa.field(DECISION, label_type)])

    def write(self, out: Path, advance: Callable[[int], None]) -> int:
        """Write all predictions to a file, completely or not at all; return the number of rows."""
        from sitewise.cli.loading import check_site
        from sitewise.tables.writing import table_writer

        n_rows = 0
        with table_writer(out, self.schema) as writer, ThreadPoolExecutor(WORKERS + 1) as pool:
            for predicted, n_read in _in_order(self._predict, self._chunks(), pool):
                writer.write(predicted)
                n_rows += predicted.num_rows
                advance(n_read)
            check_site(self.sites, self.site, self.reader.roles.site, str(self.table.path))
        return n_rows

    def _chunks(self) -> "Iterator[tuple[pa.RecordBatch, int]]":
        wanted = self.reader.columns(self.table.columns, labels=False)
        start = 0
        for chunk in self.table.chunks([*wanted, *([self.id] if self.id else [])]):
            step = IMAGE_ROWS if self.reader.image else max(1, chunk.num_rows)
            for first in range(0, chunk.num_rows, step):
                yield chunk.slice(first, step), start + first
            start += chunk.num_rows

    def _predict(self, chunk: "pa.RecordBatch", start: int) -> "tuple[pa.Table, int]":
        """Return the predictions for a chunk, and the number of rows that were read."""
        import numpy as np
        import pyarrow as pa

        from sitewise.cli.loading import check_site, sites_of, take_site
        from sitewise.performance.metrics import decide
        from sitewise.tables.values import Place, plain

        place = Place(str(self.table.path), start)
        sites = sites_of(chunk, self.reader.roles.site, place)
        self.sites.update([] if sites is None else sites.tolist())
        if self.site is None:
            check_site(self.sites, None, self.reader.roles.site, str(self.table.path))
        rows, place = take_site(chunk, self.reader.roles.site, self.site, place)
        if not rows.num_rows:
            return self.schema.empty_table(), chunk.num_rows
        read = self.reader.read(rows, labels="none", place=place, root=self.table.path.parent, packed=self.packed)
        probability = np.asarray(self.here.predict_proba(read.X, sample_confounder=read.Z))
        decided = self.labels.take(pa.array(decide(probability, self.here.threshold_)))
        numbers = np.arange(rows.num_rows) if place.kept is None else place.kept
        first = pa.array(numbers + start) if self.id is None else plain(rows.column(self.id))
        if self.as_trained:
            plainly = np.asarray(self.here.model.predict_proba(read.X, sample_confounder=read.Z))
            probability = np.concatenate([probability, plainly], axis=1)
        shares = [pa.array(np.ascontiguousarray(column)) for column in probability.T]
        return pa.Table.from_arrays([first, *shares, decided], schema=self.schema), chunk.num_rows


def _in_order(work: Callable[..., Any], items: Iterator[Any], pool: ThreadPoolExecutor) -> Iterator[Any]:
    """Yield results in the order of the items.

    One thread reads the next item in advance, others compute, and only a few results wait to be taken.
    """
    waiting: deque[Future[Any]] = deque()
    coming: Future[Any] = pool.submit(next, items, None)
    try:
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            waiting.append(pool.submit(work, *item))
            if len(waiting) > WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in (coming, *waiting):
            future.cancel()


@contextmanager
def _progress(total: int | None, shown: bool | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar over rows on a terminal, without a total if it is unknown."""
    console = Console(stderr=True)
    if shown is False or not console.is_terminal:
        yield lambda count: None
        return
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("rows", total=total)
        yield lambda count: bar.advance(task, count)
