"""A constant g from 100,000,000 x 2 values of log f on a GPU: the time of a pass, divided by that of reading the array.

python benchmarks/gpu.py --out benchmarks/gpu.json
"""

import argparse
import json
import time
from pathlib import Path

import torch
from records import provenance

import sitewise as sw
from sitewise.adaptation.answer import evidence_of
from sitewise.adaptation.rows import moments

REPEATS = 20


def median_seconds(function):
    """Return the median seconds of a call, measured by the clock of the device."""
    for _ in range(3):
        function()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return sorted(times)[REPEATS // 2]


def simulated(n_rows, prevalence=0.03):
    """Return log f of a shifted site, (n, 2), in single precision."""
    generator = torch.Generator("cuda").manual_seed(0)
    ill = torch.rand(n_rows, generator=generator, device="cuda") < prevalence
    x = torch.randn(n_rows, generator=generator, device="cuda") + 2.0 * ill
    return torch.stack([torch.zeros_like(x), 2.0 * x - 2.0], dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    log_ratio = simulated(arguments.rows)
    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        estimate = sw.estimate_prevalence(log_ratio, model="constant")
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    prevalence = estimate.marginal[None]
    rows = evidence_of(estimate).everything
    one_pass = median_seconds(lambda: [moments(part, prevalence, 2) for part in rows])
    read = median_seconds(lambda: log_ratio.sum())
    record = {
        "work": f"{arguments.rows:,} x 2 on a GPU",
        "device": torch.cuda.get_device_name(),
        "read_ms": 1e3 * read,
        "pass_ms": 1e3 * one_pass,
        "pass_over_read": one_pass / read,
        "estimate_s": seconds,
        "n_iter": estimate.n_iter,
        "gap": estimate.gap,
        "marginal": float(estimate.marginal[1]),
        **provenance(__file__),
    }
    text = json.dumps(record, indent=1)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
