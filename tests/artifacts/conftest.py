"""Test processes import what they are asked to do from this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
