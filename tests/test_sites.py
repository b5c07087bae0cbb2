import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw


def test_split_keeps_rows_together_and_sites_in_order():
    X, names = np.arange(12).reshape(6, 2), ["b", "a", "b", "a", "c", "a"]
    Z = pd.DataFrame({"age": np.arange(6.0)})
    sites = sw.Sites.split(X, np.arange(6), sample_domain=names, Z=Z)
    assert sites.names == ("a", "b", "c")
    assert sites["a"].y.tolist() == [1, 3, 5]
    assert sites["a"].Z["age"].tolist() == [1.0, 3.0, 5.0]
    assert len(sites["c"]) == 1
    assert sites["c"].without_labels().y is None


def test_one_site_without_names_and_torch_and_lists():
    sites = sw.Sites.split(torch.zeros(3, 1, 2, 2), [0, 1, 0])
    assert len(sites) == 1
    assert next(iter(sites)).take([0, 2]).y == [0, 0]


def test_what_does_not_fit_together_is_named():
    with pytest.raises(ValueError, match="2 problems") as caught:
        sw.Site("north", np.zeros((3, 2)), y=[0, 1], Z=np.zeros((4, 1)))
    assert "y has 2 row(s), X has 3" in str(caught.value)
    with pytest.raises(ValueError, match="sample_domain is missing in 1 row"):
        sw.Sites.split(np.zeros((3, 2)), sample_domain=["a", None, "b"])
    with pytest.raises(ValueError, match="duplicate name"):
        sw.Sites((sw.Site("a", [1]), sw.Site("a", [2])))
    with pytest.raises(KeyError, match="no site 'x'"):
        sw.Sites((sw.Site("a", [1]),))["x"]
