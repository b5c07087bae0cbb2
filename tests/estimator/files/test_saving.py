"""Saved models: what is loaded predicts the same to the bit, damage is refused, and no file can run code."""

import copy
import io
import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import nn

import sitewise as sw
from sitewise.adaptation.families import FAMILIES
from sitewise.artifacts.folders import Folder, read_folder, write_folder
from sitewise.calibration.fit import METHODS as CALIBRATIONS
from sitewise.estimator.files.card import held_out_metrics

FAST = {"epochs": 1, "batch_size": 32, "device": "cpu", "random_state": 1, "rehearsal": None}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny models converge badly, and that is not asked here


@pytest.fixture(autouse=True)
def quick_networks(monkeypatch):
    """A network g need not be good to be saved."""
    monkeypatch.setattr("sitewise.prevalence.network.STEPS", 5)


def confounders(rng, n, kind="mixed", missing=0.1):
    """Mixed z with gaps, or levels only."""
    level = rng.choice(["a", "b", "c"], n).astype(object)
    flag = rng.integers(0, 2, n).astype(bool)
    columns = {"level": level, "flag": flag}
    if kind == "mixed":
        columns = {"age": rng.normal(60, 10, n), **columns}
    frame = pd.DataFrame(columns)
    for name in ("age", "level") if kind == "mixed" else ("level",):
        frame.loc[rng.random(n) < missing, name] = None
    return frame


def data(seed=0, n=160, classes=(0, 1), inputs="table", z="mixed"):
    """Rows of two sites with some signal."""
    rng = np.random.default_rng(seed)
    number = rng.integers(0, len(classes), n)
    if inputs == "table":
        X = rng.normal(size=(n, 4)) + 1.5 * number[:, None]
    else:
        channels, dtype = inputs
        X = rng.integers(0, 100, (n, channels, 9, 8)) + 70 * (number[:, None, None, None] > 0)
        X = X.astype(np.uint8) if dtype == "bytes" else (X / 255).astype(np.float32)
    Z = None if z is None else confounders(rng, n, z)
    site = rng.choice(["north", "south"], n)
    return X, np.asarray(classes)[number], site, Z


def fitted(classes=(0, 1), inputs="table", z="mixed", **options):
    X, y, site, Z = data(classes=classes, inputs=inputs, z=z)
    return sw.GPAClassifier(**{**FAST, **options}).fit(X, y, sample_domain=site, sample_confounder=Z)


def reloaded(model, folder, **options):
    model.save(folder / "saved")
    return sw.load(folder / "saved", **options)


def bits(value):
    return np.asarray(value).tobytes() if not isinstance(value, tuple) else tuple(map(bits, value))


def same_model(model, other, X, site, Z):
    assert type(other) is type(model)
    assert other.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(other.classes_, model.classes_)
    assert other.sites_ == model.sites_
    assert other.confounders_ == model.confounders_
    assert bits(other.log_ratio(X, Z)) == bits(model.log_ratio(X, Z))
    for arguments in ({}, {"sample_confounder": Z}, {"sample_confounder": Z, "sample_domain": site}):
        assert bits(other.predict_proba(X, **arguments)) == bits(model.predict_proba(X, **arguments))
        np.testing.assert_array_equal(other.predict(X, **arguments), model.predict(X, **arguments))


def same_site(here, other, X, Z):
    assert bits(other.predict_proba(X, Z)) == bits(here.predict_proba(X, Z))
    assert bits(other.predict_proba(X)) == bits(here.predict_proba(X))
    assert bits(other.prevalence()) == bits(here.prevalence())
    assert bits(other.prevalence_interval()) == bits(here.prevalence_interval())
    if Z is not None:
        assert bits(other.prevalence(Z)) == bits(here.prevalence(Z))
        assert bits(other.prevalence_interval(Z, level=0.8)) == bits(here.prevalence_interval(Z, level=0.8))
    for name in ("model", "strength", "converged", "gap", "n_iter", "log_likelihood", "trace", "notes"):
        np.testing.assert_equal(getattr(other.estimate, name), getattr(here.estimate, name))  # NaN is NaN
    assert bits(other.estimate.marginal) == bits(here.estimate.marginal)
    if here.estimate.can_refit:
        draws = [site.estimate.bootstrap(2, random_state=0).marginal for site in (here, other)]
        assert bits(draws[0]) == bits(draws[1])
    draws = [site.estimate.draws(3, random_state=0).marginal for site in (here, other)]
    assert bits(draws[0]) == bits(draws[1])


def check_both(model, folder, new=None, **options):
    """Save and load a model, and a site that it was adapted to."""
    inputs = "table" if model.input_shape_ is None else (model.input_shape_[0], "bytes")
    X, _, site, Z = data(5, 60, model.classes_.tolist(), inputs, None) if new is None else new
    other = reloaded(model, folder, **options)
    same_model(model, other, X, site, Z)
    here = model.adapt(X, sample_confounder=Z)
    same_site(here, reloaded(here, folder, **options), X, Z)
    return other


@pytest.mark.parametrize("prevalence", ["auto", *FAMILIES])
@pytest.mark.parametrize("classes", [(0, 1), ("healthy", "mild", "severe")])
def test_every_model_of_g_comes_back_to_the_bit(tmp_path, prevalence, classes):
    z = "levels" if prevalence == "table" else "mixed"
    model = fitted(classes, z=z, prevalence=prevalence)
    check_both(model, tmp_path, data(5, 60, classes, z=z))


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_every_calibration_comes_back_to_the_bit(tmp_path, calibration):
    model = fitted((1, 2, 3), calibration=calibration)
    other = check_both(model, tmp_path, data(5, 60, (1, 2, 3)))
    again = [m.with_calibration("temperature").log_ratio(data(5)[0]) for m in (model, other)]
    assert bits(again[0]) == bits(again[1])


@pytest.mark.parametrize("inputs", [(1, "bytes"), (3, "bytes"), (2, "floats")])
@pytest.mark.parametrize("z", [None, "levels"])
def test_images_with_and_without_z_come_back_to_the_bit(tmp_path, inputs, z):
    check_both(fitted(inputs=inputs, z=z), tmp_path, data(5, 60, inputs=inputs, z=z))


@pytest.mark.parametrize("normalize", ["data", "imagenet"])
def test_normalized_images_come_back_to_the_bit(tmp_path, normalize):
    check_both(fitted(inputs=(3, "bytes"), z=None, normalize=normalize), tmp_path)


@pytest.mark.parametrize(
    "classes",
    [
        (False, True),
        np.array(["no", "yes"], dtype=object),
        (0.0, 1.0),
        np.array([3, 7], dtype=np.int8),
        ("<b>|x|</b>", "a\nb"),
    ],
)
def test_classes_of_any_type_come_back(tmp_path, classes):
    model = fitted(classes, z=None)
    other = check_both(model, tmp_path)
    assert other.predict(data(5)[0]).dtype == model.predict(data(5)[0]).dtype


def test_sites_of_any_name_come_back(tmp_path):
    X, y, _, Z = data()
    for names in ([1, 2], [True, False], [0.5, 2.5], ["a/b", "~$"]):
        site = np.resize(names, len(y))
        model = sw.GPAClassifier(**FAST).fit(X, y, sample_domain=site, sample_confounder=Z)
        same_model(model, reloaded(model, tmp_path), X, site, Z)


def test_table_with_names_and_settings_come_back(tmp_path):
    X, y, site, Z = data()
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    settings = {
        "recipe": sw.Recipe(epochs=1, min_steps=0, patience=2),
        "validation": "north",
        "knockout": 0.25,
        "epochs": None,
    }
    model = sw.GPAClassifier(**{**FAST, **settings, "checkpoint": tmp_path / "c.pt", "cache": tmp_path / "cache"})
    model.fit(frame, y, sample_domain=site, sample_confounder=Z)
    other = reloaded(model, tmp_path)
    same_model(model, other, frame, None, Z)
    assert other.get_params() == {**model.get_params(), "checkpoint": None, "cache": None}  # folders to write to
    assert other.training_history_ == model.training_history_
    assert list(other.feature_names_in_) == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="feature names"):
        other.predict(frame[["b", "a", "c", "d"]])
    again = clone(other).fit(frame, y, sample_domain=site, sample_confounder=Z)
    assert bits(again.predict_proba(frame)) == bits(model.predict_proba(frame))


def test_a_random_state_goes_on_where_it_was(tmp_path):
    model = fitted(random_state=np.random.RandomState(3))
    before = copy.deepcopy(model.random_state)
    assert (
        reloaded(model, tmp_path).random_state.randint(1 << 30, size=3).tolist()
        == before.randint(1 << 30, size=3).tolist()
    )


def test_calibrating_and_adapting_go_on_after_loading(tmp_path):
    model = fitted()
    other = reloaded(model, tmp_path)
    X, y, site, Z = data(7)
    for m in (model, other):
        m.calibrate(X, y, sample_domain=site, sample_confounder=Z)
    same_model(model, other, X, site, Z)
    labels = np.where(np.arange(len(y)) < 20, y.astype(float), np.nan)
    options = {"y": labels, "groups": np.arange(len(y)) // 3, "sample_weight": np.linspace(0, 2, len(y))}
    here, there = (m.adapt(X, sample_confounder=Z, policy="rows", **options) for m in (model, other))
    same_site(here, there, X, Z)
    back = reloaded(here, tmp_path)
    same_site(here, back, X, Z)
    assert (back.policy, back.outcome, vars(back.outcome)) == ("rows", here.outcome, vars(here.outcome))
    for name in ("log_ratio", "codes", "supported", "weight", "groups", "y", "features", "feature_rows"):
        assert torch.equal(getattr(back.rows, name).nan_to_num(-9), getattr(here.rows, name).nan_to_num(-9))


def test_verdict_threshold_and_expected_performance_come_back(tmp_path):
    X, _, _, Z = data(5, 60)
    here = fitted().adapt(X, sample_confounder=Z)
    fresh = reloaded(here, tmp_path)  # before anything was asked of it
    said, expected, choice = here.diagnose(), here.expected_performance(), here.choose_threshold()
    assert fresh.diagnose().to_dict() == said.to_dict()
    assert fresh.expected_performance().to_dict() == expected.to_dict()
    back = reloaded(here, tmp_path)
    assert back.diagnose() == said
    assert back.threshold_ == choice.threshold
    np.testing.assert_array_equal(back.predict(X, Z), here.predict(X, Z))
    assert back.expected_performance().to_dict() == here.expected_performance().to_dict()
    card = (tmp_path / "saved" / "model.md").read_text()
    assert f"Threshold: {choice.threshold:g}" in card
    assert f"Verdict: {said.verdict}." in card
    assert said.sentence in card.replace("\\", "")


def test_unseen_levels_and_regions_without_a_class_are_kept(tmp_path):
    X, y, site, Z = data(n=300)
    Z["level"] = np.where(y == 1, "a", np.where(np.arange(len(y)) % 2, "a", "b"))  # never class 1 at b
    model = sw.GPAClassifier(**FAST).fit(X, y, sample_domain=site, sample_confounder=Z)
    assert model.unsupported_
    X, _, _, new = data(5, 60)
    new["level"] = np.resize(["a", "b", "new"], 60)
    other = check_both(model, tmp_path, (X, None, np.resize(["north", "south"], 60), new))
    here = reloaded(model.adapt(X, sample_confounder=new), tmp_path)
    with pytest.warns(UserWarning, match="'new'"):
        here.predict_proba(X, new)
    assert other.unsupported_ == model.unsupported_
    assert "never occurred in training" in (tmp_path / "saved" / "model" / "model.md").read_text()


def test_a_constant_g_and_candidates_with_gaps_come_back_near_the_bound(tmp_path):
    """Class 1 all but absent: intervals follow the likelihood of the rows, which must be there."""
    X, y, _, Z = data(9, 400)
    model = fitted()
    X, Z = X[y == 0], Z[y == 0].reset_index(drop=True)
    here = model.adapt(X, sample_confounder=Z)
    assert here.prevalence()[1] < 0.1
    same_site(here, reloaded(here, tmp_path), X, Z)


def test_files_of_the_training_need_not_be_there_any_more(tmp_path):
    file = tmp_path / "weights.pt"
    torch.save(Own().state_dict(), file)
    model = fitted(backbone=Own(), weights=file)
    file.unlink()
    other = reloaded(model, tmp_path, backbone=Own())
    X = data(5, 30)[0]
    again = [m.with_calibration("none").log_ratio(X) for m in (model, other)]
    assert bits(again[0]) == bits(again[1])


class Own(nn.Module):
    """A network of somebody's own."""

    def __init__(self, width=6):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, x):
        return self.layers(x)


def test_a_network_of_ones_own_is_attached_again(tmp_path):
    model = fitted(backbone=Own())
    other = check_both(model, tmp_path, data(5, 60), backbone=Own())
    assert isinstance(other.backbone, Own)
    model.save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"network of your own \(Own\).*backbone=Own\("):
        sw.load(tmp_path / "saved")
    with pytest.raises(ValueError, match="do not fit the network"):
        sw.load(tmp_path / "saved", backbone=Own(7))
    with pytest.raises(TypeError, match="must be a torch module, got type"):
        sw.load(tmp_path / "saved", backbone=Own)
    fitted().save(tmp_path / "saved")
    with pytest.raises(ValueError, match="leave backbone out"):
        sw.load(tmp_path / "saved", backbone=Own())


def test_nothing_is_unpickled_or_evaluated(tmp_path, monkeypatch):
    model = fitted(inputs=(1, "bytes"), z="levels", prevalence="network")
    X, _, _, Z = data(5, 40, inputs=(1, "bytes"), z="levels")
    here = model.adapt(X, sample_confounder=Z)
    here.save(tmp_path / "site")
    for file in (tmp_path / "site").rglob("*.*"):
        content = file.read_bytes()
        assert b"PK\x03\x04" not in content
        for start in range(min(len(content), 50)):
            with pytest.raises(Exception):  # noqa: B017, PT011
                pickle.load(io.BytesIO(content[start:]))

    def forbidden(*_, **__):
        raise AssertionError("something was unpickled")

    for module, name in (
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (pickle, "_Unpickler"),
        (torch, "load"),
        (torch.serialization, "load"),
        (np, "load"),
        (pd, "read_pickle"),
        (pd, "eval"),
    ):
        monkeypatch.setattr(module, name, forbidden)
    same_site(here, sw.load(tmp_path / "site"), X, Z)


@pytest.mark.parametrize(
    "name", ["artifacts", "estimator/files/saving.py", "estimator/files/card.py", "adaptation/records.py"]
)
def test_no_word_of_pickle_on_the_way(name):
    root = Path(sw.__file__).parent / name
    for file in [root] if root.is_file() else root.glob("*.py"):
        words = file.read_text()
        for word in ("pickle", " torch.load", "joblib", "eval(", "exec(", "__import__", "marshal"):
            assert word not in words.replace(".eval()", ""), (file, word)


def altered(path, change):
    folder = read_folder(path)
    content, tensors = copy.deepcopy(folder.content), dict(folder.tensors)
    change(content, tensors)
    write_folder(Folder(folder.kind, content, tensors, folder.card, folder.versions, folder.inside), path)


def resize(name, shape):
    def change(content, tensors):
        place, found = content, next(key for key in tensors if name in key)
        for part in found.split("/"):
            place = place["fields"] if isinstance(place, dict) and place.get("$") == "record" else place
            place = place["items"] if isinstance(place, dict) and "items" in place else place
            place = place[int(part)] if isinstance(place, list) else place[part]
        tensors[found] = torch.zeros(shape, dtype=tensors[found].dtype)
        place["shape"] = list(shape)
        place.pop("stride", None)

    return change


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda c, t: t.update({next(k for k in t if "fusion.0.weight" in k): torch.zeros(2)}), "has shape"),
        (lambda c, t: t.pop(next(k for k in t if "slope" in k)), "is not there"),
        (lambda c, t: t.update(more=torch.zeros(2)), "'more' belongs to nothing"),
        (resize("fusion.0.weight", (100, 3)), "do not fit the network"),
        (resize("_calibrations/0/slope", (3,)), "a calibration is for 3 classes"),
        (resize("_pooled_prevalence/coefficients", (2, 2)), "the prevalence of 'all sites' does not fit"),
        (resize("_pooled_prevalence/log_marginal", (5,)), "all sites"),
        (lambda c, t: c["settings"].update(colour="red"), "settings that this version does not know: colour"),
        (lambda c, t: c["fitted"]["confounders_"]["fields"].update(odd=1), "fitted/confounders_ is not what"),
        (lambda c, t: c["fitted"]["confounders_"].update(of="Popen"), "Popen"),
    ],
)
def test_a_folder_that_was_tampered_with_is_refused(tmp_path, change, word):
    fitted().save(tmp_path / "model")
    altered(tmp_path / "model", change)
    with pytest.raises(ValueError, match=word):
        sw.load(tmp_path / "model")


def test_a_site_that_was_tampered_with_is_refused(tmp_path):
    X, _, _, Z = data(5, 60)
    fitted(prevalence="constant").adapt(X, sample_confounder=Z).save(tmp_path / "site")
    altered(tmp_path / "site", resize("estimate/prevalence/log_marginal", (3,)))
    with pytest.raises(ValueError, match="the prevalence of 'this site' is for 3 classes, the model has 2"):
        sw.load(tmp_path / "site")


def test_another_kind_is_refused(tmp_path):
    write_folder(Folder("GPAClasifier", {}, {}, "", {}), tmp_path / "model")
    with pytest.raises(ValueError, match=r"holds a 'GPAClasifier', known are .*did you mean 'GPAClassifier'"):
        sw.load(tmp_path / "model")


def test_what_cannot_be_saved_is_said_before_anything_is_written(tmp_path):
    with pytest.raises(NotFittedError):
        sw.GPAClassifier().save(tmp_path / "model")
    model = fitted(z=None)
    model.random_state = np.random.default_rng(0)
    with pytest.raises(TypeError, match="settings/random_state holds a Generator"):
        model.save(tmp_path / "model")
    model.random_state = 0
    model.note_ = object()
    with pytest.raises(TypeError, match="fitted/note_ holds a object"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_model_saved_twice_or_loaded_and_saved_has_the_same_bytes(tmp_path):
    model = fitted()
    model.save(tmp_path / "one")
    X, _, _, Z = data(5)
    model.predict_proba(X, sample_confounder=Z)  # scoring widens the weights
    model.save(tmp_path / "two")
    sw.load(tmp_path / "two").save(tmp_path / "three")
    weights = {value.dtype for name, value in read_folder(tmp_path / "one").tensors.items() if "network/" in name}
    assert weights == {torch.float32}
    for file in sorted((tmp_path / "one").iterdir()):
        for other in ("two", "three"):
            assert file.read_bytes() == (tmp_path / other / file.name).read_bytes(), (other, file.name)


def test_a_small_cnn_takes_little_more_than_its_weights(tmp_path):
    model = fitted(inputs=(3, "bytes"))
    model.save(tmp_path / "model")
    weights = sum(v.numel() * v.element_size() for v in model.scorer_.module.state_dict().values())
    assert sum(file.stat().st_size for file in (tmp_path / "model").iterdir()) < weights + 2**20


def test_no_input_is_stored(tmp_path):
    """Not one image of the training or of the site stands in the folder, as bytes or floats."""
    X, y, site, Z = data(inputs=(1, "bytes"))
    model = sw.GPAClassifier(**FAST).fit(X, y, sample_domain=site, sample_confounder=Z)
    model.adapt(X[:50], sample_confounder=Z[:50]).save(tmp_path / "site")
    stored = b"".join(file.read_bytes() for file in (tmp_path / "site").rglob("*.safetensors"))
    for image in X[:50]:
        for row in (image, image.astype(np.float32), image.astype(np.float32) / 255):
            assert row.tobytes()[:256] not in stored


def test_the_card_and_the_json_say_what_matters(tmp_path):
    model = fitted(("healthy", "ill"), calibration="temperature", knockout=0.25)
    model.save(tmp_path / "model")
    document = json.loads((tmp_path / "model" / "model.json").read_text())
    assert document["kind"] == "GPAClassifier"
    assert document["versions"]["torch"] == torch.__version__
    content = document["content"]
    assert content["settings"]["knockout"] == 0.25
    assert content["fitted"]["classes_"]["items"] == ["healthy", "ill"]
    assert content["metrics"] == held_out_metrics(model)
    assert 0 < content["metrics"]["nll"] < 2
    age = content["fitted"]["confounders_"]["fields"]["variables"]["items"][0]["fields"]
    assert age["low"] == model.confounders_.variables[0].low
    summary = content["fitted"]["training_summary_"]["fields"]
    assert len(summary["fingerprint"]) == 12
    card = (tmp_path / "model" / "model.md").read_text()
    assert card == document["card"]
    _, y, site, _ = data(classes=("healthy", "ill"))
    for name in ("north", "south"):
        here = y[site == name]
        assert f"| {name} | {len(here)} | {(here == 'healthy').mean():.3f} | {(here == 'ill').mean():.3f} |" in card
    for word in ("age", "level", "a, b, c", "temperature", "knockout of z 0.25", summary["fingerprint"], "sw.load"):
        assert word in card


def test_the_card_of_a_site_has_its_numbers_and_names_cannot_break_it(tmp_path):
    model = fitted(("a|b\n<script>", "x" * 200))
    X, _, _, Z = data(5, 60)
    here = model.adapt(X, sample_confounder=Z)
    here.save(tmp_path / "site")
    card = (tmp_path / "site" / "model.md").read_text()
    low, high = here.prevalence_interval()
    assert f"| a\\|b \\<script\\> | {here.prevalence()[0]:.4f} | {low[0]:.4f} to {high[0]:.4f} |" in card
    assert "x" * 60 not in card
    assert f"Verdict: {here.diagnose().verdict}." in card
    assert "No images" in card


def test_the_fingerprint_knows_the_data():
    X, y, site, Z = data()
    fingerprints = set()
    for inputs, labels, z in ((X, y, Z), (X + 1e-9, y, Z), (X, 1 - y, Z), (X, y, Z.assign(age=50.0))):
        model = sw.GPAClassifier(**FAST).fit(inputs, labels, sample_domain=site, sample_confounder=z)
        fingerprints.add(model.training_summary_.fingerprint)
    assert len(fingerprints) == 4


numbers = st.floats(-1e300, 1e300, allow_subnormal=True)
levels = st.one_of(
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=4), min_size=2, max_size=4),
    st.just([True, False]),
    st.lists(st.integers(-3, 3), min_size=2, max_size=2, unique=True),
)
columns = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5),
    levels | st.lists(numbers, min_size=3, max_size=6),
    min_size=1,
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(
    columns,
    st.sampled_from(list(FAMILIES)),
    st.sampled_from(CALIBRATIONS),
    st.integers(2, 3),
    st.floats(0, 0.9),
    st.sampled_from([None, 0.3]),
    st.integers(0, 2**31 - 1),
)
def test_any_schema_and_settings_come_back(
    tmp_path, given_columns, prevalence, calibration, n_classes, knockout, validation, seed
):
    """Hypothesis chooses z's kinds, levels and ranges, the model of g, the calibration, and numbers among settings."""
    rng = np.random.default_rng(seed)
    y = np.resize(np.arange(n_classes), 40)
    X = rng.normal(size=(40, 2)) + y[:, None]
    drawn = {name: rng.choice(np.array(values, dtype=object), 40) for name, values in given_columns.items()}
    Z = pd.DataFrame(drawn).infer_objects()
    schema = sw.Confounders.learn(Z)
    if prevalence == "table" and any(hasattr(v, "low") for v in schema.variables):
        prevalence = "additive"
    options = {"knockout": knockout, "validation": validation, "random_state": seed}
    model = sw.GPAClassifier(**{**FAST, **options}, prevalence=prevalence, calibration=calibration)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y, sample_confounder=Z)
        other = reloaded(model, tmp_path)
        assert other.confounders_ == schema
        assert other.get_params() == model.get_params()
        same_model(model, other, X, None, Z)
        same_site(here := model.adapt(X, sample_confounder=Z), reloaded(here, tmp_path), X, Z)
