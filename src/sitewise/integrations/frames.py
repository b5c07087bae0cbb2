"""Models and sites whose input is one frame, with a column for every input and confounder."""

import copy
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.pipeline import Pipeline

from sitewise.arrays import Problems
from sitewise.confounders.variables import Categorical
from sitewise.estimator import AdaptedClassifier, PrevalenceAdjuster
from sitewise.estimator.model import SiteModel
from sitewise.integrations.tracing import TracedSite, trace_site
from sitewise.performance.metrics import decide
from sitewise.tables import TableReader
from sitewise.tables.features import NumberFeature
from sitewise.tables.few import FEW, read_few
from sitewise.tables.values import Place, as_rows, find_columns, numbers

Array = np.ndarray[Any, Any]
DECISION = "decision"
INPUT, CONFOUNDER = "input", "confounder"
ANYWHERE = Place()

NO_MODEL = "expected a fitted model or a site, or a Pipeline that ends in one, got {kind}"
NO_BYTES = (
    "{where}: expected the bytes of an image file (base64 in JSON), got {kind} in row {row}: a service reads no files "
    "by their names"
)
NO_SHAPE = "{where}: expected lists of shape {shape} in every row ({error})"
NO_ROWS = "the table has no rows: give at least one"


@dataclass(frozen=True)
class Column:
    """A column of the frame: its role, the kind of its cells, and whether it is required (`needed`)."""

    name: str
    role: str  # input or confounder
    kind: str  # number, category, probability, image (a file's bytes), array (nested lists) or any
    needed: bool


class FrameModel:
    """A model whose input is a frame. It returns probabilities and a decision for each row.

    Parameters
    ----------
    model : AdaptedClassifier, GPAClassifier, PrevalenceAdjuster or Pipeline
        A fitted model. Without an adapted site, predictions are those of the model as trained.

    Attributes
    ----------
    columns : tuple of Column
        The columns that the frame should have. If the model has a `TableReader`, they are those of the training table.
        Otherwise, they are the inputs by name (`x0`, `x1`, ... if they had no names) and the confounders.
    outputs : tuple of str
        The columns of predictions: `p_` and the label of each class, then `decision`.
    """

    def __init__(self, model: Any) -> None:
        last = model
        while isinstance(last, Pipeline):
            last = last.steps[-1][1]
        if not isinstance(last, AdaptedClassifier | SiteModel):
            raise TypeError(NO_MODEL.format(kind=type(last).__name__))
        self.in_pipeline = last is not model
        self.last, self.core = last, last.model if isinstance(last, AdaptedClassifier) else last
        self.model = model
        if isinstance(model, AdaptedClassifier) and model.confounder_columns is not None:
            self.model = copy.copy(model)  # here, z is passed separately from X
            self.model.confounder_columns = None
        self.reader = None if self.in_pipeline else getattr(self.core, "table_reader_", None)
        self.labels = self.core.classes_.tolist()
        self.outputs = (*(f"p_{label}" for label in self.labels), DECISION)
        self.columns = self._columns()
        self._names = pd.Index(self.outputs)
        self.traced: TracedSite | None = None

    def trace(self) -> "FrameModel":
        """Use a traced graph to predict few rows if the model is a site that `trace_site` can trace; return self."""
        self.traced = trace_site(self.model) if isinstance(self.model, AdaptedClassifier) else None
        return self

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the input columns."""
        return tuple(column.name for column in self.columns if column.role == INPUT)

    @cached_property
    def confounders(self) -> tuple[str, ...]:
        """The names of the columns of z."""
        return tuple(column.name for column in self.columns if column.role == CONFOUNDER)

    def describe(self) -> dict[str, Any]:
        """Describe the columns and the classes in plain values, for the metadata of a saved model."""
        return {"columns": [asdict(column) for column in self.columns], "classes": self.labels}

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return P(class) and the decision for every row, in the columns `p_...` and `decision`."""
        probability = self.predict_proba(frame)
        decision = self.core.classes_[decide(probability, getattr(self.last, "threshold_", None))]
        predictions = pd.DataFrame(dict(enumerate((*probability.T, decision))), index=frame.index)
        predictions.columns = self._names  # built once, because for one row building it takes longest
        return predictions

    def predict_proba(self, frame: pd.DataFrame) -> Array:
        """Return P(class) of every row, (n, K)."""
        X, Z = self._read(frame)
        if self.traced is not None and len(frame) <= FEW:
            inputs = self.core.inputs_of(X)
            return self.traced(inputs, self.core.codes_of(Z, len(inputs)))
        with torch.no_grad():
            return np.asarray(self.model.predict_proba(X, **({} if Z is None else {"sample_confounder": Z})))

    def _read(self, frame: pd.DataFrame) -> tuple[Any, Any]:
        """Return X and z of the rows in the form that the model reads; raise ValueError if they cannot be read."""
        few = read_few(self.reader, frame) if self.reader is not None and self._reads_few else None
        if few is not None:
            return few
        problems = Problems("table")
        if not len(frame):
            problems.add(NO_ROWS)
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
        find_columns(frame.columns.tolist(), [(c.role, c.name) for c in self.columns if c.needed], ANYWHERE, problems)
        problems.raise_if_any()
        if self.reader is not None:
            if self.reader.roles.image is not None:
                _refuse_paths(frame[self.reader.roles.image])
            rows = self.reader.read(frame, labels="none")
            return rows.X, rows.Z
        known = [name for name in self.confounders if name in frame]
        return self._inputs(frame), frame[known] if known else None

    @cached_property
    def _reads_few(self) -> bool:
        """Whether reader and model have the same confounders in the same order, so that z can be an array."""
        schema = self.core.confounders_
        own = () if schema is None else schema.names
        return self.reader is None or tuple(self.reader.roles.confounders) == tuple(own)

    def _inputs(self, frame: pd.DataFrame) -> Any:
        shape = getattr(self.core, "input_shape_", None)
        if shape and not self.in_pipeline:
            return _stacked(frame[self.inputs[0]], shape)
        X = frame[list(self.inputs)]
        if self.in_pipeline:
            return X.infer_objects()
        if getattr(self.core, "feature_names_in_", None) is not None:
            return X
        problems, rows = Problems("table"), as_rows(X)
        values = [numbers(rows, name, ANYWHERE, problems) for name in self.inputs]
        problems.raise_if_any()
        return np.stack(values, axis=1)

    def _columns(self) -> tuple[Column, ...]:
        if self.reader is not None:
            return _columns_of_reader(self.reader)
        own = getattr(self.last, "confounder_columns", None) if self.in_pipeline else None
        schema = None if own is not None else self.core.confounders_
        z = [] if schema is None else schema.variables
        known = [Column(v.name, CONFOUNDER, "category" if isinstance(v, Categorical) else "number", False) for v in z]
        shape = getattr(self.core, "input_shape_", None)
        if shape and not self.in_pipeline:
            return Column("x", INPUT, "array", True), *known
        model = self.model if self.in_pipeline else self.core
        if isinstance(model, PrevalenceAdjuster) and model.estimator_ is None:
            kind, names = "probability", model.probability_columns
        else:
            kind, names = "any" if self.in_pipeline else "number", input_names(model)
        return *(Column(str(name), INPUT, kind, True) for name in names), *known


def input_names(model: Any) -> list[str]:
    """Return the names of the columns of X in `fit`; x0, x1, ... if they had no names."""
    names = getattr(model, "feature_names_in_", None)
    return [f"x{place}" for place in range(model.n_features_in_)] if names is None else [str(name) for name in names]


def _columns_of_reader(reader: TableReader) -> tuple[Column, ...]:
    roles = reader.roles
    if reader.image is not None:
        inputs = [Column(str(roles.image), INPUT, "image", True)]
    elif roles.proba:
        inputs = [Column(name, INPUT, "probability", True) for name in roles.proba]
    else:
        kinds = {True: "number", False: "category"}
        inputs = [Column(f.name, INPUT, kinds[isinstance(f, NumberFeature)], True) for f in reader.features]
    own = {column.name for column in inputs}
    z = [name for name in roles.confounders if name not in own]
    numeric = reader.numeric_confounders
    return *inputs, *(Column(n, CONFOUNDER, "number" if n in numeric else "category", False) for n in z)


def _refuse_paths(cells: pd.Series) -> None:
    """Raise ValueError if a cell is not the bytes of a file: a request must not choose files to read."""
    for row, cell in enumerate(cells):
        if not isinstance(cell, bytes):
            where = ANYWHERE.column(str(cells.name))
            raise ValueError(NO_BYTES.format(where=where, kind=type(cell).__name__, row=row))


def _stacked(cells: pd.Series, shape: tuple[int, ...]) -> Array:
    """Convert nested lists to an array (n, *shape); integers from 0 to 255 become uint8."""
    try:
        images = np.stack([np.asarray(cell) for cell in cells])
        if images.shape[1:] != shape:
            raise ValueError(f"got {images.shape[1:]}")
        return (
            images.astype(np.uint8)
            if images.dtype.kind in "iu" and 0 <= images.min() <= images.max() <= 255
            else images
        )
    except ValueError as error:
        raise ValueError(NO_SHAPE.format(where=ANYWHERE.column(str(cells.name)), shape=shape, error=error)) from error
