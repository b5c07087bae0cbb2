"""The schema of Z, which converts tables to codes and back, and codes to the inputs of a network."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sitewise.arrays import Problems, as_pandas
from sitewise.confounders.variables import (
    Categorical,
    ColumnDigest,
    Notes,
    Variable,
    as_frame,
    learn_variable,
    refuse_infinite,
    resolve_columns,
)

FEW = 16  # rows that are encoded value by value


@dataclass(frozen=True)
class Confounders:
    """The schema of the confounders Z: how each variable is converted to numbers, called codes.

    For a categorical variable, the schema has its categories (levels). For a continuous variable, it has the range, and
    the knots of splines. Learn the schema once, on the training data, with `learn`. All other sites are encoded with
    the same schema.

    Parameters
    ----------
    variables : tuple of Continuous or Categorical
        One variable for each column of Z, in order.

    Examples
    --------
    >>> confounders = Confounders.learn(pd.DataFrame({"age": [41.0, 68.5, None], "sex": ["f", "m", "f"]}))
    >>> confounders.names
    ('age', 'sex')
    >>> codes, notes = confounders.encode(pd.DataFrame({"age": [41.0], "sex": ["m"]}))
    """

    variables: tuple[Variable, ...]

    @classmethod
    def learn(cls, Z: object, categorical: str | int | Iterable[str | int] | None = None) -> "Confounders":
        """Learn the schema from Z.

        A column of strings, objects, categories or booleans is categorical. A column of numbers is categorical if it
        has at most two distinct values and these are whole numbers; otherwise it is continuous.

        Parameters
        ----------
        Z : DataFrame, dict or array of shape (n, V)
            The confounders of the training rows; NaN, None and pd.NA mean missing.
        categorical : str, int or iterable of these, optional
            Names or positions of further columns to treat as categorical.

        Returns
        -------
        Confounders
            The schema.
        """
        problems = Problems("confounders")
        frame = as_frame(Z)
        if frame.shape[1] == 0 or frame.shape[0] == 0:
            problems.add(f"Z needs at least one row and one column, got shape {frame.shape}")
        forced = resolve_columns(categorical, frame.columns, problems)
        for name in frame.columns[frame.columns.duplicated()]:
            problems.add(f"column {name!r} is duplicated in Z: keep one of them")
        problems.raise_if_any()
        variables = [learn_variable(str(c), frame[c], c in forced, problems) for c in frame.columns]
        problems.raise_if_any()
        return cls(tuple(v for v in variables if v is not None))

    @classmethod
    def learn_in_chunks(
        cls, chunks: Iterable[object], categorical: str | int | Iterable[str | int] | None = None
    ) -> "Confounders":
        """Learn the schema as `learn` does, from chunks of rows that do not fit into memory together.

        Parameters
        ----------
        chunks : iterable of DataFrames, dicts or arrays
            The confounders of the training rows, one chunk after the other.
        categorical : str, int or iterable of these, optional
            Names or positions of further columns to treat as categorical.

        Returns
        -------
        Confounders
            The schema.
        """
        problems = Problems("confounders")
        digests: dict[Any, ColumnDigest] = {}
        for Z in chunks:
            frame = as_frame(Z)
            for name in frame.columns:
                refuse_infinite(frame[name], str(name), problems)
                digests.setdefault(name, ColumnDigest()).add(frame[name])
            problems.raise_if_any()
        forced = resolve_columns(categorical, pd.Index(list(digests)), problems)
        variables = [
            learn_variable(str(name), digest.column(), name in forced, problems) for name, digest in digests.items()
        ]
        problems.raise_if_any()
        ranged = [
            digest.with_range(variable)
            for digest, variable in zip(digests.values(), variables, strict=True)
            if variable
        ]
        return cls(tuple(ranged))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variables, in order."""
        return tuple(v.name for v in self.variables)

    def encode(self, Z: object, device: torch.device | None = None, *, quiet: bool = False) -> tuple[Tensor, Notes]:
        """Convert Z to codes.

        Columns of a DataFrame or dict are matched by name, columns of an array by position. An array must have a column
        for each variable. Numbers outside the learned range are clipped to it. Categories that were not learned, and
        all values of a variable without a column, count as missing.

        Parameters
        ----------
        Z : DataFrame, dict or array of shape (n, V)
            The confounders of the rows.
        device : torch.device, optional
            Where to put the codes; the CPU by default.
        quiet : bool
            Whether to omit the warnings about unseen categories, absent columns and ignored columns.

        Returns
        -------
        codes : Tensor of shape (n, V)
            The code of every value: from 1 to 2 within the range of a continuous variable, and 0 if missing; the index
            of the category for a categorical variable, and the number of categories if missing.
        notes : Notes
            How many values were clipped or unseen, and which columns were absent or ignored.
        """
        if isinstance(Z, Encoded):
            if Z.schema == self:
                return Z.codes if device is None else Z.codes.to(device), Z.notes
            Z = Z.schema.decode(Z.codes)
        few = self._encode_few(Z)
        if few is not None:
            return torch.tensor(few, dtype=torch.float64, device=device), Notes()
        problems = Problems("confounders")
        frame, absent, extra = self._match(Z, problems)
        problems.raise_if_any()
        notes = Notes(absent=absent, extra=extra)
        codes = np.empty((len(frame), len(self.variables)))
        for j, variable in enumerate(self.variables):
            if variable.name in absent:
                codes[:, j] = variable.missing_code
                continue
            column = frame[variable.name]
            refuse_infinite(column, variable.name, problems)
            codes[:, j] = variable.encode(column, problems, notes)
        problems.raise_if_any()
        if not quiet:
            notes.warn(stacklevel=4)
        return torch.tensor(codes, device=device), notes

    def _encode_few(self, Z: object) -> list[list[Any]] | None:
        """Encode a few ordinary rows value by value, which is faster than pandas operations for so few rows.

        Return None if there are too many rows, if columns are absent or ignored, or if a value needs the full checks.
        """
        if not isinstance(Z, pd.DataFrame | np.ndarray) or Z.ndim != 2 or not 0 < len(Z) <= FEW:
            return None
        names = self.names
        given = [str(name) for name in Z.columns] if isinstance(Z, pd.DataFrame) else list(names)
        if Z.shape[1] != len(names) or set(given) != set(names):
            return None
        rows = Z.to_numpy(dtype=object) if isinstance(Z, pd.DataFrame) else Z
        places = [given.index(name) for name in names]
        codes = [
            [variable.code(row[place]) for variable, place in zip(self.variables, places, strict=True)]
            for row in rows.tolist()
        ]
        return None if any(None in row for row in codes) else codes

    def decode(self, codes: Tensor) -> pd.DataFrame:
        """Convert codes back to values.

        Parameters
        ----------
        codes : Tensor of shape (n, V)
            Codes as `encode` returns them.

        Returns
        -------
        DataFrame
            One column for each variable: numbers within the learned range, or categories; NaN or None where missing.
        """
        columns: dict[str, Any] = {}
        for column, variable in zip(codes.cpu().numpy().T, self.variables, strict=True):
            if isinstance(variable, Categorical):
                levels = np.array([*variable.levels, None], dtype=object)
                columns[variable.name] = levels[column.astype(np.int64)]
            else:
                values = variable.low + 2 * ((column - 1.0) * (variable.high / 2 - variable.low / 2))  # cannot overflow
                columns[variable.name] = np.where(
                    column == variable.missing_code, np.nan, np.clip(values, variable.low, variable.high)
                )
        return pd.DataFrame(columns, index=range(len(codes)))

    def missing_codes(self, device: torch.device | None = None) -> Tensor:
        """Return the codes of a row with all values missing.

        Parameters
        ----------
        device : torch.device, optional
            Where to put the codes; the CPU by default.

        Returns
        -------
        Tensor of shape (V,)
            For each variable, the code that stands for a missing value.
        """
        return torch.tensor([v.missing_code for v in self.variables], dtype=torch.float64, device=device)

    def missing(self, codes: Tensor) -> Tensor:
        """Return which entries are missing.

        Parameters
        ----------
        codes : Tensor of shape (n, V)
            Codes as `encode` returns them.

        Returns
        -------
        Tensor of shape (n, V)
            True where a value is missing.
        """
        return codes == self.missing_codes(codes.device)

    def knock_out(self, codes: Tensor, mask: Tensor) -> Tensor:
        """Replace entries by the code for "missing" (equation 5). f and g must then get the same codes.

        Parameters
        ----------
        codes : Tensor of shape (n, V)
            Codes as `encode` returns them.
        mask : Tensor of bool, shape (n, V)
            True for the entries to replace.

        Returns
        -------
        Tensor of shape (n, V)
            The codes with the masked entries missing.
        """
        return torch.where(mask, self.missing_codes(codes.device).to(codes.dtype), codes)

    def inputs(self, codes: Tensor) -> Tensor:
        """Convert codes to the input columns of a network.

        A continuous variable has two columns: its code, and a flag that is 1 if the value is missing. A categorical
        variable has a flag for each category, and one for missing. So the last column of each variable flags missing
        values.

        Parameters
        ----------
        codes : Tensor of shape (n, V)
            Codes as `encode` returns them.

        Returns
        -------
        Tensor of shape (n, D)
            The D columns of all variables, side by side.
        """
        blocks = []
        for j, variable in enumerate(self.variables):
            column = codes[:, j]
            if isinstance(variable, Categorical):
                blocks.append(torch.nn.functional.one_hot(column.long(), len(variable.levels) + 1).to(codes.dtype))
            else:
                blocks.append(torch.stack([column, (column == variable.missing_code).to(codes.dtype)], dim=1))
        return torch.cat(blocks, dim=1)

    def missing_columns(self) -> list[int]:
        """Return which columns of the result of `inputs` flag missing values.

        Returns
        -------
        list of int
            One column index for each variable.
        """
        widths = [len(v.levels) + 1 if isinstance(v, Categorical) else 2 for v in self.variables]
        return (np.cumsum(widths) - 1).tolist()  # type: ignore[no-any-return]

    def _match(self, Z: object, problems: Problems) -> tuple[pd.DataFrame, tuple[str, ...], tuple[str, ...]]:
        Z = as_pandas(Z)
        frame = as_frame(Z)
        if not isinstance(Z, pd.DataFrame | dict):
            if frame.shape[1] != len(self.names):
                problems.add(
                    f"Z must have {len(self.names)} column(s) ({', '.join(self.names)}), got {frame.shape[1]}: "
                    "an array is matched by position; use a DataFrame to leave columns out"
                )
                return frame, (), ()
            return frame.set_axis(list(self.names), axis=1), (), ()
        frame = frame.set_axis([str(c) for c in frame.columns], axis=1)
        for name in frame.columns[frame.columns.duplicated()]:
            problems.add(f"column {name!r} is duplicated in Z: keep one of them")
        absent = tuple(n for n in self.names if n not in frame.columns)
        extra = tuple(c for c in frame.columns if c not in self.names)
        if len(absent) == len(self.names):
            problems.add(f"Z has none of the confounders {list(self.names)}; its columns are {list(frame.columns)}")
            return frame, absent, extra
        return frame, absent, extra


@dataclass(frozen=True, eq=False)
class Encoded:
    """An encoded Z. `Confounders.encode` accepts it in place of a table and returns its codes."""

    schema: Confounders
    codes: Tensor  # (n, V)
    notes: Notes = field(default_factory=Notes)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> "Encoded":
        """Return some of the rows, with the notes of all rows."""
        return Encoded(self.schema, self.codes[rows], self.notes)


def mask_patterns(n_variables: int, knockout: float) -> list[tuple[Tensor, float]]:
    """List sets of knocked-out variables and their probabilities, except the empty and the full set (equation 5).

    Each set is a mask (V,) of the variables that are missing. With up to six variables all sets are listed, with more a
    fixed random sample of at most 64. The empty set does not change z, and for the full set g is the marginal. These
    two cases are computed exactly where they are needed.
    """
    if n_variables > 6:
        drawn = np.random.default_rng(0).random((64, n_variables)) < knockout
        return [(torch.tensor(mask), 1 / 64) for mask in drawn if mask.any() and not mask.all()]
    patterns = []
    for bits in range(1, 2**n_variables - 1):
        mask = torch.tensor([bool(bits >> j & 1) for j in range(n_variables)])
        n_out = int(mask.sum())
        patterns.append((mask, knockout**n_out * (1 - knockout) ** (n_variables - n_out)))
    return patterns
