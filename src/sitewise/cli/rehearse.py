"""`sitewise rehearse`: show the results of adapting to each training site, left out in turn."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sitewise.cli.output import AsJson, Output, Quiet, finite

if TYPE_CHECKING:
    import pandas as pd

LOSSES = {"nll_as_trained": "as trained", "nll_adapted": "adapted", "nll_told": "known P(y)"}


def rehearse(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder made by `sitewise fit`.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show the rehearsal made by `fit`: each training site left out, adapted to without labels, scored with labels."""
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
    output.tell(record, rehearsal.sentence, *(_site_tables(rehearsal.table) if lines else ()))


def _site_tables(frame: "pd.DataFrame") -> tuple[Table, Table]:
    """Return a table of log loss and AUROC at each site, and one of its prevalence: by labels, as trained, adapted."""
    losses = Table(title="log loss at each site, left out in turn", title_justify="left")
    shares = Table(title="prevalence there: by the labels, as trained, adapted", title_justify="left")
    classes = [str(name) for name in frame if str(name).startswith(("prevalence", "as_trained", "adapted"))]
    for table, names in ((losses, [*LOSSES.values(), "AUROC"]), (shares, [name.replace("_", " ") for name in classes])):
        for name in ("site", "rows", *names):
            table.add_column(name, justify="left" if name == "site" else "right")
    for site, line in frame.iterrows():
        for table, columns in ((losses, [*LOSSES, "auroc"]), (shares, classes)):
            table.add_row(str(site), f"{line['rows']:,.0f}", *(f"{line[name]:.3f}" for name in columns))
    return losses, shares
