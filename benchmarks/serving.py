"""Speed of a served site: requests per second compared with a pyfunc that does nothing, and 100,000 rows in a request.

    python benchmarks/serving.py [--blocks 20] [--requests 50] --out benchmarks/serving.json

Three servers are started on loopback: `mlflow models serve` of a site, `sitewise serve` of the same site, and
`mlflow models serve` of a pyfunc with the same signature that answers one half for every row. One client with
persistent connections sends requests to them in turns, in short blocks. On a busy machine, the ratio of two
neighbouring blocks is more reliable than the rates. The site is a network with six features; z has two continuous and
two categorical variables. The large request is sent as JSON (`dataframe_split`), as Parquet, and to `sitewise serve`
also as CSV. The steps of the large request are timed in this process, by processor time. `--table` prints the table of
docs/performance.md from a record.
"""

import argparse
import http.client
import io
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from records import provenance

import sitewise as sw
from sitewise.integrations import mlflow as integration
from sitewise.tables import Roles

LARGE = 100_000
RATIO, SECONDS = 0.7, 2.0
STARTS_IN = 300
JSON, PARQUET, CSV = "application/json", "application/vnd.apache.parquet", "text/csv"
NO_OP = """
import mlflow
import pandas as pd


class NoOp(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input):
        return pd.DataFrame({"p_0": 0.5, "p_1": 0.5, "decision": 0}, index=model_input.index)


mlflow.models.set_model(NoOp())
"""


def make_site():
    """Return an adapted site of a model that reads tables, and a table of rows for it."""
    family = sw.SimulatedFamily(n_continuous=2, levels=(2, 3), seed=0)
    sites = [family.site(500, seed=seed) for seed in range(3)]
    X = pd.DataFrame(np.concatenate([site.X for site in sites])).add_prefix("x")
    Z = pd.concat([site.Z for site in sites], ignore_index=True)
    labels = {"y": np.concatenate([site.y for site in sites]), "hospital": np.repeat(["a", "b", "c"], 500)}
    labeled = pd.concat([X, Z], axis=1).assign(**labels)
    reader = sw.TableReader.learn(labeled, Roles("y", "hospital", confounders=tuple(Z), features=tuple(X)))
    rows = reader.read(labeled)
    model = sw.GPAClassifier(epochs=5, device="cpu", missing="knockout")
    model.fit(rows.X, rows.y, sample_domain=rows.site, sample_confounder=rows.Z).table_reader_ = reader
    new = family.site(500, prevalence=[0.8, 0.2], seed=9)
    frame = pd.concat([pd.DataFrame(new.X, columns=X.columns), new.Z], axis=1)
    read = reader.read(frame, labels="none")
    return model.adapt(read.X, sample_confounder=read.Z), frame


@contextmanager
def served(command):
    """Start a server within the block and provide its port, which is appended to the command."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*map(str, command), str(port)], env=environment, **quiet)
    try:
        limit = time.monotonic() + STARTS_IN
        while not is_up(port):
            if process.poll() is not None or time.monotonic() > limit:
                raise SystemExit(f"the server did not start: {command}")
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait()


def is_up(port):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STARTS_IN)
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except OSError:
        return False


def ask(connection, body, kind=JSON):
    connection.request("POST", "/invocations", body, {"Content-Type": kind})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise SystemExit(text.decode()[:2000])
    return text


def as_json(frame):
    content = {"columns": list(frame), "data": frame.to_numpy(dtype=object).tolist()}
    return json.dumps({"dataframe_split": content}).encode()


def rates(connections, body, blocks, requests):
    """Return the requests per second of every server in every block; the servers are called in turns."""
    by_server = {name: [] for name in connections}
    for block in range(blocks + 1):  # the first block is a warm-up
        for name, connection in connections.items():
            connection.close()  # the server may have closed it in the meantime
            ask(connection, body)
            start = time.perf_counter()
            for _ in range(requests):
                ask(connection, body)
            if block:
                by_server[name].append(requests / (time.perf_counter() - start))
    return by_server


def large_requests(connections, frame, repeats):
    """Return the seconds of large requests by server and kind of body, measured in turns, and the JSON body."""
    large = pd.concat([frame] * (LARGE // len(frame)), ignore_index=True)
    packed = io.BytesIO()
    large.to_parquet(packed)
    bodies = {"json": (as_json(large), JSON), "parquet": (packed.getvalue(), PARQUET)}
    bodies["csv"] = (large.to_csv(index=False).encode(), CSV)
    seconds = {}
    for _ in range(repeats):
        for name, connection in connections.items():
            for kind, (body, content_type) in bodies.items():
                if kind == "csv" and name != "sitewise serve":
                    continue
                connection.close()
                start = time.perf_counter()
                ask(connection, body, content_type)
                seconds.setdefault(name, {}).setdefault(kind, []).append(time.perf_counter() - start)
    return seconds, bodies["json"][0]


def parts_of_a_large_request(path, body):
    """Return the processor seconds of the steps of `mlflow models serve` for the large JSON request."""
    import mlflow
    from mlflow.models.utils import _enforce_schema
    from mlflow.pyfunc import scoring_server
    from mlflow.utils.proto_json_utils import dataframe_from_parsed_json

    model = mlflow.pyfunc.load_model(str(path))
    schema, pyfunc, taken = model.metadata.get_input_schema(), model._model_impl, {}

    def step(name, call):
        start = time.process_time()
        value = call()
        taken[name] = time.process_time() - start
        return value

    parsed = step("parse the JSON, which MLflow does twice", lambda: [json.loads(body) for _ in "12"])
    split = parsed[0]["dataframe_split"]
    raw = step("make a frame", lambda: dataframe_from_parsed_json(split, "split", schema))
    checked = step("compare cells with the signature", lambda: _enforce_schema(raw, schema))
    X, Z = step("read x and z", lambda: pyfunc.frames._read(checked))
    step("predict", lambda: pyfunc.frames.model.predict_proba(X, sample_confounder=Z))
    answer = pyfunc.predict(checked)
    step("write the answer as JSON", lambda: scoring_server.predictions_to_json(answer, io.StringIO()))
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print the table of the record in --out")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text())))
        return
    record = provenance(__file__) | {"load": os.getloadavg()[0]}
    here, frame = make_site()
    with tempfile.TemporaryDirectory() as place, ExitStack() as servers:
        folder = Path(place)
        here.save(folder / "site")
        integration.save_model(here, folder / "model")
        save_no_op(folder, here)
        mlflow = shutil.which("mlflow", path=str(Path(sys.executable).parent))
        serve = [mlflow, "models", "serve", "--env-manager", "local", "--model-uri"]
        commands = {
            "no-op": [*serve, folder / "noop", "--port"],
            "mlflow models serve": [*serve, folder / "model", "--port"],
            "sitewise serve": [sys.executable, "-m", "sitewise", "serve", folder / "site", "--port"],
        }
        ports = {name: servers.enter_context(served(command)) for name, command in commands.items()}
        connections = {name: http.client.HTTPConnection("127.0.0.1", port) for name, port in ports.items()}
        one = rates(connections, as_json(frame[:1]), options.blocks, options.requests)
        many, body = large_requests(connections, frame, options.repeats)
        record["parts of 100,000 rows, s"] = parts_of_a_large_request(folder / "model", body)
    record["one row"] = {
        name: {
            "requests a second, median": statistics.median(rate),
            "ratio to no-op, median of blocks": statistics.median(np.divide(rate, one["no-op"])),
            "blocks": len(rate),
        }
        for name, rate in one.items()
    }
    record["100,000 rows"] = {
        f"{name}, {kind}": {
            "seconds, least": min(taken),
            "seconds, median": statistics.median(taken),
            "ratio of times to no-op, median": statistics.median(np.divide(taken, many["no-op"].get(kind, [np.nan]))),
        }
        for name, kinds in many.items()
        for kind, taken in kinds.items()
    }
    options.out.write_text(json.dumps(record, indent=1).replace("NaN", "null") + "\n")
    print(json.dumps(record, indent=1))
    print(f"wanted: ratios of requests of at least {RATIO}, 100,000 rows under {SECONDS} s")


def table(record):
    """Return a Markdown table of the requests per second and the seconds of a large request of every server."""
    kinds = ("json", "parquet", "csv")
    head = ["server", "requests a second", "of the no-op's", *(f"100,000 rows as {kind.upper()}, s" for kind in kinds)]
    rows = []
    for name, one in record["one row"].items():
        large = [record["100,000 rows"].get(f"{name}, {kind}") for kind in kinds]
        ratio = "" if name == "no-op" else f"{one['ratio to no-op, median of blocks']:.2f}"
        seconds = ["-" if entry is None else f"{entry['seconds, median']:.2f}" for entry in large]
        rows.append([name, f"{one['requests a second, median']:.0f}", ratio, *seconds])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def save_no_op(folder, here):
    """Save a pyfunc with the site's signature that answers one half for every row."""
    import mlflow

    from sitewise.integrations.frames import FrameModel

    (folder / "noop.py").write_text(NO_OP)
    signature = integration.signature_of(FrameModel(here))
    settings = {"signature": signature, "pip_requirements": ["mlflow-skinny"]}
    mlflow.pyfunc.save_model(str(folder / "noop"), python_model=str(folder / "noop.py"), **settings)


if __name__ == "__main__":
    main()
