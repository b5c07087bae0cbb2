"""Values as JSON and tensors: exact, shared parts stay shared, and only known classes come back."""

import json
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sitewise.artifacts import Record
from sitewise.artifacts.packing import pack, unpack


@dataclass(frozen=True)
class Pair:
    left: object
    right: object = None
    made: list = field(default_factory=list, init=False)

    def add(self, x):
        return self.left + x

    def secret(self):
        return None


class Plain:
    """A class without fields."""

    def __init__(self, value):
        self.value = value


def double(x):
    return 2 * x


RECORDS = {
    "Pair": Record(Pair, methods=("add",)),
    "Plain": Record(Plain, lambda plain: {"value": plain.value}, lambda parts: Plain(parts["value"])),
    "double": Record(double),
}


def there_and_back(values, records=RECORDS):
    tree, tensors = pack(values, records)
    return unpack(json.loads(json.dumps(tree, allow_nan=False)), tensors, records)


def alike(one, other):
    """Equal in type and to the bit."""
    assert type(one) is type(other)
    if isinstance(one, float):
        assert np.float64(one).tobytes() == np.float64(other).tobytes() or (math.isnan(one) and math.isnan(other))
    elif isinstance(one, dict):
        assert list(map(type, one)) == list(map(type, other))
        assert list(one) == list(other)
        for key in one:
            alike(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            alike(left, right)
    elif isinstance(one, Pair):
        alike([one.left, one.right], [other.left, other.right])
    else:
        assert one == other


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(["$", "a/b", "~", "a", "b"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text
keys = text | st.integers() | st.booleans() | st.floats(allow_nan=False)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(text, inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.sets(st.text("abc"), max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(text, values, max_size=4))
def test_values_come_back_as_they_were(given):
    alike(there_and_back(given), given)


@given(st.lists(st.integers(0, 3), max_size=4), st.data())
def test_tensors_come_back_bit_for_bit_and_stride_for_stride(shape, data):
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8]))
    order = data.draw(st.permutations(range(len(shape))))
    tensor = (torch.randn(shape) * 3).to(dtype).permute(order)
    back = there_and_back({"t": tensor})["t"]
    assert back.dtype == dtype
    assert torch.equal(back, tensor)
    if 0 not in shape:
        assert back.stride() == tensor.stride()


def test_an_axis_of_one_keeps_its_stride():
    """A convolution of one channel rounds otherwise where its weights seem to lie channels first."""
    tensor = torch.randn(4, 1, 3, 3).to(memory_format=torch.channels_last)
    tensor = tensor.as_strided(tensor.shape, (9, 1, 3, 1))
    back = there_and_back({"t": tensor})["t"]
    assert back.stride() == (9, 1, 3, 1)
    assert torch.equal(back, tensor)


def test_parts_of_tensors_and_expanded_ones_are_kept_alone():
    whole = torch.arange(1000.0)
    tree, tensors = pack({"few": whole[10:12], "wide": whole[:1].expand(3)}, RECORDS)
    assert {name: t.untyped_storage().nbytes() for name, t in tensors.items()} == {"few": 8, "wide": 12}
    assert torch.equal(unpack(tree, tensors, RECORDS)["wide"], torch.zeros(3))


@pytest.mark.parametrize(
    "array",
    [
        np.array(["b", "ä", ""]),
        np.array(["b", 1, True, None], dtype=object),
        np.array([True, False]),
        np.array([[1, 2]], dtype=np.int8),
        np.array([0.1, np.nan, -np.inf], dtype=np.float32),
        np.arange(500),
        np.random.default_rng(0).normal(size=(20, 10)),
    ],
)
def test_arrays_come_back(array):
    back = there_and_back({"a": array})["a"]
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_numpy_numbers_become_plain_ones():
    back = there_and_back({"a": [np.float32(0.1), np.int64(3), np.bool_(True), np.str_("x")]})["a"]
    alike(back, [float(np.float32(0.1)), 3, True, "x"])


def test_what_is_shared_stays_shared():
    shared = Pair(torch.ones(3), "x")
    back = there_and_back({"a": (shared, shared), "b": shared.left, "c": Pair(shared, 1)})
    assert back["a"][0] is back["a"][1]
    assert back["c"].left is back["a"][0]
    assert back["b"] is back["a"][0].left


def test_methods_and_functions_of_known_classes_come_back():
    back = there_and_back({"a": Pair(2).add, "f": double, "p": Plain([1, (2,)])})
    assert (back["a"](3), back["f"](4), back["p"].value) == (5, 8, [1, (2,)])
    with pytest.raises(TypeError, match="a holds a method secret"):
        pack({"a": Pair(2).secret}, RECORDS)


@pytest.mark.parametrize("value", [object(), lambda: 0, len, Exception, torch.nn.Linear(1, 1), np.array([1j]), 1j])
def test_anything_else_is_refused_and_its_place_named(value):
    with pytest.raises(TypeError, match=r"settings/deep/0 holds a .*which a saved model cannot hold"):
        pack({"settings": {"deep": [value]}}, RECORDS)


def test_a_subclass_is_not_its_parent():
    class Own(Pair):
        pass

    with pytest.raises(TypeError, match="holds a Own"):
        pack({"a": Own(1)}, RECORDS)


def test_tensors_of_other_shapes_are_listed():
    tree, _ = pack({"a": torch.zeros(2, 3), "b": torch.zeros(2), "c": Pair(torch.zeros(1))}, RECORDS)
    wrong = {"a": torch.zeros(3, 2), "b": torch.zeros(2).double(), "d": torch.zeros(1)}
    with pytest.raises(ValueError, match="4 problems") as caught:
        unpack(tree, wrong, RECORDS)
    for part in ("'a' has shape (3, 2)", "'b' has shape (2,) of torch.float64", "'c/left' is not there", "'d' belongs"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"$": "record", "of": "Popen", "fields": {}}, "no class 'Popen' is registered"),
        ({"$": "record", "of": "Pair", "fields": {"left": 1, "odd": 2}}, r"unknown fields \['odd'\]"),
        ({"$": "record", "of": "Pair", "fields": {"right": 1}}, r"without \['left'\]"),
        ({"$": "method", "name": "secret", "of": {"$": "record", "of": "Pair", "fields": {"left": 1}}}, "not in"),
        ({"$": "method", "name": "upper", "of": "text"}, "KeyError"),
        ({"$": "same", "as": "nowhere"}, "nowhere"),
        ({"$": "code"}, "code"),
        ({"$": "tensor", "shape": [1], "dtype": "load"}, "place"),
    ],
)
def test_an_odd_entry_is_refused_and_its_place_named(entry, word):
    with pytest.raises(ValueError, match=rf"(load: place/here .*{word})|({word})"):
        unpack({"place": {"here": entry}}, {}, RECORDS)
