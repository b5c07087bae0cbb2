"""Tests of the columns along which a site's prevalence differs from the training sites."""

from typing import TYPE_CHECKING

import pandas as pd

from sitewise.diagnosis.concentration import shift_concentration
from sitewise.diagnosis.heterogeneity import column_features

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier


def shift_by_column(here: "AdaptedClassifier", columns: pd.DataFrame | None) -> pd.DataFrame:
    """A test for each column, the smallest p-value first; rows where f is not identified are left out."""
    rows, model = here.rows, here.model
    if columns is None:
        if model.confounders_ is None:
            raise ValueError("shift_by_column: the model has no confounders; give columns of the rows adapted on")
        columns = model.confounders_.decode(rows.codes)
    if len(columns) != len(rows):
        raise ValueError(f"shift_by_column: columns has {len(columns)} row(s), the site was adapted on {len(rows)}")
    use = rows.supported
    features = [column_features(columns[name].reset_index(drop=True))[1][use] for name in columns]
    rows = rows.take(use)
    tests = shift_concentration(rows.log_ratio, model.pooled_prevalence_.log_prob(rows.codes), features, rows.weights)
    table = pd.DataFrame([vars(test) for test in tests], index=pd.Index([str(name) for name in columns], name="column"))
    return table.sort_values(["p_value", "statistic"], ascending=[True, False], kind="stable")
