"""`sitewise sample`: choose rows of a site to label, with weights that keep estimates unbiased."""

from pathlib import Path
from typing import Annotated

import typer

from sitewise.cli.output import AsJson, Data, Encoding, Force, Output, Quiet, Separator, check_out

WEIGHT, ROW = "sample_weight", "sample_row"
NAMED = "{data} has a column {name!r} already: rename it"


def sample(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    data: Data,
    n: Annotated[int, typer.Option("--rows", min=2, help="How many rows to draw.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The rows to label, .csv or .parquet.", show_default=False)],
    only_site: Annotated[
        str | None, typer.Option("--site", help="Use only the rows of this site, if DATA holds several sites.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random draw.")] = 0,
    separator: Separator = None,
    encoding: Encoding = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Draw rows of an adapted site to be labeled; then use `sitewise evaluate --weight sample_weight`."""
    output = Output(quiet, as_json)
    check_out(out, force, reading=[data], suffixes=(".csv", ".parquet"))
    with output.working(f"reading {site} and {data}"):
        from sitewise.cli.expect import read_rows
        from sitewise.cli.loading import load_site
        from sitewise.tables.files import open_table

        here = load_site(site)
        columns = list(open_table(data, separator=separator, encoding=encoding).columns)
        taken = [name for name in (WEIGHT, ROW) if name in columns]
        if taken:
            raise ValueError(NAMED.format(data=data, name=taken[0]))
        rows = read_rows(here, site, data, list(columns), only_site, separator, encoding)[0].to_pandas()
        drawn = here.sample(n, random_state=seed)
        chosen = rows.iloc[drawn.rows].assign(**{ROW: drawn.rows, WEIGHT: drawn.weight})
        from sitewise.tables.writing import whole_file

        with whole_file(out) as part:
            if out.suffix.lower() == ".parquet":
                chosen.to_parquet(part, index=False)
            else:
                chosen.to_csv(part, index=False)
    strata = len(set(drawn.stratum.tolist()))
    record = {"rows": len(drawn), "of": len(rows), "strata": strata, "weight": WEIGHT, "seed": seed, "out": str(out)}
    said = f"wrote {len(drawn):,} of {len(rows):,} rows of {strata} strata to {out}; each represents {WEIGHT} rows"
    output.tell(record, said)
