"""The roles of a table's columns, given by keywords or read from a TOML file."""

import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from sitewise.arrays import Problems, did_you_mean

INPUTS = ("features", "image", "proba")
LISTS = ("confounders", "features", "proba", "categorical", "classes")

NO_INPUT = "name the inputs: features, an image column, or the columns of a classifier's probabilities"
SEVERAL_INPUTS = "{given} are given: a model reads one kind of input, features, images or probabilities"
TWO_ROLES = "column {name!r} has two roles ({roles}): give it one"
STRAY_CATEGORICAL = "categorical names {name!r}, which is neither a feature nor a confounder{meant}"


@dataclass(frozen=True)
class Roles:
    """The roles of the columns of a table: which column is the label, which the site, which are confounders, and so on.

    Attributes
    ----------
    target : str or None
        The column of the label; None for a table without labels.
    site : str or None
        The column with the site of each row: its hospital, scanner or country. None: all rows are from one site.
    confounders : tuple of str
        The columns of z, on which P(y) may depend in addition to the site, for example age and sex.
    features : tuple of str
        The columns of x, which hold numbers or categories. Give exactly one of `features`, `image` and `proba`.
    image : str or None
        The column with the path, or the bytes, of an image file.
    proba : tuple of str
        The columns with the probabilities that a classifier predicts: one for each class. For two classes, the column
        of the second class is enough.
    group : str or None
        The column with the group of each row, for example the patient. The rows of a group are never split between
        training and validation.
    id : str or None
        The column with an identifier of each row, which is copied to the predictions.
    categorical : tuple of str
        Columns of features and confounders that hold numbers but are read as categories.
    classes : tuple
        The labels, in the order of the columns in `proba`. If it is empty, the labels are those of the target column,
        sorted, and the columns in `proba` must have this order.

    Examples
    --------
    >>> roles = Roles(target="sick", site="hospital", confounders=("age", "sex"), features=("crp", "bp"))
    """

    target: str | None = None
    site: str | None = None
    confounders: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    image: str | None = None
    proba: tuple[str, ...] = ()
    group: str | None = None
    id: str | None = None
    categorical: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def check(self, problems: Problems) -> None:
        """Add to `problems` what is wrong with the roles, for example two kinds of inputs or a column with two roles.

        Parameters
        ----------
        problems : Problems
            A list of messages; its method `raise_if_any` raises one error with all of them.
        """
        given = [name for name in INPUTS if getattr(self, name)]
        if not given:
            problems.add(NO_INPUT)
        elif len(given) > 1:
            problems.add(SEVERAL_INPUTS.format(given=" and ".join(given)))
        roles_of: dict[str, list[str]] = {}
        for role, name in self.columns():
            roles_of.setdefault(name, []).append(role)
        for name, roles in roles_of.items():
            if len(roles) > 1 and set(roles) - {"id", "group", "image"}:  # the path of an image may also be its id
                problems.add(TWO_ROLES.format(name=name, roles=", ".join(roles)))
        own = (*self.features, *self.confounders)
        for name in (name for name in self.categorical if name not in own):
            problems.add(STRAY_CATEGORICAL.format(name=name, meant=did_you_mean(name, own)))

    def columns(self) -> list[tuple[str, str]]:
        """List all columns that have a role.

        Returns
        -------
        list of tuple
            Pairs of a role and the name of a column, such as ("target", "sick").
        """
        pairs: list[tuple[str, str]] = []
        for role in ("target", "site", "confounders", "features", "image", "proba", "group", "id"):
            value = getattr(self, role)
            pairs += [(role, name) for name in ((value,) if isinstance(value, str) else value or ())]
        return pairs

    def updated(self, **given: Any) -> "Roles":
        """Return the roles with some of them replaced.

        If one of `features`, `image` and `proba` is given, the other two are cleared.

        Parameters
        ----------
        **given : str or sequence of str
            The new values of attributes of this class, by their names; None and empty values are ignored.

        Returns
        -------
        Roles
            The changed roles.
        """
        changes = {name: value for name, value in given.items() if value}
        if any(name in changes for name in INPUTS):
            changes = {name: () if name in LISTS else None for name in INPUTS} | changes
        read: dict[str, Any] = {name: tuple(v) if name in LISTS else v for name, v in changes.items()}
        return replace(self, **read)


def read_roles(path: str | os.PathLike[str]) -> Roles:
    """Read roles from a TOML file, such as `sitewise init` writes; one error lists all problems."""
    place = Path(path)
    if not place.is_file():
        near = [other.name for other in place.parent.glob("*.toml")] if place.parent.is_dir() else []
        raise FileNotFoundError(f"there is no file {place}{did_you_mean(place.name, near)}")
    try:
        content = tomllib.loads(place.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{place} is not TOML ({error})") from error
    problems = Problems(f"roles {place}")
    known = [field.name for field in fields(Roles)]
    for name, value in content.items():
        if name in known:
            _check_value(name, value, problems)
        else:
            problems.add(f"{name!r} is not a role{did_you_mean(name, known)}; the roles are {', '.join(known)}")
    problems.raise_if_any()
    read: dict[str, Any] = {name: tuple(map(str, v)) if name in LISTS else v for name, v in content.items()}
    return Roles(**read)


def _check_value(role: str, value: Any, problems: Problems) -> None:
    """Report a value of the wrong kind."""
    if role in LISTS and not (isinstance(value, list) and all(isinstance(v, str | int) for v in value)):
        problems.add(f'{role} must be a list of names, such as ["age", "sex"], got {value!r}')
    elif role not in LISTS and not isinstance(value, str):
        problems.add(f"{role} must be the name of a column, got {value!r}")


def roles_as_toml(roles: Roles, reasons: Mapping[str, str] | None = None, comment: Iterable[str] = ()) -> str:
    """Return roles as TOML for `read_roles`. `comment` comes first; each role has its reason as a comment above it."""
    lines = [f"# {_one_line(line)}" for line in comment]
    for name, value in asdict(roles).items():
        if not value:
            continue
        if reasons and name in reasons:
            lines.append(f"# {_one_line(reasons[name])}")
        lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def split_names(text: str | None) -> tuple[str, ...]:
    """Split names that are separated by commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _toml(value: str | Sequence[str]) -> str:
    if isinstance(value, str):
        # Basic strings of TOML have the escapes of JSON, except surrogates; JSON leaves one control character as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "[" + ", ".join(_toml(name) for name in value) + "]"


def _one_line(text: str) -> str:
    """Return a text on one line: a line break in a comment must not start a line of TOML."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
