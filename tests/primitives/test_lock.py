"""The session-bound lock on every backend."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from latchwork.errors import (
    Closed,
    Conflict,
    ForkedProcess,
    InvalidKey,
    LatchworkError,
    LockLost,
    OutcomeUnknown,
    SessionLost,
    Unavailable,
    WaitTimeout,
)
from latchwork.primitives import Lock
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.types import Put
from patience import came_true

TTL_S = 1.0


@pytest.fixture
def lock(connect):
    """Make a lock with a client, and so a session, of its own; closed after the test."""
    made = []

    def make(name="orders", *, store=None, **options):
        made.append(Lock(store or connect(session_ttl_s=TTL_S), name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_second_holder_waits_until_the_first_releases(lock, in_thread, eventually):
    first, second = lock(), lock()
    token = first.acquire(5.0).token
    waiting = in_thread(lambda: second.acquire(20.0))
    eventually(lambda: len(first.waiters()) == 1)
    assert not second.is_held
    first.release()
    assert waiting.outcome().token > token
    assert second.is_held
    assert not first.is_held
    second.release()


def test_with_acquires_and_releases_and_leaves_nothing(lock, store):
    with lock() as fence:
        store.commit([fence], [Put("last", b"42")])
    assert store.list("orders") == []
    with pytest.raises(Conflict):
        store.commit([fence], [Put("last", b"late")])


def test_waiters_get_the_lock_in_the_order_of_their_arrival(lock, in_thread, eventually):
    first = lock()
    first.acquire(5.0)
    order = []

    def take(number, mine):
        with mine:
            order.append(number)

    takers = []
    for number in range(5):
        mine = lock(label=f"taker {number}")
        takers.append(in_thread(lambda number=number, mine=mine: take(number, mine)))
        eventually(lambda number=number: len(first.waiters()) == number + 1)
    assert [each.label for each in first.waiters()] == [f"taker {number}" for number in range(5)]
    first.release()
    for each in takers:
        each.outcome()
    assert order == [0, 1, 2, 3, 4]


def test_a_timeout_names_the_holder_and_leaves_nothing_behind(lock):
    first, second = lock(label="the first"), lock()
    first.acquire(5.0)
    started_at = time.monotonic()
    with pytest.raises(
        WaitTimeout, match=rf"lock 'orders' is held by 'the first' \(pid {os.getpid()} on .* after 0.2 s"
    ):
        second.acquire(0.2)
    assert time.monotonic() - started_at >= 0.2
    assert first.waiters() == []
    assert first.holder().label == "the first"


def test_a_single_try_does_not_even_queue(lock, connect, monkeypatch):
    first = lock()
    store = connect()
    second = lock(store=store)
    assert second.acquire(0.0)
    second.release()
    first.acquire(5.0)
    monkeypatch.setattr(store, "create_ordered_key", lambda *_, **__: pytest.fail("it took a ticket"))
    with pytest.raises(WaitTimeout):
        second.acquire(0.0)


def test_a_waiter_that_leaves_the_middle_of_the_queue_lets_nobody_through(lock, in_thread, eventually):
    first, second, third = lock(), lock(), lock()
    first.acquire(5.0)
    leaver = in_thread(lambda: second.acquire(1.0))
    eventually(lambda: len(first.waiters()) == 1)
    stayer = in_thread(lambda: third.acquire(30.0))
    eventually(lambda: len(first.waiters()) == 2)
    with pytest.raises(WaitTimeout):
        leaver.outcome()
    eventually(lambda: len(first.waiters()) == 1)
    time.sleep(0.1)
    assert not third.is_held
    first.release()
    stayer.outcome()
    third.release()


def test_threads_that_share_a_lock_exclude_each_other(lock, in_thread):
    shared = lock()
    inside, seen = [], []

    def work():
        for _ in range(3):
            with shared:
                inside.append(1)
                seen.append(len(inside))
                inside.pop()

    for each in [in_thread(work) for _ in range(3)]:
        each.outcome(60.0)
    assert seen == [1] * 9


def test_a_reentrant_lock_is_released_as_often_as_it_was_acquired(lock):
    mine, other = lock(reentrant=True), lock()
    with mine as fence:
        with mine as again:
            assert again is fence
        assert mine.is_held
        with pytest.raises(WaitTimeout):
            other.acquire(0.0)
    assert not mine.is_held
    other.acquire(5.0)
    other.release()


def test_a_thread_that_asks_again_gets_an_error_instead_of_a_deadlock(lock):
    mine = lock()
    with mine, pytest.raises(LatchworkError, match="already held by this thread; release it first"):
        mine.acquire()


def test_a_reentrant_lock_is_not_shared_with_other_threads(lock, in_thread):
    mine = lock(reentrant=True)
    with mine:
        other = in_thread(lambda: mine.acquire(0.1))
        with pytest.raises(WaitTimeout):
            other.outcome()


def test_releasing_what_is_not_held_is_an_error(lock):
    mine = lock()
    with pytest.raises(LockLost, match="lock 'orders' is not held by this object; acquire it first"):
        mine.release()
    mine.acquire(5.0)
    mine.release()
    with pytest.raises(LockLost):
        mine.release()


def test_a_release_of_what_a_third_party_ended_on_the_server_says_so(lock, store):
    mine = lock()
    mine.acquire(5.0)
    (ticket,) = store.list("orders")
    store.delete(ticket.key)
    with pytest.raises(LockLost, match="had expired before its release"):
        mine.release()
    mine.acquire(5.0)
    mine.release()


def test_another_thread_may_release_what_one_acquired(lock, in_thread):
    mine = lock()
    in_thread(lambda: mine.acquire(5.0)).outcome()
    mine.release()
    assert mine.holder() is None


def test_the_fence_of_a_lost_lock_cannot_be_had(lock):
    mine = lock()
    with pytest.raises(LockLost, match="no longer held"):
        _ = mine.fence
    with mine as fence:
        assert mine.fence is fence


def test_a_lost_session_ends_the_hold_and_tells_its_listeners_once(lock, connect, in_thread, eventually):
    store = connect(session_ttl_s=TTL_S)
    mine, other = lock(store=store), lock()
    told = []
    mine.on_lost(lambda: 1 / 0)
    mine.on_lost(lambda: told.append("lost"))
    ended = mine.on_lost(lambda: told.append("not any more"))
    ended()
    fence = mine.acquire(5.0)
    lost = mine.lost
    waiting = in_thread(lambda: other.acquire(30.0))
    eventually(lambda: len(mine.waiters()) == 1)
    store.session.mark_ended()
    assert not mine.is_held
    assert waiting.outcome().token > fence.token
    eventually(lambda: told == ["lost"])
    assert lost.is_set()
    with pytest.raises(Conflict):
        store.commit([fence], [Put("last", b"late")])
    with pytest.raises(LockLost, match="had expired before its release"):
        mine.release()
    other.release()
    with mine:  # with the store's next session
        assert told == ["lost"]


def test_a_lost_session_ends_the_wait(lock, connect, in_thread, eventually):
    store = connect(session_ttl_s=TTL_S)
    first, second = lock(), lock(store=store)
    first.acquire(5.0)
    waiting = in_thread(second.acquire)
    eventually(lambda: len(first.waiters()) == 1)
    store.session.mark_ended()
    with pytest.raises(SessionLost):
        waiting.outcome(5.0)


def test_closing_the_session_ends_the_wait(lock, connect, in_thread, eventually):
    store = connect()
    session = store.open_session(10.0)
    first, second = lock(), lock(store=store, session=session)
    first.acquire(5.0)
    waiting = in_thread(second.acquire)
    eventually(lambda: len(first.waiters()) == 1)
    session.close()
    with pytest.raises(Closed, match="session of lock 'orders' was closed"):
        waiting.outcome(5.0)


def test_closing_the_lock_ends_the_wait_and_releases(lock, store, in_thread, eventually):
    first, second = lock(), lock()
    first.acquire(5.0)
    waiting = in_thread(second.acquire)
    eventually(lambda: len(first.waiters()) == 1)
    second.close()
    with pytest.raises(Closed, match="lock 'orders' was closed"):
        waiting.outcome(5.0)
    first.close()
    first.close()
    assert store.list("orders") == []
    with pytest.raises(Closed):
        first.acquire(1.0)


def test_closing_the_store_ends_the_wait(lock, connect, in_thread, eventually):
    store = connect()
    first, second = lock(), lock(store=store)
    first.acquire(5.0)
    waiting = in_thread(second.acquire)
    eventually(lambda: len(first.waiters()) == 1)
    store.close()
    with pytest.raises(Closed):
        waiting.outcome(5.0)


def test_a_waiter_whose_ticket_is_deleted_by_hand_does_not_take_its_turn(lock, store, in_thread, eventually):
    first, second, third = lock(), lock(), lock()
    first.acquire(5.0)
    waiting = []
    for number, mine in enumerate((second, third)):
        waiting.append(in_thread(mine.acquire))
        eventually(lambda number=number: len(first.waiters()) == number + 1)
    for ticket in reversed(first.waiters()):
        store.delete(ticket.key)
    first.release()
    for each in waiting:  # one ticket was ahead of the first, two of the other
        with pytest.raises(LockLost, match="another client deleted it; queue again"):
            each.outcome()
    assert not second.is_held


def test_each_waiter_watches_exactly_the_one_before_it_and_one_wakes(lock, connect, in_thread, eventually, monkeypatch):
    first = lock()
    first.acquire(5.0)
    watched, takers, locks = [], [], []
    for number in range(6):
        store = connect()
        seen = []
        watched.append(seen)
        watch = store.watch
        monkeypatch.setattr(
            store, "watch", lambda key, seen=seen, watch=watch, **how: seen.append(key) or watch(key, **how)
        )
        locks.append(lock(store=store))
        takers.append(in_thread(lambda mine=locks[-1]: mine.acquire(30.0)))
        eventually(lambda number=number: len(first.waiters()) == number + 1 and watched[number])
    tickets = [first.holder().key, *(each.key for each in first.waiters())]
    assert watched == [[ticket] for ticket in tickets[:-1]]
    first.release()
    takers[0].outcome()
    time.sleep(0.1)
    assert [len(seen) for seen in watched] == [1] * 6  # nobody else was woken: a waiter that wakes looks again
    assert [each.is_held for each in locks] == [True, *[False] * 5]
    for mine, taker in zip(locks, takers, strict=True):
        taker.outcome()
        mine.release()


def test_a_hand_over_costs_the_next_one_request_at_most(lock, connect, in_thread, eventually, monkeypatch):
    first = lock()
    first.acquire(5.0)
    counts, takers, locks = [], [], []
    for number in range(3):
        store = connect()
        calls = []
        counts.append(calls)
        locks.append(lock(store=store))
        takers.append(in_thread(lambda mine=locks[-1]: mine.acquire(30.0)))
        eventually(lambda number=number: len(first.waiters()) == number + 1)
        settle(store, 1)
        spy(monkeypatch, store, calls)
    first.release()
    for mine, taker in zip(locks, takers, strict=True):
        taker.outcome()
        mine.release()
    # the first knew that only one was ahead; on ZooKeeper the end of a ticket brings the names of the others along
    own, all_names = ([], []) if store.capabilities.name == "zk" else (["get"], ["children"])
    assert counts == [[*own, "delete"], [*all_names, "delete"], [*all_names, "delete"]]


def test_a_free_lock_is_acquired_by_one_call_and_nothing_of_it_stays(lock, connect, monkeypatch, eventually):
    store, asked = connect(), []
    mine = lock(store=store)
    store.session.ensure_usable()
    spy(monkeypatch, store, asked)
    tokens = [(mine.acquire(5.0).token, mine.release())[0] for _ in range(3)]
    assert asked == ["create_ordered_key", "delete"] * 3
    assert tokens == sorted(set(tokens))
    assert store.children("") == []


@pytest.mark.parametrize("when", ["applied", "never applied"])
def test_an_acquire_with_a_lost_answer_queues_exactly_once(lock, connect, store, monkeypatch, when):
    cut_store = connect()
    create, cut = cut_store.create_ordered_key, []

    def losing(*key, **options):
        if cut:
            return create(*key, **options)
        cut.append(key)
        if when == "applied":
            create(*key, **options)
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(cut_store, "create_ordered_key", losing)
    mine = lock(store=cut_store)
    mine.acquire(5.0)
    assert len(store.list("orders")) == 1
    mine.release()
    assert store.list("orders") == []


def test_an_interrupt_while_waiting_leaves_nothing_behind(lock, eventually):
    first, second = lock(), lock()
    first.acquire(5.0)
    interrupt = threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        second.acquire(30.0)
    interrupt.join()
    eventually(lambda: first.waiters() == [])
    assert not second.is_held


def test_a_ticket_of_unknown_outcome_is_removed_when_the_acquire_gives_up(
    lock, connect, store, monkeypatch, eventually
):
    cut_store = connect()
    create, made, cut = cut_store.create_ordered_key, [], threading.Event()

    def losing(*key, **options):
        made.append(create(*key, **options).entry)
        cut.set()
        raise OutcomeUnknown("cut")

    def unless_cut(call):
        def guarded(*args, **options):
            if cut.is_set():
                raise Unavailable("cut")
            return call(*args, **options)

        return guarded

    monkeypatch.setattr(cut_store, "create_ordered_key", losing)
    monkeypatch.setattr(cut_store, "children", unless_cut(cut_store.children))
    monkeypatch.setattr(cut_store, "delete", unless_cut(cut_store.delete))
    with pytest.raises((OutcomeUnknown, Unavailable)):
        lock(store=cut_store).acquire(0.0)
    assert len(made) == 1  # nobody waits behind it, and it would be the holder
    cut.clear()
    eventually(lambda: store.list("orders") == [])


def test_a_ticket_that_lands_after_its_acquire_gave_up_is_removed_also_when_nobody_asks_again(
    lock, connect, store, monkeypatch, eventually
):
    slow = connect()
    create, late = slow.create_ordered_key, []

    def losing(*key, **options):
        late.append(lambda: create(*key, **options))
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(slow, "create_ordered_key", losing)
    with pytest.raises(OutcomeUnknown):
        lock(store=slow).acquire(0.0)
    late[0]()
    eventually(lambda: store.list("orders") == [])
    assert lock().acquire(5.0)


def test_a_release_that_does_not_get_through_goes_on_in_the_background(lock, connect, monkeypatch, eventually):
    store = connect()
    mine = lock(store=store)
    mine.acquire(5.0)
    delete, cut = store.delete, threading.Event()
    cut.set()

    def unreachable(*args, **options):
        if cut.is_set():
            raise Unavailable("cut")
        return delete(*args, **options)

    monkeypatch.setattr(store, "delete", unreachable)
    mine.release()
    assert not mine.is_held
    assert mine.holder() is not None
    cut.clear()
    eventually(lambda: mine.holder() is None)


def test_an_acquire_waits_through_an_outage_as_long_as_its_session_lives(lock, connect, monkeypatch):
    store = connect()
    mine = lock(store=store)
    create, refused = store.create_ordered_key, []

    def unreachable(*args, **options):
        if len(refused) < 3:
            refused.append(args)
            raise Unavailable("cut")
        return create(*args, **options)

    monkeypatch.setattr(store, "create_ordered_key", unreachable)
    assert mine.acquire(20.0)
    assert len(refused) == 3


def test_waiting_in_a_callback_is_an_error_instead_of_a_hang(lock, connect, eventually):
    store = connect()
    mine = lock(store=store)
    errors = []

    def callback(_batch):
        try:
            mine.acquire(5.0)
        except LatchworkError as error:
            errors.append(str(error))

    with store.watch("orders") as watch:
        watch.subscribe(callback)
        eventually(lambda: errors)
    assert "must not be waited for in a callback" in errors[0]


def test_a_child_of_a_fork_cannot_use_its_parents_lock(lock):
    mine = lock()
    with mine:
        pid = os.fork()
        if pid == 0:  # a test in the child would run the rest of the suite: leave by its exit status
            status = 0
            try:
                status |= 1 if mine.is_held else 0
                try:
                    mine.release()
                    status |= 2
                except ForkedProcess:
                    pass
                try:
                    mine.acquire(1.0)
                    status |= 4
                except ForkedProcess:
                    pass
                mine.close()
            except BaseException:
                status |= 8
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert mine.is_held


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a b", "@x"])
def test_a_malformed_name_is_refused_before_any_io(name):
    with pytest.raises(InvalidKey, match="lock name"):
        Lock(None, name)


def test_a_lock_whose_holder_is_killed_passes_to_the_next_within_the_ttl(holder, lock):
    first = holder("session lock", "orders", TTL_S)
    token = first.hear()["token"]
    second = lock()
    granted_s = second._store.session.ttl_s
    killed_at = time.monotonic()
    first.send(signal.SIGKILL)
    assert second.acquire(granted_s + 10.0).token > token
    assert time.monotonic() - killed_at < granted_s + 2.0


def test_a_holder_that_slept_past_its_session_is_refused_and_knows(holder, lock, store):
    first = holder("session lock", "orders", TTL_S)
    first.hear()
    assert first.ask("write") == {"write": "written"}
    second = lock()
    first.freeze()
    store.commit([second.acquire(15.0)], [Put("written", b"by the next")])
    first.wake()
    answers = [first.ask("ours"), first.ask("write"), first.hear()]
    assert {"ours": False} in answers
    assert {"lost": True} in answers
    assert any(answer.get("write") in ("Conflict", "SessionLost") for answer in answers)
    assert store.get("written").value == b"by the next"


@pytest.mark.slow
def test_a_release_before_200_waiters_wakes_one_of_them_and_costs_one_request(
    store, connect, in_thread, eventually, monkeypatch
):
    """One client stands for all 200: what it asks during one hand-over is what all of them ask."""
    asked, woken, watch_until = [], [], Waiter.watch_until

    async def noted(*args, **how):
        found = await watch_until(*args, **how)
        woken.append(args)
        return found

    monkeypatch.setattr(Waiter, "watch_until", noted)
    first, waiting_store = Lock(store, "orders"), connect()
    first.acquire(5.0)
    locks = [Lock(waiting_store, "orders") for _ in range(200)]
    takers = [in_thread(lambda each=each: each.acquire(60.0)) for each in locks]
    try:
        eventually(lambda: len(first.waiters()) == 200, 60.0)
        settle(waiting_store, 200)
        spy(monkeypatch, waiting_store, asked)
        assert woken == []
        first.release()
        eventually(lambda: any(each.is_held for each in locks))
        time.sleep(0.5)
        assert (len(woken), sum(each.is_held for each in locks)) == (1, 1)
        assert len(asked) <= 1
    finally:
        for each in locks:
            each.close()
    for each in takers:
        each.join(30.0)
    assert first.waiters() == []


def settle(store, watches):
    """Until there are so many watches, and each has its first state."""
    assert came_true(lambda: sum(feed._tracker.ready for feed in list(store._core._feeds)) >= watches, 60.0)


def spy(patch, store, asked):
    """Note every call of a store."""
    for name in ("get", "get_many", "list", "children", "commit", "create_ordered_key", "put", "delete", "watch"):
        call = getattr(store, name)
        patch.setattr(store, name, lambda *a, call=call, name=name, **o: asked.append(name) or call(*a, **o))


def test_a_hold_that_is_closed_as_it_is_had_is_not_told_as_lost_later(lock, connect, monkeypatch, eventually):
    store = connect(session_ttl_s=TTL_S)
    mine, told, ended = lock(store=store), [], []
    mine.on_lost(lambda: told.append("lost"))
    session = store.session
    on_lost = session.on_lost

    def closed_meanwhile(fn, **options):
        mine.close()
        return on_lost(fn, **options)

    monkeypatch.setattr(session, "on_lost", closed_meanwhile)
    mine.acquire(5.0)
    monkeypatch.undo()
    session.on_lost(lambda: ended.append(1))  # called after those that were there before
    session.mark_ended()
    eventually(lambda: ended)
    assert told == []


def test_a_with_that_ends_in_another_thread_releases_all_the_same(lock, in_thread):
    mine = lock()
    mine.__enter__()
    in_thread(lambda: mine.__exit__(None, None, None)).outcome()
    assert not mine.is_held
    assert mine.holder() is None


@pytest.mark.parametrize("timeout_s", [0.0, 5.0])
def test_a_ticket_that_no_session_owns_is_nobodys_and_holds_up_nobody(lock, store, timeout_s):
    store.put("orders/t-" + "0" * 32, b"another program wrote this")
    first, second = lock(), lock()
    first.acquire(timeout_s)
    assert first.holder().key != "orders/t-" + "0" * 32
    with pytest.raises(WaitTimeout):
        second.acquire(0.2)
    first.release()
    with second:
        assert store.get("orders/t-" + "0" * 32).value == b"another program wrote this"
