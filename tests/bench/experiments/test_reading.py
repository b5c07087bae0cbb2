import re

import pytest

from patience import no_hang
from sitewise.bench.experiments.reading import NO_TUNING, UNEQUAL, merge, read_experiment


def complaint(path, quick=False):
    with pytest.raises(ValueError, match=r"tiny\.yaml") as caught:
        read_experiment(path, quick=quick)
    return str(caught.value)


BOMB = "\n".join(
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x]",
        *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)),
    ]
)
MERGES = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 12))]
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{BOMB}\ndata: *a11\n", "more than"),
        (f"{BOMB}\ntitle: *a11\n", "more than"),
        (MERGES, "more than"),
        ("data: " + "[" * 5000, "nested more than"),
        ("data: " + "{a: " * 5000, "nested more than"),
        ("- " * 5000, "nested more than"),
        ("".join(f"{' ' * i}a:\n" for i in range(600)), "nested more than"),
        ("? [a, b]\n: 1\n", "line 1: a key must be"),
        ("data:\n  ? {a: 1}\n  : 1\n", "line 2: a key must be"),
        ("data: &d [*d]\n", "refers to itself"),
        ("data: *nowhere\n", "not YAML"),
        ("seeds: !!python/object/apply:os.system [echo]\n", "not YAML"),
        ("# " + "x" * 2**21, "bytes"),
        ("seeds: " + "1" * 6000, "digits"),
        ("data: !!binary '%%%'\n", "data must be a mapping"),
        ("seeds: !!timestamp 2001-99-99\n", "seeds|month"),
        ("\x00", "not YAML"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_files_that_would_exhaust_the_reader_are_refused_first(tmp_path, text, said):
    path = tmp_path / "tiny.yaml"
    path.write_text(text)
    with no_hang():
        message = complaint(path)
    assert re.search(said, message), message
    assert len(message) < 30_000


def test_anchors_are_still_of_use(write, tiny):
    text = write().read_text().replace("title: Tiny", "title: &name Tiny\npaper: {name: *name}")
    path = write()
    path.write_text(text)
    assert read_experiment(path).paper == {"name": "Tiny"}


def test_reads_what_the_file_says(tiny):
    experiment = tiny()
    assert (experiment.name, experiment.title, experiment.seeds, experiment.quick) == ("tiny", "Tiny", 3, False)
    assert [(site.name, site.n) for site in experiment.training] == [("a", 40), ("b", 30)]
    assert [(site.name, site.n) for site in experiment.tests] == [("near", None), ("far", None)]
    assert [(draw.name, draw.score, draw.adapt) for draw in experiment.draws] == [("all", 50, None), ("apart", 50, 10)]
    assert [entry.label for entry in experiment.methods] == ["G", "G2", "T", "R"]
    assert experiment.methods[1].settings == {"share": 0.4}
    assert experiment.recipe == {"name": "default"}


def test_a_grid_is_every_combination_in_order(tiny):
    entry = tiny().methods[3]
    assert [choice.settings for choice in entry.candidates] == [
        {"share": 0.1, "extra": 1},
        {"share": 0.1, "extra": 2},
        {"share": 0.2, "extra": 1},
        {"share": 0.2, "extra": 2},
    ]


def test_quick_is_merged_deeply_and_null_drops(tiny):
    changes = {
        "quick": {
            "seeds": 2,
            "recipe": {"epochs": 1},
            "training": {"a": {"n": 10}},
            "tests": {"far": None},
            "methods": {"T": None, "G": {"share": 0.9}},
        }
    }
    full, quick = tiny(changes), tiny(changes, quick=True)
    assert full == tiny()
    assert (quick.seeds, quick.recipe, quick.quick) == (2, {"name": "default", "epochs": 1}, True)
    assert [(site.name, site.n) for site in quick.training] == [("a", 10), ("b", 30)]
    assert [site.name for site in quick.tests] == ["near"]
    assert [entry.label for entry in quick.methods] == ["G", "G2", "R"]
    assert quick.methods[0].method == "guess"
    assert quick.methods[0].settings == {"share": 0.9}


def test_merge_leaves_its_arguments_alone():
    base = {"a": {"b": 1, "c": 2}, "d": None}
    assert merge(base, {"a": {"b": None}}) == {"a": {"c": 2}, "d": None}
    assert base == {"a": {"b": 1, "c": 2}, "d": None}


def test_every_mistake_is_in_one_error(write):
    text = complaint(
        write(
            {
                "draw": {},
                "data": {"kind": "simulatd"},
                "seeds": "3",
                "metric": "positive_f",
                "methods": {"G": "guss", "G2": {"shre": 0.1}},
                "reference": "G3",
            }
        )
    )
    for part in (
        "7 problems",
        "draw is not a key here; did you mean 'draws'?",
        "data.kind must be one of colored_digits, digits, isic64, cxr64, simulated, mixed_densities, isic, cxr, "
        "manifest, got ",
        "'simulatd'",
        "did you mean 'simulated'?",
        "seeds must be a whole number of at least 1, got '3'",
        "metric must be one of",
        "got 'positive_f'; did you mean 'positive_f1'?",
        "methods.G: the methods are",
        "got 'guss'; did you mean 'guess'?",
        "methods.G2.shre is not a setting of guess; did you mean 'share'?",
    ):
        assert part in text, text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tests": None}, "tests is missing"),
        ({"tests": {"near": None, "far": None}}, "tests: at least one is needed"),
        ({"reference": "GG"}, "reference must be one of the methods' labels, got 'GG'"),
        ({"recipe": "defualt"}, "got 'defualt'; did you mean 'default'?"),
        ({"recipe": {"epoch": 2}}, "recipe.epoch is not a key here; did you mean 'epochs'?"),
        ({"training": {"a": {"n": None}}}, "training.a.n must be a whole number of at least 1, got None"),
        ({"training": {"a": {"n": True}}}, "training.a.n must be a whole number of at least 1, got True"),
        ({"tests": {"near": {"n": 5}}}, "tests.near.n is not a key here"),
        ({"tests": {"near": {"dependance": 1}}}, "tests.near.dependance is not a key here; did you mean 'dependence'?"),
        ({"tests": {"a": {}}}, "two sites have the name 'a'"),
        ({"training": {"validation": {"n": 5}}}, "two sites have the name 'validation'"),
        ({"draws": {"all": {"score": 0}}}, "draws.all.score must be a whole number of at least 1, got 0"),
        ({"draws": {"all": {"adopt": 10}}}, "draws.all.adopt is not a key here; did you mean 'adapt'?"),
        ({"methods": {"G2": {"random_state": 1}}}, "methods.G2.random_state is the same for all methods"),
        ({"methods": {"R": {"share": 1}}}, "methods.R.share is given both a value and a grid"),
        ({"methods": {"R": {"grid": {"share": 0.1}}}}, "methods.R.grid.share must be a list of values to try, got 0.1"),
        ({"tuning": None}, NO_TUNING),
        ({"tuning": {"seeds": 4}}, "tuning.seeds must be at most seeds (3), got 4"),
        ({"tuning": {"metric": "f1"}}, "tuning.metric must be one of"),
        ({"data": {"kind": "colored_digits", "levels": None, "n_continuous": None}}, "tests.near: give either beta"),
    ],
)
def test_a_mistake_is_named_with_its_key(write, changes, expected):
    assert expected in complaint(write(changes))


def test_grids_of_unequal_size_are_refused(write):
    changes = {"methods": {"T": {"method": "sees_target", "grid": {"share": [0.1, 0.2, 0.3]}}}}
    assert UNEQUAL.format(sizes="T 3, R 4") in complaint(write(changes))


def test_colored_digits_options_are_checked(write):
    changes = {
        "data": {"kind": "colored_digits", "model": "confonded", "levels": None, "n_continuous": None},
        "training": {"a": {"beta": 0.9, "joint": "flipped"}, "b": {"beta": 0.7, "prevalence": None}},
        "validation": {"beta": 0.5},
        "tests": {"near": {"joint": "fliped"}, "far": {"beta": 0.3, "prevalence": None, "dependence": None}},
    }
    text = complaint(write(changes))
    assert "data.model must be one of confounded, y_causes_z, z_causes_y, graded, got 'confonded'" in text
    assert "training.a: give either beta" in text
    assert "tests.near: joint must be one of flipped, got 'fliped'" in text


def test_a_duplicate_key_is_a_mistake(write):
    assert "line 3: duplicate key 'ERM'" in complaint(write(text="methods:\n  ERM: erm\n  ERM: erm_z\n"))


@pytest.mark.parametrize("text", ["- a\n- b\n", "data: {kind: [\n", "just words"])
def test_what_is_no_mapping_is_refused(write, text):
    assert "tiny.yaml" in complaint(write(text=text))


def test_numbers_and_anchors_mean_what_people_mean(write, tiny):
    path = write({"methods": {"G2": {"share": 0.123456}, "R": None}, "tuning": None})
    text = path.read_text(encoding="utf-8").replace("0.123456", "1e-3").replace("near: {}", "near: &x {z_shift: 2}")
    path.write_text(text.replace("  far:\n", "  far:\n    <<: *x\n"), encoding="utf-8")
    experiment = read_experiment(path)
    assert experiment.methods[1].settings == {"share": 0.001}
    assert experiment.tests[1].options["z_shift"] == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"variants": {"one": "two"}}, "variants.one must be a mapping"),
        ({"data": {"kind": ["a"]}}, r"data.kind must be one of .* got \['a'\]"),
        ({"recipe": {"name": {"a": 1}}}, "recipe must be one of"),
        ({"methods": {"G": {"method": ["erm"]}}}, r"methods.G: the methods are .* got \['erm'\]"),
    ],
)
def test_lists_and_text_in_the_place_of_others_are_mistakes_too(write, changes, said):
    with pytest.raises(ValueError, match=said):
        read_experiment(write(changes))


def test_a_quick_section_that_is_no_mapping_is_refused(write):
    with pytest.raises(ValueError, match="quick must be a mapping"):
        read_experiment(write({"quick": ["seeds"]}), quick=True)
