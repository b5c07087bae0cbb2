"""Outcomes at simulated sites: how often a check fails if the assumption holds, and the loss if it does not hold.

    python benchmarks/outcome.py run benchmarks/outcome.jsonl
    python benchmarks/outcome.py table benchmarks/outcome.jsonl

There are three features, of which only the first differs between the classes. A `PrevalenceAdjuster` with its defaults
adjusts a logistic regression that is trained at four sites of 300 rows. The assumption is broken in three ways: the
first feature of all rows is moved ("moved"), the distance of the classes is smaller ("weaker"), or noise is added to
the first feature ("noisy"). This is done at the new site only, or at the training sites too.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from records import provenance
from sklearn.linear_model import LogisticRegression

import sitewise as sw
from sitewise.bench.experiments.records import append_record, done_ids, read_records

KINDS = ("holds", "moved", "weaker", "noisy")
SIZES = (100, 300, 1000, 3000)
DISTANCES = (0.8, 1.2, 2.0)
SITES_A_MODEL = {"holds": 64, "moved": 8, "weaker": 8, "noisy": 8}


def site(rng, n_rows, share, distance, kind, size):
    """Draw the rows of a site; `size` is the size of the violation of the assumption."""
    y = (rng.random(n_rows) < share).astype(int)
    x = rng.normal(size=(n_rows, 3))
    x[:, 0] += distance * (1 - (size if kind == "weaker" else 0)) * y
    if kind == "moved":
        x[:, 0] += size
    if kind == "noisy":
        x[:, 0] += size * rng.normal(size=n_rows)
    return x, y


def breach(rng, kind):
    """Draw the size of the violation of the assumption, in a range that is plausible for real sites."""
    return {"holds": 0.0, "moved": rng.normal(0, 0.5), "weaker": rng.uniform(0.1, 0.7), "noisy": rng.uniform(0.3, 1.5)}[
        kind
    ]


def nll(y, probability):
    return float(-np.log(np.clip(probability[np.arange(len(y)), y], 1e-12, None)).mean())


def one_model(kind, shown, seed):
    """Train one model, and return outcome and log losses at each of its new sites.

    If `shown`, the assumption is also broken at the training sites.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind), shown])
    distance = float(rng.choice(DISTANCES))
    shares = rng.uniform(0.15, 0.5, 4)
    own = [site(rng, 300, share, distance, kind if shown else "holds", breach(rng, kind)) for share in shares]
    X, y = (np.concatenate(part) for part in zip(*own, strict=True))
    model = sw.PrevalenceAdjuster(LogisticRegression(), random_state=seed)
    model.fit(X, y, sample_domain=np.repeat(["a", "b", "c", "d"], 300))
    lines = []
    for _ in range(SITES_A_MODEL[kind]):
        n_rows, share = int(rng.choice(SIZES)), float(rng.uniform(0.05, 0.7))
        X_new, y_new = site(rng, n_rows, share, distance, kind, breach(rng, kind))
        here = model.adapt(X_new)
        rows = model.adapt(X_new, policy="rows")
        lines.append(
            {
                "rows": n_rows,
                "outcome": str(here.outcome),
                "reason": here.outcome.reason,
                "verdict": here.diagnose().verdict,
                "as_trained": nll(y_new, model.predict_proba(X_new)),
                "here": nll(y_new, here.predict_proba(X_new)),
                "unchecked": nll(y_new, here.unchecked().predict_proba(X_new)),
                "rows_alone": nll(y_new, rows.predict_proba(X_new)),
            }
        )
    return lines


def run(out, models):
    made = provenance(__file__)
    done = done_ids(out, made["fingerprint"])
    for kind in KINDS:
        for seed in range(models):
            for shown in (False,) if kind == "holds" else (False, True):
                id = f"{kind}-{'shown' if shown else 'new'}-{seed}"
                if id in done:
                    continue
                start = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    sites = one_model(kind, shown, seed)
                record = {"id": id, "kind": kind, "shown": shown, "seed": seed, "sites": sites}
                append_record(out, record | {"seconds": time.perf_counter() - start, **made})
                print(id, f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


def table(path):
    lines = [
        {"kind": record["kind"], "shown": record["shown"], **one}
        for record in read_records(path)
        for one in record["sites"]
    ]
    frame = pd.DataFrame(lines)
    frame["failed"] = frame["reason"] == "check"
    losses = "NLL as trained | with the default policy | without checks | rows alone"
    print(f"| sites | shown in training | number | a check failed | {losses} |")
    print("|---|---|---|---|---|---|---|---|")
    for (kind, shown), own in frame.groupby(["kind", "shown"], sort=False):
        losses = [f"{own[name].mean():.3f}" for name in ("as_trained", "here", "unchecked", "rows_alone")]
        seen = "" if kind == "holds" else "yes" if shown else "no"
        print(f"| {kind} | {seen} | {len(own)} | {own['failed'].mean():.1%} | {' | '.join(losses)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["run", "table"])
    parser.add_argument("path", nargs="?", type=Path, default=Path("benchmarks/outcome.jsonl"))
    parser.add_argument("--models", type=int, default=5)
    options = parser.parse_args()
    run(options.path, options.models) if options.task == "run" else table(options.path)


if __name__ == "__main__":
    main()
