"""Tables: read CSV and Parquet files in chunks, and convert them to X, Z, y and sites by the roles of their columns.

A table whose rows are images is a manifest (`sitewise.tables.manifest`).
"""

from sitewise.tables.reader import TableReader
from sitewise.tables.roles import Roles

__all__ = ["Roles", "TableReader"]
