"""Networks that turn an input x into features: a perceptron for tables, the paper's CNN for small images, any other."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

BACKBONES = ("auto", "mlp", "cnn")
MLP_WIDTH = 128
CNN_WIDTH = 256  # the paper's


class Standardize(nn.Module):
    """Features of a table with their training mean taken off and divided by their training spread."""

    mean: Tensor
    scale: Tensor

    def __init__(self, X: Tensor) -> None:
        super().__init__()
        spread = X.double().std(dim=0, unbiased=False)
        self.register_buffer("mean", X.double().mean(dim=0).float())
        self.register_buffer("scale", torch.where(spread > 0, spread, 1.0).float())

    def forward(self, x: Tensor) -> Tensor:
        """Scale rows."""
        return (x - self.mean) / self.scale


class Pixels(nn.Module):
    """Inputs as floats: bytes 0..255 become 0..1, floats stay as they are; images with their channels last."""

    def forward(self, x: Tensor) -> Tensor:
        """Convert a batch."""
        if not x.is_floating_point():
            x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def build_backbone(backbone: str | nn.Module, X: Tensor) -> tuple[nn.Module, int]:
    """Build a backbone for inputs like X (n, ...) and say how many features it gives.

    "mlp": two layers of 128. "cnn": the paper's, Conv(32), ReLU, Pool(2), Conv(32), ReLU, Pool(2), Conv(64), ReLU,
    Pool(2), Flatten, Lin(256). "auto": by the shape of X. A module of your own is copied and used as it is.
    """
    if isinstance(backbone, nn.Module):
        return _adopt(backbone, X)
    if backbone == "auto":
        backbone = "mlp" if X.ndim == 2 else "cnn"
    if backbone == "mlp":
        return build_mlp(X), MLP_WIDTH
    if backbone == "cnn":
        return build_cnn(X), CNN_WIDTH
    raise ValueError(f"backbone must be one of {', '.join(BACKBONES)} or a torch module, got {backbone!r}")


def build_mlp(X: Tensor) -> nn.Sequential:
    """A perceptron on standardized features; images are flattened."""
    flat = X.reshape(len(X), -1)
    hidden = [nn.Linear(flat.shape[1], MLP_WIDTH), nn.ReLU(), nn.Linear(MLP_WIDTH, MLP_WIDTH), nn.ReLU()]
    return nn.Sequential(Pixels(), nn.Flatten(), Standardize(flat), *hidden)


def build_cnn(X: Tensor) -> nn.Sequential:
    """The paper's network for Color MNIST (its kernels are 3 × 3 here; the paper does not say)."""
    if X.ndim != 4 or min(X.shape[2:]) < 8:
        raise ValueError(
            f"backbone='cnn' needs images (n, channels, height, width) of 8 pixels or more, got {tuple(X.shape)}"
        )
    layers: list[nn.Module] = [Pixels()]
    channels = X.shape[1]
    for n_filters in (32, 32, 64):
        layers += [nn.Conv2d(channels, n_filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = n_filters
    height, width = (size // 8 for size in X.shape[2:])
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * height * width, CNN_WIDTH))


def _adopt(module: nn.Module, X: Tensor) -> tuple[nn.Module, int]:
    """Copy somebody's module and see how many features it gives."""
    copied = copy.deepcopy(module)
    was_training = copied.training
    copied.eval()
    with torch.no_grad():
        try:
            features: Any = copied(Pixels()(X[:1]).float())
        except RuntimeError as error:
            raise ValueError(f"the backbone does not take inputs of shape {tuple(X.shape[1:])}: {error}") from error
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"the backbone must return features (rows, width), got {shape}: end it with Flatten")
    return nn.Sequential(Pixels(), copied.train(was_training)), features.shape[1]
