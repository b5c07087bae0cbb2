"""Adjusted against unadjusted probabilities at real hospitals, including the failures."""

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sitewise as sw

FEATURES = ["cp", "trestbps", "thalach", "exang", "oldpeak", "restecg", "fbs"]
Z = ["age", "sex"]


def classifier():
    imputer = SimpleImputer(add_indicator=True, keep_empty_features=True)
    return make_pipeline(imputer, StandardScaler(), LogisticRegression(max_iter=2000, C=0.1))


@pytest.mark.filterwarnings("ignore")
def test_heart_disease_in_switzerland(real_data):
    """Prevalence .94 after .49 in training, seen through a classifier whose rows of one class differ between hospitals.

    The rehearsal at the other hospitals limits how far 123 rows are trusted. The interval says how little is known:
    the 99% one holds the truth (the 95% one ends at .93); the diagnosis says not to rely on it.
    """
    heart = pd.read_csv(real_data("heart_disease") / "heart.csv")
    source, there = (
        heart[rows].reset_index(drop=True) for rows in (heart.site != "switzerland", heart.site == "switzerland")
    )
    adjuster = sw.PrevalenceAdjuster(classifier())
    adjuster.fit(source[FEATURES], source.y.to_numpy(), sample_domain=source.site, sample_confounder=source[Z])
    here = adjuster.adapt(there[FEATURES], sample_confounder=there[Z])
    y = there.y.to_numpy()
    before, after = (
        -np.log(proba[np.arange(len(y)), y]).mean()
        for proba in (adjuster.estimator_.predict_proba(there[FEATURES]), here.predict_proba(there[FEATURES], there[Z]))
    )
    assert after < before
    low, high = (bound[1] for bound in here.prevalence_interval(level=0.99))
    assert low <= y.mean() <= high
    assert high - low > 0.3
    assert here.diagnose().verdict != "adapt"  # scores differ, no more than they do between the other hospitals
