"""The text of the documents: names that they cite exist, symbols have one meaning, the language is plain."""

import ast
import functools
import importlib
import io
import pkgutil
import re
import tokenize
from pathlib import Path

import pytest

import sitewise

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")), *PAGES]
TEXTS += sorted((ROOT / "experiments").rglob("*.md"))
FENCES = re.compile(r"^```.*?^```$|<!--.*?-->", re.DOTALL | re.MULTILINE)


def name(page):
    return str(page.relative_to(ROOT))


# Names.

CALLED = {  # what a page calls an object, and its class
    "here": "AdaptedClassifier",
    "model": "GPAClassifier",
    "adjuster": "PrevalenceAdjuster",
    "estimate": "PrevalenceEstimate",
    "rehearsal_": "Rehearsal",
    "plan": "LabelPlan",
}
OF_OTHERS = {"GridSearchCV", "copyright_license"}  # of scikit-learn; a column of ISIC's tables
IN_REPOSITORY = re.compile(r"(?:benchmarks|docs|experiments|src|tests)/[\w./-]+|[\w/]+\.py")
OF_USERS = re.compile(r".*\.(?:csv|html|json|md|parquet|png|toml|yaml)")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
IDENTIFIER = re.compile(r"[A-Za-z]\w*")


@functools.cache
def modules():
    """Every module of the package that can be imported here, by its dotted name."""
    names = [info.name for info in pkgutil.walk_packages(sitewise.__path__, "sitewise.") if "__main__" not in info.name]
    return {name: importlib.import_module(name) for name in ["sitewise", *names]}


@functools.cache
def words():
    """Every identifier that the code and its settings use."""
    kinds = (".py", ".yaml", ".jinja", ".toml")
    texts = [path.read_text() for path in files() if path.suffix in kinds and path != Path(__file__)]
    return set(re.findall(r"\w+", "\n".join(texts)))


@functools.cache
def files():
    """Every file and folder of the repository that documents may name."""
    folders = [ROOT / name for name in ("benchmarks", "docs", "experiments", "src", "tests")]
    return [*ROOT.glob("*.toml"), *(path for folder in folders for path in folder.rglob("*"))]


def classes(name):
    return [kind for module in modules().values() if isinstance(kind := vars(module).get(name), type)]


def follow(start, attribute):
    """What an attribute may be: its value or class, None where that is not known; an empty list where there is none."""
    if attribute in CALLED:
        return classes(CALLED[attribute])
    value = getattr(start, attribute, None)
    if isinstance(value, property):
        kinds = classes(str(value.fget.__annotations__.get("return")).split("[")[0])
        return kinds or [None]
    if hasattr(start, attribute):
        return [value]
    bases = getattr(start, "__mro__", ())
    sources = [modules()[kind.__module__].__file__ for kind in bases if kind.__module__ in modules()]
    declared = any(attribute in getattr(kind, "__annotations__", ()) for kind in bases)
    assigned = any(re.search(rf"\b\w+\.{attribute}\b", Path(file).read_text()) for file in sources)
    return [None] if declared or assigned or (attribute.endswith("_") and attribute in words()) else []


def resolves(start, attributes):
    """Whether there is such an attribute, and one of it, and so on, as far as types are known."""
    if not attributes or start is None:
        return True
    return any(resolves(value, attributes[1:]) for value in follow(start, attributes[0]))


def starts(first):
    """What the first part of a dotted name may mean in this package."""
    if first == "sw":
        return [sitewise]
    named = [module for path, module in modules().items() if path.rpartition(".")[2] == first]
    return classes(CALLED.get(first, first)) + named


def missing_names(text):
    """The names in backticks that lead nowhere."""
    missing = []
    plain = "\n".join(re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    in_blocks = re.findall(r"(?<![\w/.])\w+(?:/\w+)+\.py\b", plain)
    for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCES.sub("", text)) + in_blocks:
        bare = code.split("(")[0].strip()
        if IN_REPOSITORY.fullmatch(bare):
            known = any(f"{path}/".endswith(f"/{bare.rstrip('/')}/") for path in files())
        elif OF_USERS.fullmatch(bare):
            continue
        elif DOTTED.fullmatch(bare) and starts(bare.split(".")[0]):
            known = any(resolves(start, bare.split(".")[1:]) for start in starts(bare.split(".")[0]))
        elif IDENTIFIER.fullmatch(bare) and ("_" in bare or re.search(r"[a-z][A-Z]", bare)):
            known = bare in words() | OF_OTHERS
        else:
            continue
        if not known:
            missing.append(code)
    return missing


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_names_that_a_page_cites_exist(page):
    assert missing_names(page.read_text()) == []


def test_a_name_that_does_not_exist_is_found():
    wrong = [
        "sw.GPAClasifier",
        "posterior.normalise",
        "here.prevalense()",
        "LinearProblem.no",
        "adaptation/no.py",
        "no_such_name",
    ]
    right = ["sw.GPAClassifier", "posterior.normalize", "here.prevalence()", "model.rehearsal_.table", "Moments.slope"]
    text = " ".join(f"`{code}`" for code in [*wrong, *right, "numpy.nowhere", "a = b"])
    assert missing_names(text) == wrong
    assert missing_names("```\nfit  estimator/nowhere.py\n     estimator/gpa.py\n```\n") == ["estimator/nowhere.py"]


# Symbols of the mathematics.

GREEK = "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"
SYMBOL = re.compile(r"\\(?:mathcal\s*\{?\s*[A-Z]\}?|ell\b|[A-Za-z]+)|[A-Za-z]")
MATHS = [DOCS / "maths.md", *sorted((DOCS / "maths").glob("*.md"))]


def formulas(text):
    text = FENCES.sub("", text)
    shown = re.findall(r"\$\$(.*?)\$\$", text, re.DOTALL)
    return shown + re.findall(r"\$([^$\n]+)\$", re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL))


def symbols(formula):
    """The letters of a formula: Latin, Greek and calligraphic, without words and commands."""
    formula = re.sub(r"\\(?:text|operatorname|mathrm|tag|mathbb)\s*\{[^}]*\}", " ", formula)
    formula = re.sub(r"\\mathbb\s*[A-Z]|\\(?:begin|end)\{\w+\}|\\mathcal\s*N\b", " ", formula)
    greek = {f"\\{letter}" for word in GREEK.split() for letter in (word, word.capitalize())}
    letters = {re.sub(r"[\s{}]", "", symbol) for symbol in SYMBOL.findall(formula)}
    return {s for s in letters if len(s) == 1 or s in greek or s == "\\ell" or s.startswith("\\mathcal")}


def table():
    """The rows of the table of symbols: the symbols of a row, and their meaning."""
    text = (DOCS / "maths.md").read_text().partition("## Symbols")[2]
    rows = re.findall(r"^\| (\$[^|]*?) \| ([^|]*(?:\\\|[^|]*)*) \|", text, re.MULTILINE)
    return [(set().union(*map(symbols, re.findall(r"\$([^$]+)\$", cell))), meaning) for cell, meaning in rows]


def test_each_symbol_has_one_meaning():
    listed = [symbol for row, _ in table() for symbol in row]
    assert len(listed) > 50
    assert sorted(listed) == sorted(set(listed))


@pytest.mark.parametrize("page", MATHS, ids=name)
def test_symbols_of_a_page_are_in_the_table(page):
    listed = set().union(*(row for row, _ in table()), {"e"})  # e is also the base of the exponential
    used = set().union(*map(symbols, formulas(page.read_text())))
    assert used - listed == set()


def test_equation_numbers_are_unique():
    tags = [tag for page in MATHS for tag in re.findall(r"\\tag\{(\w+)\}", page.read_text())]
    sections = [number for page in MATHS for number in re.findall(r"^## (\d+)\. ", page.read_text(), re.MULTILINE)]
    assert sorted(tags) == sorted(set(tags))
    assert sorted(map(int, sections)) == list(range(1, 23))


def cited_equations(code):
    """The numbers of the equations that a source cites."""
    groups = re.findall(r"[Ee]quations? ((?:\d+[a-i]?(?:, | and )?)+)", code)
    return {number for group in groups for number in re.findall(r"\d+[a-i]?", group)}


def test_equations_that_the_code_cites_exist():
    numbers = {tag for page in MATHS for tag in re.findall(r"\\tag\{(\w+)\}", page.read_text())}
    cited = cited_equations("\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py")))
    assert len(cited) > 15
    assert cited - numbers == set()
    assert cited_equations("equations 18h and 18i; (equation 99i)") == {"18h", "18i", "99i"}


def test_each_equation_is_found_in_the_code_by_the_search_of_the_page():
    """docs/architecture.md: search for a number with a letter, or for a plain number after "equation" or "section"."""
    tags = [tag for page in MATHS for tag in re.findall(r"\\tag\{(\w+)\}", page.read_text())]
    lines = [line for path in (ROOT / "src").rglob("*.py") for line in path.read_text().splitlines()]
    plain = {tag: rf"(equation|section).*\b{tag}\b" if tag.isdigit() else rf"(?-i:\b{tag}\b)" for tag in tags}
    found = {tag for tag, search in plain.items() if any(re.search(search, line, re.IGNORECASE) for line in lines)}
    assert len(tags) > 40
    assert set(tags) - found == set()


# Language.

AVOIDED = {  # words that readers stumbled over, and what to write instead
    r"not a hope": "convergence diagnostics",
    r"told as\b": "including the failures",
    r"sp(?:eaks?|oke) (?:against|for)\b": "the evidence is against, or insufficient",
    r"look(?:s|ed|ing)? back": "post-fit covariance",
    r"somebody asks": "computed lazily",
    r"rivals?\b": "candidates",
    r"doubted\b": "rejected",
    r"stands? twice": "duplicate",
    r"dear(?:er|est)?\b": "expensive",
    r"mend(?:s|ed|ing)?\b": "fix, correct",
    r"rooms?\b": "modules, layers",
    r"house\b": "package",
    r"lest\b": "so that ... not",
    r"so-manieth": "every so many",
    r"nobody'?s concern": "irrelevant",
    r"owes nothing": "does not depend on",
    r"whoever\b": "a process that, users who",
}
SOURCES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
EXEMPT = {Path(__file__), *(ROOT / "tests" / "campaign").rglob("*.py")}  # this list; a suite with words of its own
TESTS = sorted({*(ROOT / "tests").rglob("*.py")} - EXEMPT)
PAGES_OF_REPORTS = sorted((ROOT / "src").rglob("*.jinja"))
SETTINGS = sorted((ROOT / "experiments").rglob("*.yaml"))


def avoided(text):
    """The words of a text that are on the list."""
    prose = re.sub(r"`[^`\n]*`", "", FENCES.sub("", text))
    return [found[0] for word in AVOIDED for found in re.finditer(rf"\b{word}", prose, re.IGNORECASE)]


def prose_of(source):
    """The text of a Python file that people read: comments and strings of several words, docstrings included."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    nodes = list(ast.walk(ast.parse(source)))
    types = [getattr(node, field, None) for node in nodes for field in ("annotation", "returns")]
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and node not in types]
    return "\n".join([*comments, *(text for text in strings if isinstance(text, str) and " " in text)])


@pytest.mark.parametrize("page", [*TEXTS, *PAGES_OF_REPORTS, *SETTINGS], ids=name)
def test_the_language_is_plain(page):
    assert avoided(page.read_text()) == []


def test_the_language_of_the_source_is_plain():
    hits = {name(path): words for path in sorted(SOURCES) if (words := avoided(prose_of(path.read_text())))}
    assert hits == {}


def test_the_language_of_the_tests_is_plain():
    """In their comments, docstrings and names."""
    hits = {}
    for path in TESTS:
        source = path.read_text()
        names = [match.replace("_", " ") for match in re.findall(r"def (test_\w+)", source)]
        if words := avoided("\n".join([prose_of(source), *names])):
            hits[name(path)] = words
    assert hits == {}


def test_a_word_on_the_list_is_found():
    assert avoided("The rooms are dear; `rooms` and ward rooms.\n```\nrooms\n```\n") == ["dear", "rooms", "rooms"]
    assert avoided(prose_of('x: "Rival | None" = "rivals"  # rivals\nsay("stands twice", f"{1} is dear")\n')) == [
        "rivals",
        "stands twice",
        "dear",
    ]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_says_at_its_top_whom_it_is_for(page):
    assert re.match(r"# [^\n]+\n\n\*For [^*]+\*\n", page.read_text())
