import pytest
import torch
from torch import nn

from sitewise.backbones import Pixels, build_backbone

IMAGES = torch.randint(0, 255, (4, 3, 28, 28), dtype=torch.uint8)


def test_the_cnn_has_the_papers_layers():
    module, width = build_backbone("cnn", IMAGES)
    layers = [type(layer).__name__ for layer in module][1:]
    assert layers == ["Conv2d", "ReLU", "MaxPool2d"] * 3 + ["Flatten", "Linear"]
    assert [layer.out_channels for layer in module if isinstance(layer, nn.Conv2d)] == [32, 32, 64]
    assert [layer.kernel_size for layer in module if isinstance(layer, nn.MaxPool2d)] == [2, 2, 2]
    assert width == module[-1].out_features == 256
    assert module(IMAGES).shape == (4, 256)


def test_auto_goes_by_the_shape():
    assert build_backbone("auto", IMAGES)[1] == 256
    table = torch.randn(50, 3) * torch.tensor([1.0, 100.0, 0.0]) + 5
    module, width = build_backbone("auto", table)
    assert module(table).shape == (50, width)
    scaled = module[2](table)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    assert scaled.isfinite().all()


def test_a_module_of_ones_own_is_copied_and_measured():
    mine = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 7))
    module, width = build_backbone(mine, IMAGES)
    assert width == 7
    with torch.no_grad():
        module[1][1].weight.zero_()
    assert mine[1].weight.abs().sum() > 0


@pytest.mark.parametrize(
    ("backbone", "X", "words"),
    [
        ("resnet", IMAGES, "one of auto, mlp, cnn or a torch module, got 'resnet'"),
        ("cnn", torch.zeros(4, 5), "needs images"),
        ("cnn", torch.zeros(4, 3, 4, 4), "8 pixels or more"),
        (nn.Conv2d(3, 2, 3), IMAGES, "end it with Flatten"),
        (nn.Linear(9, 2), torch.zeros(4, 5), "does not take inputs of shape"),
    ],
)
def test_what_does_not_fit_is_refused(backbone, X, words):
    with pytest.raises(ValueError, match=words):
        build_backbone(backbone, X)


def test_bytes_become_shares():
    assert Pixels()(torch.tensor([[0, 255]], dtype=torch.uint8)).tolist() == [[0.0, 1.0]]
    assert Pixels()(torch.tensor([[0.5]], dtype=torch.float64)).dtype == torch.float64
