"""How time and memory grow, and what Dask costs: `python benchmarks/scale.py run PART --out FILE`, then `figure FILE`.

Each measurement runs in a process of its own, so that its peak memory is its own. Growth is measured in seconds of
processor time in one thread, which others on the machine change little; Dask by the clock. Records are lines of JSON.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from records import provenance

SEPARATION = 1.5  # between the classes' means
ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
CLASSES = (2, 5, 10, 20, 50, 100, 200)
CONFOUNDERS = (1, 2, 4, 8, 16)
SITES = (25, 50, 100, 200)
POINTS = (1, 4, 16, 64)
SITE_ROWS = 1_000
PARTITION_ROWS = 4_000_000
GROWTH = {  # part: the sizes, what they are called, and what is held fixed
    "rows": (ROWS, "rows", "2 classes, constant g"),
    "rows_additive": (ROWS[:3], "rows", "2 classes, three mixed confounders, additive g"),
    "rows_posterior": (ROWS[:2], "rows", "2 classes, three mixed confounders, posterior"),
    "classes": (CLASSES, "classes", "50,000 rows, constant g"),
    "confounders": (CONFOUNDERS, "confounders", "20,000 rows, 2 classes, additive g"),
    "points": (POINTS, "posterior points", "predicting 1,000,000 rows, 2 classes"),
    "sites": (SITES, "sites", "1,000 rows each, three mixed confounders, two processes"),
}


def scores(n_rows, n_classes, seed):
    """Draw log f (n, K) of rows whose classes differ in their means."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(n_classes, 5.0))
    y = rng.choice(n_classes, n_rows, p=share)
    if n_classes == 2:
        x = rng.normal(SEPARATION * y, 1.0)
        return -0.5 * (x[:, None] - SEPARATION * np.arange(2)) ** 2
    noise = rng.normal(size=(n_rows, n_classes))
    noise[np.arange(n_rows), y] += SEPARATION
    return SEPARATION * noise


def mixed_z(n_rows, rng):
    """Draw two numbers and a category, some of them missing."""
    frame = pd.DataFrame(
        {
            "age": rng.uniform(20, 80, n_rows),
            "marker": rng.normal(size=n_rows),
            "ward": rng.choice(["a", "b", "c"], n_rows),
        }
    )
    frame.loc[rng.random(n_rows) < 0.05, "age"] = np.nan
    return frame


def site(n_rows, seed, shift=0.0):
    """Rows of a site: probabilities of a classifier that saw x only, labels, z."""
    rng = np.random.default_rng(seed)
    Z = mixed_z(n_rows, rng)
    tilt = (Z["age"].fillna(50.0) - 50.0) / 20.0 + 0.6 * (Z["ward"] == "b") - 1.0 + shift
    y = (rng.random(n_rows) < 1.0 / (1.0 + np.exp(-tilt))).astype(int)
    x = rng.normal(SEPARATION * y, 1.0)
    p = 1.0 / (1.0 + np.exp(-(SEPARATION * x - SEPARATION**2 / 2 - 0.8)))
    return np.stack([1.0 - p, p], axis=1), y, Z


def fitted(**settings):
    """A model of three labeled sites with three mixed confounders."""
    import sitewise as sw

    parts = [site(1_500, seed, shift) for seed, shift in enumerate((-0.5, 0.0, 0.5))]
    proba, y = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    Z = pd.concat([part[2] for part in parts], ignore_index=True)
    return sw.PrevalenceAdjuster(**settings).fit(
        proba, y, sample_confounder=Z, sample_domain=np.repeat(["a", "b", "c"], 1_500)
    )


def timed(work):
    """Processor seconds of a call, the least of up to five in five seconds, and what it returned."""
    best, begun = float("inf"), time.process_time()
    for _ in range(5):
        start = time.process_time()
        found = work()
        best = min(best, time.process_time() - start)
        if time.process_time() - begun > 5.0:
            break
    return best, found


def measure(part, size):
    """One point of a curve: seconds and a few facts."""
    import sitewise as sw

    if part in ("rows", "classes"):
        n_rows, n_classes = (size, 2) if part == "rows" else (50_000, size)
        log_ratio = scores(n_rows, n_classes, 0)
        seconds, found = timed(lambda: sw.estimate_prevalence(log_ratio, model="constant"))
        return seconds, {"gap": found.gap, "iterations": found.n_iter}
    if part == "rows_additive":
        proba, _, Z = site(size, 1)
        seconds, found = timed(lambda: sw.estimate_prevalence(np.log(proba), Z, model="additive", strength=10.0))
        return seconds, {"gap": found.gap, "iterations": found.n_iter}
    if part == "rows_posterior":
        model = fitted()
        proba, _, Z = site(size, 1, 1.0)
        return timed(lambda: model.adapt(proba, Z))[0], {}
    if part == "confounders":
        rng = np.random.default_rng(0)
        Z = pd.DataFrame(rng.normal(size=(20_000, size)), columns=[f"z{i}" for i in range(size)])
        log_ratio = scores(20_000, 2, 0)
        seconds, found = timed(lambda: sw.estimate_prevalence(log_ratio, Z, model="additive", strength=10.0))
        return seconds, {"gap": found.gap, "iterations": found.n_iter}
    if part == "points":
        return measure_points(size)
    return measure_sites(size)


def measure_points(n_points):
    """Predict a million rows by so many points of a posterior."""
    import torch

    from sitewise.adaptation.answer import fit_of
    from sitewise.adaptation.posterior.known_points import take_points

    model = fitted(rehearsal=None)
    proba, _, Z = site(1_000, 1, 1.0)
    here = model.adapt(proba, Z)
    points = take_points(fit_of(here.estimate).posterior.points, torch.arange(n_points))
    proba, _, Z = site(1_000_000, 2, 1.0)
    log_ratio, codes = torch.tensor(model.log_ratio(proba, Z)), model.confounders_.encode(Z)[0]
    from sitewise.arrays import in_stretches

    return timed(lambda: in_stretches(points.average, log_ratio, codes))[0], {}


def adapt_one(model, seed):
    """Adapt to one site as a nightly run does: the estimate and the mean of its predictions."""
    import torch

    torch.set_num_threads(1)
    proba, _, Z = site(SITE_ROWS, 1_000 + seed, np.sin(seed))
    start = time.process_time()
    here = model.adapt(proba, Z)
    return time.process_time() - start, float(here.estimate.marginal[1])


def measure_sites(n_sites):
    """Adapt one model to many sites: processor seconds of each of two processes, and what the clock said."""
    from joblib import Parallel, delayed

    model = fitted()
    with Parallel(n_jobs=2) as pool:
        pool(delayed(adapt_one)(model, seed) for seed in range(2))  # the processes start once a night
        start = time.perf_counter()
        found = np.array(pool(delayed(adapt_one)(model, seed) for seed in range(n_sites)))
        wall = time.perf_counter() - start
    return found[:, 0].sum() / 2, {"wall_seconds": wall, "mean": found[:, 1].mean()}


def generated(number, rows):
    """A partition of simulated log f, made where it is needed, in single precision."""
    rng = np.random.default_rng(number)
    y = rng.random(rows, dtype=np.float32) < 0.2
    x = rng.standard_normal(rows, dtype=np.float32)
    x += np.float32(SEPARATION) * y
    return np.stack([np.zeros_like(x), np.float32(SEPARATION) * x - np.float32(SEPARATION**2 / 2)], axis=1)


def simulated(n_rows, rows=PARTITION_ROWS):
    """A Dask array of simulated log f whose partitions are generated inside their tasks."""
    import dask
    import dask.array as da

    sizes = [min(rows, n_rows - start) for start in range(0, n_rows, rows)]
    blocks = [dask.delayed(partial(generated, number), pure=True)(size) for number, size in enumerate(sizes)]
    parts = [da.from_delayed(block, (size, 2), np.float32) for block, size in zip(blocks, sizes, strict=True)]
    return da.concatenate(parts)


def peak_of_all(cluster_pids):
    """The peak memory of this process and its workers together, in GB, by the system's own count."""
    total = 0
    for pid in ("self", *cluster_pids):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return total / 2**20


def measure_cluster(n_rows):
    """Simulated rows on a LocalCluster of two workers: seconds, and the peak of all processes."""
    from distributed import Client, LocalCluster

    import sitewise as sw

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        start = time.perf_counter()
        found = sw.estimate_prevalence(simulated(n_rows), model="constant")
        seconds = time.perf_counter() - start
        peak = peak_of_all(client.run(os.getpid).values())
    return seconds, {
        "gap": found.gap,
        "prevalence": float(found.marginal[1]),
        "peak_gb": peak,
        "iterations": found.n_iter,
    }


def measure_both(n_rows):
    """Rows of Parquet files by the chunked path and by Dask on a LocalCluster: seconds of each, their difference."""
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    import sitewise as sw
    from sitewise.sources import ParquetChunks

    names = ["f0", "f1"]
    with tempfile.TemporaryDirectory() as folder:
        for number, begin in enumerate(range(0, n_rows, PARTITION_ROWS)):
            rows = generated(number, min(PARTITION_ROWS, n_rows - begin))
            pd.DataFrame(rows, columns=names).to_parquet(Path(folder) / f"{number:05}.parquet")
        start = time.perf_counter()
        chunked = sw.estimate_prevalence(ParquetChunks(folder, names), model="constant")
        chunked_seconds = time.perf_counter() - start
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            client.run(lambda: __import__("sitewise.adaptation.partitioned"))
            start = time.perf_counter()
            found = sw.estimate_prevalence(dd.read_parquet(folder), model="constant")
            seconds = time.perf_counter() - start
            peak = peak_of_all(client.run(os.getpid).values())
    away = float(np.abs(np.asarray(found.marginal) - np.asarray(chunked.marginal)).max())
    facts = {"chunked_seconds": chunked_seconds, "ratio": seconds / chunked_seconds, "difference": away}
    return seconds, {**facts, "gap": found.gap, "peak_gb": peak}


def one(part, size):
    """Measure in this process and print the record."""
    works = {"cluster": measure_cluster, "dask": measure_both}
    seconds, facts = works[part](size) if part in works else measure(part, size)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    facts |= {"process_gb": peak, "load": os.getloadavg()[0], "processors": os.cpu_count()}
    print(json.dumps({"part": part, "size": size, "seconds": seconds, **facts}))


def run(part, sizes, out):
    """Measure every size in a process of its own and append the records."""
    sizes = sizes or GROWTH[part][0]
    made_by = provenance(__file__)
    for size in sizes:
        command = [sys.executable, __file__, "one", part, str(size)]
        threads = "2" if part == "dask" else "1"  # the chunked path has as many as Dask has workers
        calm = {**os.environ, "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=calm)
        record = json.loads(done.stdout.splitlines()[-1])
        print(record, flush=True)
        with Path(out).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**record, "made_by": made_by}) + "\n")


def exponent(sizes, values):
    """The slope of log values in log sizes, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def read(path):
    """The records of each part, the last of each size."""
    found = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        found.setdefault(record["part"], {})[record["size"]] = record
    return {part: [by_size[size] for size in sorted(by_size)] for part, by_size in found.items()}


def table(path):
    """Print the growth of every part with its exponents, and the records of Dask."""
    found = read(path)
    print("| against | fixed | sizes | seconds | exponent | exponent of the upper half | peak GB at the largest |")
    print("|---|---|---|---|---|---|---|")
    for part, (_, name, fixed) in GROWTH.items():
        records = found.get(part, [])
        if len(records) < 2:
            continue
        sizes, seconds = ([r[key] for r in records] for key in ("size", "seconds"))
        half = len(sizes) // 2
        upper = exponent(sizes[half:], seconds[half:]) if len(sizes) - half > 1 else exponent(sizes, seconds)
        print(
            f"| {name} | {fixed} | {sizes[0]:,} to {sizes[-1]:,} | {seconds[0]:.3g} to {seconds[-1]:.3g} "
            f"| {exponent(sizes, seconds):.2f} | {upper:.2f} | {records[-1]['process_gb']:.2f} |"
        )
    for part in ("dask", "cluster"):
        for record in found.get(part, []):
            print({key: value for key, value in record.items() if key != "made_by"})


def figure(path, out):
    """Draw seconds against every size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = read(path)
    parts = [part for part in GROWTH if len(found.get(part, [])) > 1]
    fig, axes = plt.subplots(2, 4, figsize=(12, 5.4), layout="constrained")
    for axis, part in zip(axes.flat, parts, strict=False):
        _, name, fixed = GROWTH[part]
        sizes, seconds = ([r[key] for r in found[part]] for key in ("size", "seconds"))
        axis.loglog(sizes, seconds, "o-")
        axis.set(xlabel=name, ylabel="processor seconds")
        axis.set_title(f"{fixed}\nexponent {exponent(sizes, seconds):.2f}", fontsize=8)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(parts) :]:
        axis.set_axis_off()
    fig.savefig(out, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("run")
    measuring.add_argument("part", choices=[*GROWTH, "cluster", "dask"])
    measuring.add_argument("sizes", nargs="*", type=int)
    measuring.add_argument("--out", default="benchmarks/scale.jsonl")
    single = commands.add_parser("one")
    single.add_argument("part")
    single.add_argument("size", type=int)
    printing = commands.add_parser("table")
    printing.add_argument("path", nargs="?", default="benchmarks/scale.jsonl")
    drawing = commands.add_parser("figure")
    drawing.add_argument("path", nargs="?", default="benchmarks/scale.jsonl")
    drawing.add_argument("--out", default="docs/images/scale.png")
    given = parser.parse_args()
    if given.command == "run":
        run(given.part, given.sizes, given.out)
    elif given.command == "one":
        one(given.part, given.size)
    elif given.command == "table":
        table(given.path)
    else:
        figure(given.path, given.out)


if __name__ == "__main__":
    main()
