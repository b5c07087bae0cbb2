"""One clear error that names everything wrong."""

import numpy as np
import pandas as pd
import pytest

import sitewise as sw

RNG = np.random.default_rng(0)
LOG_RATIO = RNG.normal(size=(10, 2))
Z = pd.DataFrame({"age": RNG.uniform(20, 90, 10), "sex": list("mfmfmfmfmf")})


def with_nan():
    bad = LOG_RATIO.copy()
    bad[3, 0] = np.nan
    return bad


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"log_ratio": with_nan()}, r"NaN in 1 row\(s\), first at row 3"),
        ({"log_ratio": LOG_RATIO[:, 0]}, r"shape \(rows, classes\), got shape \(10,\)"),
        ({"log_ratio": LOG_RATIO[:, :1]}, "at least two, got 1"),
        ({"log_ratio": np.zeros((0, 2))}, "log_ratio is empty"),
        ({"log_ratio": "scores.csv"}, "must be an array of numbers, got str"),
        ({"sample_confounder": Z.iloc[:7]}, "has 7 row.*log_ratio has 10"),
        ({"sample_confounder": Z.assign(age=np.inf)}, "'age' is infinite in 10"),
        (
            {"sample_confounder": Z, "confounders": sw.Confounders.learn(Z.rename(columns=str.upper))},
            "none of the confounders",
        ),
        ({"sample_weight": -np.ones(10)}, "must not be negative, got -1"),
        ({"sample_weight": np.zeros(10)}, "zero everywhere"),
        ({"sample_weight": np.full(10, np.nan)}, "finite"),
        ({"sample_weight": np.ones(9)}, r"shape \(10,\), one weight a row, got \(9,\)"),
        ({"y": [2] + [None] * 9}, "class indices 0..1, and NaN or None where unknown, got 2.* at row 0"),
        ({"y": [-1] * 10}, "class indices 0..1"),
        ({"y": [0, 1]}, r"one entry a row \(10\), got 2"),
        ({"groups": list("abc")}, r"groups must have one entry a row \(10\), got 3"),
        ({"model": "tree"}, "model must be one of auto, constant, additive, table, network, got 'tree'"),
        ({"model": "table"}, "needs sample_confounder"),
        ({"model": "table", "sample_confounder": Z}, "'age' is continuous: use model='additive'"),
        ({"solver": "sgd"}, "solver must be one of"),
        ({"model": "network", "sample_confounder": Z, "solver": "newton"}, "is available for model auto or constant"),
        ({"strength": -1.0}, "strength must be 'auto' or a number from 0 up"),
        ({"strength": "strong"}, "strength must be 'auto'"),
        ({"strength": None}, "strength must be 'auto' or a number from 0 up, got None"),
        ({"sample_confounder": Z, "confounders": ["age"]}, "confounders must be a schema, .* got list"),
        (
            {"sample_confounder": Z, "confounders": sw.Confounders.learn(Z), "categorical": ["age"]},
            "categorical is given, but confounders",
        ),
        ({"y": np.zeros((10, 1))}, r"y must be one column .* got shape \(10, 1\)"),
        ({"groups": np.zeros((10, 2))}, r"groups must be one column .* got shape \(10, 2\)"),
        ({"log_ratio": [(LOG_RATIO, None), (LOG_RATIO, None)], "model": "additive"}, "needs sample_confounder"),
        ({"log_ratio": [(LOG_RATIO, None), (LOG_RATIO[:, :1], None)]}, "chunk 1 of log_ratio"),
        ({"prior": [0.5, 0.3, 0.2]}, "prior must be 2 probabilities"),
        ({"start": [0.5, -0.5]}, "start must be 2 probabilities"),
        ({"categorical": ["age"]}, "categorical is given without sample_confounder"),
    ],
)
def test_each_mistake_is_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        sw.estimate_prevalence(**{"log_ratio": LOG_RATIO, **arguments})


def test_all_mistakes_come_at_once():
    with pytest.raises(ValueError, match="4 problems") as caught:
        sw.estimate_prevalence(with_nan(), Z.iloc[:4], sample_weight=[-1.0] * 10, y=[7] * 10)
    for words in ("NaN", "4 row(s)", "negative", "class indices"):
        assert words in str(caught.value)


def test_wrong_choices_and_bad_data_come_in_one_error():
    with pytest.raises(ValueError, match="6 problems") as caught:
        sw.estimate_prevalence(
            with_nan(), Z.iloc[:4], model="tree", solver="sgd", strength=-1.0, prior=[1.0], confounders=None
        )
    for words in ("model must", "solver must", "strength must", "NaN in", "prior must", "4 row(s)"):
        assert words in str(caught.value)


def test_log_prevalence_of_nothing_says_to_pass_z():
    for estimate in (sw.estimate_prevalence(LOG_RATIO), sw.estimate_prevalence(LOG_RATIO, Z)):
        with pytest.raises(ValueError, match="expected Z with one row for each row of the result, got None"):
            estimate.log_prevalence(None)


def test_a_one_shot_generator_is_a_type_error():
    chunks = ((LOG_RATIO, None) for _ in range(2))
    with pytest.raises(TypeError, match="one-shot iterator"):
        sw.estimate_prevalence(chunks)
    with pytest.raises(TypeError, match="sample_confounder is a one-shot iterator"):
        sw.estimate_prevalence(LOG_RATIO, iter([1]))


def test_adjust_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="2 problems") as caught:
        sw.adjust(with_nan(), np.zeros(3))
    assert "log_prevalence must have shape (10, 2) or (2,), got (3,)" in str(caught.value)
    with pytest.raises(ValueError, match="NaN or"):
        sw.adjust(LOG_RATIO, [0.0, np.nan])
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        sw.estimate_prevalence(LOG_RATIO).interval(level=95)
