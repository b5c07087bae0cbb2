"""What a table's columns are for: by keywords, or from a small TOML file."""

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

NO_INPUT = "name what predicts: features, an image column, or the columns of a classifier's probabilities"
SEVERAL_INPUTS = "{given} are given: a model reads one kind of input, features, images or probabilities"
TWO_ROLES = "column {name!r} has two roles ({roles}): give it one"
STRAY_CATEGORICAL = "categorical names {name!r}, which is neither a feature nor a confounder{meant}"


@dataclass(frozen=True)
class Roles:
    """The columns of a table by what they are for.

    Attributes
    ----------
    target : the label; None for a table without.
    site : the hospital, scanner or country that a row comes from; None where all rows are of one.
    confounders : what P(y) may depend on besides the site: age, sex.
    features, image, proba : what predicts, one of the three: columns of numbers and categories; one column with the
        path of an image; a classifier's probabilities, a column for each class or P of the second of two.
    group : rows that belong together (a patient), never split between training and validation.
    id : what a row is called in the predictions.
    categorical : features and confounders whose numbers are categories.
    classes : the labels, in the order of `proba`; sorted otherwise.
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
        """Note roles that cannot be meant together."""
        given = [name for name in INPUTS if getattr(self, name)]
        if not given:
            problems.add(NO_INPUT)
        elif len(given) > 1:
            problems.add(SEVERAL_INPUTS.format(given=" and ".join(given)))
        roles_of: dict[str, list[str]] = {}
        for role, name in self.columns():
            roles_of.setdefault(name, []).append(role)
        for name, roles in roles_of.items():
            if len(roles) > 1 and set(roles) - {"id", "group", "image"}:  # an image's path may be its name as well
                problems.add(TWO_ROLES.format(name=name, roles=", ".join(roles)))
        own = (*self.features, *self.confounders)
        for name in (name for name in self.categorical if name not in own):
            problems.add(STRAY_CATEGORICAL.format(name=name, meant=did_you_mean(name, own)))

    def columns(self) -> list[tuple[str, str]]:
        """Every column that has a role, with it."""
        found: list[tuple[str, str]] = []
        for role in ("target", "site", "confounders", "features", "image", "proba", "group", "id"):
            value = getattr(self, role)
            found += [(role, name) for name in ((value,) if isinstance(value, str) else value or ())]
        return found

    def updated(self, **given: Any) -> "Roles":
        """The same with what is given, where that is not None or empty; another kind of input replaces the old one."""
        changes = {name: value for name, value in given.items() if value}
        if any(name in changes for name in INPUTS):
            changes = {name: () if name in LISTS else None for name in INPUTS} | changes
        read: dict[str, Any] = {name: tuple(v) if name in LISTS else v for name, v in changes.items()}
        return replace(self, **read)


def read_roles(path: str | os.PathLike[str]) -> Roles:
    """Read roles from a TOML file, as `sitewise init` writes it; everything wrong with it is one error."""
    place = Path(path)
    if not place.is_file():
        near = [other.name for other in place.parent.glob("*.toml")] if place.parent.is_dir() else []
        raise FileNotFoundError(f"there is no file {place}{did_you_mean(place.name, near)}")
    try:
        found = tomllib.loads(place.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{place} is not TOML ({error})") from error
    problems = Problems(f"roles {place}")
    known = [field.name for field in fields(Roles)]
    for name, value in found.items():
        if name not in known:
            problems.add(f"{name!r} is no role{did_you_mean(name, known)}; the roles are {', '.join(known)}")
        elif name in LISTS and not (isinstance(value, list) and all(isinstance(v, str | int) for v in value)):
            problems.add(f'{name} must be a list of names, such as ["age", "sex"], got {value!r}')
        elif name not in LISTS and not isinstance(value, str):
            problems.add(f"{name} must be the name of a column, got {value!r}")
    problems.raise_if_any()
    read: dict[str, Any] = {name: tuple(map(str, v)) if name in LISTS else v for name, v in found.items()}
    return Roles(**read)


def roles_as_toml(roles: Roles, reasons: Mapping[str, str] | None = None, comment: Iterable[str] = ()) -> str:
    """Roles as TOML that `read_roles` reads, the reason for each role above it."""
    lines = [f"# {_one_line(line)}" for line in comment]
    for name, value in asdict(roles).items():
        if not value:
            continue
        if reasons and name in reasons:
            lines.append(f"# {_one_line(reasons[name])}")
        lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def split_names(text: str | None) -> tuple[str, ...]:
    """Names that stand with commas between."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _toml(value: str | Sequence[str]) -> str:
    if isinstance(value, str):
        # TOML's basic strings have JSON's escapes, but none for half a letter; of control signs JSON leaves one.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "[" + ", ".join(_toml(name) for name in value) + "]"


def _one_line(text: str) -> str:
    """A comment of one line whatever the data holds: a name with a line break must not become a role."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
