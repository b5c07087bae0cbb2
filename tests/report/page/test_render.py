"""The page as HTML: names are text whatever they hold, every number comes from the content, nothing is fetched."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from sitewise.report import wording
from sitewise.report.page.content import Profile, TrainingSite
from sitewise.report.page.render import render, write_report

VOID = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = [
    "<script>alert('x')</script>",
    '"quotes" & \'others\' onload="alert(1)"',
    "two\nlines\tand a tab",
    "مستشفى القدس ‮ override",
    "x" * 500,
    "</style></title><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }} {% raw %}",
    "broken \ud800 and nul \x00",
]


class Page(HTMLParser):
    """Elements with their attributes, in order, and the text of the page; complains about tags that do not close."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.text, self.paths = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)

    @property
    def words(self):
        return "".join(self.text)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


def hostile(make_content, name):
    share = np.tile([0.6, 0.4], (2, 1))
    curve = np.tile([0.6, 0.4], (3, 1))
    return make_content(
        site=name,
        classes=["healthy", name],
        training_sites=[TrainingSite(name, 10, np.array([0.5, 0.5]))],
        profiles=[
            Profile(name, [name, "other"], np.array([3, 4]), share, share, share, share, notes=(name,)),
            Profile(name, [1.0, 2.0, 3.0], np.array([3, 4, 1]), curve, curve, curve, curve, is_number=True),
        ],
        done={name: {name: name}},
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_names_show_as_text(make_content, name):
    page = Page(render(hostile(make_content, name)))
    shown = name.replace("\ud800", "?").replace("\x00", "\ufffd")
    assert page.words.count(shown) >= 8
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert not [key for _, attrs in page.elements for key in attrs if key.startswith("on")]


def test_user_text_in_html_is_isolated_from_its_direction(make_content):
    html = render(hostile(make_content, "RTL-NAME"))
    body = html[html.index("<h1>") :]
    assert set(re.findall(r"<([a-z0-9]+)[^>]*>RTL-NAME", body)) <= {"bdi", "text", "desc"}


def test_the_page_is_a_function_of_the_json_beside_it(make_content, tmp_path):
    path = write_report(make_content(n_classes=3), tmp_path / "deep" / "report.html")
    content = json.loads((tmp_path / "deep" / "report.json").read_text(encoding="utf-8"))
    assert render(content) == path.read_text(encoding="utf-8")
    assert content == make_content(n_classes=3)


def test_numbers_in_tables_are_those_of_the_content(make_content):
    content = make_content()
    sorted_by = {attrs["data-value"] for _, attrs in Page(render(content)).elements if "data-value" in attrs}
    here = content["prevalence"]
    expected = [here["estimate"][1], *(site["prevalence"][1] for site in here["sites"])]
    expected += [metric["estimate"] for metric in content["performance"]["metrics"].values()]
    expected += [point["after"][1] for c in content["confounders"] if c["kind"] == "levels" for point in c["points"]]
    assert {str(value) for value in expected} <= sorted_by


def test_a_changed_number_changes_the_page(make_content):
    content = make_content()
    html = render(content)
    content["prevalence"]["estimate"][1] = 0.98765
    assert '<span class="figure">98.8%' in render(content)
    assert "98.8%" not in html


def test_nothing_is_asked_of_the_network(make_content):
    page = Page(render(make_content()))
    assert not [a for tag in ("link", "img", "iframe", "object", "video") for a in page.all(tag)]
    for _, attrs in page.elements:
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")
        assert "style" not in attrs


def test_the_policy_allows_the_pages_own_style_and_script_only(make_content):
    html = render(make_content())
    policy = next(a["content"] for a in Page(html).all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        inside = re.search(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL).group(1)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


@pytest.mark.parametrize("n_classes", [2, 10])
def test_figures_and_tables_can_be_read_aloud(make_content, n_classes):
    html = render(make_content(n_classes=n_classes))
    page = Page(html)
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    images = [a for a in page.all("svg") if "aria-hidden" not in a]
    assert images
    for image in images:
        assert image["role"] == "img"
        assert set(image["aria-labelledby"].split()) <= set(ids)
    assert len(page.all("title")) == 1 + len(images)
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(a.get("scope") in ("row", "col") for a in page.all("th"))
    links = [a["href"][1:] for a in page.all("a")]
    assert set(links) <= set(ids)


def test_verdict_comes_first_in_words_and_shape(make_content):
    for verdict, look in (("adapt", "good"), ("care", "care"), ("do not adapt", "stop")):
        html = render(make_content(diagnosis={"verdict": verdict, "sentence": "So it is.", "findings": []}))
        main = html[html.index("<main>") :]
        assert main.index(f'<div class="verdict {look}"') < main.index("<section")
        assert main.index("So it is.") < main.index(f"Verdict: {verdict}")
    icons = {
        re.search(r'<svg class="icon".*?</svg>', render(make_content(diagnosis=d)), re.DOTALL).group()
        for d in (
            None,
            {"verdict": "adapt", "sentence": "Yes.", "findings": []},
            {"verdict": "care", "sentence": "Well.", "findings": []},
            {"verdict": "do not adapt", "sentence": "No.", "findings": []},
        )
    }
    assert len(icons) == 4


def test_every_finding_is_shown_the_most_severe_first(make_content):
    content = make_content()
    words = Page(render(content)).words
    places = [words.index(finding["sentence"]) for finding in content["diagnosis"]["findings"]]
    assert places[1] < places[2] < places[0]  # care, unknown, good
    for finding in content["diagnosis"]["findings"]:
        assert (finding["advice"] in words) == (finding["severity"] != "good")


def one_level(share=(0.6, 0.4)):
    row = np.array([share])
    return Profile("sex", ["female"], np.array([7]), row, row, row, row)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_rows": 1}, "1 unlabeled row,"),
        ({"profiles": []}, "0 confounders"),
        ({"profiles": [one_level()]}, "female"),
        ({"n_classes": 10}, "10 classes"),
        ({"held_out": None, "performance": None, "diagnosis": None, "done": None}, "not checked"),
        ({"training_sites": []}, "this site"),
        ({"threshold": 0.31}, "threshold 31.0%"),
        ({"low": np.array([np.nan, np.nan])}, "–"),
    ],
)
def test_odd_sites_have_a_page(make_content, changes, words):
    html = render(make_content(**changes))
    assert words in Page(html).words
    assert "nan" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", html, flags=re.DOTALL).lower()


def test_a_thousand_levels_stay_readable(make_content):
    share = np.tile([0.8, 0.2], (1000, 1))
    many = Profile("clinic", [f"c{i}" for i in range(1000)], np.arange(1000), share, share, share, share)
    html = render(make_content(profiles=[many]))
    assert "976 more levels" in Page(html).words
    assert len(html) < 200_000


def test_every_training_site_is_drawn_and_listed(make_content):
    sites = [TrainingSite(f"s{i}", i, np.array([0.5, 0.5])) for i in range(100)]
    html = render(make_content(training_sites=sites))
    for i in range(100):
        assert html.count(f">s{i}</") == 2  # in the chart and in the table


def test_a_page_may_not_take_the_place_of_its_numbers(make_content, tmp_path):
    with pytest.raises(ValueError, match=r"choose a page name such as report\.html"):
        write_report(make_content(), tmp_path / "report.json")
    with pytest.raises(ValueError, match=r"is a folder; name the page in it"):
        write_report(make_content(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_words_fit_the_kind_of_data(make_content):
    tables, images = (Page(render(make_content(kind=kind, profiles=[]))).words for kind in ("tables", "images"))
    assert "scanner" in images
    assert not re.search("scanner|image|pixel", tables)


def test_what_changes_for_patients_is_counted(make_content):
    before, after = np.array([[0.9, 0.1]] * 6 + [[0.4, 0.6]] * 4), np.array([[0.9, 0.1]] * 5 + [[0.3, 0.7]] * 5)
    entries = make_content(before=before, after=after)["crossing"]
    assert (entries["rows"], entries["changed"], entries["gained"], entries["lost"]) == (10, 1, 1, 0)
    assert (
        "Of 10 rows, 1 get another decision than as trained (the most probable class): 1 are now" in entries["sentence"]
    )
    weighted = make_content(before=before, after=after, threshold=0.65, sample_weight=np.full(10, 2.0))["crossing"]
    assert (weighted["rows"], weighted["changed"]) == (20, 10)
    assert "(threshold 65.0%)" in weighted["sentence"]
    many = make_content(n_classes=4)["crossing"]
    assert 0 < many["changed"] <= many["rows"] == 500


def test_the_rehearsal_is_a_table(make_content):
    sites = [{"name": f"<b>h{i}</b>", "rows": 100, "before": 0.5, "after": 0.4, "told": 0.3} for i in range(20)]
    html = render(make_content(rehearsal={"sentence": "It went well.", "sites": sites}))
    assert "It went well." in html
    assert html.count("&lt;b&gt;h") == 20
    assert "<b>h" not in html
    assert 'id="rehearsal"' not in render(make_content())


def test_sites_that_are_numbers_have_a_page(make_content):
    sites = [TrainingSite(number, 10, np.array([0.5, 0.5])) for number in (7, 8)]
    assert ">7</" in render(make_content(training_sites=sites))


def test_subgroups_have_a_table_for_each_column_and_notes_instead_of_numbers(make_content):
    html = render(make_content())
    section = re.search(r'<section id="subgroups".*?</section>', html, re.DOTALL).group()
    assert section.count("<table") == 2
    assert "3 row(s) are too few" in section
    assert "A &lt;1&gt;" in section
    small, untold = re.findall(
        r"<tr>(?:(?!</tr>).)*too few(?:(?!</tr>).)*|<tr>(?:(?!</tr>).)*spans(?:(?!</tr>).)*", section
    )
    assert "0.6" not in small + untold
    assert '<section id="subgroups"' not in render(make_content(subgroups=[]))


def test_nothing_is_minus_zero():
    assert wording.fixed(-0.0001) == "0.000"
