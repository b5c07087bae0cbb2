"""The constant g against QuaPy's EMQ: time as a ratio, interleaved, and how far each ends from the optimum."""

import time
import warnings

import numpy as np

import sitewise as sw

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from quapy.method.aggregative import EMQ

REPEATS = 5


def scores(n_rows, n_classes, seed=0):
    """A classifier's probabilities at a shifted site, and the prior it was trained with."""
    rng = np.random.default_rng(seed)
    target = rng.dirichlet(np.full(n_classes, 2.0))
    y = rng.choice(n_classes, n_rows, p=target)
    log_f = rng.normal(size=(n_rows, n_classes))
    log_f[np.arange(n_rows), y] += 1.5
    log_f *= 1.5
    joint = np.exp(log_f - log_f.max(axis=1, keepdims=True))
    return joint / joint.sum(axis=1, keepdims=True), np.full(n_classes, 1 / n_classes)


def timed(function, *arguments, **options):
    start = time.perf_counter()
    result = function(*arguments, **options)
    return time.perf_counter() - start, result


def main():
    print(f"{'rows x classes':>16}  {'ratio (min..max)':>22}  {'error of EMQ':>13}  {'our KKT gap':>11}")
    for n_rows, n_classes in ((1_000_000, 2), (300_000, 10), (50_000, 100)):
        posterior, prior = scores(n_rows, n_classes)
        log_ratio = np.log(posterior) - np.log(prior)
        ratios = []
        for _ in range(REPEATS):
            theirs, (prevalence, _) = timed(EMQ.EM, prior, posterior)
            ours, estimate = timed(sw.estimate_prevalence, log_ratio, model="constant")
            ratios.append(theirs / ours)
        error = np.abs(prevalence - estimate.marginal).max()
        spread = f"{np.median(ratios):.1f} ({min(ratios):.1f}..{max(ratios):.1f})"
        print(f"{n_rows:>9} x {n_classes:<4}  {spread:>22}  {error:>13.1e}  {estimate.gap:>11.1e}")


if __name__ == "__main__":
    main()
