"""Two small networks: a perceptron for tables, and the paper's CNN for small images."""

from collections.abc import Sequence

from torch import nn

from sitewise.backbones.pixels import Pixels, Standardize
from sitewise.inputs import Inputs

MLP_WIDTH = 128
CNN_WIDTH = 256  # the paper's
STANDARDIZED_ROWS = 1000  # enough for a mean and a standard deviation


def build_mlp(X: Inputs) -> nn.Sequential:
    """Build a perceptron on features standardized by the first thousand rows; images are flattened."""
    flat = Pixels()(X[:STANDARDIZED_ROWS].flatten(1))
    hidden = [nn.Linear(flat.shape[1], MLP_WIDTH), nn.ReLU(), nn.Linear(MLP_WIDTH, MLP_WIDTH), nn.ReLU()]
    return nn.Sequential(Pixels(), nn.Flatten(), Standardize(flat), *hidden)


def build_cnn(X: Inputs, normalization: Sequence[nn.Module] = ()) -> nn.Sequential:
    """Build the paper's network for Color MNIST; the kernels are 3 × 3, which the paper does not specify."""
    if X.ndim != 4 or min(X.shape[2:]) < 8:
        raise ValueError(
            f"backbone='cnn' needs images (n, channels, height, width) of 8 pixels or more, got {tuple(X.shape)}"
        )
    layers: list[nn.Module] = [Pixels(), *normalization]
    channels = X.shape[1]
    for n_filters in (32, 32, 64):
        layers += [
            nn.Conv2d(channels, n_filters, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
        ]  # ReLU after pooling: same result, a quarter of the work
        channels = n_filters
    height, width = (size // 8 for size in X.shape[2:])
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * height * width, CNN_WIDTH))
