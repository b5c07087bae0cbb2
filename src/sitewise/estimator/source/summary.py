"""What a model was trained on, in a few numbers that are kept with it."""

from dataclasses import dataclass
from typing import Any

import torch

from sitewise.estimator.source.reading import TrainingData
from sitewise.ratio import digest_rows


@dataclass(frozen=True)
class SiteSummary:
    """A training site: its rows, and how many of them are of each class."""

    name: Any
    n_rows: int
    class_counts: tuple[int, ...]


@dataclass(frozen=True)
class TrainingSummary:
    """The training data: its sites, and a hash by which the same data is known again."""

    sites: tuple[SiteSummary, ...]
    fingerprint: str
    named: bool = True  # whether the caller named the sites

    @property
    def n_rows(self) -> int:
        """The rows of all sites."""
        return sum(site.n_rows for site in self.sites)


def summarize_training(data: TrainingData) -> TrainingSummary:
    """Count rows and classes of every site."""
    rows, n_classes = data.rows, len(data.classes)
    counts = [torch.bincount(rows.y[rows.site == s], minlength=n_classes) for s in range(len(data.site_names))]
    sites = zip(data.site_names, counts, strict=True)
    summaries = (SiteSummary(name, int(count.sum()), tuple(count.tolist())) for name, count in sites)
    return TrainingSummary(tuple(summaries), digest_rows(rows), data.named)
