"""Real sites: all rows of each, roles that the data decide, no truth about P(y|z)."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from sitewise.bench.datasets.small_images import SiteRoles
from sitewise.bench.experiments import read_experiment, sites
from sitewise.bench.experiments.kinds import KINDS, real_parts
from sitewise.bench.experiments.plan import final_runs
from sitewise.bench.experiments.scoring import run_one
from sitewise.sites import Site, Sites

YAML = """
data: {kind: isic64}
recipe: {name: gpa2024, epochs: 2}
network: {backbone: mlp}
seeds: 1
training: {north: {}, south: {}}
validation: {}
tests: {east: {}}
draws: {whole site: {score: all}}
methods: {ERM: erm, GPA: gpa, "GPA, true g": gpa_oracle}
reference: GPA
metric: positive_f1
"""


def real_site(name, n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    Z = pd.DataFrame({"age": rng.normal(60, 10, n), "sex": rng.choice(["f", "m"], n)})
    return Site(name, rng.normal(size=(n, 3)) + y[:, None], y, Z, groups=np.arange(n) // 2)


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    roles = SiteRoles(
        Sites((real_site("north", 120, 1), real_site("south", 80, 2))),
        real_site("held out", 90, 3),
        Sites((real_site("east", 70, 4),)),
    )
    real = replace(
        KINDS["isic64"],
        load=lambda data, folder: SimpleNamespace(name="isic64"),
        split=lambda data, seed: real_parts(roles),
    )
    monkeypatch.setitem(KINDS, "isic64", real)
    sites.forget_data()
    file = tmp_path / "small.yaml"

    def read(text=YAML):
        file.write_text(text)
        return read_experiment(file)

    yield read
    sites.forget_data()


@pytest.mark.filterwarnings("ignore")
def test_all_rows_are_used_in_their_roles(experiment):
    plan = experiment()
    runs = final_runs(plan, {}, "isic64")
    assert all(run.plain()["network"] == {"backbone": "mlp"} for run in runs)
    world = sites.world_of(runs[0])
    rows = world.training_rows(runs[0])
    assert pd.Series(rows.sample_domain).value_counts().to_dict() == {"north": 120, "validation": 90, "south": 80}
    assert len(rows.groups) == 290
    adaptation, scored = world.test_rows(runs[0].tests[0], runs[0].draws[0])
    assert adaptation is scored
    assert len(scored) == 70
    results = {label: result for run in runs for label, result in run_one(run, None, "cpu")["results"].items()}
    assert results["GPA, true g"] == {"skipped": "the true P(y|z) of these sites is not known"}
    assert results["GPA"]["sites"]["east"]["whole site"]["auroc"] > 0.6


def test_a_role_that_a_site_does_not_have_is_an_error(experiment):
    (run, *_) = final_runs(experiment(YAML.replace("east", "west")), {}, "isic64")
    with pytest.raises(ValueError, match="no site 'west' for this role in isic64: it has east"):
        run_one(run, None, "cpu")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{score: all}", "{score: 50}", "real sites are scored and adapted to whole"),
        ("north: {}", "north: {n: 50}", "training.north.n is not a key here"),
        ("backbone: mlp", "backbon: mlp", "did you mean 'backbone'"),
    ],
)
def test_real_sites_cannot_be_drawn_from(experiment, old, new, message):
    with pytest.raises(ValueError, match=message):
        experiment(YAML.replace(old, new))


def test_missing_data_are_an_error_that_says_where_to_get_them(monkeypatch):
    monkeypatch.delenv("SITEWISE_DATA", raising=False)
    with pytest.raises(ValueError, match="cxr64 is not part of the package: give its folder"):
        sites.source_name({"kind": "cxr64"})


def test_a_test_site_may_have_another_name_than_in_the_data(experiment):
    (run, *_) = final_runs(experiment(YAML.replace("east: {}", "far east: {site: east}")), {}, "isic64")
    site = sites.world_of(run).test_rows(run.tests[0], run.draws[0])[1]
    assert (site.name, len(site)) == ("far east", 70)


def test_a_centre_to_leave_out_is_checked(experiment):
    with pytest.raises(ValueError, match="left_out must be one of none, HAM_rosendahl"):
        experiment(YAML.replace("{kind: isic64}", "{kind: isic64, left_out: NY3}"))
