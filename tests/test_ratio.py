import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pandas as pd
import torch
from torch import nn

import sitewise as sw
from sitewise.prevalence.base import ConstantPrevalence
from sitewise.ratio import RatioObjective, Scorer, build_ratio, network_inputs, score, weighted_nll
from sitewise.rows import LabeledRows


def rows_with_z(n_rows=60):
    generator = torch.Generator().manual_seed(0)
    Z = pd.DataFrame(
        {"age": torch.rand(n_rows, generator=generator).numpy() * 60 + 20, "sex": ["m", "f"] * (n_rows // 2)}
    )
    schema = sw.Confounders.learn(Z)
    codes, _ = schema.encode(Z)
    X = torch.randn(n_rows, 3, generator=generator)
    y = (torch.arange(n_rows) % 3 == 0).long()
    return LabeledRows(X=X, y=y, weight=torch.ones(n_rows), site=torch.arange(n_rows) % 2, codes=codes), schema


class Spy:
    """A g that remembers the codes it was asked about."""

    name = "spy"

    def __init__(self):
        self.seen = []

    def log_prob(self, codes):
        self.seen.append(codes.clone())
        return torch.zeros(len(codes), 2, dtype=torch.float64)


class SpyNetwork:
    """An f that remembers the inputs of z it was given."""

    def __call__(self, x, z):
        self.seen = z
        return torch.zeros(len(x), 2)


def test_f_and_g_see_the_same_mask():
    """Trap: f sees the knocked-out z while g sees the true one."""
    rows, schema = rows_with_z()
    spies, network = [Spy(), Spy()], SpyNetwork()
    objective = RatioObjective(rows, None, schema, spies, None, knockout=0.5)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        objective.begin_epoch(generator, 0.0)
        for site, spy in enumerate(spies):
            at_site = rows.site == site
            expected = network_inputs(schema, spy.seen[-1])
            objective.loss(network, at_site.nonzero().flatten())
            assert torch.equal(network.seen, expected)
            hidden = schema.missing(spy.seen[-1])
            assert hidden.any()
            assert not hidden.all()


def test_masks_change_from_epoch_to_epoch_at_the_rate_asked_for():
    rows, schema = rows_with_z(2000)
    spy = Spy()
    rows = replace(rows, site=torch.zeros(2000, dtype=torch.int64))
    objective = RatioObjective(rows, None, schema, [spy], None, knockout=0.3)
    generator = torch.Generator().manual_seed(1)
    objective.begin_epoch(generator, 0.0)
    objective.begin_epoch(generator, 0.0)
    assert not torch.equal(spy.seen[0], spy.seen[1])
    assert abs(float(schema.missing(spy.seen[0]).float().mean()) - 0.3) < 0.03


def test_the_loss_is_the_nll_of_equation_3():
    rows, schema = rows_with_z()
    prior = ConstantPrevalence(torch.log(torch.tensor([0.9, 0.1], dtype=torch.float64)))
    objective = RatioObjective(rows, None, schema, [prior, prior], None, knockout=0.0)
    objective.begin_epoch(torch.Generator().manual_seed(0), 0.0)
    module = build_ratio("mlp", rows.X, schema, 2, seed=0)
    chosen = torch.arange(10)
    log_f = module(rows.X[:10], network_inputs(schema, rows.codes[:10]))
    posterior = sw.adjust(log_f.detach(), prior.log_marginal)
    expected = -torch.log(posterior[chosen, rows.y[:10]]).mean()
    assert abs(objective.loss(module, chosen).item() - expected.item()) < 1e-6


def test_the_fusion_has_the_papers_layers():
    rows, schema = rows_with_z()
    module = build_ratio("mlp", rows.X, schema, 3, seed=0)
    sizes = [(layer.in_features, layer.out_features) for layer in module.fusion if hasattr(layer, "in_features")]
    assert sizes == [(128 + 5, 100), (100, 100), (100, 3)]
    again = build_ratio("mlp", rows.X, schema, 3, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


def test_weights_and_scores():
    logits, y = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    twice = weighted_nll(logits[[0, 0, 1]], y[[0, 0, 1]], torch.ones(3))
    torch.testing.assert_close(weighted_nll(logits, y, torch.tensor([2.0, 1.0])), twice)
    module = torch.nn.Sequential()
    module.forward = lambda x, z: x * (3 if module.training else 1)
    module.train()
    assert score(module, torch.ones(2, 1), torch.zeros(2, 0)).tolist() == [[1.0], [1.0]]
    assert module.training


def test_a_part_in_training_mode_is_scored_in_evaluation_mode():
    """Whatever mode the whole is in: dropout would make every score another one."""
    module = torch.nn.Sequential(torch.nn.Dropout(0.5))
    module.forward = lambda x, z: module[0](x)
    module.eval()
    module[0].train()
    assert score(module, torch.ones(50, 1), torch.zeros(50, 0)).unique().tolist() == [1.0]
    assert not module.training


def test_a_scorer_takes_the_precision_of_the_rows_and_keeps_it():
    rows, schema = rows_with_z()
    module = build_ratio("mlp", rows.X, schema, 2, seed=0).eval()
    next(iter(module.parameters())).data = next(iter(module.parameters())).data.double()  # one part alone is there
    scorer, z = Scorer(module, "cpu"), network_inputs(schema, rows.codes)
    wide = scorer(rows.X.double(), z)
    assert {value.dtype for value in module.parameters()} == {torch.float64}
    storage = [value.data_ptr() for value in module.parameters()]
    assert torch.equal(scorer(rows.X.double(), z), wide)
    assert [value.data_ptr() for value in module.parameters()] == storage
    narrow = scorer(rows.X, z)
    assert {value.dtype for value in module.parameters()} == {torch.float32}
    torch.testing.assert_close(narrow, wide, rtol=1e-4, atol=1e-4)


class SlowToConvert(nn.Module):
    """A network that takes its time to become double precision, and counts how often it was asked to."""

    def __init__(self):
        super().__init__()
        self.layer, self.conversions = nn.Linear(3, 2), 0

    def forward(self, x, z):
        return self.layer(x)

    def to(self, *args):
        self.conversions += 1
        time.sleep(0.05)
        return super().to(*args)


def test_one_thread_converts_a_network_and_the_others_wait():
    module, X = SlowToConvert(), torch.randn(8, 3, dtype=torch.float64)
    expected = X @ module.layer.weight.detach().double().T + module.layer.bias.detach().double()
    scorer = Scorer(module, "cpu")
    with ThreadPoolExecutor(4) as pool:
        scores = list(pool.map(lambda _: scorer(X, X[:, :0]), range(4)))
    assert module.conversions == 1
    for one in scores:
        torch.testing.assert_close(one, expected)
