"""`sitewise init`: look at a table and propose what its columns are for."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sitewise.cli.options import AsJson, Data, Encoding, Force, Quiet, Separator
from sitewise.cli.output import Output, check_out

if TYPE_CHECKING:
    from sitewise.tables import Proposal

ASKED = {"target": "Column of the label", "site": "Column of the site"}
CHECK = "look at each line: whoever knows the data decides"


def init(
    data: Data,
    out: Annotated[Path | None, typer.Option(help="Write the roles there, as TOML; print them otherwise.")] = None,
    target: Annotated[str | None, typer.Option(help="Column of the label, where it is known.")] = None,
    site: Annotated[str | None, typer.Option(help="Column of the site, where it is known.")] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Look at a table and propose roles for its columns, with reasons; `sitewise fit --roles` takes them."""
    output = Output(quiet, as_json)
    if out is not None:
        check_out(out, force, reading=[data], suffixes=(".toml",))
    with output.working(f"reading {data}"):
        from sitewise.tables import Roles, open_table, propose_roles, roles_as_toml, whole_file

        table = open_table(data, separator=separator, encoding=encoding)
        rows = table.read(at_most=100_000)
        known = Roles(target=target, site=site)
        table.find([name for _, name in known.columns()])
        proposal = propose_roles(rows, known)
    if sys.stdin.isatty() and sys.stdout.isatty() and not (quiet or as_json):
        answers = {role: _ask(role, getattr(proposal.roles, role), rows.column_names) for role in ASKED}
        proposal = propose_roles(rows, Roles().updated(**answers))
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
    for text in proposal.unsure:
        output.note(f"unsure: {text}")
    if proposal.roles.target is None:
        output.note("no column looks like the label: name it by --target")
    where = toml if out is None else f"wrote {out}; next: sitewise fit {data} --roles {out} --out model/"
    output.tell(record, _roles_table(proposal), where)


def _ask(role: str, proposed: str | None, columns: list[str]) -> str | None:
    """Ask for a column, on a terminal; an empty answer stands for none."""
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
