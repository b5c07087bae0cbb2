"""Write the tables of the results pages and their figures anew from the records: `make results`.

A table stands between `<!-- table NAME | key=value ... -->` and `<!-- end -->`, where NAME is an experiment of one of
the folders here and the keys are metric, site and draw, as for `sitewise bench table`. One between
`<!-- diagnosis NAME -->` and `<!-- end -->` is about the diagnoses that `images64/diagnose.py` recorded. Files of
records that the code of this tree has not made stand between `<!-- stale -->` and `<!-- end -->`, and are printed.
"""

import gzip
import json
import re
from pathlib import Path

import numpy as np

from sitewise.bench.cli.bench import draw_figure
from sitewise.bench.cli.printing import FigureFormat
from sitewise.bench.experiments import (
    final_runs,
    read_experiment,
    read_records,
    record_state,
    records_path,
    script_fingerprint,
    summarize,
)
from sitewise.bench.report.summary import choose
from sitewise.bench.report.tables import comparison_table

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("results*.md"))
IMAGE = re.compile(r"\(images/(\w+)\.png\)")
BLOCK = re.compile(r"(<!-- table (\w+)((?: \| \w+=[^|]+?)*) -->\n).*?(<!-- end -->)", re.DOTALL)
DIAGNOSIS = re.compile(r"(<!-- diagnosis (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
STALE = re.compile(r"(<!-- stale -->\n).*?(<!-- end -->)", re.DOTALL)
SITE_HEADER = (
    "| site | rows, positive | P(y=1): true | as estimated, by seed | seeds that say do not adapt, and why "
    "| F1: expected | adapted | g as trained | NLL: adapted | as trained |\n" + "|---" * 10 + "|\n"
)


def find_experiment(name):
    """The YAML of an experiment, None where there is no such."""
    return next(iter((ROOT / "experiments").glob(f"*/{name}.yaml")), None)


def read_summary(name):
    """An experiment and the summary of its records."""
    path = find_experiment(name)
    experiment = read_experiment(path)
    return experiment, summarize(experiment, read_records(records_path(experiment, path.parent / "records")))


def write_table(name, options):
    """The Markdown of one table."""
    experiment, frame = read_summary(name)
    metric = options.get("metric", experiment.metric)
    sites, draws = ([options[key]] if key in options else [] for key in ("site", "draw"))
    return comparison_table(choose(frame, metric, sites=sites, draws=draws), metric, "markdown", experiment.reference)


def write_diagnosis(name):
    """A row for each test site of an experiment: what was estimated and said of it, and what was true."""
    path = find_experiment(name).parent / "diagnosis" / f"{name}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    sites = dict.fromkeys(line["site"] for line in lines)
    return SITE_HEADER + "\n".join(_site_row([line for line in lines if line["site"] == site]) for site in sites)


def _site_row(lines):
    first = lines[0]
    stops = [
        finding["name"] for line in lines for finding in line["diagnosis"]["findings"] if finding["severity"] == "stop"
    ]
    against = sum(line["diagnosis"]["verdict"] == "do not adapt" for line in lines)
    why = ", ".join(f"{name} {stops.count(name)}" for name in dict.fromkeys(stops))
    estimates = ", ".join(f"{line['prevalence'][0]:.2f}" for line in lines)

    def mean(kind, metric):
        return f"{np.mean([line[kind][metric] for line in lines]):.2f}"

    expected = f"{np.mean([line['expected']['f1'][0] for line in lines]):.2f}"
    cells = [
        first["site"],
        f"{first['rows']:,}, {first['positives']:,}",
        f"{first['positives'] / first['rows']:.3f}",
        estimates,
    ]
    cells += [f"{against} of {len(lines)}" + (f": {why}" if why else ""), expected]
    cells += [mean(kind, metric) for metric in ("positive_f1", "nll") for kind in ("adapted", "as_trained")]
    return "| " + " | ".join(cells) + " |"


def stale_files():
    """The files of records that other code made, in whole or in part, or that lack runs of their experiment: why."""
    found = {}
    for path in sorted((ROOT / "experiments").glob("*/records/*.jsonl.gz")):
        experiment = read_experiment(path.parents[1] / f"{path.name.removesuffix('.jsonl.gz')}.yaml")
        records = read_records(records_path(experiment, path.parent))
        state = record_state(experiment, records, records[-1]["digits"])
        if not state.is_current:
            found[path] = f"{len(state.current)} runs are current, {len(state.remaining)} are to be done"
    for path in sorted((ROOT / "experiments").glob("*/diagnosis/*.jsonl.gz")):
        script = path.parents[1] / "diagnose.py"
        experiment = read_experiment(path.parents[1] / f"{path.name.removesuffix('.jsonl.gz')}.yaml")
        ids = {run.id for run in final_runs(experiment, {}, experiment.data["kind"])}
        known = {f"{script_fingerprint(script)}-{run_id}" for run_id in ids}
        found |= _made_by_others(path, known)
    for path in sorted((ROOT / "benchmarks").glob("*.jsonl.gz")):
        script = path.with_name(path.name.removesuffix(".jsonl.gz") + ".py")
        found |= _made_by_others(path, {script_fingerprint(script)})
    return found


def _made_by_others(path, known):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        others = sum(json.loads(line).get("fingerprint") not in known for line in file)
    return {path: f"{others} lines are of other code"} if others else {}


def write_stale():
    """The names of stale files as a list."""
    names = [path.relative_to(ROOT).as_posix() for path in stale_files()]
    return "\n".join(f"- `{name}`" for name in names) or "None: the code of this tree made every record."


def rewrite(page):
    """The page with all its tables as the records have them."""

    def renew(block):
        options = dict(part.split("=", 1) for part in block[3].split(" | ")[1:])
        return f"{block[1]}\n{write_table(block[2], options).strip()}\n\n{block[4]}"

    if STALE.search(page):
        page = STALE.sub(lambda block: f"{block[1]}\n{write_stale()}\n\n{block[2]}", page)
    page = DIAGNOSIS.sub(lambda block: f"{block[1]}\n{write_diagnosis(block[2])}\n\n{block[3]}", page)
    return BLOCK.sub(renew, page)


def draw_figures(page):
    """Draw the figures of the page that are experiments'."""
    for name in IMAGE.findall(page):
        if find_experiment(name):
            experiment, frame = read_summary(name)
            draw_figure(experiment, frame, experiment.metric, ROOT / "docs" / "images", FigureFormat.PNG)


if __name__ == "__main__":
    for path, why in stale_files().items():
        print(f"stale: {path.relative_to(ROOT)}: {why}")
    for page in PAGES:
        renewed = rewrite(page.read_text(encoding="utf-8"))
        page.write_text(renewed, encoding="utf-8")
        draw_figures(renewed)
