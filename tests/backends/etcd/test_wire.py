"""What is encoded by hand is what the generated classes would have sent."""

from __future__ import annotations

from etcd3 import etcdrpc as pb
from hypothesis import given
from hypothesis import strategies as st

from latchwork.backends.etcd import wire
from latchwork.backends.etcd.wire import Target


def body(made):
    """Without the length in front, which must be right."""
    size, at = 0, 0
    while True:
        size |= (made[at] & 127) << (7 * at)
        at += 1
        if made[at - 1] < 128:
            assert len(made) == at + size
            return made[at:]


KEYS = st.binary(min_size=1, max_size=300)
NUMBERS = st.integers(0, 2**63 - 1)
UNIONS = {Target.CREATE: "create_revision", Target.MOD: "mod_revision", Target.LEASE: "lease"}


@given(st.sampled_from(list(Target)), KEYS, NUMBERS, st.binary(max_size=200), st.booleans())
def test_compare_is_the_generated_one(target, key, operand, end, greater):
    made = pb.Compare.FromString(body(wire.compare(target, key, operand, end=end, greater=greater)))
    result = pb.Compare.GREATER if greater else pb.Compare.EQUAL
    number = getattr(pb.Compare, target.name)
    assert made == pb.Compare(key=key, target=number, result=result, range_end=end, **{UNIONS[target]: operand})


@given(KEYS, st.binary(max_size=20_000), NUMBERS, st.booleans())
def test_put_is_the_generated_one(key, value, lease, ignore_lease):
    request = pb.PutRequest(key=key, value=value, lease=lease, ignore_lease=ignore_lease)
    made = pb.RequestOp.FromString(body(wire.put(key, value, lease=lease, ignore_lease=ignore_lease)))
    assert made == pb.RequestOp(request_put=request)


@given(KEYS, st.binary(max_size=300))
def test_reads_and_deletes_are_the_generated_ones(key, end):
    peek = pb.RangeRequest(key=key, range_end=end, keys_only=True, limit=1)
    delete = pb.DeleteRangeRequest(key=key, range_end=end)
    assert pb.RequestOp.FromString(body(wire.peek(key, end))) == pb.RequestOp(request_range=peek)
    assert pb.RequestOp.FromString(body(wire.read(key))) == pb.RequestOp(request_range=pb.RangeRequest(key=key))
    assert pb.RequestOp.FromString(body(wire.delete(key, end))) == pb.RequestOp(request_delete_range=delete)


@given(st.lists(KEYS, max_size=5), st.lists(KEYS, max_size=5), st.lists(KEYS, max_size=5))
def test_transaction_is_the_generated_one(compared, written, read):
    compares = [wire.compare(Target.MOD, key, 7) for key in compared]
    success, failure = [wire.put(key, b"v" * 200) for key in written], [wire.peek(key) for key in read]
    inner = pb.TxnRequest(
        compare=[pb.Compare.FromString(body(one)) for one in compares],
        success=[pb.RequestOp.FromString(body(one)) for one in success],
        failure=[pb.RequestOp.FromString(body(one)) for one in failure],
    )
    made = wire.txn(compares, success, failure)
    assert pb.TxnRequest.FromString(made) == inner
    assert pb.RequestOp.FromString(body(wire.nested(made))) == pb.RequestOp(request_txn=inner)
