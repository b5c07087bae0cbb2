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
        (("--time", "day", "--window", "0"), "a number of rows from 1 up"),
        (("--time", "day", "--window", "0h"), "a length of time above zero"),
        (("--time", "day", "--window", "-1h"), "a length of time above zero"),
        (("--time", "day", "--window", "1ns"), "--window 1ns is too short"),
        (("--time", "day", "--window", "1us"), "--window 1us is too short"),
        (("--time", "day", "--window", "1h"), "1,200 row.* over 364 days .* need windows of at least 0 days 07:16:48"),
    ],
)
def test_wrong_input_is_reported(folder, tmp_path, arguments, words):
    with pytest.raises(ValueError, match=words):
        run("monitor", folder / "site", folder / "year.csv", *arguments, "--out", tmp_path / "year.png")
    assert not list(tmp_path.iterdir())


def watch(folder, path, times, *words):
    """The result of `monitor` on rows with these times: its exit code and output, or its message."""
    year = pd.read_csv(folder / "year.csv").iloc[: len(times)].assign(day=times)
    year.to_parquet(path, index=False) if path.suffix == ".parquet" else year.to_csv(path, index=False)
    return run("monitor", folder / "site", path, "--time", "day", "--out", path.with_suffix(".png"), "--force", *words)


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d.%m.%Y %H:%M", "%d %b %Y"])
@pytest.mark.parametrize("first", ["2026-01-01", "2026-01-13"])
def test_only_iso_dates_are_read(folder, tmp_path, form, first):
    times = pd.Series(pd.date_range(first, periods=40, freq="4h"))
    days = times.dt.strftime("%Y-%m-%d")
    days[7:] = times.dt.strftime(form)[7:]
    wanted = f"t.csv, column 'day': expected a date or a number, got {days[7]!r} in row 7 .*32 more.*: "
    with pytest.raises(ValueError, match=wanted + "write dates as YYYY-MM-DD"):
        watch(folder, tmp_path / "t.csv", days, "--window", "10")


@pytest.mark.parametrize(
    ("cell", "got"), [("", "nothing"), ("soon", "'soon'"), ("inf", "'inf'"), ("2026-02-30", "'2026-02-30'")]
)
@pytest.mark.parametrize("times", [pd.Series(range(40)), pd.Series(pd.date_range("2026-01-01", periods=40))])
def test_a_time_that_cannot_be_read_is_named(folder, tmp_path, times, cell, got):
    times = times.astype(str).str[:10]
    times[9] = cell
    with pytest.raises(ValueError, match=f"expected a date or a number, got {got} in row 9"):
        watch(folder, tmp_path / "t.csv", times, "--window", "10")


def test_a_row_is_counted_in_its_file(folder, tmp_path):
    year = pd.read_csv(folder / "year.csv").iloc[:40].assign(hospital=["a", "b"] * 20)
    year.loc[21, "day"] = "13.01.2026"
    year.to_csv(tmp_path / "t.csv", index=False)
    words = ("--site", "b", "--time", "day", "--window", "10", "--out", tmp_path / "t.png")
    with pytest.raises(ValueError, match=r"got '13\.01\.2026' in row 21"):
        run("monitor", folder / "site", tmp_path / "t.csv", *words)


def test_times_across_a_clock_change_are_the_same_in_every_file(folder, tmp_path):
    times = pd.Series(pd.date_range("2025-03-20", periods=200, freq="2h", tz="Europe/Berlin"))
    found = {}
    for name, own in {
        "t.csv": times.map(lambda time: time.isoformat()),
        "text.parquet": times.map(str),
        "utc.parquet": times.dt.tz_convert("UTC"),
        "t.parquet": times,
    }.items():
        result = watch(folder, tmp_path / name, own, "--window", "60", "--json")
        found[name] = pd.DataFrame(json.loads(result.stdout)["windows"])
        for end in ("time", "start", "end"):
            found[name][end] = pd.to_datetime(found[name][end], utc=True)
    assert len(found["t.csv"]) == 3
    for frame in found.values():
        pd.testing.assert_frame_equal(frame, found["t.csv"])


@pytest.mark.parametrize("kind", ["date32[pyarrow]", "timestamp[ms][pyarrow]", "datetime64[ns]", "str", "category"])
def test_dates_of_every_type_are_read(folder, tmp_path, kind):
    times = pd.Series(pd.date_range("2025-01-01", periods=60))
    own = times.dt.strftime("%Y-%m-%d").astype(kind) if kind in ("str", "category") else times.astype(kind)
    result = watch(folder, tmp_path / "t.parquet", own, "--window", "MS", "--json")
    assert [window["start"][:10] for window in json.loads(result.stdout)["windows"]] == [
        "2025-01-01",
        "2025-02-01",
        "2025-03-01",
    ]


def test_a_window_below_the_unit_of_the_times_is_refused(folder, tmp_path):
    times = pd.Series([pd.Timestamp("2025-01-01")] * 40).astype("timestamp[ms][pyarrow]")
    with pytest.raises(ValueError, match="--window 1us is too short"):
        watch(folder, tmp_path / "t.parquet", times, "--window", "1us")


def test_windows_of_half_a_day_are_shown_with_times(folder, tmp_path):
    times = pd.Series(pd.date_range("2025-01-01 00:10", periods=48, freq="h")).astype(str)
    halves = watch(folder, tmp_path / "t.csv", times, "--window", "12h")
    cells = [line.replace("│", " ").split()[:2] for line in halves.stdout.splitlines()]
    first = cells.index(["2025-01-01", "2025-01-01"])
    assert cells[first + 1] == ["00:10", "11:10"]
    assert cells[first + 3] == ["12:10", "23:10"]
    days = watch(folder, tmp_path / "t.csv", times, "--window", "1D")
    assert "00:10" not in days.stdout
