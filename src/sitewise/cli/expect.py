"""`sitewise expect`: estimate, without labels, the performance of our model or of other predictions at a site."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sitewise.cli.output import AsJson, Encoding, Output, Quiet, Separator

if TYPE_CHECKING:
    from sitewise.performance import ExpectedPerformance
    from sitewise.performance.expected import Expected
    from sitewise.tables.values import Place, Rows

NEEDED = (
    "name the predictions to evaluate in DATA: --proba p0,p1, or --decision COLUMN; leave DATA out for our own model"
)
NO_DECISION = "{where}: expected a predicted class, got nothing in {row}{more}: give one in every row"


def expect(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DATA]",
            help="The rows that were passed to adapt, in the same order, with the predictions to evaluate.",
        ),
    ] = None,
    proba: Annotated[
        str | None,
        typer.Option(help="Columns of probabilities, p0,p1 in the classes' order, or P of the second class."),
    ] = None,
    decision: Annotated[str | None, typer.Option(help="Column of predicted classes.")] = None,
    threshold: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Probability of the second class from which it is predicted.")
    ] = None,
    only_site: Annotated[
        str | None, typer.Option("--site", help="Use only the rows of this site, if DATA holds several sites.")
    ] = None,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Confidence level of the intervals.")] = 0.95,
    separator: Separator = None,
    encoding: Encoding = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Estimate the performance at an adapted site without labels: of our model, or of the predictions in DATA."""
    output = Output(quiet, as_json)
    if (data is None) != (proba is None and decision is None):
        raise ValueError(NEEDED)
    with output.working(f"reading {site}"):
        from sitewise.cli.loading import load_site
        from sitewise.tables.roles import split_names

        here = load_site(site)
        judged = {}
        if data is not None:
            columns = split_names(proba)
            rows, place = read_rows(here, site, data, [*columns, decision], only_site, separator, encoding)
            judged = _predictions(here, rows, columns, decision, place)
        expected = here.expected_performance(**judged, threshold=threshold, level=level)
    output.tell({"site": str(site), **expected.to_dict()}, expected_table(expected))


def expected_table(expected: "ExpectedPerformance") -> Table:
    """Return a table with a line for each metric."""
    table = Table(title=str(expected).partition("\n")[0], title_justify="left")
    for name in ("metric", "expected", f"{expected.level:.0%} interval"):
        table.add_column(name, justify="left" if name == "metric" else "right")
    for name, value in expected.items():
        table.add_row(name, *shown(value))
    return table


def shown(value: "Expected") -> tuple[str, str]:
    """Return a value and its interval as text."""
    if value.estimate is None:
        return "undefined", ""
    return f"{value.estimate:.3f}", f"{value.low:.3f} to {value.high:.3f}"


def read_rows(
    here: Any,
    site: Path,
    data: Path,
    columns: list[str | None],
    only_site: str | None,
    separator: str | None,
    encoding: str | None,
) -> "tuple[Rows, Place]":
    """Read columns of the rows that were passed to `adapt`, with their place; raise ValueError for other rows."""
    from sitewise.cli.loading import check_site, reader_of, sites_of, take_site
    from sitewise.tables.files import open_table
    from sitewise.tables.values import Place

    table = open_table(data, separator=separator, encoding=encoding)
    wanted = [name for name in columns if name]
    table.find(wanted)
    column = reader_of(here.model, site).roles.site
    rows, place = table.read([*wanted, *(name for name in [column] if name in table.columns)]), Place(str(data))
    sites = sites_of(rows, column, place)
    if only_site is not None or (sites is not None and len(rows) != len(here.rows)):
        check_site(set() if sites is None else set(sites.tolist()), only_site, column, str(data))
        rows, place = take_site(rows, column, only_site, place)
    if len(rows) != len(here.rows):
        raise ValueError(
            f"{data} has {len(rows):,} row(s), the site was adapted on {len(here.rows):,}: give the same rows, in order"
        )
    return rows.select(wanted), place


def _predictions(
    here: Any, rows: "Rows", proba: tuple[str, ...], decision: str | None, place: "Place"
) -> dict[str, Any]:
    """Return the predictions in the form that `expected_performance` reads; raise ValueError for wrong cells."""
    import numpy as np

    from sitewise.arrays import Problems
    from sitewise.tables.values import labels, probabilities

    problems = Problems("table")
    predictions: dict[str, Any] = {}
    if proba:
        numbers = probabilities(rows, proba, place, problems)
        predictions["proba"] = numbers[:, -1] if len(proba) == 1 else numbers
    if decision:
        decided = labels(rows, decision, here.classes_.tolist(), place, problems, partly=True)
        missing = np.flatnonzero([value is None for value in decided])
        if len(missing) and not problems.messages:
            problems.add(NO_DECISION.format(where=place.column(decision), **place.row(missing)))
        predictions["y_pred"] = decided
    problems.raise_if_any()
    return predictions
