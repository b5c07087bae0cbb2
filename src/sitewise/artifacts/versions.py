"""The versions of what computed."""

import platform

import numpy as np
import sklearn
import torch

from sitewise.version import __version__


def versions() -> dict[str, str]:
    """Of sitewise and of the libraries that decide its numbers."""
    return {
        "sitewise": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
    }
