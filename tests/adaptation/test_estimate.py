"""The estimate as a person uses it."""

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize

import sitewise as sw
from given import evidence_of
from sitewise.adaptation.answer import fit_of
from sitewise.adaptation.estimate import fit_any_model
from sitewise.adaptation.families import additive, table
from sitewise.adaptation.families.base import Request
from sitewise.adaptation.families.table import can_fill_a_table
from sitewise.adaptation.fit import Fit, PostFit, best, weigh_candidates
from sitewise.uncertainty import logit_interval, near_a_bound


def site_with_z(n_rows=1500, seed=0, **arguments):
    return sw.SimulatedFamily(seed=seed).site(n_rows, prevalence=[0.75, 0.25], seed=seed + 1, **arguments)


def discrete_site(n_rows=400, seed=0, missing=0.0):
    family = sw.SimulatedFamily(n_continuous=0, levels=(2, 2), seed=seed)
    return family.site(n_rows, prevalence=[0.7, 0.3], missing=missing, seed=seed)


def test_auto_finds_that_g_depends_on_z_and_that_it_does_not():
    assert sw.estimate_prevalence(*_pair(site_with_z(4000))).model == "additive"
    flat = site_with_z(4000, dependence=0.0)
    assert sw.estimate_prevalence(*_pair(flat)).model == "constant"
    assert sw.estimate_prevalence(flat.log_ratio).model == "constant"


def _pair(site):
    return site.log_ratio, site.Z


def test_auto_does_little_harm_where_g_is_flat():
    """Mean KL against the constant's over small sites."""
    auto, constant = [], []
    for seed in range(25):
        site = sw.SimulatedFamily(seed=seed, signal=2.5).site(500, prevalence=[0.8, 0.2], dependence=0.0, seed=seed)
        for model, into in (("auto", auto), ("constant", constant)):
            estimate = sw.estimate_prevalence(site.log_ratio, site.Z, model=model)
            truth = np.exp(site.log_prevalence)
            into.append((truth * (site.log_prevalence - estimate.log_prevalence(site.Z))).sum(1).mean())
    assert np.mean(auto) <= 1.25 * np.mean(constant) + 0.001


def test_the_cheap_leave_one_out_is_leave_one_out():
    """Equation 10 against a brute force of a hundred and twenty refits."""
    site = discrete_site(120, seed=3)
    for model, strength in (("additive", 3.0), ("table", 5.0), ("table", 300.0), ("constant", 0.0)):
        whole = sw.estimate_prevalence(*_pair(site), model=model, strength=strength)
        schema, left_out = whole.confounders, 0.0
        log_ratio = torch.log_softmax(torch.tensor(site.log_ratio), dim=1).numpy()
        for row in range(120):
            others = np.arange(120) != row
            fit = sw.estimate_prevalence(
                site.log_ratio[others], site.Z[others], model=model, strength=strength, confounders=schema
            )
            left_out += np.log((np.exp(log_ratio[row]) * np.exp(fit.log_prevalence(site.Z[~others])[0])).sum())
        cheap = whole.log_likelihood - fit_of(whole).optimism
        assert abs(cheap - left_out) < 0.25 * abs(whole.log_likelihood - left_out)


def test_a_table_with_rows_that_lack_z_climbs_to_the_joint_optimum():
    """Rows without any z have the mean of g: brute force over the four cells' probabilities."""
    site = discrete_site(300, seed=1, missing=0.4)
    full = site.Z.notna().all(axis=1) | site.Z.isna().all(axis=1)
    log_ratio, Z = site.log_ratio[full], site.Z[full]
    estimate = sw.estimate_prevalence(log_ratio, Z, model="table", strength=0.0)
    cells = Z.dropna().drop_duplicates().sort_values(list(Z.columns)).to_numpy().tolist()
    where = [cells.index(row) if None not in row and row[0] == row[0] else -1 for row in Z.to_numpy().tolist()]
    where = np.array(where)
    f = np.exp(log_ratio - log_ratio.max(1, keepdims=True))
    f = f / f.sum(1, keepdims=True)
    share = np.bincount(where[where >= 0]) / (where >= 0).sum()

    def objective(p):
        g = np.where(where >= 0, p[where], share @ p)
        return -np.log(f[:, 0] * (1 - g) + f[:, 1] * g).sum()

    best = minimize(
        objective, np.full(len(cells), 0.5), bounds=[(1e-9, 1 - 1e-9)] * len(cells), options={"ftol": 1e-14}
    )
    assert estimate.log_likelihood == pytest.approx(-best.fun, abs=1e-4)
    prevalence = np.exp(estimate.log_prevalence(pd.DataFrame(cells, columns=Z.columns)))[:, 1]
    np.testing.assert_allclose(prevalence, best.x, atol=2e-3)


@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_additive_newton_lbfgs_and_em_agree(missing):
    site = site_with_z(600, missing=missing)
    by_solver = {
        solver: sw.estimate_prevalence(*_pair(site), model="additive", strength=1.0, solver=solver, random_state=0)
        for solver in ("newton", "lbfgs", "em")
    }
    for estimate in by_solver.values():
        assert estimate.converged
        assert estimate.log_likelihood == pytest.approx(by_solver["newton"].log_likelihood, abs=1e-2)
        np.testing.assert_allclose(estimate.marginal, by_solver["newton"].marginal, atol=1e-3)


def test_the_papers_em_does_not_call_its_limit_a_success():
    """Trap: EM reports success at its iteration limit."""
    site = site_with_z(400)
    for solver in (sw.EM(iterations=2), sw.EM(iterations=2, m_step="sgd")):
        with pytest.warns(UserWarning, match=r"network g did not converge in 2 iterations \(gap"):
            estimate = sw.estimate_prevalence(*_pair(site), model="network", solver=solver, random_state=0)
        assert not estimate.converged
        assert estimate.n_iter == 2
    with pytest.warns(UserWarning, match="constant g did not converge"):
        assert not sw.estimate_prevalence(site.log_ratio, solver=sw.EM(iterations=3), model="constant").converged


def test_the_papers_network_learns_g_and_repeats_itself():
    site = sw.SimulatedFamily(signal=3.0, seed=2).site(3000, prevalence=[0.6, 0.4], dependence=1.5, seed=2)
    estimates = []
    for _ in range(2):
        with pytest.warns(UserWarning, match="did not converge in 5 iterations"):
            estimates.append(sw.estimate_prevalence(*_pair(site), model="network", solver="em", random_state=3))
    np.testing.assert_array_equal(estimates[0].log_prevalence(site.Z), estimates[1].log_prevalence(site.Z))
    truth = np.exp(site.log_prevalence)[:, 1]
    assert np.corrcoef(np.exp(estimates[0].log_prevalence(site.Z))[:, 1], truth)[0, 1] > 0.9
    nothing = site.Z.iloc[:1].assign(age0=np.nan, group0=None, group1=None)
    np.testing.assert_allclose(np.exp(estimates[0].log_prevalence(nothing))[0], estimates[0].marginal, atol=1e-9)


def test_part_of_z_is_used_and_part_of_z_can_be_asked_for():
    site = sw.SimulatedFamily(signal=3.0, seed=4).site(8000, dependence=1.0, missing=0.3, seed=4)
    estimate = sw.estimate_prevalence(*_pair(site))
    only_group = site.Z.assign(age0=np.nan, group1=None)
    for level in ("level 0", "level 1"):
        rows = (site.Z["group0"] == level).to_numpy()
        expected = site.y[rows].mean()
        assert np.exp(estimate.log_prevalence(only_group[rows]))[0, 1] == pytest.approx(expected, abs=0.05)


def test_a_few_labels_help():
    site = sw.SimulatedFamily(signal=0.3, seed=0).site(400, prevalence=[0.9, 0.1], seed=0)
    y = np.where(np.arange(400) < 300, site.y, np.nan)
    without, with_labels = sw.estimate_prevalence(site.log_ratio), sw.estimate_prevalence(site.log_ratio, y=y)
    width = [np.diff(e.interval(), axis=0)[0, 1] for e in (without, with_labels)]
    assert width[1] < 0.6 * width[0]
    all_known = sw.estimate_prevalence(site.log_ratio, y=site.y)
    assert all_known.marginal[1] == pytest.approx(site.y.mean())
    # Known labels alone are a binomial sample.
    error = np.sqrt(site.y.mean() * (1 - site.y.mean()) / 400)
    assert np.diff(all_known.interval(), axis=0)[0, 1] == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_groups_widen_intervals_as_repeats_should():
    site = site_with_z(300)
    repeat = np.repeat(np.arange(300), 4)
    for model in ("constant", "additive"):
        arguments = {"model": model, "strength": 0.0 if model == "constant" else 4.0}
        once = sw.estimate_prevalence(*_pair(site), **{**arguments, "strength": arguments["strength"] / 4})
        naive = sw.estimate_prevalence(site.log_ratio[repeat], site.Z.iloc[repeat], **arguments)
        grouped = sw.estimate_prevalence(site.log_ratio[repeat], site.Z.iloc[repeat], groups=repeat, **arguments)
        widths = [np.diff(e.interval(), axis=0)[0, 1] for e in (once, naive, grouped)]
        assert widths[1] == pytest.approx(widths[0] / 2, rel=0.05)
        assert widths[2] == pytest.approx(widths[0], rel=0.15)


def test_prior_is_what_shrinkage_aims_at():
    rng = np.random.default_rng(0)
    log_ratio = rng.normal(size=(50, 2))
    pulled = sw.estimate_prevalence(log_ratio, model="constant", strength=1e6, prior=[0.9, 0.1])
    np.testing.assert_allclose(pulled.marginal, [0.9, 0.1], atol=1e-3)
    shape = sw.estimate_prevalence(*_pair(site_with_z(4000)), model="additive", strength=1.0)
    here = site_with_z(150, seed=0)
    towards = sw.estimate_prevalence(
        *_pair(here), model="additive", strength=1e5, prior=shape, confounders=shape.confounders
    )
    np.testing.assert_allclose(
        np.corrcoef(towards.log_prevalence(here.Z)[:, 1], shape.log_prevalence(here.Z)[:, 1])[0, 1], 1, atol=0.02
    )


def test_a_level_is_aimed_at_by_every_model():
    site = discrete_site()
    for model in ("constant", "table", "additive"):
        arguments = {"model": model, "strength": 1e6}
        pulled = sw.estimate_prevalence(*_pair(site), prior=[0.9, 0.1], **arguments)
        np.testing.assert_allclose(np.exp(pulled.log_prevalence(site.Z)), np.tile([0.9, 0.1], (400, 1)), atol=2e-3)
        by_estimate = sw.estimate_prevalence(
            *_pair(site), prior=sw.estimate_prevalence(discrete_site(seed=5).log_ratio, model="constant"), **arguments
        )
        level = sw.estimate_prevalence(discrete_site(seed=5).log_ratio, model="constant").marginal
        np.testing.assert_allclose(by_estimate.marginal, level, atol=2e-3)


def test_a_prior_that_depends_on_z_gives_its_shape_and_leaves_the_level_free():
    shape = sw.estimate_prevalence(*_pair(discrete_site(4000)), model="additive", strength=1.0)
    here = discrete_site(4000, seed=0)
    rare = sw.SimulatedFamily(n_continuous=0, levels=(2, 2), seed=0).site(3000, prevalence=[0.95, 0.05], seed=9)
    for model in ("table", "additive"):
        towards = sw.estimate_prevalence(*_pair(rare), model=model, strength=1e6, prior=shape)
        assert towards.marginal[1] == pytest.approx(0.05, abs=0.02)
        odds = [np.diff(e.log_prevalence(here.Z), axis=1) for e in (towards, shape)]
        np.testing.assert_allclose(np.ptp(odds[0] - odds[1]), 0, atol=0.02)


def test_a_prior_brings_its_schema_along():
    """The codes of one schema mean nothing in another."""
    wide, narrow = site_with_z(2000), site_with_z(400, seed=0)
    narrow_Z = narrow.Z[narrow.Z["age0"].between(40, 60)]
    log_ratio = narrow.log_ratio[narrow_Z.index]
    prior = sw.estimate_prevalence(*_pair(wide), model="additive", strength=1.0)
    for role in ("prior", "start"):
        estimate = sw.estimate_prevalence(log_ratio, narrow_Z, model="additive", **{role: prior})
        assert estimate.confounders == prior.confounders
        with pytest.raises(ValueError, match=f"{role} was estimated with other confounders"):
            sw.estimate_prevalence(log_ratio, narrow_Z, confounders=sw.Confounders.learn(narrow_Z), **{role: prior})
    same = sw.estimate_prevalence(log_ratio, narrow_Z, model="additive", strength=1e7, prior=prior)
    difference = np.diff(same.log_prevalence(narrow_Z) - prior.log_prevalence(narrow_Z), axis=1)
    assert np.ptp(difference) < 0.01
    without_z = sw.estimate_prevalence(log_ratio, prior=prior, strength=1e8)
    np.testing.assert_allclose(without_z.marginal, prior.marginal, atol=1e-4)
    three = sw.estimate_prevalence(np.random.default_rng(0).normal(size=(50, 3)))
    with pytest.raises(ValueError, match="prior is an estimate for 3 classes, log_ratio has 2"):
        sw.estimate_prevalence(log_ratio, prior=three)


def test_classes_are_matched_by_their_labels():
    site = discrete_site()
    frame = pd.DataFrame(site.log_ratio, columns=["healthy", "ill"])
    prior = pd.Series({"ill": 0.1, "healthy": 0.9})
    pulled = sw.estimate_prevalence(frame, model="constant", strength=1e7, prior=prior)
    assert pulled.marginal["ill"] == pytest.approx(0.1, abs=1e-3)
    estimate = sw.estimate_prevalence(frame, site.Z)
    log_prevalence = estimate.log_prevalence(site.Z)
    turned = sw.adjust(frame, log_prevalence[["ill", "healthy"]])
    pd.testing.assert_frame_equal(turned, sw.adjust(frame, log_prevalence))


def test_lists_come_and_arrays_go():
    site = discrete_site(50)
    estimate = sw.estimate_prevalence(pd.DataFrame(site.log_ratio), site.Z)
    rows = site.Z.to_numpy().tolist()
    assert estimate.log_prevalence(rows).shape == (50, 2)
    assert estimate.interval(rows)[0].shape == (50, 2)


def test_the_table_is_tried_only_where_its_cells_are_filled():
    assert can_fill_a_table(evidence_of(*_pair(discrete_site(100))))
    rng = np.random.default_rng(0)
    ward = pd.DataFrame({"ward": [f"w{i}" for i in rng.integers(0, 40, 100)]})
    assert not can_fill_a_table(evidence_of(rng.normal(size=(100, 2)), ward))
    assert not can_fill_a_table(evidence_of(*_pair(site_with_z(100))))


def test_missing_terms_are_fitted_for_the_winner_only(monkeypatch):
    calls = []
    fit = additive.fit_missing_terms
    monkeypatch.setattr(additive, "fit_missing_terms", lambda *a: calls.append(a) or fit(*a))
    assert sw.estimate_prevalence(*_pair(site_with_z(4000))).model == "additive"
    assert sw.estimate_prevalence(*_pair(site_with_z(4000, dependence=0.0))).model == "constant"
    assert len(calls) == 1


def test_once_g_depends_on_z_the_plain_left_out_likelihood_chooses(monkeypatch):
    def made_up(strength, log_likelihood, optimism):
        return Fit(
            SimpleNamespace(name="additive"),
            log_likelihood,
            True,
            0.0,
            0.0,
            1,
            [],
            strength,
            lambda: PostFit(None, optimism),
        )

    fits = [made_up(100.0, -50.0, 1.0), made_up(1.0, -45.0, 5.0), made_up(0.1, -44.9, 8.0)]
    monkeypatch.setattr(additive, "additive_candidates", lambda *_: fits)
    monkeypatch.setattr(additive, "fit_missing_terms", lambda fit, _: fit)
    monkeypatch.setattr(table, "can_fill_a_table", lambda *_: False)
    even = torch.full((2,), 0.5)
    for constant, strength in ((made_up(0.0, -54.0, 0.5), 1.0), (made_up(0.0, -51.0, 0.5), 0.0)):
        request = Request(None, "auto", "auto", even, None, even, None, 0, constant)
        assert fit_any_model(request).strength == strength


def test_of_equals_the_one_most_strongly_shrunk_is_chosen():
    fits = [SimpleNamespace(strength=s, log_likelihood=-5.0 + 1e-9 / s, optimism=1.0) for s in (100.0, 10.0, 1.0)]
    assert best(fits).strength == 100.0


def test_candidates_count_by_what_they_give_to_left_out_rows():
    def made_up(left_out):
        return Fit(None, left_out + 2.0, True, 0.0, 0.0, 1, [], 1.0, lambda: PostFit(None, 2.0))

    by_solver = weigh_candidates([made_up(-50.0), made_up(-51.0), made_up(-70.0)], None, lambda fit, _: fit)
    np.testing.assert_allclose(
        [r.weight for r in by_solver], np.exp([0.0, -1.0]) / np.exp([0.0, -1.0]).sum(), atol=1e-6
    )
    assert weigh_candidates([made_up(-50.0)], None, lambda fit, _: fit) == ()


@pytest.mark.parametrize("dependence", [0.2, 0.5])
def test_an_interval_at_z_allows_for_the_models_that_were_not_chosen(dependence):
    """Where candidates disagree the interval is wider than that of the chosen one alone, by equation 11b."""
    site = sw.SimulatedFamily(signal=2.0, seed=0).site(400, dependence=dependence, seed=1002)
    estimate = sw.estimate_prevalence(*_pair(site))
    codes = estimate.confounders.encode(site.Z)[0]
    chosen = estimate.prevalence.log_prob(codes).exp()
    candidates = fit_of(estimate).candidates
    weights = np.array([r.weight for r in candidates])
    apart = [((r.fit.prevalence.log_prob(codes).exp() - chosen) ** 2).numpy() for r in candidates]
    own = [r.fit.curvature.at(codes).diagonal(dim1=1, dim2=2).numpy() for r in candidates]
    between, within = (np.tensordot(weights / weights.sum(), np.array(part), 1) for part in (apart, own))
    assert (between / (between + within)).max() > 0.2
    variance = torch.tensor(between + within)
    inside = ~near_a_bound(chosen, variance).any(1).numpy()  # where curvature alone decides
    assert inside.mean() > 0.9
    for by_solver, bound in zip(estimate.interval(site.Z), logit_interval(chosen, variance, 0.95), strict=True):
        np.testing.assert_allclose(by_solver[inside], bound.numpy()[inside], rtol=1e-9)


def test_gradient_steps_survive_a_strong_ridge():
    site = site_with_z(300)
    with pytest.warns(UserWarning, match="did not converge"):
        estimate = sw.estimate_prevalence(
            *_pair(site), model="additive", strength=1e5, solver=sw.EM(iterations=50, m_step="sgd"), random_state=0
        )
    assert (np.diff(estimate.trace) >= -1e-9).all()


@pytest.mark.parametrize("model", ["constant", "table", "additive"])
def test_few_groups_never_narrow_an_interval(model):
    site = discrete_site()
    widths = []
    for groups in (None, np.arange(400), np.zeros(400), np.arange(400) % 2):
        estimate = sw.estimate_prevalence(*_pair(site), model=model, strength=3.0, groups=groups)
        intervals = (estimate.interval(), estimate.interval(site.Z.iloc[:4]))
        widths.append(np.concatenate([np.ravel(high - low) for low, high in intervals]))
    plain, alone, one, two = widths
    np.testing.assert_allclose(alone, plain, rtol=0.03)
    np.testing.assert_allclose(one, plain)
    assert (two >= plain * (1 - 1e-9)).all()


def test_a_row_of_which_nothing_is_known_has_the_networks_marginal_where_z_has_gaps():
    site = site_with_z(300, missing=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimate = sw.estimate_prevalence(*_pair(site), model="network", random_state=0)
    nothing = pd.DataFrame({name: [None] for name in site.Z.columns})
    np.testing.assert_allclose(np.exp(estimate.log_prevalence(nothing))[0], estimate.marginal, atol=1e-9)
    by_hand = np.exp(estimate.log_prevalence(site.Z)).mean(axis=0)
    np.testing.assert_allclose(by_hand, estimate.marginal, atol=1e-9)


def test_the_marginal_of_a_table_covers_where_its_cells_are_shrunk_to_the_sites_level():
    family = sw.SimulatedFamily(n_continuous=0, levels=(2, 3), seed=1)
    inside = []
    for seed in range(60):
        site = family.site(1000, prevalence=[0.8, 0.2], dependence=0.0, seed=seed)
        low, high = sw.estimate_prevalence(*_pair(site), model="table", strength=300.0).interval()
        inside.append(low[1] <= 0.2 <= high[1])
    assert 0.88 <= np.mean(inside) <= 1.0


def test_two_classes_mirror_each_other_near_a_bound_too():
    site = sw.SimulatedFamily(seed=0, signal=3.0).site(400, prevalence=[0.999, 0.001], seed=5)
    estimate = sw.estimate_prevalence(*_pair(site), model="additive", strength=1.0)
    for low, high in (estimate.interval(), estimate.interval(site.Z)):
        np.testing.assert_allclose(low[..., 0], 1 - high[..., 1], atol=1e-9)


def test_start_does_not_change_a_concave_answer():
    site = discrete_site()
    for start in (None, [0.01, 0.99], sw.estimate_prevalence(site.log_ratio)):
        estimate = sw.estimate_prevalence(site.log_ratio, model="constant", start=start)
        np.testing.assert_allclose(estimate.marginal, sw.estimate_prevalence(site.log_ratio).marginal, atol=1e-8)


def test_containers_and_names_follow_log_ratio():
    site = site_with_z(60)
    frame = pd.DataFrame(site.log_ratio, columns=["healthy", "ill"], index=range(500, 560))
    estimate = sw.estimate_prevalence(frame, site.Z)
    assert list(estimate.marginal.index) == ["healthy", "ill"]
    adjusted = sw.adjust(frame, estimate.log_prevalence(site.Z))
    assert adjusted.index.equals(frame.index)
    assert list(adjusted.columns) == ["healthy", "ill"]
    tensor = sw.estimate_prevalence(torch.tensor(site.log_ratio, dtype=torch.float32), site.Z)
    assert tensor.marginal.dtype == torch.float64
    assert isinstance(tensor.log_prevalence(site.Z), torch.Tensor)
    assert isinstance(sw.estimate_prevalence(site.log_ratio.tolist()).marginal, np.ndarray)


def test_a_patients_score_does_not_depend_on_who_else_is_in_the_batch():
    """Trap: adapt once, then predict row by row."""
    site = site_with_z(200)
    estimate = sw.estimate_prevalence(*_pair(site))
    together = sw.adjust(site.log_ratio, estimate.log_prevalence(site.Z))
    for row in (0, 57, 199):
        alone = sw.adjust(site.log_ratio[[row]], estimate.log_prevalence(site.Z.iloc[[row]]))
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-12)


def test_chunks_give_the_same_answer():
    site = site_with_z(300)
    chunks = [(site.log_ratio[i : i + 100], site.Z.iloc[i : i + 100]) for i in (0, 100, 200)]
    whole, chunked = sw.estimate_prevalence(*_pair(site)), sw.estimate_prevalence(chunks)
    np.testing.assert_allclose(chunked.marginal, whole.marginal)
    plain = sw.estimate_prevalence([(c, None) for c, _ in chunks])
    np.testing.assert_allclose(plain.marginal, sw.estimate_prevalence(site.log_ratio).marginal)


@pytest.mark.parametrize("model", ["constant", "additive"])
def test_intervals_cover(model):
    family = sw.SimulatedFamily(seed=1, signal=2.0, effect=0.0 if model == "constant" else 1.0)
    inside, at_points = [], []
    for seed in range(60):
        site = family.site(1000, prevalence=[0.8, 0.2], seed=seed)
        estimate = sw.estimate_prevalence(*_pair(site), model=model)
        low, high = estimate.interval()
        inside.append(low[1] <= 0.2 <= high[1])
        truth = np.exp(site.log_prevalence[:5, 1])
        low, high = estimate.interval(site.Z.iloc[:5])
        at_points.append(((low[:, 1] <= truth) & (truth <= high[:, 1])).mean())
    assert 0.87 <= np.mean(inside) <= 1.0
    assert 0.87 <= np.mean(at_points) <= 1.0


def test_wider_levels_nest_and_complements_mirror():
    estimate = sw.estimate_prevalence(*_pair(site_with_z(500)))
    (low80, high80), (low95, high95) = estimate.interval(level=0.8), estimate.interval(level=0.95)
    assert (low95 < low80).all()
    assert (high80 < high95).all()
    assert low95[0] == pytest.approx(1 - high95[1], abs=1e-6)


@pytest.mark.parametrize("solver", ["newton", "lbfgs", "em"])
def test_additive_weights_count_as_rows(solver):
    site = site_with_z(120)
    weight = 1.0 + np.arange(120) % 3
    repeat = np.repeat(np.arange(120), weight.astype(int))
    arguments = {"model": "additive", "strength": 1.0, "solver": solver, "random_state": 0}
    weighted = sw.estimate_prevalence(*_pair(site), sample_weight=weight, **arguments)
    repeated = sw.estimate_prevalence(
        site.log_ratio[repeat], site.Z.iloc[repeat], confounders=weighted.confounders, **arguments
    )
    assert weighted.converged
    np.testing.assert_allclose(weighted.marginal, repeated.marginal, atol=1e-5)
