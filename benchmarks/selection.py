"""Choice of the model of g by left-out likelihood: the first table of docs/results/choices.md."""

import numpy as np
import torch

import sitewise as sw
from sitewise.adaptation.cells import fit_constant_cell
from sitewise.adaptation.estimate import MARGIN, PRICE
from sitewise.adaptation.evidence import read_evidence
from sitewise.adaptation.families import FAMILIES
from sitewise.adaptation.families.base import Request
from sitewise.arrays import Problems

N_SITES = 30


def candidates(site):
    """Return the constant and all additive fits of one site, and the mean KL of each from the true g."""
    nothing = {name: None for name in ("schema", "categorical", "y", "sample_weight", "groups")}
    matrix = torch.tensor(site.log_ratio)
    evidence, _ = read_evidence(matrix, site.Z, Problems("benchmark"), **nothing)
    even = torch.full((2,), 0.5, dtype=torch.float64)
    fits = [fit_constant_cell(evidence, even, 0.0, "auto", even)]
    fits += FAMILIES["additive"].candidates(Request(evidence, "auto", "auto", even, None, even, None, 0, fits[0]))
    rows = evidence.schema.encode(site.Z)[0]
    return fits, [divergence(site.log_prevalence, fit.prevalence.log_prob(rows).numpy()) for fit in fits]


def divergence(log_truth, log_estimate):
    return (np.exp(log_truth) * (log_truth - log_estimate)).sum(1).mean()


def chosen(fits, price, margin, price_of_strength):
    """Return the number of the chosen fit.

    A price is the factor of the optimism that is subtracted from the log-likelihood. `price` and `margin` decide
    whether g depends on z; `price_of_strength` decides how strongly it is shrunk.
    """
    strict, cheap = (
        np.array([fit.log_likelihood - p * fit.optimism for fit in fits]) for p in (price, price_of_strength)
    )
    return 1 + int(cheap[1:].argmax()) if strict[1:].max() >= strict[0] + margin else 0


def main():
    torch.set_num_threads(1)
    strict = f"L - {PRICE:g} O with margin {MARGIN:g}"
    print(f"mean KL(g || estimate) over {N_SITES} sites: constant, L - O, {strict}, {strict} and then L - O")
    for signal in (1.0, 2.5):
        for dependence in (0.0, 0.5, 1.5):
            for n_rows in (200, 500, 1000, 3000):
                results = []
                for seed in range(N_SITES):
                    family = sw.SimulatedFamily(seed=seed, signal=signal)
                    site = family.site(n_rows, prevalence=[0.8, 0.2], dependence=dependence, seed=1000 + seed)
                    fits, errors = candidates(site)
                    rules = ((1.0, 0.0, 1.0), (PRICE, MARGIN, PRICE), (PRICE, MARGIN, 1.0))
                    results.append([errors[i] for i in (0, *(chosen(fits, *rule) for rule in rules))])
                means = " ".join(f"{value:.4f}" for value in np.mean(results, axis=0))
                print(f"signal {signal}, dependence {dependence}, n {n_rows}: {means}", flush=True)


if __name__ == "__main__":
    main()
