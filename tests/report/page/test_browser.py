"""The page in a real browser: Debian's chromium, headless. Skipped where there is none (`make browser` installs it)."""

import json
import shutil

import numpy as np
import pytest

from patience import LONG, wait_for
from sitewise.report.page.content import Profile, TrainingSite
from sitewise.report.page.render import write_report

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install 'sitewise[dev]')")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="chromium and chromedriver are not installed (make browser)"
    ),
    # The browser is another program, whose start and whose answers the system schedules.
    pytest.mark.flaky(reruns=2),
]
PHONE, DESK = 375, 1200
SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"),
    *("--no-first-run", "--hide-scrollbars"),
)
ENTER, SPACE, TAB = "\ue007", "\ue00d", "\ue004"

CONTRAST = """
const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const numbers = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const opaque = (c) => numbers(c).length === 3 || numbers(c)[3] === 1;
const ground = (node) => {
  for (let n = node; n; n = n.parentElement) {
    const color = getComputedStyle(n).backgroundColor;
    if (opaque(color)) return color;
  }
  return "rgb(255, 255, 255)";
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !node.getClientRects().length) continue;
  const style = getComputedStyle(node);
  const color = node.closest("svg") ? style.fill : style.color;
  const [a, b] = [light(numbers(color)), light(numbers(ground(node)))].sort((x, y) => y - x);
  found.push([(a + 0.05) / (b + 0.05), node.tagName + ": " + walker.currentNode.textContent.trim().slice(0, 40)]);
}
return found;
"""
STICKING_OUT = """
const width = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")].filter((node) => {
  const scrolls = node.closest(".scroll") && !node.classList.contains("scroll");
  const inside = node.closest("svg") && node.tagName !== "svg";
  return !scrolls && !inside && !node.closest(".skip") && node.getBoundingClientRect().right > width + 1;
}).map((node) => node.outerHTML.slice(0, 80));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(LONG)
    driver.set_script_timeout(LONG)
    yield driver
    driver.quit()


@pytest.fixture
def show(browser, tmp_path):
    """A function that writes a report and opens it at a width and in a theme."""

    def opened(content, width=DESK, theme="light"):
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for kind in ("browser", "performance"):
            browser.get_log(kind)  # what earlier pages left there
        browser.get(write_report(content, tmp_path / "report.html").as_uri())
        return browser

    return opened


def hostile_content(make_content):
    name = "<script>alert('x')</script> " + "x" * 500 + " \"'\n مستشفى"
    share = np.tile([0.6, 0.4], (2, 1))
    return make_content(
        site=name,
        classes=["healthy", name],
        training_sites=[TrainingSite(name, 10, np.array([0.5, 0.5]))],
        profiles=[Profile(name, [name, "other"], np.array([3, 4]), share, share, share, share, notes=(name,))],
        done={name: {name: name}},
    )


def many_levels(make_content):
    share = np.random.default_rng(0).dirichlet([2, 2], 1000)
    rows = np.arange(1000)
    levels = [f"clinic number {i}" for i in rows]
    return make_content(profiles=[Profile("clinic", levels, rows, share, share, share * 0.9, share)])


SITES = {
    "usual": lambda make: make(),
    "one row": lambda make: make(n_rows=1),
    "ten classes": lambda make: make(n_classes=10),
    "thousand levels": many_levels,
    "no confounders": lambda make: make(profiles=[]),
    "hostile names": hostile_content,
}


@pytest.mark.parametrize("site", SITES)
def test_loads_without_errors_or_requests(show, make_content, site):
    driver = show(SITES[site](make_content))
    asked = []

    def logged():
        events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        asked.extend(s["request"]["url"] for s in sent if s["documentURL"].startswith("file:"))  # no start page
        return asked

    wait_for(logged)
    assert asked == [driver.current_url]
    assert [entry["message"] for entry in driver.get_log("browser")] == []
    assert driver.execute_script("return document.querySelectorAll('script').length") == 1


def test_the_policy_stops_what_would_be_fetched(show, make_content):
    driver = show(make_content())
    driver.execute_script(
        "const image = new Image(); image.src = 'http://127.0.0.1:9/x.png'; document.body.append(image)"
    )
    wait_for(lambda: any("Content Security Policy" in entry["message"] for entry in driver.get_log("browser")))


@pytest.mark.parametrize("site", SITES)
def test_a_phone_needs_no_sideways_scrolling(show, make_content, site):
    driver = show(SITES[site](make_content), width=PHONE)
    driver.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= PHONE
    assert driver.execute_script(STICKING_OUT) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("verdict", ["adapt", "care", "do not adapt"])
def test_all_text_stands_out(show, make_content, theme, verdict):
    content = make_content()
    content["diagnosis"]["verdict"] = content["verdict"] = verdict
    content["diagnosis"]["findings"][2]["severity"] = "stop"
    driver = show(content, theme=theme)
    driver.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    answer = driver.execute_script(CONTRAST)
    assert len(answer) > 200
    assert [words for ratio, words in answer if ratio < 4.5] == []


def test_themes_differ_and_paper_is_white(show, make_content):
    driver = show(make_content(), theme="light")
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = driver.execute_script(ground)
    dark = show(make_content(), theme="dark").execute_script(ground)
    assert light != dark
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script(ground) == "rgb(255, 255, 255)"


def test_paper_shows_what_is_folded(show, make_content):
    driver = show(make_content())
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert driver.execute_script("return document.querySelectorAll('details:not([open])').length") == 0
    driver.execute_script("dispatchEvent(new Event('afterprint'))")
    assert driver.execute_script("return document.querySelectorAll('details:not([open])').length") == 1


def shares(driver):
    rows = "return [...document.querySelectorAll('#prevalence tbody tr')].map((row) => row.cells[2].dataset.value)"
    return [float(value) for value in driver.execute_script(rows)]


def test_tables_sort_by_number_both_ways_from_the_keyboard(show, make_content):
    driver = show(make_content())
    before = shares(driver)
    button = driver.find_elements("css selector", "#prevalence th button")[2]
    button.send_keys(ENTER)
    assert shares(driver) == sorted(before)
    assert button.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    button.send_keys(SPACE)
    assert shares(driver) == sorted(before, reverse=True)


def test_names_sort_as_people_count(show, make_content):
    sites = [TrainingSite(name, 10, np.array([0.5, 0.5])) for name in ("site 10", "site 9", "site 1")]
    driver = show(make_content(training_sites=sites))
    driver.find_element("css selector", "#prevalence th button").click()
    first = "return [...document.querySelectorAll('#prevalence tbody tr')].map((row) => row.cells[0].textContent)"
    assert driver.execute_script(first) == ["site 1", "site 9", "site 10", "this site (estimated)"]


def test_everything_is_reached_and_opened_by_keyboard(show, make_content):
    driver = show(make_content(profiles=[], diagnosis=None, performance=None))
    body = driver.find_element("css selector", "body")
    body.send_keys(TAB)
    skip = driver.switch_to.active_element
    assert skip.text == "Skip to the outcome"
    assert skip.rect["x"] >= 0
    skip.send_keys(ENTER)
    assert driver.execute_script("return document.activeElement.id") == "verdict"
    folded = driver.find_element("css selector", "details:not([open])")
    summary = folded.find_element("css selector", "summary")
    for _ in range(60):
        driver.switch_to.active_element.send_keys(TAB)
        if driver.switch_to.active_element == summary:
            break
    assert driver.switch_to.active_element == summary
    assert summary.value_of_css_property("outline-style") == "solid"
    summary.send_keys(ENTER)
    assert folded.get_attribute("open") is not None
