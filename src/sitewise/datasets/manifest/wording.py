"""How a message names rows and sites: the first ones and how many, and the spelling that was meant."""

from typing import Any

import numpy as np
import pandas as pd

SHOWN = 10  # of a long list of rows
ROWS_FROM = "(rows count from 0)"


def name_rows(chosen: Any, table: pd.DataFrame, column: str = "path") -> str:
    """Rows by number with what stands there: the first ones and how many."""
    rows = np.flatnonzero(np.asarray(chosen))
    shown = ", ".join(f"row {row} ({table[column].iloc[row]!r})" for row in rows[:SHOWN])
    return f"{len(rows)} row(s): {shown}{and_more(len(rows))}"


def and_more(count: int, before: str = ", ") -> str:
    """What stands after the first ones of a long list."""
    return f"{before}and {count - SHOWN} more" if count > SHOWN else ""
