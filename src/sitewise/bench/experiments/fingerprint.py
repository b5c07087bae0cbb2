"""Fingerprints: which code a number depends on, hashed without its docstrings, comments and layout.

The code is what an entry imports, directly or not, anywhere in its files. A package's `__init__` passes names on, so
that a name counts as the module that defines it. Methods are looked up in a registry: a run depends on those it names.
"""

import ast
import hashlib
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sitewise
from sitewise.bench.experiments.kinds import KINDS
from sitewise.bench.experiments.plan import Run
from sitewise.bench.methods import METHODS

PACKAGE = "sitewise"
SOURCE = Path(inspect.getfile(sitewise)).parents[1]
ENTRY = f"{PACKAGE}.bench.experiments.scoring"
REGISTRY = f"{PACKAGE}.bench.methods"
# What writes words, pages and files, and says where numbers come from: no number depends on it (a test runs GPA and
# looks that none of it is called, but for sentences).
ASIDE = (
    f"{PACKAGE}.version",
    f"{PACKAGE}.report",
    f"{PACKAGE}.estimator.files",
    f"{PACKAGE}.bench.experiments.fingerprint",
    f"{PACKAGE}.bench.experiments.provenance",
)
LENGTH = 16  # of a digest, in hexadecimal digits

Import = tuple[str, str, str]  # module, name in it, name here


def run_fingerprint(run: Run) -> str:
    """A digest of a run's settings and of all code that its record depends on."""
    used = {name: METHODS[name] for name in sorted({choice.method for choice in run.methods})}
    modules = {ENTRY, KINDS[run.data["kind"]].populate.__module__, *(method.__module__ for method in used.values())}
    classes = {name: f"{_label(method.__module__)}.{method.__qualname__}" for name, method in used.items()}
    return _digest([run.id, classes, code_digest(tuple(sorted(modules)), REGISTRY)])


def script_fingerprint(script: str | Path) -> str:
    """A digest of a script and of all code it imports, including files next to it."""
    return code_digest((str(Path(script).resolve()),))


@cache
def code_digest(entries: tuple[str, ...], *cut: str) -> str:
    """A digest of the code of modules (by name) and scripts (by path), and of their imports except excluded ones."""
    return _digest(sorted([name, _file_digest(path)] for name, path in closure(entries, *cut).items()))


def closure(entries: Iterable[str], *cut: str) -> dict[str, Path]:
    """The files that the entries may load, of the package and next to a script, by name, without excluded ones."""
    files: dict[str, Path] = {}
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        path, label = _path_of(name), _label(name)
        if path is None or label in files or name in cut or _is_aside(name):
            continue
        files[label] = path
        waiting += _needs(name, path)
    return files


def code_of(text: str) -> str:
    """A text that is equal for two sources exactly if they differ only in docstrings, comments and layout."""
    return json.dumps(_plain(ast.parse(text)), ensure_ascii=False)


@dataclass(frozen=True)
class _Imports:
    """The imports of a file: names, names for types only, whole modules, and the attributes of names that it reads."""

    names: tuple[Import, ...]
    typed: tuple[Import, ...]
    modules: tuple[tuple[str, str], ...]  # module, name here
    attributes: tuple[tuple[str, str], ...]  # name, attribute


def _needs(name: str, path: Path) -> Iterator[str]:
    """The modules, and files next to it by their paths, that a file loads."""
    read = _read(path)
    for module, inner, _ in read.names:
        yield from _home(_absolute(module, name, path), inner, path)
    for module, here in read.modules:
        for attribute in [part for owner, part in read.attributes if owner == here] or [""]:
            yield from _home(module, attribute, path)


def _home(module: str, name: str, importer: Path) -> Iterator[str]:
    """The module that defines a name of `module`, if it is part of the package."""
    if module != PACKAGE and not module.startswith(f"{PACKAGE}."):
        neighbour = importer.with_name(f"{module}.py")
        if neighbour.is_file() and not importer.is_relative_to(SOURCE):
            yield str(neighbour)
        return
    file = _path_of(module)
    if name and _path_of(f"{module}.{name}") is not None:
        yield f"{module}.{name}"
    elif file is not None and file.name == "__init__.py":
        read = _read(file)  # a package that loads names when they are first used lists them for types
        passed = {here: (origin, old) for origin, old, here in (*read.typed, *read.names)}
        if name in passed:
            yield from _home(_absolute(passed[name][0], module, file), passed[name][1], file)
        else:
            yield module
    elif file is not None:
        yield module


class _Visitor(ast.NodeVisitor):
    """Collects the imports of a file, those below `if TYPE_CHECKING:` apart."""

    def __init__(self) -> None:
        self.names: list[Import] = []
        self.typed: list[Import] = []
        self.modules: list[tuple[str, str]] = []
        self.attributes: list[tuple[str, str]] = []
        self.for_types = False

    def visit_If(self, node: ast.If) -> None:
        outer = self.for_types
        self.for_types |= isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for part in node.body:
            self.visit(part)
        self.for_types = outer
        for part in node.orelse:
            self.visit(part)
        self.visit(node.test)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        imports = self.typed if self.for_types else self.names
        imports += [(module, part.name, part.asname or part.name) for part in node.names]

    def visit_Import(self, node: ast.Import) -> None:
        if not self.for_types:
            self.modules += [(part.name, part.asname or part.name) for part in node.names]

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            self.attributes.append((node.value.id, node.attr))
        self.generic_visit(node)


@cache
def _read(path: Path) -> _Imports:
    visitor = _Visitor()
    visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
    attributes = tuple(dict.fromkeys(visitor.attributes))
    return _Imports(tuple(visitor.names), tuple(visitor.typed), tuple(visitor.modules), attributes)


def _absolute(module: str, importer: str, path: Path) -> str:
    """The full name of a module that may be given relative to the importing one."""
    level = len(module) - len(module.lstrip("."))
    if not level:
        return module
    parents = importer.split(".")
    kept = parents[: len(parents) - level + (path.name == "__init__.py")]
    return ".".join([*kept, *filter(None, [module[level:]])])


def _path_of(name: str) -> Path | None:
    """The file of a module: of the package by its name, of others if they are loaded; a path is its own file."""
    if name.endswith(".py"):
        return Path(name)
    if name == PACKAGE or name.startswith(f"{PACKAGE}."):
        base = SOURCE.joinpath(*name.split("."))
        return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file) if file else None


def _label(name: str) -> str:
    """The name of a module of the package; otherwise that of its file, which does not depend on the import."""
    path = _path_of(name)
    return name if path is None or path.is_relative_to(SOURCE) else path.stem


def _is_aside(name: str) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in ASIDE)


@cache
def _file_digest(path: Path) -> str:
    return _digest(code_of(path.read_text(encoding="utf-8")))


def _plain(node: Any) -> Any:
    """A syntax tree as lists, without positions, docstrings and empty fields, which differ between Python versions."""
    if isinstance(node, list):
        return [_plain(part) for part in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if name not in ("kind", "type_comment")}
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        fields["body"] = fields["body"][ast.get_docstring(node, clean=False) is not None :]
    kept = [[name, _plain(value)] for name, value in fields.items() if value is not None and value != []]
    return [type(node).__name__, *kept]


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()[:LENGTH]
