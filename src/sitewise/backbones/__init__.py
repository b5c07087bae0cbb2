"""Networks that map an input x to features: a perceptron, the paper's CNN, networks of other libraries, or your own."""

from sitewise.backbones.build import BACKBONES, backbone_problems, build_backbone
from sitewise.backbones.named import NamedNetwork, build_named
from sitewise.backbones.pixels import NORMALIZATIONS, Normalize, Pixels, Standardize, build_normalization
from sitewise.backbones.small import CNN_WIDTH, MLP_WIDTH, build_cnn, build_mlp
from sitewise.backbones.weights import load_weights, read_weights

__all__ = [
    "BACKBONES",
    "CNN_WIDTH",
    "MLP_WIDTH",
    "NORMALIZATIONS",
    "NamedNetwork",
    "Normalize",
    "Pixels",
    "Standardize",
    "backbone_problems",
    "build_backbone",
    "build_cnn",
    "build_mlp",
    "build_named",
    "build_normalization",
    "load_weights",
    "read_weights",
]
