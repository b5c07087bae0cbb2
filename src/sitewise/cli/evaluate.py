"""`sitewise evaluate`: evaluate an adapted site on labels, as a table and a page."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sitewise.cli.output import AsJson, Encoding, Force, Output, Packed, Quiet, Separator, check_out

if TYPE_CHECKING:
    from sitewise.performance import Evaluation
    from sitewise.tables.values import Array, Place, Rows

SHOWN = ("accuracy", "positive_f1", "macro_f1", "auroc", "nll", "brier", "ece", "calibration_slope", "net_benefit")
NO_WEIGHT = (
    "{where}: expected a weight, which is a number from 0 up, got {value} in {row}{more}: correct it, or leave out "
    "rows without a weight"
)


def evaluate(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    labeled: Annotated[Path, typer.Argument(metavar="LABELED", help="Rows of the site with labels, CSV or Parquet.")],
    out: Annotated[Path | None, typer.Option(help="Write a page to this file, .html.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of weights, for example from `sitewise sample`.")] = None,
    only_site: Annotated[
        str | None, typer.Option("--site", help="Use only the rows of this site, if LABELED holds several sites.")
    ] = None,
    site_name: Annotated[str | None, typer.Option(help="Name of the site on the page.")] = None,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Confidence level of the intervals.")] = 0.95,
    resamples: Annotated[int, typer.Option(min=0, help="Bootstrap resamples of rows, or of whole groups.")] = 200,
    packed: Packed = None,
    separator: Separator = None,
    encoding: Encoding = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate an adapted model on labeled rows of its site.

    It is compared with the model as trained, with recalibrated models, and with the performance expected without
    labels.
    """
    output = Output(quiet, as_json)
    if out is not None:
        check_out(out, force, reading=[labeled], suffixes=(".html", ".htm"))
    with output.working(f"reading {site} and {labeled}"):
        from sitewise.cli.loading import check_site, load_site, open_pack, reader_of, sites_of, take_site
        from sitewise.tables.files import open_table
        from sitewise.tables.values import Place

        here = load_site(site)
        reader = reader_of(here.model, site)
        table = open_table(labeled, separator=separator, encoding=encoding)
        named = [name for name in (reader.roles.target, weight) if name]
        table.find(named)
        wanted = [*reader.columns(table.columns, labels=False), *named]
        rows, place = table.read(list(dict.fromkeys(wanted))), Place(str(labeled))
        sites = sites_of(rows, reader.roles.site, place)
        check_site(set() if sites is None else set(sites.tolist()), only_site, reader.roles.site, str(labeled))
        rows, place = take_site(rows, reader.roles.site, only_site, place)
        read = reader.read(rows, labels="some", place=place, root=labeled.parent, packed=open_pack(packed))
        weights = None if weight is None else read_weights(rows, weight, place)
    with output.working(f"evaluating on {len(read):,} rows"):
        evaluation = here.evaluate(
            read.X,
            read.y,
            read.Z,
            groups=read.groups,
            sample_weight=weights,
            level=level,
            n_resamples=resamples,
        )
        record = {"site": str(site), **json.loads(json.dumps(evaluation.to_dict(), default=str))}
        if out is not None:
            from sitewise.report.page.evaluation import render_evaluation
            from sitewise.tables.writing import whole_file

            with whole_file(out) as part:
                name = site_name or here.site_name or site.resolve().name
                part.write_text(render_evaluation(record, name), encoding="utf-8")
    inside = int(evaluation.held["held"].sum())
    said = f"{inside} of {len(evaluation.held)} expected intervals contain the value from the labels"
    output.tell(record, evaluation_table(evaluation), said, *([] if out is None else [f"wrote {out}"]))


def read_weights(rows: "Rows", name: str, place: "Place") -> "Array":
    """Read a column of weights; raise ValueError for cells that are not finite numbers from 0 up."""
    import numpy as np

    from sitewise.arrays import Problems
    from sitewise.tables.values import numbers

    weights = numbers(rows, name, place, Problems("table"))  # one message below for every wrong cell
    strange = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(strange):
        value = rows.column(name)[int(strange[0])].as_py()
        said = {"where": place.column(name), "value": "nothing" if value in (None, "") else repr(value)}
        raise ValueError(NO_WEIGHT.format(**said, **place.row(strange)))
    return weights


def evaluation_table(evaluation: "Evaluation") -> Table:
    """Return a table with a line for each of the main metrics and a column for each model."""
    title = f"{evaluation.n_rows:,} labeled rows of {evaluation.n_groups:,} group(s)"
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    for name in evaluation.models:
        table.add_column(name, justify="right")
    for metric in SHOWN:
        if metric not in evaluation.table.index.get_level_values("metric"):
            continue
        lines = evaluation.table.loc[metric]
        table.add_row(metric, *(_cell(lines.loc[name]) if name in lines.index else "" for name in evaluation.models))
    return table


def _cell(line: Any) -> str:
    value = f"{float(line['value']):.3f}"
    bounds = [bound for bound in (line["low"], line["high"]) if bound is not None and bound == bound]
    return f"{value} [{float(bounds[0]):.3f}, {float(bounds[1]):.3f}]" if bounds else value
