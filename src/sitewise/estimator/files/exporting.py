"""Export the predictions at a site as an ONNX file, which is compared with the model before it is kept."""

import importlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sitewise.arrays import Problems, did_you_mean
from sitewise.backbones.build import Standardize
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.estimator.adapted import AdaptedClassifier
from sitewise.estimator.adjuster import PrevalenceAdjuster
from sitewise.estimator.files.graph import AdaptedGraph, encode
from sitewise.estimator.source.reading import Array
from sitewise.tables.writing import whole_file
from sitewise.version import __version__

DTYPES = {"float32": torch.float32, "float64": torch.float64, "uint8": torch.uint8}
OPSET = 17
TRACED_ROWS, CHECKED_ROWS = 3, 32  # numbers of rows; the check uses another number than the trace
TOLERANCE = 1e-5  # largest difference of a probability
LOG_TOLERANCE = 1e-3  # largest relative difference of a log-probability; single precision is inexact for unusual x

NO_LIBRARY = 'export_onnx needs onnx and onnxruntime ({error}): pip install "sitewise[onnx]"'
NOT_TRACED = "export_onnx: torch could not turn the network into a graph ({error})"
WRONG_GRAPH = (
    "export_onnx: the graph differs from the model on random rows, by {difference:.1e} in some probability; "
    "nothing was written. A network of your own must not depend on the number of rows; "
    "for large numbers that lie close together use dtype='float64'"
)


def export_onnx(here: AdaptedClassifier, path: str | os.PathLike[str], dtype: str = "auto") -> dict[str, Any]:
    """Write the graph of a site's `predict_proba`, completely or not at all.

    Return its description (see `describe`), and the largest difference between the probabilities of model and graph.
    The comparison runs the graph in onnxruntime on another number of rows than was traced; some rows lack parts of z.
    """
    onnx, runtime = _libraries()
    kind = _read_dtype(here, dtype)
    graph, content = AdaptedGraph(here, kind), describe(here, kind)
    with whole_file(Path(path)) as part:
        _trace(graph, _trial_inputs(here, kind, TRACED_ROWS), part)
        model = onnx.load(part)
        model.producer_name, model.producer_version = "sitewise", __version__
        model.doc_string = "P(class) of rows at one site; the key 'sitewise' of the metadata says what goes in and out"
        onnx.helper.set_model_props(model, {"sitewise": json.dumps(content)})
        onnx.checker.check_model(model)
        onnx.save(model, part)
        ours, theirs = _try_out(here, runtime, part, _trial_inputs(here, kind, CHECKED_ROWS))
        difference = float(np.abs(ours - theirs).max())
        if not (difference <= TOLERANCE and same_probabilities(ours, theirs)):
            raise ValueError(WRONG_GRAPH.format(difference=difference))
    return content | {"difference": difference}


def describe(here: AdaptedClassifier, dtype: torch.dtype) -> dict[str, Any]:
    """Return a description of the graph for its users: the site, inputs, classes, threshold and outcome."""
    schema, model = here.model.confounders_, here.model
    names = getattr(model, "feature_names_in_", None)
    shape = getattr(model, "input_shape_", None) or (model.n_features_in_,)
    reader = getattr(model, "table_reader_", None)
    kinds = () if reader is None else reader.features or ()
    return {
        "version": __version__,
        "site": here.site_name,
        "x": {
            "meaning": "probabilities" if isinstance(model, PrevalenceAdjuster) else "inputs",
            "type": str(dtype).removeprefix("torch."),
            "shape": ["rows", *shape],
            "columns": None if names is None else [str(name) for name in names],
            "from": [{"kind": type(kind).__name__, **vars(kind)} for kind in kinds],
        },
        "z": [
            {"name": v.name, "levels": list(v.levels)}
            if isinstance(v, Categorical)
            else {"name": v.name, "range": [v.low, v.high]}
            for v in (() if schema is None else schema.variables)
        ],
        "classes": here.classes_.tolist(),
        "threshold": here.threshold_,
        "outcome": str(here.outcome),
    }


def _libraries() -> tuple[Any, Any]:
    try:
        onnx = importlib.import_module("onnx")
        importlib.import_module("onnx.helper")
        return onnx, importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ImportError(NO_LIBRARY.format(error=error)) from error


def _read_dtype(here: AdaptedClassifier, dtype: str) -> torch.dtype:
    """Check `dtype` and return the type of x; "auto" is bytes for images and single precision for tables."""
    images = bool(getattr(here.model, "input_shape_", None))
    if dtype == "auto":
        return torch.uint8 if images else torch.float32
    problems = Problems("export_onnx")
    if dtype not in DTYPES:
        problems.add(f"dtype must be auto, {', '.join(DTYPES)}, got {dtype!r}{did_you_mean(dtype, ['auto', *DTYPES])}")
    elif dtype == "uint8" and not images:
        problems.add("dtype='uint8' is for images, and this model reads tables: leave it out")
    elif dtype == "float64" and images:
        problems.add("images are scored in single precision: use dtype='float32' for floats, 'uint8' for bytes")
    problems.raise_if_any()
    return DTYPES[dtype]


def _trace(graph: AdaptedGraph, inputs: tuple[Tensor, ...], path: Path) -> None:
    names = ["x", "z"][: len(inputs)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about constants in the trace, whose effect the check would find
        try:
            torch.onnx.export(
                graph.eval(),
                inputs,
                path,
                input_names=names,
                output_names=["probability"],
                dynamic_axes={name: {0: "rows"} for name in (*names, "probability")},
                opset_version=OPSET,
                dynamo=False,
            )
        except OSError:
            raise
        except Exception as error:  # a user's network may raise anything
            raise ValueError(NOT_TRACED.format(error=str(error).strip().partition("\n")[0])) from error


def _trial_inputs(here: AdaptedClassifier, dtype: torch.dtype, n_rows: int) -> tuple[Tensor, ...]:
    """Return random x with z of the site's rows; in some rows, parts of z are hidden."""
    model, schema = here.model, here.model.confounders_
    generator = torch.Generator().manual_seed(0)
    shape = getattr(model, "input_shape_", None) or (model.n_features_in_,)
    x = torch.randn(n_rows, *shape, generator=generator, dtype=torch.float64)
    if isinstance(model, PrevalenceAdjuster):
        x = torch.softmax(3 * x, dim=1)
    elif dtype == torch.uint8:
        x = torch.randint(256, x.shape, generator=generator)
    else:
        for layer in model.scorer_.module.modules():
            if isinstance(layer, Standardize):
                x = layer.mean.double() + layer.scale.double() * x.flatten(1)
                x = x.reshape(n_rows, *shape)
    if schema is None:
        return (x.to(dtype),)
    known = here.rows.codes if here.joint is None else model.joint_.bank.codes  # a site's own z may all be missing
    codes = known[torch.arange(n_rows) % len(known)].clone()
    hidden = torch.rand(codes.shape, generator=generator) < 0.5
    hidden[: n_rows // 3] = False
    codes = schema.knock_out(codes, hidden)
    return x.to(dtype), torch.tensor(as_numbers(schema, codes))


def as_numbers(schema: Confounders, codes: Tensor) -> Any:
    """Return z (n, V) in the form that the graph reads, from codes."""
    values = schema.decode(codes)
    for variable, column in zip(schema.variables, codes.numpy().T, strict=True):
        if isinstance(variable, Categorical):
            values[variable.name] = np.where(column == variable.missing_code, np.nan, column)
    return values.to_numpy(dtype=np.float64)


def _try_out(here: AdaptedClassifier, runtime: Any, path: Path, inputs: tuple[Tensor, ...]) -> tuple[Array, Array]:
    """Return the probabilities of the model and of the graph for the same rows."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    feed = dict(zip(("x", "z"), (part.numpy() for part in inputs), strict=False))
    try:
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        (probability,) = session.run(None, feed)
    except Exception as error:  # the runtime has exceptions of its own
        raise ValueError(NOT_TRACED.format(error=str(error).strip().partition("\n")[0])) from error
    Z = None
    if len(inputs) == 2:
        schema = here.model.confounders_
        assert schema is not None
        Z = schema.decode(encode(schema, inputs[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random rows have no column names
        return here.predict_proba(inputs[0].numpy(), Z), probability


def same_probabilities(ours: Array, theirs: Array) -> bool:
    """Return whether log-probabilities agree. Probabilities alone show no difference for a very rare class."""
    first, second = (np.log(np.maximum(values, 1e-300)) for values in (ours, theirs))
    return bool((np.abs(first - second) <= LOG_TOLERANCE * (1 + np.abs(first))).all())
