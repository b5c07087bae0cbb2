"""How many unlabeled rows: the width against closed forms and simulated sites, the losses, the command line."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

import sitewise as sw
from sitewise.cli import app
from sitewise.datasets.simulated import SimulatedFamily
from sitewise.samplesize import plan_sample_size
from sitewise.samplesize.plan import SizePoint, round_up, size_for_loss, size_for_width


@pytest.fixture(scope="module")
def source():
    return SimulatedFamily(signal=2.0, levels=(2,), n_continuous=0).site(600, prevalence=[0.6, 0.4], seed=1)


def test_where_f_is_certain_it_is_the_binomial_interval():
    y = np.repeat([0, 1], 200)
    certain = np.where(np.eye(2)[y] > 0, 0.0, -np.inf)
    plan = plan_sample_size(certain, y, width=0.05, prevalence=0.3, n_simulations=0)
    half = norm.ppf(0.975) * math.sqrt(0.3 * 0.7 / plan.answer) / (0.3 * 0.7)  # on the log-odds scale
    odds = math.log(0.3 / 0.7)
    ends = [1 / (1 + math.exp(-(odds + sign * half))) for sign in (-1, 1)]
    assert ends[1] - ends[0] == pytest.approx(0.05, rel=0.01)
    assert plan.floor_kl == pytest.approx(0.0, abs=1e-6)


def test_a_weaker_f_needs_as_many_more_rows_as_it_has_less_information():
    # Half of the rows say nothing: half the information about P(y) in the binomial sense, so twice the rows.
    y = np.repeat([0, 1], 400)
    certain = np.where(np.eye(2)[y] > 0, 0.0, -np.inf)
    half = np.where((np.arange(800) % 2 == 0)[:, None], certain, 0.0)
    whole = plan_sample_size(certain, y, width=0.04, n_simulations=0).answer
    assert plan_sample_size(half, y, width=0.04, n_simulations=0).answer == pytest.approx(2 * whole, rel=0.03)


def test_sites_of_the_planned_size_have_the_planned_width(source):
    family = SimulatedFamily(signal=2.0, levels=(2,), n_continuous=0)
    plan = plan_sample_size(source.log_ratio, source.y, source.Z, width=0.08, prevalence=0.3, n_simulations=0)
    widths = []
    for seed in range(3):
        site = family.site(plan.answer, prevalence=[0.7, 0.3], seed=100 + seed)
        low, high = sw.estimate_prevalence(site.log_ratio, site.Z).interval()
        widths.append(high[1] - low[1])
    assert np.mean(widths) == pytest.approx(0.08, rel=0.1)


def test_information_and_simulation_agree_and_losses_fall(source):
    plan = plan_sample_size(source.log_ratio, source.y, source.Z, kl=0.01, sizes=(100, 2000), n_simulations=4)
    few, many = plan.points
    for point in plan.points:
        assert point.width == pytest.approx(point.simulated_width, rel=0.1)
    assert few.kl > many.kl > 0
    assert few.width / many.width == pytest.approx(math.sqrt(20), rel=0.15)
    assert plan.table["n"].tolist() == [100, 2000]
    json.dumps(plan.to_dict(), allow_nan=False)
    again = plan_sample_size(source.log_ratio, source.y, source.Z, kl=0.01, sizes=(100, 2000), n_simulations=4)
    assert again == plan


def test_many_classes():
    site = SimulatedFamily(n_classes=3, signal=2.5).site(400, seed=2)
    plan = plan_sample_size(site.log_ratio, site.y, width=0.1, prevalence=[0.2, 0.3, 0.5], n_simulations=0)
    assert plan.prevalence == pytest.approx((0.2, 0.3, 0.5))
    assert 100 < plan.answer < 10_000
    assert "unlabeled rows are enough for width 0.1" in str(plan)


def test_out_of_reach():
    rng = np.random.default_rng(0)
    weak = rng.normal(0, 0.01, size=(300, 2))
    with pytest.warns(UserWarning, match="class 1 has 5 labeled row"):
        plan = plan_sample_size(weak, np.arange(300) < 5, width=0.001, n_simulations=0, sizes=(100,))
    assert plan.answer is None
    assert "out of reach" in str(plan)


def test_size_for_width_solves_any_falling_curve():
    for exponent in (0.3, 0.5, 0.7):
        answer = size_for_width(lambda n, e=exponent: 3 * n**-e, 0.05)
        assert 3 * answer**-exponent == pytest.approx(0.05, rel=0.01)
    assert size_for_width(lambda n: 0.2, 0.05) is None
    assert size_for_width(lambda n: 1e-6, 0.05) == 20


def test_size_for_loss_goes_along_the_logarithms():
    def point(n, kl):
        return SizePoint(n, 0.1, 0.1, 0.01, kl=kl, kl_error=1e-3)

    points = [point(100, 0.1), point(1000, 0.01), point(10_000, 0.001)]
    assert size_for_loss(points, "kl", 0.01) == 1000
    assert size_for_loss(points, "kl", 0.03162278) == pytest.approx(317, abs=1)
    assert size_for_loss(points, "kl", 0.5) == 100
    assert size_for_loss(points, "kl", 1e-4) is None
    wiggly = [point(100, 0.01), point(1000, 0.012), point(10_000, 0.001)]
    assert 1000 <= size_for_loss(wiggly, "kl", 0.0109) <= 1200


def test_round_up():
    assert [round_up(n) for n in (3, 123, 1209.1, 99_999, 1e9)] == [20, 130, 1300, 100_000, 10**7]


def test_all_mistakes_at_once(source):
    with pytest.raises(ValueError, match="4 problems") as error:
        plan_sample_size(source.log_ratio, source.y, width=0.05, kl=0.1, model="network", level=95, sizes=[3])
    for text in ("give one of width, kl, f1_loss, got width=0.05, kl=0.1", "model must be one of", "level", "sizes"):
        assert text in str(error.value)
    with pytest.raises(ValueError, match="prevalence must be 2 shares that sum to one, or the share of class 1, got 3"):
        plan_sample_size(source.log_ratio, source.y, width=0.05, prevalence=3)
    with pytest.raises(ValueError, match="no labeled row is of class 1"):
        plan_sample_size(source.log_ratio[:50], np.zeros(50, int), width=0.05, prevalence=0.3)
    with pytest.raises(ValueError, match="width must be a number above 0 and below 1, got 5"):
        plan_sample_size(source.log_ratio, source.y, width=5)
    with pytest.raises(ValueError, match="2 unknown label"):
        plan_sample_size(source.log_ratio[:3], [0, None, np.nan], width=0.05)


# The command line


@pytest.fixture
def table(source, tmp_path):
    probability = sw.adjust(source.log_ratio, np.log([0.6, 0.4]))
    frame = pd.DataFrame({"p0": probability[:, 0], "p1": probability[:, 1], "sick": np.where(source.y, "yes", "no")})
    frame["sex"] = source.Z["group0"].to_numpy()
    path = tmp_path / "held_out.csv"
    frame.to_csv(path, index=False)
    return path


def call(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)], env={"COLUMNS": "160"})


BASIC = ("--target", "sick", "--proba", "p0,p1", "--simulations", "0")


def test_plan_prints_a_table_json_and_a_curve(table, tmp_path):
    result = call(table, *BASIC, "--confounder", "sex", "--width", 0.1, "--out", tmp_path / "curves" / "plan.png")
    assert result.exit_code == 0, result.output
    assert "unlabeled rows are enough for width 0.1" in result.output
    assert (tmp_path / "curves" / "plan.png").read_bytes()[:4] == b"\x89PNG"
    record = json.loads(call(table, *BASIC, "--width", 0.1, "--prevalence", 0.2, "--json").stdout)
    assert record["prevalence"] == pytest.approx([0.8, 0.2])
    assert f"{record['answer']:,}" in call(table, *BASIC, "--width", 0.1, "--prevalence", "0.8,0.2").output


def test_plan_says_what_is_wrong(table, tmp_path):
    result = call(table, "--target", "sik", "--proba", "p0,p2", "--width", 0.1)
    assert isinstance(result.exception, ValueError)
    assert "no column 'sik'; did you mean 'sick'?" in str(result.exception)
    assert "no column 'p2'" in str(result.exception)
    assert "--target" in str(call(table, "--width", 0.1).exception)
    assert isinstance(call(tmp_path / "held_out.csx", *BASIC).exception, FileNotFoundError)
    assert "leave --target, --proba out" in str(call(tmp_path, *BASIC).exception)
    assert "--prevalence must be numbers" in str(call(table, *BASIC, "--prevalence", "many").exception)
    assert "must end in .png or .pdf" in str(call(table, *BASIC, "--width", 0.1, "--out", "x.svg").exception)
    assert "give one of width, kl, f1_loss" in str(call(table, *BASIC).exception)


def test_the_classes_order_can_be_given(table):
    swapped = call(table, *BASIC[:2], "--proba", "p1,p0", *BASIC[4:], "--classes", "yes,no", "--width", 0.1, "--json")
    plain = call(table, *BASIC, "--width", 0.1, "--json")
    assert json.loads(swapped.stdout)["answer"] == pytest.approx(json.loads(plain.stdout)["answer"], rel=0.02)


def test_plan_of_a_saved_model(source, tmp_path):
    probability = sw.adjust(source.log_ratio, np.log([0.6, 0.4]))
    sw.PrevalenceAdjuster().fit(probability, source.y).save(tmp_path / "model")
    result = call(tmp_path / "model", "--width", 0.1, "--simulations", 0, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["n_source"] == 600
