"""What a critic reads of x."""

import numpy as np
import pandas as pd
import torch
from torch import nn

from sitewise import GPAClassifier
from sitewise.backbones.build import build_backbone
from sitewise.estimator.without_z.joint import CHANNELS, Layers, blocks_of, layer_features, over_places
from sitewise.estimator.without_z.predicting import joint_log_ratio
from sitewise.ratio import RatioNetwork, Scorer
from sitewise.training import Recipe

QUICK = Recipe(epochs=5, batch_size=128, min_steps=0)


def network_of(backbone, width):
    return RatioNetwork(backbone, width, 2, 2).eval()


class Forgetful(nn.Module):
    """Its features know nothing of what its first layer saw."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.unused = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(9, 9)

    def forward(self, x):
        return self.last(torch.zeros_like(self.first(x)))


def test_the_backbones_features_come_first_and_layers_after():
    X = torch.randint(0, 255, (5, 3, 16, 16), dtype=torch.uint8)
    backbone, width = build_backbone("cnn", X)
    seen = layer_features(Scorer(network_of(backbone, width), "cpu"), X)
    assert seen.shape == (5, width + 32 + 32 + 64)
    torch.testing.assert_close(seen[:, :width], backbone(X).double(), rtol=1e-5, atol=1e-6)
    first = backbone[:2](X).mean((2, 3)).double()
    torch.testing.assert_close(seen[:, width : width + 32], first, rtol=1e-4, atol=1e-5)


def test_what_the_last_features_forgot_is_still_seen():
    x = torch.randn(6, 3)
    network = network_of(Forgetful(), 2)
    seen = Layers(network)(x, torch.zeros(6, 0))
    assert seen.shape == (6, 2 + 3)  # a part never called is not there, and the last one stands in its own place only
    assert seen[:, :2].std(0).max() == 0
    torch.testing.assert_close(seen[:, 2:], network.backbone.first(x))


def test_layers_of_one_width_all_count():
    X = torch.randn(6, 4)
    backbone, width = build_backbone("mlp", X)
    assert layer_features(Scorer(network_of(backbone, width), "cpu"), X).shape == (6, 3 * width)


def test_nothing_stays_behind_on_the_backbone():
    network = network_of(Forgetful(), 2)
    Layers(network)(torch.randn(2, 3), torch.zeros(2, 0))
    assert not network.backbone.first._forward_hooks


def test_wrappers_are_looked_into():
    inner = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 3))
    assert blocks_of(nn.Sequential(nn.Identity(), inner, nn.Flatten())) == [inner[0], inner[2]]


def test_places_are_averaged_out():
    images, tokens = torch.randn(2, 3, 4, 5), torch.randn(2, 7, 3)
    torch.testing.assert_close(over_places(images), images.mean((2, 3)))
    torch.testing.assert_close(over_places(tokens), tokens.mean(1))


def test_wide_parts_are_thinned():
    backbone = nn.Sequential(nn.Linear(3, 4 * CHANNELS), nn.Linear(4 * CHANNELS, 2))
    seen = Layers(network_of(backbone, 2))(torch.randn(6, 3), torch.zeros(6, 0))
    assert seen.shape == (6, 2 + CHANNELS)


class Blind(nn.Module):
    """Its features show the first column of x alone; its first layer has both."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 2), nn.Linear(1, 8)
        self.first.requires_grad_(False)
        self.first.weight.copy_(torch.eye(2))
        self.first.bias.zero_()

    def forward(self, x):
        return self.last(self.first(x)[:, :1])


def test_the_critic_finds_z_that_the_features_forgot():
    """y and z agree in training; x shows y in one column and z in the other, of which the features know the first."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=1500)
    z = np.where(rng.random(1500) < 0.95, y, 1 - y)
    X = (np.stack([2 * y - 1, 4 * z - 2], axis=1) + 0.5 * rng.normal(size=(1500, 2))).astype(np.float32)
    Z = pd.DataFrame({"z": np.where(z == 1, "b", "a")})
    model = GPAClassifier(backbone=Blind(), missing="joint", recipe=QUICK, device="cpu", verbose=False, rehearsal=None)
    model.fit(X, y, sample_confounder=Z)
    log_ratio = joint_log_ratio(model, torch.tensor(X), model.confounders_.missing_codes().expand(1500, -1)).double()
    likelier = (log_ratio + model.joint_.prior.log()).logsumexp(2).argmax(1)
    right = model.joint_.bank.codes[likelier, 0].numpy() == z
    assert right[y == z].mean() > 0.98
    assert right[y != z].mean() > 0.9
