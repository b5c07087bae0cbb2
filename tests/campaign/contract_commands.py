"""Attacks on the command line and on pages, written from docs/cli.md: nearly tables, and options at random."""

import html
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import sitewise as sw
from campaign.contract_models import fitted, odd_labels, odd_sites
from campaign.estimates import quiet
from campaign.files import NAMES, _Page, command, place, scratch
from campaign.registry import family

Rng = np.random.Generator
ROLES = ("--target", "ill", "--site", "hospital", "--confounder", "age", "--confounder", "sex", "--proba", "p0,p1")


def hospital(rng: Rng, name: str, n_rows: int) -> pd.DataFrame:
    """Rows as in the walk through of docs/cli.md."""
    ill = np.r_[[0, 1], rng.integers(0, 2, n_rows - 2)]
    p1 = 1 / (1 + np.exp(1 - 2 * (ill + rng.normal(0, 0.7, n_rows))))
    return pd.DataFrame(
        {
            "id": [f"{name}-{i:03}" for i in range(n_rows)],
            "hospital": name,
            "ill": ill,
            "age": rng.normal(60, 10, n_rows).round(1),
            "sex": rng.choice(["f", "m"], n_rows),
            "p0": 1 - p1,
            "p1": p1,
        }
    )


@cache
def walked() -> tuple[Path, Path]:
    """A model and a site, made by commands."""
    rng = np.random.default_rng(2)
    folder = scratch() / "walked"
    folder.mkdir()
    pd.concat([hospital(rng, "north", 60), hospital(rng, "south", 60)]).to_csv(folder / "scored.csv", index=False)
    hospital(rng, "west", 50).drop(columns=["ill", "hospital"]).to_csv(folder / "west.csv", index=False)
    assert command("fit", folder / "scored.csv", *ROLES, "--id", "id", "--out", folder / "model", "--quiet")[0] == 0
    assert command("adapt", folder / "model", folder / "west.csv", "--out", folder / "site", "--quiet")[0] == 0
    return folder / "model", folder / "site"


def spoil_text(rng: Rng, text: str) -> bytes:
    """A table as hands, programs and networks spoil it."""
    lines = text.splitlines()
    row = int(rng.integers(len(lines)))
    cells = lines[row].split(",")
    cell = int(rng.integers(len(cells)))

    def with_cell(value: str) -> str:
        return "\n".join([*lines[:row], ",".join([*cells[:cell], value, *cells[cell + 1 :]]), *lines[row + 1 :]])

    odd = [
        "",
        " ",
        '"',
        '""',
        '"a',
        'a"b',
        "1e400",
        "-1e400",
        "1,5",
        "0x1F",
        "1_000",
        "٣",
        "½",
        "inf",
        "-Infinity",
        "nan",
    ]
    odd += [
        "NULL",
        "#N/A",
        "TRUE",
        "1 000",
        "12:30",
        "2020-13-45",
        "=1+1",
        "x" * 70_000,
        "\u200b1",
        "1\u00a0",
        "\ufeff",
    ]
    changes: list[Callable[[], str | bytes]] = [
        lambda: text,
        lambda: with_cell(str(rng.choice(odd))),
        lambda: with_cell(str(rng.choice(odd))),
        lambda: with_cell(f"{rng.uniform(1, 10):g}e{rng.integers(-330, 330)}"),
        lambda: "\n".join([*lines[:row], lines[row] + ",extra", *lines[row + 1 :]]),
        lambda: "\n".join([*lines[:row], ",".join(cells[:-1]), *lines[row + 1 :]]),
        lambda: "\n".join([*lines[:row], "", *lines[row:]]),
        lambda: "\n".join([*lines[:row], lines[0], *lines[row:]]),
        lambda: "\n".join([*lines[:row], "# a remark", *lines[row:]]),
        lambda: "\n".join(lines[1:]),
        lambda: "\n".join([lines[0], *lines[1:][::-1]]),
        lambda: lines[0],
        lambda: "",
        lambda: "\n",
        lambda: "\r\n".join(lines),
        lambda: "\r".join(lines),
        lambda: text.replace(",", ";"),
        lambda: text.replace(".", ","),
        lambda: text.replace("\n", "\x00\n", 1),
        lambda: text.encode("utf-16"),
        lambda: text.replace("north", "nörth").encode("latin-1"),
        lambda: text[: int(rng.integers(len(text)))],
        lambda: text + text,
        lambda: ",".join([*lines[0].split(",")[:-1], lines[0].split(",")[0]]) + "\n" + "\n".join(lines[1:]),
        lambda: "\n".join([lines[0].upper(), *lines[1:]]),
        lambda: "\n".join([lines[0].replace(",", " ,"), *lines[1:]]),
        lambda: rng.bytes(200),
        lambda: b"\x1f\x8b\x08" + rng.bytes(50),
        lambda: b"PAR1" + rng.bytes(50) + b"PAR1",
    ]
    found = changes[rng.integers(len(changes))]()
    return found if isinstance(found, bytes) else found.encode("utf-8", "surrogatepass")


@family(short=20, limit_s=120)
def walks_with_odd_tables(rng: Rng) -> str:
    """Any command on a spoiled table, options at random: done, or exit code 2, a message and nothing left behind."""
    model, site = walked()
    with place() as folder:
        table = hospital(rng, str(rng.choice(["north", "west"])), int(rng.integers(3, 30)))
        if rng.random() < 0.6:  # a new site's own table
            table = table.drop(columns=["ill", "hospital"])
        suffixes = [".csv", ".tsv", ".csv.gz", ".parquet", "", ".xlsx"]
        data = folder / f"t{rng.choice(suffixes, p=[0.8, 0.04, 0.04, 0.04, 0.04, 0.04])}"
        data.write_bytes(spoil_text(rng, table.to_csv(index=False)))
        out = folder / "out"
        calls: dict[str, tuple[object, ...]] = {
            "predict": ("predict", site, data, "--out", out.with_suffix(".csv")),
            "predict as trained": ("predict", site, data, "--as-trained", "--out", out.with_suffix(".parquet")),
            "adapt": ("adapt", model, data, "--out", out),
            "adapt with labels": ("adapt", model, data, "--use-labels", "--out", out),
            "adapt told": (
                "adapt",
                model,
                data,
                "--prevalence",
                rng.choice(["0.1", "1.5", "x", "-1", "nan"]),
                "--out",
                out,
            ),
            "adapt one": ("adapt", model, data, "--site", rng.choice(["west", "nowhere"]), "--out", out),
            "expect": ("expect", site, data),
            "evaluate": ("evaluate", site, data, "--out", out.with_suffix(".html")),
            "sample": ("sample", site, data, "--out", out.with_suffix(".csv")),
            "init": ("init", data, "--out", out.with_suffix(".toml")),
            "plan": ("plan", data, "--target", "ill", "--proba", "p0,p1", "--simulations", 0),
            "fit": ("fit", data, *ROLES, "--out", out),
        }
        weights = np.array([1.0 if name != "fit" else 0.15 for name in sorted(calls)])
        name = str(rng.choice(sorted(calls), p=weights / weights.sum()))
        extra = [[], [], ["--quiet"], ["--json"], ["--encoding", "latin-1"], ["--separator", ";"], ["--force"]]
        chosen = [*calls[name], *extra[rng.integers(len(extra))]]
        code, said = command(*chosen)
        assert code in (0, 2), f"{chosen}: {code} {said[-800:]}"
        assert "Traceback" not in said
        if code == 2:
            assert said.strip(), chosen
            assert len(said) < 20_000, len(said)
            left = set(os.listdir(folder)) - {data.name}
            assert not left, f"{left} was left by {chosen}"
            return "refused"
        return "done"


@family(short=10, limit_s=60)
def options_at_random(rng: Rng) -> str:
    """Commands without a table, or with options that no command has, in any order: 0 or 2, never a traceback."""
    model, site = walked()
    with place() as folder:
        words = [
            "--out",
            "--json",
            "--quiet",
            "--force",
            "--level",
            "--seed",
            "-1",
            "0.9",
            "1e999",
            "",
            "--",
            "--no",
            "x",
        ]
        words += [
            "--site-name",
            NAMES[0],
            "--positive",
            "--dtype",
            "--width",
            "1e-300",
            "--prevalence",
            "nan",
            "--help",
        ]
        start: list[list[object]] = [
            ["diagnose", site],
            ["rehearse", model],
            ["card", site],
            ["expect", site],
            ["report", site, "--out", folder / "r.html"],
            ["plan"],
            ["methods"],
            ["data", "list"],
            ["adapt", model],
            ["diagnose", model],
            ["rehearse", site],
            ["predict", folder / "nowhere", folder / "nothing.csv"],
            ["fit", folder],
            ["bench", "run", folder / "nothing.yaml"],
            ["no-such-command"],
            [],
        ]
        chosen = [*start[rng.integers(len(start))], *rng.choice(words, int(rng.integers(0, 4)))]
        code, said = command(*chosen)
        assert code in (0, 2), f"{chosen}: {code} {said[-800:]}"
        assert "Traceback" not in said
        return "done" if code == 0 else "refused"


@family(short=1, limit_s=120, every=4)
def pages_of_odd_sites(rng: Rng) -> str:
    """A page about any site, classes and levels: one script, nothing fetched, numbers beside it that JSON can hold."""
    _, probability, y, Z = fitted()
    words = [name for name in NAMES if "\x00" not in name and "\ud800" not in name and name.strip()]
    labels = odd_labels(rng, y)
    table = Z.assign(sex=np.array(rng.choice(words, 2, replace=False), dtype=object)[(Z["sex"] == "m").astype(int)])
    table = table.rename(columns={"sex": str(rng.choice(words))})
    model = sw.PrevalenceAdjuster(rehearsal=None)
    quiet(lambda: model.fit(probability, labels, sample_domain=odd_sites(rng, len(y)), sample_confounder=table))
    here, _ = quiet(lambda: model.adapt(probability[:50], sample_confounder=table.head(50)))
    with place() as folder:
        path, _ = quiet(lambda: here.report(folder / "page.html", site=str(rng.choice(words))))
        text = Path(path).read_text(encoding="utf-8")
        found = _Page(text)
        assert found.scripts == 1
        assert not found.odd, found.odd
        assert "default-src 'none'" in html.unescape(text)
        numbers = json.loads((folder / "page.json").read_text(encoding="utf-8"), parse_constant=_no_constant)
        assert numbers
        assert sorted(os.listdir(folder)) == ["page.html", "page.json"]
    return "inert"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
