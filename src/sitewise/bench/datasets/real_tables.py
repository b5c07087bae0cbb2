"""Two collections of patients in tables: heart disease at four hospitals, and heart attacks in 16 regions (GUSTO-I)."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sitewise.arrays import Problems
from sitewise.bench.datasets.tables import as_ages, as_levels, as_numbers, as_sexes, read_table
from sitewise.tables.files import open_table
from sitewise.tables.values import MISSING

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
# The published order; the files have no header.
MEASURED = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)
HEART_COLUMNS = (*MEASURED, "num")
HEART_LEVELS = {"sex": (0, 1), "cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "exang": (0, 1), "num": (0, 1, 2, 3, 4)}
# Columns that are measured in at least half of the patients of each hospital; chol, fbs, slope, ca and thal are not.
# If a column is empty at one hospital, P(x|y,z) cannot be the same at all hospitals.
HEART_FEATURES = ("cp", "trestbps", "restecg", "thalach", "exang", "oldpeak")
NEVER_ZERO = ("trestbps", "chol")  # a pressure or a cholesterol of 0 means not measured
HEART_WHERE = "https://doi.org/10.24432/C52P4X"

GUSTO_NAMES = {"regl": "region", "day30": "y", "grpl": "hospital_group_large", "grps": "hospital_group_small"}
GUSTO_NUMBERS = ("pulse", "sysbp", "height", "weight", "ste")
GUSTO_CODES = ("htn", "dia", "prevcvd", "prevcabg", "fam", "pan", "hyp", "hrt", "sho", "ttr")
GUSTO_WORDS = {
    "miloc": {"anterior": "Anterior", "inferior": "Inferior", "other": "Other"},
    "pmi": {"no": "no", "yes": "yes"},
    "smk": {"never": "never", "quit": "quit", "current": "current"},
    "tx": {"sk": "SK", "tpa": "tPA", "sk+tpa": "SK+tPA"},
}
KILLIP = {"i": "I", "ii": "II", "iii": "III", "iv": "IV"}
GUSTO_WHERE = "R package predtools, data set gusto (https://cran.r-project.org/package=predtools)"

NOT_FOUND = "no {name} in {place}: expected {files} there or in a folder {folders} below it; it comes from {where}"
NO_FOLDER = "{name} is not part of the package: give its folder, or set SITEWISE_DATA; it comes from {where}"


@dataclass(frozen=True, eq=False)
class PatientTable:
    """A table with a row for each patient and the columns `site`, `y` (0 or 1), the confounders z, and the features.

    `categorical` are the names of the features whose values are categories.
    """

    name: str
    table: pd.DataFrame
    confounders: tuple[str, ...]
    features: tuple[str, ...]
    categorical: tuple[str, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, in the order of the rows."""
        return tuple(self.table["site"].unique())

    def split(self, site: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the rows of all other sites, and the rows of this site."""
        if site not in self.sites:
            raise KeyError(f"{self.name} has no site {site!r}; the sites are {', '.join(self.sites)}")
        here = self.table["site"] == site
        return self.table[~here].reset_index(drop=True), self.table[here].reset_index(drop=True)

    def site_table(self) -> pd.DataFrame:
        """Return a table with a row for each site: samples, prevalence, and share of missing values in each z."""
        by_site = self.table.groupby("site", sort=False)
        summary = pd.DataFrame({"samples": by_site.size(), "prevalence": by_site["y"].mean()})
        for name in self.confounders:
            summary[f"missing {name}"] = self.table[name].isna().groupby(self.table["site"], sort=False).mean()
        return summary


def load_heart(folder: str | os.PathLike[str] | None = None) -> PatientTable:
    """Read the data set heart disease of UCI: patients of four hospitals.

    There is a file for each hospital, `processed.HOSPITAL.data`. y is 1 if any vessel is narrowed (num > 0); z is age
    and sex. A blood pressure or a cholesterol of 0 counts as missing.

    Parameters
    ----------
    folder : path, optional
        The folder that contains the four files, or a subfolder `heart_disease` with the files. By default it is the
        value of the environment variable SITEWISE_DATA.

    Returns
    -------
    PatientTable
        `table` has a row for each patient; `confounders` and `features` are the names of its columns with z and x.
    """
    files = _find("heart", folder, [f"processed.{name}.data" for name in HOSPITALS], "heart_disease", HEART_WHERE)
    problems = Problems("heart disease")
    parts = [_read_hospital(path, name, problems) for path, name in zip(files, HOSPITALS, strict=True)]
    problems.raise_if_any()
    table = pd.concat(parts, ignore_index=True)
    table.insert(1, "y", (table.pop("num") > 0).astype(int))
    return PatientTable("heart", table, ("age", "sex"), HEART_FEATURES, ("cp", "restecg", "exang"))


def load_gusto(folder: str | os.PathLike[str] | None = None) -> PatientTable:
    """Read GUSTO-I, patients with a heart attack in 16 regions, from `gusto.csv` or `gusto.csv.gz`.

    y is death within 30 days, a site is a region, and z is age, sex and Killip class. Columns may have the names that
    they have in the R package predtools (`regl`, `day30`) or plain names (`region`, `y`).

    Parameters
    ----------
    folder : path, optional
        The folder that contains the file, or a subfolder `gusto` with the file. By default it is the value of the
        environment variable SITEWISE_DATA.

    Returns
    -------
    PatientTable
        `table` has a row for each patient; `confounders` and `features` are the names of its columns with z and x.
    """
    (path,) = _find("gusto", folder, ["gusto.csv"], "gusto", GUSTO_WHERE)
    problems = Problems("gusto")
    header = open_table(path).columns
    given = {new: old for old, new in GUSTO_NAMES.items() if old in header}  # the names of predtools, if used
    columns = ["region", "y", "age", "sex", "Killip", *GUSTO_NUMBERS, *GUSTO_CODES, *GUSTO_WORDS]
    rows = read_table(path, [given.get(name, name) for name in columns], problems)
    rows = rows.rename(columns={old: new for new, old in given.items()})
    problems.raise_if_any()
    target = as_numbers(rows["y"], path, problems)
    _check_levels(target, (0, 1), path, problems)
    if rows["region"].isna().any():
        problems.add(f"{path}, column 'region': {int(rows['region'].isna().sum())} row(s) without a region")
    values = {"site": rows["region"], "y": target, "age": as_ages(rows["age"], path, problems)}
    values |= {
        "sex": as_sexes(rows["sex"], path, problems),
        "Killip": as_levels(rows["Killip"], KILLIP, path, problems),
    }
    values |= {name: as_numbers(rows[name], path, problems) for name in (*GUSTO_NUMBERS, *GUSTO_CODES)}
    values |= {name: as_levels(rows[name], levels, path, problems) for name, levels in GUSTO_WORDS.items()}
    problems.raise_if_any()
    table = pd.DataFrame(values).astype({"y": int})
    order = sorted(table["site"].unique(), key=lambda name: (len(name), name))
    table = table.sort_values("site", key=lambda column: column.map(order.index), kind="stable", ignore_index=True)
    levels = (*GUSTO_CODES, *GUSTO_WORDS)
    return PatientTable("gusto", table, ("age", "sex", "Killip"), (*GUSTO_NUMBERS, *levels), levels)


def _read_hospital(path: Path, hospital: str, problems: Problems) -> pd.DataFrame:
    """Read the file of one hospital and name its columns; a zero that means "not measured" becomes a missing value."""
    raw = pd.read_csv(path, header=None, dtype=str, skipinitialspace=True, keep_default_na=False)
    if raw.shape[1] != len(HEART_COLUMNS):
        problems.add(f"{path}: expected {len(HEART_COLUMNS)} columns, got {raw.shape[1]}: download it again")
        return pd.DataFrame(columns=["site", *HEART_COLUMNS])
    raw.columns = pd.Index(HEART_COLUMNS)
    known = raw.mask(raw.isin(["?", "-9", "-9.0", *MISSING]))
    table = pd.DataFrame({name: as_numbers(known[name], path, problems) for name in HEART_COLUMNS})
    for name, levels in HEART_LEVELS.items():
        _check_levels(table[name], levels, path, problems, missing=name != "num")
    for name in NEVER_ZERO:
        table[name] = table[name].mask(table[name] == 0)
    table["sex"] = table["sex"].map({0.0: "female", 1.0: "male"})
    table.insert(0, "site", hospital)
    return table


def _check_levels(
    column: pd.Series, levels: Sequence[int], path: Path, problems: Problems, *, missing: bool = False
) -> None:
    strange = column[~(column.isin(levels) | (column.isna() & missing))]
    if len(strange):
        problems.add(
            f"{path}, column {column.name!r}: expected one of {', '.join(map(str, levels))}, got {strange.iloc[0]} in "
            f"row {strange.index[0]} (counted from 0), and {len(strange) - 1} more like it"
        )


def _find(name: str, folder: str | os.PathLike[str] | None, files: Sequence[str], below: str, where: str) -> list[Path]:
    """Return the paths of the files, with or without .gz, in a folder or in its subfolder `below`."""
    named = os.environ.get("SITEWISE_DATA") if folder is None else os.fspath(folder)
    if not named:
        raise FileNotFoundError(NO_FOLDER.format(name=name, where=where))
    for place in (Path(named), Path(named) / below):
        by_name: Mapping[str, list[Path]] = {
            file: [path for path in (place / file, place / f"{file}.gz") if path.is_file()] for file in files
        }
        if all(by_name.values()):
            return [paths[0] for paths in by_name.values()]
    raise FileNotFoundError(
        NOT_FOUND.format(name=name, place=named, files=", ".join(files), folders=repr(below), where=where)
    )
