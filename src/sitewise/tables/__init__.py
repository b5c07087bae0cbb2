"""Tables: CSV and Parquet files in chunks, the roles of columns, and X, Z, y and sites from them.

A table whose rows are images is a manifest (`sitewise.tables.manifest`).
"""

from sitewise.tables.files import TableFile, open_table
from sitewise.tables.proposing import Proposal, propose_roles
from sitewise.tables.reader import ImageInput, ReadRows, TableReader
from sitewise.tables.roles import Roles, read_roles, roles_as_toml, split_names
from sitewise.tables.values import Place
from sitewise.tables.writing import table_writer, whole_file

__all__ = [
    "ImageInput",
    "Place",
    "Proposal",
    "ReadRows",
    "Roles",
    "TableFile",
    "TableReader",
    "open_table",
    "propose_roles",
    "read_roles",
    "roles_as_toml",
    "split_names",
    "table_writer",
    "whole_file",
]
