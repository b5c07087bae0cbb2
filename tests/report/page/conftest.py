"""Reports of simulated sites, through arrays alone."""

import numpy as np
import pytest

from sitewise.report.page.content import Profile, TrainingSite, build_content

FINDINGS = [
    ("stability", "good", 0.41, 0.01, "The scores here are what the training sites lead to expect.", "Label rows."),
    ("coverage_of_z", "care", 0.07, 0.05, "7% of the ages lie outside the training range.", "Look at these rows."),
    ("positivity", "unknown", None, None, "One training site is too small to tell.", "Add rows of this site."),
]


def diagnosis(verdict="care", findings=FINDINGS):
    names = ("name", "severity", "value", "threshold", "sentence", "advice")
    return {
        "verdict": verdict,
        "sentence": "Adapted: so it is.",
        "outcome": {"word": "adapted", "sentence": "Adapted: so it is.", "risk": "A gain is expected."},
        "findings": [dict(zip(names, finding, strict=True), p_value=None, details={}) for finding in findings],
    }


def metric(value):
    return {"estimate": value, "low": value - 0.05, "high": value + 0.05}


def performance(n_rows, n_classes, rng):
    names = ("accuracy", "positive_f1", "macro_f1", "recall", "specificity", "auroc", "ece")
    counts = rng.uniform(0, 2 * n_rows / n_classes**2, (n_classes, n_classes))
    return {
        "n_rows": n_rows,
        "threshold": None,
        "level": 0.95,
        "metrics": {name: metric(0.5 + 0.07 * i) for i, name in enumerate(names)},
        "confusion": {"estimate": counts, "low": 0.9 * counts, "high": 1.1 * counts},
    }


def subgroups(n_rows, n_classes):
    """Two groups with numbers, one that is too small, and one without a prevalence."""
    shares = [metric(1 / n_classes) for _ in range(n_classes)]
    numbers = {"metrics": {"macro_f1": metric(0.6), "recall": metric(0.7)}, "calibration": {"oe_ratio": metric(1.1)}}
    nothing = {"metrics": {}, "calibration": {}}
    return [
        {"column": "sex", "name": "female", "rows": n_rows // 2, "note": None, "prevalence": shares, **numbers},
        {"column": "sex", "name": "male", "rows": n_rows // 3, "note": None, "prevalence": shares, **numbers},
        {"column": "ward", "name": "A <1>", "rows": 3, "note": "3 row(s) are too few", "prevalence": [], **nothing},
        {"column": "ward", "name": "B", "rows": 99, "note": "it spans 2% to 90%", "prevalence": shares, **nothing},
    ]


def profile(rng, name, values, n_rows, n_classes, *, is_number=False, **others):
    """A profile whose share of the classes drifts along the values."""
    drift = np.linspace(-1, 1, len(values))[:, None] * rng.normal(0, 0.8, n_classes)
    level = rng.normal(0, 1, n_classes) - 1.5 * (np.arange(n_classes) > 0)
    after = np.exp(level + drift)
    after /= after.sum(axis=1, keepdims=True)
    before = np.exp(level[::-1] + 0.5 * drift)
    before /= before.sum(axis=1, keepdims=True)
    half = 0.3 * after * (1 - after)
    rows = rng.multinomial(n_rows, np.full(len(values), 1 / len(values)))
    return Profile(name, values, rows, before, after, after - half, after + half, is_number=is_number, **others)


@pytest.fixture
def make_content():
    """A function that gives a report's content; every part can be replaced."""

    def make(n_rows=500, n_classes=2, n_held=300, seed=0, **changes):
        rng = np.random.default_rng(seed)
        before = rng.dirichlet(np.ones(n_classes), n_rows)
        after = rng.dirichlet(np.r_[3.0, np.ones(n_classes - 1)], n_rows)
        held = rng.dirichlet(np.ones(n_classes), n_held)
        y = np.array([rng.choice(n_classes, p=row) for row in held])
        prevalence = after.mean(axis=0)
        parts = {
            "site": "Saint Mary",
            "classes": ["healthy", "ill"] if n_classes == 2 else [f"class {k}" for k in range(n_classes)],
            "prevalence": prevalence,
            "low": 0.8 * prevalence,
            "high": np.minimum(1.2 * prevalence, 1),
            "pooled": before.mean(axis=0),
            "before": before,
            "after": after,
            "training_sites": [
                TrainingSite(f"hospital {name}", 1000 + 250 * i, rng.dirichlet(np.r_[2.0, np.ones(n_classes - 1)]))
                for i, name in enumerate("ABC")
            ],
            "profiles": [
                profile(rng, "age", np.linspace(20, 90, 33).tolist(), n_rows, n_classes, is_number=True),
                profile(rng, "sex", ["female", "male"], n_rows, n_classes, rows_missing=12),
                profile(rng, "scanner", [1, 2, 3], n_rows, n_classes, notes=("2 rows have an unseen level.",)),
            ],
            "held_out": (y, held),
            "diagnosis": diagnosis(),
            "performance": performance(n_rows, n_classes, rng),
            "subgroups": subgroups(n_rows, n_classes),
            "done": {"Data": {"rows here": n_rows, "confounders": "age, sex"}, "Software": {"sitewise": "0.1.0"}},
            "made": "2026-01-02 03:04 UTC",
        }
        return build_content(**(parts | changes))

    return make
