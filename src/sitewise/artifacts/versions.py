"""The versions of what computed."""

import platform
from importlib.metadata import version

import numpy as np
import sklearn
import torch


def versions() -> dict[str, str]:
    """Of sitewise and of the libraries that decide its numbers."""
    return {
        "sitewise": version("sitewise"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
    }
