"""`sitewise plan`: plan, from labeled source data, how many unlabeled rows or labels are enough."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from sitewise.cli.output import AsJson, Encoding, Force, Output, Quiet, Separator, check_out

if TYPE_CHECKING:
    from sitewise.estimator.model import SiteModel
    from sitewise.samplesize import LabelPlan, SamplePlan

NEEDED = "name the column of the label with --target and a classifier's probabilities with --proba p0,p1"


def plan(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA|MODEL", help="Labeled held-out rows (CSV, Parquet), or a saved model.", show_default=False
        ),
    ],
    target: Annotated[str | None, typer.Option(help="Column of the label.")] = None,
    proba: Annotated[
        str | None,
        typer.Option(
            help="Columns of a classifier's probabilities: p0,p1 in the order of the classes, or of the second one."
        ),
    ] = None,
    classes: Annotated[str | None, typer.Option(help="The labels in the order of --proba; sorted otherwise.")] = None,
    confounder: Annotated[list[str] | None, typer.Option(help="Column that P(y) may depend on; repeated.")] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(help="Confounder whose numbers are categories; repeated.")
    ] = None,
    width: Annotated[float | None, typer.Option(help="Wanted width of the prevalence interval.")] = None,
    kl: Annotated[float | None, typer.Option(help="Wanted KL(g, estimate).")] = None,
    f1_loss: Annotated[float | None, typer.Option(help="Wanted loss of F1 compared with the true g.")] = None,
    labels: Annotated[
        bool, typer.Option("--labels", help="Plan how many rows of the site to label, for --width or --log-loss.")
    ] = False,
    log_loss: Annotated[
        float | None, typer.Option(help="With --labels: wanted log loss above that of the true f and P(y).")
    ] = None,
    rows: Annotated[int, typer.Option(min=20, help="With --labels: rows of the site.")] = 1000,
    prevalence: Annotated[
        str | None,
        typer.Option(help="Assumed P(y) at the new site: of the second class, or of all classes, with commas."),
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    simulations: Annotated[int, typer.Option(min=0, help="Simulated sites of each size.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated sites.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Draw the curve to this file, PNG or PDF.")] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """From labeled source data, plan how many unlabeled rows, or labels, of a new site are enough for a wanted goal."""
    output = Output(quiet, as_json)
    if out is not None:
        check_out(out, force, reading=[data], suffixes=(".png", ".pdf"))
    wanted = {
        "width": width,
        "kl": kl,
        "f1_loss": f1_loss,
        "prevalence": _read_prevalence(prevalence),
        "level": level,
        "n_simulations": simulations,
        "random_state": seed,
    }
    if labels:
        check_no_rows_wanted(kl, f1_loss, out)
        wanted = {name: wanted[name] for name in ("width", "prevalence", "level", "n_simulations", "random_state")}
        wanted |= {"log_loss": log_loss, "rows": rows}
    elif log_loss is not None:
        raise ValueError("--log-loss is a target for labels: add --labels")
    roles = {
        "target": target,
        "proba": proba,
        "classes": classes,
        "confounders": confounder,
        "categorical": categorical,
    }
    with output.working(f"planning from {data}"):
        model = _saved_model(data, roles) if data.is_dir() else _model_of_table(data, roles, separator, encoding)
        if labels:
            needed = model.plan_labels(**wanted)
            output.tell(needed.to_dict(), labels_table(needed), f"{needed}.")
            return
        needed_rows = model.plan(**wanted)
    record = needed_rows.to_dict()
    parts: list[RenderableType] = [str(needed_rows), plan_table(needed_rows), _sentence(needed_rows)]
    if out is not None:
        from sitewise.report.planning import plan_figure, save_plan_figure

        save_plan_figure(plan_figure(record), out)
        parts.append(f"wrote {out}")
    output.tell(record, *parts)


def plan_table(plan: "SamplePlan") -> Table:
    """Return a table with a line for each number of rows; the answer is in bold."""
    shares = ", ".join(f"{share:.3g}" for share in plan.prevalence)
    title = f"P(y) = {shares}; {plan.level:.0%} intervals; {plan.n_source:,} labeled rows"
    table = Table(title=title, title_justify="left")
    for name in ("unlabeled rows", "width, information", "width, simulated", "KL(g, estimate)", "F1 lost"):
        table.add_column(name, justify="right")
    for point in plan.points:
        simulated = (
            (point.simulated_width, point.simulated_width_error),
            (point.kl, point.kl_error),
            (point.f1_loss, point.f1_loss_error),
        )
        cells = ["" if mean is None else f"{mean:.4f} ± {error:.4f}" for mean, error in simulated]
        style = "bold" if point.n == plan.answer else None
        table.add_row(f"{point.n:,}", f"{point.width:.4f}", *cells, style=style)
    return table


def check_no_rows_wanted(kl: float | None, f1_loss: float | None, out: Path | None) -> None:
    """Raise ValueError for options that cannot be used with --labels."""
    given = [name for name, value in (("--kl", kl), ("--f1-loss", f1_loss), ("--out", out)) if value is not None]
    if given:
        raise ValueError(f"--labels can be combined with --width or --log-loss only: leave {', '.join(given)} out")


def labels_table(plan: "LabelPlan") -> Table:
    """Return a table with a line for each number of labels."""
    shares = ", ".join(f"{share:.3g}" for share in plan.prevalence)
    title = f"P(y) = {shares}; {plan.rows:,} rows; {plan.n_simulations} simulated sites"
    table = Table(title=title, title_justify="left")
    for name in ("labels", f"width of the {plan.level:.0%} interval", "log loss above the true one's"):
        table.add_column(name, justify="right")
    for point in plan.points:
        means = ((point.width, point.width_error), (point.log_loss, point.log_loss_error))
        table.add_row(f"{point.n:,}", *(f"{mean:.4f} ± {error:.4f}" for mean, error in means))
    return table


def _sentence(plan: "SamplePlan") -> str:
    return f"any number of rows: width {plan.floor_width:.4f}, KL {plan.floor_kl:.4f}, F1 lost {plan.floor_f1_loss:.4f}"


def _read_prevalence(text: str | None) -> Any:
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        message = f"--prevalence must be numbers with commas between, such as 0.1 or 0.9,0.1, got {text!r}"
        raise ValueError(message) from None
    return values[0] if len(values) == 1 else values


def _saved_model(path: Path, roles: dict[str, Any]) -> "SiteModel":
    from sitewise.cli.loading import load_model

    given = [f"--{name.removesuffix('s') if name == 'confounders' else name}" for name, value in roles.items() if value]
    if given:
        raise ValueError(f"a saved model has its own labeled rows: leave {', '.join(given)} out")
    model: SiteModel = load_model(path)
    return model


def _model_of_table(path: Path, roles: dict[str, Any], separator: str | None, encoding: str | None) -> "SiteModel":
    """Fit a model for planning to the classifier's probabilities in a table."""
    from sitewise.estimator import PrevalenceAdjuster
    from sitewise.tables import Roles, TableReader
    from sitewise.tables.files import open_table
    from sitewise.tables.roles import split_names
    from sitewise.tables.values import Place

    table = open_table(path, separator=separator, encoding=encoding)
    if not (roles["target"] and roles["proba"]):
        raise ValueError(f"{path}: {NEEDED}")
    names = {name: split_names(roles[name]) for name in ("proba", "classes")}
    described = Roles().updated(**(roles | names))
    table.find([name for _, name in described.columns()])
    rows, place = table.read([name for _, name in described.columns()]), Place(str(path))
    reader = TableReader.learn(rows, described, place=place)
    read = reader.read(rows, place=place)
    return PrevalenceAdjuster().fit(read.X, read.y, sample_domain=[path.name] * len(read), sample_confounder=read.Z)
