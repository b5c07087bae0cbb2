import pytest

from sitewise.bench.experiments.plan import tuning_runs
from sitewise.bench.experiments.selection import choose_settings

SETTINGS = [
    {"share": 0.1, "extra": 1},
    {"share": 0.1, "extra": 2},
    {"share": 0.2, "extra": 1},
    {"share": 0.2, "extra": 2},
]


def records_of(experiment, by_hand, metric, values, tests=None):
    """Records of all tuning runs: values[setting][seed] at the validation site, tests[setting] at the test sites."""
    records = []
    for run in tuning_runs(experiment):
        i = SETTINGS.index(run.methods[0].settings)
        test = {metric: tests[i]} if tests else {}
        records.append(by_hand(run, validation={metric: values[i][run.seed]}, **test))
    return records


@pytest.mark.parametrize(("metric", "best"), [("nll", 2), ("positive_f1", 1)])
def test_the_best_mean_over_seeds_at_the_validation_site_wins(tiny, by_hand, metric, best):
    experiment = tiny({"tuning": {"metric": metric}})
    values = [(0.5, 0.5), (0.9, 0.3), (0.2, 0.6), (0.1, 0.8)]  # means 0.5, 0.6, 0.4, 0.45
    assert choose_settings(experiment, records_of(experiment, by_hand, metric, values)) == {"R": SETTINGS[best]}


def test_test_sites_are_never_read(tiny, by_hand):
    experiment = tiny({"tuning": {"metric": "positive_f1"}})
    values = [(0.5, 0.5), (0.6, 0.6), (0.4, 0.4), (0.3, 0.3)]
    records = records_of(experiment, by_hand, "positive_f1", values, tests=[0.1, 0.0, 0.9, 1.0])
    assert choose_settings(experiment, records) == {"R": SETTINGS[1]}
    for record in records:
        for result in record["results"].values():
            del result["sites"]
    assert choose_settings(experiment, records) == {"R": SETTINGS[1]}


def test_of_equals_the_first_in_the_grid_wins(tiny, by_hand):
    experiment = tiny()
    values = [(0.5, 0.5), (0.2, 0.6), (0.6, 0.2), (0.4, 0.4)]
    assert choose_settings(experiment, records_of(experiment, by_hand, "nll", values)) == {"R": SETTINGS[1]}
    backwards = records_of(experiment, by_hand, "nll", values)[::-1]
    assert choose_settings(experiment, backwards) == {"R": SETTINGS[1]}


def test_what_is_undefined_is_worst_and_what_is_skipped_is_the_first(tiny, by_hand):
    experiment = tiny()
    records = records_of(experiment, by_hand, "nll", [(None, 0.0), (0.9, 0.9), (0.8, 0.8), (None, None)])
    assert choose_settings(experiment, records) == {"R": SETTINGS[2]}
    for record in records:
        record["results"]["R"] = {"skipped": "needs more sites"}
    assert choose_settings(experiment, records) == {"R": SETTINGS[0]}


def test_a_label_whose_tuning_is_not_finished_is_not_chosen(tiny, by_hand):
    experiment = tiny()
    records = records_of(experiment, by_hand, "nll", [(0.5, 0.5)] * 4)
    assert choose_settings(experiment, records[:-1]) == {}
    assert choose_settings(experiment, []) == {}


def test_records_of_other_seeds_and_other_data_are_not_read(tiny, by_hand):
    experiment = tiny()
    records = records_of(experiment, by_hand, "nll", [(0.5, 0.5), (0.4, 0.4), (0.6, 0.6), (0.6, 0.6)])
    other = tiny({"validation": {"n": 21}})
    strangers = records_of(other, by_hand, "nll", [(0.5, 0.5), (0.6, 0.6), (0.0, 0.0), (0.6, 0.6)])
    assert choose_settings(experiment, records + strangers) == {"R": SETTINGS[1]}
