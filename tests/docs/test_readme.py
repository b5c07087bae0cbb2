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
    shown, expected = ([float(n) for n in re.findall(NUMBER, text)] for text in (run.stdout, printed))
    assert shown == pytest.approx(expected, abs=0.05)


def test_it_fits_on_two_screens():
    """Of about fifty lines each; what is folded does not count."""
    shown = re.sub(r"<details>.*?</details>", "", README.read_text(), flags=re.DOTALL)
    assert len(shown.splitlines()) <= 100


def test_its_summary_of_the_demo_is_that_of_the_recorded_seeds():
    page = (README.parent / "docs" / "demo.md").read_text()
    means = {name: re.findall(rf"\| {name} \| (\S+)", page) for name in ("ERM", "GPA")}
    summary = re.search(r"\(ERM\) has an F1 of ([\d.]+) and ([\d.]+), and GPA (\S+) and (\S+) ", README.read_text())
    assert [float(value) for value in summary.groups()] == pytest.approx(
        [float(value) for value in (*means["ERM"], *means["GPA"])], abs=0.0051
    )
