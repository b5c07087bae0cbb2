"""Objects show their answer: in a terminal, and in a notebook, where names are text and nothing else."""

import numpy as np
import pandas as pd
import pytest

import sitewise as sw

NAMES = np.array(["healthy", "<b>ill</b>"])


def site(n_rows, share, seed):
    rng = np.random.default_rng(seed)
    y = (rng.random(n_rows) < share).astype(int)
    p = 1 / (1 + np.exp(-(rng.normal(size=n_rows) + 2.0 * y - 1.0)))
    return np.stack([1 - p, p], axis=1), NAMES[y]


@pytest.fixture(scope="module")
def model():
    sites = [site(200, share, seed) for seed, share in enumerate((0.2, 0.4, 0.5))]
    X, y = (np.concatenate(part) for part in zip(*sites, strict=True))
    domain = np.repeat(["<i>a</i>", "b", "c"], 200)
    return sw.PrevalenceAdjuster(classes=NAMES).fit(X, y, sample_domain=domain)


@pytest.fixture(scope="module")
def here(model):
    return model.adapt(site(500, 0.1, 7)[0])


def test_the_answer_is_shown(model, here):
    shown = {
        repr(here): (here.outcome.sentence, "verdict:", "95% interval"),
        repr(here.diagnose()): (here.outcome.sentence, "stability"),
        repr(here.estimate): ("P(0) = ", "95% interval"),
        repr(here.expected_performance()): ("500 rows", "recall"),
        repr(model.rehearsal_): (model.rehearsal_.sentence, "nll_adapted"),
        repr(model.plan(width=0.2, n_simulations=0)): ("with 10,000,000 rows the width would be",),
    }
    for text, words in shown.items():
        assert all(word in text for word in words), text


def test_notebooks_show_it_too_and_names_stay_text(model, here):
    parts = (here, here.diagnose(), here.estimate, here.expected_performance(), model.rehearsal_)
    for part in (*parts, model.plan(width=0.2, n_simulations=0)):
        html = part._repr_html_()
        assert html.startswith("<p>")
        assert "<b>ill" not in html
        assert "<i>a" not in html


def test_an_estimate_names_the_classes_of_a_frame():
    log_ratio = np.log(site(50, 0.4, 3)[0])
    estimate = sw.estimate_prevalence(pd.DataFrame(log_ratio, columns=["no", "yes"]))
    assert "P(yes) = " in repr(estimate)


def test_without_a_rehearsal_nothing_is_claimed(model):
    X, y = site(200, 0.4, 1)
    plain = sw.PrevalenceAdjuster(classes=NAMES, rehearsal=None).fit(X, y, sample_domain=np.repeat("a", 200))
    assert repr(plain.rehearsal_) == plain.rehearsal_.sentence
    assert "not rehearsed" in plain.adapt(site(900, 0.05, 2)[0]).outcome.risk


def test_sites_that_are_not_named_are_warned_of_and_end_in_care():
    X, y = site(400, 0.4, 1)
    with pytest.warns(UserWarning, match="no sample_domain is given"):
        plain = sw.PrevalenceAdjuster(classes=NAMES).fit(X, y)
    assert plain.rehearsal_.kind == "rows"
    diagnosis = plain.adapt(site(2000, 0.1, 2)[0]).diagnose()
    assert diagnosis.verdict != "adapt"
    assert diagnosis["training sites"].severity == "care"
