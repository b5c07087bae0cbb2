"""Write the tables and the figure of docs/scale.md from the records of `benchmarks/scale.py`."""

import json
import re
from pathlib import Path

import numpy as np
from scale import GROWTH

ROOT = Path(__file__).parents[1]
RECORDS, PAGE, FIGURE = ROOT / "benchmarks/scale.jsonl", ROOT / "docs/scale.md", ROOT / "docs/images/scale.png"
BLOCK = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
WORKING = 0.01  # GB; smaller values of working memory are noise
PLAN_ROWS, PLAN_PARTITION_ROWS, PLAN_WORKERS = 10**11, 16_000_000, (100, 400, 1_000)
BYTES_A_ROW, KEPT_BYTES_A_ROW = 8, 4  # for two classes: log f in single precision; the part of it that is kept
NIGHT_SITES, NIGHT_CORES = 10_000, (2, 16, 64)


def read(path=RECORDS):
    """Read the records by part and size; of several records of a size, the last one counts."""
    records = {}
    for record in map(json.loads, Path(path).read_text(encoding="utf-8").splitlines()):
        records.setdefault(record["part"], {})[record["size"]] = record
    return {part: {size: by_size[size] for size in sorted(by_size)} for part, by_size in records.items()}


def exponent(sizes, values):
    """Return the slope of log values as a function of log sizes, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def upper(values):
    """Return the values of the larger half of the sizes, and at least three values if there are three."""
    return values[-max(len(values) // 2 + 1, min(3, len(values))) :]


def markdown(head, rows):
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def growth(by_part):
    """Return a table of time and working memory of every part, with their exponents over the larger sizes."""
    rows = []
    for part, (_, name, fixed) in GROWTH.items():
        records = list(by_part[part].values())
        sizes, seconds = [r["size"] for r in records], [r["seconds"] for r in records]
        large = [(r["size"], r["working_gb"]) for r in records if r.get("working_gb", 0.0) > WORKING]
        memory = [f"{max(0.0, r['working_gb']):.2f}" if "working_gb" in r else "-" for r in (records[0], records[-1])]
        rows.append(
            (
                name,
                fixed,
                f"{sizes[0]:,} to {sizes[-1]:,}",
                f"{seconds[0]:.3g} to {seconds[-1]:.3g}",
                f"{exponent(upper(sizes), upper(seconds)):.2f}",
                "-" if memory[1] == "-" else " to ".join(memory),
                f"{exponent(*zip(*upper(large), strict=True)):.2f}" if len(large) > 1 else "-",
            )
        )
    head = ("against", "held fixed", "sizes", "processor seconds", "exponent", "working memory, GB", "exponent")
    return markdown(head, rows)


def nightly(records):
    """Return a table of the time of a run over many sites, computed from the largest measured number of sites."""
    record = list(records["sites"].values())[-1]
    processor = 2 * record["seconds"] / record["size"]
    rows = [
        (f"{record['size']} sites, each of two processes, measured", f"{record['seconds']:.0f} s of processor time"),
        ("the same by the clock", f"{record['wall_seconds']:.0f} s at a load of {record['load']:.1f} on two cores"),
        ("one site", f"{processor:.2f} s of one core"),
    ]
    for cores in NIGHT_CORES:
        minutes = NIGHT_SITES * processor / cores / 60
        rows.append((f"{NIGHT_SITES:,} sites on {cores} cores, computed", f"{minutes:.1f} minutes of processor time"))
    return markdown(("run", "time"), rows)


def partitions(records):
    """Return a table of the measurements on a LocalCluster."""
    rows = []
    for part, name in (("dask", "Parquet files"), ("cluster", "generated in the tasks")):
        for r in records.get(part, {}).values():
            against = f"{r['chunked_seconds']:.1f} ({r['ratio']:.2f})" if "ratio" in r else "-"
            times = (f"{r['seconds']:.1f}", f"{r['layout_seconds']:.1f}", str(r["passes"]), against)
            rows.append((f"{r['size']:,}", name, *times, f"{r['peak_gb']:.2f}", f"{r['gap']:.0e}", f"{r['load']:.1f}"))
    head = ("rows × 2", "from", "seconds", "of these, until laid out", "passes after that")
    return markdown((*head, "one process in chunks, s (ratio)", "peak of all, GB", "gap", "load of the machine"), rows)


def rates(records):
    """Return the measured rates for the plan.

    These are rows per second and worker that are read and laid out, rows per second and worker in a pass, the
    scheduler's seconds per partition, the number of passes, and the bytes of a partition's result.
    """
    record = list(records["dask"].values())[-1]
    read_rate = record["size"] / record["layout_seconds"] / 2
    pass_rate = record["size"] * record["passes"] / (record["seconds"] - record["layout_seconds"]) / 2
    tasks = list(records["tasks"].values())
    slope = float(np.polyfit([t["size"] for t in tasks], [t["seconds_a_pass"] for t in tasks], 1)[0])
    return read_rate, pass_rate, slope, record["passes"], tasks[-1]["record_bytes"]


def plan(records):
    """Return tables with the time for very many rows, computed from the measured rates."""
    read_rate, pass_rate, task, passes, record_bytes = rates(records)
    n_partitions = PLAN_ROWS // PLAN_PARTITION_ROWS
    facts = [
        ("rows a second and worker, read from Parquet and laid out", f"{read_rate / 1e6:.1f} million", "measured"),
        ("rows a second and worker in a pass over kept rows", f"{pass_rate / 1e6:.0f} million", "measured"),
        ("the scheduler's time for a partition in a pass", f"{1e3 * task:.2f} ms", "measured"),
        ("passes after the first", str(passes), "measured"),
        ("bytes of log f, read once", f"{PLAN_ROWS * BYTES_A_ROW / 1e9:,.0f} GB", "8 a row"),
        ("bytes kept if all rows are", f"{PLAN_ROWS * KEPT_BYTES_A_ROW / 1e9:,.0f} GB", "4 a row"),
        ("partitions", f"{n_partitions:,}", f"{PLAN_PARTITION_ROWS / 1e6:.0f} million rows each"),
        (
            "records that the scheduler adds up in a pass",
            f"{n_partitions:,} of {record_bytes / 1e3:.1f} kB",
            f"{n_partitions * record_bytes / 1e6:.0f} MB a pass",
        ),
    ]
    rows = []
    for workers in PLAN_WORKERS:
        from sitewise.adaptation.partitioned import KEPT_BYTES

        kept = min(1.0, workers * KEPT_BYTES / (PLAN_ROWS * KEPT_BYTES_A_ROW))
        first = PLAN_ROWS / workers / read_rate
        scheduled = n_partitions * task
        later = PLAN_ROWS / workers * (kept / pass_rate + (1 - kept) / read_rate) + scheduled
        again = passes * (1 - kept) * PLAN_ROWS * BYTES_A_ROW / 1e12
        minutes = (first + scheduled + passes * later) / 60
        cells = (f"{workers:,}", f"{kept:.0%}", f"{again:.1f}", f"{first / 60:.1f}", f"{later:.0f}")
        rows.append((*cells, f"{minutes:.0f}", f"{minutes * workers / 60:.0f}"))
    head = ("workers of one core", "rows kept", "TB read again", "first pass, minutes", "a later pass, seconds")
    return markdown(("quantity", "value", ""), facts) + "\n\n" + markdown((*head, "all, minutes", "core-hours"), rows)


BLOCKS = {"growth": growth, "nightly": nightly, "partitions": partitions, "plan": plan}


def rewrite(page, records):
    """Return the text of the page with its tables generated from the records."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]](records)}\n\n{block[3]}", page)


def figure(records, out):
    """Draw the seconds of every part against the size, with the line of the fitted exponent."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(2, 4, figsize=(12, 5.4), layout="constrained")
    for axis, (part, (_, name, fixed)) in zip(axes.flat, GROWTH.items(), strict=False):
        sizes, seconds = (np.array([r[key] for r in records[part].values()]) for key in ("size", "seconds"))
        slope, level = np.polyfit(np.log(upper(sizes)), np.log(upper(seconds)), 1)
        axis.loglog(sizes, seconds, "o")
        axis.loglog(upper(sizes), np.exp(level) * upper(sizes) ** slope, "-", label=f"exponent {slope:.2f}")
        axis.set(xlabel=name, ylabel="processor seconds")
        if sizes[-1] < 1_000:
            axis.set_xticks(sizes, [str(size) for size in sizes], fontsize=8)
            axis.minorticks_off()
        axis.set_title(fixed.replace(", ", ",\n", 1), fontsize=8)
        axis.legend(fontsize=8, frameon=False)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(GROWTH) :]:
        axis.set_axis_off()
    fig.savefig(out, dpi=110)


def main():
    read_back = read()
    PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8"), read_back), encoding="utf-8")
    figure(read_back, FIGURE)


if __name__ == "__main__":
    main()
