"""The built documentation: the build is strict, every file it names is there, and nothing comes from the network.

What `zensical build --strict` does not look at is looked at here: images, the menu, and docstrings of the reference.
"""

import logging
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from patience import LONG

ROOT = Path(__file__).parents[2]
pytest.importorskip("zensical", reason="zensical is not installed (pip install 'sitewise[docs]')")

LOADED = {  # attributes that make a browser load something when it shows the page
    ("audio", "src"),
    ("embed", "src"),
    ("iframe", "src"),
    ("img", "src"),
    ("link", "href"),
    ("object", "data"),
    ("script", "src"),
    ("source", "src"),
    ("video", "src"),
}


TOO_WIDE = """
return [...document.querySelectorAll(".katex-display")].filter((formula) => {
  const tag = formula.querySelector(".katex-tag") || formula.closest(".arithmatex").lastElementChild;
  const limit = tag.matches(".katex-tag") ? tag.getBoundingClientRect().left : tag.getBoundingClientRect().right;
  const parts = [...formula.querySelectorAll(".katex-html > .katex-base")];
  return Math.max(...parts.map((part) => part.getBoundingClientRect().right)) > limit;
}).map((formula) => formula.querySelector("annotation").textContent);
"""


def build(folder):
    """Build the site of a folder strictly; return the finished process."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of this repository, built in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "src"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, folder)
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


class Addresses(HTMLParser):
    """What a page loads (`loaded`) and where its links lead (`links`)."""

    def __init__(self, page):
        super().__init__()
        self.loaded, self.links = [], []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if value and (tag, key) in LOADED:
                self.loaded.append(value)
            elif value and key == "style":
                self.loaded += styled(value)
            elif value and (tag, key) == ("a", "href"):
                self.links.append(value)


def styled(css):
    """The addresses that a style sheet loads."""
    addresses = re.findall(r"""(?:url\(|@import\s+)["']?([^"')]+)""", re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL))
    return [address for address in addresses if not address.startswith(("data:", "#"))]


def is_remote(address):
    return bool(urlparse(address).scheme or urlparse(address).netloc)


def test_pages_and_styles_load_only_files_of_the_site(site):
    """No CDN, no font service: each address is a file beside the page."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    loads = [(page, address) for page in pages for address in Addresses(page).loaded]
    loads += [(sheet, address) for sheet in site.rglob("*.css") for address in styled(sheet.read_text())]
    assert [(page.name, address) for page, address in loads if is_remote(address)] == []
    # The page for unknown addresses is served at any of them, hence with addresses from the root.
    local = [(page, unquote(urlparse(address).path)) for page, address in loads if page.name != "404.html"]
    assert [(page.name, path) for page, path in local if not (page.parent / path).is_file()] == []


def test_links_lead_to_pages_of_the_site(site):
    """Also those of the menu, which a strict build does not check."""
    for page in site.rglob("*.html"):
        if page.name != "404.html":
            paths = [unquote(urlparse(link).path) for link in Addresses(page).links if not is_remote(link)]
            assert [path for path in paths if path and not (page.parent / path).resolve().exists()] == [], page


@pytest.mark.parametrize(
    "text", ["[a](nowhere.md)", "[b](#no-such-heading)", '--8<-- "no_such_file.md"', "::: os.nope"]
)
def test_a_mistake_stops_the_build(tmp_path, text):
    settings = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(re.sub(r"^nav:\n(?:  .*\n)+", "", settings, flags=re.MULTILINE))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A page\n")
    right = build(tmp_path)
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n{text}\n")
    assert (right.returncode, build(tmp_path).returncode) == (0, 1), right.stdout + right.stderr


def test_remote_addresses_are_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<script src="//cdn.org/a.js"></script><img src="b.png"><a href="https://c.org">c</a>')
    assert [is_remote(address) for address in Addresses(page).loaded] == [True, False]
    assert styled("@import 'https://f.org/x.css'; a{background:url(y.png)} b{mask:url(data:image/svg)}") == [
        "https://f.org/x.css",
        "y.png",
    ]


def test_docstrings_of_the_reference_parse(caplog):
    """griffe has nothing to warn about: sections are sections, parameters are those of the signature."""
    griffe = pytest.importorskip("griffe")
    paths = re.findall(r"^::: (\S+)", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"], docstring_parser="numpy")
    package = loader.load("sitewise")
    loader.resolve_aliases()
    with caplog.at_level(logging.WARNING, logger="griffe"):
        for path in paths:
            shown = package[path.removeprefix("sitewise.")]
            members = [m for name, m in shown.members.items() if not name.startswith("_") and not m.is_alias]
            for one in (shown, *members):
                assert one.docstring is None or one.docstring.parsed
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.flaky(reruns=2)  # the browser is another program, whose start the system schedules
@pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None,
    reason="chromium and chromedriver are not installed (make browser)",
)
def test_a_page_in_a_browser_sets_its_formulas_and_loads_files_only(site, tmp_path):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for switch in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--window-size=1280,900",
    ):
        options.add_argument(switch)
    options.add_argument(f"--user-data-dir={tmp_path / 'chromium'}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_page_load_timeout(LONG)
    driver.set_script_timeout(LONG)
    try:
        for page in [page for page in site.rglob("*.html") if "arithmatex" in page.read_text()]:
            driver.get(page.as_uri())
            formulas, unset, wrong = driver.execute_script(
                "const all = [...document.querySelectorAll('.arithmatex')];"
                "return [all.length, all.filter((e) => !e.querySelector('.katex-html')).length,"
                " [...document.querySelectorAll('.katex-error')].map((e) => e.title)];"
            )
            assert (formulas > 0, unset, wrong) == (True, 0, []), page.name
            assert driver.execute_script(TOO_WIDE) == [], page.name
            loaded = driver.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
            assert [address for address in loaded if not address.startswith(("file:", "blob:", "data:"))] == []
    finally:
        driver.quit()
