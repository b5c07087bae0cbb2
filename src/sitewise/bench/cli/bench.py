"""`sitewise bench run`, `table` and `figure`: run an experiment, and show its records."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from sitewise.bench.cli.printing import FigureFormat, TableFormat, show

if TYPE_CHECKING:
    import pandas as pd

    from sitewise.arrays import Problems
    from sitewise.bench.experiments.experiment import Experiment

app = typer.Typer(help="Run an experiment and show its results.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="EXPERIMENT.yaml", help="The experiment.", show_default=False)]
Out = Annotated[Path, typer.Option(help="Folder of records and figures.")]
Quick = Annotated[bool, typer.Option("--quick", help="The experiment's reduced version.")]
MetricName = Annotated[str | None, typer.Option(help="The metric to show; by default that of the experiment.")]
KINDS = ("points", "curve")
OVER = ("draws", "tests")
KEYS = ("kind", "over", "key", "label", "log")


@app.command()
def run(
    experiment: File,
    out: Out = Path("results"),
    quick: Quick = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at a time; by default one for each core, or as many as a GPU can hold."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    devices: Annotated[str, typer.Option(help="Number of devices that train a network together; auto: all.")] = "1",
    nodes: Annotated[int, typer.Option(min=1, help="Number of machines; start them with torchrun.")] = 1,
    strategy: Annotated[
        str, typer.Option(help="auto, ddp (processes of torchrun) or ddp_spawn (new processes).")
    ] = "auto",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the images, or of MNIST; the 5,000 embedded digits otherwise.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds 0 .. N-1 instead of the experiment's.")] = None,
) -> None:
    """Do the runs that have no record of the current code, then print the table and draw the figure."""
    from sitewise.bench.experiments import run_experiment
    from sitewise.bench.experiments.runner import RunError, records_path
    from sitewise.bench.report.tables import comparison_table
    from sitewise.training import first_process

    plan = _read(experiment, quick, seeds)
    try:
        run_experiment(
            plan,
            out,
            jobs=jobs,
            device=device,
            devices=int(devices) if devices.isdecimal() else devices,
            nodes=nodes,
            strategy=strategy,
            data_dir=data_dir,
        )
    except RunError as error:
        typer.echo(f"sitewise: {error}", err=True)
        raise typer.Exit(1) from error
    if not first_process():
        return
    frame = _summarize(plan, out, experiment)
    show(comparison_table(frame, plan.metric, "terminal", plan.reference))
    _say_wrote(records_path(plan, out))
    _say_wrote(draw_figure(plan, frame, plan.metric, out, FigureFormat.PNG))


@app.command()
def table(
    experiment: File,
    out: Out = Path("results"),
    quick: Quick = False,
    metric: MetricName = None,
    format: Annotated[TableFormat, typer.Option(help="Format of the table.")] = TableFormat.TERMINAL,
    site: Annotated[list[str] | None, typer.Option(help="Show this test site only; may be repeated.")] = None,
    draw: Annotated[list[str] | None, typer.Option(help="Show this draw only; may be repeated.")] = None,
) -> None:
    """Print the experiment's table: means over seeds with 95% intervals and paired differences to its reference."""
    from sitewise.bench.report.summary import choose
    from sitewise.bench.report.tables import comparison_table

    plan = _read(experiment, quick)
    frame = _summarize(plan, out, experiment)
    shown = choose(frame, metric or plan.metric, sites=site or (), draws=draw or ())
    show(comparison_table(shown, metric or plan.metric, format.value, plan.reference))


@app.command()
def figure(
    experiment: File,
    out: Out = Path("results"),
    quick: Quick = False,
    metric: MetricName = None,
    format: Annotated[FigureFormat, typer.Option(help="The file to write.")] = FigureFormat.PNG,
) -> None:
    """Draw the experiment's figure into the folder of its records."""
    plan = _read(experiment, quick)
    frame = _summarize(plan, out, experiment)
    _say_wrote(draw_figure(plan, frame, metric or plan.metric, out, format))


def _read(path: Path, quick: bool, seeds: int | None = None) -> "Experiment":
    from sitewise.bench.experiments import read_experiment
    from sitewise.bench.report.summary import meant

    if not path.is_file():
        near = meant(path.name, sorted(other.name for other in path.parent.glob("*.y*ml")))
        raise FileNotFoundError(f"there is no experiment {path}{near}")
    plan = read_experiment(path, quick=quick)
    if seeds is None:
        return plan
    if plan.tuning is not None and seeds < plan.tuning.seeds:
        raise ValueError(
            f"{path} tunes its methods over {plan.tuning.seeds} seeds: --seeds must not be fewer, got {seeds}"
        )
    return replace(plan, seeds=seeds)


def _summarize(plan: "Experiment", out: Path, path: Path) -> "pd.DataFrame":
    from sitewise.bench.experiments import summarize
    from sitewise.bench.experiments.records import read_records
    from sitewise.bench.experiments.runner import records_path

    records = read_records(records_path(plan, out))
    if not records:
        command = f"sitewise bench run {path} --out {out}{' --quick' if plan.quick else ''}"
        raise ValueError(f"there are no records of {plan.name} in {out}; make them with: {command}")
    return summarize(plan, records)


def draw_figure(plan: "Experiment", frame: "pd.DataFrame", metric: str, out: Path, format: FigureFormat) -> Path:
    """Draw the figure of an experiment into a folder."""
    from sitewise.bench.experiments.runner import records_path
    from sitewise.bench.report.comparison import comparison_figure, curve_figure, save_figure

    draws = {draw.name: draw.plain() for draw in plan.draws}
    curve = read_curve(plan.figure, draws, {site.name: site.options for site in plan.tests})
    if curve is None:
        drawn = comparison_figure(frame, metric, plan.reference or "", title=plan.title)
    else:
        drawn = curve_figure(
            frame,
            metric,
            curve.numbers,
            over=curve.over,
            label=curve.label,
            log=curve.log,
            reference=plan.reference or "",
            title=plan.title,
        )
    name = records_path(plan, out).stem + (f".{metric}" if metric != plan.metric else "")
    return save_figure(drawn, out / f"{name}.{format.value}")


def _say_wrote(path: Path) -> None:
    Console().print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Curve:
    """A curve over the draws or the test sites: a number for each of them, and the label and scale of the x-axis."""

    over: Literal["draw", "site"]
    numbers: dict[str, float]
    label: str
    log: bool


def read_curve(
    spec: Mapping[str, Any], draws: Mapping[str, Mapping[str, Any]], tests: Mapping[str, Mapping[str, Any]]
) -> Curve | None:
    """Return the curve that `figure: {kind: curve, ...}` describes; None if the kind is points.

    The number of a draw is its `adapt`, or its `score` if it has no `adapt`. The number of a test site is the value of
    its option `key`; sites without this option are not drawn.
    """
    from sitewise.arrays import Problems
    from sitewise.bench.report.summary import meant

    problems = Problems("figure")
    for unknown in (key for key in spec if key not in KEYS):
        problems.add(f"{unknown} is not a key here{meant(str(unknown), KEYS)}")
    kind, over, key = spec.get("kind", "points"), spec.get("over", "draws"), str(spec.get("key", ""))
    for name, value, known in (("kind", kind, KINDS), ("over", over, OVER)):
        if value not in known:
            problems.add(f"{name} must be {' or '.join(known)}, got {value!r}{meant(str(value), known)}")
    if kind == "curve" and over == "tests":
        _check_key(key, tests, problems)
    problems.raise_if_any()
    if kind == "points":
        return None
    log = bool(spec.get("log", False))
    if over == "draws":
        sizes = {name: float(draw.get("adapt") or draw["score"]) for name, draw in draws.items()}
        return Curve("draw", sizes, str(spec.get("label", "unlabeled samples")), log)
    numbers = {name: float(site[key]) for name, site in tests.items() if _is_number(site.get(key))}
    return Curve("site", numbers, str(spec.get("label", key)), log)


def _check_key(key: str, tests: Mapping[str, Mapping[str, Any]], problems: "Problems") -> None:
    """Add a problem if no test site has a number for the option `key`."""
    from sitewise.bench.report.summary import meant

    options = sorted({option for site in tests.values() for option, value in site.items() if _is_number(value)})
    if key not in options:
        problems.add(f"key must name an option of the test sites that is a number, got {key!r}{meant(key, options)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
