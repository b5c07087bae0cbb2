"""Real tables as they come: roles are proposed right, cells are read right."""

import numpy as np
import pandas as pd
import pytest

from sitewise.tables import TableReader
from sitewise.tables.files import open_table
from sitewise.tables.proposing import propose_roles


@pytest.mark.parametrize(
    ("path", "site", "n_sites", "confounders", "left_out"),
    [
        ("heart_disease/heart.csv", "site", 4, ("age", "sex"), {"num"}),
        (
            *("gusto/gusto.csv.gz", "region", 16, ("age", "sex")),
            {"hospital_group_large", "hospital_group_small"},
        ),
    ],
)
def test_roles_are_proposed_and_rows_read(real_data, path, site, n_sites, confounders, left_out):
    folder, name = path.split("/")
    file = real_data(folder) / name
    table = open_table(file)
    rows = table.read()
    proposal = propose_roles(rows)
    assert (proposal.roles.target, proposal.roles.site, proposal.roles.confounders) == ("y", site, confounders)
    assert set(proposal.left_out) == left_out
    frame = pd.read_csv(file)
    read = TableReader.learn(rows, proposal.roles).read(rows)
    assert len(set(read.site)) == n_sites
    np.testing.assert_array_equal(read.y, frame["y"])
    np.testing.assert_array_equal(read.Z["age"], frame["age"])
    assert np.isfinite(read.X).all()
    numeric = next(
        name for name in proposal.roles.features if frame[name].notna().all() and frame[name].dtype.kind in "if"
    )
    column = frame[numeric].to_numpy(dtype=float)
    position = TableReader.learn(rows, proposal.roles).feature_columns.index(numeric)
    np.testing.assert_allclose(read.X[:, position], (column - column.mean()) / column.std(), atol=1e-10)
