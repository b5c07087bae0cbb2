"""Layers before a network: conversion of bytes to floats, and normalization."""

import torch
from torch import Tensor, nn

from sitewise.inputs import Inputs

NORMALIZATIONS = ("imagenet", "data")
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)
CHUNK = 256  # images at a time


class Standardize(nn.Module):
    """Standardizes the features of a table by their mean and standard deviation in the training rows."""

    mean: Tensor
    scale: Tensor

    def __init__(self, X: Tensor) -> None:
        super().__init__()
        deviation = X.double().std(dim=0, unbiased=False)
        self.register_buffer("mean", X.double().mean(dim=0).float())
        self.register_buffer("scale", torch.where(deviation > 0, deviation, 1.0).float())

    def forward(self, x: Tensor) -> Tensor:
        """Standardize rows."""
        return (x - self.mean) / self.scale


class Pixels(nn.Module):
    """Converts inputs to floats (bytes 0..255 become 0..1), and images to torch's channels-last layout."""

    def forward(self, x: Tensor) -> Tensor:
        """Convert a batch."""
        if not x.is_floating_point():
            x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


class Normalize(nn.Module):
    """Standardizes each channel by a mean and a standard deviation, which are saved with the network."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.float()[:, None, None])
        self.register_buffer("scale", torch.where(deviation > 0, deviation, 1.0).float()[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Standardize images (n, channels, height, width)."""
        return (x - self.mean) / self.scale


def build_normalization(normalize: str | None, X: Inputs) -> list[nn.Module]:
    """Return the layers that normalize images like X: none or one.

    "imagenet" uses ImageNet's mean and standard deviation, averaged over channels for images of one channel. "data"
    uses the mean and standard deviation of each channel over all of X.
    """
    if normalize is None:
        return []
    if X.ndim != 4:
        raise ValueError(f"normalize={normalize!r} is for images (n, channels, height, width), got {tuple(X.shape)}")
    if normalize == "data":
        return [Normalize(*channel_moments(X))]
    n_channels = X.shape[1]
    mean, deviation = (torch.tensor(numbers, dtype=torch.float64) for numbers in (IMAGENET_MEAN, IMAGENET_DEVIATION))
    if n_channels == 1:
        return [Normalize(mean.mean(dim=0, keepdim=True), deviation.mean(dim=0, keepdim=True))]
    if n_channels != 3:
        raise ValueError(f"normalize='imagenet' is for images of 1 or 3 channels, got {n_channels}: use 'data'")
    return [Normalize(mean, deviation)]


def channel_moments(X: Inputs) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of every channel after `Pixels`, computed in chunks."""
    total = torch.zeros(X.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    pixels = Pixels()
    for start in range(0, len(X), CHUNK):
        channels = pixels(X[start : start + CHUNK]).transpose(0, 1).flatten(1).double()
        total += channels.sum(1)
        squares += (channels**2).sum(1)
    n_values = X.numel() / X.shape[1]
    mean = total / n_values
    return mean, (squares / n_values - mean**2).clamp_min(0).sqrt()
