"""`sitewise expect`: estimate, without labels, the performance of our model or of other predictions at a site."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sitewise.cli.output import AsJson, Encoding, Output, Quiet, Separator

if TYPE_CHECKING:
    import pandas as pd

    from sitewise.performance import ExpectedPerformance
    from sitewise.performance.expected import Expected

NEEDED = (
    "name the predictions to evaluate in DATA: --proba p0,p1, or --decision COLUMN; leave DATA out for our own model"
)


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
            rows = read_columns(here, site, data, [*split_names(proba), decision], only_site, separator, encoding)
            judged = _predictions(here, rows, data, split_names(proba), decision)
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


def read_columns(
    here: Any,
    site: Path,
    data: Path,
    columns: list[str | None],
    only_site: str | None,
    separator: str | None,
    encoding: str | None,
) -> "pd.DataFrame":
    """Read columns of the rows that were passed to `adapt`; raise ValueError if their number differs."""
    from sitewise.cli.loading import check_site, reader_of, sites_of, take_site
    from sitewise.tables.files import open_table
    from sitewise.tables.values import Place

    table = open_table(data, separator=separator, encoding=encoding)
    wanted = [name for name in columns if name]
    table.find(wanted)
    column = reader_of(here.model, site).roles.site
    rows, place = table.read(table.columns), Place(str(data))
    sites = sites_of(rows, column, place)
    if only_site is not None or (sites is not None and len(rows) != len(here.rows)):
        check_site(set() if sites is None else set(sites.tolist()), only_site, column, str(data))
        rows, place = take_site(rows, column, only_site, place)
    if len(rows) != len(here.rows):
        raise ValueError(
            f"{data} has {len(rows):,} row(s), the site was adapted on {len(here.rows):,}: give the same rows, in order"
        )
    frame: pd.DataFrame = rows.select(wanted).to_pandas()
    return frame


def _predictions(
    here: Any, rows: "pd.DataFrame", data: Path, proba: tuple[str, ...], decision: str | None
) -> dict[str, Any]:
    """Return the predictions in the form that `expected_performance` reads."""
    import numpy as np

    predictions: dict[str, Any] = {}
    if proba:
        numbers = np.column_stack([_numbers(rows[name], data, name) for name in proba])
        predictions["proba"] = numbers[:, 0] if len(proba) == 1 else numbers
    if decision:
        as_class = {str(label): label for label in here.classes_.tolist()}
        predictions["y_pred"] = np.array([as_class.get(str(value), value) for value in rows[decision]], dtype=object)
    return predictions


def _numbers(column: Any, data: Path, name: str) -> Any:
    import numpy as np
    import pandas as pd

    numbers = np.asarray(pd.to_numeric(column, errors="coerce"), dtype=float)
    bad = np.flatnonzero(np.isnan(numbers))
    if len(bad):
        where = f"row {bad[0]}: {column.iloc[bad[0]]!r}"
        raise ValueError(f"{data}: column {name!r} must hold a number in every row; it does not at {where}")
    return numbers
