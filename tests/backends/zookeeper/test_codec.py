"""The codec in Rust beside the functions in Python that say what it must do."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchwork._core import ZooKeeperCodec
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.layout import BUCKETS, Version, ZnodeLayout, decode_entry, get_bucket
from latchwork.types import Entry

LAYOUT = ZnodeLayout("ro/ot")
CODEC = ZooKeeperCodec(LAYOUT.root, entry=Entry, version=Version)
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
LONG, INT = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)
STATS = st.tuples(LONG, LONG, LONG, LONG, INT, INT, INT, st.just(0) | LONG, INT, INT, LONG).map(
    lambda numbers: struct.pack("!qqqqiiiqiiq", *numbers)
)
OWNERS = st.binary(min_size=32, max_size=32)
DATA = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=60).map(lambda value: b"=" + value),
    st.tuples(OWNERS, st.binary(max_size=20)).map(lambda both: b"@" + both[0] + b"=" + both[1]),
    st.tuples(st.text("0a9fgA", min_size=32, max_size=32), st.binary(max_size=20)).map(
        lambda both: b"@" + both[0].encode() + b"=" + both[1]
    ),
    st.tuples(st.just(b"a" * 32), st.binary(max_size=20)).map(lambda both: b"@" + both[0] + b"=" + both[1]),
    st.from_regex(rb"@a{32}:[0-9]{0,20}=.{0,20}", fullmatch=True),
)
READS = st.one_of(
    st.tuples(DATA, STATS).map(lambda both: struct.pack("!iBi", 4, 0, 0) + wire.encode_bytes(both[0]) + both[1]),
    st.sampled_from([wire.NO_NODE, wire.NO_AUTH, wire.OK]).map(lambda code: struct.pack("!iBii", -1, 0, code, code)),
)


def answer(reads):
    return wire.encode_multi(reads)


@given(st.lists(st.tuples(KEYS, READS), max_size=8), st.integers(0, 3), st.integers(0, 1000))
def test_entries_are_those_that_python_decodes(asked, start, gen):
    keys = ["skipped"] * start + [key for key, _ in asked]
    gens = [gen + number for number in range(BUCKETS)]
    body = answer([read for _, read in asked])
    expected, parents, refused = [], [], []
    for at, (key, found) in enumerate(zip(keys[start:], wire.parse_multi_read(body), strict=True), start):
        if isinstance(found, int):
            expected.append(None)
            refused += [(at, found)] if found not in {wire.OK, wire.NO_NODE} else []
        else:
            expected.append(decode_entry(key, found, gens[get_bucket(key)]))
            parents += [at] if found.data and found.stat.children else []
    entries, with_children, first = CODEC.entries(body, keys, start, gens)
    assert entries == expected
    assert [vars_of(entry) for entry in entries] == [vars_of(entry) for entry in expected]
    assert with_children == parents
    assert first == (refused[0] if refused else None)


def vars_of(entry):
    """What comparing versions leaves out, too."""
    if entry is None:
        return None
    version = entry.version
    return [getattr(version, name) for name in ("mzxid", "data", "gen", "created", "owner", "born")]


@given(st.lists(KEYS, max_size=8), st.integers(0, 9), st.integers(0, 9))
def test_requests_are_those_that_python_encodes(keys, start, end):
    expected = wire.encode_multi([wire.encode_get_data(LAYOUT.path(key)) for key in keys[start:end]])
    assert CODEC.reads(keys, start, end) == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_a_value_error(body):
    with contextlib.suppress(ValueError):  # anything else, a panic above all, fails
        CODEC.entries(body, ["k"] * 50, 0, [0] * BUCKETS)


@given(st.lists(READS, min_size=1, max_size=4), st.integers(1, 50))
def test_an_answer_that_is_cut_off_is_refused(reads, missing):
    body = answer(reads)
    with pytest.raises(ValueError, match="cannot be read"):
        CODEC.entries(body[: max(0, len(body) - missing)], ["k"] * len(reads), 0, [0] * BUCKETS)


def test_more_answers_than_keys_are_an_index_error():
    with pytest.raises(IndexError):
        CODEC.entries(answer([struct.pack("!iBii", -1, 0, -101, -101)] * 2), ["k"], 0, [0] * BUCKETS)


def test_records_without_those_slots_are_refused():
    with pytest.raises((TypeError, AttributeError)):
        ZooKeeperCodec("/r", entry=int, version=Version)
