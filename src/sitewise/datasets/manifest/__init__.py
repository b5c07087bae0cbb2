"""Manifests: a table with a row for each image, where it lies, its site, target, confounders and group.

A table that cannot be right is refused when it is read, with every problem at once; `check` then opens the images. Rows
are counted from 0, without the header. A group (a patient, a lesion) is never separated: `split_manifest` keeps it in
one part, and `assign_roles` refuses roles that share one.
"""

from sitewise.datasets.manifest.checking import add_unreadable, available_cores, check, check_files, notes
from sitewise.datasets.manifest.reading import read_manifest, write_manifest
from sitewise.datasets.manifest.roles import ImagesById, Roles, assign_roles, split_manifest, to_site, to_sites
from sitewise.datasets.manifest.table import Manifest
from sitewise.datasets.manifest.wording import ROWS_FROM, SHOWN

__all__ = [
    "ROWS_FROM",
    "SHOWN",
    "ImagesById",
    "Manifest",
    "Roles",
    "add_unreadable",
    "assign_roles",
    "available_cores",
    "check",
    "check_files",
    "notes",
    "read_manifest",
    "split_manifest",
    "to_site",
    "to_sites",
    "write_manifest",
]
