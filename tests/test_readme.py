"""The README's example runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_prints_what_the_readme_says():
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README.read_text(), re.DOTALL).groups()
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == printed
