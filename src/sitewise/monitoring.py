"""A site over time: its prevalence in windows of a time column, and alarms where a check breaks."""

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
    """Estimate a site's prevalence window by window.

    Parameters
    ----------
    log_ratio, sample_confounder : the rows, as `estimate_prevalence` takes them, in any order.
    time : (n,) dates or numbers.
    window : how many rows a window has (a last one of less than half joins the one before), or a length of time such
        as "30D", "W" or "MS" where `time` holds dates; windows without rows are left out.
    check : given a window's row numbers and estimate, the p-value of whatever must hold; None where it cannot tell.
    alarm_level : the chance, where all is well, that any of the windows alarms (Holm's rule over their p-values).
    level : of the intervals, one window at a time.
    prior : what is expected of the site, as `estimate_prevalence` takes it; the same for every window.
    classes : names of the K classes.
    settings : further arguments of `estimate_prevalence`: model, confounders, random_state, sample_weight, groups ...

    Returns
    -------
    A frame with a row for each window, in order, about the second of two classes; for K > 2 one for each class too:
    `time` (its middle), `start`, `end`, `n`, `class`, `estimate`, `low`, `high`, `p_value`, `alarm`.

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
        found = _shares(estimate, ratios[rows], Z, own.get("sample_weight"), level)
        p_value = None if check is None else check(rows, estimate)
        start, end = times.iloc[rows].min(), times.iloc[rows].max()
        about = {"time": start + (end - start) / 2, "start": start, "end": end, "n": len(rows)}
        judged = {"p_value": np.nan if p_value is None else p_value}
        for k in [1] if n_classes == 2 else range(n_classes):
            lines.append(
                {
                    **about,
                    "class": names[k],
                    **dict(zip(("estimate", "low", "high"), found[:, k], strict=True)),
                    **judged,
                }
            )
    frame = pd.DataFrame(lines, columns=list(COLUMNS))
    return frame.assign(alarm=_alarms(frame, alarm_level))


def _alarms(frame: pd.DataFrame, alarm_level: float) -> Array:
    """Which rows of the frame are of a window that alarms: its p-value among those of all windows, by Holm's rule."""
    found = frame.groupby("start", sort=False)["p_value"].first().dropna()
    alarming = {start for start, p in zip(found.index, holm(found.tolist()), strict=True) if p <= alarm_level}
    return frame["start"].isin(alarming).to_numpy()


def _shares(estimate: PrevalenceEstimate, ratios: Array, Z: Any, weight: Any, level: float) -> Array:
    """P(Y) of a window with its interval, (3, K): the mean of its predictions, as for a site that is adapted to."""
    share = np.average(estimate.predict_proba(ratios, Z), axis=0, weights=weight)
    low, high = (np.asarray(bound) for bound in estimate.interval(level=level))
    return np.stack([share, np.minimum(low, share), np.maximum(high, share)])


def split_windows(time: pd.Series, window: int | str) -> list[Array]:
    """Row numbers of each window, the earliest first and in the order of time within it; every row is in one."""
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
    """Check everything that is the monitor's own business; return the times."""
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
        times = dates.where(~dates.isna() | times.isna(), pd.Timestamp(0))  # the strange ones are told already
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
