"""Payloads: what comes back is equal and of the same type, or it was refused when it was stored."""

from __future__ import annotations

import datetime as dt
import enum
import math
import uuid
import zoneinfo
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchwork.tasks import (
    DEFAULT,
    BadPayload,
    NotSerializable,
    Payloads,
    PayloadTooLarge,
    PickleCodec,
    PickleRefused,
    PlainCodec,
)
from latchwork.tasks.functions import RegisteredFunction
from latchwork.tasks.payloads.validation import are_equal

from .examples import Cart, Colour, Order, Point, anything, ship, square

PLAIN = PlainCodec()
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def back(value, type_=Any):
    return PLAIN.decode(PLAIN.encode(value, "it", type_), type_)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals()
    | st.uuids()
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.complex_numbers()
    | st.datetimes(timezones=st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=-3)), BERLIN]))
    | st.binary().map(bytearray)
)
KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.uuids() | st.dates()
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS | st.tuples(KEYS, KEYS), inner, max_size=4)
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=40)
@given(VALUES)
def test_plain_values_of_any_shape_come_back_equal_and_of_the_same_types(value):
    assert are_equal(back(value), value)


CART = Cart((Order(1, [Point(1, 2)], Colour.GREEN), Order(2, [])), "n")


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (CART, Cart),
        ([CART], list[Cart]),
        ({Colour.RED: CART}, dict[Colour, Cart | None]),
        ((1, "a"), tuple[int, str]),
        ((Colour.RED, Colour.GREEN), tuple[Colour, ...]),
        (frozenset([Point(1, 2)]), frozenset[Point]),
        ([Point(1, 2)], Sequence[Point]),
        ({"a": Point(1, 2)}, Mapping[str, Point]),
        (Colour.RED, Literal[Colour.RED]),
        (3, int | None),
        (3, float),
        (True, int),
        (3, NewType("Age", int)),
        (3, Annotated[int, msgspec.Meta(ge=0)]),
        (ValueError("x", 1), ValueError),
        ([ValueError("x")], Any),
        (2**200, int),
        (math.nan, float),
    ],
    ids=repr,
)
def test_a_value_that_fits_its_annotation_comes_back(value, type_):
    assert are_equal(back(value, type_), value)


class MyInt(int): ...


class MyDict(dict): ...


class Priority(enum.IntEnum):
    LOW = 1


@dataclass
class Counted:
    n: int
    seen: list[int] = field(default_factory=list)

    def __post_init__(self):
        self.n += 1


@dataclass
class Child(Counted): ...


@pytest.mark.parametrize(
    ("value", "type_", "why"),
    [
        (MyInt(1), Any, "a MyInt"),
        (MyDict(), Any, "a MyDict"),
        (OrderedDict(), Any, "a OrderedDict"),
        (defaultdict(list), Any, "a defaultdict"),
        (object(), Any, "give plain values"),
        (open, Any, "give plain values"),
        (dt.datetime.now(dt.timezone(dt.timedelta(0), "mine")), Any, "a name of its own"),
        (Point(1, 2), Any, "annotated with the class Point"),
        ([[CART]], list[Any], r"\[0\]\[0\]|annotated with the class"),
        (Priority.LOW, int, "of type int, and is a Priority"),
        ((1, 2), list[int], "of type list"),
        ([1], tuple[int, ...], "of type tuple"),
        ((1,), tuple[int, int], "a tuple of 2"),
        ([1, "x"], list[int], r"\[1\] has to be of type int, and is 'x', a str"),
        ({"a": {"b": 1}}, dict[str, dict[str, str]], r"\['a'\]\['b'\] has to be of type str"),
        (1.5, int, "of type int"),
        ("x", int | None, r"int \| None"),
        (-1, Annotated[int, msgspec.Meta(ge=0)], "as annotated"),
        (2, Literal[1, 3], "Literal"),
        (Counted(1), Counted, "would be read back as"),
        (Child(1), Counted, "of type Counted, and is a Child"),
        ("\ud800", str, "a lone surrogate"),
        (ValueError(object()), Any, "give plain values"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__),
)
def test_what_would_come_back_as_another_is_refused(value, type_, why):
    with pytest.raises(NotSerializable, match=why):
        PLAIN.encode(value, "it", type_)


def test_an_object_that_its_constructor_changes_is_refused():
    with pytest.raises(NotSerializable, match="would be read back as"):
        PLAIN.encode(Counted(1), "it", Counted)


def test_what_holds_itself_is_refused():
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotSerializable, match="nested more than 64 deep, or contains itself"):
        PLAIN.encode(value, "it")


def test_an_object_with_attributes_that_are_no_fields_is_refused():
    order = Order(1, [])
    object.__setattr__(order, "secret", 1)
    with pytest.raises(NotSerializable):
        PLAIN.encode(order, "it", Order)


class Config(TypedDict, total=False):
    name: str
    at: Point


def test_a_typed_dict_has_its_objects_made():
    assert back({"name": "x", "at": Point(1, 2)}, Config) == {"name": "x", "at": Point(1, 2)}
    with pytest.raises(NotSerializable, match=r"\['name'\]"):
        PLAIN.encode({"name": 1}, "it", Config)


# Calls


PAYLOADS = Payloads()


def call(fn, *args, **kwargs):
    one = DEFAULT.resolve(fn)
    return PAYLOADS.decode_call(one, PAYLOADS.encode_call(one, args, kwargs))


def test_the_arguments_of_a_call_come_back_as_they_were_given():
    assert call(ship, CART, to=Point(1, 2), times=2) == ((CART,), {"to": Point(1, 2), "times": 2})
    assert call(anything, 1, (2,), {3}, a=b"x") == ((1, (2,), {3}), {"a": b"x"})


def test_an_argument_that_does_not_fit_is_named():
    with pytest.raises(
        NotSerializable, match=r"argument 'to' of '.*:ship': it has to be of type Point, and is \(1, 2\)"
    ):
        call(ship, CART, to=(1, 2))
    with pytest.raises(NotSerializable, match=r"argument 'rest' of '.*:anything'"):
        call(anything, 1, object())


def test_arguments_that_the_function_does_not_take_are_refused_before_anything_is_stored():
    with pytest.raises(TypeError, match=r"function '.*:square': missing a required argument: 'n'"):
        call(square)


def test_arguments_for_another_version_of_a_function_are_its_error():
    stored = PAYLOADS.encode_call(DEFAULT.resolve(anything), (1, 2), {})
    with pytest.raises(BadPayload, match="the caller has another version of it"):
        PAYLOADS.decode_call(DEFAULT.resolve(square), stored)
    stored = PAYLOADS.encode_call(DEFAULT.resolve(anything), ("x",), {})
    with pytest.raises(BadPayload, match=r"argument 'n' of .* has to be of type int"):
        PAYLOADS.decode_call(DEFAULT.resolve(square), stored)


def test_a_payload_above_its_limit_is_refused_at_both_ends():
    small = Payloads(max_payload_bytes=100)
    with pytest.raises(PayloadTooLarge, match="store it elsewhere and pass its address"):
        small.encode(b"x" * 100, "it")
    with pytest.raises(BadPayload, match="at most 100 are read here"):
        small.decode(PAYLOADS.encode(b"x" * 100, "it"), Any, "it")


# Pickles


def test_pickled_calls_need_both_sides_to_say_so():
    one = RegisteredFunction("fn", lambda value: value)
    mine = Payloads(PickleCodec(), allow_pickle=True)
    stored = mine.encode_call(one, (lambda: 7,), {})
    assert mine.decode_call(one, stored).args[0]() == 7
    for other in (Payloads(), Payloads(PickleCodec())):
        with pytest.raises(PickleRefused, match="pickles are not trusted here"):
            other.decode_call(one, stored)


def test_pickled_arguments_are_validated_too():
    with pytest.raises(NotSerializable, match="of type int"):
        Payloads(PickleCodec()).encode_call(DEFAULT.resolve(square), ("x",), {})


def test_what_cannot_be_pickled_is_named():
    import threading

    with pytest.raises(NotSerializable, match="it cannot be pickled"):
        PickleCodec().encode(threading.Lock(), "it")


def test_an_answer_is_of_the_codec_of_its_call():
    mine = Payloads(allow_pickle=True)
    assert mine.encode(1, "it", like=PickleCodec.tag + b":...").startswith(b"pickle:")
    assert mine.encode(1, "it", like=b"plain:...").startswith(b"plain:")


def test_uuids_keep_whether_they_are_safe():
    made = uuid.uuid1()
    assert back(made).is_safe is made.is_safe


def test_a_decimal_keeps_its_digits():
    assert str(back(Decimal("1.200"))) == "1.200"
