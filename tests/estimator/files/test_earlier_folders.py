"""Folders that an earlier version of the code saved are loaded and answer as they did then.

`tests/fixtures/saved` was written at commit c9c241d: two sites with their models inside, and beside each a JSON file
with rows and the answers of that code. The site that reads tables was written at commit 93a8125.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw

SAVED = Path(__file__).parents[2] / "fixtures" / "saved"
CLOSE = {"rtol": 1e-10, "atol": 1e-12}  # sums in another order, as on another machine


@pytest.fixture(params=["network_site", "adjuster_site"])
def earlier(request):
    backbone = torch.nn.Linear(4, 8) if request.param == "network_site" else None
    answers = json.loads((SAVED / f"{request.param}.json").read_text(encoding="utf-8"))
    return sw.load(SAVED / request.param, backbone=backbone), answers


def test_it_predicts_what_it_predicted(earlier):
    here, then = earlier
    X, Z = np.array(then["X"]), pd.DataFrame(**then["Z"])
    own_site = [here.model.sites_[0]] * len(X)
    now = {
        "predict_proba": here.predict_proba(X, sample_confounder=Z),
        "without_z": here.predict_proba(X),
        "as_trained": here.model.predict_proba(X, sample_confounder=Z),
        "own_site": here.model.predict_proba(X, sample_domain=own_site, sample_confounder=Z),
        "prevalence": here.prevalence(),
        "prevalence_at": here.prevalence(Z),
        "interval": here.prevalence_interval(),
        "interval_at": here.prevalence_interval(Z),
    }
    assert set(now) == set(then) - {"X", "Z"}
    for name, values in now.items():
        np.testing.assert_allclose(np.asarray(values), np.asarray(then[name]), **CLOSE, err_msg=name)


def test_it_can_be_saved_again(earlier, tmp_path):
    here, then = earlier
    here.save(tmp_path / "again")
    backbone = torch.nn.Linear(4, 8) if "backbone" in here.model.get_params() else None
    again = sw.load(tmp_path / "again", backbone=backbone)
    X, Z = np.array(then["X"]), pd.DataFrame(**then["Z"])
    expected = here.predict_proba(X, sample_confounder=Z)
    np.testing.assert_array_equal(again.predict_proba(X, sample_confounder=Z), expected)


def test_a_table_is_prepared_to_the_bit_as_it_was():
    """Medians, scales and levels were prepared by code of our own then, and are by scikit-learn now."""
    then = json.loads((SAVED / "table_site.json").read_text(encoding="utf-8"))
    here = sw.load(SAVED / "table_site", backbone=torch.nn.Linear(13, 4))
    reader = here.model.table_reader_
    rows = reader.read(pd.DataFrame(**then["table"]), labels="none")
    assert list(reader.feature_columns) == then["columns"]
    np.testing.assert_array_equal(rows.X, np.array(then["X"]))
    np.testing.assert_allclose(
        here.predict_proba(rows.X, sample_confounder=rows.Z), np.array(then["predict_proba"]), **CLOSE
    )


def test_the_share_that_was_applied_keeps_its_name_in_folders(tmp_path):
    """`Grounds.applied_share` had another name in the first version."""
    here = sw.load(SAVED / "table_site", backbone=torch.nn.Linear(13, 4))
    share = here.outcome.grounds.applied_share
    assert 0.6 < share < 0.7
    here.save(tmp_path / "again")
    assert f'"believed": {share!r}' in (tmp_path / "again" / "model.json").read_text(encoding="utf-8")
    assert sw.load(tmp_path / "again", backbone=torch.nn.Linear(13, 4)).outcome == here.outcome
