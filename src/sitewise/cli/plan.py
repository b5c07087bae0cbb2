"""`sitewise plan`: how many unlabeled samples are enough, from labeled source data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from sitewise.samplesize import SamplePlan


def plan(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA|MODEL", help="Labeled held-out rows (CSV, Parquet), or a saved model.", show_default=False
        ),
    ],
    target: Annotated[str | None, typer.Option(help="Column of the label.")] = None,
    proba: Annotated[
        str | None, typer.Option(help="Columns of a classifier's probabilities, in the classes' order: p0,p1.")
    ] = None,
    log_ratio: Annotated[
        str | None, typer.Option(help="Columns of calibrated log-ratios instead of probabilities: l0,l1.")
    ] = None,
    confounder: Annotated[list[str] | None, typer.Option(help="Column that P(y) depends on; may be repeated.")] = None,
    categorical: Annotated[list[str] | None, typer.Option(help="Confounder whose numbers are categories.")] = None,
    classes: Annotated[str | None, typer.Option(help="The labels in the columns' order; sorted otherwise.")] = None,
    classifier_sees: Annotated[str, typer.Option(help="What gave the probabilities: x, or xz for x and z.")] = "x",
    width: Annotated[float | None, typer.Option(help="Wanted width of the prevalence interval.")] = None,
    kl: Annotated[float | None, typer.Option(help="Wanted KL(g, estimate).")] = None,
    f1_loss: Annotated[float | None, typer.Option(help="Wanted loss of F1 against knowing g.")] = None,
    prevalence: Annotated[
        str | None, typer.Option(help="Assumed P(y) at the new site: P(y=1), or all classes with commas.")
    ] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    simulations: Annotated[int, typer.Option(min=0, help="Simulated sites of each size.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated sites.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    out: Annotated[Path | None, typer.Option(help="Draw the curve there, PNG or PDF.")] = None,
) -> None:
    """How many unlabeled samples are enough for a wanted interval or loss, from labeled source data alone."""
    if out is not None and out.suffix.lower() not in (".png", ".pdf"):
        raise ValueError(f"--out must end in .png or .pdf, got {out}")
    wanted: dict[str, Any] = {
        "width": width,
        "kl": kl,
        "f1_loss": f1_loss,
        "prevalence": _read_prevalence(prevalence),
        "level": level,
        "n_simulations": simulations,
        "random_state": seed,
    }
    console = Console(stderr=True)
    with console.status("reading") as status:
        wanted["say"] = status.update
        if data.is_dir():
            _refuse_with_model(target=target, proba=proba, log_ratio=log_ratio, confounder=confounder, classes=classes)
            found = _plan_of_model(data, wanted)
        else:
            sees = (classes, classifier_sees)
            found = _plan_of_table(data, target, proba, log_ratio, confounder or [], categorical or [], *sees, wanted)
    record = found.to_dict()
    if as_json:
        typer.echo(json.dumps(record, indent=1))
    else:
        Console().print(plan_table(found))
        typer.echo(_sentence(found))
    if out is not None:
        from sitewise.report.planning import plan_figure, save_plan_figure

        typer.echo(f"wrote {save_plan_figure(plan_figure(record), out)}", err=as_json)


def plan_table(found: "SamplePlan") -> Table:
    """A line for each size, the answer's in bold."""
    shares = ", ".join(f"{share:.3g}" for share in found.prevalence)
    table = Table(
        title=f"P(y) = {shares}; {found.level:.0%} intervals; {found.n_source:,} labeled rows", title_justify="left"
    )
    for name in ("unlabeled rows", "width, information", "width, simulated", "KL(g, estimate)", "F1 lost"):
        table.add_column(name, justify="right")
    for point in found.points:
        simulated = (
            (point.simulated_width, point.simulated_width_error),
            (point.kl, point.kl_error),
            (point.f1_loss, point.f1_loss_error),
        )
        cells = ["" if mean is None else f"{mean:.4f} ± {error:.4f}" for mean, error in simulated]
        style = "bold" if point.n == found.answer else None
        table.add_row(f"{point.n:,}", f"{point.width:.4f}", *cells, style=style)
    return table


def _sentence(found: "SamplePlan") -> str:
    floor = f"However many rows: KL {found.floor_kl:.4f}, F1 lost {found.floor_f1_loss:.4f} (what f leaves open)."
    return f"{found}. {floor}"


def _read_prevalence(text: str | None) -> Any:
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--prevalence must be numbers with commas between, such as 0.1 or 0.9,0.1, got {text!r}"
        ) from None
    return values[0] if len(values) == 1 else values


def _refuse_with_model(**options: Any) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise ValueError(f"a saved model brings its own labeled rows: leave {', '.join(given)} out")


def _plan_of_model(path: Path, wanted: dict[str, Any]) -> "SamplePlan":
    import sitewise as sw

    model = sw.load(path)
    return getattr(model, "model", model).plan(**wanted)  # type: ignore[no-any-return]


def _plan_of_table(
    path: Path,
    target: str | None,
    proba: str | None,
    log_ratio: str | None,
    confounder: list[str],
    categorical: list[str],
    classes: str | None,
    classifier_sees: str,
    wanted: dict[str, Any],
) -> "SamplePlan":
    from sitewise.arrays import Problems
    from sitewise.cli.tables import class_numbers, find_columns, numbers, probabilities, read_table
    from sitewise.confounders import Confounders
    from sitewise.samplesize import plan_sample_size
    from sitewise.samplesize.probabilities import SEES, log_ratio_from_probability

    frame = read_table(path)
    problems = Problems("plan")
    if target is None:
        problems.add("name the column of the label by --target")
    if (proba is None) == (log_ratio is None):
        problems.add("give --proba, columns of probabilities, or --log-ratio, columns of calibrated log-ratios")
    if classifier_sees not in SEES:
        problems.add(f"--classifier-sees must be x or xz, got {classifier_sees!r}")
    if classifier_sees == "xz" and not confounder:
        problems.add("--classifier-sees xz needs the confounders, by --confounder")
    stray = [name for name in categorical if name not in confounder]
    if stray:
        problems.add(f"--categorical {', '.join(stray)} is not among the confounders: add --confounder {stray[0]}")
    names = [name.strip() for name in (proba or log_ratio or "").split(",") if name.strip()]
    if len(names) < 2 and (proba or log_ratio):
        problems.add(f"a column for each class is needed, at least two, got {proba or log_ratio}")
    there = find_columns(frame, [*([] if target is None else [target]), *names, *confounder], path, problems)
    if problems.found or not there:
        problems.raise_if_any()
    assert target is not None
    given = None if classes is None else [name.strip() for name in classes.split(",")]
    y = class_numbers(frame[target], given, len(names), path, problems)
    matrix = (probabilities if proba is not None else numbers)(frame, names, path, problems)
    problems.raise_if_any()
    Z = frame[confounder] if confounder else None
    schema = None if Z is None else Confounders.learn(Z, categorical or None)
    if proba is not None:
        matrix = log_ratio_from_probability(matrix, y, Z, classifier_sees)
    return plan_sample_size(matrix, y, Z, confounders=schema, **wanted)
