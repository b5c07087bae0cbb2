"""Write the tables of the results pages and their figures anew from the records: `make results`.

A table stands between `<!-- table NAME | key=value ... -->` and `<!-- end -->`, where NAME is an experiment of one of
the folders here and the keys are metric, site and draw, as for `sitewise bench table`.
"""

import re
from pathlib import Path

from sitewise.benchmark import read_experiment, read_records, records_path, summarize
from sitewise.cli.bench import draw_figure
from sitewise.cli.printing import FigureFormat
from sitewise.report.summary import choose
from sitewise.report.tables import comparison_table

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("results*.md"))
IMAGE = re.compile(r"\(images/(\w+)\.png\)")
BLOCK = re.compile(r"(<!-- table (\w+)((?: \| \w+=[^|]+?)*) -->\n).*?(<!-- end -->)", re.DOTALL)


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


def rewrite(page):
    """The page with all its tables as the records have them."""

    def renew(block):
        options = dict(part.split("=", 1) for part in block[3].split(" | ")[1:])
        return f"{block[1]}\n{write_table(block[2], options).strip()}\n\n{block[4]}"

    return BLOCK.sub(renew, page)


def draw_figures(page):
    """Draw the figures of the page that are experiments'."""
    for name in IMAGE.findall(page):
        if find_experiment(name):
            experiment, frame = read_summary(name)
            draw_figure(experiment, frame, experiment.metric, ROOT / "docs" / "images", FigureFormat.PNG)


if __name__ == "__main__":
    for page in PAGES:
        renewed = rewrite(page.read_text(encoding="utf-8"))
        page.write_text(renewed, encoding="utf-8")
        draw_figures(renewed)
