"""Saved models as folders of JSON and safetensors, written atomically and checked when they are read.

This package works on dicts and tensors. The caller says which classes a file may hold (`Record`).
"""

from sitewise.artifacts.folders import SCHEMA, Folder, read_folder, write_folder
from sitewise.artifacts.hints import fits, hints_of
from sitewise.artifacts.packing import ODD, OddEntryError, Record, odd_entry, pack, unpack
from sitewise.artifacts.versions import versions

__all__ = [
    "ODD",
    "SCHEMA",
    "Folder",
    "OddEntryError",
    "Record",
    "fits",
    "hints_of",
    "odd_entry",
    "pack",
    "read_folder",
    "unpack",
    "versions",
    "write_folder",
]
