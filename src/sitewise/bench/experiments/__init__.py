"""Experiments: a YAML file is read and planned, its runs write records, and records are summarized in tables.

Public names are imported on first use, so that importing this subpackage does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

_MODULE_OF = {"read_experiment": "reading", "run_experiment": "runner", "summarize": "summary"}
__all__ = [*_MODULE_OF]

if TYPE_CHECKING:
    from sitewise.bench.experiments.reading import read_experiment as read_experiment
    from sitewise.bench.experiments.runner import run_experiment as run_experiment
    from sitewise.bench.experiments.summary import summarize as summarize


def __getattr__(name: str) -> object:
    """Import a public name from its file on first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sitewise.bench.experiments' has no attribute {name!r}")
    value = getattr(import_module(f"sitewise.bench.experiments.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
