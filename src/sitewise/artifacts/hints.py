"""Whether a value is what an annotation says: what was read from a file is checked against the class it is for."""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """The annotations of a class and its parents."""
    return get_type_hints(kind)


@cache
def _init_fields(kind: type) -> tuple[tuple[str, Any], ...]:
    hints = hints_of(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind) if field.init)


def odd_fields(value: Any) -> list[str]:
    """The fields of a dataclass' object that hold something else than they are annotated with."""
    kind: type = type(value)
    if not is_dataclass(kind):
        return []
    return [name for name, hint in _init_fields(kind) if not fits(getattr(value, name), hint)]


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type: containers with all they hold, protocols by their members' names."""
    if hint is Any or hint is type(value):
        return True
    if hint is None or hint is type(None):
        return value is None
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is Literal:
        return any(value is one or (type(value) is type(one) and value == one) for one in arguments)
    if origin is not None:
        return _fits_container(value, origin, arguments)
    if hint is float:
        return type(value) in (int, float)
    if hint in (int, bool):
        return type(value) is hint
    if getattr(hint, "_is_protocol", False):
        members = [*vars(hint), *getattr(hint, "__annotations__", {})]
        return all(hasattr(value, name) for name in members if not name.startswith("_"))
    return isinstance(value, hint)


def _fits_container(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if origin is Callable:
        return callable(value)
    if not isinstance(value, origin):
        return False
    if issubclass(origin, Mapping):
        return all(fits(key, arguments[0]) and fits(entry, arguments[1]) for key, entry in value.items())
    if origin is tuple and arguments[-1] is not Ellipsis:
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if issubclass(origin, Sequence | set | frozenset):
        return all(fits(entry, arguments[0]) for entry in value)
    return True  # an array's or a stream's own business
