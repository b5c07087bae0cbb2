"""`sitewise monitor`: from tables to a picture of a site over time, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sitewise import SimulatedFamily
from sitewise.cli import app

FAMILY = SimulatedFamily(levels=(2,), n_continuous=1)


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def rows(n_rows, seed, **settings):
    site = FAMILY.site(n_rows, seed=seed, **settings)
    features = pd.DataFrame(site.X, columns=[f"x{j}" for j in range(site.X.shape[1])])
    names = {"age0": "age", "group0": "sex"}
    return pd.concat([features, site.Z.rename(columns=names)], axis=1).assign(ill=site.y, hospital=f"H{seed}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with an adapted site and the table of a year there: noise from July to September."""
    place = tmp_path_factory.mktemp("monitor")
    pd.concat([rows(400, 0), rows(400, 1)]).to_csv(place / "training.csv", index=False)
    new = rows(1200, 2, prevalence=[0.7, 0.3]).drop(columns=["ill", "hospital"])
    new["day"] = pd.date_range("2025-01-01", "2025-12-31", periods=1200).strftime("%Y-%m-%d")
    third = new["day"].between("2025-07-01", "2025-09-30").to_numpy()
    columns = [name for name in new if name.startswith("x")]
    new.loc[third, columns] += np.random.default_rng(0).normal(0, 2, (third.sum(), len(columns)))
    new.to_csv(place / "year.csv", index=False)
    new[~third].to_csv(place / "usual.csv", index=False)
    roles = ("--target", "ill", "--site", "hospital", "--confounder", "age", "--confounder", "sex")
    features = ("--features", ",".join(columns), "--epochs", 4, "--device", "cpu", "--quiet")
    assert run("fit", place / "training.csv", *roles, *features, "--out", place / "model").exit_code == 0
    assert run("adapt", place / "model", place / "usual.csv", "--out", place / "site", "--quiet").exit_code == 0
    return place


def test_a_year_in_quarters(folder, tmp_path):
    picture = tmp_path / "year.png"
    result = run(
        *("monitor", folder / "site", folder / "year.csv", "--time", "day", "--window", "QS", "--json"),
        *("--out", picture),
    )
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert [window["alarm"] for window in document["windows"]] == [False, False, True, False]
    assert sum(window["n"] for window in document["windows"]) == 1200
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["year.png"]


def test_a_table_for_people(folder, tmp_path):
    result = run(
        *("monitor", folder / "site", folder / "year.csv", "--time", "day", "--window", 300),
        *("--out", tmp_path / "year.svg"),
    )
    assert result.exit_code == 0
    assert "window(s) with an alarm" in result.stdout
    assert "2025-01-01" in result.stdout
    assert "without a role" not in result.stdout  # day has one here


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--time", "dya", "--window", "MS"), "did you mean 'day'"),
        (("--time", "day", "--window", "fortnight"), "not a length of time"),
        (("--time", "age", "--window", "30D"), "give a number of rows"),
    ],
)
def test_wrong_input_is_reported(folder, tmp_path, arguments, words):
    with pytest.raises(ValueError, match=words):
        run("monitor", folder / "site", folder / "year.csv", *arguments, "--out", tmp_path / "year.png")
    assert not list(tmp_path.iterdir())
