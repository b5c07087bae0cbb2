"""The documentation is true: its code runs, its commands parse, its links lead somewhere, its tables are the code's.

Every Python block of a page runs, in order and in one namespace, in an empty folder. Comments in a page change that:

- `<!-- before` ... `-->` holds code that runs at its place and is not shown;
- `<!-- first: start.md -->`: the first block of that page runs here (the text says so and links to it);
- `<!-- not run: why -->` above a block: it is compiled only;
- `<!-- run -->` above a block of commands: its `sitewise` lines run too, in the same folder, and must end with 0;
- `<!-- file: name -->` above a block: the block is written to that file.

A `text` block right after a Python block is what it prints, to the last digits of its numbers.
"""

import ast
import io
import os
import re
import shlex
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import typer
from typer.testing import CliRunner

import sitewise
from sitewise.bench.datasets.catalogue import COLLECTIONS
from sitewise.bench.experiments.kinds import KINDS
from sitewise.bench.methods import METHODS
from sitewise.cli import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "experiments").rglob("*.md")), *PAGES]
RUN_BY = {  # pages with tests of their own
    "guides/heart.md": "tests/realdata/test_guides.py",
    "guides/gusto.md": "tests/realdata/test_guides.py",
    "saving.md": "tests/estimator/files/test_saving_page.py",
    "guides/dask.md": "tests/docs/test_dask_page.py",
    "guides/service.md": "tests/docs/test_service_pages.py",
    "deploying.md": "tests/docs/test_service_pages.py",
}
NUMBER = r"-?\d+(?:\.\d+)?"
SHELLS = ("", "sh", "bash", "console")
USAGE_ERROR = typer.BadParameter.__base__


@dataclass(frozen=True)
class Block:
    """A fenced block, or hidden code: its language, text, first line, and the comment above it."""

    language: str
    text: str
    line: int
    mark: str = ""


PIECE = re.compile(
    r"^<!-- before\n(?P<hidden>.*?)^-->$"
    r"|^<!-- first: (?P<first>\S+) -->$"
    r"|(?:^<!-- (?P<mark>(?:not run|run|file)\b[^\n]*?) -->\n\n?)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


def blocks(text):
    """The blocks of a page in order."""
    found = []
    for piece in PIECE.finditer(text):
        part = next(part for part in ("hidden", "first", "text") if piece[part] is not None)
        line = text.count("\n", 0, piece.start(part)) + 1
        language = {"hidden": "python", "first": "first"}.get(part, piece["language"])
        found.append(Block(language, piece[part], line, piece["mark"] or ""))
    return found


def commands(text):
    """The `sitewise` command lines of a block, as lists of words without the first."""
    joined = text.replace("\\\n", " ")
    lines = [re.sub(r"^\s*\$ ", "", line) for line in joined.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("sitewise ")]


def parse(words):
    """Parse a command line as `sitewise` does, without doing anything."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        if words[0] not in command.commands:
            raise typer.BadParameter(f"there is no command {words[0]}")
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, list(words))


def run_command(words):
    result = CliRunner().invoke(app, words)
    message = f"sitewise {shlex.join(words)}\n{result.output}\n{result.exception!r}"
    assert result.exit_code == 0, message
    return result.stdout


def run_python(block, page, namespace):
    """Run a block whose lines are numbered as in the page; return what it printed."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def assert_printed(found, expected):
    """The same words, and numbers that differ by no more than another processor's arithmetic makes them."""
    assert re.sub(NUMBER, "#", found).split() == re.sub(NUMBER, "#", expected).split(), found
    numbers = [[float(n) for n in re.findall(NUMBER, text)] for text in (found, expected)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.03, rel=0.2), found


def run_page(page, text=None):
    """Run what a page has to run, in the current folder; another text of it where one is given."""
    namespace, printed = {"__name__": "page"}, None
    for block in blocks(page.read_text() if text is None else text):
        if block.mark.startswith("file: "):
            Path(block.mark.removeprefix("file: ")).write_text(block.text)
        if block.language == "text" and printed is not None:
            assert_printed(printed, block.text)
        printed = None
        if block.mark.startswith("not run: "):
            continue
        if block.language == "first":
            other = page.parent / block.text
            run_python(next(b for b in blocks(other.read_text()) if b.language == "python"), other, namespace)
        elif block.language == "python":
            printed = run_python(block, page, namespace)
        elif block.mark == "run":
            for words in commands(block.text):
                run_command(words)


def name(page):
    return str(page.relative_to(ROOT))


PYTHON_PAGES = [
    page for page in PAGES if "```python" in page.read_text() and name(page).removeprefix("docs/") not in RUN_BY
]


GUIDES = [page for page in PYTHON_PAGES if page == DOCS / "start.md" or page.parent == DOCS / "guides"]


@pytest.mark.parametrize("page", [page for page in PYTHON_PAGES if page not in GUIDES], ids=name)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SITEWISE_DATA", raising=False)
    with patch.dict(METHODS), patch.dict(KINDS), patch.dict(COLLECTIONS):
        run_page(page)


def test_start_and_the_guides_run_one_after_another_in_one_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for page in sorted(GUIDES, key=lambda page: page.parent == DOCS / "guides"):
        run_page(page)


SMALL_MODEL = """
import sitewise as sw

family = sw.SimulatedFamily(seed=1)
north, new = family.site(400, seed=1), family.site(300, prevalence=[0.8, 0.2], seed=2)
model = sw.GPAClassifier(epochs=3, missing="knockout", device="cpu").fit(north.X, north.y, sample_confounder=north.Z)
here = model.adapt(new.X, sample_confounder=new.Z)
"""


def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    """All but its first example, which test_readme.py runs as printed; a small model under the same names."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "README.md"
    namespace = {"__name__": "page"}
    exec(SMALL_MODEL, namespace)
    _, *others = [block for block in blocks(page.read_text()) if block.language == "python"]
    assert others
    for block in others:
        run_python(block, page, namespace)


def test_pages_with_tests_of_their_own_have_them():
    for page, tests in RUN_BY.items():
        assert Path(page).stem in (ROOT / tests).read_text(), f"{tests} does not run {page}"


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_blocks_are_well_formed(page):
    """Fences are closed, Python that is not run compiles all the same, and says why it is not."""
    text = page.read_text()
    assert len(re.findall(r"^```", text, re.MULTILINE)) % 2 == 0
    for block in blocks(text):
        if block.language == "python":
            ast.parse(block.text, name(page))
        if block.mark.startswith("not run"):
            assert re.fullmatch(r"not run: \w.*", block.mark), block.mark


COMMANDS = [
    (page, words)
    for page in TEXTS
    for block in blocks(page.read_text())
    if block.language in SHELLS
    for words in commands(block.text)
]


def test_pages_can_be_followed_one_after_another_in_one_folder():
    """No two pages write to the same place, which the second would refuse, or read what the other left there."""
    pages = {name(page) for page in PAGES} - {"docs/saving.md"}  # its folders are made and read by itself
    written = [
        (name(page), words[words.index("--out") + 1])
        for page, words in COMMANDS
        if name(page) in pages
        and "--out" in words
        and words[0] in ("init", "fit", "adapt", "predict", "report", "data")
    ]
    places = [place for _, place in written]
    assert sorted(places) == sorted(set(places)), written


def test_there_are_commands():
    assert {"fit", "adapt", "predict", "report", "init", "methods", "plan", "bench", "data"} <= {
        w[0] for _, w in COMMANDS
    }


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda part: part.name if isinstance(part, Path) else part[0])
def test_a_command_parses(page, words):
    """Commands, options and their values exist; files of this repository that it names are there."""
    parse(words)
    for word in words:
        if word.startswith("experiments/"):
            assert (ROOT / word).exists(), f"{name(page)}: {word}"


@pytest.mark.parametrize(
    "words", [["fitt", "data.csv"], ["fit", "data.csv", "--goal", "y", "--out", "m"], ["plan", "a.csv", "--width", "x"]]
)
def test_a_command_that_is_wrong_is_found(words):
    with pytest.raises(USAGE_ERROR):
        parse(words)


# Links.

LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


def anchors(page):
    """What can be linked to in a page: its headings as the site names them, and the objects of a reference."""
    toc = pytest.importorskip("markdown.extensions.toc")
    text = PIECE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.*?)\s*$", text, re.MULTILINE)
    plain = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    objects = re.findall(r"^::: (\S+)", text, re.MULTILINE)
    return {toc.slugify(heading, "-") for heading in plain} | set(objects)


def broken_links(page, text):
    """Internal links of a page that lead nowhere."""
    found = []
    for _, target in LINK.findall(PIECE.sub("", text)):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = page if not path else Path(os.path.normpath(page.parent / path))
        if not file.exists() or (anchor and anchor not in anchors(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_links_lead_somewhere(page):
    assert broken_links(page, page.read_text()) == []


def test_a_broken_link_is_found():
    page = DOCS / "faq.md"
    text = "[a](nowhere.md) ![b](images/none.png) [c](maths.md#no-such) [d](#neither) [e](maths.md) [f](https://x.org)"
    assert broken_links(page, text) == ["nowhere.md", "images/none.png", "maths.md#no-such", "#neither"]


def test_links_of_the_site_stay_in_it():
    """The site has docs/ only."""
    for page in PAGES:
        for _, target in LINK.findall(PIECE.sub("", page.read_text())):
            if not re.match(r"[a-z]+:|#", target):
                file = Path(os.path.normpath(page.parent / target.partition("#")[0]))
                assert file.is_relative_to(DOCS), f"{name(page)}: {target}"


# The site as a whole.


def test_every_page_is_in_the_menu():
    menu = re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(menu) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_the_gallery_shows_every_figure_with_its_command():
    text = (DOCS / "gallery.md").read_text()
    entries = re.findall(r"!\[[^\]]+\]\(images/([^)]+)\)\n\n[^\n]+\n\n```sh\n([^\n]+)\n```", text)
    assert sorted(figure for figure, _ in entries) == sorted(path.name for path in (DOCS / "images").iterdir())
    for _, command in entries:
        assert command.split()[0] in ("sitewise", "make", "python")
        assert all((ROOT / word).exists() for word in re.findall(r"(?:benchmarks|experiments)/\S+", command)), command


def test_the_reference_has_every_public_name():
    documented = {
        path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)", (DOCS / "reference.md").read_text(), re.M)
    }
    assert set(sitewise.__all__) - {"__version__"} <= documented


def needs(card):
    """A method's row of the table in which_method.md, after its name."""
    sites = "one or more" if card.single_site else "two or more"
    reference = "" if not card.is_reference else card.given or card.labels_at_test
    return (sites, card.z_at_test, "yes" if card.unlabeled_in_training else "no", card.estimates_g, reference)


def test_the_table_of_methods_is_the_registry():
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (DOCS / "which_method.md").read_text(), re.MULTILINE)
    shown = {method: [cell.strip() for cell in cells.split("|")] for method, cells in rows}
    assert shown == {key: [kind.card.name.replace("*", "\\*"), *needs(kind.card)] for key, kind in METHODS.items()}
