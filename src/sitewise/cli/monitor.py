"""`sitewise monitor`: show an adapted site in time windows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from sitewise.cli.output import AsJson, Data, Encoding, Force, Output, Packed, Quiet, Separator, check_out, finite

if TYPE_CHECKING:
    import pandas as pd

    from sitewise.tables.values import Place, Rows

SHOWN = 40  # windows in the table on a terminal
PICTURES = (".png", ".svg", ".pdf")
ISO = r"\d{4}-\d{2}-\d{2}([T ].+)?"
OFFSET = r"[T ].*(Z|[+-]\d{2}(?::?\d{2})?)$"  # from UTC, at the end of an ISO time
TIME_FORMATS = ("%Y-%m-%d", "%Y-%m-%d\n%H:%M %Z", "%Y-%m-%d\n%H:%M:%S %Z")  # two lines fit into a narrow terminal
NO_TIME = (
    "{where}: expected a date or a number, got {value} in {row}{more}: write dates as YYYY-MM-DD, and leave out rows "
    "without a time"
)
TOO_SHORT = (
    "--window {window} is too short: {n:,} row(s) over {span} need windows of at least {shortest} to have one row each "
    "on average; give a longer time, or a number of rows"
)


def monitor(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    data: Data,
    time: Annotated[str, typer.Option(help="Column with dates (YYYY-MM-DD) or numbers.", show_default=False)],
    window: Annotated[
        str, typer.Option(help="Rows in a window (500), or a length of time (30D, W, MS).", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The figure, .png, .svg or .pdf.", show_default=False)],
    only_site: Annotated[
        str | None, typer.Option("--site", help="Use only the rows of this site, if DATA holds several sites.")
    ] = None,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Confidence level of the intervals.")] = 0.95,
    alarm_level: Annotated[
        float, typer.Option(min=1e-6, max=0.5, help="Probability of an alarm in any window if nothing changed.")
    ] = 0.05,
    packed: Packed = None,
    separator: Separator = None,
    encoding: Encoding = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show the prevalence of an adapted site over time, with alarms where the stability check fails."""
    output = Output(quiet, as_json)
    check_out(out, force, reading=[data], suffixes=PICTURES)
    with output.working(f"reading {site} and {data}"):
        from sitewise.cli.loading import check_site, load_site, open_pack, reader_of, sites_of, take_site
        from sitewise.tables.files import open_table
        from sitewise.tables.values import Place

        here = load_site(site)
        reader = reader_of(here.model, site)
        table = open_table(data, separator=separator, encoding=encoding)
        table.find([time])
        wanted = reader.columns(table.columns, labels=False)
        output.note(*reader.notes([name for name in table.columns if name != time or name in wanted]))
        rows, place = table.read(list(dict.fromkeys([time, *wanted]))), Place(str(data))
        sites = sites_of(rows, reader.roles.site, place)
        check_site(set() if sites is None else set(sites.tolist()), only_site, reader.roles.site, str(data))
        rows, place = take_site(rows, reader.roles.site, only_site, place)
        read = reader.read(rows, labels="none", place=place, root=data.parent, packed=open_pack(packed))
    with output.working(f"checking {len(read):,} rows"):
        from sitewise.report.timeline import timeline_figure
        from sitewise.tables.writing import whole_file

        times = read_times(rows, time, place)
        check_window(window, times)
        frame = here.monitor(
            read.X,
            times,
            read.Z,
            window=int(window) if window.isdecimal() else window,
            groups=read.groups,
            level=level,
            alarm_level=alarm_level,
        )
        name = only_site or here.site_name or site.resolve().name
        with whole_file(out) as part:
            timeline_figure(frame, title=name).savefig(part, format=out.suffix[1:].lower(), dpi=150)
    windows = [
        {key: finite(value) if isinstance(value, float) else value for key, value in line.items()}
        for line in frame.to_dict("records")
    ]
    record = {
        "outcome": here.outcome.to_dict(),
        "site": name,
        "picture": str(out),
        "level": level,
        "alarm_level": alarm_level,
        "windows": windows,
    }
    output.tell(record, here.outcome.sentence, _window_table(record), f"wrote {out}")


def read_times(rows: "Rows", name: str, place: "Place") -> "pd.Series":
    """Read a column of dates or of numbers; raise ValueError for other cells, and for dates that are not ISO dates."""
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    from sitewise.tables.values import known_text, plain

    column = plain(rows.column(name))
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        times: pd.Series = column.to_pandas()
    elif pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        times = pd.to_datetime(column.to_pandas())
    else:
        times = _times_of_text(known_text(column).to_pandas())
    strange = np.flatnonzero(times.isna() | times.isin([np.inf, -np.inf]))
    if len(strange):
        value = column[int(strange[0])].as_py()
        said = {"where": place.column(name), "value": "nothing" if value in (None, "") else repr(value)}
        raise ValueError(NO_TIME.format(**said, **place.row(strange)))
    return times


def _times_of_text(cells: "pd.Series") -> "pd.Series":
    """Return ISO dates or numbers, whichever most cells are; missing where a cell is something else.

    Times with different offsets from UTC, as around a clock change, become UTC.
    """
    import pandas as pd

    numbers = pd.to_numeric(cells, errors="coerce")
    offsets = cells.str.extract(OFFSET, expand=False).fillna("")
    iso = cells.where(cells.str.fullmatch(ISO).fillna(False).astype(bool))
    dates = pd.to_datetime(iso, format="ISO8601", errors="coerce", utc=offsets.nunique() > 1)
    return numbers if numbers.notna().sum() > dates.notna().sum() else dates


def check_window(window: str, times: "pd.Series") -> None:
    """Raise ValueError for a length of less than a day that gives more windows than rows, or is below the times' unit.

    Other windows that are wrong are reported by `monitor`.
    """
    import pandas as pd

    try:
        length = pd.tseries.frequencies.to_offset(window)
    except ValueError:
        return
    if not isinstance(length, pd.offsets.Tick) or not pd.api.types.is_datetime64_any_dtype(times):
        return
    span = times.max() - times.min()
    shortest = max(span / len(times), pd.Timedelta(1, times.dt.unit))
    if length.nanos > 0 and pd.Timedelta(length) < min(shortest, pd.Timedelta(days=1)):
        said = {"n": len(times), "span": span, "shortest": shortest.ceil("s")}
        raise ValueError(TOO_SHORT.format(window=window, **said))


def _window_table(record: dict[str, Any]) -> Table:
    alarms = len({str(line["start"]) for line in record["windows"] if line["alarm"]})
    table = Table(title=f"{record['site']}: {alarms} window(s) with an alarm", title_justify="left")
    for name in ("from", "to", "rows", "class", "P(class)", f"{record['level']:.0%} interval", "p", ""):
        table.add_column(
            name, justify="right" if name in ("rows", "P(class)", "p") else "left", no_wrap=name != "class"
        )
    lines = record["windows"][-SHOWN:]
    for line, ends in zip(lines, _shown_ends(lines), strict=True):
        table.add_row(
            *ends,
            f"{line['n']:,}",
            str(line["class"]),
            f"{line['estimate']:.3f}",
            f"{line['low']:.3f} to {line['high']:.3f}",
            "" if line["p_value"] is None else f"{line['p_value']:.2g}",
            Text("alarm", style="bold red") if line["alarm"] else "",
        )
    return table


def _shown_ends(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the first and the last time of each window as text, with times of day if dates alone are ambiguous."""
    ends = [(line["start"], line["end"]) for line in lines]
    if not hasattr(ends[0][0], "year"):
        return [(f"{start:g}", f"{end:g}") for start, end in ends]
    for form in TIME_FORMATS:
        shown = [(start.strftime(form).strip(), end.strftime(form).strip()) for start, end in ends]
        if len(set(shown)) == len(set(ends)):
            break
    return shown
