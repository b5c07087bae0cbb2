"""Manifests: a table with a row for each image, where it lies, its site, target, confounders and group.

A table that cannot be right is refused when it is read, with every problem at once; `check` then opens the images. Rows
are counted from 0, without the header. A group (a patient, a lesion) is never separated: `split_manifest` keeps it in
one part, and `assign_sites` refuses roles that share one.
"""

from sitewise.tables.manifest.checking import add_unreadable, available_cores, check, check_files, notes
from sitewise.tables.manifest.reading import read_manifest, write_manifest
from sitewise.tables.manifest.splitting import AssignedSites, assign_sites, split_manifest
from sitewise.tables.manifest.table import ROWS_FROM, SHOWN, Manifest

__all__ = [
    "ROWS_FROM",
    "SHOWN",
    "AssignedSites",
    "Manifest",
    "add_unreadable",
    "assign_sites",
    "available_cores",
    "check",
    "check_files",
    "notes",
    "read_manifest",
    "split_manifest",
    "write_manifest",
]
