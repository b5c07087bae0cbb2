"""Convert values to JSON and tensors, and back. Numbers stay exact, shared objects stay shared.

Classes must be registered (`Record`). A value that JSON cannot hold becomes an object with a key "$" that names its
type. A tensor is named by its path in the JSON tree, for example "fitted/_calibrations/0". An object that occurs again
refers to the path of its first occurrence.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sitewise.arrays import Problems, brief
from sitewise.artifacts.hints import odd_fields

MARK = "$"
ODD = (LookupError, TypeError, AttributeError, RuntimeError, ValueError, ArithmeticError)  # raised by invalid entries
ARRAYS, MOST_BYTES = "biufUO", 2**26  # dtype kinds of arrays that JSON may hold, and the largest memory of an array
FEW = 64  # larger arrays of numbers are saved with the tensors

NOT_KEPT = (
    "save: {place} holds a {kind}, which a saved model cannot hold: use text, numbers, arrays, or a class that is "
    "registered for saving"
)
ODD_ENTRY = (
    "{place} is not what this version of sitewise expects ({error}): the folder was made by another program or is "
    "damaged"
)


class OddEntryError(ValueError):
    """An entry of a file is invalid."""


@dataclass(frozen=True)
class Record:
    """How objects of a class are saved with a model and loaded again. A class without a record cannot be saved.

    Records are the values of a dict; the keys are the names of the classes in saved files.

    Parameters
    ----------
    kind : type or callable
        The class. It can also be a function; of a function only the name is saved.
    take_apart : callable, optional
        Converts an object to the dict that is saved. None: the class is a dataclass, and its fields are saved.
    put_together : callable, optional
        Converts the saved dict back to an object. None: the class is a dataclass, and is called with the saved fields.
    methods : tuple of str
        The names of methods that may be saved together with their object (bound methods, such as `g.log_prob`).
    dropped : tuple of str
        Names of fields that earlier versions of the class had. They are ignored when a file is read.

    Examples
    --------
    >>> records = {"StepPrevalence": Record(StepPrevalence)}
    """

    kind: type | Callable[..., Any]
    take_apart: Callable[[Any], dict[str, Any]] | None = None
    put_together: Callable[[dict[str, Any]], Any] | None = None
    methods: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


Records = Mapping[str, Record]


def pack(values: Mapping[str, Any], records: Records) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Convert values to a JSON tree and a dict of tensors by name."""
    packer = _Packer({record.kind: name for name, record in records.items()}, records)
    tree = {key: packer.pack(value, _escape(key)) for key, value in values.items()}
    return tree, packer.tensors


def unpack(tree: Mapping[str, Any], tensors: Mapping[str, Tensor], records: Records) -> dict[str, Any]:
    """Convert a JSON tree and tensors back to values; raise ValueError if tensors or entries are invalid."""
    unpacker = _Unpacker(records, tensors)
    values = {key: unpacker.unpack(value, _escape(key)) for key, value in tree.items()}
    for name in sorted(set(tensors) - unpacker.used):
        unpacker.problems.add(f"tensor {name!r} belongs to nothing in the file")
    unpacker.problems.raise_if_any()
    return values


class _Packer:
    def __init__(self, names: Mapping[Any, str], records: Records) -> None:
        self.names, self.records = names, records
        self.tensors: dict[str, Tensor] = {}
        self.seen: dict[int, tuple[str, Any]] = {}  # holds the value too, so that its id is not used again

    def pack(self, value: Any, place: str) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {MARK: "float", "value": repr(float(value))}
        if isinstance(value, str):
            return str(value)
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, list):
            return self._items(value, place)
        if isinstance(value, tuple) and type(value) is tuple:
            return {MARK: "tuple", "items": self._items(value, place)}
        if isinstance(value, set | frozenset):
            return {MARK: "set", "items": self._items(sorted(value), place)}
        if isinstance(value, Mapping):
            return self._mapping(value, place)
        if id(value) in self.seen:
            return {MARK: "same", "as": self.seen[id(value)][0]}
        packed = self._object(value, place)
        self.seen[id(value)] = place, value
        return packed

    def _items(self, values: Any, place: str) -> list[Any]:
        return [self.pack(value, f"{place}/{number}") for number, value in enumerate(values)]

    def _mapping(self, value: Mapping[Any, Any], place: str) -> dict[str, Any]:
        if all(type(key) is str and key != MARK for key in value):
            return {key: self.pack(part, f"{place}/{_escape(key)}") for key, part in value.items()}
        return {MARK: "pairs", "items": self._items([list(pair) for pair in value.items()], place)}

    def _object(self, value: Any, place: str) -> dict[str, Any]:
        if isinstance(value, Tensor):
            return self._tensor(value.detach().cpu(), place)
        if isinstance(value, np.ndarray):
            return self._array(value, place)
        if isinstance(value, MethodType):
            name, owner = value.__name__, value.__self__
            if name not in self._record(owner, place).methods:
                raise TypeError(NOT_KEPT.format(place=place, kind=f"method {name}"))
            return {MARK: "method", "name": name, "of": self.pack(owner, f"{place}/of")}
        if isinstance(value, FunctionType) and value in self.names:
            return {MARK: "function", "name": self.names[value]}
        record = self._record(value, place)
        parts = _fields(value) if record.take_apart is None else record.take_apart(value)
        packed = {key: self.pack(part, f"{place}/{_escape(key)}") for key, part in parts.items()}
        return {MARK: "record", "of": self.names[type(value)], "fields": packed}

    def _record(self, value: Any, place: str) -> Record:
        if type(value) not in self.names:
            raise TypeError(NOT_KEPT.format(place=place, kind=type(value).__name__))
        return self.records[self.names[type(value)]]

    def _tensor(self, value: Tensor, place: str) -> dict[str, Any]:
        """Save a tensor with its strides, because the rounding of products with it depends on them."""
        entry = {MARK: "tensor", "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        own = value.clone(memory_format=torch.contiguous_format)
        if value.stride() != own.stride() and (moved := value.permute(_order(value.stride()))).is_contiguous():
            own = moved.clone(memory_format=torch.contiguous_format)
            entry["stride"] = list(value.stride())
        self.tensors[place] = own
        return entry

    def _array(self, value: np.ndarray[Any, Any], place: str) -> dict[str, Any]:
        if value.dtype.kind in "biuf" and value.size > FEW:
            return {MARK: "numpy", "tensor": self.pack(torch.from_numpy(value.copy()), f"{place}/tensor")}
        if value.dtype.kind not in ARRAYS:
            raise TypeError(NOT_KEPT.format(place=place, kind=f"array of {value.dtype}"))
        items = self._items(value.reshape(-1).tolist(), place)
        return {MARK: "array", "dtype": value.dtype.str, "shape": list(value.shape), "items": items}


class _Unpacker:
    def __init__(self, records: Records, tensors: Mapping[str, Tensor]) -> None:
        self.records, self.tensors = records, tensors
        self.methods = {record.kind: record.methods for record in records.values()}
        self.used: set[str] = set()
        self.seen: dict[str, Any] = {}
        self.problems = Problems("load")

    def unpack(self, tree: Any, place: str) -> Any:
        if isinstance(tree, list):
            return self._items(tree, place)
        if not isinstance(tree, dict):
            return tree
        if MARK not in tree:
            return {key: self.unpack(part, f"{place}/{_escape(key)}") for key, part in tree.items()}
        try:
            value = self._marked(tree, place)
        except OddEntryError:
            raise
        except ODD as error:
            self.problems.raise_if_any()  # a tensor that does not fit is the cause
            raise odd_entry(place, error) from error
        self.seen[place] = value
        return value

    def _items(self, items: list[Any], place: str) -> list[Any]:
        return [self.unpack(part, f"{place}/{number}") for number, part in enumerate(items)]

    def _marked(self, tree: dict[str, Any], place: str) -> Any:
        kind = tree[MARK]
        if kind == "tensor":
            return self._tensor(tree, place)
        if kind == "float":
            return float(tree["value"])
        if kind == "same":
            return self.seen[tree["as"]]
        if kind == "array":
            return self._array(tree, place)
        if kind == "numpy":
            return self.unpack(tree["tensor"], f"{place}/tensor").numpy()
        if kind in ("tuple", "set"):
            return (tuple if kind == "tuple" else set)(self._items(tree["items"], place))
        if kind == "pairs":
            return {key: value for key, value in self._items(tree["items"], place)}
        if kind == "method":
            owner = self.unpack(tree["of"], f"{place}/of")
            allowed = self.methods[type(owner)]
            return getattr(owner, allowed[allowed.index(tree["name"])])
        if kind == "function":
            return self.records[tree["name"]].kind
        if kind == "record":
            return self._record(tree, place)
        raise KeyError(kind)

    def _array(self, tree: dict[str, Any], place: str) -> Any:
        dtype, items = np.dtype(tree["dtype"]), tree["items"]
        if dtype.kind not in ARRAYS or dtype.itemsize * len(items) > MOST_BYTES:
            raise TypeError(f"an array of {dtype} with {len(items)} entries")
        return np.array(self._items(items, place), dtype=dtype).reshape(tree["shape"])

    def _record(self, tree: dict[str, Any], place: str) -> Any:
        if tree["of"] not in self.records:
            raise LookupError(f"no class {tree['of']!r} is registered; if it is your own, import its module first")
        record = self.records[tree["of"]]
        parts = {key: self.unpack(part, f"{place}/{_escape(key)}") for key, part in tree["fields"].items()}
        parts = {key: part for key, part in parts.items() if key not in record.dropped}
        value = (record.put_together or _from_fields(record.kind))(parts)
        for name in odd_fields(value):
            raise odd_entry(f"{place}/{name}", TypeError(f"got {type(getattr(value, name)).__name__}"))
        return value

    def _tensor(self, tree: dict[str, Any], place: str) -> Tensor:
        self.used.add(place)
        shape, dtype, stride = tuple(tree["shape"]), getattr(torch, tree["dtype"]), tree.get("stride")
        saved = self.tensors.get(place)
        stored = shape if stride is None else tuple(shape[axis] for axis in _order(stride))
        if saved is None or tuple(saved.shape) != stored or saved.dtype != dtype:
            came = "is not there" if saved is None else f"has shape {tuple(saved.shape)} of {saved.dtype}"
            self.problems.add(f"tensor {place!r} {came}, expected {stored} of {dtype}")
            return torch.empty(shape, dtype=dtype, device="meta")  # takes no memory, whatever the shape
        own = saved.clone()  # in its own memory, aligned like torch's results
        return own if stride is None else own.as_strided(shape, stride)


def odd_entry(place: str, error: BaseException) -> OddEntryError:
    """Return the error that names an invalid entry of a file and its cause."""
    reason = brief(f"{type(error).__name__}: {error}")
    return OddEntryError("load: " + ODD_ENTRY.format(place=brief(place), error=reason))


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value) if field.init}


@cache
def _from_fields(kind: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a function from a dict of fields to an instance of a dataclass; fields with a default may be absent."""
    known = {field.name: field for field in fields(kind) if field.init}
    needed = {name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING}

    def put_together(parts: dict[str, Any]) -> Any:
        unknown, absent = sorted(set(parts) - set(known)), sorted(needed - set(parts))
        if unknown or absent:
            raise TypeError(f"{kind.__name__} with unknown fields {unknown} and without {absent}")
        return kind(**parts)

    return put_together


def _order(stride: Sequence[int]) -> list[int]:
    """Return the axes in their order in memory, the axis with the largest stride first."""
    return sorted(range(len(stride)), key=stride.__getitem__, reverse=True)


def _escape(key: str) -> str:
    """Escape a key for a path separated by "/", as in JSON pointers."""
    return key.replace("~", "~0").replace("/", "~1")
