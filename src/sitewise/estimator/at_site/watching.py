"""Monitor an adapted site over time: its prevalence and the p-value of the stability check in windows of new rows."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from sitewise.adaptation import PrevalenceEstimate
from sitewise.arrays import Problems, read_column
from sitewise.monitoring import monitor
from sitewise.sites import take_rows

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier

Array = np.ndarray[Any, Any]


def watch(
    here: "AdaptedClassifier", X: Any, time: Any, Z: Any, groups: Any, weight: Any, window: int | str, **settings: Any
) -> pd.DataFrame:
    """Score new rows with the site's model, and apply `monitor` to them with the prior of this site."""
    model = here.model
    _, rows, _ = model.read_site(X, Z, None, groups, weight, "monitor")
    problems = Problems("monitor")
    times = read_column(time, "time", len(rows), problems)
    problems.raise_if_any()
    use, schema = rows.supported, model.confounders_
    kept = rows.take(use)
    knows_z = schema is not None and not bool(schema.missing(kept.codes).all())

    def stability(numbers: Array, estimate: PrevalenceEstimate) -> float | None:
        place = torch.tensor(numbers)  # a copy, because pandas returns read-only arrays
        part = replace(kept.take(place), weight=None, groups=None)
        return type(here)(model, estimate, part).checks["stability"].p_value

    return monitor(
        kept.log_ratio.numpy(),
        take_rows(times, use.numpy()),
        schema.decode(kept.codes) if schema is not None and knows_z else None,
        window=window,
        check=stability,
        prior=here.site_prior,
        classes=here.classes_.tolist(),
        model=model.prevalence if knows_z else "constant",
        confounders=schema,
        sample_weight=kept.weight,
        groups=None if kept.groups is None else kept.groups.numpy(),
        random_state=model.random_state,
        **settings,
    )
