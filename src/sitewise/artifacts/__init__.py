"""Saved models as folders of JSON and safetensors, written atomically and checked when they are read.

This package works on dicts and tensors. The caller registers the classes that a file may hold (`Record`).
"""

from sitewise.artifacts.packing import Record

__all__ = ["Record"]
