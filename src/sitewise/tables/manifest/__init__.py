"""Manifests: tables with a row for each image, with its path, site, target, confounders and group.

If a table has problems, reading it raises one error that lists all of them. `check` then opens the images. Rows are
counted from 0, without the header. A group (a patient, a lesion) is never split: `split_manifest` keeps it in one part,
and `assign_sites` rejects roles that share a group, except two test sites.
"""

from sitewise.tables.manifest.reading import read_manifest
from sitewise.tables.manifest.table import Manifest

__all__ = ["Manifest", "read_manifest"]
