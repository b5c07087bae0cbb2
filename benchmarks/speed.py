"""Speed compared with other implementations (peers): ratios of times with their range.

    python benchmarks/speed.py --out benchmarks/results.json [--quick]

Peer and sitewise run in the same process in turns, several times. The peers are QuaPy's EMQ with its defaults, the EM
of the package abstention on calibrated probabilities, and the paper's EM with a network, as the paper describes it. If
a peer stops early, the table has its distance from the optimum.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from peers import abstention_em, emq
from peers_em import published_em
from records import provenance
from rich.console import Console

import sitewise as sw

CONSTANT = ((1_000_000, 2, 10.0), (1_000_000, 10, 8.0), (100_000, 100, 3.0))  # rows, classes, target
CONSOLE = Console(stderr=True)


def scores(n_rows, n_classes, seed=0):
    """Draw a classifier's probabilities at a shifted site, and return them with the training prior."""
    rng = np.random.default_rng(seed)
    target = rng.dirichlet(np.full(n_classes, 2.0))
    y = rng.choice(n_classes, n_rows, p=target)
    log_f = rng.normal(size=(n_rows, n_classes))
    log_f[np.arange(n_rows), y] += 1.5
    log_f *= 1.5
    joint = np.exp(log_f - log_f.max(axis=1, keepdims=True))
    return joint / joint.sum(axis=1, keepdims=True), np.full(n_classes, 1 / n_classes)


def timed(function):
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def interleaved(theirs, ours, repeats):
    """Run both functions in turns, and return the median ratio theirs / ours with its range, and both last results."""
    theirs(), ours()
    pairs = [(timed(theirs), timed(ours)) for _ in range(repeats)]
    ratios = [peer[0] / own[0] for peer, own in pairs]
    seconds = {"theirs_s": np.median([p[0] for p, _ in pairs]), "ours_s": np.median([o[0] for _, o in pairs])}
    summary = {"ratio": np.median(ratios), "low": min(ratios), "high": max(ratios)} | seconds
    return {name: float(value) for name, value in summary.items()}, pairs[-1][0][1], pairs[-1][1][1]


def constants(repeats):
    for n_rows, n_classes, target in CONSTANT:
        posterior, prior = scores(n_rows, n_classes)
        log_ratio = np.log(posterior) - np.log(prior)
        times, theirs, ours = interleaved(
            lambda p=prior, q=posterior: emq(p, q),
            lambda lr=log_ratio: sw.estimate_prevalence(lr, model="constant"),
            repeats,
        )
        error = float(np.abs(theirs - ours.marginal).max())
        yield {
            "work": f"{n_rows:,} x {n_classes}, constant",
            "peer": "QuaPy EMQ",
            "target": target,
            **times,
            "peer_error": error,
            "gap": ours.gap,
            "met": times["ratio"] >= target and ours.gap < 1e-9,
        }
    posterior, prior = scores(100_000, 2)
    labels = np.eye(2)[np.random.default_rng(1).integers(0, 2, 2000)]
    prior = labels.mean(axis=0)
    log_ratio = np.log(posterior) - np.log(prior)
    times, theirs, ours = interleaved(
        lambda: abstention_em(prior, posterior, labels),
        lambda: sw.estimate_prevalence(log_ratio, model="constant"),
        repeats,
    )
    error = float(np.abs(theirs - ours.marginal).max())
    yield {"work": "100,000 x 2, constant", "peer": "abstention EM", **times, "peer_error": error, "gap": ours.gap}


def rare(repeats):
    """Compare with a peer for a rare class: it stops when its steps are small, far from the optimum."""
    rng = np.random.default_rng(0)
    y = rng.random(100_000) < 0.01
    log_ratio = np.c_[np.zeros(len(y)), 2 * rng.normal(2.0 * y) - 2]
    posterior = np.exp(log_ratio) / np.exp(log_ratio).sum(axis=1, keepdims=True)
    prior = np.full(2, 0.5)
    times, theirs, ours = interleaved(
        lambda: emq(prior, posterior), lambda: sw.estimate_prevalence(log_ratio, model="constant"), repeats
    )
    shown = f"{theirs[1]:.4f} against {ours.marginal[1]:.4f}"
    yield {
        "work": "100,000 x 2, a class of 1%",
        "peer": "QuaPy EMQ",
        **times,
        "peer_error": float(np.abs(theirs - ours.marginal).max()),
        "gap": ours.gap,
        "note": shown,
    }


def additive(repeats):
    site = sw.SimulatedFamily(seed=0).site(100_000, prevalence=[0.8, 0.2], seed=1)
    for name, options, target in (
        ("additive, fixed strength", {"model": "additive", "strength": 1.0}, 20.0),
        ("auto", {"model": "auto"}, 3.0),
    ):
        times, theirs, ours = interleaved(
            lambda: published_em(site.log_ratio, site.Z, seed=0),
            lambda options=options: sw.estimate_prevalence(site.log_ratio, site.Z, **options),
            max(2, repeats // 2),
        )
        truth = site.log_prevalence
        errors = [
            float((np.exp(truth) * (truth - guess)).sum(1).mean()) for guess in (theirs, ours.log_prevalence(site.Z))
        ]
        yield {
            "work": f"100,000 x 2, three mixed confounders, {name}",
            "peer": "paper's network EM",
            "target": target,
            **times,
            "gap": ours.gap,
            "note": f"KL {errors[1]:.5f} against {errors[0]:.5f}",
            "met": times["ratio"] >= target,
        }


def bootstrap(repeats):
    posterior, prior = scores(5000, 2)
    log_ratio = np.log(posterior) - np.log(prior)
    estimate = sw.estimate_prevalence(log_ratio)
    rng = np.random.default_rng(0)
    times, theirs, ours = interleaved(
        lambda: [emq(prior, posterior[rng.integers(0, 5000, 5000)]) for _ in range(500)],
        lambda: estimate.bootstrap(500, random_state=0),
        repeats,
    )
    error = float(abs(np.std(theirs, axis=0)[1] / ours.marginal.std(axis=0)[1] - 1))
    yield {
        "work": "500 bootstrap resamples of 5,000 x 2",
        "peer": "loop over QuaPy EMQ",
        "target": 10.0,
        **times,
        "note": f"standard errors agree to {error:.0%}",
        "met": times["ratio"] >= 10.0,
    }


def scaling(sizes=(10**4, 10**5, 10**6, 10**7)):
    """Measure the exponent of the growth of time with N, by least squares of logs; of five runs, the fastest counts."""
    seconds = []
    for n_rows in sizes:
        rng = np.random.default_rng(0)
        y = rng.random(n_rows) < 0.1
        log_ratio = np.c_[np.zeros(n_rows), 2 * rng.normal(2.0 * y) - 2]
        runs = [timed(lambda lr=log_ratio: sw.estimate_prevalence(lr, model="constant"))[0] for _ in range(5)]
        seconds.append(min(runs))
    exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    last = float(np.log(seconds[-1] / seconds[-2]) / np.log(sizes[-1] / sizes[-2]))
    yield {
        "work": f"time against N from {sizes[0]:,} to {sizes[-1]:,}",
        "target": 1.05,
        "ratio": exponent,
        "note": f"exponent; {last:.2f} over the last decade",
        "ours_s": seconds[-1],
        "met": exponent <= 1.05 and last <= 1.05,
    }


DISK = """
import sys, time, numpy as np
import sitewise as sw
mapped = np.load(sys.argv[1], mmap_mode="r")
sw.estimate_prevalence(np.zeros((2, 2)) + [[0, 1], [1, 0]])
start = time.perf_counter()
estimate = sw.estimate_prevalence(mapped, model="constant")
seconds = time.perf_counter() - start
status = dict(line.split(":", 1) for line in open("/proc/self/status"))  # getrusage would count the parent's memory too
print(seconds, estimate.gap, int(status["VmHWM"].split()[0]) / 1024**2)
"""


def from_disk(n_rows):
    """Estimate a constant g from a file in its own process: peak memory, and time compared with reading the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log_ratio.npy"
        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n_rows, 2))
        rng = np.random.default_rng(0)
        for start in range(0, n_rows, 2**20):
            y = rng.random(min(2**20, n_rows - start)) < 0.03
            array[start : start + len(y), 1] = 2 * rng.normal(2.0 * y) - 2
        array.flush()
        del array
        script = Path(folder) / "disk.py"
        script.write_text(DISK, encoding="utf-8")
        reads, runs = [], []
        for _ in range(3):
            reads.append(timed(lambda: read_through(path))[0])
            done = subprocess.run(
                [sys.executable, script, path], capture_output=True, text=True, check=True, env=dict(os.environ)
            )
            runs.append([float(word) for word in done.stdout.split()])
    seconds, gap, memory = (float(np.median([run[i] for run in runs])) for i in range(3))
    yield {
        "work": f"{n_rows:,} x 2 from disk in chunks",
        "peer": "reading the file (from the system's cache)",
        "target": 1.5,
        "ratio": float(np.median(reads)) / seconds,
        "ours_s": seconds,
        "theirs_s": float(np.median(reads)),
        "gap": gap,
        "note": f"peak memory {memory:.2f} GB, {n_rows / seconds / 1e6:.0f} million rows a second",
        "peak_gb": memory,
        "met": memory < 1.5,
    }


def read_through(path):
    total = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(2**24):
            total += len(block)
    return total


def gpu_rows(path):
    """Return the record of benchmarks/gpu.py, which was made on a machine with a GPU, as a row of the table."""
    if not path.exists():
        return
    record = json.loads(path.read_text(encoding="utf-8"))
    yield {
        "work": record["work"],
        "peer": "one read of the array",
        "target": 3.0,
        "ratio": record["pass_over_read"],
        "ours_s": min(record["estimate_s"]),
        "gap": record["gap"],
        "note": f"a pass of {record['pass_ms']:.2f} ms over a read of {record['read_ms']:.2f} ms, {record['device']}, "
        f"commit {record['commit']}",
        "met": record["pass_over_read"] <= 3.0,
    }


def shown(row):
    spread = f" ({row['low']:.1f} to {row['high']:.1f})" if "low" in row else ""
    verdict = {True: "met", False: "NOT met"}.get(row.get("met"), "")
    seconds = " / ".join(f"{row[name]:.3g}" if name in row else "-" for name in ("theirs_s", "ours_s"))
    cells = (
        row["work"],
        row.get("peer", ""),
        f"{row['ratio']:.3g}{spread}",
        f"{row['target']:g}" if "target" in row else "",
        verdict,
        seconds,
        f"{row['peer_error']:.1e}" if "peer_error" in row else "",
        f"{row['gap']:.0e}" if "gap" in row else "",
        row.get("note", ""),
    )
    return "| " + " | ".join(cells) + " |"


def table(rows):
    head = "| work | peer | ratio (range) | target | | seconds theirs / ours | error of the peer | our gap | |"
    return "\n".join([head, "|" + " --- |" * 9, *map(shown, rows)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.json")
    parser.add_argument(
        "--quick", action="store_true", help="fewer repeats, ten million rows from disk instead of a hundred"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    repeats, on_disk, largest = (3, 10**7, 10**6) if arguments.quick else (7, 10**8, 10**7)
    sizes = tuple(10**k for k in range(4, len(str(largest))))
    parts = [
        ("constant g", constants(repeats)),
        ("a rare class", rare(repeats)),
        ("bootstrap", bootstrap(max(3, repeats // 2))),
        ("additive g", additive(repeats)),
        ("growth with N", scaling(sizes)),
        ("from disk", from_disk(on_disk)),
        ("GPU", gpu_rows(Path(__file__).parent / "gpu.json")),
    ]
    rows = []
    for name, part in parts:
        with CONSOLE.status(f"{name} ..."):
            rows += list(part)
    machine = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    arguments.out.write_text(
        json.dumps({"made_by": provenance(__file__) | machine, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
