"""Verdict, text and Holm's rule."""

import json

import pytest

from sitewise.diagnosis import Finding
from sitewise.diagnosis.result import conclude, holm


def finding(severity, name="a check", sentence="A sentence."):
    return Finding(name, severity, 0.1, 0.2, sentence, "Do this.")


@pytest.mark.parametrize(
    ("severities", "verdict"),
    [
        ((), "adapt"),
        (("good", "unknown"), "adapt"),
        (("good", "care", "unknown"), "care"),
        (("care", "stop", "good"), "do not adapt"),
    ],
)
def test_the_gravest_finding_decides(severities, verdict):
    assert conclude(map(finding, severities)).verdict == verdict


def test_the_record_is_plain_and_the_page_shows_text_as_text():
    diagnosis = conclude([finding("stop", "<script>", 'said "<b>" \u202e')])
    assert json.loads(json.dumps(diagnosis.to_dict()))["findings"][0]["name"] == "<script>"
    assert "<script>" not in diagnosis._repr_html_()
    assert diagnosis["<script>"].severity == "stop"
    with pytest.raises(KeyError, match="there are <script>"):
        diagnosis["other"]


def test_advice_stands_beside_what_is_wrong_only():
    assert "Do this." in str(finding("care"))
    assert "Do this." not in str(finding("good"))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
