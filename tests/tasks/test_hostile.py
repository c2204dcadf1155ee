"""What somebody who can write to the store can do to whoever reads payloads: make that one task fail, and no more."""

from __future__ import annotations

import os
import pickle
import resource
import struct
import subprocess
import sys
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from latchwork.tasks import (
    DEFAULT,
    BadPayload,
    NotSerializable,
    Outcome,
    Payloads,
    PlainCodec,
    StoredCall,
    TaskContext,
    run_call,
)
from latchwork.tasks.payloads.values import MAX_DEPTH, pack, unpack

from . import examples
from .examples import Base, anything, square, wants_base

PAYLOADS = Payloads()
EXT = msgspec.msgpack.Ext
encode = msgspec.msgpack.encode


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def nested(mark, depth):
    data = encode(None)
    for _ in range(depth):
        data = encode([EXT(mark, data)])
    return data


HOSTILE = {
    "nothing": b"",
    "text": b"hello",
    "half a map": b"\x82\xa1a",
    "a list of 4 billion": b"\xdd\xff\xff\xff\xff",
    "a map of 4 billion": b"\xdf\xff\xff\xff\xff",
    "a text of 4 billion": b"\xdb\xff\xff\xff\xff",
    "bytes of 4 billion": b"\xc6\xff\xff\xff\xff",
    "a mark of 4 billion": b"\xc9\xff\xff\xff\xff\x01",
    "lists nested deep": b"\x91" * 1_000_000 + b"\xc0",
    "maps nested deep": b"\x81\xa1a" * 300_000 + b"\xc0",
    "an unknown mark": encode(EXT(99, b"x")),
    "marks nested deep": nested(1, MAX_DEPTH + 10),
    "a tuple that is none": encode(EXT(1, encode(5))),
    "a set of what has no hash": encode(EXT(2, encode([[1]]))),
    "a date that is none": encode(EXT(6, b"2020-13-45")),
    "a moment in a zone that is a path": encode(EXT(5, encode(["2020-01-01T00:00:00", "../../etc/passwd", 0]))),
    "a moment whose fold is none": encode(EXT(5, encode(["2020-01-01T00:00:00", "", 7]))),
    "a delta without end": encode(EXT(8, encode([10**18, 0, 0]))),
    "a decimal that is none": encode(EXT(9, b"one")),
    "a uuid that is short": encode(EXT(10, b"xx")),
    "an object without fields": encode(EXT(13, encode(["Point"]))),
    "an exception that is none": encode(EXT(16, encode(["os", "system", EXT(1, encode(["true"])), {}]))),
    "an exit": encode(EXT(16, encode(["builtins", "SystemExit", EXT(1, encode([1])), {}]))),
    "text that is none": b"\xa2\xff\xff",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bytes_that_are_no_value_are_refused_and_take_no_memory(name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadPayload):
        unpack(HOSTILE[name], "it")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("name", HOSTILE)
def test_a_call_or_an_outcome_of_such_bytes_is_that_tasks_failure(name):
    data = HOSTILE[name]
    for payload in (data, b"plain:" + data, b"plain:" + encode([[data], {}]), b"plain:" + encode([[], {"n": data}])):
        outcome = run_call(StoredCall(DEFAULT.resolve(square).name, payload), DEFAULT, PAYLOADS, TaskContext("t"))
        assert outcome.failure.is_final
        assert issubclass(outcome.failure.loaded_class, BadPayload)
    with pytest.raises(BadPayload):
        Outcome.from_bytes(data)


@pytest.mark.parametrize("tag", [b"pickle", b"plain", b"", b"json"])
def test_a_pickle_is_not_loaded_whatever_it_says_that_it_is(tmp_path, tag):
    evil = pickle.dumps(Evil(tmp_path / "made"))
    for frame in (evil, encode([[evil], {}])):
        outcome = run_call(
            StoredCall(DEFAULT.resolve(anything).name, tag + b":" + frame), DEFAULT, PAYLOADS, TaskContext("t")
        )
        assert not outcome.is_success
        outcome = run_call(StoredCall("", tag + b":" + frame), DEFAULT, PAYLOADS, TaskContext("t"))
        assert not outcome.is_success
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_trusts_pickles_loads_it_which_is_what_the_warning_says(tmp_path):
    evil = pickle.dumps(Evil(tmp_path / "made"))
    outcome = run_call(StoredCall("", b"pickle:" + evil), DEFAULT, Payloads(allow_pickle=True), TaskContext("t"))
    assert not outcome.is_success
    assert (tmp_path / "made").is_dir()


def test_no_class_is_made_but_of_those_that_are_taken_apart():
    """An annotation may name any class; the store must not choose what its constructor gets."""
    stored = encode(EXT(13, encode(["Base", {"args": "rm"}])))
    with pytest.raises(BadPayload, match="has to be of type Base"):
        PlainCodec().decode(stored, Base)
    with pytest.raises(BadPayload, match="has to be of type Popen"):
        PlainCodec().decode(encode(EXT(13, encode(["Popen", {"args": ["touch", "x"]}]))), subprocess.Popen)
    payload = b"plain:" + encode([[stored], {}])
    assert not run_call(
        StoredCall(DEFAULT.resolve(wants_base).name, payload), DEFAULT, PAYLOADS, TaskContext("t")
    ).is_success
    assert Base.made == 0


def test_no_module_is_imported_for_a_payload():
    before = set(sys.modules)
    for name in ("antigravity", "this", "turtle"):
        for mark in (13, 14):
            unpack(encode(EXT(mark, encode([f"{name}.Thing", {}]))), "it")
        with pytest.raises(BadPayload):
            unpack(encode(EXT(16, encode([name, "Thing", EXT(1, encode([])), {}]))), "it")
        run_call(StoredCall(f"{name}:main", b"plain:"), DEFAULT, PAYLOADS, TaskContext("t"))
    assert not {"antigravity", "this", "turtle"} & (set(sys.modules) - before)


def test_a_function_that_is_there_but_not_registered_is_not_called():
    outcome = run_call(
        StoredCall("os:getcwd", PAYLOADS.encode_call(DEFAULT.resolve(anything), (1,), {})),
        DEFAULT,
        PAYLOADS,
        TaskContext("t"),
    )
    assert outcome.failure.name == "UnknownFunction"
    assert f"{examples.__name__}:Base" not in DEFAULT


def test_a_payload_at_its_limit_is_refused_before_it_is_decoded():
    small = Payloads(max_payload_bytes=1000)
    with pytest.raises(BadPayload, match="at most 1,000 are read"):
        small.decode(b"plain:" + b"\x91" * 10_000, Any, "it")


def test_a_value_of_many_tuples_costs_no_more_than_its_bytes():
    """Each level of marks is packed once: the deepest that may be stored is small and quick."""
    value: tuple = ()
    for _ in range(MAX_DEPTH - 1):
        value = (value,)
    assert len(pack(value, "it")) < 1000
    with pytest.raises(NotSerializable):
        pack(((value,),), "it")


@pytest.mark.parametrize("seed", range(200))
def test_random_bytes_are_a_value_or_refused(seed):
    import random

    data = random.Random(seed).randbytes(random.Random(seed).randrange(1, 60))
    for candidate in (data, struct.pack(">BIb", 0xC9, len(data), seed % 17) + data):
        with suppress(BadPayload):
            unpack(candidate, "it")
        with suppress(BadPayload):
            PAYLOADS.decode(b"plain:" + candidate, list[examples.Order] | examples.Cart | Any, "it")
