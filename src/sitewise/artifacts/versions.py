"""Versions of the libraries in use."""

import platform

import numpy as np
import sklearn
import torch

from sitewise.version import __version__


def versions() -> dict[str, str]:
    """Return the versions of sitewise and of the libraries that its results depend on."""
    return {
        "sitewise": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
    }
