"""The small sets as they are: sizes, roles and groups. Few images are decoded."""

from dataclasses import replace

import numpy as np
import pytest

from sitewise.bench.datasets import small_images as si
from sitewise.bench.datasets.examples import load_examples
from sitewise.bench.report.examples import example_figure


@pytest.fixture(scope="module")
def isic64(real_data):
    return si.load_isic64(real_data("isic64"))


@pytest.fixture(scope="module")
def cxr64(real_data):
    return si.load_cxr64(real_data("cxr64"))


def test_isic64_has_its_environments(isic64):
    table = isic64.site_table()
    assert table["samples"].sum() == 12811
    assert table.loc[[*si.ISIC64_TRAINING, si.ISIC64_VALIDATION], "samples"].tolist() == [1145, 2512, 3744, 417]
    assert table.loc["HAM_vidir_molemax", "prevalence"] == pytest.approx(24 / 3744)


def test_isic64_images_are_dermoscopy(isic64):
    site = isic64.site("HAM_vienna_dias")
    assert site.X.shape == (417, 3, 64, 64)
    red, green, blue = site.X.mean(axis=(0, 2, 3))
    assert red > green > 50 < blue  # skin
    assert site.X.std(axis=(2, 3)).min() > 1  # no image is flat


def test_isic64_roles_share_no_lesion(isic64):
    few = isic64.table.groupby("site").head(30)
    roles = si.isic64_roles(replace(isic64, table=few))
    assert {site.X.shape[1:] for site in (*roles.training, roles.validation, *roles.tests)} == {(3, 64, 64)}
    role = dict.fromkeys(si.ISIC64_TRAINING, "train") | {si.ISIC64_VALIDATION: "validate"}
    role |= {name: name for name in si.ISIC64_TESTS}
    in_roles = isic64.table.assign(role=isic64.table["site"].map(role)).groupby("group")["role"].nunique()
    assert in_roles.max() == 1
    assert (isic64.table.query("site == 'NY3'")["dx"] != "BKL").sum() == 1765


def test_cxr64_negatives_are_without_a_finding(cxr64):
    table = cxr64.site_table()
    assert table["samples"].to_dict() == {"GUANGZHOU": 2000, "NIH": 2819, "NIH_sel": 929}
    assert (table["samples"] * table["prevalence"]).round().to_dict() == {"GUANGZHOU": 1468, "NIH": 65, "NIH_sel": 442}


def test_cxr64_roles_hold_patients_out(cxr64):
    roles = si.cxr64_roles(cxr64, seed=1)
    home = roles.tests["NIH test"]
    assert roles.tests["GUANGZHOU"].Z[["age", "sex"]].isna().all(axis=None)
    assert home.X.shape[1:] == (1, 64, 64)
    assert min(roles.validation.y.sum(), home.y.sum()) >= 10
    assert len(roles.training["NIH"]) + len(roles.validation) + len(home) == 2819
    assert not set(roles.validation.groups) & set(home.groups)
    assert np.ptp(home.X.reshape(len(home), -1), axis=1).min() > 50


@pytest.mark.parametrize("name", ["isic64", "cxr64"])
def test_examples_of_every_site_can_be_drawn(name, real_data):
    examples = load_examples(name, real_data(name), n=4)
    figure = example_figure(examples, title=name)
    assert len(figure.axes) == 4 * len(examples)
    missing = [site.site for site in examples if site.Z["age"].isna().all()]
    assert missing == (["GUANGZHOU"] if name == "cxr64" else [])
