"""`sitewise monitor`: show an adapted site in time windows."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from sitewise.cli.output import AsJson, Data, Encoding, Force, Output, Packed, Quiet, Separator, check_out, finite

SHOWN = 40  # windows in the table on a terminal
PICTURES = (".png", ".svg", ".pdf")


def monitor(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    data: Data,
    time: Annotated[str, typer.Option(help="Column with dates or numbers.", show_default=False)],
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

        frame = here.monitor(
            read.X,
            read_times(rows[time].to_pandas()),
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


def read_times(column: Any) -> Any:
    """Convert a text column in which all values are numbers to numbers; return other columns unchanged."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if pd.api.types.is_string_dtype(column) and numbers.notna().all() else column


def _window_table(record: dict[str, Any]) -> Table:
    alarms = len({str(line["start"]) for line in record["windows"] if line["alarm"]})
    table = Table(title=f"{record['site']}: {alarms} window(s) with an alarm", title_justify="left")
    for name in ("from", "to", "rows", "class", "P(class)", f"{record['level']:.0%} interval", "p", ""):
        table.add_column(
            name, justify="right" if name in ("rows", "P(class)", "p") else "left", no_wrap=name != "class"
        )
    for line in record["windows"][-SHOWN:]:
        table.add_row(
            *(f"{line[end]:%Y-%m-%d}" if hasattr(line[end], "year") else f"{line[end]:g}" for end in ("start", "end")),
            f"{line['n']:,}",
            str(line["class"]),
            f"{line['estimate']:.3f}",
            f"{line['low']:.3f} to {line['high']:.3f}",
            "" if line["p_value"] is None else f"{line['p_value']:.2g}",
            Text("alarm", style="bold red") if line["alarm"] else "",
        )
    return table
