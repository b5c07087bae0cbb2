"""`sitewise fit`: train a model on a labeled table of several sites, and save it."""

import time
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
    OutcomeName,
    Output,
    Packed,
    Positive,
    Quiet,
    Separator,
    check_out,
    finite,
)

if TYPE_CHECKING:
    from sitewise.tables import Roles, TableReader
    from sitewise.tables.files import TableFile
    from sitewise.tables.reader import ReadRows
    from sitewise.tables.values import Place

NO_TARGET = "name the column of the label by --target; `sitewise init {data}` proposes roles for all columns"
MOST_SITES = 20  # largest number of sites in the table of the summary


class Sees(StrEnum):
    """The inputs of an existing classifier: x, x and z, or unknown."""

    X = "x"
    XZ = "xz"
    AUTO = "auto"


def fit(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for the model.", show_default=False)],
    target: Annotated[str | None, typer.Option(help="Column of the label.")] = None,
    site: Annotated[str | None, typer.Option(help="Column of the site: hospital, scanner, country.")] = None,
    confounder: Annotated[
        list[str] | None, typer.Option(help="Column that P(y) may depend on: age, sex; repeated.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Columns that predict: a,b; otherwise all columns without a role.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="Column with the path of an image, instead of features.")] = None,
    proba: Annotated[
        str | None,
        typer.Option(
            help="Columns of a classifier's probabilities: p0,p1 in the order of the classes, or of the second one."
        ),
    ] = None,
    classes: Annotated[str | None, typer.Option(help="The labels in the order of --proba; sorted otherwise.")] = None,
    classifier_sees: Annotated[
        Sees, typer.Option(help="Whether z is among the inputs of the classifier behind --proba: xz, or x alone.")
    ] = Sees.AUTO,
    group: Annotated[str | None, typer.Option(help="Column of groups that are never split: the patient.")] = None,
    id: Annotated[str | None, typer.Option(help="Column that identifies a row, kept in predictions.")] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(help="Column whose numbers are categories; repeated.")
    ] = None,
    roles: Annotated[Path | None, typer.Option(help="TOML file with these roles, from `sitewise init`.")] = None,
    leave_out: Annotated[list[str] | None, typer.Option(help="Site to leave out of training; repeated.")] = None,
    validation_site: Annotated[
        str | None, typer.Option(help="Site held out for calibration; otherwise a share of each site.")
    ] = None,
    backbone: Annotated[str, typer.Option(help="Network: auto, mlp, cnn, monai:resnet50 ...")] = "auto",
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of training epochs.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Pixels of an image's side.")] = 224,
    channels: Annotated[int, typer.Option(help="3 for RGB, 1 for gray.")] = 3,
    packed: Packed = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of splits and training.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    outcome_name: OutcomeName = None,
    positive: Positive = None,
    intended_use: Annotated[str | None, typer.Option(help="Intended use, for its card and reports.")] = None,
    contact: Annotated[str | None, typer.Option(help="Contact, for its card and reports.")] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on a labeled table of several sites, and save it together with the roles of the columns."""
    start = time.perf_counter()
    output = Output(quiet, as_json)
    check_out(out, force, reading=[data])
    with output.working(f"reading {data}"):
        import sitewise as sw
        from sitewise.cli.loading import open_pack
        from sitewise.tables import Roles as NoRoles
        from sitewise.tables import TableReader
        from sitewise.tables.files import open_table
        from sitewise.tables.reader import ImageInput
        from sitewise.tables.roles import read_roles, split_names

        table = open_table(data, separator=separator, encoding=encoding)
        given = (read_roles(roles) if roles else NoRoles()).updated(
            target=target,
            site=site,
            confounders=confounder,
            features=split_names(features),
            image=image,
            proba=split_names(proba),
            classes=split_names(classes),
            group=group,
            id=id,
            categorical=categorical,
        )
        if given.target is None:
            raise ValueError(NO_TARGET.format(data=data))
        described = _with_inputs(given, table, output)
        rows, place = _rows(table, described, leave_out or [])
        reader = TableReader.learn(rows, described, image=ImageInput(size, channels), place=place)
        read = reader.read(rows, place=place, root=data.parent, packed=open_pack(packed))
    own = {name for _, name in described.columns()}
    extra = [name for name in table.columns if name not in own]
    if extra:
        output.note(f"column(s) without a role are ignored: {', '.join(extra)}")
    if reader.input_kind == "proba":
        _refuse(**{"--validation-site": validation_site, "--epochs": epochs, "--backbone": backbone != "auto"})
        model: Any = sw.PrevalenceAdjuster(classifier_sees=classifier_sees.value, random_state=seed)
    else:
        validation = 0.2 if validation_site is None else validation_site
        options: dict[str, Any] = {"device": device, "verbose": output.bars, "random_state": seed}
        model = sw.GPAClassifier(backbone, epochs=epochs, validation=validation, **options)
    with output.gathering():
        model.fit(read.X, read.y, sample_domain=read.site, sample_confounder=read.Z, groups=read.groups)
    model.table_reader_ = reader
    said = {"outcome_name": outcome_name, "positive": positive, "intended_use": intended_use, "contact": contact}
    model.about_ = {name: value for name, value in said.items() if value is not None}
    model.save(out)
    record = _record(model, reader, read, out) | {"seconds": round(time.perf_counter() - start, 1)}
    output.tell(record, _sites_table(record), *_sentences(record))


def _with_inputs(roles: "Roles", table: "TableFile", output: Output) -> "Roles":
    """Return roles with inputs. If none are given, propose an image, probabilities, or all possible features."""
    from sitewise.tables.proposing import propose_roles

    table.find([name for _, name in roles.columns()])
    if roles.features or roles.image or roles.proba:
        return roles
    proposal = propose_roles(table.read(at_most=100_000), roles)
    proposed = proposal.roles
    if proposed.image or proposed.proba:
        output.note(f"inputs are {proposed.image or ', '.join(proposed.proba)} (guessed); --features names others")
        return roles.updated(image=proposed.image, proba=proposed.proba)
    named = {name for _, name in roles.columns()}
    features = [name for name in table.columns if name in proposed.features or name in proposed.confounders]
    chosen = [name for name in features if name not in named]
    for name, why in proposal.left_out.items():
        output.note(f"column {name!r} is not used as a feature: {why}; name it in --features to use it")
    return roles.updated(features=chosen)


def _rows(table: "TableFile", roles: "Roles", leave_out: list[str]) -> "tuple[Any, Place]":
    """Return the rows to train on, and their place in the file."""
    from dataclasses import replace

    import numpy as np

    from sitewise.cli.loading import check_site, sites_of
    from sitewise.tables.values import Place

    rows, place = table.read([name for _, name in roles.columns()]), Place(str(table.path))
    if not leave_out:
        return rows, place
    sites = sites_of(rows, roles.site, place)
    if sites is None:
        raise ValueError("--leave-out needs the column of the site, by --site")
    for name in leave_out:
        check_site(set(sites.tolist()), name, roles.site, str(table.path))
    kept = np.flatnonzero(~np.isin(sites, leave_out))
    if not len(kept):
        raise ValueError(f"{table.path}: every site is left out: nothing remains to train on")
    return rows.take(kept), replace(place, kept=kept)


def _refuse(**needless: Any) -> None:
    given = [name for name, value in needless.items() if value]
    if given:
        raise ValueError(f"{', '.join(given)} is for features and images: probabilities need no network")


def _record(model: Any, reader: "TableReader", read: "ReadRows", out: Path) -> dict[str, Any]:
    from sitewise.estimator.files.card import held_out_metrics

    sites = [
        {
            "site": str(site.name),
            "rows": site.n_rows,
            "shares": [count / max(site.n_rows, 1) for count in site.class_counts],
        }
        for site in model.training_summary_.sites
    ]
    inputs = {
        "features": [feature.name for feature in reader.features],
        "image": [reader.roles.image] if reader.roles.image else [],
        "proba": list(reader.roles.proba),
    }[reader.input_kind]
    return {
        "model": str(out),
        "kind": type(model).__name__,
        "rows": len(read),
        "classes": list(reader.classes),
        "inputs": inputs,
        "input_columns": len(reader.feature_columns) or len(inputs),
        "confounders": list(reader.roles.confounders),
        "sites": sites,
        "rehearsal": model.rehearsal_.sentence,
        "held_out": {name: finite(value) for name, value in held_out_metrics(model).items()},
    }


def _sites_table(record: dict[str, Any]) -> Table:
    """Return a table with a line for each training site."""
    table = Table(title=f"{record['rows']:,} labeled rows of {len(record['sites'])} site(s)", title_justify="left")
    table.add_column("site")
    table.add_column("rows", justify="right")
    for label in record["classes"]:
        table.add_column(f"P({label})", justify="right")
    for site in record["sites"][:MOST_SITES]:
        table.add_row(site["site"], f"{site['rows']:,}", *(f"{share:.3f}" for share in site["shares"]))
    if len(record["sites"]) > MOST_SITES:
        table.add_row(f"and {len(record['sites']) - MOST_SITES} more", "")
    return table


def _sentences(record: dict[str, Any]) -> list[str]:
    said = [f"classes: {', '.join(map(str, record['classes']))}"]
    if len(record["classes"]) == 2:
        said[0] += f"; thresholds and F1 are about {record['classes'][1]}"
    shown = ", ".join(record["inputs"][:12]) + (", ..." if len(record["inputs"]) > 12 else "")
    said.append(
        f"inputs: {shown} ({record['input_columns']} column(s)); z: {', '.join(record['confounders']) or 'none'}"
    )
    if record["held_out"]:
        metrics = (f"{name} {value:.3f}" for name, value in record["held_out"].items() if value is not None)
        said.append(f"on held-out rows of these sites: {', '.join(metrics)}")
    said.append(record["rehearsal"])
    said.append(f"wrote {record['model']} in {record['seconds']:.0f} s; next: sitewise adapt {record['model']} DATA")
    return said
