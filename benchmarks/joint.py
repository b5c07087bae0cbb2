"""Prediction without z at sites of known densities: the best possible prediction, the paper's way, the joint model.

python benchmarks/joint.py [--seeds 10] [--out benchmarks/joint.json]   writes the record and prints the table
python benchmarks/joint.py --speed                                      times n = 100,000, M = 200, K = 2

Every method uses the exact densities; only the handling of the missing z differs. The paper's way uses
P_s(y|x) / P_s(y) of the training population as the ratio without z, and estimates P(Y) by maximum likelihood.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np
import torch
from scipy.special import logsumexp

import sitewise as sw
from sitewise.bench.datasets.known_densities import TARGETS, TRAINING, log_density, training_joint

N_ROWS, N_FRESH, N_AGES = 5000, 20_000, 20


def score(probability, y):
    """Return NLL and accuracy."""
    return {
        "nll": float(-np.log(probability[np.arange(len(y)), y]).mean()),
        "accuracy": float((probability.argmax(1) == y).mean()),
    }


def ratio_without_z(X):
    """Return log P_s(y|x) / P_s(y) of the training population, (n, 2): the exact value of the paper's f(x, z₀)."""
    prior = training_joint(N_AGES)
    log_both = logsumexp(log_density(X, N_AGES) + np.log(prior), axis=1)
    return log_both - logsumexp(log_both, axis=1, keepdims=True) - np.log(prior.sum(0))


def one_site(name, seed):
    """Return the scores of all three ways at one draw of a site."""
    target = TARGETS[name]
    site, fresh = target.draw(N_ROWS, seed), target.draw(N_FRESH, 10_000 + seed)
    joint = sw.estimate_joint(log_density(site.X, N_AGES), prior=training_joint(N_AGES))
    paper = sw.estimate_prevalence(ratio_without_z(site.X), model="constant")
    low, high = joint.interval()
    truth = float(target.joint(400)[:, 1].sum())
    return {
        "site": name,
        "seed": seed,
        "truth": truth,
        "best possible": score(target.posterior(fresh.X), fresh.y),
        "paper's way": score(sw.adjust(ratio_without_z(fresh.X), np.log(paper.marginal)), fresh.y)
        | {"prevalence": float(paper.marginal[1])},
        "joint": score(joint.posterior(log_density(fresh.X, N_AGES)), fresh.y)
        | {
            "prevalence": float(joint.marginal[1]),
            "low": float(low[1]),
            "high": float(high[1]),
            "gap": joint.gap,
            "strength": joint.strength,
            "iterations": joint.n_iter,
        },
    }


def table(records):
    """Return means over the seeds as a table in Markdown."""
    ways = ("best possible", "paper's way", "joint")
    lines = [
        "| target site | accuracy: best possible / paper's way / joint | NLL | P(Y): true / paper's way / joint "
        "| largest error of P(Y), joint | most NLL above the best, joint | intervals that hold the truth |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in TARGETS:
        own = [record for record in records if record["site"] == name]

        def mean(way, metric, own=own):
            return np.mean([record[way][metric] for record in own])

        accuracy = " / ".join(f"{mean(way, 'accuracy'):.3f}" for way in ways)
        nll = " / ".join(f"{mean(way, 'nll'):.3f}" for way in ways)
        shares = " / ".join(f"{mean(way, 'prevalence'):.3f}" for way in ways[1:])
        error = max(abs(record["joint"]["prevalence"] - record["truth"]) for record in own)
        above = max(record["joint"]["nll"] - record["best possible"]["nll"] for record in own)
        held = np.mean([record["joint"]["low"] <= record["truth"] <= record["joint"]["high"] for record in own])
        columns = [
            name,
            accuracy,
            nll,
            f"{own[0]['truth']:.3f} / {shares}",
            f"{error:.4f}",
            f"{above:.4f}",
            f"{held:.0%}",
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def speed(n_rows=100_000, n_ages=100):
    """Return seconds and memory of one estimation from n rows with 2 · n_ages values of z."""
    target = TARGETS["correlation flips"]
    X = target.draw(n_rows, 0).X
    log_ratio = np.empty((n_rows, 2 * n_ages, 2), dtype=np.float32)
    for first in range(0, n_rows, 5000):
        log_ratio[first : first + 5000] = log_density(X[first : first + 5000], n_ages)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.perf_counter(), time.process_time()
    estimate = sw.estimate_joint(log_ratio, prior=training_joint(n_ages))
    return {
        "rows": n_rows,
        "points": 2 * n_ages,
        "classes": 2,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
        "threads": torch.get_num_threads(),
        "megabytes_more": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "gap": estimate.gap,
        "iterations": estimate.n_iter,
        "training_sites": len(TRAINING),
    }


def main():
    """Compute the comparison or the speed, print it and write it to the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("joint.json"))
    parser.add_argument("--speed", action="store_true")
    given = parser.parse_args()
    record = json.loads(given.out.read_text()) if given.out.exists() else {}
    if given.speed:
        record["speed"] = speed()
        print(json.dumps(record["speed"], indent=1))
    else:
        record["sites"] = [one_site(name, seed) for name in TARGETS for seed in range(given.seeds)]
        print(table(record["sites"]))
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
