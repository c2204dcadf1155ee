"""The codec in Rust says what the generated classes and the plans say, and refuses bytes that are no message."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from latchwork.backends.base import VersionKey
from latchwork.backends.etcd.layout import EtcdKeys
from latchwork.backends.etcd.writing.compiler import PAIRED_LIMIT, TxnCompiler
from latchwork.backends.etcd.writing.slots import Slot
from latchwork.backends.etcd.writing.txn import FLAT_LIMIT
from latchwork.types import Absent, At, Committed, Create, Delete, Entry, Exists, Put, SessionAlive
from latchwork_testkit.etcd_rpc import pb


@dataclass(frozen=True)
class SessionName:
    """A session by its ID."""

    id: str


KEYS = EtcdKeys("the-root")
COMPILER = TxnCompiler(KEYS)
CODEC = COMPILER.codec
REVISIONS = st.integers(1, 2**62)
SEGMENT = st.text("ab", min_size=1, max_size=2) | st.sampled_from(["x" * 120, "y~%@:+=,"])
NAME = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join)
STRANGER = (
    st.binary(max_size=6)
    | st.sampled_from([b"", b"/", b"x//y", b"x/", b"a b", b"\xff\xfe", b"x/..", b"x\n", b"x" * 121, "\u00e9".encode()])
    | st.text(".~@/ \n\x1b", max_size=4).map(str.encode)
)
VALUE = st.binary(max_size=300) | st.sampled_from([127, 128, 20_000]).map(bytes)
CHECK = (
    st.builds(At.of, NAME, st.builds(VersionKey, REVISIONS))
    | st.builds(Absent, NAME)
    | st.builds(Exists, NAME)
    | st.builds(SessionAlive, st.sampled_from(["7f3a", "1"]))
)
SESSION = st.none() | st.just(SessionName("7f3a"))
OP = st.builds(Put, NAME, VALUE, SESSION) | st.builds(Create, NAME, VALUE, SESSION) | st.builds(Delete, NAME)
OPS = st.lists(OP, min_size=1, max_size=6, unique_by=lambda op: op.key)
KV = st.builds(
    pb.KeyValue,
    key=NAME.map(KEYS.encode_key),
    value=VALUE,
    create_revision=REVISIONS,
    mod_revision=REVISIONS,
    version=REVISIONS,
    lease=st.just(0) | REVISIONS,
)
HEADER = st.builds(
    pb.ResponseHeader,
    cluster_id=st.integers(0, 2**64 - 1),
    member_id=st.integers(0, 2**64 - 1),
    revision=REVISIONS,
    raft_term=st.integers(0, 2**64 - 1),
)
RANGE = st.builds(
    pb.RangeResponse, header=HEADER, kvs=st.lists(KV, max_size=5), more=st.booleans(), count=st.integers(0, 2**31)
)


def slot_at(revision):
    slot = Slot(KEYS.slot_key(0x7F3A, 12), 0x7F3A)
    slot.revision = revision
    return slot


def encoded(checks, ops, slot, ended=frozenset()):
    return CODEC.transaction(checks, ops, set(ended), slot.key, slot.revision, slot.lease)


def answer_to(ops, header, kv, *, deleted):
    """What etcd answers to these operations once they are applied."""
    put = pb.ResponseOp(response_put=pb.PutResponse(header=header))
    peeked = pb.ResponseOp(response_range=pb.RangeResponse(header=header, kvs=[kv], count=1))
    gone = pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse(header=header, deleted=deleted))
    answers = {Put: [put, peeked], Create: [put], Delete: [gone]}
    return pb.TxnResponse(
        header=header, succeeded=True, responses=[put, *(one for op in ops for one in answers[type(op)])]
    )


def is_below_bound(op, ops):
    return any(op.key.startswith(f"{leaf.key}/") for leaf in ops if not isinstance(leaf, Delete) and leaf.session)


@given(st.lists(CHECK, max_size=5), OPS, st.just(0) | REVISIONS)
def test_transaction_is_the_one_of_the_plan(checks, ops, revision):
    assume(not any(is_below_bound(op, ops) for op in ops))
    slot = slot_at(revision)
    plan = COMPILER.compile_commit(checks, ops, ()).encode_request(KEYS, slot)
    assert pb.TxnRequest.FromString(encoded(checks, ops, slot)) == pb.TxnRequest.FromString(plan)


@given(OPS, HEADER, KV, st.integers(0, 1))
def test_what_was_committed_is_what_the_plan_makes_of_the_answer(ops, header, kv, deleted):
    answer = answer_to(ops, header, kv, deleted=deleted).SerializeToString()
    assert CODEC.committed(answer, ops) == COMPILER.compile_commit((), ops, ()).decode_outcome(answer)


@given(RANGE, st.lists(STRANGER, max_size=3), st.randoms())
def test_page_has_the_entries_of_the_message_and_names_what_are_no_keys(message, strangers, random):
    kvs = [*message.kvs, *(pb.KeyValue(key=KEYS.root + raw) for raw in strangers)]
    random.shuffle(kvs)
    del message.kvs[:]
    message.kvs.extend(kvs)
    page = CODEC.page(message.SerializeToString())
    expected = [KEYS.entry(kv) for kv in kvs if KEYS.decode_key_or_none(kv.key) is not None]
    skip = len(KEYS.root)
    direct = [entry for entry in expected if "/" not in entry.key]
    assert page.entries() == expected
    assert page.entries(skip) == direct
    assert (len(page), page.count(), page.count(skip)) == (len(kvs), len(expected), len(direct))
    assert page.names() == [entry.key for entry in expected]
    assert page.strangers() == [kv.key for kv in kvs if KEYS.decode_key_or_none(kv.key) is None]
    assert (page.more, page.revision, page.size) == (message.more, message.header.revision, message.ByteSize())
    if kvs:
        assert page.last() == kvs[-1].key


@given(st.lists(RANGE, max_size=4))
def test_reads_in_one_request_find_what_each_of_them_found(messages):
    answers = [pb.ResponseOp(response_range=message) for message in messages]
    together = pb.TxnResponse(succeeded=True, responses=answers).SerializeToString()
    expected = [KEYS.entry(message.kvs[0]) if message.kvs else None for message in messages]
    assert CODEC.found(together) == expected
    assert [CODEC.entry(message.SerializeToString()) for message in messages] == expected


@given(st.lists(NAME, max_size=4), st.booleans())
def test_reads_are_the_generated_ones(names, stale_ok):
    requests = [pb.RangeRequest(key=KEYS.encode_key(name), serializable=stale_ok) for name in names]
    assert [pb.RangeRequest.FromString(CODEC.get(name, stale_ok)) for name in names] == requests
    together = pb.TxnRequest(success=[pb.RequestOp(request_range=request) for request in requests])
    assert pb.TxnRequest.FromString(CODEC.get_many(names, stale_ok)) == together


def test_entries_are_ordinary_records():
    kv = pb.KeyValue(key=KEYS.encode_key("a/b"), value=b"v", create_revision=5, mod_revision=7, lease=0x7F3A)
    (entry,) = CODEC.page(pb.RangeResponse(kvs=[kv]).SerializeToString()).entries()
    same = Entry("a/b", b"v", VersionKey(7), 7, 5, "7f3a")
    assert type(entry) is Entry
    assert (entry, repr(entry), hash(entry)) == (same, repr(same), hash(same))
    with pytest.raises(AttributeError):
        entry.token = 8


def test_entries_are_no_work_for_the_garbage_collector():
    kv = pb.KeyValue(key=KEYS.encode_key("a/b"), value=b"v", create_revision=5, mod_revision=7)
    entries = CODEC.page(pb.RangeResponse(kvs=[kv] * 1000).SerializeToString()).entries()
    assert not any(gc.is_tracked(entry) or gc.is_tracked(entry.version) for entry in entries)
    gc.collect()
    assert entries == [Entry("a/b", b"v", VersionKey(7), 7, 5)] * 1000


def test_entries_with_a_value_that_may_be_in_a_cycle_stay_with_the_garbage_collector():
    class Value(bytes):
        """Has attributes."""

    op = Put("k", Value(b"v"))
    answer = answer_to([op], pb.ResponseHeader(revision=9), pb.KeyValue(create_revision=9), deleted=0)
    (entry,) = CODEC.committed(answer.SerializeToString(), [op])[1].entries
    assert entry.value is op.value
    assert gc.is_tracked(entry)


@pytest.mark.parametrize("session", ["", "0", "07", "7F", "+7", "8000000000000000", "ffffffffffffffffff", "no hex"])
def test_session_that_is_none_of_etcd_needs_a_plan(session):
    assert encoded((), (Put("k", b"", SessionName(session)),), slot_at(1)) is None


def test_session_that_has_ended_needs_a_plan():
    bound = (Create("k", b"", SessionName("7f")),)
    assert encoded((), bound, slot_at(1), {"7f"}) is None
    assert encoded((), bound, slot_at(1), {"7e"}) is not None


def test_two_sessions_need_a_plan():
    assert encoded((), (Put("k", b"", SessionName("7")), Put("l", b"", SessionName("8"))), slot_at(1)) is None


def test_deletion_below_a_bound_key_needs_a_plan():
    bound = Put("k", b"", SessionName("7"))
    assert encoded((), (bound, Delete("k/l")), slot_at(1)) is None
    assert encoded((), (bound, Delete("kl")), slot_at(1)) is not None


def test_versions_of_another_backend_need_a_plan():
    assert encoded((At.of("k", 5),), (Put("k", b""),), slot_at(1)) is None


def test_more_than_fits_side_by_side_needs_a_plan():
    most = [Exists(f"k{n}") for n in range(FLAT_LIMIT - 1)]
    assert encoded(most, (Put("k", b""),), slot_at(1)) is not None
    assert encoded([*most, Exists("one/more")], (Put("k", b""),), slot_at(1)) is None
    assert encoded((), [Delete(f"k{n}") for n in range(PAIRED_LIMIT)], slot_at(1)) is not None
    assert encoded((), [Delete(f"k{n}") for n in range(PAIRED_LIMIT + 1)], slot_at(1)) is None


def test_many_puts_are_nested_with_their_reads_as_in_the_plan():
    ops = [*(Put(f"k{n}", b"v") for n in range(PAIRED_LIMIT // 2)), Create("l", b"v")]
    for some in (ops, ops[1:]):
        plan = COMPILER.compile_commit((), some, ())
        sent = pb.TxnRequest.FromString(encoded((), some, slot_at(1)))
        assert sent == pb.TxnRequest.FromString(plan.encode_request(KEYS, slot_at(1)))
    nested = pb.ResponseOp(
        response_txn=pb.TxnResponse(
            responses=[
                pb.ResponseOp(response_put=pb.PutResponse()),
                pb.ResponseOp(response_range=pb.RangeResponse(kvs=[pb.KeyValue(create_revision=5)])),
            ]
        )
    )
    put = pb.ResponseOp(response_put=pb.PutResponse())
    answer = pb.TxnResponse(
        header=pb.ResponseHeader(revision=9), succeeded=True, responses=[put, *[nested] * (len(ops) - 1), put]
    ).SerializeToString()
    assert CODEC.committed(answer, ops) == COMPILER.compile_commit((), ops, ()).decode_outcome(answer)


def test_refused_transaction_committed_nothing():
    assert CODEC.committed(pb.TxnResponse().SerializeToString(), (Put("k", b""),)) is None


def test_deletion_of_absent_keys_has_no_token():
    header = pb.ResponseHeader(revision=9)
    answer = answer_to([Delete("k")], header, pb.KeyValue(), deleted=0).SerializeToString()
    assert CODEC.committed(answer, [Delete("k")]) == (9, Committed(0))


DECODERS = {
    "entry": CODEC.entry,
    "page": lambda answer: CODEC.page(answer).entries(),
    "found": CODEC.found,
    "committed": lambda answer: CODEC.committed(answer, [Put("k", b""), Delete("l")]),
}


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@given(data=st.data())
def test_bytes_that_are_no_answer_are_read_or_refused(decode, data):
    ops = [Put("k", b""), Delete("l")]
    whole = data.draw(
        RANGE.map(lambda message: message.SerializeToString())
        | HEADER.map(lambda header: answer_to(ops, header, pb.KeyValue(key=b"x"), deleted=1).SerializeToString())
    )
    at = data.draw(st.integers(0, len(whole)))
    answer = data.draw(st.sampled_from([whole[:at], whole[:at] + data.draw(st.binary(max_size=20)) + whole[at + 1 :]]))
    try:
        decode(answer)
    except ValueError as error:
        assert "etcd's answer cannot be read" in str(error)  # noqa: PT017 - most answers are read


@pytest.mark.parametrize(
    ("decode", "answer"),
    [
        ("entry", b"\x12"),
        ("entry", pb.RangeResponse(kvs=[pb.KeyValue(key=b"/")]).SerializeToString()),
        ("entry", pb.RangeResponse(kvs=[pb.KeyValue(key=KEYS.encode_key("k") + b"\xff")]).SerializeToString()),
        ("page", b"\x12\x05\x0a\x04ab"),
        ("found", pb.TxnResponse(responses=[pb.ResponseOp()]).SerializeToString()),
        ("committed", pb.TxnResponse(succeeded=True).SerializeToString()),
    ],
)
def test_answer_that_cannot_be_read_says_so(decode, answer):
    with pytest.raises(ValueError, match="etcd's answer cannot be read"):
        DECODERS[decode](answer)


def test_record_without_the_slots_is_refused():
    with pytest.raises(TypeError, match="no slot"):
        type(CODEC)(
            b"/r/",
            (1, 1),
            entry=Entry,
            version=VersionKey,
            committed=type("Loose", (), {"token": 0, "entries": (), "deleted": ()}),
            checks=(At, Absent, Exists, SessionAlive),
            ops=(Put, Create, Delete),
        )
