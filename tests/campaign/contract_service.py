"""Attacks on the service and on commands, written from docs/cli.md and docs/guides/service.md alone."""

import http.client
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import sitewise as sw
from campaign.contract_commands import ROLES, hospital, walked
from campaign.estimates import quiet
from campaign.files import command, place, scratch
from campaign.registry import family
from patience import LONG

Rng = np.random.Generator
COLUMNS = ("age", "sex", "p0", "p1")
JSON, CSV, PARQUET = "application/json", "text/csv", "application/vnd.apache.parquet"


@cache
def server() -> tuple[int, subprocess.Popen[bytes]]:
    """The port at which `sitewise serve` serves the site of the walk through, until this process ends."""
    _, site = walked()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    log = (scratch() / "serve.log").open("wb")
    words = [sys.executable, "-m", "sitewise", "serve", str(site), "--port", str(port), "--quiet"]
    process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    Finalize(None, process.kill, exitpriority=100)  # atexit is not run in a worker
    end = time.monotonic() + LONG
    while True:
        assert process.poll() is None, (scratch() / "serve.log").read_text()[-2000:]
        assert time.monotonic() < end, "the server did not start"
        try:
            if ask(port, "GET", "/ping", b"", JSON)[0] == 200:
                return port, process
        except OSError:
            time.sleep(0.2)


def ask(port: int, method: str, path: str, body: bytes, kind: str) -> tuple[int, str]:
    """Status and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
    try:
        connection.request(method, path, body, {"Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def as_json(frame: pd.DataFrame) -> bytes:
    """A frame as the guide posts it."""
    data = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    return json.dumps({"dataframe_split": {"columns": list(frame), "data": data}}).encode()


def packed(frame: pd.DataFrame) -> bytes:
    """A frame as the bytes of a Parquet file."""
    stream = io.BytesIO()
    frame.to_parquet(stream)
    return stream.getvalue()


@cache
def site_of_the_walk() -> Any:
    """The site that is served."""
    return sw.load(walked()[1])


def predicted(frame: pd.DataFrame) -> Any:
    """The probabilities of rows, by the site itself."""
    here = site_of_the_walk()
    return np.asarray(
        quiet(lambda: here.predict_proba(frame[["p0", "p1"]], sample_confounder=frame[["age", "sex"]]))[0]
    )


@family(short=6, limit_s=120)
def requests_to_a_server(rng: Rng) -> str:
    """What anybody may post to `sitewise serve`: the site's probabilities, or a status below 500 that says why."""
    port, process = server()
    frame = hospital(rng, "west", int(rng.integers(3, 12)))[[*COLUMNS]]
    legal: dict[str, tuple[bytes, str, pd.DataFrame]] = {
        "split": (as_json(frame), JSON, frame),
        "csv": (frame.to_csv(index=False).encode(), CSV, frame),
        "parquet": (packed(frame), PARQUET, frame),
        "other order": (as_json(frame[["p1", "sex", "p0", "age"]]), JSON, frame),
        "extra columns": (as_json(frame.assign(name="<b>", note=None)), JSON, frame),
        "gaps": (as_json(frame.assign(age=None)), JSON, frame.assign(age=np.nan)),
        "one row": (as_json(frame[:1]), JSON, frame[:1]),
        "new level": (as_json(frame.assign(sex="unknown")), JSON, frame.assign(sex="unknown")),
        "records": (json.dumps({"dataframe_records": frame.to_dict(orient="records")}).encode(), JSON, frame),
    }
    good = as_json(frame)
    at = int(rng.integers(len(good)))
    wrong: dict[str, tuple[bytes, str]] = {
        "nothing": (b"", JSON),
        "no json": (b"{", JSON),
        "a list": (b"[1, 2]", JSON),
        "a number": (b"3", JSON),
        "null": (b"null", JSON),
        "cut": (good[:at], JSON),
        "bytes": (rng.bytes(300), JSON),
        "deep": (b"[" * 50_000, JSON),
        "deep inside": (b'{"dataframe_split":' + b'{"a":' * 20_000, JSON),
        "no rows": (as_json(frame[:0]), JSON),
        "text": (as_json(frame.assign(p0="high")), JSON),
        "absent": (as_json(frame.drop(columns="p1")), JSON),
        "twice": (as_json(pd.concat([frame, frame[["p0"]]], axis=1)), JSON),
        "lists": (as_json(frame.assign(p0=[[0.5]] * len(frame))), JSON),
        "huge": (as_json(frame.assign(p0=1e308)), JSON),
        "huge whole": (good.replace(b"[[", b"[[1" + b"0" * 400 + b",", 1), JSON),
        "negative": (as_json(frame.assign(p0=-0.5)), JSON),
        "infinite": (good.replace(str(frame["p0"].iloc[0]).encode(), b"Infinity", 1), JSON),
        "ragged": (b'{"dataframe_split": {"columns": ["p0", "p1"], "data": [[0.5], [0.5, 0.5, 1]]}}', JSON),
        "other key": (b'{"frame": {}}', JSON),
        "unknown kind": (good, "application/x-unknown"),
        "no kind": (good, ""),
        "json as csv": (good, CSV),
        "csv as json": (frame.to_csv(index=False).encode(), JSON),
        "csv cut": (b"p0,p1\n0.5", CSV),
        "empty csv": (b"\n", CSV),
        "parquet cut": (packed(frame)[: int(rng.integers(4, 300))], PARQUET),
        "parquet spoiled": (b"PAR1" + rng.bytes(100) + b"PAR1", PARQUET),
        "inputs": (b'{"inputs": [[0.1, 0.9, 50, "f"]]}', JSON),
        "instances": (b'{"instances": "x"}', JSON),
    }
    what = str(rng.choice(["legal", "legal", "wrong", "wrong", "wrong", "paths", "raw"]))
    if what == "legal":
        name = str(rng.choice(sorted(legal)))
        body, kind, table = legal[name]
        status, said = ask(port, "POST", "/invocations", body, kind)
        assert status == 200, f"{name}: {status} {said[-500:]}"
        found = pd.DataFrame(json.loads(said)["predictions"])[["p_0", "p_1"]].to_numpy()
        np.testing.assert_allclose(found, predicted(table), atol=1e-9, err_msg=name)
        return "answered"
    if what == "wrong":
        name = str(rng.choice(sorted(wrong)))
        status, said = ask(port, "POST", "/invocations", *wrong[name])
        assert 400 <= status < 500 or name in ("json as csv", "cut", "inputs"), f"{name}: {status} {said[-800:]}"
        assert status < 500, f"{name}: {status} {said[-800:]}"
        assert "Traceback" not in said, f"{name}: {said[-800:]}"
        assert len(said) < 20_000
    elif what == "paths":
        path = str(rng.choice(["/", "/nothing", "/invocations", "/../../etc/passwd", "/%00", "/ping?x=" + "y" * 9000]))
        method = str(rng.choice(["GET", "PUT", "DELETE", "HEAD", "POST", "PATCH"]))
        status, said = ask(port, method, path, b"", JSON)
        assert status < 500, (method, path, status)
        assert "root:" not in said
    else:
        lines = [b"\x00\xff\n\n", b"GET\r\n\r\n", b"POST /invocations HTTP/1.1\r\nContent-Length: -5\r\n\r\n"]
        lines += [b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{", rng.bytes(500)]
        with socket.create_connection(("127.0.0.1", port), timeout=LONG) as raw:
            raw.sendall(lines[rng.integers(len(lines))])
    assert process.poll() is None, "the server ended"
    status, said = ask(port, "POST", "/invocations", good, JSON)
    assert status == 200, said[-500:]
    found = pd.DataFrame(json.loads(said)["predictions"])[["p_0", "p_1"]].to_numpy()
    np.testing.assert_allclose(found, predicted(frame), atol=1e-9, err_msg=what)
    return "refused"


def swapped(rng: Rng, word: str) -> str:
    """A word with a typo."""
    at = int(rng.integers(1, max(2, len(word) - 1)))
    typos = [word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:], word[:at] + "x" + word[at + 1 :]]
    return typos[rng.integers(3)]


@family(short=8, limit_s=120)
def commands_with_typos(rng: Rng) -> str:
    """Commands, options and columns with a typo: exit code 2, the word as given, and nothing written."""
    model, site = walked()
    with place() as folder:
        data = folder / "rows.csv"
        hospital(rng, "west", 20).to_csv(data, index=False)
        calls: list[list[Any]] = [
            ["predict", site, data, "--out", folder / "p.csv"],
            ["adapt", model, data, "--out", folder / "out"],
            ["expect", site, data, "--proba", "p0,p1"],
            ["evaluate", site, data, "--out", folder / "e.html"],
            ["sample", site, data, "--rows", 5, "--out", folder / "s.csv"],
            ["plan", data, "--target", "ill", "--proba", "p0,p1", "--width", 0.2, "--simulations", 0],
            ["card", site, "--out", folder / "c.xml", "--checklist", folder / "c.md"],
            ["rehearse", model, "--json"],
            ["report", site, "--out", folder / "r.html", "--subgroups", "sex"],
            ["fit", data, *ROLES, "--id", "id", "--out", folder / "model"],
            ["monitor", site, data, "--time", "age", "--window", 10, "--out", folder / "m.png"],
        ]
        chosen = list(calls[rng.integers(len(calls))])
        names = [i for i, word in enumerate(chosen) if str(word) in ("ill", "hospital", "sex", "age", "p0,p1", "id")]
        options = [i for i, word in enumerate(chosen) if str(word).startswith("--")]
        kinds = [0, *options, *names, *[i for i, word in enumerate(chosen) if word in (model, site, data)]]
        at = int(kinds[rng.integers(len(kinds))])
        word = chosen[at]
        typo = word.with_name(swapped(rng, word.name)) if isinstance(word, Path) else swapped(rng, str(word))
        chosen[at] = typo
        code, said = command(*chosen)
        assert "Traceback" not in said
        known = (code, said[-600:], chosen)
        if code == 0:  # a longer option may be shortened, and a column may be called like the typo
            return "understood"
        assert code == 2, known
        assert said.strip(), known
        if at in names and "p0" not in str(word):
            assert repr(typo) in "".join(said.split()).replace("│", ""), known
        left = set(os.listdir(folder)) - {data.name}
        assert not left, (left, chosen)
        return "refused"


@family(short=6, limit_s=120)
def questions_by_command(rng: Rng) -> str:
    """`expect`, `evaluate`, `plan`, `card`, `sample`, `rehearse` on odd tables: numbers in order, or code 2."""
    model, site = walked()
    with place() as folder:
        n_rows = int(rng.choice([50, 50, 50, 3, 1, 0]))  # the site was adapted to 50 rows
        table = hospital(rng, "west", max(n_rows, 3)).head(n_rows)
        table["decision"] = rng.integers(0, 2, n_rows)
        table["weight"] = rng.integers(0, 3, n_rows)
        changes: list[Callable[[], Any]] = [
            lambda: table,
            lambda: table,
            lambda: table.assign(decision=rng.choice(["ill", "well", ""], n_rows)),
            lambda: table.assign(p1=rng.choice([0.0, 1.0, np.nan], n_rows)),
            lambda: table.assign(p1=table["p1"] * 100),
            lambda: table.assign(ill=1),
            lambda: table.assign(ill=rng.choice([0, 1, 2], n_rows)),
            lambda: table.assign(ill=np.where(rng.random(n_rows) < 0.5, np.nan, table["ill"])),
            lambda: table.assign(weight=-1.0),
            lambda: table.assign(weight=rng.choice(["", "much"], n_rows)),
            lambda: table.assign(age="old", sex=np.nan),
            lambda: table.drop(columns=["age", "sex"]),
            lambda: table[table.columns[::-1]],
        ]
        odd = changes[rng.integers(len(changes))]()
        data = folder / str(rng.choice(["rows.csv", "rows.parquet"]))
        if data.suffix == ".csv":
            odd.to_csv(data, index=False)
        else:
            odd.convert_dtypes().to_parquet(data)
        level = ["--level", str(rng.choice(["0.9", "0.5", "0.3", "1", "x", "0.95"]))] if rng.random() < 0.4 else []
        author = folder / "author.toml"
        author.write_text(str(rng.choice(['developer = "us"', "developer = 3", "nonsense = 1", "[", ""])))
        calls: list[list[Any]] = [
            ["expect", site, data, "--proba", "p0,p1"],
            ["expect", site, data, "--proba", "p1", "--threshold", rng.choice(["0.3", "2", "-1"])],
            ["expect", site, data, "--decision", "decision"],
            ["evaluate", site, data, "--resamples", rng.choice(["0", "5"]), "--weight", "weight"],
            ["evaluate", site, data, "--resamples", "5"],
            ["plan", data, "--target", "ill", "--proba", "p0,p1", "--simulations", "0", "--width", "0.3"],
            ["plan", model, "--simulations", "0", "--width", rng.choice(["0.3", "0", "nan", "5"])],
            ["card", site, "--out", folder / "c.xml", "--checklist", folder / "c.md", "--author", author],
            ["sample", site, data, "--rows", rng.choice(["2", "9", "100000"]), "--out", folder / "s.csv"],
            ["rehearse", rng.choice([str(model), str(site), str(folder)])],
        ]
        chosen = [*calls[rng.integers(len(calls))], "--json"]
        chosen += level if chosen[0] in ("expect", "evaluate", "plan", "card") else []
        code, said = command(*chosen)
        assert code in (0, 2), (code, said[-800:], chosen)
        assert "Traceback" not in said
        if code == 2:
            assert said.strip()
            left = set(os.listdir(folder)) - {data.name, author.name}
            assert not left, (left, chosen)
            return "refused"
        told = json.loads(said[said.index("{") :], parse_constant=_no_constant)
        check_intervals(told)
        return str(chosen[0])


def check_intervals(tree: Any) -> None:
    """See that whatever has an estimate and bounds has them in order."""
    if isinstance(tree, dict):
        numbers = [tree.get(name) for name in ("low", "estimate", "high")]
        if all(isinstance(value, int | float) for value in numbers):
            assert numbers == sorted(numbers), tree
        for part in tree.values():
            check_intervals(part)
    elif isinstance(tree, list):
        for part in tree:
            check_intervals(part)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


@family(short=4, limit_s=120, every=2)
def tables_in_any_order(rng: Rng) -> str:
    """`predict` of a table in another order, format or part: each id gets the same probabilities, none is lost."""
    _, site = walked()
    with place() as folder:
        table = hospital(rng, "west", int(rng.integers(4, 60))).drop(columns=["ill", "hospital"])
        odd = ["plain", 'a "quoted" name', "semi;colon", "comma, too", "ä€", " spaced ", "-5", "007", "1e5", "O'Hara"]
        table["id"] = [f"{odd[i % len(odd)]}{'' if i < len(odd) else i}" for i in range(len(table))]
        table.loc[rng.random(len(table)) < 0.2, "age"] = np.nan
        table.loc[rng.random(len(table)) < 0.2, "sex"] = None

        def predictions(frame: pd.DataFrame, data: str, out: str) -> pd.DataFrame:
            path = folder / data
            if path.suffix == ".parquet":
                frame.to_parquet(path)
            else:
                frame.to_csv(path, index=False, sep="\t" if ".tsv" in data else ",")
            code, said = command("predict", site, path, "--out", folder / out, "--quiet")
            assert code == 0, said[-800:]
            found = (
                pd.read_parquet(folder / out)
                if out.endswith("parquet")
                else pd.read_csv(folder / out, dtype={"id": str}, keep_default_na=False)
            )
            assert len(found) == len(frame)
            assert found["id"].tolist() == frame["id"].tolist()
            return found.set_index("id")[["p_0", "p_1"]].astype(float)

        expected = predictions(table, "rows.csv", "p.csv")
        np.testing.assert_allclose(expected.sum(axis=1), 1.0, atol=1e-9)
        some = table.iloc[rng.permutation(len(table))[: int(rng.integers(1, len(table) + 1))]]
        data = str(rng.choice(["other.csv", "other.tsv", "other.csv.gz", "other.parquet"]))
        found = predictions(some, data, str(rng.choice(["q.csv", "q.parquet"])))
        np.testing.assert_allclose(found, expected.loc[found.index], atol=1e-12)
        return data.partition(".")[2]
