"""Tables: CSV and Parquet files in chunks, the roles of columns, and X, Z, y and sites from them.

A table whose rows are images is a manifest (`sitewise.tables.manifest`).
"""

from sitewise.tables.reader import TableReader
from sitewise.tables.roles import Roles

__all__ = ["Roles", "TableReader"]
