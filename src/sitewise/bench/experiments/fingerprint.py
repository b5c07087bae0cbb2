"""Fingerprints: hashes of the code on which a number depends, without docstrings, comments and layout.

The code is the entry modules and all modules of the package that they import, directly or indirectly, anywhere in
their files. A name that is imported from a package counts as an import of the module that defines it, not of the
package's `__init__`. Methods are looked up in a registry: a run depends only on the methods that it names.
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
# Modules that write texts, pages and files, or record the origin of numbers. No number depends on them: a test runs GPA
# and checks that it calls none of them, except `fingerprint`, `provenance` and functions that write sentences.
ASIDE = (
    f"{PACKAGE}.version",
    f"{PACKAGE}.report",
    f"{PACKAGE}.estimator.files",
    f"{PACKAGE}.bench.experiments.fingerprint",
    f"{PACKAGE}.bench.experiments.provenance",
)
LENGTH = 16  # the number of hexadecimal digits of a digest

Import = tuple[str, str, str]  # module, name in that module, name in the importing file


def run_fingerprint(run: Run) -> str:
    """Return a digest of a run's settings and of all code on which its record depends."""
    used = {name: METHODS[name] for name in sorted({choice.method for choice in run.methods})}
    modules = {ENTRY, KINDS[run.data["kind"]].populate.__module__, *(method.__module__ for method in used.values())}
    classes = {name: f"{_label(method.__module__)}.{method.__qualname__}" for name, method in used.items()}
    return _digest([run.id, classes, code_digest(tuple(sorted(modules)), REGISTRY)])


def script_fingerprint(script: str | Path) -> str:
    """Return a digest of a script and of all code it imports: modules of sitewise and files next to the script."""
    return code_digest((str(Path(script).resolve()),))


@cache
def code_digest(entries: tuple[str, ...], *cut: str) -> str:
    """Return a digest of the code of modules (by name) and scripts (by path), and of all code they import.

    The modules in `cut` and `ASIDE` are excluded.
    """
    return _digest(sorted([name, _file_digest(path)] for name, path in closure(entries, *cut).items()))


def closure(entries: Iterable[str], *cut: str) -> dict[str, Path]:
    """Return the files that the entries may load, by name: entries, modules of the package, and files next to a script.

    The modules in `cut` and `ASIDE` are excluded.
    """
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
    """Return a text of the code without docstrings, comments and layout.

    The texts of two sources are equal exactly if the sources differ in nothing else.
    """
    return json.dumps(_plain(ast.parse(text)), ensure_ascii=False)


@dataclass(frozen=True)
class _Imports:
    """The imports of a file, and the attributes that it reads.

    `names` are imported from modules, `typed` below `if TYPE_CHECKING:`, and `modules` are imported as a whole.
    """

    names: tuple[Import, ...]
    typed: tuple[Import, ...]
    modules: tuple[tuple[str, str], ...]  # module, name in this file
    attributes: tuple[tuple[str, str], ...]  # name, attribute


def _needs(name: str, path: Path) -> Iterator[str]:
    """Yield what a file imports: modules of the package by name, and files next to it by path."""
    read = _read(path)
    for module, inner, _ in read.names:
        yield from _home(_absolute(module, name, path), inner, path)
    for module, here in read.modules:
        for attribute in [part for owner, part in read.attributes if owner == here] or [""]:
            yield from _home(module, attribute, path)


def _home(module: str, name: str, importer: Path) -> Iterator[str]:
    """Yield the module that defines a name of `module`, if it is part of the package or a file next to the importer."""
    if module != PACKAGE and not module.startswith(f"{PACKAGE}."):
        neighbour = importer.with_name(f"{module}.py")
        if neighbour.is_file() and not importer.is_relative_to(SOURCE):
            yield str(neighbour)
        return
    file = _path_of(module)
    if name and _path_of(f"{module}.{name}") is not None:
        yield f"{module}.{name}"
    elif file is not None and file.name == "__init__.py":
        read = _read(file)  # a package that loads names on first use lists them below `if TYPE_CHECKING:`
        passed = {here: (origin, old) for origin, old, here in (*read.typed, *read.names)}
        if name in passed:
            yield from _home(_absolute(passed[name][0], module, file), passed[name][1], file)
        else:
            yield module
    elif file is not None:
        yield module


class _Visitor(ast.NodeVisitor):
    """Collects the imports of a file; names below `if TYPE_CHECKING:` are kept separately."""

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
    """Return the full name of a module, whose name may be relative to the importing module."""
    level = len(module) - len(module.lstrip("."))
    if not level:
        return module
    parents = importer.split(".")
    kept = parents[: len(parents) - level + (path.name == "__init__.py")]
    return ".".join([*kept, *filter(None, [module[level:]])])


def _path_of(name: str) -> Path | None:
    """Return the file of a module; None if it is unknown.

    A module of the package is found by its name, and another module if it is loaded. A path is returned as it is.
    """
    if name.endswith(".py"):
        return Path(name)
    if name == PACKAGE or name.startswith(f"{PACKAGE}."):
        base = SOURCE.joinpath(*name.split("."))
        return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file) if file else None


def _label(name: str) -> str:
    """Return the full name of a module of the package, or the file name (without .py) of another module."""
    path = _path_of(name)
    return name if path is None or path.is_relative_to(SOURCE) else path.stem


def _is_aside(name: str) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in ASIDE)


@cache
def _file_digest(path: Path) -> str:
    return _digest(code_of(path.read_text(encoding="utf-8")))


def _plain(node: Any) -> Any:
    """Return a syntax tree as lists, without positions and docstrings.

    Empty fields are left out, because they differ between Python versions.
    """
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
