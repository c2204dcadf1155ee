"""Each transaction on a group is refused when one of the keys that it relies on has changed since they were read."""

from __future__ import annotations

import uuid

import pytest

import latchwork
from latchwork import At, Conflict
from latchwork.worker_group import transactions
from latchwork.worker_group.epoch import BarrierArrivals
from latchwork.worker_group.keys import FINAL, INIT, GroupKeys
from latchwork.worker_group.records import GroupRecord, WorkerInfo, create_member
from latchwork.worker_group.transactions import EpochState, GroupSnapshot

KEYS = GroupKeys("workers", "train").for_run("r1")
INIT_BOARD, FINAL_BOARD = (f"{KEYS.barrier_key(0, name)}/barrier" for name in (INIT, FINAL))
OTHER_BOARD = f"{KEYS.barrier_key(0, 'mine')}/barrier"


def worker(number):
    return create_member(WorkerInfo("10.0.0.1", {"rpc": 1}), number, f"w{number}", "first")


class Group:
    """A run of two workers, both of which have joined, on a store."""

    def __init__(self, store):
        self.store, self.session = store, store.session
        self.commit(transactions.build_create_txn(KEYS, GroupRecord("r1", 3), None))
        for number in (0, 1):
            self.commit(transactions.build_join_txn(self.snapshot(), worker(number), self.session))
        for board in (INIT_BOARD, FINAL_BOARD, OTHER_BOARD, KEYS.opened):
            store.put(board, b"0")

    def commit(self, txn):
        self.store.commit(txn.checks, txn.ops)

    def snapshot(self):
        return GroupSnapshot(KEYS, self.store.get(KEYS.record), 0.0)

    def at(self, key):
        return At(self.store.get(key))

    @property
    def member(self):
        return self.store.get(KEYS.member_key("w1"))

    @property
    def fence(self):
        return self.store.fence(1, self.at(KEYS.lease_key(1)), self.at(KEYS.epoch))

    @property
    def epoch_state(self):
        checks = (self.at(INIT_BOARD), self.at(FINAL_BOARD))
        return EpochState(self.store.get(KEYS.epoch), checks, is_initialized=True, has_ended=False)


RECORD, MEMBER, LEASE, EPOCH_STATE = (
    KEYS.record,
    KEYS.member_key("w1"),
    KEYS.lease_key(1),
    (KEYS.epoch, INIT_BOARD, FINAL_BOARD),
)
ARRIVALS = (KEYS.opened, OTHER_BOARD)


def completed(group):
    arrivals = BarrierArrivals([group.at(key) for key in ARRIVALS], [])
    return transactions.build_complete_txn(group.snapshot(), group.member, group.fence, 0, arrivals)


def lost(group):
    group.store.delete(LEASE)
    return transactions.build_mark_lost_txn(group.snapshot(), group.member, group.epoch_state)


#: What makes each transaction, and the keys that it relies on.
TRANSACTIONS = {
    "join": (
        lambda g: transactions.build_join_txn(g.snapshot(), worker(2), g.session),
        (RECORD, KEYS.member_key("w2")),
    ),
    "rejoin": (
        lambda g: transactions.build_rejoin_txn(g.snapshot(), g.member, worker(1), g.session, g.epoch_state),
        (RECORD, MEMBER, *EPOCH_STATE),
    ),
    "fail_restarts": (
        lambda g: transactions.build_restarts_exceeded_txn(g.snapshot(), g.member, "too often"),
        (RECORD, MEMBER),
    ),
    "mark_lost": (lost, (RECORD, LEASE, MEMBER, *EPOCH_STATE)),
    "complete": (completed, (RECORD, LEASE, KEYS.epoch, MEMBER, *ARRIVALS)),
    "fail": (
        lambda g: transactions.build_fail_txn(g.snapshot(), g.member, g.fence, "why"),
        (RECORD, LEASE, KEYS.epoch, MEMBER),
    ),
    "count_execution": (
        lambda g: transactions.build_count_execution_txn(KEYS, g.member, g.fence),
        (LEASE, KEYS.epoch, MEMBER),
    ),
    "update_info": (
        lambda g: transactions.build_update_info_txn(KEYS, g.member, worker(1), g.fence),
        (LEASE, KEYS.epoch, MEMBER),
    ),
    "mark_healthy": (
        lambda g: transactions.build_mark_healthy_txn(g.snapshot(), g.fence, 0),
        (RECORD, LEASE, KEYS.epoch, KEYS.healthy_key(0)),
    ),
    "leave": (lambda g: transactions.build_leave_txn(g.snapshot(), 1, [], g.fence), (RECORD, LEASE, KEYS.epoch)),
    "terminate": (lambda g: transactions.build_terminate_txn(g.snapshot(), "why"), (RECORD,)),
    "scale_up": (lambda g: transactions.build_scale_up_txn(g.snapshot(), 4), (RECORD,)),
    "scale_down": (lambda g: transactions.build_scale_down_txn(g.snapshot(), 1, [g.member]), (RECORD,)),
    "record_first_master": (
        lambda g: transactions.build_first_master_txn(g.snapshot(), g.fence, "seen"),
        (RECORD, LEASE),
    ),
    "record_new_master": (lambda g: transactions.build_new_master_txn(g.snapshot(), g.fence), (RECORD, LEASE)),
}


@pytest.fixture
def group():
    with latchwork.connect(f"memory://{uuid.uuid4().hex}/group") as store:
        yield Group(store)


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_transaction_lands_when_nothing_has_changed(group, name):
    group.commit(TRANSACTIONS[name][0](group))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param(name, key, id=f"{name}-{key.removeprefix(KEYS.group.prefix + '/').replace('/', '.')}")
        for name, (_, keys) in TRANSACTIONS.items()
        for key in keys
    ],
)
def test_a_transaction_is_refused_once_a_key_has_changed_that_it_relies_on(group, name, key):
    txn = TRANSACTIONS[name][0](group)
    found = group.store.get(key)
    group.store.put(key, b"" if found is None else found.value)
    with pytest.raises(Conflict):
        group.commit(txn)


def test_the_last_one_to_leave_a_group_that_has_ended_removes_it_unless_another_is_there(group):
    for number in (1, 0):
        member, live = group.store.get(KEYS.member_key(f"w{number}")), KEYS.lease_key(number)
        fence = group.store.fence(1, group.at(live))
        group.commit(transactions.build_fail_txn(group.snapshot(), member, fence, "why"))
        txn = transactions.build_leave_txn(
            group.snapshot(), number, [entry.key for entry in group.store.list(KEYS.leases)], fence
        )
        if number == 0:
            group.store.put(RECORD, group.store.get(RECORD).value)  # another one has come meanwhile
            with pytest.raises(Conflict):
                group.commit(txn)
            txn = transactions.build_leave_txn(group.snapshot(), number, [live], fence)
        group.commit(txn)
        assert (group.store.get(RECORD) is None) == (number == 0)
