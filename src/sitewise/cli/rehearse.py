"""`sitewise rehearse`: what adapting to each training site, left out in turn, did."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sitewise.cli.options import AsJson, Quiet
from sitewise.cli.output import Output, finite

if TYPE_CHECKING:
    import pandas as pd

SHOWN = {"nll_as_trained": "log loss as trained", "nll_adapted": "adapted", "nll_told": "P(y) told", "auroc": "AUROC"}


def rehearse(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder made by `sitewise fit`.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show the rehearsal made by `fit`: each training site left out, adapted to without labels, scored with them."""
    output = Output(quiet, as_json)
    with output.working(f"reading {model}"):
        from sitewise.cli.loading import load_model

        rehearsal = load_model(model).rehearsal_
        lines = rehearsal.table.reset_index().to_dict("records")
        record = {
            "sentence": rehearsal.sentence,
            "kind": rehearsal.kind,
            "numbers": {name: finite(value) for name, value in asdict(rehearsal.numbers).items()},
            "sites": [
                {str(name): value if isinstance(value, str) else finite(value) for name, value in line.items()}
                for line in lines
            ],
        }
    output.tell(record, rehearsal.sentence, *([_site_table(rehearsal.table)] if lines else []))


def _site_table(frame: "pd.DataFrame") -> Table:
    table = Table(title="each site left out in turn", title_justify="left")
    shares = [str(name) for name in frame if str(name).startswith(("prevalence", "as_trained", "adapted"))]
    for name in ("site", "rows", *(share.replace("_", " ") for share in shares), *SHOWN.values()):
        table.add_column(name, justify="left" if name == "site" else "right")
    for site, line in frame.iterrows():
        numbers = [f"{line[name]:.3f}" for name in (*shares, *SHOWN)]
        table.add_row(str(site), f"{line['rows']:,.0f}", *numbers)
    return table
