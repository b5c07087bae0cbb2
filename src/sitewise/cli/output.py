"""The options that commands share, checks of output paths, and printing: a summary, JSON or nothing, with notes."""

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from sitewise.diagnosis import Diagnosis

THERE = "{path} exists already: choose another --out, or replace it with --force"
NO_PLACE = "{path} cannot be written: the folder {folder} is read-only for you; choose another --out"
SAME = "--out {path} is the input table: choose another file"
VERDICT_STYLES = {"adapt": "bold green", "care": "bold yellow", "do not adapt": "bold red"}
Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="CSV (.csv, .csv.gz, .tsv) or Parquet, a row for each sample.")
]


def read_separator(given: str | None) -> str | None:
    """Return the separator that a user names; a tab cannot be typed in every shell."""
    return "\t" if given in ("\\t", "tab") else given


def read_encoding(given: str | None) -> str | None:
    """Return "utf-8" for every spelling of it; other names are unchanged."""
    return "utf-8" if given is not None and given.lower().replace("_", "-") in ("utf-8", "utf8") else given


Separator = Annotated[
    str | None,
    typer.Option(
        help="Separator of a CSV, such as ; or tab; by default a comma (.tsv: a tab).", callback=read_separator
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(help="Encoding of a CSV, for example latin-1; by default UTF-8.", callback=read_encoding),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing --out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of the summary.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors and what --json asks for.")]
OutcomeName = Annotated[str | None, typer.Option(help="Name of the outcome in reports; by default its column.")]
Positive = Annotated[str | None, typer.Option(help="Name of the second of two classes in reports.")]
Packed = Annotated[Path | None, typer.Option(help="Read images from this folder, made by `sitewise data pack`.")]


def check_out(out: Path, force: bool, *, reading: Iterable[Path] = (), suffixes: tuple[str, ...] = ()) -> None:
    """Raise an error, before long work begins, if a path must not or cannot be written."""
    from sitewise.tables.files import check_name

    check_name(out)
    if suffixes and out.suffix.lower() not in suffixes:
        raise ValueError(f"--out must end in {' or '.join(suffixes)}, got {out}")
    if any(path.exists() and out.exists() and path.samefile(out) for path in reading):
        raise ValueError(SAME.format(path=out))
    if suffixes and out.is_dir():
        raise ValueError(f"--out {out} is a folder: name a file in it, such as {out / ('result' + suffixes[0])}")
    if not force and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(THERE.format(path=out))
    folder = next(parent for parent in out.resolve().parents if parent.exists())
    if not folder.is_dir():
        raise ValueError(f"--out {out} lies below {folder}, which is a file: choose another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(NO_PLACE.format(path=out, folder=folder))


@dataclass
class Output:
    """The output of a command: JSON with notes, or a summary with notes, or nothing."""

    quiet: bool = False
    as_json: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def bars(self) -> bool | None:
        """Whether progress is shown; None means only on a terminal."""
        return False if self.quiet else None

    def note(self, *texts: str) -> None:
        """Add notes to print later; duplicates are dropped."""
        self.notes += [text for text in texts if text not in self.notes]

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Collect warnings as notes."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        kinds = (DeprecationWarning, PendingDeprecationWarning, ResourceWarning)  # warnings of libraries, not for users
        self.note(*(str(warning.message) for warning in caught if not issubclass(warning.category, kinds)))

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show the current step on a terminal, and collect warnings as notes."""
        console = Console(stderr=True)
        with self.gathering():
            if self.quiet or not console.is_terminal:
                yield
                return
            with console.status(text):
                yield

    def tell(self, record: dict[str, Any], *parts: RenderableType) -> None:
        """With `as_json`, print the record and the notes as JSON; otherwise, unless `quiet`, print parts and notes."""
        if self.as_json:
            typer.echo(json.dumps(record | {"notes": self.notes}, indent=1, allow_nan=False, default=str))
            return
        if self.quiet:
            return
        console = Console(soft_wrap=not sys.stdout.isatty())
        for part in parts:
            console.print(Text(part) if isinstance(part, str) else part)
        for text in self.notes:
            console.print(Text.assemble(("note: ", "yellow"), text))


def finite(value: Any) -> float | None:
    """Return a number for JSON; None if it is missing or not finite."""
    number = None if value is None else float(value)
    return number if number is not None and number == number and abs(number) != float("inf") else None


def outcome_text(diagnosis: "Diagnosis", *, all_findings: bool = False) -> Text:
    """Return the outcome at a site with its reason and risk, the verdict, and findings that need care, with advice.

    If `all_findings` is true, all findings are included.
    """
    assert diagnosis.outcome is not None
    said = Text.assemble((diagnosis.outcome.sentence, "bold"), f"\n{diagnosis.outcome.risk}\nverdict: ")
    said.append(diagnosis.verdict, VERDICT_STYLES[diagnosis.verdict])
    for finding in diagnosis.findings:
        if all_findings:
            said.append(f"\n  {finding}")
        elif finding.severity in ("care", "stop"):
            said.append(f"\n  {finding.name}: {finding.sentence} {finding.advice}".rstrip())
    return said
