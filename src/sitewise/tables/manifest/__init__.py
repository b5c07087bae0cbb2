"""Manifests: a table with a row for each image, with its path, site, target, confounders and group.

Reading a wrong table raises one error with all its problems; `check` then opens the images. Rows are counted from 0,
without the header. A group (a patient, a lesion) is never split: `split_manifest` keeps it in one part, and
`assign_sites` rejects roles that share a group.
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
