"""Propose roles for the columns of a table from their names and values, with a reason for each role."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from sitewise.arrays import Problems
from sitewise.tables.features import MOST_LEVELS, holds_numbers
from sitewise.tables.roles import Roles
from sitewise.tables.values import Array, Place, Rows, is_one_value, levels, numbers, plain

LOOKED_AT = 100_000  # largest number of rows that are examined
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
INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0")
IMAGES = re.compile(r"\.(png|jpe?g|tiff?)$", re.IGNORECASE)
GUESSED_TARGET = "check whether it is the label"
GUESSED_SITE = "site {name!r} was chosen by its values, not by its name: other columns never vary within it"
NO_SITE = "no column looks like the site: name it with --site; without sites their differences are unknown"
NO_FEATURES = {  # kinds of columns that cannot be features, with the reason
    "empty": "it is empty",
    "no value": "its cells are lists, structures or bytes",
    "date": "dates: turn them into a number (days since a start) first",
}
MOST_SITES = 200  # largest number of values of a column that is chosen as the site by its structure
MOST_TARGETS = 20  # largest number of values of a column that is chosen as the target by its name


Answer = tuple[str | tuple[str, ...], str] | None  # one or several columns for a role, and the reason; None: no column


@dataclass(frozen=True)
class Column:
    """A column with its kind, and a summary of its values."""

    name: str
    kind: str  # number, category, date, empty, no value (lists, bytes)
    codes: Array  # (n,) numbers of the distinct values, -1 where missing
    n_distinct: int
    words: frozenset[str]  # in its name, in lower case
    example: str
    low: float = np.nan
    high: float = np.nan

    @property
    def n_known(self) -> int:
        """The number of cells that are not empty."""
        return int((self.codes >= 0).sum())


@dataclass(frozen=True)
class Proposal:
    """Proposed roles with reasons, columns without a role with reasons, and doubts that the user should check."""

    roles: Roles
    reasons: dict[str, str]  # the reason for each role
    left_out: dict[str, str]  # for each column without a role, the reason
    unsure: tuple[str, ...] = ()  # doubts, as sentences or questions


@dataclass
class _Draft:
    """The roles given so far, and the reasons for them."""

    columns: dict[str, Column]
    roles: Roles
    reasons: dict[str, str]

    @property
    def free(self) -> list[Column]:
        """The columns without a role."""
        taken = {name for _, name in self.roles.columns()}
        return [column for name, column in self.columns.items() if name not in taken]

    def give(self, role: str, answer: Answer) -> None:
        """Give a role to the columns of an answer, unless the answer is None or the role is already given."""
        if answer is not None and not getattr(self.roles, role):
            self.roles = self.roles.updated(**{role: answer[0]})
            self.reasons[role] = answer[1]

    def column(self, role: str) -> Column | None:
        """Return the column that has a role of a single column; None if no column has it."""
        return self.columns.get(getattr(self.roles, role))


def propose_roles(rows: Rows, known: Roles | None = None) -> Proposal:
    """Propose roles for the columns of a table; roles in `known` are kept."""
    table = rows.slice(0, LOOKED_AT)
    draft = _Draft({name: _look_at(table, name) for name in table.column_names}, known or Roles(), {})
    draft.give("target", _find_target(draft.free))
    draft.give("site", _find_site(draft.free))
    unsure = []
    if draft.roles.site is None:
        draft.give("site", _find_site_by_structure(draft.free))
        unsure = [NO_SITE if draft.roles.site is None else GUESSED_SITE.format(name=draft.roles.site)]
    if GUESSED_TARGET in draft.reasons.get("target", ""):
        unsure.append(
            f"target {draft.roles.target!r} was chosen as the label because it has two values: is it the label?"
        )
    without_features = _give_inputs(draft, table)
    left_out = {column.name: without_features.get(column.name, "not needed") for column in draft.free}
    return Proposal(draft.roles, draft.reasons, left_out, (*unsure, *_same_as_site(draft)))


def _give_inputs(draft: _Draft, table: Rows) -> dict[str, str]:
    """Give all roles except target and site.

    If the proposed inputs are features, return the reason for each column that is not a feature; otherwise {}.
    """
    if not (draft.roles.features or draft.roles.proba):
        draft.give("image", _find_image(draft.free))
    several = [column for column in draft.free if column.n_distinct > 1]
    draft.give("group", _find_named(several, GROUPS, "rows of one {} belong together"))
    draft.give("id", _find_id(draft.free, table.num_rows))
    draft.give("confounders", _find_confounders(draft.free))
    if draft.roles.features or draft.roles.image:
        return {}
    draft.give("proba", _find_probabilities(draft.free, table))
    if draft.roles.proba:
        return {}
    target, site = draft.column("target"), draft.column("site")
    reasons = {column.name: _why_no_feature(column, target, site, table.num_rows) for column in draft.free}
    usable = tuple(name for name, why in reasons.items() if why is None)
    draft.give("features", (usable, "the other columns with numbers or a few categories"))
    return {name: why for name, why in reasons.items() if why is not None}


def _same_as_site(draft: _Draft) -> list[str]:
    """Return a warning for each confounder that cannot be separated from the site."""
    site = draft.column("site")
    known = [draft.columns[name] for name in draft.roles.confounders if name in draft.columns]
    return [
        f"confounder {column.name!r} is constant within each site: it cannot be separated from the site"
        for column in known
        if site is not None and _constant_within(column, site)
    ]


def _look_at(table: Rows, name: str) -> Column:
    words = frozenset(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower().replace("_", " ")))
    cells = plain(table.column(name))
    if pa.types.is_temporal(cells.type) or not is_one_value(cells.type):
        kind = "date" if pa.types.is_temporal(cells.type) else "no value"
        return Column(name, kind, np.zeros(table.num_rows, dtype=np.int64), 1, words, "")
    cells_as_levels = levels(table, name, Place(), Problems("look"))
    codes, n_distinct = np.asarray(cells_as_levels.codes, dtype=np.int64), len(cells_as_levels.categories)
    example = str(cells_as_levels.categories[0]) if n_distinct else ""
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
    """Find the site by the values of columns, if no name is that of a site.

    Candidates have few values, with 20 or more rows for each on average. The candidate is chosen within whose values
    the largest number of other columns is constant.
    """
    able = [
        column
        for column in columns
        if column.kind in ("category", "number")
        and 2 <= column.n_distinct <= min(MOST_SITES, column.n_known // 20)
        and not column.words & {*CONFOUNDERS, *GROUPS}
    ]
    matches = {
        column.name: [other.name for other in columns if other is not column and _constant_within(other, column)]
        for column in able
    }
    named = max(matches, key=lambda name: len(matches[name]), default=None)
    if named is None or not matches[named]:
        return None
    return named, f"{', '.join(matches[named][:3])} never vary within its values"


def _constant_within(column: Column, site: Column) -> bool:
    """Return whether a column varies between sites but has only one value at each site."""
    both = (column.codes >= 0) & (site.codes >= 0)
    if column.n_distinct < 2 or site.n_distinct < 2 or not both.any():
        return False
    pairs = np.unique(np.stack([site.codes[both], column.codes[both]]), axis=1)
    n_sites = len(np.unique(pairs[0]))
    return bool(pairs.shape[1] == n_sites and n_sites <= both.sum() // 2 and len(np.unique(pairs[1])) > 1)


def _find_named(columns: list[Column], words: Iterable[str], reason: str) -> Answer:
    """Find a column with one of the words in its name.

    If there are several, choose the one with the fewest words in its name, then the one whose word comes first.
    """
    matches = [(len(c.words), n, c, word) for n, word in enumerate(words) for c in columns if word in c.words]
    if not matches:
        return None
    _, _, column, word = min(matches, key=lambda entry: entry[:2])
    return column.name, f"{reason.format(word)}; {column.n_distinct} different values"


def _find_image(columns: list[Column]) -> Answer:
    matches = [c for c in columns if c.kind == "category" and IMAGES.search(c.example)]
    return (matches[0].name, f"paths of images, such as {matches[0].example}") if matches else None


def _find_id(columns: list[Column], n_rows: int) -> Answer:
    for column in columns:
        if "id" in column.words and column.n_distinct == n_rows and n_rows > 1:
            return column.name, "a different value in each row"
    return None


def _find_confounders(columns: list[Column]) -> Answer:
    chosen = [c.name for c in columns if c.words & set(CONFOUNDERS) and c.kind in ("number", "category")]
    if not chosen:
        return None
    return tuple(chosen), f"P(y) often depends on {', '.join(chosen)}; remove those it cannot depend on"


def _find_probabilities(columns: list[Column], table: Rows) -> Answer:
    """Find columns of probabilities: several, with values from 0 to 1, a common prefix, and rows that sum to one."""
    unit = [c.name for c in columns if c.kind == "number" and c.low >= 0 and c.high <= 1 and c.n_distinct > 2]
    stems: dict[str, list[str]] = {}
    for name in unit:
        stems.setdefault(re.split(r"[_\d]", name)[0], []).append(name)
    for columns_of_stem in stems.values():
        if len(columns_of_stem) > 1:
            total = sum(numbers(table, name, Place(), Problems("look")) for name in columns_of_stem)
            if np.allclose(total, 1, atol=1e-3):
                return tuple(
                    columns_of_stem
                ), "numbers between 0 and 1 that sum to one: probably a classifier's probabilities"
    return None


def _why_no_feature(column: Column, target: Column | None, site: Column | None, n_rows: int) -> str | None:
    """Return the reason not to propose a column as a feature; None if it is proposed."""
    if column.kind in NO_FEATURES:
        return NO_FEATURES[column.kind]
    if INDEX.fullmatch(column.name):
        return "it is the index that pandas wrote"
    if column.n_distinct == 1 and column.n_known == n_rows:
        return "it is constant"
    if column.kind == "category" and column.n_distinct > min(MOST_LEVELS, max(2, n_rows // 5)):
        return "text with too many different values"
    if column.words & {"id", *GROUPS}:
        return "it looks like the number of a person or a sample"
    if column.words & set(SITES):
        return "it looks like another name of a site"
    if site is not None and _constant_within(column, site):
        return f"it is constant within each {site.name}: it identifies the site, not the patient"
    if target is not None and _tells(column, target):
        return f"it determines {target.name} exactly: is it another form of the label?"
    return None


def _tells(column: Column, target: Column) -> bool:
    """Return whether a column has few distinct values, and they determine the target in all rows."""
    both = (column.codes >= 0) & (target.codes >= 0)
    if not both.any() or column.n_distinct > max(2, int(both.sum()) // 10) or column.n_distinct < target.n_distinct:
        return False
    pairs = pd.DataFrame({"value": column.codes[both], "label": target.codes[both]}).drop_duplicates()
    return len(pairs) == pairs["value"].nunique() and pairs["label"].nunique() > 1
