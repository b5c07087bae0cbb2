"""The constant g against QuaPy's EMQ, the label-shift EM of Saerens, Latinne and Decaestecker."""

import warnings

import numpy as np
import pytest

import sitewise as sw

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    EMQ = pytest.importorskip("quapy.method.aggregative", reason="QuaPy comes with sitewise[bench]").EMQ


def scores(n_classes, seed, n_rows=3000):
    rng = np.random.default_rng(seed)
    source = rng.dirichlet(np.full(n_classes, 5.0))
    target = rng.dirichlet(np.full(n_classes, 2.0))
    y = rng.choice(n_classes, n_rows, p=target)
    log_f = 2.0 * (2.0 * np.eye(n_classes)[y] + rng.normal(size=(n_rows, n_classes)))
    joint = np.exp(log_f - log_f.max(axis=1, keepdims=True)) * source
    return joint / joint.sum(axis=1, keepdims=True), source


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("seed", range(3))
def test_constant_g_equals_emq_run_to_the_end(n_classes, seed):
    posterior, source = scores(n_classes, seed)
    limit = EMQ.MAX_ITER
    EMQ.MAX_ITER = 100_000
    try:
        theirs, _ = EMQ.EM(source, posterior, epsilon=1e-10)
    finally:
        EMQ.MAX_ITER = limit
    ours = sw.estimate_prevalence(np.log(posterior) - np.log(source), model="constant")
    assert ours.gap < 1e-9
    np.testing.assert_allclose(ours.marginal, theirs, atol=1e-6)
    em = sw.estimate_prevalence(np.log(posterior) - np.log(source), model="constant", solver="em", random_state=seed)
    np.testing.assert_allclose(em.marginal, theirs, atol=1e-6)


def test_a_rule_on_the_steps_size_stops_too_early_where_the_class_is_rare():
    """Trap: at its default EMQ says success while far from the optimum; our gap does not."""
    rng = np.random.default_rng(0)
    y = rng.random(50_000) < 0.02
    x = y * 0.8 + rng.normal(size=50_000)
    posterior = np.stack([np.exp(-(x**2) / 2), np.exp(-((x - 0.8) ** 2) / 2)], axis=1)
    posterior /= posterior.sum(axis=1, keepdims=True)
    early, _ = EMQ.EM(np.array([0.5, 0.5]), posterior)
    ours = sw.estimate_prevalence(np.log(posterior), model="constant")
    assert ours.gap < 1e-9
    assert early[1] > 1.2 * ours.marginal[1]
