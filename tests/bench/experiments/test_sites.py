from dataclasses import replace

import numpy as np
import pytest

from sitewise.bench.datasets.mnist import Digits
from sitewise.bench.experiments import sites
from sitewise.bench.experiments.experiment import TEST, TRAINING, Choice, Draw, SiteSpec
from sitewise.bench.experiments.kinds import KINDS
from sitewise.bench.experiments.plan import Run
from sitewise.bench.experiments.sites import ADAPTATION, SCORED, derived_seed, world_of

DRAWS = (Draw("all", 300), Draw("apart", 300, 100))
COLORED = {"kind": "colored_digits", "model": "confounded"}


@pytest.fixture(autouse=True)
def digits(monkeypatch):
    """Digits that all differ: 60 of each label; pixels (13, 13), (13, 14) hold the number of the image."""
    numbers = np.arange(600)
    images = np.zeros((600, 28, 28), dtype=np.uint8)
    images[:, 13, 13], images[:, 13, 14] = numbers // 30 + 1, numbers % 30 + 1
    given = Digits(images, numbers % 10, "numbered")
    sites.forget_data()
    for kind in ("colored_digits", "digits"):
        monkeypatch.setitem(KINDS, kind, replace(KINDS[kind], load=lambda data, data_dir: given))
    yield given
    sites.forget_data()


def run_of(data, training, tests, seed=0, draws=DRAWS, target=None):
    validation = SiteSpec("validation", dict(training[0].options), 80)
    methods = (Choice("G", "guess", {}),)
    return Run("x", data, {"name": "default"}, training, validation, tests, draws, methods, seed, target)


@pytest.fixture
def run():
    training = (SiteSpec("a", {"beta": 0.9}, 200), SiteSpec("b", {"beta": 0.7}, 150))
    return run_of(COLORED, training, (SiteSpec("near", {"beta": 0.5}), SiteSpec("far", {"joint": "flipped"})))


def numbers_of(X):
    pixels = X.max(axis=1)
    return set(zip(pixels[:, 13, 13].tolist(), pixels[:, 13, 14].tolist(), strict=True))


def test_training_validation_and_test_share_no_image(run):
    world = world_of(run)
    rows = world.training_rows(run)
    held = rows.sample_domain == "validation"
    test = np.concatenate([rows.X for site in run.tests for draw in run.draws for rows in world.test_rows(site, draw)])
    parts = [numbers_of(rows.X[~held]), numbers_of(rows.X[held]), numbers_of(test)]
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert len(rows.X) == len(rows.y) == len(rows.sample_confounder) == 200 + 150 + 80


def test_rows_are_the_same_for_every_method_and_differ_by_seed_site_and_role(run):
    world = world_of(run)
    assert world_of(run) is world  # another method of the same seed
    near = run.tests[0]
    scored = world.rows(near, TEST, SCORED, 300)
    assert world.test_rows(near, run.draws[0]) == (scored, scored)
    adaptation, also_scored = world.test_rows(near, run.draws[1])
    assert also_scored is scored
    assert len(adaptation) == 100
    assert (scored.X[:100] != adaptation.X).any()
    sites.forget_data()
    again = world_of(run).rows(near, TEST, SCORED, 300)
    assert again is not scored
    assert (again.X == scored.X).all()
    assert (again.y == scored.y).all()
    others = [
        world.rows(near, TEST, ADAPTATION, 300),
        world.rows(SiteSpec("renamed", near.options), TEST, SCORED, 300),
        world_of(run_of(COLORED, run.training, run.tests, seed=1)).rows(near, TEST, SCORED, 300),
    ]
    assert all((other.X != scored.X).any() and (other.y != scored.y).any() for other in others)


def test_a_derived_seed_depends_on_everything():
    seeds = [derived_seed(0, "a", "b"), derived_seed(1, "a", "b"), derived_seed(0, "b", "a"), derived_seed(0, "ab")]
    assert len(set(seeds)) == 4
    assert derived_seed(3, "a", 1) == derived_seed(3, "a", 1)


def test_the_training_sees_the_rows_adapted_on_of_the_target_only():
    training = (SiteSpec("a", {"beta": 0.9}, 50),)
    draws = (Draw("apart", 300, 100), Draw("all", 300))
    run = run_of(COLORED, training, (SiteSpec("far", {"joint": "flipped"}),), draws=draws, target="far")
    world = world_of(run)
    unlabeled = world.unlabeled_rows(run)
    assert list(unlabeled) == ["validation", "far"]
    assert unlabeled["far"] is world.test_rows(run.tests[0], draws[0])[0].X
    assert world.unlabeled_rows(run_of(COLORED, training, run.tests)) is None


N = 20_000


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (COLORED, {"beta": 0.9}),
        (COLORED, {"joint": "flipped"}),
        (COLORED, {"joint": [[0.1, 0.2], [0.3, 0.4]]}),
        (COLORED, {"beta": 0.7, "hidden": 0.5}),
        ({"kind": "colored_digits", "model": "z_causes_y"}, {"beta": 0.9}),
        ({"kind": "simulated"}, {"prevalence": [0.8, 0.2], "dependence": -1.0, "z_shift": 0.5}),
        ({"kind": "simulated", "n_classes": 3, "levels": [3], "n_continuous": 0}, {}),
        ({"kind": "digits"}, {"shift": "dirichlet", "parameter": 1.0}),
        ({"kind": "digits"}, {"shift": "tweak_one", "parameter": 0.5}),
        ({"kind": "digits"}, {}),
    ],
)
def test_the_truth_is_that_of_the_rows(data, options):
    run = run_of(data, (SiteSpec("a", options, 10),), (SiteSpec("new", options),))
    world = world_of(run)
    rows, population = world.rows(run.tests[0], TEST, SCORED, N), world.population(run.tests[0], TEST)
    n_classes = len(population.marginal)
    tolerance = 5 * 0.5 / np.sqrt(N)
    labels = np.eye(n_classes)[rows.y]
    assert np.abs(labels.mean(axis=0) - population.marginal).max() < tolerance
    if population.given_z is None:
        assert rows.Z is None
        return
    given_z = population.given_z(rows.Z)
    assert given_z.shape == (N, n_classes)
    assert np.abs((labels - given_z).mean(axis=0)).max() < tolerance
    for name in rows.Z.columns:  # the residual is unrelated to every confounder
        values = rows.Z[name]
        z = np.asarray(values.rank() / N if values.dtype == float else values.astype("category").cat.codes, dtype=float)
        assert np.abs(((labels - given_z) * (z - z.mean())[:, None] / z.std()).mean(axis=0)).max() < tolerance


def test_a_drawn_prevalence_belongs_to_the_site_and_the_seed():
    spec = SiteSpec("new", {"shift": "dirichlet", "parameter": 0.5})
    marginals = [
        world_of(run_of({"kind": "digits"}, (SiteSpec("a", {}, 10),), (spec,), seed=seed))
        .population(spec, TEST)
        .marginal
        for seed in (0, 1)
    ]
    assert (marginals[0] != marginals[1]).any()


def test_without_a_truth_there_is_none():
    hue = {**COLORED, "coloring": "hue"}
    run = run_of(hue, (SiteSpec("a", {"beta": 0.9}, 10),), (SiteSpec("new", {"beta": 0.5}),))
    assert world_of(run).population(run.tests[0], TEST).given_z is None
    missing = SiteSpec("new", {"missing": 0.2})
    run = run_of({"kind": "simulated"}, (SiteSpec("a", {}, 10),), (missing,))
    assert world_of(run).population(missing, TEST).given_z is None


def test_the_training_part_is_asked_by_name(run):
    assert set(world_of(run).parts) == {TRAINING, "validation", TEST}


def test_z_is_hidden_in_a_share_of_rows_and_nothing_else_changes():
    def rows(**options):
        run = run_of(COLORED, (SiteSpec("a", {"beta": 0.9, **options}, 400),), (SiteSpec("b", {"beta": 0.3}),))
        return world_of(run).labeled(run.training[0], TRAINING)

    whole, some, more, none = rows(), rows(missing=0.25), rows(missing=0.5), rows(missing=1)
    hidden = [site.Z["color"].isna().to_numpy() for site in (whole, some, more, none)]
    assert [mask.sum() == 0 for mask in hidden] == [True, False, False, False]
    assert hidden[3].all()
    assert 60 < hidden[1].sum() < 140  # 100 ± 4.6 standard deviations
    assert hidden[2][hidden[1]].all()
    for site, mask in zip((some, more), hidden[1:3], strict=True):
        assert (site.X == whole.X).all()
        assert (site.Z["color"][~mask] == whole.Z["color"][~mask]).all()


@pytest.mark.parametrize("share", [-0.1, 1.5, True, "half"])
def test_a_share_of_hidden_z_that_is_none_is_refused(share):
    assert KINDS["colored_digits"].faults({}, {"beta": 0.3, "missing": share}) == [
        f"missing must be a share between 0 and 1, got {share!r}"
    ]
