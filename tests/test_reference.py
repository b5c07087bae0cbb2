"""The reference page documents what users call: every name exists, every parameter has a type and a description.

The page is read as its builder reads it: `::: path` with the options `members` and `inherited_members`, docstrings
parsed by griffe in numpy style.
"""

import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

import sitewise

griffe = pytest.importorskip("griffe", reason="griffe comes with the extra `docs`")

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^::: (?P<path>\S+)\n(?P<options>(?:    .*\n)*)", re.MULTILINE)
SELF = {"self", "cls"}
RECEIVED = ("parameters", "other parameters", "attributes")  # sections that may document a parameter


@dataclass(frozen=True)
class Entry:
    """An object of the page with the options of its block."""

    path: str
    options: dict


@dataclass(frozen=True)
class Documented:
    """The documented names of a docstring: whether each has a type and a description."""

    parameters: dict
    sections: set


def entries(text):
    """The objects of a page, in order."""
    return [
        Entry(found["path"], (yaml.safe_load(found["options"]) or {}).get("options", {}))
        for found in ENTRY.finditer(text + "\n")
    ]


ENTRIES = entries((ROOT / "docs" / "reference.md").read_text())
# Methods of the comparison suite have fields and hooks of `Method`, which docs/extending.md explains.
DOCUMENTED = [entry for entry in ENTRIES if not entry.path.startswith("sitewise.bench.")]


@cache
def package():
    """The package as griffe reads it."""
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"], docstring_parser="numpy")
    loaded = loader.load("sitewise")
    loader.resolve_aliases()
    return loaded


def find(path):
    """An object of the package, through re-exports."""
    found = package()[path.removeprefix("sitewise.")]
    return found.final_target if found.is_alias else found


def shown(entry):
    """The callables that an entry shows: the object itself, and its members."""
    root = find(entry.path)
    if root.is_module:
        return [one for name in entry.options["members"] for one in shown(Entry(f"{entry.path}.{name}", {}))]
    if not root.is_class:
        return [root]
    members = root.all_members if entry.options.get("inherited_members") else root.members
    wanted = entry.options.get("members")
    names = [name for name in members if not name.startswith("_")] if wanted is None else wanted
    every = [members[name].final_target if members[name].is_alias else members[name] for name in names]
    return [root, *(one for one in every if one.is_function)]


def read(docstring):
    """What a docstring documents."""
    parameters, sections = {}, set()
    for section in docstring.parse("numpy", warnings=False) if docstring else ():
        sections.add(section.kind.value)
        if section.kind.value in RECEIVED:
            for one in section.value:
                parameters[one.name.lstrip("*")] = (str(one.annotation or "").strip(), one.description.strip())
    return Documented(parameters, sections)


def documented_by(one):
    """What an object documents itself, or its base classes for it: a subclass repeats no field and no example."""
    found = read(one.docstring)
    for base in one.mro() if one.is_class else ():
        above = read(base.docstring)
        found = Documented(above.parameters | found.parameters, above.sections | found.sections)
    return found


def accepted(one):
    """The names of the parameters of a function, or of a class by its constructor."""
    if one.is_class and "__new__" in one.members:
        one = one.members["__new__"]
    return [m.name.lstrip("*") for m in one.parameters if m.name not in SELF]


def problems(one):
    """What an object of the page lacks."""
    documented = documented_by(one)
    if one.docstring is None:
        return ["no docstring"]
    found = []
    for name in accepted(one):
        if name.startswith("_") or (one.name, name) == ("Outcome", "word"):  # the string itself
            continue
        if name not in documented.parameters:
            found.append(f"{name} is not documented")
            continue
        kind, text = documented.parameters[name]
        found += [f"{name} has no {what}" for what, value in (("type", kind), ("description", text)) if not value]
    found += [f"there is no parameter {name}" for name in unknown(one)]
    return found


def unknown(one):
    """Names in a section Parameters that the signature does not have."""
    names = set(accepted(one))
    kinds = [s for s in one.docstring.parse("numpy", warnings=False) if s.kind.value == "parameters"]
    return [p.name for section in kinds for p in section.value if p.name.lstrip("*") not in names]


def returns_something(one):
    """Whether a function's annotation says that it returns a value."""
    return one.is_function and str(one.returns or "None") not in ("None", "NoReturn")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.path)
def test_every_name_of_the_reference_exists_and_can_be_imported(entry):
    module, _, name = entry.path.rpartition(".")
    loaded = __import__(module, fromlist=[name])
    assert getattr(loaded, name, None) is not None
    for member in entry.options.get("members", ()):
        assert hasattr(getattr(loaded, name), member), member


@pytest.mark.parametrize("entry", DOCUMENTED, ids=lambda entry: entry.path)
def test_every_parameter_has_a_type_and_a_description(entry):
    wrong = {one.path: found for one in shown(entry) if (found := problems(one))}
    assert wrong == {}


@pytest.mark.parametrize("entry", DOCUMENTED, ids=lambda entry: entry.path)
def test_every_exported_name_says_what_it_returns_and_shows_an_example(entry):
    every = shown(entry)
    silent = [one.path for one in every if returns_something(one) and "returns" not in read(one.docstring).sections]
    assert silent == []
    roots = [one for one in every if not one.is_function] or every[:1]
    assert [one.path for one in roots if "examples" not in documented_by(one).sections] == []


def test_no_public_name_is_missing():
    names = {entry.path.rpartition(".")[2] for entry in ENTRIES}
    names |= {name for entry in ENTRIES for name in entry.options.get("members", ())}
    assert set(sitewise.__all__) - {"__version__"} - names == set()


def test_the_public_names_are_what_a_user_calls():
    """Names of the package that are neither exported nor private by name or module would have to be learned, too."""
    assert len(sitewise.__all__) <= 60
    assert all(inspect.getdoc(getattr(sitewise, name)) for name in sitewise.__all__ if name != "__version__")


def test_a_parameter_without_a_description_is_found():
    text = '''
def plain(first, second, third):
    """Add.

    Parameters
    ----------
    first : int
        The first.
    second : the second, in the place of its type.
    fourth : int
        Not in the signature.
    """
'''
    one = griffe.visit("made", Path("made.py"), text)["plain"]
    assert problems(one) == ["second has no description", "third is not documented", "there is no parameter fourth"]
