"""The solver of g, its dropout and the balance of f as settings of both models."""

import warnings

import numpy as np
import pytest

import sitewise as sw


@pytest.fixture(scope="module")
def adjusted(two):
    """A function that fits an adjuster with some settings; the site's probabilities beside it."""
    proba, proba_new = two.probabilities(True)

    def fit(**settings):
        own = {"classifier_sees": "xz", "rehearsal": None} | settings
        return sw.PrevalenceAdjuster(**own).fit(proba, two.y, sample_confounder=two.Z)

    return fit, proba, proba_new


def test_a_solver_reaches_the_new_sites_g(two, adjusted, tmp_path, monkeypatch):
    monkeypatch.setattr("sitewise.prevalence.network.STEPS", 20)
    fit, _, new = adjusted
    solver = sw.EM(iterations=3)
    adjuster = fit(prevalence="network", solver=solver, prevalence_dropout=0.5, random_state=4)
    with pytest.warns(UserWarning, match="network g did not converge in 3 iterations"):
        here = adjuster.adapt(new, sample_confounder=two.new.Z, policy="rows")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = sw.estimate_prevalence(
            adjuster.log_ratio(new, two.new.Z),
            two.new.Z,
            model="network",
            solver=solver,
            dropout=0.5,
            confounders=adjuster.confounders_,
            random_state=4,
        )
    assert here.estimate.n_iter == 3
    np.testing.assert_array_equal(here.estimate.log_prevalence(two.new.Z), own.log_prevalence(two.new.Z))
    adjuster.save(tmp_path / "model")
    loaded = sw.load(tmp_path / "model")
    assert (loaded.solver, loaded.prevalence_dropout, loaded.balance) == (solver, 0.5, "auto")
    for g in (adjuster.pooled_prevalence_, loaded.pooled_prevalence_):
        assert [layer.p for layer in g.module if hasattr(layer, "p")] == [0.5, 0.5]


def test_em_takes_no_prior_and_rows_without_z_have_a_solver_too(two, adjusted):
    fit, _, new = adjusted
    em = fit(solver="em", prevalence="constant").adapt(new, sample_confounder=two.new.Z)
    plain = sw.estimate_prevalence(em.rows.log_ratio.numpy(), model="constant")
    np.testing.assert_allclose(em.estimate.marginal, plain.marginal, atol=1e-6)  # the maximum, no posterior mean
    climbing = fit(solver="lbfgs", prevalence="additive")
    assert climbing.adapt(new).estimate.model == "posterior"  # a constant g has no lbfgs


def test_em_begins_at_the_given_start(two, adjusted):
    fit, _, new = adjusted
    log_ratio = fit().log_ratio(new, two.new.Z)
    joint = np.exp(log_ratio) * [0.8, 0.2]
    one_round = (joint / joint.sum(1, keepdims=True)).mean(0)
    with pytest.warns(UserWarning, match="constant g did not converge"):
        estimate = sw.estimate_prevalence(log_ratio, solver=sw.EM(iterations=1), model="constant", start=[0.8, 0.2])
    np.testing.assert_allclose(estimate.marginal, one_round, rtol=1e-9)


def test_balance_and_calibration_are_switched_apart(two, adjusted):
    fit, proba, _ = adjusted
    both, neither = fit(), fit(calibration="none")
    assert both.balance_ is not None
    assert neither.balance_ is None
    unbalanced, only_balanced = fit(balance=False), fit(calibration="none", balance=True)
    assert unbalanced.balance_ is None
    assert {calibration.method for calibration in unbalanced.calibrations_} == {"vector"}
    raw, balanced = (model.log_ratio(proba, two.Z) for model in (neither, only_balanced))
    h = only_balanced.balance_.log_mean(only_balanced.codes_of(two.Z, len(proba))).numpy()
    np.testing.assert_allclose(balanced, raw - h, atol=1e-12)
    assert np.abs(h).max() > 1e-3
    for model, settings in (
        (unbalanced, ("vector", False)),
        (only_balanced, ("none", True)),
        (both, ("vector", "auto")),
    ):
        again = neither.with_calibration(settings[0], balance=settings[1])
        np.testing.assert_allclose(again.log_ratio(proba, two.Z), model.log_ratio(proba, two.Z), atol=1e-6)
    crossed = only_balanced.cross_calibrated(only_balanced.held_out_[0])
    assert np.abs(crossed.numpy() - balanced).max() > 1e-6  # each row by a balance that did not see it
    np.testing.assert_allclose(crossed.numpy(), balanced, atol=0.5)


@pytest.mark.parametrize("model", [sw.GPAClassifier, sw.PrevalenceAdjuster])
def test_everything_wrong_is_said_at_once(model):
    wrong = model(solver="em", balance="yes", prevalence_dropout=0.5, calibration="vector")
    with pytest.raises(ValueError, match="balance must be True, False or 'auto'") as caught:
        wrong.fit(np.full((4, 2), 0.5), [0, 1, 0, 1])
    known = "constant or additive or table or network"
    assert f"solver='em' is available for model {known}, got 'auto'" in str(caught.value)
    assert "prevalence_dropout is only for model network, got 'auto'" in str(caught.value)
    with pytest.raises(ValueError, match="prevalence_dropout must be a share from 0 to below 1, got 1"):
        model(prevalence="network", prevalence_dropout=1).fit(np.full((4, 2), 0.5), [0, 1, 0, 1])
