"""Check values that were read from a file against the type annotations of their class."""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Check = Callable[[Any], bool]


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return the annotations of a class and its parents."""
    return get_type_hints(kind)


@cache
def _field_checks(kind: type) -> tuple[tuple[str, Check], ...]:
    hints = hints_of(kind)
    return tuple((field.name, _check_of(hints[field.name])) for field in fields(kind) if field.init)


def odd_fields(value: Any) -> list[str]:
    """Return the names of the fields of a dataclass instance whose values do not match their annotations."""
    kind: type = type(value)
    if not is_dataclass(kind):
        return []
    return [name for name, check in _field_checks(kind) if not check(getattr(value, name))]


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value matches an annotation.

    All entries of a list, tuple, set or mapping are checked. For a protocol, only the names of its members are checked.
    """
    return _check_of(hint)(value)


@cache
def _check_of(hint: Any) -> Check:
    """Convert an annotation to a function that checks a value; the function is cached."""
    if hint is Any:
        return lambda value: True
    if hint is None or hint is type(None):
        return lambda value: value is None
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        checks = [_check_of(one) for one in arguments]
        return lambda value: any(check(value) for check in checks)
    if origin is Literal:
        return lambda value: any(value is one or (type(value) is type(one) and value == one) for one in arguments)
    if origin is not None:
        return _container_check(origin, arguments)
    if hint is float:
        return lambda value: type(value) in (int, float)
    if hint in (int, bool):
        return lambda value: type(value) is hint
    if getattr(hint, "_is_protocol", False):
        members = [*vars(hint), *getattr(hint, "__annotations__", {})]
        names = [name for name in members if not name.startswith("_")]
        return lambda value: all(hasattr(value, name) for name in names)
    return lambda value: isinstance(value, hint)


def _container_check(origin: Any, arguments: tuple[Any, ...]) -> Check:
    if origin is Callable:
        return callable
    if issubclass(origin, Mapping):
        key_fits, entry_fits = map(_check_of, arguments)
        return lambda value: (
            isinstance(value, origin) and all(key_fits(key) and entry_fits(entry) for key, entry in value.items())
        )
    if origin is tuple and arguments[-1] is not Ellipsis:
        checks = [_check_of(one) for one in arguments]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(checks)
            and all(check(entry) for check, entry in zip(checks, value, strict=True))
        )
    if issubclass(origin, Sequence | set | frozenset):
        entry_fits = _check_of(arguments[0])
        return lambda value: isinstance(value, origin) and all(map(entry_fits, value))
    return lambda value: isinstance(value, origin)  # entries of arrays and streams are not checked
