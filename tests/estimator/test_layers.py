"""What a critic reads of x."""

import torch
from torch import nn

from sitewise.backbones import build_backbone
from sitewise.estimator.layers import CHANNELS, Layers, blocks_of, layer_features, over_places
from sitewise.ratio import RatioNetwork, Scorer


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
