"""Each transaction on a group is refused when one of the keys that it relies on has changed since they were read."""

from __future__ import annotations

import uuid

import pytest

import latchwork
from latchwork import At, Conflict
from latchwork.worker_group import transactions
from latchwork.worker_group.epoch import BarrierArrivals
from latchwork.worker_group.keys import FINAL, INIT, JobKeys
from latchwork.worker_group.records import GroupHead, WorkerInfo, joined_as
from latchwork.worker_group.transactions import EpochState, Scene

KEYS = JobKeys("workers", "job").of_run("r1")
INIT_BOARD, FINAL_BOARD = (f"{KEYS.barrier(0, name)}/board" for name in (INIT, FINAL))
OTHER_BOARD = f"{KEYS.barrier(0, 'mine')}/board"


def worker(number):
    return joined_as(WorkerInfo("10.0.0.1", {"rpc": 1}), number, f"w{number}", "first")


class Group:
    """A run of two workers, both of which have joined, on a store."""

    def __init__(self, store):
        self.store, self.session = store, store.session
        self.commit(transactions.submitted(KEYS, GroupHead("r1", 3), None))
        for number in (0, 1):
            self.commit(transactions.joined(self.scene(), worker(number), self.session))
        for board in (INIT_BOARD, FINAL_BOARD, OTHER_BOARD, KEYS.opened):
            store.put(board, b"0")

    def commit(self, txn):
        self.store.commit(txn.checks, txn.ops)

    def scene(self):
        return Scene(KEYS, self.store.get(KEYS.head), 0.0)

    def at(self, key):
        return At(self.store.get(key))

    @property
    def member(self):
        return self.store.get(KEYS.member("w1"))

    @property
    def fence(self):
        return self.store.fence(1, self.at(KEYS.live_of(1)), self.at(KEYS.epoch))

    @property
    def standing(self):
        checks = (self.at(INIT_BOARD), self.at(FINAL_BOARD))
        return EpochState(self.store.get(KEYS.epoch), checks, is_initialised=True, is_over=False)


HEAD, MEMBER, LIVE, STANDING = KEYS.head, KEYS.member("w1"), KEYS.live_of(1), (KEYS.epoch, INIT_BOARD, FINAL_BOARD)
ARRIVALS = (KEYS.opened, OTHER_BOARD)


def completed(group):
    arrivals = BarrierArrivals([group.at(key) for key in ARRIVALS], [])
    return transactions.completed(group.scene(), group.member, group.fence, 0, arrivals)


def lost(group):
    group.store.delete(LIVE)
    return transactions.lost(group.scene(), group.member, group.standing)


#: What makes each transaction, and the keys that it relies on.
TRANSACTIONS = {
    "joined": (lambda g: transactions.joined(g.scene(), worker(2), g.session), (HEAD, KEYS.member("w2"))),
    "rejoined": (
        lambda g: transactions.rejoined(g.scene(), g.member, worker(1), g.session, g.standing),
        (HEAD, MEMBER, *STANDING),
    ),
    "exceeded": (lambda g: transactions.exceeded(g.scene(), g.member, "too often"), (HEAD, MEMBER)),
    "lost": (lost, (HEAD, LIVE, MEMBER, *STANDING)),
    "completed": (completed, (HEAD, LIVE, KEYS.epoch, MEMBER, *ARRIVALS)),
    "failed": (lambda g: transactions.failed(g.scene(), g.member, g.fence, "why"), (HEAD, LIVE, KEYS.epoch, MEMBER)),
    "executed_again": (lambda g: transactions.executed_again(KEYS, g.member, g.fence), (LIVE, KEYS.epoch, MEMBER)),
    "told": (lambda g: transactions.told(KEYS, g.member, worker(1), g.fence), (LIVE, KEYS.epoch, MEMBER)),
    "healthy": (lambda g: transactions.healthy(g.scene(), g.fence, 0), (HEAD, LIVE, KEYS.epoch, KEYS.healthy(0))),
    "left": (lambda g: transactions.left(g.scene(), 1, [], g.fence), (HEAD, LIVE, KEYS.epoch)),
    "removed": (lambda g: transactions.removed(g.scene(), "TERMINATED", "why"), (HEAD,)),
    "scaled_up": (lambda g: transactions.scaled_up(g.scene(), 4), (HEAD,)),
    "scaled_down": (lambda g: transactions.scaled_down(g.scene(), 1, [g.member]), (HEAD,)),
    "first_master": (lambda g: transactions.first_master(g.scene(), g.fence, "seen"), (HEAD, LIVE)),
    "master_restarted": (lambda g: transactions.master_restarted(g.scene(), g.fence), (HEAD, LIVE)),
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
        pytest.param(name, key, id=f"{name}-{key.removeprefix(KEYS.job.folder + '/').replace('/', '.')}")
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
        member, live = group.store.get(KEYS.member(f"w{number}")), KEYS.live_of(number)
        fence = group.store.fence(1, group.at(live))
        group.commit(transactions.failed(group.scene(), member, fence, "why"))
        txn = transactions.left(group.scene(), number, [entry.key for entry in group.store.list(KEYS.live)], fence)
        if number == 0:
            group.store.put(HEAD, group.store.get(HEAD).value)  # another one has come meanwhile
            with pytest.raises(Conflict):
                group.commit(txn)
            txn = transactions.left(group.scene(), number, [live], fence)
        group.commit(txn)
        assert (group.store.get(HEAD) is None) == (number == 0)
