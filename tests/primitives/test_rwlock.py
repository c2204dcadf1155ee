"""Many readers or one writer, on every backend."""

from __future__ import annotations

import time

import pytest

from latchwork._base.decoding import encode
from latchwork.errors import (
    Closed,
    Conflict,
    InvalidKey,
    LatchworkError,
    LockLost,
    OutcomeUnknown,
    Unavailable,
    WaitTimeout,
)
from latchwork.primitives import ReadWriteLock
from latchwork.primitives.fair.rwlock import count_holders
from latchwork.primitives.fair.tickets import Ticket
from latchwork.types import Put

TTL_S = 1.0


@pytest.fixture
def rwlock(connect):
    """Make a lock with a client, and so a session, of its own; closed after the test."""
    made = []

    def make(name="orders", *, store=None, **options):
        made.append(ReadWriteLock(store or connect(session_ttl_s=TTL_S), name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def modes(*wanted):
    return [Ticket(f"t{at}", "", "", 0, at, None, encode({"mode": mode})) for at, mode in enumerate(wanted)]


@pytest.mark.parametrize(
    ("tickets", "held"),
    [
        (modes(), 0),
        (modes("write"), 1),
        (modes("write", "read"), 1),
        (modes("read", "read", "write", "read"), 2),
        (modes("read", "read"), 2),
        (modes(None, "read"), 1),
    ],
)
def test_the_head_of_the_queue_holds_the_lock(tickets, held):
    assert count_holders(tickets) == held


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_waiter_whose_ticket_is_deleted_by_hand_does_not_take_its_turn(mode, rwlock, store, in_thread, eventually):
    first, second = rwlock(), rwlock()
    first.write.acquire(5.0)
    waiting = in_thread(getattr(second, mode).acquire)
    eventually(first.waiters)
    store.delete(first.waiters()[0].key)
    first.write.release()
    with pytest.raises(LockLost, match="another client deleted it; queue again"):
        waiting.outcome()
    assert not getattr(second, mode).is_held


def test_readers_hold_it_together(rwlock, store):
    first, second = rwlock(label="r1"), rwlock(label="r2")
    with first.read as one, second.read as two:
        assert [each.label for each in first.holders()] == ["r1", "r2"]
        store.commit([one, two], [Put("seen", b"by both")])
    assert store.list("orders") == []


def test_a_writer_waits_for_every_reader_whatever_their_order(rwlock, in_thread, eventually):
    readers, writer = [rwlock() for _ in range(3)], rwlock()
    for reader in readers:
        reader.read.acquire(5.0)
    writing = in_thread(lambda: writer.write.acquire(30.0))
    eventually(lambda: len(writer.waiters()) == 1)
    for reader in (readers[1], readers[2]):
        reader.read.release()
    time.sleep(0.1)
    assert not writer.write.is_held
    readers[0].read.release()
    assert writing.outcome()
    assert [each.body["mode"] for each in writer.holders()] == ["write"]


def test_a_waiting_writer_is_not_overtaken_by_readers(rwlock, in_thread, eventually):
    first, writer, late = rwlock(), rwlock(), rwlock()
    first.read.acquire(5.0)
    writing = in_thread(lambda: writer.write.acquire(30.0))
    eventually(lambda: len(first.waiters()) == 1)
    reading = in_thread(lambda: late.read.acquire(30.0))
    eventually(lambda: len(first.waiters()) == 2)
    with pytest.raises(WaitTimeout):
        rwlock().read.acquire(0.0)
    first.read.release()
    token = writing.outcome().token
    assert not late.read.is_held
    writer.write.release()
    assert reading.outcome().token > token


def test_all_readers_behind_a_writer_enter_when_it_leaves(rwlock, in_thread, eventually):
    writer, readers = rwlock(), [rwlock() for _ in range(3)]
    writer.write.acquire(5.0)
    reading = []
    for number, reader in enumerate(readers):
        reading.append(in_thread(lambda reader=reader: reader.read.acquire(30.0)))
        eventually(lambda number=number: len(writer.waiters()) == number + 1)
    writer.write.release()
    for each in reading:
        each.outcome()
    assert all(reader.read.is_held for reader in readers)


def test_an_upgrade_is_refused_at_once(rwlock):
    mine = rwlock()
    with mine.read, pytest.raises(LatchworkError, match="two that upgrade would wait for each other"):
        mine.write.acquire(5.0)


def test_an_upgrade_by_another_object_waits_for_itself_until_its_time_is_over(rwlock, connect):
    store = connect()
    mine, same = rwlock(store=store), rwlock(store=store)
    with mine.read:
        for timeout_s in (0, 0.1):
            with pytest.raises(WaitTimeout):
                same.write.acquire(timeout_s)
    with same.write:  # and nothing of it is left behind
        assert mine.waiters() == []


def test_a_writer_that_asks_to_read_is_told_of_the_downgrade(rwlock):
    mine = rwlock()
    with mine.write, pytest.raises(LatchworkError, match=r"call downgrade\(\)"):
        mine.read.acquire(5.0)


def test_a_downgrade_lets_readers_in_and_no_writer(rwlock, store, in_thread, eventually):
    mine, reader, writer = rwlock(), rwlock(), rwlock()
    fence = mine.write.acquire(5.0)
    reading = in_thread(lambda: reader.read.acquire(30.0))
    eventually(lambda: len(mine.waiters()) == 1)
    writing = in_thread(lambda: writer.write.acquire(30.0))
    eventually(lambda: len(mine.waiters()) == 2)
    assert mine.downgrade() is fence
    reading.outcome()
    assert (mine.read.is_held, mine.write.is_held) == (True, False)
    assert [each.body["mode"] for each in mine.holders()] == ["read", "read"]
    store.commit([fence], [Put("seen", b"after the downgrade")])
    mine.read.release()
    time.sleep(0.1)
    assert not writer.write.is_held
    reader.read.release()
    assert writing.outcome().token > fence.token
    with pytest.raises(Conflict):
        store.commit([fence], [Put("seen", b"late")])


def test_a_with_that_was_downgraded_releases_at_its_end(rwlock):
    mine = rwlock()
    with mine.write:
        mine.downgrade()
        assert mine.read.is_held
    assert mine.holders() == []
    assert not mine.read.is_held


def test_a_downgrade_with_a_lost_answer_counts_as_one(rwlock, connect, monkeypatch):
    store = connect()
    mine = rwlock(store=store)
    mine.write.acquire(5.0)
    commit = store.commit

    def losing(checks, ops):
        commit(checks, ops)
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(store, "commit", losing)
    mine.downgrade()
    assert (mine.read.is_held, mine.write.is_held) == (True, False)
    rwlock().read.acquire(5.0)


def test_a_downgrade_without_a_hold_is_an_error(rwlock):
    mine = rwlock(reentrant=True)
    with pytest.raises(LockLost, match="not held by this thread"):
        mine.downgrade()
    with mine.write, mine.write, pytest.raises(LatchworkError, match="held 2 times"):
        mine.downgrade()


def test_a_writer_whose_session_is_lost_makes_room(rwlock, connect, in_thread, eventually):
    store = connect(session_ttl_s=TTL_S)
    writer, reader = rwlock(store=store), rwlock()
    lost = []
    writer.write.on_lost(lambda: lost.append("write"))
    writer.read.on_lost(lambda: lost.append("read"))
    writer.write.acquire(5.0)
    reading = in_thread(lambda: reader.read.acquire(30.0))
    eventually(lambda: len(writer.waiters()) == 1)
    store.session.mark_ended()
    reading.outcome()
    eventually(lambda: lost == ["write"])


def test_a_downgrade_of_a_ticket_that_is_gone_is_refused_and_writes_nothing(rwlock, store):
    mine = rwlock()
    mine.write.acquire(5.0)
    (ticket,) = store.list("orders")
    store.delete(ticket.key)
    with pytest.raises(LockLost, match="was lost before the downgrade"):
        mine.downgrade()
    assert store.list("orders") == []


def test_work_of_a_downgraded_writer_goes_on(rwlock):
    mine = rwlock()
    with mine.write, mine.write.guard_work() as work:
        mine.downgrade()
        assert not work.is_stopped
        mine.read.release()
        assert work.is_stopped


@pytest.mark.parametrize("name", ["", "a//b"])
def test_a_malformed_name_is_refused_before_any_io(name):
    with pytest.raises(InvalidKey, match="lock name"):
        ReadWriteLock(None, name)


def test_a_lock_that_is_closed_as_it_is_downgraded_is_released_and_says_so(rwlock, connect, monkeypatch):
    store = connect()
    mine, other = rwlock(store=store), rwlock()
    mine.write.acquire(5.0)
    commit = store.commit

    def closed_meanwhile(checks, ops):
        done = commit(checks, ops)
        mine.close()
        return done

    monkeypatch.setattr(store, "commit", closed_meanwhile)
    mine.downgrade()
    assert not mine.read.is_held
    assert other.write.acquire(30.0)


def test_a_downgrade_that_fails_after_a_close_leaves_nothing_held(rwlock, connect, monkeypatch):
    store = connect()
    mine, other = rwlock(store=store), rwlock()
    mine.write.acquire(5.0)

    def closed_before(_checks, _ops):
        mine.close()
        raise Unavailable("cut")

    monkeypatch.setattr(store, "commit", closed_before)
    with pytest.raises(Closed, match="was closed and released"):
        mine.downgrade()
    assert (mine.read.is_held, mine.write.is_held) == (False, False)
    assert other.write.acquire(30.0)


def test_a_downgrade_after_the_close_of_the_side_that_takes_it_releases_it(rwlock):
    mine, other = rwlock(), rwlock()
    mine.write.acquire(5.0)
    mine.read.close()
    with pytest.raises(Closed, match="was closed and released"):
        mine.downgrade()
    assert other.write.acquire(30.0)
