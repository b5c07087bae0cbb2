"""`sitewise demo`."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table


def demo(
    out: Annotated[Path, typer.Option(help="Folder for demo.json, the figures and the reports.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and training.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version, about half a minute.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the full MNIST; the 5,000 embedded digits otherwise.")
    ] = None,
) -> None:
    """Colored digits: a classifier fails at a shifted site, and GPA repairs it without labels."""
    from sitewise.bench.demo import QUICK, DemoSize, run_demo, write_demo

    console = Console()
    start = time.perf_counter()
    size = QUICK if quick else DemoSize()
    with console.status("starting") as status:

        def say(text: str) -> None:
            console.print(f"[dim]{text}[/dim]", highlight=False)
            status.update(text)

        found = run_demo(seed=seed, size=size, data_dir=None if data_dir is None else str(data_dir), say=say)
        say("writing figures and reports")
        paths = write_demo(found, out)
    for name, site in found.record["sites"].items():
        console.print(demo_table(name, site))
    for path in paths:
        console.print(f"wrote {path}", highlight=False)
    console.print(f"[dim]{time.perf_counter() - start:.0f} s[/dim]", highlight=False)


def demo_table(name: str, site: dict[str, Any]) -> Table:
    """One new site's methods, side by side."""
    table = Table(title=f"{name}, P(y=1) = {site['true_prevalence']:.3f}", title_justify="left")
    for column, justify in (
        ("method", "left"),
        ("positive F1", "right"),
        ("macro F1", "right"),
        ("NLL", "right"),
        ("estimated P(y=1), 95%", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for method, scored in site["methods"].items():
        values = [f"{scored[metric]['value']:.3f}" for metric in ("positive_f1", "macro_f1", "nll")]
        found = scored["prevalence"]
        shown = "" if found is None else f"{found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})"
        table.add_row(method, *values, shown, style="bold" if method == "GPA" else None)
    return table
