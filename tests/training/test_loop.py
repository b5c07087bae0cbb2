import copy
import logging
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import sitewise as sw
from sitewise.bench.methods import METHODS
from sitewise.ratio import weighted_nll
from sitewise.rows import LabeledRows
from sitewise.training import Recipe
from sitewise.training.augmentation import affine, flips
from sitewise.training.loop import train
from sitewise.training.recipe import RECIPES, batches, count_batches, plan_training, resolve_recipe


class Line:
    """A toy objective: y = 2x, with a record of what the loop did."""

    def __init__(self, n_rows=200, validate=True, sites=None):
        self.x = torch.linspace(-1, 1, n_rows)[:, None]
        self.y = 2 * self.x
        self.sites = torch.zeros(n_rows, dtype=torch.int64) if sites is None else sites
        self.validate = validate
        self.modes, self.epochs, self.losses = [], 0, iter([])

    def to(self, device):
        pass

    def begin_epoch(self, generator, progress):
        self.epochs += 1

    def reading(self, upcoming):
        return nullcontext()

    def loss(self, module, rows):
        self.modes.append(module.training)
        return ((module(self.x[rows]) - self.y[rows]) ** 2).mean()

    def validation_loss(self, module):
        assert not module.training
        return float(((module(self.x) - self.y) ** 2).mean()) if self.validate else None


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))


def test_training_learns_and_ends_in_evaluation_mode():
    trained = train(network(), Line(), Recipe(epochs=5, weight_decay=0.0), device="cpu")
    assert trained.history[-1]["validation_loss"] < 0.1 * trained.history[0]["validation_loss"]
    assert not trained.module.training


def test_every_batch_is_trained_in_training_mode():
    """Trap: the model is left in evaluation mode after the first validation."""
    line = Line()
    train(network(), line, Recipe(epochs=4), device="cpu")
    assert len(line.modes) > line.epochs
    assert all(line.modes)


def test_convolutions_are_searched_for_while_training_lasts_and_no_longer():
    class Looking(Line):
        def loss(self, module, rows):
            self.searched = torch.backends.cudnn.benchmark
            if self.epochs == 2:
                raise RuntimeError("stopped")
            return super().loss(module, rows)

    line, before = Looking(), torch.backends.cudnn.benchmark
    with pytest.raises(RuntimeError, match="stopped"):
        train(network(), line, Recipe(epochs=2, min_steps=0), device="cpu")
    assert line.searched
    assert torch.backends.cudnn.benchmark is before


def test_the_best_snapshot_is_kept():
    class Worsening(Line):
        def validation_loss(self, module):
            self.seen = [*getattr(self, "seen", []), {k: v.clone() for k, v in module.state_dict().items()}]
            return float(abs(self.epochs - 2))

    line = Worsening()
    trained = train(network(), line, Recipe(epochs=5, min_steps=0), device="cpu")
    assert trained.best_epoch == 2
    best = {k.split("module.")[-1]: v for k, v in line.seen[1].items()}
    for name, value in trained.module.state_dict().items():
        assert torch.equal(value, best[name])


def test_without_validation_the_last_snapshot_counts():
    assert train(network(), Line(validate=False), Recipe(epochs=3, min_steps=0), device="cpu").best_epoch == 3


def test_a_seed_repeats_to_the_bit_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    modules = [network() for _ in range(3)]
    runs = []
    for module, seed in zip(modules, (1, 1, 2), strict=True):
        torch.rand(7)  # whatever else the program draws
        runs.append(train(module, Line(), Recipe(epochs=2), device="cpu", seed=seed).module.state_dict())
    assert all(torch.equal(runs[0][k], runs[1][k]) for k in runs[0])
    assert not all(torch.equal(runs[0][k], runs[2][k]) for k in runs[0])
    torch.set_rng_state(before)
    train(network(), Line(), Recipe(epochs=1, min_steps=0), device="cpu", seed=5)
    first = torch.rand(1)
    torch.set_rng_state(before)
    network()
    assert torch.equal(first, torch.rand(1))


def test_small_data_gets_enough_steps():
    line = Line(n_rows=40)
    train(network(), line, Recipe(epochs=3, min_steps=100), device="cpu")
    assert len(line.modes) >= 100
    exact = Line(n_rows=40)
    train(network(), exact, RECIPES["gpa2024"], device="cpu")
    assert exact.epochs == 15


def test_batches_hold_every_row_once_but_a_remainder_that_changes():
    generator = torch.Generator().manual_seed(0)
    sites = torch.zeros(1003, dtype=torch.int64)
    first, second = (batches(sites, 100, False, generator) for _ in range(2))
    assert first.shape == (10, 100)
    assert count_batches(sites, 100, False) == 10
    assert len(set(first.flatten().tolist())) == 1000
    left_out = [set(range(1003)) - set(drawn.flatten().tolist()) for drawn in (first, second)]
    assert left_out[0] != left_out[1]
    assert batches(sites[:1000], 300, False, generator).shape == (3, 333)


def test_batches_per_site_hold_as_many_rows_of_each():
    sites = torch.tensor([0] * 90 + [1] * 10 + [2] * 30)
    drawn = batches(sites, 8, True, torch.Generator().manual_seed(0))
    assert len(drawn) == 11
    for rows in drawn:
        assert torch.bincount(sites[rows]).tolist() == [8, 8, 8]
    assert len(set(drawn[sites[drawn] == 0].tolist())) == 88


def test_a_diverging_run_says_so():
    class Nan(Line):
        def validation_loss(self, module):
            return float("nan")

    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        train(network(), Nan(), Recipe(epochs=2, min_steps=0), device="cpu")


def test_progress_is_shown_when_asked_for_and_logged_always(capsys, caplog):
    with caplog.at_level(logging.DEBUG, logger="sitewise.training"):
        train(network(), Line(), Recipe(epochs=2, min_steps=0), device="cpu")
    assert capsys.readouterr() == ("", "")
    assert len(caplog.records) == 2
    train(network(), Line(), Recipe(epochs=2, min_steps=0), device="cpu", verbose=True, label="a line")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "a line" in shown.err


def test_recipes_are_looked_up_and_changed():
    assert resolve_recipe("gpa2024", epochs=None, batch_size=64) == Recipe(
        epochs=15, batch_size=64, learning_rate=1e-3, schedule="constant", weight_decay=0.0, min_steps=0
    )
    with pytest.raises(ValueError, match="one of default, augmented, gpa2024"):
        resolve_recipe("paper")


def test_augmentation_moves_images_a_little():
    torch.manual_seed(0)
    images = torch.zeros(64, 1, 28, 28, dtype=torch.uint8)
    images[:, :, 10:18, 10:18] = 255
    moved = affine(images)
    assert moved.shape == images.shape
    assert not torch.allclose(moved, images / 255)
    mass = moved.sum((1, 2, 3)) / (images / 255).sum((1, 2, 3))
    assert ((mass > 0.7) & (mass < 1.4)).all()


@pytest.mark.parametrize("per_site", [False, True])
@pytest.mark.parametrize("n_rows", [256, 301])
def test_batches_add_up_to_one_large_batch(per_site, n_rows):
    sites = (torch.arange(n_rows) % 3 == 0).long()
    plain = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    runs = []
    for size, accumulate in ((64, 1), (16, 4)):
        line = Line(n_rows, sites=sites)
        recipe = Recipe(epochs=4, batch_size=size, accumulate=accumulate, min_steps=0, per_site=per_site)
        runs.append((train(copy.deepcopy(plain), line, recipe, device="cpu"), len(line.modes)))
    (large, n_large), (small, n_small) = runs
    assert n_small == 4 * n_large
    for a, b in zip(large.module.parameters(), small.module.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(large.history, small.history, strict=True):
        assert a == pytest.approx(b, rel=1e-4)


def test_every_part_of_a_step_holds_every_site():
    class Watching(Line):
        def loss(self, module, rows):
            assert torch.bincount(self.sites[rows]).tolist() == [4, 4, 4]
            return super().loss(module, rows)

    recipe = Recipe(epochs=1, batch_size=4, accumulate=3, min_steps=0, per_site=True)
    train(network(), Watching(90, sites=torch.arange(90) % 3), recipe, device="cpu")


def test_training_stops_when_nothing_improves():
    class Worsening(Line):
        def validation_loss(self, module):
            return float(abs(self.epochs - 3))

    line = Worsening()
    trained = train(network(), line, Recipe(epochs=50, min_steps=0, patience=4), device="cpu")
    assert (trained.best_epoch, line.epochs, len(trained.history)) == (3, 7, 7)
    without = Line(validate=False)
    train(network(), without, Recipe(epochs=9, min_steps=0, patience=2), device="cpu")
    assert without.epochs == 9


def test_half_precision_learns_too(caplog):
    trained = train(network(), Line(), Recipe(epochs=5, weight_decay=0.0, precision="bf16-mixed"), device="cpu")
    assert trained.history[-1]["validation_loss"] < 0.1 * trained.history[0]["validation_loss"]
    assert all(p.dtype == torch.float32 for p in trained.module.parameters())
    assert not caplog.records


def test_a_rare_class_counts_as_much_as_a_frequent_one():
    logits = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0] * 45 + [2] * 5)
    weight = torch.rand(50, generator=torch.Generator().manual_seed(1)) + 0.1
    site = torch.zeros(50, dtype=torch.int64)
    rows = LabeledRows(X=logits, y=y, weight=weight, site=site, codes=torch.zeros(50, 0)).balanced()
    means = [weighted_nll(logits[y == label], y[y == label], weight[y == label]) for label in (0, 2)]
    torch.testing.assert_close(weighted_nll(logits, y, rows.weight), torch.stack(means).mean())
    assert len(rows.take(torch.arange(0)).balanced()) == 0


def test_balanced_validation_reaches_classifiers_and_methods():
    rng = torch.Generator().manual_seed(0)
    y = (torch.rand(400, generator=rng) < 0.1).long()
    X = torch.randn(400, 3, generator=rng) + y[:, None]
    histories = {}
    for kind in (sw.GPAClassifier, METHODS["erm"]):
        for balance in (False, True):
            recipe = Recipe(epochs=2, min_steps=0, balance_validation=balance)
            model = kind(recipe=recipe, device="cpu").fit(X.numpy(), y.numpy())
            history = model.training_history_ if kind is sw.GPAClassifier else model.trained_.history
            histories[balance] = [record["validation_loss"] for record in history]
        assert histories[True] != histories[False]
    assert histories[True][-1] > histories[False][-1]


def test_flips_are_all_eight_and_nothing_else():
    image = torch.arange(9, dtype=torch.uint8).reshape(1, 1, 3, 3)
    torch.manual_seed(0)
    flipped = flips(image.expand(400, -1, -1, -1))
    assert flipped.dtype == torch.uint8
    shown, counts = torch.unique(flipped.flatten(1), dim=0, return_counts=True)
    turned = [torch.rot90(base, k, (2, 3)) for base in (image, image.flip(3)) for k in range(4)]
    expected = torch.unique(torch.cat(turned).flatten(1), dim=0)
    assert torch.equal(shown, expected)
    assert counts.min() > 25
    wide = flips(torch.arange(6.0).reshape(1, 1, 2, 3).expand(100, -1, -1, -1))
    assert wide.shape == (100, 1, 2, 3)
    assert len(torch.unique(wide.flatten(1), dim=0)) == 4


def test_a_recipe_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="4 problems") as caught:
        resolve_recipe("default", precision="fp16", accumulate=0, patience=-1, augment="crop")
    assert "'bf16-mixed'" in str(caught.value)


def test_the_papers_recipe_for_resnets():
    recipe = RECIPES["gpa2024_resnet"]
    assert (recipe.learning_rate, recipe.batch_size, recipe.per_site) == (3e-5, 64, True)
    assert (recipe.schedule, recipe.weight_decay, recipe.augment) == ("constant", 0.0, None)


def test_the_table_of_recipes_is_right():
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [row[0].strip("| `") for row in rows] == list(RECIPES)
    for row, recipe in zip(rows, RECIPES.values(), strict=True):
        assert row[1:] == [
            str(recipe.epochs),
            f"{recipe.batch_size} of each site" if recipe.per_site else str(recipe.batch_size),
            str(recipe.learning_rate),
            recipe.schedule.replace("_", " "),
            str(recipe.weight_decay),
            str(recipe.min_steps),
            f"{recipe.augment or 'none'} |",
        ]


def test_the_releases_recipe_has_its_batches_and_steps():
    sites = torch.arange(20_000) % 2
    plan = plan_training(sites, RECIPES["gpa2024_release"])
    assert plan.step_size == 512
    assert 20_000 <= plan.steps_per_epoch * plan.epochs < 20_000 + plan.steps_per_epoch
    rows = batches(sites, plan.step_size, True, torch.Generator().manual_seed(0))
    assert sites[rows[0]].bincount().tolist() == [512, 512]
