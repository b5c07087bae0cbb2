"""`sitewise init`: read a table and propose the roles of its columns."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sitewise.cli.output import AsJson, Data, Encoding, Force, Output, Quiet, Separator, check_out

if TYPE_CHECKING:
    from sitewise.estimator.suggesting import Suggestion
    from sitewise.tables.proposing import Proposal

ASKED = {"target": "Column of the label", "site": "Column of the site"}
SHOWN = 15  # columns in the table of a suggestion
CHECK = "check each line before use"


def init(
    data: Data,
    out: Annotated[
        Path | None, typer.Option(help="Write the roles to this file, as TOML; print them otherwise.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column of the label, if known.")] = None,
    site: Annotated[str | None, typer.Option(help="Column of the site, if known.")] = None,
    suggest: Annotated[
        bool,
        typer.Option(
            "--suggest", help="Test which columns to use as z: those whose relation to the label differs between sites."
        ),
    ] = False,
    separator: Separator = None,
    encoding: Encoding = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read a table and propose roles for its columns, with reasons; `sitewise fit --roles` uses them."""
    output = Output(quiet, as_json)
    if out is not None:
        check_out(out, force, reading=[data], suffixes=(".toml",))
    with output.working(f"reading {data}"):
        from sitewise.tables import Roles
        from sitewise.tables.files import open_table
        from sitewise.tables.proposing import propose_roles
        from sitewise.tables.roles import roles_as_toml
        from sitewise.tables.writing import whole_file

        table = open_table(data, separator=separator, encoding=encoding)
        rows = table.read(at_most=100_000)
        known = Roles(target=target, site=site)
        table.find([name for _, name in known.columns()])
        proposal = propose_roles(rows, known)
    if sys.stdin.isatty() and sys.stdout.isatty() and not (quiet or as_json):
        answers = {role: _ask(role, getattr(proposal.roles, role), rows.column_names) for role in ASKED}
        proposal = propose_roles(rows, Roles().updated(**answers))
    suggestion = None
    if suggest:
        with output.working("comparing the sites"):
            proposal, suggestion = suggest_roles(rows, proposal)
    comment = [f"roles of the columns of {data.name}, proposed by sitewise init: {CHECK}"]
    comment += [f"no role: {name} ({why})" for name, why in proposal.left_out.items()]
    toml = roles_as_toml(proposal.roles, proposal.reasons, comment)
    if out is not None:
        with whole_file(out) as part:
            part.write_text(toml, encoding="utf-8")
    record: dict[str, Any] = {
        "roles": asdict(proposal.roles),
        "reasons": proposal.reasons,
        "left_out": proposal.left_out,
        "unsure": list(proposal.unsure),
        "out": None if out is None else str(out),
    }
    tables = [_roles_table(proposal)]
    if suggestion is not None:
        record["suggestion"] = {
            "confounders": suggestion.confounders,
            "columns": suggestion.table.reset_index().to_dict("records"),
            "rehearsal": suggestion.rehearsal.reset_index().to_dict("records"),
        }
        tables += _suggestion_tables(suggestion)
    for text in proposal.unsure:
        output.note(f"unsure: {text}")
    if proposal.roles.target is None:
        output.note("no column looks like the label: name it by --target")
    where = toml if out is None else f"wrote {out}; next: sitewise fit {data} --roles {out} --out model/"
    output.tell(record, *tables, where)


def suggest_roles(rows: Any, proposal: "Proposal") -> "tuple[Proposal, Suggestion]":
    """Return the proposal with the confounders that differences between sites suggest, and the suggestion itself."""
    from dataclasses import replace

    import pandas as pd

    from sitewise.estimator.suggesting import suggest_confounders

    roles = proposal.roles
    if roles.target is None or roles.site is None:
        raise ValueError("--suggest compares the sites' labels: name their columns by --target and --site")
    columns = list(dict.fromkeys([*roles.confounders, *roles.features]))
    frame = rows.to_pandas()
    values = {name: _as_numbers(frame[name]) for name in columns}
    suggestion = suggest_confounders(pd.DataFrame(values), frame[roles.target], frame[roles.site])
    if not suggestion.confounders:
        return proposal, suggestion
    taken = tuple(suggestion.confounders)
    features = tuple(name for name in roles.features if name not in taken) + tuple(
        name for name in roles.confounders if name not in taken and name not in roles.features
    )
    reasons = proposal.reasons | {"confounders": "their relation to the label differs between sites"}
    return replace(proposal, roles=replace(roles, confounders=taken, features=features), reasons=reasons), suggestion


def _as_numbers(column: Any) -> Any:
    """Convert a column to numbers if all its known values are numbers; empty text is missing."""
    import pandas as pd

    known = column.mask(column.astype(str).str.strip() == "")
    numbers = pd.to_numeric(known, errors="coerce")
    return numbers if bool((numbers.notna() == known.notna()).all()) else known


def _suggestion_tables(suggestion: "Suggestion") -> list[Table]:
    """Return a table of the columns, with the clearest difference first, and a table of the gain of each choice."""
    columns = Table(title=f"relation to the label, between sites (Holm, {suggestion.level:g})", title_justify="left")
    for heading in ("column", "p", "adjusted", "suggested"):
        columns.add_column(heading)
    for name, line in suggestion.table.head(SHOWN).iterrows():
        columns.add_row(
            str(name), f"{line['p_value']:.2g}", f"{line['adjusted']:.2g}", "yes" if line["suggested"] else ""
        )
    choices = Table(title="log loss of sites left out, adapted to without labels", title_justify="left")
    for heading in ("z", "as trained", "adapted", "gain over none"):
        choices.add_column(heading)
    for name, line in suggestion.rehearsal.iterrows():
        choices.add_row(str(name), *(f"{line[key]:.4f}" for key in ("as_trained", "adapted", "gain")))
    return [columns, choices]


def _ask(role: str, proposed: str | None, columns: list[str]) -> str | None:
    """Ask for a column on a terminal; an empty answer means none."""
    from sitewise.arrays import did_you_mean

    while True:
        answer = str(typer.prompt(ASKED[role], default=proposed or "", show_default=bool(proposed)))
        if answer in ("", *columns):
            return answer or None
        typer.echo(f"there is no column {answer!r}{did_you_mean(answer, columns)}", err=True)


def _roles_table(proposal: "Proposal") -> Table:
    table = Table(title=CHECK, title_justify="left")
    for name in ("role", "columns", "why"):
        table.add_column(name)
    for role, value in asdict(proposal.roles).items():
        if value:
            shown = value if isinstance(value, str) else ", ".join(value)
            table.add_row(role, shown, proposal.reasons.get(role, "given"))
    for name, why in proposal.left_out.items():
        table.add_row("-", name, why)
    return table
