"""Split a manifest into parts by shares, or by the roles of whole sites."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sitewise.arrays import Problems
from sitewise.tables.manifest.table import SHOWN, Manifest, and_more, check_sites

logger = logging.getLogger(__name__)


def split_manifest(manifest: Manifest, shares: Mapping[str, float], seed: int = 0) -> dict[str, Manifest]:
    """Split into named parts by shares that sum to one; no group is in two parts.

    Within each site, the groups of each label are split by the shares, as exactly as whole groups allow. The label of a
    group is the highest label of its rows. The order of the rows does not matter.
    """
    problems = Problems("split_manifest")
    if not shares or min(shares.values()) <= 0 or abs(sum(shares.values()) - 1) > 1e-9:
        problems.add(f"shares must be positive and sum to one, got {dict(shares)}")
    problems.raise_if_any()
    units = _units(manifest)
    rng = np.random.default_rng(seed)
    part_of: dict[str, int] = {}
    cuts = np.cumsum(list(shares.values()))[:-1]
    for _, stratum in units.groupby(["sites", "label"], sort=True):
        mixed = stratum.iloc[rng.permutation(len(stratum))]
        middle = (mixed["rows"].cumsum() - mixed["rows"] / 2) / mixed["rows"].sum()
        # A random start; otherwise the only group of a small stratum would always go to the same part.
        places = np.searchsorted(cuts, (middle.to_numpy() + rng.random()) % 1, side="right")
        part_of.update(zip(mixed.index, places, strict=True))
    part = _unit_names(manifest).map(part_of).to_numpy()
    for number, name in enumerate(shares):
        if not (part == number).any():
            problems.add(
                f"the part {name!r} ({shares[name]:g}) got no rows: {len(units)} group(s) are too few for these shares"
            )
    problems.raise_if_any()
    return {name: manifest.take(part == number) for number, name in enumerate(shares)}


@dataclass(frozen=True)
class AssignedSites:
    """The rows of a manifest by the role of their site; `unused` lists sites without a role."""

    training: Manifest
    validation: Manifest | None
    tests: dict[str, Manifest]
    unused: tuple[str, ...]


def assign_sites(
    manifest: Manifest,
    *,
    training: Sequence[str],
    validation: str | Sequence[str] | None = None,
    tests: Sequence[str] = (),
) -> AssignedSites:
    """Give whole sites their roles; one error lists absent sites, sites in two roles and groups in two roles.

    Two test sites may share a group, because no test site is trained on. A site without a role is left out and
    reported.
    """
    held = () if validation is None else (validation,) if isinstance(validation, str) else tuple(validation)
    roles = {"training": tuple(training), "validation": held, "tests": tuple(tests)}
    problems = Problems("assign_sites")
    if not roles["training"]:
        problems.add("training names no site")
    roles_of: dict[str, list[str]] = {}
    for role, site in ((role, site) for role, sites in roles.items() for site in sites):
        roles_of.setdefault(site, []).append(role)
    check_sites(roles_of, manifest, problems)
    for site, where in sorted(roles_of.items()):
        if len(where) > 1:
            problems.add(f"the site {site!r} has more than one role ({', '.join(where)})")
    _check_groups(manifest, {site: where[-1] for site, where in roles_of.items()}, problems)
    problems.raise_if_any()
    unused = tuple(site for site in manifest.sites if site not in roles_of)
    if unused:
        logger.info("sites without a role: %s", ", ".join(unused))
    return AssignedSites(
        training=manifest.at(*roles["training"]),
        validation=manifest.at(*held) if held else None,
        tests={site: manifest.at(site) for site in roles["tests"]},
        unused=unused,
    )


def _check_groups(manifest: Manifest, role_of: dict[str, str], problems: Problems) -> None:
    """Report groups with rows in more than one role."""
    if "group" not in manifest.table:
        return
    known = pd.DataFrame({"group": manifest.table["group"], "role": manifest.table["site"].map(role_of)}).dropna()
    in_roles = known.drop_duplicates().groupby("group")["role"].agg(sorted)
    across = in_roles[in_roles.map(len) > 1]
    if len(across):
        shown = ", ".join(f"{group!r} ({' and '.join(where)})" for group, where in across.iloc[:SHOWN].items())
        problems.add(
            f"{len(across)} group(s) are in more than one role: {shown}{and_more(len(across))}; "
            "leave their rows out of all roles but one"
        )


def _unit_names(manifest: Manifest) -> pd.Series:
    """Return the unit of each row, which a split must keep together: the row's group, or its id if it has no group."""
    alone = "row " + manifest.table["id"].astype(str)
    if "group" not in manifest.table:
        return alone
    group = manifest.table["group"]
    return ("group " + group.astype(str)).where(group.notna(), alone)


def _units(manifest: Manifest) -> pd.DataFrame:
    """Return a table of the units: the number of rows, the sites, and the highest label of the rows."""
    number_of = {label: number for number, label in enumerate(manifest.classes)}
    rows = pd.DataFrame({"unit": _unit_names(manifest), "site": manifest.table["site"].astype(str)})
    rows["label"] = manifest.table["y"].map(number_of) if manifest.labeled else 0
    by_unit = rows.groupby("unit", sort=True)
    sites = rows.drop_duplicates(["unit", "site"]).sort_values(["unit", "site"]).groupby("unit")["site"].agg("|".join)
    return pd.DataFrame({"rows": by_unit.size(), "sites": sites, "label": by_unit["label"].max()})
