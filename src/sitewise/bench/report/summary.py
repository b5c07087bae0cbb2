"""Functions that read an experiment's summary: a frame with a row for each method, site, draw and metric.

It has the columns in `COLUMNS`. `mean` is the mean over `seeds` with its 95% interval `low`, `high`. `difference` is
the mean difference to the reference, paired by seed, with its interval. `told` marks a method that uses P(Y), labels or
the true g of the test site, or is told which feature to drop. `skipped` is the reason why a method was not run,
otherwise empty. Undefined numbers are NaN.
"""

from collections.abc import Iterable

import pandas as pd

from sitewise.arrays import Problems, did_you_mean

COLUMNS = (
    *("method", "site", "draw", "metric", "seeds", "mean", "low", "high"),
    *("difference", "difference_low", "difference_high", "told", "skipped"),
)
SMALL_IS_GOOD = ("nll", "brier", "ece", "kl", "mse", "error")  # last word in the names of metrics to minimize
INFORMED_MARK = "†"
INFORMED_NOTE = (
    "sees labels of the test site, the true prevalence, or which feature to drop: a reference, not a competitor"
)


def small_is_good(metric: str) -> bool:
    """Whether smaller values of a metric are better."""
    return metric.rsplit("_", 1)[-1] in SMALL_IS_GOOD


def choose(frame: pd.DataFrame, metric: str, *, sites: Iterable[str] = (), draws: Iterable[str] = ()) -> pd.DataFrame:
    """Return the rows of one metric at the named sites and draws (by default all), in the order of the frame."""
    problems = Problems("summary")
    missing = [column for column in COLUMNS if column not in frame]
    if missing:
        problems.add(f"a summary has the columns {', '.join(COLUMNS)}; missing: {', '.join(missing)}")
        problems.raise_if_any()
    wanted = {"metric": [metric], "site": list(sites), "draw": list(draws)}
    chosen = pd.Series(True, index=frame.index)
    for column, names in wanted.items():
        known = [str(name) for name in frame[column].unique()]
        for name in names:
            if name not in known:
                problems.add(f"there is no {column} {name!r}{meant(name, known)}")
        if names:
            chosen &= frame[column].isin(names)
    problems.raise_if_any()
    return frame[chosen]


def meant(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: a similar name, or all names."""
    names = list(known)
    return did_you_mean(name, names) or f"; there are: {', '.join(names) or 'none'}"


def left_out(rows: pd.DataFrame) -> dict[str, str]:
    """Return the reasons why methods were skipped, by method; with the sites and draws if not all were skipped."""
    reasons: dict[str, str] = {}
    for method, own in rows.groupby("method", sort=False):
        parts = []
        for reason, where in own[own["skipped"] != ""].groupby("skipped", sort=False):
            places = "" if len(where) == len(own) else " at " + "; ".join(where["site"] + ", " + where["draw"])
            parts.append(f"{str(reason).rstrip('. ')}{places}")
        if parts:
            reasons[str(method)] = "; ".join(parts)
    return reasons


def shown_methods(rows: pd.DataFrame) -> list[str]:
    """Return the methods that have a number in any row, in the order of the frame."""
    return [str(method) for method in rows.loc[rows["mean"].notna(), "method"].unique()]


def without_number(rows: pd.DataFrame) -> list[str]:
    """Return the methods that were run but do not have the metric, for example because they do not estimate P(Y)."""
    shown, missing = shown_methods(rows), left_out(rows)
    return [str(method) for method in rows["method"].unique() if method not in shown and method not in missing]


def informed_methods(rows: pd.DataFrame) -> set[str]:
    """Return the methods that use information which is not available at a new site."""
    return {str(method) for method in rows.loc[rows["told"].astype(bool), "method"].unique()}


def seeds_note(rows: pd.DataFrame) -> str:
    """Return a note on the number of seeds and the meaning of the interval."""
    counts = rows.loc[rows["mean"].notna(), "seeds"].astype(int)
    if counts.empty or counts.max() <= 1:
        return "one seed, hence no intervals"
    if counts.min() == counts.max():
        return f"mean over {counts.max()} seeds with its 95% interval"
    return f"mean over {counts.min()} to {counts.max()} seeds with its 95% interval"
