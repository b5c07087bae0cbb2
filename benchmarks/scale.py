"""Growth of time and memory with the size of data, and the time with Dask: `python benchmarks/scale.py PART [SIZES]`.

Each measurement runs in its own process, after a measurement of the smallest size, which imports and compiles. Growth
is measured in seconds of processor time in one thread, which depends little on other programs on the machine, and in
working memory: the peak of the process minus its memory before the call, when the data are already in memory. Dask is
measured in wall time. Records are lines of JSON; `benchmarks/scale_page.py` writes them into docs/scale.md.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
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
TASKS = (250, 500, 1_000)
SITE_ROWS = 1_000
PARTITION_ROWS = 4_000_000
GROWTH = {  # part: the sizes, their name, and the fixed settings
    "rows": (ROWS, "rows", "2 classes, constant g"),
    "rows_additive": (ROWS[:3], "rows", "2 classes, three mixed confounders, additive g"),
    "rows_posterior": (ROWS[:2], "rows", "2 classes, three mixed confounders, posterior"),
    "classes": (CLASSES, "classes", "50,000 rows, constant g"),
    "confounders": (CONFOUNDERS, "confounders", "20,000 rows, 2 classes, additive g"),
    "points": (POINTS, "posterior points", "predicting 1,000,000 rows, 2 classes"),
    "sites": (SITES, "sites", "1,000 rows each, three mixed confounders, two processes"),
}
ON_CLUSTERS = ("dask", "cluster", "tasks")  # parts measured in wall time on a LocalCluster of two workers
TASK_ROWS = 1_000


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
    """Draw z with two continuous variables, of which one has missing values, and a category."""
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
    """Draw the rows of a site: probabilities of a classifier of x alone, labels and z."""
    rng = np.random.default_rng(seed)
    Z = mixed_z(n_rows, rng)
    tilt = (Z["age"].fillna(50.0) - 50.0) / 20.0 + 0.6 * (Z["ward"] == "b") - 1.0 + shift
    y = (rng.random(n_rows) < 1.0 / (1.0 + np.exp(-tilt))).astype(int)
    x = rng.normal(SEPARATION * y, 1.0)
    p = 1.0 / (1.0 + np.exp(-(SEPARATION * x - SEPARATION**2 / 2 - 0.8)))
    return np.stack([1.0 - p, p], axis=1), y, Z


def fitted(**settings):
    """Return a model of three labeled sites with three confounders, continuous and categorical."""
    import sitewise as sw

    parts = [site(1_500, seed, shift) for seed, shift in enumerate((-0.5, 0.0, 0.5))]
    proba, y = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    Z = pd.concat([part[2] for part in parts], ignore_index=True)
    return sw.PrevalenceAdjuster(**settings).fit(
        proba, y, sample_confounder=Z, sample_domain=np.repeat(["a", "b", "c"], 1_500)
    )


def memory(name, pid="self"):
    """Return VmRSS (the current memory) or VmHWM (the peak) of a process, in GB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 2**20


def timed(work):
    """Return the processor seconds of a call, what it returned, and its working memory.

    The call is repeated up to five times, or until five seconds have passed; the smallest time counts.
    """
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # reset the peak
    before, best, begun = memory("VmRSS"), float("inf"), time.process_time()
    for _ in range(5):
        start = time.process_time()
        outcome = work()
        best = min(best, time.process_time() - start)
        if time.process_time() - begun > 5.0:
            break
    return best, outcome, {"working_gb": memory("VmHWM") - before}


def measure(part, size):
    """Measure one size of a part, and return seconds and further values."""
    import sitewise as sw

    if part in ("rows", "classes"):
        n_rows, n_classes = (size, 2) if part == "rows" else (50_000, size)
        log_ratio = scores(n_rows, n_classes, 0)
        return estimated(lambda: sw.estimate_prevalence(log_ratio, model="constant"))
    if part == "rows_additive":
        proba, _, Z = site(size, 1)
        log_ratio = np.log(proba)
        return estimated(lambda: sw.estimate_prevalence(log_ratio, Z, model="additive", strength=10.0))
    if part == "rows_posterior":
        model = fitted()
        proba, _, Z = site(size, 1, 1.0)
        seconds, _, facts = timed(lambda: model.adapt(proba, Z))
        return seconds, facts
    if part == "confounders":
        rng = np.random.default_rng(0)
        Z = pd.DataFrame(rng.normal(size=(20_000, size)), columns=[f"z{i}" for i in range(size)])
        log_ratio = scores(20_000, 2, 0)
        return estimated(lambda: sw.estimate_prevalence(log_ratio, Z, model="additive", strength=10.0))
    if part == "points":
        return measure_points(size)
    return measure_sites(size)


def estimated(work):
    """Return the seconds of an estimate, its gap, iterations and working memory."""
    seconds, found, facts = timed(work)
    return seconds, {"gap": found.gap, "iterations": found.n_iter, **facts}


def measure_points(n_points):
    """Measure the prediction of a million rows by a number of points of a posterior."""
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

    seconds, _, facts = timed(lambda: in_stretches(points.average, log_ratio, codes))
    return seconds, facts


def adapt_one(model, seed):
    """Adapt to one site, as in a nightly run; return processor seconds and the estimate of P(y=1)."""
    import torch

    torch.set_num_threads(1)
    proba, _, Z = site(SITE_ROWS, 1_000 + seed, np.sin(seed))
    start = time.process_time()
    here = model.adapt(proba, Z)
    return time.process_time() - start, float(here.estimate.marginal[1])


def measure_sites(n_sites):
    """Adapt one model to many sites in two processes; return the processor seconds of each and the wall time."""
    from joblib import Parallel, delayed

    model = fitted()
    with Parallel(n_jobs=2) as pool:
        pool(delayed(adapt_one)(model, seed) for seed in range(2))  # start the processes, which is not measured
        start = time.perf_counter()
        results = np.array(pool(delayed(adapt_one)(model, seed) for seed in range(n_sites)))
        wall = time.perf_counter() - start
    return results[:, 0].sum() / 2, {"wall_seconds": wall, "mean": results[:, 1].mean()}


def generated(number, rows):
    """Generate a partition of simulated log f, (rows, 2), in single precision."""
    rng = np.random.default_rng(number)
    y = rng.random(rows, dtype=np.float32) < 0.2
    x = rng.standard_normal(rows, dtype=np.float32)
    x += np.float32(SEPARATION) * y
    return np.stack([np.zeros_like(x), np.float32(SEPARATION) * x - np.float32(SEPARATION**2 / 2)], axis=1)


def simulated(n_rows, rows=PARTITION_ROWS):
    """Return a Dask array of simulated log f, whose partitions are generated inside their tasks."""
    import dask
    import dask.array as da

    sizes = [min(rows, n_rows - start) for start in range(0, n_rows, rows)]
    blocks = [dask.delayed(partial(generated, number), pure=True)(size) for number, size in enumerate(sizes)]
    parts = [da.from_delayed(block, (size, 2), np.float32) for block, size in zip(blocks, sizes, strict=True)]
    return da.concatenate(parts)


def peak_of_all():
    """Return the sum of the peak memory of this process and its children in GB; shared pages count several times."""
    import psutil

    children = psutil.Process().children(recursive=True)
    return memory("VmHWM") + sum(memory("VmHWM", child.pid) for child in children)


@contextmanager
def local_cluster():
    """Start a cluster of two workers with one thread each, which have imported the package."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.run(lambda: __import__("sitewise.adaptation.partitioned"))
        yield


def on_cluster(rows):
    """Estimate a constant g from rows in partitions; return seconds, a dict of further values, and the estimate.

    The dict has the seconds until the rows are laid out, the number of passes after that, and the peak memory.
    """
    import sitewise as sw
    from sitewise.adaptation import partitioned

    passes, lay_out, tasks = [], partitioned._lay_out, partitioned.Cluster.tasks

    def laid_out(*given):
        estimate = lay_out(*given)
        passes.append(time.perf_counter())
        return estimate

    def counted(self, function):
        passes.append(time.perf_counter())
        return tasks(self, function)

    partitioned._lay_out, partitioned.Cluster.tasks = laid_out, counted
    start = time.perf_counter()
    estimate = sw.estimate_prevalence(rows, model="constant")
    end = time.perf_counter()
    facts = {"layout_seconds": passes[0] - start, "passes": len(passes) - 1, "iterations": estimate.n_iter}
    facts |= {"gap": estimate.gap, "prevalence": float(np.asarray(estimate.marginal)[1]), "peak_gb": peak_of_all()}
    return end - start, facts, estimate


def measure_cluster(n_rows, partition_rows=PARTITION_ROWS):
    """Measure the estimate from simulated rows on a LocalCluster; rows that are not kept are generated in each pass."""
    start = time.process_time()
    generated(0, partition_rows)
    generating = time.process_time() - start
    with local_cluster():
        seconds, facts, _ = on_cluster(simulated(n_rows, partition_rows))
    return seconds, {**facts, "partition_rows": partition_rows, "generating_one_seconds": generating}


def measure_both(n_rows):
    """Measure the estimate from Parquet files in chunks and with Dask, and the difference of both estimates."""
    import dask.dataframe as dd

    import sitewise as sw
    from sitewise.sources import ParquetChunks

    names = ["f0", "f1"]
    with tempfile.TemporaryDirectory() as folder:
        for number, begin in enumerate(range(0, n_rows, PARTITION_ROWS)):
            rows = generated(number, min(PARTITION_ROWS, n_rows - begin))
            pd.DataFrame(rows, columns=names).to_parquet(Path(folder) / f"{number:05}.parquet")
        n_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
        start = time.perf_counter()
        chunked = sw.estimate_prevalence(ParquetChunks(folder, names), model="constant")
        chunked_seconds = time.perf_counter() - start
        with local_cluster():
            seconds, facts, found = on_cluster(dd.read_parquet(folder))
    away = float(np.abs(np.asarray(found.marginal) - np.asarray(chunked.marginal)).max())
    facts |= {"chunked_seconds": chunked_seconds, "ratio": seconds / chunked_seconds, "difference": away}
    return seconds, {**facts, "file_bytes": n_bytes, "partition_rows": PARTITION_ROWS}


def measure_tasks(n_partitions):
    """Measure the time of the scheduler, with partitions so small that the time depends on their number only."""
    import torch

    seconds, facts = measure_cluster(n_partitions * TASK_ROWS, TASK_ROWS)
    a_pass = (seconds - facts["layout_seconds"]) / facts["passes"]
    sums = tuple(torch.zeros((1,) * order, dtype=torch.float64) for order in (1, 2, 3))  # the result of a partition
    return seconds, {**facts, "seconds_a_pass": a_pass, "record_bytes": len(pickle.dumps(sums))}


def one(part, size):
    """Measure one size in this process and print the record."""
    works = {"cluster": measure_cluster, "dask": measure_both, "tasks": measure_tasks}
    if part not in (*works, "sites"):
        measure(part, GROWTH[part][0][0])
    seconds, facts = works[part](size) if part in works else measure(part, size)
    facts |= {"process_gb": memory("VmHWM"), "load": os.getloadavg()[0], "processors": os.cpu_count()}
    print(json.dumps({"part": part, "size": size, "seconds": seconds, **facts}))


def run(part, sizes, out):
    """Measure every size in its own process and append the records."""
    sizes = sizes or (TASKS if part == "tasks" else GROWTH[part][0])
    made_by = provenance(__file__)
    for size in sizes:
        command = [sys.executable, __file__, part, str(size), "--here"]
        threads = "2" if part == "dask" else "1"  # the chunked path has as many threads as Dask has workers
        calm = {**os.environ, "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=calm)
        record = json.loads(done.stdout.splitlines()[-1])
        print(record, flush=True)
        with Path(out).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**record, "made_by": made_by}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*GROWTH, *ON_CLUSTERS])
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--out", default="benchmarks/scale.jsonl")
    parser.add_argument("--here", action="store_true", help="measure one size in this process and print the record")
    given = parser.parse_args()
    if given.here:
        one(given.part, given.sizes[0])
    else:
        run(given.part, given.sizes, given.out)


if __name__ == "__main__":
    main()
