"""Arguments of which some come later, filled with results as they are stored."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchwork.tasks import (
    BadPayload,
    Functions,
    NotSerializable,
    Payloads,
    PickleCodec,
    Placeholder,
    encode_template,
    fill_template,
    find_placeholders,
)

FUNCTIONS = Functions()
PLAIN = Payloads()
PICKLE = Payloads(PickleCodec(allow_pickle=True), allow_pickle=True)


@dataclasses.dataclass
class Part:
    name: str
    size: int


@FUNCTIONS.task(name="any")
def take_any(*args, **kwargs):
    return args, kwargs


@FUNCTIONS.task(name="parts")
def take_parts(parts: list[Part], factor: int = 1, **rest: Part):
    return parts, factor, rest


def called(payloads, of, args, kwargs, results):
    registered = FUNCTIONS.get(of)
    template = encode_template(payloads, registered, args, kwargs)
    stored = {name: payloads.encode(value, "a result", type(value)) for name, value in results.items()}
    return payloads.decode_call(registered, fill_template(payloads, template, stored, of))


@pytest.mark.parametrize("payloads", [PLAIN, PICKLE], ids=["plain", "pickle"])
def test_results_come_where_they_are_awaited(payloads):
    found = called(
        payloads,
        "any",
        (Placeholder("a"), [1, Placeholder("b"), {"deep": [Placeholder("a")]}], "x"),
        {"named": Placeholder("b"), "plain": (1, 2)},
        {"a": {"k": 1}, "b": (2, None)},
    )
    assert found.args == ({"k": 1}, [1, (2, None), {"deep": [{"k": 1}]}], "x")
    assert found.kwargs == {"named": (2, None), "plain": (1, 2)}


def test_results_that_are_objects_are_made_whole_by_the_annotation_of_the_argument():
    results = {"a": Part("a", 1), "b": Part("b", 2)}
    found = called(
        PLAIN, "parts", ([Placeholder("a"), Placeholder("b")],), {"factor": 3, "more": Placeholder("b")}, results
    )
    assert found.args == ([Part("a", 1), Part("b", 2)],)
    assert found.kwargs == {"factor": 3, "more": Part("b", 2)}


def test_a_result_that_does_not_fit_names_its_argument():
    with pytest.raises(BadPayload, match="argument 'parts' of 'parts'"):
        called(PLAIN, "parts", ([Placeholder("a")],), {}, {"a": 7})


@given(st.integers(0, 70), st.integers(0, 20))
@settings(max_examples=25, deadline=None)
def test_lists_and_dictionaries_of_any_length_come_whole(count, keys):
    names = [f"r{number}" for number in range(count)]
    found = called(
        PLAIN,
        "any",
        ([Placeholder("z"), *map(Placeholder, names)],),
        {"d": {str(k): Placeholder("z") for k in range(keys)}},
        {"z": 0, **{name: name for name in names}},
    )
    assert found.args == ([0, *names],)
    assert found.kwargs == {"d": {str(k): 0 for k in range(keys)}}


def test_seventy_thousand_results_are_one_list():
    found = called(PLAIN, "any", ([Placeholder("z")] * 70_000,), {}, {"z": 5})
    assert found.args == ([5] * 70_000,)


@pytest.mark.parametrize("value", [(Placeholder("a"),), {1: Placeholder("a")}, {"k": (Placeholder("a"),)}])
def test_a_result_where_it_cannot_be_awaited_is_refused(value):
    with pytest.raises(NotSerializable, match=r"argument 'args' of 'any'.*put it into a list|argument '#0'"):
        encode_template(PLAIN, FUNCTIONS.get("any"), (value,), {})


def test_those_that_come_later_are_found_in_order():
    value = {"x": [Placeholder("a"), (Placeholder("b"), 1)], "y": Placeholder("a")}
    assert [each.name for each in find_placeholders(value)] == ["a", "b", "a"]


@pytest.mark.parametrize("template", [b"", b"x", b"\xc0", b"\x93\xc4\x05plain\x90\x90"])
def test_a_template_that_nobody_here_wrote_is_refused(template):
    with pytest.raises(BadPayload):
        fill_template(PLAIN, template, {}, "any")


def test_a_missing_result_and_one_of_another_codec_are_refused():
    template = encode_template(PLAIN, FUNCTIONS.get("any"), (Placeholder("a"),), {})
    with pytest.raises(BadPayload, match="waits for 'a'"):
        fill_template(PLAIN, template, {}, "any")
    with pytest.raises(BadPayload, match="another codec"):
        fill_template(PLAIN, template, {"a": PICKLE.encode(1, "a result")}, "any")
