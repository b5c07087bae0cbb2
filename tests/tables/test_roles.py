"""The roles of columns: from options and TOML, one at a time, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sitewise.arrays import Problems
from sitewise.tables import Roles
from sitewise.tables.roles import read_roles, roles_as_toml, split_names

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def problems_of(roles):
    problems = Problems("roles")
    roles.check(problems)
    return problems.messages


@given(target=NAMES, features=st.lists(NAMES, max_size=4, unique=True), why=st.text(max_size=30))
def test_any_names_and_reasons_go_through_a_file(tmp_path_factory, target, features, why):
    """Quotes, line breaks and signs of TOML in the names of columns, too."""
    roles = Roles(target=target, features=tuple(features), site="hospital")
    path = tmp_path_factory.mktemp("roles") / "roles.toml"
    path.write_bytes(roles_as_toml(roles, {"target": why, "features": why}, [why]).encode())
    assert read_roles(path) == roles


def test_what_is_given_replaces_and_what_is_not_stays():
    roles = Roles(target="y", site="hospital", confounders=("age",), features=("bp",), categorical=("bp",))
    assert roles.updated(site=None, confounders=[], target="ill") == Roles(
        target="ill", site="hospital", confounders=("age",), features=("bp",), categorical=("bp",)
    )


@pytest.mark.parametrize(("role", "value"), [("image", "file"), ("proba", ["p0", "p1"]), ("features", ["x"])])
def test_another_kind_of_input_replaces_the_old_one(role, value):
    for roles in (Roles(features=("bp",)), Roles(image="path"), Roles(proba=("p",))):
        updated = roles.updated(**{role: value})
        assert [name for name in ("features", "image", "proba") if getattr(updated, name)] == [role]


@pytest.mark.parametrize("second", [{"group": "path"}, {"id": "path"}, {"group": "path", "id": "path"}])
def test_the_path_of_an_image_may_name_its_row_and_its_patient(second):
    assert problems_of(Roles(image="path", **second)) == []


def test_a_column_with_two_roles_is_named_with_both():
    found = problems_of(Roles(target="y", site="y", features=("x", "x"), confounders=("x",)))
    assert found == [
        "column 'y' has two roles (target, site): give it one",
        "column 'x' has two roles (confounders, features, features): give it one",
    ]


def test_names_are_split_at_commas():
    assert split_names(" a, b c ,,d") == ("a", "b c", "d")
    assert split_names(None) == split_names("") == ()
