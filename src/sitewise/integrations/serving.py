"""Serve a saved model or site by MLflow's scoring server, for `sitewise serve`."""

import asyncio
import importlib
import json
import os
from collections.abc import Sequence
from typing import Any

from sitewise.integrations.mlflow import NO_LIBRARY, TRUSTED, PyFunc, load_folder, signature_of

TOO_DEEP = "the body must be a table of rows: its JSON is nested too deep to be read"
NO_ADDRESS = "cannot listen at {host}:{port} ({reason}): choose another --port, or a --host of this machine"
SERVED = "SITEWISE_SERVED"  # environment variable with the folder that a worker serves


def scoring_app(pyfunc: PyFunc) -> Any:
    """Return MLflow's scoring server, an ASGI application, for a model: `/invocations`, `/ping`, `/version`.

    MLflow gets no schema of the inputs. JSON, CSV and Parquet therefore reach the model's own reader unchanged, and its
    messages describe values that cannot be read.
    """
    models, server = _libraries("mlflow.models", "mlflow.pyfunc.scoring_server")
    outputs = signature_of(pyfunc.frames).outputs
    record = models.Model(signature=models.ModelSignature(outputs=outputs))
    application = server.init(server.PyFuncModel(record, pyfunc))
    application.add_exception_handler(RecursionError, _too_deep)
    application.add_middleware(WithoutTraces)
    return application


class WithoutTraces:
    """ASGI middleware that removes MLflow's stack trace, which contains paths of this machine, from error responses."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request; the body of an error response is collected, so that its stack trace can be removed."""
        start: dict[str, Any] = {}
        body = bytearray()

        async def send_clean(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start.update(message)
            elif start and message["type"] == "http.response.body":
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    clean = _without_trace(bytes(body))
                    kept = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
                    await send({**start, "headers": [*kept, (b"content-length", str(len(clean)).encode())]})
                    await send({"type": "http.response.body", "body": clean})
            else:
                await send(message)

        await self.app(scope, receive, send_clean)


def _without_trace(body: bytes) -> bytes:
    """Return the JSON of an error without its stack trace; return any other body unchanged."""
    try:
        error = json.loads(body)
    except ValueError:
        return body
    if not isinstance(error, dict) or "stack_trace" not in error:
        return body
    return json.dumps({key: value for key, value in error.items() if key != "stack_trace"}).encode()


async def _too_deep(request: Any, error: Exception) -> Any:
    (responses,) = _libraries("fastapi.responses")
    return responses.JSONResponse({"error_code": "BAD_REQUEST", "message": TOO_DEEP}, status_code=400)


def app() -> Any:
    """Return the application of one worker, for the folder that the environment variable `SERVED` names."""
    return scoring_app(load_folder(os.environ[SERVED]))


def check_address(host: str, port: int) -> None:
    """Raise OSError if a server cannot listen at an address, for example because another program does.

    Parameters
    ----------
    host : str
        The address to listen at.
    port : int
        The port to listen at.
    """
    try:
        asyncio.run(_bind(host, port))
    except OSError as error:
        reason = (error.strerror or str(error)).rpartition(": ")[2]
        raise OSError(NO_ADDRESS.format(host=host, port=port, reason=reason)) from error


async def _bind(host: str, port: int) -> None:
    """Bind an address as uvicorn does, and free it again."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
    server.close()


def prepare(folder: str | os.PathLike[str], trusted: Sequence[str] = ()) -> PyFunc:
    """Load a saved folder, and set environment variables by which further workers load the same folder.

    Parameters
    ----------
    folder : path
        A folder that `sitewise.save` wrote.
    trusted : sequence of str
        Types of the classifier in the folder that are trusted, as in `sitewise.load`.

    Returns
    -------
    PyFunc
        The loaded model.
    """
    _libraries("mlflow.pyfunc.scoring_server")
    if trusted:
        os.environ[TRUSTED] = ",".join(trusted)
    os.environ[SERVED] = os.fspath(folder)
    return load_folder(folder)


def serve(pyfunc: PyFunc, host: str, port: int, workers: int = 1) -> None:
    """Serve a model that `prepare` loaded, until the process is stopped.

    Parameters
    ----------
    pyfunc : PyFunc
        The model. With several workers, each worker loads the folder again.
    host : str
        The address to listen at.
    port : int
        The port to listen at.
    workers : int
        The number of processes; each has a copy of the model.
    """
    (uvicorn,) = _libraries("uvicorn")
    settings = {"host": host, "port": port, "log_level": "warning"}
    if workers == 1:
        uvicorn.run(scoring_app(pyfunc), **settings)
    else:
        uvicorn.run(f"{__name__}:app", factory=True, workers=workers, **settings)


def _libraries(*names: str) -> list[Any]:
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise ImportError(NO_LIBRARY.format(error=error)) from error
