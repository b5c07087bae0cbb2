"""Trained models of colored digits, and sites of digits that a model has not seen, for the studies of trust."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import sitewise as sw
from sitewise.bench.datasets.digits import color, colored_site, from_table, load_digits
from sitewise.training import Recipe

BRISK = Recipe(epochs=8, batch_size=128, learning_rate=5e-3, weight_decay=0.1, min_steps=0, augment="affine")
LEVELS = np.array(["green", "red"], dtype=object)


def trained_model(seed, folder, data_dir, validation="validation"):
    """Return GPA trained at the paper's two sites and calibrated on a validation site; it is stored in a folder.

    If `validation` is a share, GPA is trained at all three sites, and this share of each is held out for calibration.
    """
    place = Path(folder) / f"digits-{seed}-{validation}"
    if place.is_dir():
        return sw.load(place)
    train, held, _ = load_digits(data_dir).split(seed)
    sites = [
        colored_site(train, 5000, beta=0.9, name="β = 0.9", seed=seed),
        colored_site(train, 5000, beta=0.7, name="β = 0.7", seed=seed + 1),
        colored_site(held, 2000, beta=0.5, name="validation", seed=seed + 10),
    ]
    X, y = (np.concatenate([getattr(site, name) for site in sites]) for name in ("X", "y"))
    Z = {"color": np.concatenate([site.Z["color"] for site in sites])}
    domain = np.concatenate([[site.name] * len(site) for site in sites])
    model = sw.GPAClassifier(validation=validation, recipe=BRISK, random_state=seed, verbose=False, device="cpu")
    model.fit(X, y, sample_domain=domain, sample_confounder=Z)
    place.parent.mkdir(parents=True, exist_ok=True)
    model.save(place)
    return model


@dataclass(frozen=True)
class Pool:
    """Log f of every test digit in both colours, from which sites are drawn."""

    log_ratio: np.ndarray  # (2, n, K), by colour
    label: np.ndarray  # (n,)

    @classmethod
    def of(cls, model, seed, data_dir):
        """Compute log f of the digits that were not used for training or validation."""
        _, _, test = load_digits(data_dir).split(seed)
        scores = []
        for z in range(2):
            Z = pd.DataFrame({"color": np.repeat(LEVELS[z], len(test.labels))})
            scores.append(model.log_ratio(color(test.images, np.full(len(test.labels), z)), Z))
        return cls(np.stack(scores), (test.labels >= 5).astype(int))

    def site(self, n, joint, rng):
        """Draw a site of n rows with P(y, z) = joint, and return its log f, Z and labels."""
        y, z = from_table(n, joint, rng)
        index = np.empty(n, dtype=np.int64)
        for label in range(2):
            mine = y == label
            index[mine] = rng.choice(np.flatnonzero(self.label == label), mine.sum())
        return self.log_ratio[z, index], pd.DataFrame({"color": LEVELS[z]}), y


def random_joint(rng):
    """Draw P(y, z), (2, 2): P(z) is between 0.3 and 0.7; P(y=1|z) of each colour is drawn between 0.03 and 0.6."""
    red = rng.uniform(0.3, 0.7)
    sick = np.exp(rng.uniform(np.log(0.03), np.log(0.6), size=2))
    share = np.array([1 - red, red])
    return np.stack([share * (1 - sick), share * sick])
