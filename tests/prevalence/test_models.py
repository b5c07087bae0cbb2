"""Models of g: what they share, and what each is checked against."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import SplineTransformer

import sitewise as sw
from sitewise.confounders.variables import Categorical, Continuous
from sitewise.prevalence import fit_constant
from sitewise.prevalence.additive import features, fit_additive, logits, missing_features, nonzero_splines, spline_basis
from sitewise.prevalence.base import aggregate, on_device
from sitewise.prevalence.linear import assemble
from sitewise.prevalence.network import fit_missing_inputs, fit_network
from sitewise.prevalence.table import fit_table


def labeled_site(n_rows=600, n_classes=2, n_continuous=1, seed=0, missing=0.0):
    family = sw.SimulatedFamily(n_classes=n_classes, n_continuous=n_continuous, levels=(2, 3), seed=seed)
    site = family.site(n_rows, missing=missing, seed=seed)
    schema = sw.Confounders.learn(site.Z)
    codes, _ = schema.encode(site.Z)
    targets = torch.nn.functional.one_hot(torch.tensor(site.y), n_classes).double()
    return site, schema, codes, targets, torch.ones(n_rows, dtype=torch.float64)


def every_model(schema, codes, targets, weight):
    yield fit_constant(targets, weight)
    yield fit_additive(targets, codes, weight, schema)
    yield fit_network(targets, codes, weight, schema)
    if all(hasattr(v, "levels") for v in schema.variables):
        yield fit_table(targets, codes, weight, schema)


@pytest.mark.parametrize("n_knots", [2, 3, 5, 9])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_the_spline_basis_is_scikit_learns(n_knots, degree):
    rng = np.random.default_rng(n_knots)
    knots = np.sort(np.r_[1.0, rng.uniform(1.05, 1.95, n_knots - 2), 2.0])
    values = np.r_[1.0, knots, rng.uniform(1, 2, 200), 2.0]
    theirs = SplineTransformer(degree=degree, knots=knots[:, None]).fit_transform(values[:, None])
    ours = spline_basis(nonzero_splines(torch.tensor(values), knots.tolist(), degree), len(knots))
    np.testing.assert_allclose(ours, theirs, atol=1e-12)
    np.testing.assert_allclose(ours.sum(1), 1, atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_additive_fit_is_scikit_learns_logistic_regression_on_the_same_features(n_classes):
    site, schema, codes, targets, weight = labeled_site(n_classes=n_classes)
    strength = 0.7
    ours = fit_additive(targets, codes, weight, schema, strength=strength, smoothing=0.0)
    design = features(codes, schema)[:, 1:].numpy()
    # One logit for two classes is the difference of ours, whose ridge is then halved.
    inverse = 2 / strength if n_classes == 2 else 1 / strength
    theirs = LogisticRegression(C=inverse, tol=1e-10, max_iter=10_000).fit(design, site.y)
    np.testing.assert_allclose(ours.log_prob(codes).exp(), theirs.predict_proba(design), atol=1e-5)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_with_everything_masked_every_model_says_the_marginal(missing):
    _, schema, codes, targets, weight = labeled_site(n_continuous=0, missing=missing)
    blank = schema.missing_codes()[None]
    for model in every_model(schema, codes, targets, weight):
        marginal = (targets.sum(0) + 0.5) / (len(targets) + 1)
        torch.testing.assert_close(model.log_prob(blank)[0].exp(), marginal, atol=1e-3, rtol=0)
        probabilities = model.log_prob(codes).exp()
        torch.testing.assert_close(probabilities.sum(1), torch.ones(len(codes), dtype=torch.float64))


def test_a_site_with_one_class_keeps_a_finite_g():
    """Trap: a site whose prevalence is 0.000."""
    _, schema, codes, targets, weight = labeled_site(n_continuous=0)
    targets = torch.zeros_like(targets)
    targets[:, 0] = 1.0
    for model in every_model(schema, codes, targets, weight):
        log_prob = model.log_prob(codes)
        assert log_prob.isfinite().all()
        assert (log_prob[:, 1].exp() < 0.02).all()
        assert (log_prob[:, 1] > -12).all(), model.name


def test_soft_labels_and_weights_count_as_rows_do():
    _, schema, codes, targets, weight = labeled_site(n_continuous=0, n_rows=200)
    weight = weight + (torch.arange(200) % 2)
    repeat = torch.repeat_interleave(torch.arange(200), weight.long())
    ones = torch.ones(len(repeat), dtype=torch.float64)
    for fit in (fit_additive, fit_table):
        weighted = fit(targets, codes, weight, schema).log_prob(codes)
        torch.testing.assert_close(
            weighted, fit(targets[repeat], codes[repeat], ones, schema).log_prob(codes), atol=1e-6, rtol=0
        )
    soft = torch.full_like(targets, 0.5)
    torch.testing.assert_close(fit_additive(soft, codes, weight, schema).log_prob(codes).exp(), soft, atol=1e-7, rtol=0)


def test_a_masked_variable_is_averaged_out_of_a_table():
    _, schema, codes, targets, weight = labeled_site(n_continuous=0)
    table = fit_table(targets, codes, weight, schema, strength=0.0, smoothing=0.0)
    only_first = schema.knock_out(codes, torch.tensor([False, True]))
    for level in (0.0, 1.0):
        rows = codes[:, 0] == level
        expected = targets[rows].mean(0)
        torch.testing.assert_close(table.log_prob(only_first[rows])[0].exp(), expected)


def test_a_masked_variable_is_nearly_averaged_out_of_the_additive_model_and_the_network():
    _, schema, codes, targets, weight = labeled_site(n_rows=4000, n_continuous=1, seed=3)
    only_group = schema.knock_out(codes, torch.tensor([True, False, True]))
    for model in (fit_additive(targets, codes, weight, schema), fit_network(targets, codes, weight, schema)):
        for level in (0.0, 1.0):
            rows = codes[:, 1] == level
            expected = targets[rows].mean(0)
            torch.testing.assert_close(model.log_prob(only_group[rows])[0].exp(), expected, atol=0.04, rtol=0)


def test_what_is_masked_does_not_show_in_g():
    """Trap: f sees the knocked-out z while g sees the true one."""
    _, schema, codes, targets, weight = labeled_site()
    mask = torch.tensor([True, False, True])
    shuffled = codes.clone()
    shuffled[:, mask] = codes[torch.randperm(len(codes), generator=torch.Generator().manual_seed(0))][:, mask]
    for model in every_model(schema, codes, targets, weight):
        torch.testing.assert_close(
            model.log_prob(schema.knock_out(codes, mask)), model.log_prob(schema.knock_out(shuffled, mask))
        )


def test_a_table_looks_its_rows_up_as_agreement_does():
    _, schema, codes, targets, weight = labeled_site(n_continuous=0, missing=0.3)
    weight[codes[:, 0] == codes[0, 0]] *= 0.5
    weight[:5] = 0.0
    table = fit_table(targets, codes, weight, schema)
    queries = torch.cat([codes, schema.missing_codes()[None], torch.tensor([[0.0, 2.0], [9.0, 9.0]]).double()])
    by_agreement = (table.agreement(queries) @ table.cell_log_prob.exp()).log()
    torch.testing.assert_close(table.log_prob(queries), by_agreement)


def test_rows_with_a_cell_of_their_own_are_joined_and_not_compared_with_every_cell(monkeypatch):
    _, schema, codes, targets, weight = labeled_site(n_continuous=0)
    table = fit_table(targets, codes, weight, schema)
    monkeypatch.setattr(type(table), "agreement", lambda *_: pytest.fail("compared with every cell"))
    assert table.log_prob(codes).isfinite().all()


def test_fitting_a_networks_missing_columns_leaves_rows_with_gaps_alone():
    """A variable that is missing in some rows has its missing column in L already."""
    _, schema, codes, targets, weight = labeled_site(n_rows=300, missing=0.0)
    codes = schema.knock_out(codes, torch.tensor([[True, False, False]]) & (torch.arange(300) % 3 == 0)[:, None])
    model = fit_network(targets, codes, weight, schema)
    fitted = fit_missing_inputs(model, aggregate(targets, codes, weight), 0.5)
    torch.testing.assert_close(fitted.log_prob(codes), model.log_prob(codes))
    masked = schema.knock_out(codes, torch.tensor([False, True, False]))
    assert not torch.allclose(fitted.log_prob(masked), model.log_prob(masked))


@pytest.mark.parametrize(("n_features", "width"), [(2, 5), (5, 2)])
def test_assemble_adds_up_kronecker_products(n_features, width):
    generator = torch.Generator().manual_seed(0)
    design = torch.randn(7, n_features, generator=generator, dtype=torch.float64)
    root = torch.randn(7, width, width, generator=generator, dtype=torch.float64)
    blocks = root @ root.transpose(1, 2)
    expected = sum(torch.kron(torch.outer(row, row), block) for row, block in zip(design, blocks, strict=True))
    torch.testing.assert_close(assemble(design, blocks), expected)


def test_moving_a_model_moves_everything_in_it():
    _, schema, codes, targets, weight = labeled_site(n_rows=100)
    centre = fit_network(targets, codes, weight, schema)
    model = fit_additive(targets, codes, weight, schema, centre=centre)
    moved = on_device(model, torch.device("meta"))
    assert moved.coefficients.is_meta
    assert moved.log_marginal.is_meta
    assert moved.centre.module[0].weight.is_meta
    assert not centre.module[0].weight.is_meta


def test_missing_columns_stand_where_they_are_said_to_be():
    _, schema, codes, _, _ = labeled_site(missing=0.4)
    assert torch.equal(features(codes, schema)[:, missing_features(schema)].bool(), schema.missing(codes))


def test_a_table_over_a_number_is_refused():
    _, schema, codes, targets, weight = labeled_site()
    with pytest.raises(ValueError, match="'age0' is continuous: use model='additive'"):
        fit_table(targets, codes, weight, schema)


def test_the_network_has_the_papers_layers_and_repeats_itself():
    _, schema, codes, targets, weight = labeled_site()
    model = fit_network(targets, codes, weight, schema, dropout=0.5, seed=4)
    kinds = [type(layer).__name__ for layer in model.module]
    assert kinds == ["Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]
    assert [layer.out_features for layer in model.module if hasattr(layer, "out_features")] == [100, 100, 2]
    assert not model.module.training
    again = fit_network(targets, codes, weight, schema, dropout=0.5, seed=4)
    assert torch.equal(model.log_prob(codes), again.log_prob(codes))


def test_a_thousand_levels_are_told_apart_and_shrunk_to_the_mean():
    rng = np.random.default_rng(0)
    Z = pd.DataFrame({"ward": [f"w{i}" for i in rng.integers(0, 1000, 5000)]})
    schema = sw.Confounders.learn(Z)
    codes, _ = schema.encode(Z)
    targets = torch.nn.functional.one_hot(torch.tensor(rng.integers(0, 2, 5000)), 2).double()
    weight = torch.ones(5000, dtype=torch.float64)
    level = codes[:, 0].long()
    share = (torch.bincount(level, weights=targets[:, 1]) / torch.bincount(level))[level]
    for fit in (fit_additive, fit_table):
        fitted = fit(targets, codes, weight, schema).log_prob(codes).exp()[:, 1]
        assert float(fitted.mean()) == pytest.approx(float(share.mean()), abs=0.01)
        assert np.corrcoef(fitted, share)[0, 1] > 0.95
        assert fitted.std() < share.std()


def test_without_knockout_no_missing_column_is_fitted():
    _, schema, codes, targets, weight = labeled_site()
    plain = fit_additive(targets, codes, weight, schema, knockout=0.0)
    usual = fit_additive(targets, codes, weight, schema)
    torch.testing.assert_close(plain.log_prob(codes), usual.log_prob(codes))


@pytest.mark.parametrize("n_knots", [2, 3, 6])
@pytest.mark.parametrize("n_levels", [1, 4])
def test_looked_up_logits_are_the_features_times_the_coefficients(n_levels, n_knots):
    rng = np.random.default_rng(n_knots)
    knots = np.sort(np.concatenate([[1.0, 2.0], rng.uniform(1, 2, n_knots - 2)]))
    schema = sw.Confounders(
        (
            Continuous("age", 0.0, 1.0, tuple(knots.tolist())),
            Categorical("sex", tuple(range(n_levels))),
            Continuous("never varies", 3.0, 3.0, ()),
        )
    )
    codes = torch.tensor(np.stack([rng.uniform(1, 2, 50), rng.integers(0, n_levels, 50), np.full(50, 1.5)], axis=1))
    codes[:n_knots, 0] = torch.tensor(knots)
    codes = schema.knock_out(codes, torch.tensor(rng.random(codes.shape) < 0.3))
    at_z = features(codes, schema)
    coefficients = torch.tensor(rng.normal(size=(at_z.shape[1], 3)))
    torch.testing.assert_close(logits(codes, schema, coefficients), at_z @ coefficients, rtol=0, atol=1e-12)


def test_features_that_are_kept_are_those_of_the_rows():
    """Of a few rows they are kept, but never for other rows, other schemas, or rows that were changed since."""
    frame = pd.DataFrame({"age": np.linspace(20, 90, 40), "sex": ["f", "m"] * 20})
    schema, other = sw.Confounders.learn(frame), sw.Confounders.learn(frame.assign(age=frame["age"] + 1))
    whole = schema.encode(frame)[0]
    codes = whole[:3].clone()
    first = features(codes, schema)
    assert features(codes, schema) is first
    torch.testing.assert_close(features(whole, schema)[:3], first, rtol=0, atol=0)
    torch.testing.assert_close(features(whole[3:6], schema), features(whole, schema)[3:6], rtol=0, atol=0)
    assert features(codes, other) is not first
    coefficients = torch.ones(first.shape[1], 2, dtype=torch.float64).cumsum(0)
    before = logits(codes, schema, coefficients)
    torch.testing.assert_close(before, logits(whole, schema, coefficients)[:3], rtol=0, atol=0)
    codes[0, 0] = 2.0
    assert not torch.equal(features(codes, schema), first)
    assert not torch.equal(logits(codes, schema, coefficients), before)
    torch.testing.assert_close(
        logits(codes, schema, coefficients), logits(codes.clone(), schema, coefficients), rtol=0, atol=0
    )


def test_a_network_of_few_cells_learns_their_shares_and_those_of_every_mask():
    rng = np.random.default_rng(0)
    a, b = rng.integers(2, size=(2, 3000))
    y = torch.tensor(rng.random(3000) < np.array([[0.1, 0.4], [0.7, 0.2]])[a, b]).long()
    Z = pd.DataFrame({"a": np.array(["0", "1"])[a], "b": np.array(["0", "1"])[b]})
    schema = sw.Confounders.learn(Z)
    codes, weight = schema.encode(Z)[0], torch.ones(3000, dtype=torch.float64)
    model = fit_network(torch.nn.functional.one_hot(y, 2).double(), codes, weight, schema)
    for hidden in ([], ["a"], ["b"]):
        shown = Z.assign(**dict.fromkeys(hidden))
        by = [name for name in Z if name not in hidden]
        share = pd.Series(y.double().numpy()).groupby([Z[name] for name in by]).transform("mean").to_numpy()
        np.testing.assert_allclose(model.log_prob(schema.encode(shown)[0]).exp()[:, 1], share, atol=0.005)
