"""The README's example runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
NUMBER = r"-?\d+\.?\d*"


def test_the_example_prints_what_the_readme_says():
    """To the letter but for the last digits, which depend on the processor's arithmetic."""
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README.read_text(), re.DOTALL).groups()
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert re.sub(NUMBER, "#", run.stdout).split() == re.sub(NUMBER, "#", printed).split()
    found, expected = ([float(n) for n in re.findall(NUMBER, text)] for text in (run.stdout, printed))
    assert found == pytest.approx(expected, abs=0.05)


def test_it_fits_on_two_screens():
    """Of about fifty lines each; what is folded does not count."""
    shown = re.sub(r"<details>.*?</details>", "", README.read_text(), flags=re.DOTALL)
    assert len(shown.splitlines()) <= 100


def test_its_summary_of_the_demo_is_what_the_demo_prints():
    text = README.read_text()
    (printed,) = re.findall(r"<details>.*?</details>", text, re.DOTALL)
    rows = {name: re.findall(rf"│ {name} +│ +(\S+)", printed) for name in ("ERM", "GPA")}
    assert re.findall(r"from (0\.\d+) to (0\.\d+)", text) == list(zip(rows["ERM"], rows["GPA"], strict=True))
