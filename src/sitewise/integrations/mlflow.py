"""Save and log models and sites in MLflow, which can serve them by `mlflow models serve`.

An MLflow model made here consists of a saved folder (JSON and safetensors, see `sitewise.save`) and the name of this
module, which loads it. The artifact contains no code and no pickle.
"""

import importlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sitewise.artifacts.folders import versions
from sitewise.estimator import AdaptedClassifier
from sitewise.estimator.files.card import held_out_metrics
from sitewise.estimator.files.saving import load, save
from sitewise.integrations.frames import DECISION, FrameModel
from sitewise.version import __version__

FLAVOR = "sitewise"
FOLDER = "sitewise_model"  # folder in the artifact that holds the saved model
LONGEST = 500  # characters of a logged parameter; longer ones are cut, because MLflow may reject them
TRUSTED = "SITEWISE_TRUSTED"  # environment variable that lists the types of a classifier that a server may load

NO_LIBRARY = 'sitewise.integrations.mlflow needs MLflow ({error}): pip install "sitewise[mlflow]"'


class PyFunc:
    """The object that MLflow calls for predictions. It maps a frame to P(class) and the decision of each row."""

    def __init__(self, model: Any) -> None:
        self.frames = FrameModel(model)
        if isinstance(self.frames.last, AdaptedClassifier):
            _ = self.frames.last.estimate_in_use  # computed now, so that the first request is not slower
        self.frames.trace()

    def predict(self, model_input: Any) -> pd.DataFrame:
        """Predict rows. If they cannot be read, MLflow answers with status 400 and the error message of sitewise."""
        from mlflow.exceptions import MlflowException

        try:
            frame = model_input if isinstance(model_input, pd.DataFrame) else pd.DataFrame(model_input)
            return self.frames.predict(frame)
        except (TypeError, ValueError) as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error


def save_model(
    model: Any,
    path: str | os.PathLike[str],
    *,
    trusted: Sequence[str] = (),
    input_example: Any = None,
    pip_requirements: Sequence[str] | None = None,
    mlflow_model: Any = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Save a model or a site as an MLflow model: a folder that `mlflow models serve` and `mlflow.pyfunc` can load.

    Parameters
    ----------
    model : AdaptedClassifier, GPAClassifier, PrevalenceAdjuster or Pipeline
        A fitted model, a site (a model adapted to a site), or a pipeline that ends in one of these. After saving, it is
        loaded once to check that loading works.
    path : path
        The folder to create.
    trusted : sequence of str
        Names of types in a saved classifier that you trust, as in `sitewise.load`. A server of the model needs the same
        names, separated by commas, in the environment variable `SITEWISE_TRUSTED`, because a saved model must not
        decide which types are trusted.
    input_example : DataFrame, optional
        Rows that are saved as an example of a request. They are saved unchanged, so do not use rows of patients.
    pip_requirements : sequence of str, optional
        The packages of the environment in which MLflow serves the model; by default sitewise and its libraries, in the
        installed versions.
    mlflow_model : mlflow.models.Model, optional
        MLflow's description of the model, to which the entries of sitewise are added; by default a new one.
    metadata : dict, optional
        Metadata of the MLflow model, in addition to the columns and classes that are always saved.

    Examples
    --------
    >>> sitewise.integrations.mlflow.save_model(here, "model/")
    >>> mlflow.pyfunc.load_model("model/").predict(frame)
    """
    mlflow = _library()
    models = importlib.import_module("mlflow.models")
    record = models.Model() if mlflow_model is None else mlflow_model
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / FOLDER
        save(model, folder)
        frames = FrameModel(load(folder, trusted=trusted))
        record.add_flavor(FLAVOR, sitewise_version=__version__, data=f"data/{FOLDER}")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*An input example was not provided")  # it may be patient data
            mlflow.pyfunc.save_model(
                path=os.fspath(path),
                loader_module=__name__,
                data_path=os.fspath(folder),
                mlflow_model=record,
                signature=signature_of(frames),
                input_example=input_example,
                pip_requirements=list(pip_requirements or requirements()),
                metadata={"sitewise": frames.describe(), **(metadata or {})},
            )


def log_model(
    model: Any,
    name: str = "model",
    *,
    registered_model_name: str | None = None,
    report: bool = True,
    **settings: Any,
) -> Any:
    """Log a model or a site in the active MLflow run, with its parameters and its rehearsal.

    For a site, the outcome and the report are logged, too. Without an active run, one is started and ended.

    Parameters
    ----------
    model : AdaptedClassifier, GPAClassifier, PrevalenceAdjuster or Pipeline
        A fitted model, a site (a model adapted to a site), or a pipeline that ends in one of these. For a site, the
        logged parameters are those of its model and those of `adapt`.
    name : str
        The name of the logged model.
    registered_model_name : str, optional
        The name under which the model is registered as a new version; None: it is not registered.
    report : bool
        Whether to log the report of a site (`report.html`).
    **settings
        Arguments of `save_model`: trusted, input_example, pip_requirements, metadata.

    Returns
    -------
    mlflow.models.model.ModelInfo
        Information about the logged model. `mlflow models serve --model-uri` can serve its `model_uri`.

    Notes
    -----
    These are logged in addition to the model itself and its parameters:

    - metrics: the metrics of the model on held-out rows (`held_out_...`), and for a site `prevalence_<class>`, with
      `_low` and `_high` for the bounds of its interval;
    - tags: `sitewise.rehearsal`, and for a site `sitewise.outcome` and `sitewise.verdict`;
    - artifacts in the folder `about_<name>`: `rehearsal.json` (a table), and for a site `outcome.json`, `report.html`
      and `report.json`.

    The inputs of the site's rows are not logged, but their scores are part of the logged model. Therefore, treat
    MLflow's store as patient data.

    Examples
    --------
    >>> with mlflow.start_run():
    ...     info = sitewise.integrations.mlflow.log_model(here)
    >>> mlflow.pyfunc.load_model(info.model_uri).predict(frame)
    """
    mlflow = _library()
    frames = FrameModel(model)
    if mlflow.active_run() is None:
        with mlflow.start_run():
            return log_model(model, name, registered_model_name=registered_model_name, report=report, **settings)
    _log_facts(mlflow, frames, name, report)
    return importlib.import_module("mlflow.models").Model.log(
        artifact_path=None,
        name=name,
        flavor=sys.modules[__name__],
        flavor_name=FLAVOR,
        registered_model_name=registered_model_name,
        model=model,
        **settings,
    )


def load_model(model_uri: str, *, trusted: Sequence[str] = ()) -> Any:
    """Load a logged or saved model, site or pipeline, like `sitewise.load`.

    Parameters
    ----------
    model_uri : str
        A folder, `models:/name/version`, `runs:/run/name` or any other address that MLflow knows.
    trusted : sequence of str
        Names of types in a saved classifier that you trust, as in `sitewise.load`.

    Returns
    -------
    GPAClassifier, PrevalenceAdjuster, AdaptedClassifier or Pipeline
        The saved object.

    Examples
    --------
    >>> here = sitewise.integrations.mlflow.load_model("models:/malignant/1")
    """
    _library()
    folder = importlib.import_module("mlflow.artifacts").download_artifacts(model_uri)
    return load(Path(folder) / "data" / FOLDER, trusted=trusted)


def signature_of(frames: FrameModel) -> Any:
    """Return the MLflow signature. No input column is required, and all except images may have any type.

    With declared types, MLflow would reject an integer in a column of floats. The model checks the values itself, and
    its messages name the column, the row and a remedy.
    """
    types = importlib.import_module("mlflow.types.schema")
    models = importlib.import_module("mlflow.models")
    kinds = {"image": types.DataType.binary}
    inputs = [
        types.ColSpec(kinds.get(column.kind, types.AnyType()), column.name, required=False) for column in frames.columns
    ]
    kind_of = {int: types.DataType.long, float: types.DataType.double, bool: types.DataType.boolean}
    label = kind_of.get(type(frames.labels[0]), types.DataType.string)
    outputs = [types.ColSpec(label if name == DECISION else types.DataType.double, name) for name in frames.outputs]
    return models.ModelSignature(inputs=types.Schema(inputs), outputs=types.Schema(outputs))


def requirements() -> list[str]:
    """Return the packages that an environment of the model needs, in the versions that are installed here."""
    own = {name: version for name, version in versions().items() if name not in ("sitewise", "python")}
    return [
        f"sitewise[mlflow]=={__version__}",
        *(f"{name}=={version.partition('+')[0]}" for name, version in own.items()),
    ]


def _log_facts(mlflow: Any, frames: FrameModel, name: str, report: bool) -> None:
    """Log the parameters, metrics and rehearsal of a model and, for a site, its prevalence, outcome and report."""
    core, here, folder = frames.core, frames.last, f"about_{name}"
    mlflow.log_params({key: str(value)[:LONGEST] for key, value in core.get_params(deep=False).items()})
    mlflow.log_metrics({f"held_out_{key}": v for key, v in held_out_metrics(core).items() if v is not None})
    mlflow.set_tag("sitewise.rehearsal", core.rehearsal_.sentence)
    if len(core.rehearsal_.table):
        table = core.rehearsal_.table.rename_axis("site").reset_index()
        mlflow.log_table(table.astype({"site": str}), f"{folder}/rehearsal.json")
    if not isinstance(here, AdaptedClassifier):
        return
    mlflow.log_params(
        {
            "adapt_policy": here.policy,
            "adapt_level_scale": here.level_scale,
            "adapt_missing": here.missing,
            "adapt_rows": len(here.rows),
        }
    )
    (low, high), keys = here.prevalence_interval(), [f"prevalence_{_metric_name(label)}" for label in frames.labels]
    for suffix, values in (("", here.prevalence()), ("_low", low), ("_high", high)):
        mlflow.log_metrics({f"{key}{suffix}": float(value) for key, value in zip(keys, values, strict=True)})
    verdict = here.diagnose().verdict
    mlflow.set_tags({"sitewise.outcome": str(here.outcome), "sitewise.verdict": verdict})
    mlflow.log_dict({**here.outcome.to_dict(), "verdict": verdict}, f"{folder}/outcome.json")
    if report:
        with tempfile.TemporaryDirectory() as place:
            here.report(Path(place) / "report.html")
            mlflow.log_artifacts(place, folder)


def _metric_name(label: Any) -> str:
    """Return a label as part of a metric's name, with only the characters that MLflow allows."""
    return re.sub(r"[^\w\-. /:]", "_", str(label))


def load_folder(path: str | os.PathLike[str]) -> PyFunc:
    """Load a saved folder for a server. No code in it is run; the variable `TRUSTED` names the trusted types."""
    trusted = [name.strip() for name in os.environ.get(TRUSTED, "").split(",") if name.strip()]
    return PyFunc(load(path, trusted=trusted))


_load_pyfunc = load_folder  # MLflow calls the loader by this name


def _library() -> Any:
    try:
        importlib.import_module("mlflow.pyfunc")
        return importlib.import_module("mlflow")
    except ImportError as error:
        raise ImportError(NO_LIBRARY.format(error=error)) from error
