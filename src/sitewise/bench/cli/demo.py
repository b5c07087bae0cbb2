"""`sitewise demo`."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table


def demo(
    out: Annotated[Path, typer.Option(help="Folder for demo.json, the figures and the reports.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and training.")] = 21,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter training, about half the time.")] = False,
) -> None:
    """Digits on colored paper: a classifier fails at shifted sites, and GPA repairs it without labels."""
    from sitewise.bench.demo import QUICK, DemoSize, run_demo, write_demo

    console = Console()
    start = time.perf_counter()
    with console.status("starting") as status:

        def say(text: str) -> None:
            console.print(f"[dim]{text}[/dim]", highlight=False)
            status.update(text)

        demonstration = run_demo(seed=seed, size=QUICK if quick else DemoSize(), say=say)
        say("writing figures and reports")
        paths = write_demo(demonstration, out)
    console.print(rehearsal_table(demonstration.record["rehearsal"]))
    for name, site in demonstration.record["sites"].items():
        console.print(demo_table(name, site))
        console.print(site["outcome"], highlight=False, soft_wrap=True)
    for path in paths:
        console.print(f"wrote {path}", highlight=False)
    console.print(f"[dim]{time.perf_counter() - start:.0f} s[/dim]", highlight=False)


def rehearsal_table(rehearsal: dict[str, Any]) -> Table:
    """Return a table of the rehearsal: a row for each training site, which was left out and then adapted to."""
    table = Table(title=f"Rehearsal: {rehearsal['sentence']}", title_justify="left")
    for column in ("left out", "P(y=1)"):
        table.add_column(column)
    table.add_column("estimated P(y=1), 95%")
    for column in ("log loss as trained", "adapted"):
        table.add_column(column, justify="right")
    for site in rehearsal["sites"]:
        losses = [f"{site[name]:.3f}" for name in ("nll_as_trained", "nll_adapted")]
        estimate = f"{site['adapted']:.3f} ({site['low']:.3f} to {site['high']:.3f})"
        table.add_row(site["site"], f"{site['prevalence']:.3f}", estimate, *losses)
    return table


def demo_table(name: str, site: dict[str, Any]) -> Table:
    """Return a table of the scores of a new site, with a row for each method."""
    table = Table(title=f"{name}, P(y=1) = {site['true_prevalence']:.3f}", title_justify="left")
    for column, justify in (
        ("method", "left"),
        ("F1 of y=1", "right"),
        ("macro F1", "right"),
        ("NLL", "right"),
        ("estimated P(y=1), 95%", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for method, scored in site["methods"].items():
        values = [f"{scored[metric]['value']:.3f}" for metric in ("positive_f1", "macro_f1", "nll")]
        prevalence = scored["prevalence"]
        shown = (
            ""
            if prevalence is None
            else f"{prevalence['value']:.3f} ({prevalence['low']:.3f} to {prevalence['high']:.3f})"
        )
        table.add_row(method, *values, shown, style="bold" if method == "GPA" else None)
    return table
