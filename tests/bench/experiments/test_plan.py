import copy
from dataclasses import replace

import pytest

from sitewise.bench.experiments.experiment import Choice, Draw, SiteSpec
from sitewise.bench.experiments.plan import Run, final_runs, tuning_runs
from sitewise.bench.methods import METHODS

CHOSEN = {"R": {"share": 0.2, "extra": 1}}


def test_methods_that_share_a_network_share_a_run(tiny):
    runs = final_runs(tiny({"seeds": 1, "tuning": {"seeds": 1}}), {})
    assert [[choice.label for choice in run.methods] for run in runs if run.target is None] == [["G", "G2"]]


def test_methods_that_see_unlabeled_rows_are_trained_for_each_test_site(tiny):
    runs = [run for run in final_runs(tiny({"seeds": 1, "tuning": {"seeds": 1}}), CHOSEN) if run.target]
    assert [(run.target, [site.name for site in run.tests]) for run in runs] == [("near", ["near"]), ("far", ["far"])]
    assert {choice.label for run in runs for choice in run.methods} == {"T"}


def test_the_number_of_runs(tiny):
    experiment = tiny()
    assert len(tuning_runs(experiment)) == 4 * 2  # settings x tuning seeds
    assert len(final_runs(experiment, {})) == 3 * (1 + 2)  # seeds x (G and G2 together, T for each site)
    assert len(final_runs(experiment, CHOSEN)) == 3 * (1 + 2 + 1)


def test_tuning_runs_of_the_chosen_setting_are_final_runs(tiny):
    for changes in ({}, {"methods": {"R": {"grid": {"extra": None}}}}):  # the second shares a network with G
        experiment = tiny(changes)
        chosen = {"R": experiment.methods[3].candidates[1].settings}
        tuned = {run.id for run in tuning_runs(experiment) if run.methods[0].settings == chosen["R"]}
        assert len(tuned) == 2
        assert tuned < {run.id for run in final_runs(experiment, chosen)}


def test_every_grid_gets_the_same_number_of_trainings(tiny):
    grid = {"share": [0.1, 0.2], "extra": [1, 2]}
    runs = tuning_runs(tiny({"methods": {"T": {"method": "sees_target", "grid": grid}}}))
    counts = {label: sum(run.methods[0].label == label for run in runs) for label in ("T", "R")}
    assert counts == {"T": 8, "R": 8}
    assert {run.target for run in runs} == {None, "near"}


def test_one_setting_needs_no_tuning(tiny):
    experiment = tiny({"methods": {"R": {"grid": {"share": [0.1], "extra": [2]}}}})
    assert tuning_runs(experiment) == ()
    labels = [choice for run in final_runs(experiment, {}) for choice in run.methods if choice.label == "R"]
    assert [choice.settings for choice in labels] == [{"share": 0.1, "extra": 2}] * 3


RUN = Run(
    experiment="x",
    data={"kind": "simulated"},
    recipe={"name": "default"},
    training=(SiteSpec("a", {"prevalence": [0.5, 0.5]}, 10), SiteSpec("b", {}, 20)),
    validation=SiteSpec("validation", {}, 5),
    tests=(SiteSpec("t", {"dependence": -1}), SiteSpec("u", {})),
    draws=(Draw("all", 100), Draw("few", 100, 10)),
    methods=(Choice("G", "guess", {"share": 0.1}), Choice("H", "guess", {})),
    seed=0,
)


def test_the_id_stays_the_same_from_version_to_version():
    assert RUN.id == "74b875086d40cc25"


def test_the_id_does_not_mind_the_order_of_tests_draws_and_methods():
    turned = replace(RUN, tests=RUN.tests[::-1], draws=RUN.draws[::-1], methods=RUN.methods[::-1])
    assert turned.id == RUN.id
    assert replace(RUN, experiment="renamed").id == RUN.id


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"target": "t"},
        {"digits": "mnist"},
        {"data": {"kind": "simulated", "signal": 1.0}},
        {"recipe": {"name": "default", "epochs": 3}},
        {"training": RUN.training[::-1]},
        {"training": (SiteSpec("a", {"prevalence": [0.5, 0.5]}, 11), RUN.training[1])},
        {"validation": SiteSpec("validation", {}, 6)},
        {"tests": RUN.tests[:1]},
        {"tests": (SiteSpec("t", {"dependence": 1}), RUN.tests[1])},
        {"draws": (Draw("all", 101), RUN.draws[1])},
        {"draws": (RUN.draws[0], Draw("few", 100))},
        {"methods": (Choice("G", "guess", {"share": 0.2}), RUN.methods[1])},
        {"methods": RUN.methods[:1]},
    ],
)
def test_whatever_determines_the_outcome_changes_the_id(change):
    assert replace(RUN, **change).id != RUN.id


def test_the_draw_behind_the_unlabeled_rows_counts_where_they_are_used():
    turned = RUN.draws[::-1]
    assert replace(RUN, target="t").id != replace(RUN, target="t", draws=turned).id
    assert copy.deepcopy(RUN).id == RUN.id


def test_methods_with_a_package_of_their_own_are_runs_of_their_own(tiny, monkeypatch):
    """A machine without the package does all other runs, whose ids do not depend on it."""
    changes = {"methods": {"R": None, "T": None}, "tuning": None, "seeds": 1}
    (together,) = final_runs(tiny(changes), {})
    assert [choice.label for choice in together.methods] == ["G", "G2"]
    (without,) = final_runs(tiny({**changes, "methods": {"R": None, "T": None, "G2": None}}), {})
    monkeypatch.setattr(METHODS["sees_labels"], "packages", ("some_package",))
    added = {"R": None, "T": None, "G2": {"method": "sees_labels", "share": None}}
    apart = final_runs(tiny({**changes, "methods": added}), {})
    assert [[choice.label for choice in run.methods] for run in apart] == [["G"], ["G2"]]
    assert apart[0].id == without.id
