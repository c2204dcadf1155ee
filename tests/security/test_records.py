"""Whatever stands in the place of a stored record: what reads it gives an answer or one of our errors, soon."""

from __future__ import annotations

import ast
import json
import time
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latchwork import BadRecord, LatchworkError, OnceFailed
from latchwork._base.decoding import MAX_DEPTH, read_json
from latchwork.jobs.cron_progress import decode_progress_record
from latchwork.jobs.settings import ClusterSettings
from latchwork.jobs.stored.nodes import NodeRecord
from levels import LONG
from security.stored import KINDS, PARTS, VALUES, places, put, spoilt
from test_layering import PACKAGE, module_name

MAX_MEMORY = 60_000_000
#: The packages that read records, and what the names of their modules begin with here.
PACKAGES = {PACKAGE: "", PACKAGE.parent / "packages" / "workflows" / "src" / "latchwork_workflows": "workflows."}

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(PARTS)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def spoilt_records(draw):
    """A kind, and a value of that kind of which one part is another; or other bytes altogether."""
    name = draw(st.sampled_from(sorted(KINDS)))
    head, newline, rest = KINDS[name].good.partition(b"\n")
    body = json.loads(head)
    path = draw(st.sampled_from(list(places(body))))
    value = json.dumps(put(body, path, draw(json_values))).encode() + newline + rest
    cut = draw(st.one_of(st.just(len(value)), st.integers(0, len(value))))
    return name, draw(st.one_of(st.just(value[:cut]), st.binary(max_size=60)))


def read(name, value):
    """What the reader makes of it, as text that any terminal takes once it is escaped; ours are the only errors."""
    try:
        found = KINDS[name].read(value)
    except LatchworkError as error:
        return str(error)
    return repr(found)


@pytest.mark.parametrize("name", KINDS)
def test_a_record_is_read_as_it_was_written(name):
    if name == "outcome":
        with pytest.raises(OnceFailed, match=r"has failed on h \(pid 5\): K: w"):
            KINDS[name].read(KINDS[name].good)
        return
    found = KINDS[name].read(KINDS[name].good)
    assert found is not None
    assert found not in (ClusterSettings(), [], {}, ())


#: These read what a person typed, and no record: see the tests of the pages and of the command line.
TYPED = {"workflows.cli.actions", "workflows.web.forms", "workflows.ui.settings", "workflows.ui.workflows"}


@pytest.mark.parametrize("name", KINDS)
def test_a_record_with_one_bad_part_is_read_or_refused(name):
    for part in PARTS:
        for value in spoilt(KINDS[name].good, part):
            read(name, value).encode()


@pytest.mark.parametrize("name", KINDS)
def test_a_value_that_is_no_record_is_read_or_refused_in_no_time_and_little_memory(name):
    for value in VALUES:
        tracemalloc.start()
        try:
            begun = time.thread_time()
            read(name, value).encode()
            assert time.thread_time() - begun < 2.0
            assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY
        finally:
            tracemalloc.stop()


@pytest.mark.slow
@settings(max_examples=20_000 if LONG else 1_000, deadline=None)
@given(spoilt_records())
@example(("cell", b'{"fired":[[0,null]],"of":[[0,1000000000]],"token":1,"owner":"x"}'))
def test_any_record_is_read_or_refused(spoilt_record):
    read(*spoilt_record).encode()


def test_every_module_that_reads_records_is_tried():
    reading = set()
    for package, path in [(each, path) for each in PACKAGES for path in each.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module in {"latchwork._base.decoding", "latchwork.spi"}
                and {"Decoder", "read_json"} & {alias.name for alias in node.names}
            ):
                reading.add(PACKAGES[package] + module_name(path, package))
    assert reading - TYPED - {"spi"} == {kind.module for kind in KINDS.values()}


def test_progress_that_names_a_thousand_million_states_takes_no_memory():
    state = json.dumps({"fired": [[0, None]], "of": [[0, 10**9]], "token": 1, "owner": "x", "nonce": "n"}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(BadRecord, match=r"c cannot be read: .*run of states \[0, 1000000000\]"):
            decode_progress_record("c", state, b'["a"]')
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"[" * 100_000, "nested too deep"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested more than 32 deep"),
        (b'{"a":NaN}', "malformed"),
        (b'{"a":1e999}', "out of range"),
        (b'{"a":"\\ud800"}', "truncated"),
        (b"\xff", "can't decode byte 0xff"),
    ],
)
def test_json_that_no_record_of_ours_has_is_refused(value, why):
    with pytest.raises(BadRecord, match=why):
        read_json(value)


def test_what_a_record_may_have_is_read():
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert read_json(deep)
    assert read_json(b'{"a":"\\ud83e\\udd80 \xc3\xa9","b":1e5}') == {"a": "🦀 é", "b": 1e5}


@pytest.mark.parametrize("part", [b'"pid":1' + b"0" * 400, b'"ttl_s":-5', b'"weight":"2"', b'"since":1e300'])
def test_a_member_whose_record_cannot_be_read_is_not_ready(part):
    assert NodeRecord.decode("n1", b'{"worker":"n1","state":"ready"}').state == "ready"
    assert NodeRecord.decode("n1", b'{"worker":"n1","state":"ready",' + part + b"}") == NodeRecord("n1")
