"""The prevalence of a site in time windows, with an alarm for each window in which a check fails."""

from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.arrays import Problems, read_column, read_matrix
from sitewise.diagnosis.result import holm
from sitewise.sites import take_rows

Array = np.ndarray[Any, Any]
Check = Callable[[Array, PrevalenceEstimate], float | None]
COLUMNS = ("time", "start", "end", "n", "class", "estimate", "low", "high", "p_value", "alarm")
ALARM_LEVEL = 0.05


def monitor(
    log_ratio: Any,
    time: Any,
    sample_confounder: Any = None,
    *,
    window: int | str,
    check: Check | None = None,
    alarm_level: float = ALARM_LEVEL,
    level: float = 0.95,
    prior: Any = None,
    classes: Any = None,
    **settings: Any,
) -> pd.DataFrame:
    """Estimate a site's prevalence in each time window.

    Parameters
    ----------
    log_ratio : array-like of shape (n, K)
        log f of the rows, in any order.
    time : array-like of shape (n,)
        Dates or numbers.
    sample_confounder : DataFrame or array-like of shape (n, V), optional
        The confounders z of the rows.
    window : int or str
        The number of rows of a window, or a length of time such as "30D", "W" or "MS" if `time` holds dates. If the
        last window has less than half of the number of rows, it is merged with the window before it. Windows without
        rows are left out.
    check : callable, optional
        A function of a window's row numbers and estimate. It returns the p-value of a check, or None if the check is
        not possible.
    alarm_level : float
        The probability of at least one alarm if nothing changed (Holm's method over all windows).
    level : float
        The confidence level of the interval of each single window.
    prior : Prevalence or SitePrior, optional
        The prior of the site, as in `estimate_prevalence`; the same for all windows.
    classes : sequence, optional
        The names of the K classes.
    **settings : object
        Further arguments of `estimate_prevalence`: model, confounders, random_state, sample_weight, groups and others.

    Returns
    -------
    DataFrame
        One row for each window, in order of time, with the prevalence of the second class; if K > 2, one row for each
        window and class. The columns are `time` (the middle of the window), `start`, `end`, `n`, `class`, `estimate`,
        `low`, `high`, `p_value` and `alarm`.

    Examples
    --------
    >>> frame = monitor(log_ratio, examined_on, Z, window="30D")
    >>> frame[frame["alarm"]]
    """
    ratios = _read_ratios(log_ratio)
    times = _read(ratios, time, window, alarm_level)
    n_classes = ratios.shape[1]
    names = list(range(n_classes)) if classes is None else list(classes)
    by_row = {name: settings.pop(name) for name in ("sample_weight", "groups", "y") if name in settings}
    lines: list[dict[str, Any]] = []
    for rows in split_windows(times, window):
        own = {name: take_rows(value, rows) for name, value in by_row.items()}
        Z = take_rows(sample_confounder, rows)
        estimate = estimate_prevalence(ratios[rows], Z, prior=prior, **own, **settings)
        shares = _shares(estimate, ratios[rows], Z, own.get("sample_weight"), level)
        p_value = None if check is None else check(rows, estimate)
        start, end = times.iloc[rows].min(), times.iloc[rows].max()
        about = {"time": start + (end - start) / 2, "start": start, "end": end, "n": len(rows)}
        judged = {"p_value": np.nan if p_value is None else p_value}
        for k in [1] if n_classes == 2 else range(n_classes):
            lines.append(
                {
                    **about,
                    "class": names[k],
                    **dict(zip(("estimate", "low", "high"), shares[:, k], strict=True)),
                    **judged,
                }
            )
    frame = pd.DataFrame(lines, columns=list(COLUMNS))
    return frame.assign(alarm=_alarms(frame, alarm_level))


def _alarms(frame: pd.DataFrame, alarm_level: float) -> Array:
    """Return which rows of the frame belong to a window with an alarm (Holm's method over all windows)."""
    p_values = frame.groupby("start", sort=False)["p_value"].first().dropna()
    alarming = {start for start, p in zip(p_values.index, holm(p_values.tolist()), strict=True) if p <= alarm_level}
    return frame["start"].isin(alarming).to_numpy()


def _shares(estimate: PrevalenceEstimate, ratios: Array, Z: Any, weight: Any, level: float) -> Array:
    """Return P(y) of a window and the bounds of its interval, (3, K). P(y) is the mean prediction."""
    share = np.average(estimate.predict_proba(ratios, Z), axis=0, weights=weight)
    low, high = (np.asarray(bound) for bound in estimate.interval(level=level))
    return np.stack([share, np.minimum(low, share), np.maximum(high, share)])


def split_windows(time: pd.Series, window: int | str) -> list[Array]:
    """Return the row numbers of each window, in order of time; each row is in one window."""
    order = np.argsort(time.to_numpy(), kind="stable")
    if isinstance(window, str):
        at = pd.Series(order, index=pd.DatetimeIndex(time.iloc[order]))
        return [part.to_numpy() for _, part in at.groupby(pd.Grouper(freq=window)) if len(part)]
    starts = list(range(0, len(order), window))
    if len(starts) > 1 and len(order) - starts[-1] < window / 2:
        starts.pop()
    return np.split(order, starts[1:])


def _read_ratios(log_ratio: Any) -> Array:
    problems = Problems("monitor")
    ratios = read_matrix(log_ratio, "log_ratio", problems)
    problems.raise_if_any()
    assert ratios is not None
    return np.asarray(ratios.cpu().numpy())


def _read(ratios: Array, time: Any, window: int | str, alarm_level: float) -> pd.Series:
    """Check the arguments; return the times."""
    problems = Problems("monitor")
    if not 0 < alarm_level < 1:
        problems.add(f"alarm_level must lie between 0 and 1, got {alarm_level}")
    times = read_column(time, "time", len(ratios), problems)
    if times is None:
        problems.raise_if_any()
    assert times is not None
    times = times.reset_index(drop=True)
    if not pd.api.types.is_numeric_dtype(times) and not pd.api.types.is_datetime64_any_dtype(times):
        dates = pd.to_datetime(times, errors="coerce")
        strange = np.flatnonzero(dates.isna() & times.notna())
        if len(strange):
            problems.add(f"time must hold dates or numbers, got {times[strange[0]]!r} at row {strange[0]}")
        times = dates.where(~dates.isna() | times.isna(), pd.Timestamp(0))  # already reported
    missing = np.flatnonzero(times.isna())
    if len(missing):
        problems.add(f"time is missing in {len(missing)} row(s), first at row {missing[0]}: leave those rows out")
    dated = pd.api.types.is_datetime64_any_dtype(times)
    if isinstance(window, str):
        _check_offset(window, dated, problems)
    elif not isinstance(window, Integral) or isinstance(window, bool) or window < 1:
        problems.add(f"window must be a number of rows from 1 up, or a length of time such as '30D', got {window!r}")
    problems.raise_if_any()
    return times


def _check_offset(window: str, dated: bool, problems: Problems) -> None:
    if not dated:
        problems.add(f"window={window!r} is a length of time, but time holds numbers: give a number of rows")
    try:
        length = pd.tseries.frequencies.to_offset(window)
    except ValueError:
        problems.add(f"window={window!r} is not a length of time that pandas knows, such as '30D', 'W' or 'MS'")
        return
    if length is None or length.n < 1:
        problems.add(f"window={window!r} must be a length of time above zero, such as '30D', 'W' or 'MS'")
