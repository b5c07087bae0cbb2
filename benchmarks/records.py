"""Where numbers come from: the versions and the commit that made them."""

import os
import subprocess
from pathlib import Path

import numpy as np
import torch

import sitewise as sw


def provenance():
    """The versions and the commit."""
    versions = {"sitewise": sw.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return versions | {"commit": commit()}


def commit():
    """SITEWISE_COMMIT, where files are copied without their history; else git's, with a plus where src/ differs."""
    known = os.environ.get("SITEWISE_COMMIT")
    if known:
        return known[:12]
    root = Path(__file__).resolve().parents[1]

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD")[:12] + ("+" if git("status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        raise SystemExit("git does not work here: set SITEWISE_COMMIT to the commit that these files are") from None
