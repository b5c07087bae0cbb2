"""Propose roles for the columns of a table, by their names and values, each with a reason."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa

from sitewise.arrays import Problems
from sitewise.tables.features import MOST_LEVELS, holds_numbers
from sitewise.tables.roles import Roles
from sitewise.tables.values import Array, Place, Rows, is_one_value, levels, numbers, plain

LOOKED_AT = 100_000  # rows, of a longer table
TARGETS = (
    *("y", "target", "label", "outcome", "class", "diagnosis", "disease", "malignant", "pneumonia", "death", "dead"),
    *("died", "mortality", "event", "status", "readmitted", "survived"),
)
SITES = (
    *("site", "hospital", "centre", "center", "clinic", "study", "trial", "cohort", "institution", "institute"),
    *("facility", "practice", "region", "country", "scanner", "vendor", "domain", "env", "environment", "location"),
    *("unit", "ward"),
)
CONFOUNDERS = ("age", "sex", "gender", "race", "ethnicity", "ethnic", "insurance", "projection", "anatom", "anatomical")
GROUPS = ("patient", "subject", "person", "lesion", "case", "mrn")
IMAGES = re.compile(r"\.(png|jpe?g|tiff?)$", re.IGNORECASE)
GUESSED_TARGET = "check whether it is the label"
GUESSED_SITE = "site {name!r} was chosen by its values, not by its name: other columns never vary within it"
NO_SITE = "no column looks like the site: name it with --site; without sites their differences are unknown"
MOST_SITES = 200  # values of a column chosen as the site by its structure
MOST_TARGETS = 20  # values of a column chosen as the target by its name


Answer = tuple[str, str] | None  # a column and the reason


@dataclass(frozen=True)
class Column:
    """A column with its kind, its known values, and the number of distinct values."""

    name: str
    kind: str  # number, category, date, empty, no value (lists, bytes)
    codes: Array  # of its distinct values, -1 where missing
    n_distinct: int
    words: frozenset[str]
    example: str
    low: float = np.nan
    high: float = np.nan

    @property
    def n_known(self) -> int:
        """The number of cells that are not empty."""
        return int((self.codes >= 0).sum())


@dataclass(frozen=True)
class Proposal:
    """Roles with reasons, why other columns have none, and questions for the user."""

    roles: Roles
    reasons: dict[str, str]  # by role
    left_out: dict[str, str]  # by column
    unsure: tuple[str, ...] = ()


def propose_roles(rows: Rows, known: Roles | None = None) -> Proposal:
    """Roles for a table's columns; `known` roles are kept."""
    table = rows.slice(0, LOOKED_AT)
    columns = {name: _look_at(table, name) for name in table.column_names}
    roles, reasons, left_out = known or Roles(), dict[str, str](), dict[str, str]()

    def free() -> list[Column]:
        taken = {name for _, name in roles.columns()}
        return [column for name, column in columns.items() if name not in taken]

    def give(role: str, answer: Answer) -> None:
        nonlocal roles
        if answer is not None and getattr(roles, role) is None:
            roles = roles.updated(**{role: answer[0]})
            reasons[role] = answer[1]

    give("target", _find_target(free()))
    give("site", _find_site(free()))
    unsure = []
    if roles.site is None:
        give("site", _find_site_by_structure(free()))
        unsure = [NO_SITE if roles.site is None else GUESSED_SITE.format(name=roles.site)]
    if GUESSED_TARGET in reasons.get("target", ""):
        unsure.append(f"target {roles.target!r} was chosen as the label because it has two values: is it the label?")
    site = None if roles.site is None else columns.get(roles.site)
    if not (roles.features or roles.proba):
        give("image", _find_image(free()))
    give("group", _find_named([c for c in free() if c.n_distinct > 1], GROUPS, "rows of one {} belong together"))
    give("id", _find_id(free(), table.num_rows))
    if not roles.confounders:
        chosen = [c.name for c in free() if c.words & set(CONFOUNDERS) and c.kind in ("number", "category")]
        if chosen:
            roles = replace(roles, confounders=tuple(chosen))
            reasons["confounders"] = f"P(y) often depends on {', '.join(chosen)}; remove those it cannot depend on"
    target = None if roles.target is None else columns.get(roles.target)
    if not (roles.features or roles.image or roles.proba):
        pair = _find_probabilities(free(), table)
        if pair:
            roles = replace(roles, proba=pair)
            reasons["proba"] = "numbers between 0 and 1 that sum to one: probably a classifier's probabilities"
    if not (roles.features or roles.image or roles.proba):
        usable = []
        for column in free():
            why = _why_no_feature(column, target, site, table.num_rows)
            if why is None:
                usable.append(column.name)
            else:
                left_out[column.name] = why
        roles = replace(roles, features=tuple(usable))
        reasons["features"] = "the other columns with numbers or a few categories"
    for column in free():
        left_out.setdefault(column.name, "not needed")
    if site is not None:
        unsure += [
            f"confounder {name!r} is constant within each site: it cannot be separated from the site"
            for name in roles.confounders
            if name in columns and _constant_within(columns[name], site)
        ]
    return Proposal(roles, reasons, left_out, tuple(unsure))


def _look_at(table: Rows, name: str) -> Column:
    words = frozenset(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower().replace("_", " ")))
    cells = plain(table.column(name))
    if pa.types.is_temporal(cells.type) or not is_one_value(cells.type):
        kind = "date" if pa.types.is_temporal(cells.type) else "no value"
        return Column(name, kind, np.zeros(table.num_rows, dtype=np.int64), 1, words, "")
    found = levels(table, name, Place(), Problems("look"))
    codes, n_distinct = np.asarray(found.codes, dtype=np.int64), len(found.categories)
    example = str(found.categories[0]) if n_distinct else ""
    if n_distinct == 0:
        return Column(name, "empty", codes, 0, words, "")
    if not holds_numbers(table, name):
        return Column(name, "category", codes, n_distinct, words, example)
    values = numbers(table, name, Place(), Problems("look"))
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (np.nan, np.nan)
    return Column(name, "number", codes, n_distinct, words, example, low, high)


def _find_target(columns: list[Column]) -> Answer:
    for word in TARGETS:
        for column in columns:
            if word in column.words and 2 <= column.n_distinct <= MOST_TARGETS:
                return column.name, f"its name is that of a label, with {column.n_distinct} different values"
    for column in reversed(columns):
        if column.n_distinct == 2 and not column.words & {*CONFOUNDERS, *SITES}:
            return column.name, f"two different values; {GUESSED_TARGET}"
    return None


def _find_site(columns: list[Column]) -> Answer:
    several = [c for c in columns if 1 <= c.n_distinct <= max(2, c.n_known // 5)]
    return _find_named(several, SITES, "rows come from one {}")


def _find_site_by_structure(columns: list[Column]) -> Answer:
    """A column with few values, each with many rows, within which most other columns never vary."""
    able = [
        column
        for column in columns
        if column.kind in ("category", "number")
        and 2 <= column.n_distinct <= min(MOST_SITES, column.n_known // 20)
        and not column.words & {*CONFOUNDERS, *GROUPS}
    ]
    found = {
        column.name: [other.name for other in columns if other is not column and _constant_within(other, column)]
        for column in able
    }
    named = max(found, key=lambda name: len(found[name]), default=None)
    if named is None or not found[named]:
        return None
    return named, f"{', '.join(found[named][:3])} never vary within its values"


def _constant_within(column: Column, site: Column) -> bool:
    """Whether a column varies, but has one value at each site."""
    both = (column.codes >= 0) & (site.codes >= 0)
    if column.n_distinct < 2 or site.n_distinct < 2 or not both.any():
        return False
    pairs = np.unique(np.stack([site.codes[both], column.codes[both]]), axis=1)
    n_sites = len(np.unique(pairs[0]))
    return bool(pairs.shape[1] == n_sites and n_sites <= both.sum() // 2 and len(np.unique(pairs[1])) > 1)


def _find_named(columns: list[Column], words: Iterable[str], reason: str) -> Answer:
    """The column with one of the words in its name: the shortest name first, then the order of the words."""
    found = [(len(c.words), n, c, word) for n, word in enumerate(words) for c in columns if word in c.words]
    if not found:
        return None
    _, _, column, word = min(found, key=lambda entry: entry[:2])
    return column.name, f"{reason.format(word)}; {column.n_distinct} different values"


def _find_image(columns: list[Column]) -> Answer:
    found = [c for c in columns if c.kind == "category" and IMAGES.search(c.example)]
    return (found[0].name, f"paths of images, such as {found[0].example}") if found else None


def _find_id(columns: list[Column], n_rows: int) -> Answer:
    for column in columns:
        if "id" in column.words and column.n_distinct == n_rows and n_rows > 1:
            return column.name, "a different value in each row"
    return None


def _find_probabilities(columns: list[Column], table: Rows) -> tuple[str, ...]:
    """All free columns between 0 and 1 with a common prefix of their names, if their rows sum to one."""
    unit = [c.name for c in columns if c.kind == "number" and c.low >= 0 and c.high <= 1 and c.n_distinct > 2]
    stems: dict[str, list[str]] = {}
    for name in unit:
        stems.setdefault(re.split(r"[_\d]", name)[0], []).append(name)
    for found in stems.values():
        if len(found) > 1:
            total = sum(numbers(table, name, Place(), Problems("look")) for name in found)
            if np.allclose(total, 1, atol=1e-3):
                return tuple(found)
    return ()


def _why_no_feature(column: Column, target: Column | None, site: Column | None, n_rows: int) -> str | None:
    """Why a column is not proposed as a feature; None if it is."""
    if column.kind == "empty":
        return "it is empty"
    if column.kind == "no value":
        return "its cells are lists, structures or bytes"
    if column.kind == "date":
        return "dates: turn them into a number (days since a start) first"
    if column.n_distinct == 1 and column.n_known == n_rows:
        return "it is constant"
    if column.kind == "category" and column.n_distinct > min(MOST_LEVELS, max(2, n_rows // 5)):
        return "text with too many different values"
    if column.words & {"id"} or column.words & set(GROUPS):
        return "it looks like the number of a person or a sample"
    if column.words & set(SITES):
        return "it looks like another name of a site"
    if site is not None and _constant_within(column, site):
        return f"it is constant within each {site.name}: it identifies the site, not the patient"
    if target is not None and _tells(column, target):
        return f"it determines {target.name} exactly: is it another form of the label?"
    return None


def _tells(column: Column, target: Column) -> bool:
    """Whether few distinct values of a column determine the target in all rows."""
    both = (column.codes >= 0) & (target.codes >= 0)
    if not both.any() or column.n_distinct > max(2, int(both.sum()) // 10) or column.n_distinct < target.n_distinct:
        return False
    pairs = pd.DataFrame({"value": column.codes[both], "label": target.codes[both]}).drop_duplicates()
    return len(pairs) == pairs["value"].nunique() and pairs["label"].nunique() > 1
