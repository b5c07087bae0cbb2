"""Random changes of images that do not change their class."""

import math

import torch
from torch import Tensor, nn


def affine(images: Tensor) -> Tensor:
    """Rotate, scale and shift each image at random: by up to 15 degrees, 10 percent, and 2/28 of its size."""
    n, device = len(images), images.device
    angle = (torch.rand(n, device=device) * 2 - 1) * math.radians(15)
    scale = 1 + (torch.rand(n, device=device) * 2 - 1) * 0.1
    shift = (torch.rand(n, 2, device=device) * 2 - 1) * 4 / 28
    cosine, sine = scale * torch.cos(angle), scale * torch.sin(angle)
    matrix = torch.stack([torch.stack([cosine, -sine, shift[:, 0]], 1), torch.stack([sine, cosine, shift[:, 1]], 1)], 1)
    grid = nn.functional.affine_grid(matrix, list(images.shape), align_corners=False)
    floats = images.float() / 255 if images.dtype == torch.uint8 else images
    return nn.functional.grid_sample(floats, grid, align_corners=False)


def flips(images: Tensor) -> Tensor:
    """Flip each image at random, horizontally and vertically; square images also along the diagonal."""
    chosen = torch.rand(3, len(images), 1, 1, 1, device=images.device) < 0.5
    images = torch.where(chosen[0], images.flip(3), images)
    images = torch.where(chosen[1], images.flip(2), images)
    if images.shape[2] == images.shape[3]:
        images = torch.where(chosen[2], images.transpose(2, 3), images)
    return images


AUGMENTATIONS = {"affine": affine, "flips": flips}
