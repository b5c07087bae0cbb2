"""`sitewise adapt`: adapt a saved model to a new site's unlabeled rows, and print a summary."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sitewise.cli.output import (
    AsJson,
    Data,
    Encoding,
    Force,
    Output,
    Packed,
    Quiet,
    Separator,
    check_out,
    finite,
    outcome_text,
)
from sitewise.report.wording import by_labels, rows_here

if TYPE_CHECKING:
    from sitewise.estimator.model import SiteModel

LABELS_THERE = "column {name!r} holds labels, which are not used; add --use-labels to use them"
SHOWN_METRICS = ("positive_f1", "macro_f1", "recall", "specificity", "precision", "auroc", "accuracy", "nll", "brier")


OLD_FALLBACK = (
    "--fallback is the old name of --policy: leave it out for --policy auto, which predicts as trained if a check fails"
)


class Policy(StrEnum):
    """Who decides how far the rows of the new site are trusted."""

    AUTO = "auto"
    AS_TRAINED = "as-trained"
    ROWS = "rows"


class Aim(StrEnum):
    """The quantity that the threshold maximizes."""

    F1 = "f1"


def adapt(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder made by `sitewise fit`.")],
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for the adapted site.", show_default=False)],
    site: Annotated[
        str | None, typer.Option(help="Use only the rows of this site, if DATA holds several sites.")
    ] = None,
    site_name: Annotated[str | None, typer.Option(help="What reports call the site.")] = None,
    sensitivity: Annotated[
        float | None, typer.Option(min=0, max=1, help="Choose the highest threshold with this expected sensitivity.")
    ] = None,
    maximize: Annotated[Aim | None, typer.Option(help="Choose the threshold with the highest expected F1.")] = None,
    policy: Annotated[
        Policy,
        typer.Option(
            help="How far the rows are trusted: as rehearsal and checks allow (auto), not at all (as-trained), or "
            "completely, by maximum likelihood (rows, for research)."
        ),
    ] = Policy.AUTO,
    fallback: Annotated[str | None, typer.Option(hidden=True)] = None,
    known: Annotated[
        str | None,
        typer.Option(
            "--prevalence",
            help="Known P(y) of the site: 0.12 (of the second class), or 0.12,0.1,0.14 with a 95% interval.",
        ),
    ] = None,
    prevalence_table: Annotated[
        Path | None,
        typer.Option(help="Known P(y) by strata of the confounders: a CSV with columns of z, prevalence (low, high)."),
    ] = None,
    use_labels: Annotated[bool, typer.Option("--use-labels", help="Use the known labels of DATA.")] = False,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Confidence level of the intervals.")] = 0.95,
    packed: Packed = None,
    separator: Separator = None,
    encoding: Encoding = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Adapt a saved model to a new site from unlabeled rows: prevalence, verdict, expected performance, threshold."""
    output = Output(quiet, as_json)
    check_out(out, force, reading=[data, model])
    if sensitivity is not None and maximize is not None:
        raise ValueError("give --sensitivity or --maximize, not both: there is one threshold")
    if fallback is not None:
        output.note(OLD_FALLBACK)
    with output.working(f"reading {model} and {data}"):
        from sitewise.cli.loading import check_site, load_model, open_pack, reader_of, sites_of, take_site
        from sitewise.estimator.at_site.showing import class_names
        from sitewise.tables.files import open_table
        from sitewise.tables.values import Place

        trained = load_model(model)
        reader = reader_of(trained, model)
        table = open_table(data, separator=separator, encoding=encoding)
        output.note(*reader.notes(table.columns))
        target = reader.roles.target
        if target in table.columns and not use_labels:
            output.note(LABELS_THERE.format(name=target))
        wanted = reader.columns(table.columns, labels=False) + ([target] if use_labels and target else [])
        rows, place = table.read(wanted), Place(str(data))
        sites = sites_of(rows, reader.roles.site, place)
        check_site(set() if sites is None else set(sites.tolist()), site, reader.roles.site, str(data))
        rows, place = take_site(rows, reader.roles.site, site, place)
        labels = "some" if use_labels else "none"
        read = reader.read(rows, labels=labels, place=place, root=data.parent, packed=open_pack(packed))
    with output.working(f"adapting to {len(read):,} rows"):
        settings = {
            "policy": policy.value.replace("-", " "),
            "fallback": fallback,
            "known_prevalence": _read_known(known, prevalence_table, trained, separator, encoding),
        }
        here = trained.adapt(read.X, sample_confounder=read.Z, y=read.y, groups=read.groups, **settings)
        here.site_name = site_name or site or out.name
        diagnosis = here.diagnose()
        choice = None
        if sensitivity is not None or maximize is not None:
            choice = here.choose_threshold(sensitivity=sensitivity, level=level)
        low, high = here.prevalence_interval(level=level)
        known_y = here.rows.y
        prevalence = zip(here.classes_.tolist(), class_names(trained), here.prevalence(), low, high, strict=True)
        record = {
            "outcome": here.outcome.to_dict(),
            "verdict": diagnosis.verdict,
            "site": here.site_name,
            "out": str(out),
            "rows": len(read),
            "labels": 0 if known_y is None else int((~known_y.isnan()).sum()),
            "level": level,
            "prevalence": [
                {"class": label, "name": name, "estimate": finite(p), "low": finite(a), "high": finite(b)}
                for label, name, p, a, b in prevalence
            ],
            "converged": bool(here.estimate.converged),
            "diagnosis": {"findings": diagnosis.to_dict()["findings"]},
            "expected_performance": here.expected_performance(level=level).to_dict(),
            "threshold": None if choice is None else choice.to_dict(),
        }
        here.save(out)
    outcome_line = outcome_text(diagnosis)
    output.tell(record, outcome_line, _prevalence_table(record), _expected_table(record), *_sentences(record))


def _read_known(
    text: str | None, table: Path | None, trained: "SiteModel", separator: str | None, encoding: str | None
) -> Any:
    """Return the value of --prevalence or --prevalence-table in the form that `adapt` reads; None if not given."""
    if text is not None and table is not None:
        raise ValueError("give --prevalence or --prevalence-table, not both")
    if table is not None:
        z = () if trained.confounders_ is None else trained.confounders_.names
        return _read_strata(table, z, separator, encoding)
    if text is None:
        return None
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--prevalence must be 0.12, or 0.12,0.1,0.14 with an interval, got {text!r}") from None
    return values[0] if len(values) == 1 else values


def _read_strata(path: Path, z: Sequence[str], separator: str | None, encoding: str | None) -> Any:
    """Return a table of known prevalences as a DataFrame; in a CSV, columns of z may hold numbers, levels or ranges."""
    import pandas as pd

    from sitewise.arrays import Problems
    from sitewise.tables.features import holds_numbers
    from sitewise.tables.files import open_table
    from sitewise.tables.values import Place, known_text, numbers, plain

    file = open_table(path, separator=separator, encoding=encoding)
    rows = file.read()
    if file.separator is None:
        return rows.to_pandas()
    problems = Problems("prevalence-table")
    columns = {
        name: numbers(rows, name, Place(str(path)), problems)
        if name not in z or holds_numbers(rows, name)
        else known_text(plain(rows.column(name))).to_pandas()
        for name in file.columns
    }
    problems.raise_if_any()
    return pd.DataFrame(columns)


def _prevalence_table(record: dict[str, Any]) -> Table:
    table = Table(title=f"{record['site']}: {rows_here(record['rows'], record['labels'])}", title_justify="left")
    table.add_column("class")
    table.add_column("P(class) here", justify="right")
    table.add_column(f"{record['level']:.0%} interval")
    for line in record["prevalence"]:
        table.add_row(line["name"], f"{line['estimate']:.4f}", f"{line['low']:.4f} to {line['high']:.4f}")
    return table


def _expected_table(record: dict[str, Any]) -> Table:
    metrics = record["expected_performance"]["metrics"]
    table = Table(title=f"expected here, {by_labels(record['labels'])}", title_justify="left")
    table.add_column("metric")
    table.add_column("estimate", justify="right")
    table.add_column(f"{record['level']:.0%} interval")
    for name in (name for name in SHOWN_METRICS if name in metrics):
        value = metrics[name]
        if value["estimate"] is not None:
            table.add_row(name, f"{value['estimate']:.3f}", f"{value['low']:.3f} to {value['high']:.3f}")
    return table


def _sentences(record: dict[str, Any]) -> list[str]:
    said = []
    choice = record["threshold"]
    if choice is not None:
        said.append(
            f"threshold {choice['threshold']:.4g} ({choice['rule']}): "
            f"calls {choice['n_called']:,} of {record['rows']:,} rows positive"
        )
    out = record["out"]
    return [*said, f"wrote {out}; next: sitewise predict {out} DATA --out p.csv, sitewise report {out} --out r.html"]
