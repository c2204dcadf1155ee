"""What is encoded in Rust is what an encoder in Python makes, and what the generated classes would have sent."""

from __future__ import annotations

import contextlib
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.etcd import wire_oracle
from latchwork._core import EtcdRequest
from latchwork.backends.base import VersionKey
from latchwork.backends.etcd.layout import Keys, exactly
from latchwork.backends.etcd.writing import deletions, plan, sequences, slots, txn
from latchwork.types import Absent, At, Create, Delete, Exists, Put, SessionAlive
from latchwork_testkit.etcd_rpc import pb


def body(made):
    """Without the length in front, which must be right."""
    size, at = 0, 0
    while True:
        size |= (made[at] & 127) << (7 * at)
        at += 1
        if made[at - 1] < 128:
            assert len(made) == at + size
            return made[at:]


def both(name, *args, **options):
    """What Rust and the oracle make of the same arguments."""
    made = getattr(EtcdRequest, name)(*args, **options)
    assert made == getattr(wire_oracle, name)(*args, **options)
    return made


KEYS = st.binary(min_size=1, max_size=300)
NUMBERS = st.integers(0, 2**63 - 1)
UNIONS = {"create": "create_revision", "mod": "mod_revision", "lease": "lease"}


@given(st.sampled_from(list(UNIONS)), KEYS, NUMBERS, st.binary(max_size=200), st.booleans())
def test_compare_is_the_generated_one(target, key, operand, end, greater):
    made = pb.Compare.FromString(body(both("compare", target, key, operand, end, greater=greater)))
    result = pb.Compare.GREATER if greater else pb.Compare.EQUAL
    number = getattr(pb.Compare, target.upper())
    assert made == pb.Compare(key=key, target=number, result=result, range_end=end, **{UNIONS[target]: operand})


@given(KEYS, st.binary(max_size=20_000), NUMBERS, st.booleans())
def test_put_is_the_generated_one(key, value, lease, ignore_lease):
    request = pb.PutRequest(key=key, value=value, lease=lease, ignore_lease=ignore_lease)
    made = pb.RequestOp.FromString(body(both("put", key, value, lease, ignore_lease=ignore_lease)))
    assert made == pb.RequestOp(request_put=request)


@given(KEYS, st.binary(max_size=300))
def test_reads_and_deletes_are_the_generated_ones(key, end):
    peek = pb.RangeRequest(key=key, range_end=end, keys_only=True, limit=1)
    delete = pb.DeleteRangeRequest(key=key, range_end=end)
    assert pb.RequestOp.FromString(body(both("peek", key, end))) == pb.RequestOp(request_range=peek)
    assert pb.RequestOp.FromString(body(both("read", key))) == pb.RequestOp(request_range=pb.RangeRequest(key=key))
    assert pb.RequestOp.FromString(body(both("delete", key, end))) == pb.RequestOp(request_delete_range=delete)


@given(st.lists(KEYS, max_size=5), st.lists(KEYS, max_size=5), st.lists(KEYS, max_size=5))
def test_transaction_is_the_generated_one(compared, written, read):
    compares = [both("compare", "mod", key, 7) for key in compared]
    success, failure = [both("put", key, b"v" * 200) for key in written], [both("peek", key) for key in read]
    inner = pb.TxnRequest(
        compare=[pb.Compare.FromString(body(one)) for one in compares],
        success=[pb.RequestOp.FromString(body(one)) for one in success],
        failure=[pb.RequestOp.FromString(body(one)) for one in failure],
    )
    made = both("txn", compares, success, failure)
    assert pb.TxnRequest.FromString(made) == inner
    assert pb.RequestOp.FromString(body(both("nested", made))) == pb.RequestOp(request_txn=inner)


def test_ends_and_parts_that_are_left_out_are_empty():
    assert both("compare", "lease", b"k", 0) == both("compare", "lease", b"k", 0, b"", greater=False)
    assert both("put", b"k", b"v") == both("put", b"k", b"v", 0, ignore_lease=False)
    assert (both("peek", b"k"), both("delete", b"k")) == (both("peek", b"k", b""), both("delete", b"k", b""))
    assert both("txn", [both("compare", "mod", b"k", 1)]) == both("txn", [both("compare", "mod", b"k", 1)], (), ())


def test_nothing_else_of_a_key_is_compared():
    with pytest.raises(ValueError, match="value"):
        EtcdRequest.compare("value", b"k", 1)
    with pytest.raises(OverflowError):
        EtcdRequest.compare("mod", b"k", -1)


ROOT = Keys("the-root")
REVISIONS = st.integers(1, 2**62)
NAME = st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=4).map("/".join)
CHECK = (
    st.builds(At.of, NAME, st.builds(VersionKey, REVISIONS))
    | st.builds(Absent, NAME)
    | st.builds(Exists, NAME)
    | st.builds(SessionAlive, st.sampled_from(["7f3a", "1"]))
)
SESSION = st.none() | st.just(mock.Mock(id="7f3a"))
OP = (
    st.builds(Put, NAME, st.binary(max_size=300), SESSION)
    | st.builds(Create, NAME, st.binary(max_size=300), SESSION)
    | st.builds(Delete, NAME)
)
OPS = st.lists(OP, min_size=1, max_size=5, unique_by=lambda op: op.key)
#: So many that their compares are nested, and so many that the reads of what they put are.
MANY_CHECKS = st.lists(CHECK, max_size=4) | st.integers(121, 230).map(lambda n: [Exists(f"k{i}") for i in range(n)])
MANY_OPS = OPS | st.integers(41, 60).map(lambda n: [Put(f"k{i}", b"v") for i in range(n)])


@contextlib.contextmanager
def encoded_in_python():
    """The backend encodes with the oracle."""
    with contextlib.ExitStack() as stack:
        for module in (deletions, plan, sequences, slots, txn):
            stack.enter_context(mock.patch.object(module, "EtcdRequest", wire_oracle))
        yield


def commit_of(checks, ops, learned):
    """A commit, or None where one key would be below another one that is bound to a session."""
    try:
        return plan.Compiler(ROOT).commit(checks, ops, (), learned)
    except plan.InvalidKey:
        return None


def sent(make, revision):
    """Everything that is sent for a transaction: itself, what settles it, and what deletes on a full server."""
    slot = slots.Slot(ROOT.slot(0x7F3A, 12), 0x7F3A)
    slot.revision = revision
    made = make()
    if made is None:
        return None
    without_space = deletions.Deletion(None, made, {b"k": 7, b"l": 0})._request
    return made.request(ROOT, slot), slot.settling(), made.compares(), made.reads(), without_space


@settings(deadline=None)
@given(MANY_CHECKS, MANY_OPS, st.dictionaries(NAME.map(ROOT.of), REVISIONS, max_size=3), st.just(0) | REVISIONS)
def test_whole_transactions_are_those_of_an_encoder_in_python(checks, ops, learned, revision):
    made = sent(lambda: commit_of(checks, ops, dict(learned)), revision)
    with encoded_in_python():
        assert made == sent(lambda: commit_of(checks, ops, dict(learned)), revision)


@settings(deadline=None)
@given(NAME, st.just(0) | REVISIONS, st.integers(1, 2**31))
def test_trees_markers_and_numbered_keys_are_those_of_an_encoder_in_python(prefix, revision, number):
    wish = sequences._Wish(f"{prefix}/n-", b"v", mock.Mock(id="7f3a"), 0.0, None)

    def all_of_them():
        tree = txn.tree_deletion([exactly(b"k"), *ROOT.at_or_below(prefix)], "delete a tree")
        marker = txn.marker_creation(ROOT, "7f3a", b"10")
        numbered = sequences.Sequences(None, ROOT, None, plan.Compiler(ROOT), ())._txn(prefix, wish, revision, number)
        return [sent(lambda made=made: made, revision) for made in (tree, marker, numbered)]

    made = all_of_them()
    with encoded_in_python():
        assert made == all_of_them()
