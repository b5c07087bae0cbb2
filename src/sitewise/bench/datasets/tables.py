"""Tables of published collections: find them in a folder, read them as text, and check and convert their columns."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

import pandas as pd

from sitewise.arrays import Problems, did_you_mean
from sitewise.tables.files import TableFile, open_table
from sitewise.tables.values import Place, find_columns, known_text, plain

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".dcm", ".dicom")
DICOM_SUFFIXES = (".dcm", ".dicom")
SHRUNK = "_downsampled"  # suffix of the id of an image that was made smaller, in the ISIC challenge
SEXES = {"f": "female", "female": "female", "m": "male", "male": "male"}
NO_SEX = ("o", "u", "unknown", "other")
OLDEST = 120  # years; a higher age is wrong and counts as missing (the first NIH release has 414)
UNITS = {"Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}


@dataclass(frozen=True, eq=False)
class Folder:
    """The content of a folder: files that are not images, and the path of each image by its stem."""

    root: Path
    others: tuple[str, ...]
    images: dict[str, str]

    def find(self, *patterns: str) -> list[Path]:
        """Return the files whose name matches a pattern, ignoring case and .gz, in the order of the patterns."""
        matches: list[Path] = []
        for pattern in patterns:
            for other in self.others:
                name = os.path.basename(other).lower().removesuffix(".gz")
                if fnmatch(name, pattern.lower()) and self.root / other not in matches:
                    matches.append(self.root / other)
        return matches


def scan(root: str | os.PathLike[str], *, images: bool = True) -> Folder:
    """List all files in a folder and its subfolders (links are not followed).

    Without `images`, image files are not listed, and only the folder and its direct subfolders are searched. If there
    are several images with the same id, other formats are preferred to DICOM, and full size to a smaller size.
    """
    base = Path(root)
    if not base.is_dir():
        near = get_close_matches(base.name, [p.name for p in base.parent.glob("*") if p.is_dir()], n=1)
        hint = f", did you mean {base.with_name(near[0])}?" if near else ""
        raise FileNotFoundError(f"there is no folder {base}{hint}")
    others: list[str] = []
    entries: list[tuple[bool, bool, str, str]] = []
    for folder, below, files in os.walk(base):
        below.sort()
        relative = os.path.relpath(folder, base)
        if not images and relative != os.curdir:
            below.clear()
        for name in files:
            path = os.path.normpath(os.path.join(relative, name))
            stem, suffix = os.path.splitext(name)
            if suffix.lower() not in IMAGE_SUFFIXES:
                others.append(path)
            elif images:
                short = stem.removesuffix(SHRUNK)
                entries.append((suffix.lower() in DICOM_SUFFIXES, short != stem, path, short))
    place = {stem: path for _, _, path, stem in sorted(entries, reverse=True)}
    return Folder(base, tuple(sorted(others)), place)


def read_table(path: Path, columns: Sequence[str], problems: Problems, *, optional: Sequence[str] = ()) -> pd.DataFrame:
    """Read some columns of a CSV file (.tab and .tsv are separated by tabs) as text; empty cells are missing values.

    If a column in `columns` is absent, a problem is added that suggests a similar name. Absent columns, also those in
    `optional`, are returned with missing values only.
    """
    table = open_collection(path)
    there = [name for name in (*columns, *optional) if name in table.columns]
    find_columns(table.columns, [("", name) for name in columns], Place(str(path)), problems)
    rows = table.read(there)
    cells = {name: known_text(plain(rows.column(name))).to_pandas() for name in there}
    frame = pd.DataFrame(cells, index=range(rows.num_rows), dtype=object)
    return frame.where(frame.notna() & (frame != "none"), None).reindex(columns=[*columns, *optional]).astype(object)


def open_collection(path: Path) -> TableFile:
    """Open a table of a collection; a file without a suffix is read as separated by commas."""
    return open_table(path, separator=None if Path(path.name.removesuffix(".gz")).suffix else ",")


def as_numbers(column: pd.Series, path: Path, problems: Problems) -> pd.Series:
    """Convert text to numbers; other text is a problem, reported with its row (counted from 0)."""
    numbers = pd.to_numeric(column, errors="coerce")
    _note(column[numbers.isna() & column.notna()], path, "a number", problems)
    return numbers.astype(float)


def as_ages(column: pd.Series, path: Path, problems: Problems) -> pd.Series:
    """Convert numbers, or DICOM ages such as 057Y, 011M, 003W and 021D, to years. 85+ is 85; above 120 is missing."""
    text = column.astype(object).map(lambda value: str(value).strip().upper().removesuffix("+"), na_action="ignore")
    unit = text.map(lambda value: UNITS.get(value[-1:], 1.0), na_action="ignore").astype(float)
    plain = text.map(lambda value: value[:-1] if value[-1:] in UNITS else value, na_action="ignore")
    numbers = pd.to_numeric(plain, errors="coerce").astype(float)
    _note(column[(numbers.isna() | (numbers < 0)) & column.notna()], path, "an age like 57 or 057Y", problems)
    years = numbers * unit
    return years.where(years.between(0, OLDEST))


def as_sexes(column: pd.Series, path: Path, problems: Problems) -> pd.Series:
    """Convert text to "female" or "male"; other and unknown count as missing."""
    return as_levels(column, SEXES | {name: None for name in NO_SEX}, path, problems)


def as_levels(column: pd.Series, levels: Mapping[str, str | None], path: Path, problems: Problems) -> pd.Series:
    """Convert text to levels by a table of lower-case words (None means missing).

    A word that is not in the table is a problem, reported with its row.
    """
    words = column.astype(object).map(lambda value: str(value).strip().lower(), na_action="ignore")
    _note(column[words.notna() & ~words.isin(list(levels))], path, f"one of {', '.join(levels)}", problems, levels)
    known = {word: level for word, level in levels.items() if level is not None}
    return words.map(known).astype(object)


def _note(strange: pd.Series, path: Path, expected: str, problems: Problems, known: Iterable[str] = ()) -> None:
    if len(strange):
        value, row = strange.iloc[0], strange.index[0]
        where = f"row {row}" + (" (counted from 0)" if isinstance(row, int) else "")
        more = f", and {len(strange) - 1} more like it" if len(strange) > 1 else ""
        near = did_you_mean(str(value), known)
        problems.add(f"{path}, column {strange.name!r}: expected {expected}, got {value!r} in {where}{near}{more}")
