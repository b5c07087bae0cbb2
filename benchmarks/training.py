"""GPA's training time, divided by that of a bare PyTorch loop of ERM with the same network, data and epochs."""

import time

import numpy as np
import torch
from torch import nn

import sitewise as sw
from sitewise.backbones.build import build_cnn
from sitewise.bench.datasets.digits import colored_site, load_digits
from sitewise.ratio import RatioNetwork

REPEATS, EPOCHS, BATCH, N_ROWS = 5, 2, 256, 5000


def bare_erm(X, y):
    """Train ERM in a loop written by hand, with channels last as in sitewise."""
    images = torch.tensor(X)
    target = torch.tensor(y)
    module = RatioNetwork(build_cnn(images), 256, 0, 2).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    nothing = torch.zeros(len(images), 0)
    for _ in range(EPOCHS):
        module.train()
        for rows in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(images[rows], nothing[rows]), target[rows])
            loss.backward()
            optimizer.step()


def gpa(X, y, domain, Z):
    model = sw.GPAClassifier(recipe="gpa2024", epochs=EPOCHS, batch_size=BATCH, validation=None, calibration="none")
    model.fit(X, y, sample_domain=domain, sample_confounder=Z)


def timed(function, *arguments):
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def main():
    digits = load_digits()
    sites = [colored_site(digits, N_ROWS, beta=beta, seed=i) for i, beta in enumerate((0.9, 0.7))]
    X, y = (np.concatenate([getattr(site, part) for site in sites]) for part in ("X", "y"))
    Z = {"color": np.concatenate([site.Z["color"] for site in sites])}
    domain = np.repeat(["a", "b"], N_ROWS)
    bare_erm(X[:1000], y[:1000])  # warm-up: imports and first allocations are not measured
    gpa(X[:1000], y[:1000], domain[:1000], {"color": Z["color"][:1000]})
    ratios = []
    for _ in range(REPEATS):
        bare = timed(bare_erm, X, y)
        ours = timed(gpa, X, y, domain, Z)
        ratios.append(ours / bare)
        print(f"bare ERM {bare:.2f} s, GPA {ours:.2f} s, ratio {ratios[-1]:.2f}", flush=True)
    print(f"GPA's training over a bare ERM loop: {np.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})")


if __name__ == "__main__":
    main()
