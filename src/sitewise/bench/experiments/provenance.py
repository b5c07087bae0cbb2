"""The commit of the code that computed a number."""

import os
import subprocess
from functools import lru_cache
from pathlib import Path

UNKNOWN = "unknown"
ROOT = Path(__file__).resolve().parents[4]


@lru_cache(maxsize=1)
def commit() -> str:
    """Return the commit of the code: the first 12 digits of its hash, with a plus if files in src/ differ from it.

    The environment variable SITEWISE_COMMIT has precedence; it is for copies without git history. The result is
    "unknown" if git does not work or the package is installed outside its repository.
    """
    known = os.environ.get("SITEWISE_COMMIT")
    if known:
        return known[:12]
    try:
        if Path(_git("rev-parse", "--show-toplevel")).resolve() != ROOT:
            return UNKNOWN
        return _git("rev-parse", "HEAD")[:12] + ("+" if _git("status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
