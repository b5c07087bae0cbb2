"""The reference page documents what users call: every name exists, every parameter has a type and a description.

The page is read as its builder reads it: `::: path` with the options `members` and `inherited_members`, docstrings
parsed by griffe in numpy style.
"""

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

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
# Methods of the comparison suite have the hooks of `Method`, which docs/extending.md explains: fields are checked.
SUITE = [entry for entry in ENTRIES if entry.path.startswith("sitewise.bench.")]
DOCUMENTED = [entry for entry in ENTRIES if entry not in SUITE]
MOST_NAMES = 70  # that a user of the method, without the comparison suite, may have to know


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
        return [root]  # a function, or a dict with its own docstring
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
    read_back = read(one.docstring)
    for base in one.mro() if one.is_class else ():
        above = read(base.docstring)
        read_back = Documented(above.parameters | read_back.parameters, above.sections | read_back.sections)
    return read_back


def accepted(one):
    """The names of the parameters of a function, or of a class by its constructor."""
    if one.is_class and "__new__" in one.members:
        one = one.members["__new__"]
    if one.is_attribute:
        return []
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


@pytest.mark.parametrize("entry", SUITE, ids=lambda entry: entry.path)
def test_every_field_of_the_comparison_suite_has_a_type_and_a_description(entry):
    roots = [one for one in shown(entry) if not (one.is_function and one.parent.is_class)]
    assert {one.path: found for one in roots if (found := problems(one))} == {}


@pytest.mark.parametrize("entry", DOCUMENTED, ids=lambda entry: entry.path)
def test_every_exported_name_says_what_it_returns_and_shows_an_example(entry):
    every = shown(entry)
    silent = [one.path for one in every if returns_something(one) and "returns" not in read(one.docstring).sections]
    assert silent == []
    roots = [one for one in every if one.is_class] or [one for one in every[:1] if one.is_function]
    assert [one.path for one in roots if "examples" not in documented_by(one).sections] == []


def cited(among=ENTRIES):
    """The objects of the page, by the path of the module that defines them."""
    names = [f"{e.path}.{m}" for e in among if find(e.path).is_module for m in e.options["members"]]
    return {find(path).path for path in [*names, *(e.path for e in among if not find(e.path).is_module)]}


def test_every_exported_name_is_in_the_reference():
    """An `__all__` of the package holds public names only; what is internal is imported from its module."""
    packages = [sitewise.__name__, *(m.name for m in walk_packages(sitewise.__path__, "sitewise.") if m.ispkg)]
    doors = {name: getattr(import_module(name), "__all__", ()) for name in packages}
    exported = {f"{door}.{name}" for door, names in doors.items() for name in names} - {"sitewise.__version__"}
    assert {path for path in exported if home(path) not in cited()} == set()
    assert len(exported) > len(sitewise.__all__)  # those of the sub-packages, too


def home(path):
    """The path of an exported name in the module that defines it; the package's own names are looked up lazily."""
    module, _, name = path.rpartition(".")
    lazy = getattr(import_module(module), "_MODULE_OF", {}).get(name)
    return find(f"{module}.{lazy}.{name}" if lazy else path).path


def test_what_documents_import_is_in_the_reference():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    statements = [ast.parse(line).body[0] for line in lines if re.match(r"from sitewise\S* import [^(]+$", line)]
    imported = {home(f"{one.module}.{alias.name}") for one in statements for alias in one.names}
    assert len(imported) > 10
    assert imported - cited() == set()


def test_the_public_names_are_what_a_user_calls():
    """Every name more is one to learn: the page stays short, and so does `sitewise.__all__`."""
    assert len(sitewise.__all__) <= 40
    assert len(cited(DOCUMENTED)) <= MOST_NAMES
    assert all(inspect.getdoc(getattr(sitewise, name)) for name in sitewise.__all__ if name != "__version__")


def private_reads(text, private):
    """(line, name) of attributes of other objects than `self` and `cls` that are private to a documented class."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute) and node.attr in private]
    return [(n.lineno, n.attr) for n in nodes if not (isinstance(n.value, ast.Name) and n.value.id in SELF)]


def test_nothing_outside_reads_private_attributes_of_documented_classes():
    """Tests and studies use what users have, or what the package has for other modules (`answer.fit_of`)."""
    classes = [find(entry.path) for entry in DOCUMENTED if find(entry.path).is_class]
    private = {name for one in classes for name in one.all_members if re.match(r"_(?!_|repr_html_)", name)}
    assert {"_fit", "_evidence", "_diagnosis", "_log_ratio"} <= private
    assert private_reads("self._fit; here.estimate._fit", private) == [(1, "_fit")]
    paths = [path for folder in ("tests", "benchmarks", "experiments") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): private_reads(path.read_text(encoding="utf-8"), private) for path in paths}
    assert {path: reads for path, reads in found.items() if reads} == {}


def test_the_page_hides_private_names():
    """Private and special methods are hidden, except `__call__`: calling a `Calibration` is how it is used."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    handler = next(plugin["mkdocstrings"] for plugin in settings["plugins"] if "mkdocstrings" in plugin)
    (hidden,) = handler["handlers"]["python"]["options"]["filters"]
    names = ["__getstate__", "_variance_at", "__call__", "interval"]
    assert [bool(re.search(hidden.removeprefix("!"), name)) for name in names] == [True, True, False, False]


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
