"""Rewrite the tables and figures of the results pages, the demo and two guides from the records: `make results`.

The text between one of these comments and `<!-- end -->` is generated. NAME is an experiment in a subfolder of
experiments/, or a study in benchmarks/.

- `<!-- table NAME | key=value ... -->`: one metric, as in `sitewise bench table`; the keys are metric, site and draw.
- `<!-- scores NAME | site=SITE | draw=DRAW -->`: positive-class F1, macro F1 and NLL side by side.
- `<!-- claims -->`, `<!-- claims NAME -->`: the claims of the paper with verdicts from the records (`claims.py`).
- `<!-- diagnosis NAME -->`: the diagnoses that `images64/diagnose.py` recorded.
- `<!-- study NAME | table=2 -->`: the output of `python benchmarks/NAME.py table benchmarks/NAME.jsonl.gz`; with
  `table`, only its second Markdown table, say.
- `<!-- hospitals NAME | classifier=... -->`: real tables with each site in turn as the new site: the mean NLL of every
  classifier, or, with `classifier`, a row for each site.
- `<!-- labels -->`: the study of few labels, with a row for each collection and a column for each number of labels.
- `<!-- stale -->`: the files of records that were not made by the current code; they are also printed.
"""

import contextlib
import gzip
import importlib.util
import io
import json
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "experiments"), str(ROOT / "benchmarks")]

from claims import claims_table  # noqa: E402

from sitewise.bench.cli.bench import draw_figure  # noqa: E402
from sitewise.bench.cli.printing import FigureFormat  # noqa: E402
from sitewise.bench.experiments import read_experiment, summarize  # noqa: E402
from sitewise.bench.experiments.fingerprint import script_fingerprint  # noqa: E402
from sitewise.bench.experiments.plan import final_runs  # noqa: E402
from sitewise.bench.experiments.records import read_records  # noqa: E402
from sitewise.bench.experiments.runner import records_path  # noqa: E402
from sitewise.bench.experiments.state import record_state  # noqa: E402
from sitewise.bench.report.summary import choose  # noqa: E402
from sitewise.bench.report.tables import comparison_table, scores_table  # noqa: E402

OVERVIEW = ROOT / "docs" / "results.md"
OTHERS = [ROOT / "docs" / f"{name}.md" for name in ("demo", "known_labels", "guides/heart", "guides/gusto")]
PAGES = [OVERVIEW, *OTHERS, *sorted((ROOT / "docs" / "results").glob("*.md"))]
IMAGE = re.compile(r"\((?:\.\./)?images/(\w+)\.png\)")
BLOCK = re.compile(
    r"(<!-- (table|scores|claims|diagnosis|study|hospitals|labels|stale)(?: (\w+))?((?: \| \w+=[^|\n]+?)*) -->\n)"
    r".*?(<!-- end -->)",
    re.DOTALL,
)
MARKDOWN_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
METRICS = ("positive_f1", "macro_f1", "nll")
NOT_RUN = "Not run yet."
HARMLESS = 0.005  # an increase of the log loss by labels that counts as none
SITE_HEADER = (
    "| site | rows, positive | P(y=1): true | as estimated, by seed | seeds that say do not adapt, and why "
    "| F1: expected | adapted | g as trained | NLL: adapted | as trained |\n" + "|---" * 10 + "|\n"
)


def find_experiment(name):
    """Return the path of an experiment's YAML; None if there is no such experiment."""
    return next(iter((ROOT / "experiments").glob(f"*/{name}.yaml")), None)


@cache
def read_summary(name, reference=None):
    """Return an experiment and the summary of its records, with differences to its reference or to another method."""
    path = find_experiment(name)
    experiment = read_experiment(path)
    if reference is not None:
        experiment = replace(experiment, reference=reference)
    return experiment, summarize(experiment, read_records(records_path(experiment, path.parent / "records")))


def write_table(name, options):
    """Return the Markdown table of one metric."""
    experiment, frame = read_summary(name)
    if frame["mean"].isna().all():
        return NOT_RUN
    metric = options.get("metric", experiment.metric)
    return comparison_table(_chosen(frame, metric, options), metric, "markdown", experiment.reference)


def write_scores(name, options):
    """Return the Markdown table of three metrics side by side."""
    experiment, frame = read_summary(name)
    if frame["mean"].isna().all():
        return NOT_RUN
    places = [_chosen(frame, metric, options).index for metric in METRICS]
    return scores_table(frame.loc[np.concatenate(places)], METRICS, "markdown", experiment.reference)


def _chosen(frame, metric, options):
    sites, draws = ([options[key]] if key in options else [] for key in ("site", "draw"))
    return choose(frame, metric, sites=sites, draws=draws)


def write_claims(name, options):
    """Return the table of the claims about one experiment, or of all claims."""
    return claims_table(lambda experiment, reference: read_summary(experiment, reference)[1], name)


@cache
def load_script(name):
    """Load a script of benchmarks/ by its path: an installed package may have the same name."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def write_study(name, options):
    """Return the output of a study's command `table`, as Markdown or as preformatted text."""
    script = load_script(name)
    printed = io.StringIO()
    command = [f"{name}.py", "table", str(ROOT / "benchmarks" / f"{name}.jsonl.gz")]
    with patch.object(sys, "argv", command), contextlib.redirect_stdout(printed):
        script.main()
    text = "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())
    if "table" in options:
        return MARKDOWN_TABLE.findall(f"{text}\n")[int(options["table"]) - 1]
    return text if re.search(r"^\|", text, re.MULTILINE) else f"```text\n{text}\n```"


def write_hospitals(name, options):
    """Return a Markdown table of the study of real tables: means over sites, or the sites with one classifier."""
    script = load_script("real_tables")
    table = script.frame(read_records(ROOT / "benchmarks" / "real_tables.jsonl.gz"))
    if "classifier" in options:
        return "\n".join(script.sites_table(table, name, options["classifier"]))
    return "\n".join(script.short_table(table, name))


def write_labels(name, options):
    """Return a Markdown table of the study of few labels: mean log losses, and the sites where labels do no harm."""
    script = load_script("labels")
    records = read_records(ROOT / "benchmarks" / "labels.jsonl.gz")
    sites = pd.DataFrame(list(script.lines(records))).groupby(["data", "site", "n"], sort=False).mean().reset_index()
    numbers = sorted(sites["n"].unique())
    lines = ["| | sites | " + " | ".join(f"{n} labels" for n in numbers) + " |", "|---|---|" + "---|" * len(numbers)]
    for data, own in sites.groupby("data", sort=False):
        cells = [str(data), str(own["site"].nunique())]
        cells += [_labels_cell(own[own["n"] == n]) for n in numbers]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _labels_cell(sites):
    losses = [sites[kind].mean() for kind in ("as trained", "no labels", "labels")]
    said = [f"{loss:.3f}" for loss in losses]
    if losses[2] == min(losses):
        said[2] = f"**{said[2]}**"
    return f"{' / '.join(said)}, {int((sites['change'] <= HARMLESS).sum())} of {len(sites)}"


def write_diagnosis(name, options):
    """Return a table with a row for each test site of an experiment: estimates, verdicts and true values."""
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


@cache
def stale_files():
    """Return the files whose records are partly or completely made by other code, or incomplete: {path: reason}."""
    stale = {}
    for path in sorted((ROOT / "experiments").glob("*/records/*.jsonl.gz")):
        experiment = read_experiment(path.parents[1] / f"{path.name.removesuffix('.jsonl.gz')}.yaml")
        records = read_records(records_path(experiment, path.parent))
        state = record_state(experiment, records, records[-1]["digits"])
        if not state.is_current:
            stale[path] = f"{len(state.current)} runs are current, {len(state.remaining)} are to be done"
    for path in sorted((ROOT / "experiments").glob("*/diagnosis/*.jsonl.gz")):
        script = path.parents[1] / "diagnose.py"
        experiment = read_experiment(path.parents[1] / f"{path.name.removesuffix('.jsonl.gz')}.yaml")
        ids = {run.id for run in final_runs(experiment, {}, experiment.data["kind"])}
        known = {f"{script_fingerprint(script)}-{run_id}" for run_id in ids}
        stale |= made_by_others(path, known)
    for path in sorted((ROOT / "benchmarks").glob("*.jsonl.gz")):
        script = path.with_name(path.name.removesuffix(".jsonl.gz") + ".py")
        stale |= made_by_others(path, {script_fingerprint(script)})
    return stale


def made_by_others(path, known):
    """Return {path: reason} if a file has lines without one of the known fingerprints, otherwise an empty dict."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        others = sum(json.loads(line).get("fingerprint") not in known for line in file)
    return {path: f"{others} lines are of other code"} if others else {}


def write_stale(name, options):
    """Return the names of stale files as a Markdown list."""
    names = [path.relative_to(ROOT).as_posix() for path in stale_files()]
    return "\n".join(f"- `{name}`" for name in names) or "None: the code of this tree made every record."


WRITERS = {
    "table": write_table,
    "scores": write_scores,
    "claims": write_claims,
    "diagnosis": write_diagnosis,
    "study": write_study,
    "hospitals": write_hospitals,
    "labels": write_labels,
    "stale": write_stale,
}


def rewrite(page):
    """Return the text of a page with all tables generated again from the records."""

    def renew(block):
        options = dict(part.split("=", 1) for part in block[4].split(" | ")[1:])
        return f"{block[1]}\n{WRITERS[block[2]](block[3], options).strip()}\n\n{block[5]}"

    return BLOCK.sub(renew, page)


def draw_figures(page):
    """Draw the figures of the page that show experiments."""
    for name in IMAGE.findall(page):
        if find_experiment(name):
            experiment, frame = read_summary(name)
            if frame["mean"].notna().any():
                draw_figure(experiment, frame, experiment.metric, ROOT / "docs" / "images", FigureFormat.PNG)


if __name__ == "__main__":
    for path, why in stale_files().items():
        print(f"stale: {path.relative_to(ROOT)}: {why}")
    for page in PAGES:
        renewed = rewrite(page.read_text(encoding="utf-8"))
        page.write_text(renewed, encoding="utf-8")
        draw_figures(renewed)
