"""Functions that run once in the cluster, on every backend."""

from __future__ import annotations

import signal
import threading

import pytest

import latchwork
from latchwork.errors import (
    Closed,
    InvalidKey,
    LatchworkError,
    LockLost,
    OnceFailed,
    SessionLost,
    WaitTimeout,
)
from latchwork.primitives import Once
from latchwork.primitives.waiting.ownership import GuardedWork
from latchwork.testing import Fault, FaultyStore
from latchwork.types import Put
from primitives.lost_answers import lose_answer

TTL_S = 1.0


@pytest.fixture
def once(connect):
    """Make one with a client, and so a session, of its own; closed after the test."""
    made = []

    def make(name="migrate", *, store=None, **options):
        one = Once(store or connect(session_ttl_s=TTL_S), name, **options)
        made.append(one)
        return one

    yield make
    for each in made:
        each.close()


class Gate:
    """A function that runs until it is let go."""

    def __init__(self, result=b"done"):
        self.started, self.go, self.runs, self.result = threading.Event(), threading.Event(), [], result

    def __call__(self, work):
        self.runs.append(work)
        self.started.set()
        assert self.go.wait(20.0)
        return self.result


def never(_work):
    pytest.fail("it was run again")


def test_it_runs_in_one_place_and_all_get_the_result(once, in_thread, eventually):
    gate, onces = Gate(), [once() for _ in range(4)]
    running = [in_thread(lambda each=each: each.run(gate, timeout_s=30.0)) for each in onces]
    eventually(lambda: len(onces[0].waiters()) == 3)
    gate.go.set()
    assert [each.outcome() for each in running] == [b"done"] * 4
    assert len(gate.runs) == 1
    eventually(lambda: onces[0].runner() is None)


def test_who_comes_later_gets_the_result_without_running_it(once):
    assert once().run(lambda _work: b"1") == b"1"
    assert once().run(never, timeout_s=0.0) == b"1"
    assert once().outcome() == b"1"
    assert once("other").outcome() is None


def test_nothing_returned_is_an_empty_result(once):
    assert once().run(lambda _work: None) == b""
    assert once().run(never) == b""


def test_a_failure_is_raised_here_and_to_those_who_wait_and_come_later(once, in_thread, eventually):
    a, b, gate = once(), once(), Gate()

    def fail(work):
        gate(work)
        raise KeyError("disk")

    running = in_thread(lambda: a.run(fail))
    assert gate.started.wait(20.0)
    waiting = in_thread(lambda: b.run(never, timeout_s=30.0))
    eventually(b.waiters)
    gate.go.set()
    with pytest.raises(OnceFailed, match="has failed here") as caught:
        running.outcome()
    assert isinstance(caught.value.__cause__, KeyError)
    for wait in (waiting.outcome, lambda: once().run(never)):
        with pytest.raises(
            OnceFailed, match=r"once 'migrate' has failed on .* \(pid \d+\): KeyError: 'disk'; reset it"
        ):
            wait()


def test_after_a_reset_it_runs_again(once):
    with pytest.raises(OnceFailed):
        once().run(lambda _work: 1 / 0)
    once().reset()
    assert once().run(lambda _work: b"2") == b"2"


def test_a_result_that_is_too_large_is_a_failure(once):
    with pytest.raises(OnceFailed, match="has failed here"):
        once().run(lambda _work: b"x" * 990_001)
    with pytest.raises(OnceFailed, match="fit"):
        once().outcome()


@pytest.mark.parametrize("result", ["text", 7, {"a": 1}, bytearray(b"a")])
def test_a_result_of_another_type_is_refused_and_not_recorded_however_often(once, result):
    for _ in range(4):  # more often than it may be started: nobody has vanished
        with pytest.raises(TypeError, match="must return bytes or None, not"):
            once().run(lambda _work: result)
    assert once().outcome() is None
    assert once().run(lambda _work: b"right") == b"right"


@pytest.mark.threads
@pytest.mark.filterwarnings("error")
def test_a_function_that_cannot_be_run_is_refused_before_anything_is_written(once, store):
    async def forgotten(_work):
        return b""

    for wrong, why in [
        (lambda: b"", r"calls its function as fn\(work\)"),
        (lambda _work, _more: b"", r"calls its function as fn\(work\)"),
        (forgotten, "an async function, whose body would never run"),
        (b"done", "give a function"),
        (None, "give a function"),
    ]:
        with pytest.raises(TypeError, match=why):
            once().run(wrong)
    assert store.list("", recursive=True) == []
    with pytest.raises(TypeError, match="a coroutine, which nobody runs"):
        once().run(lambda _work: forgotten(None))


def test_the_largest_result_passes(once):
    once().run(lambda _work: b"x" * 990_000)
    assert len(once().run(never)) == 990_000


def test_a_wait_ends_with_its_time_and_leaves_nothing(once, in_thread):
    gate, a, b = Gate(), once(label="slow"), once()
    running = in_thread(lambda: a.run(gate))
    assert gate.started.wait(20.0)
    for timeout_s in (0.0, 0.1):
        with pytest.raises(WaitTimeout, match="once 'migrate' is still being run by 'slow'"):
            b.run(never, timeout_s=timeout_s)
    assert b.waiters() == []
    gate.go.set()
    assert running.outcome() == b"done"


def test_when_the_runner_is_killed_the_next_takes_over(holder, once):
    dying = holder("once", "migrate", TTL_S)
    dying.hear()
    mine = once()
    dying.send(signal.SIGKILL)
    assert mine.run(lambda _work: b"by the next", timeout_s=30.0) == b"by the next"


def test_a_runner_that_lost_its_session_gets_the_outcome_of_the_next(once, connect, in_thread, eventually):
    store = connect(session_ttl_s=TTL_S)
    a, b, gate = once(store=store), once(), Gate(b"late")
    running = in_thread(lambda: a.run(gate))
    assert gate.started.wait(20.0)
    waiting = in_thread(lambda: b.run(lambda _work: b"by the next", timeout_s=30.0))
    eventually(b.waiters)
    store.session.mark_ended()
    assert waiting.outcome() == b"by the next"
    gate.go.set()
    assert running.outcome() == b"by the next"
    assert gate.runs[0].is_stopped
    assert once().outcome() == b"by the next"


def test_a_runner_whose_ticket_is_gone_records_nothing(once, connect):
    mine = connect()
    with pytest.raises(LockLost, match="our session ended before the outcome was recorded"):
        once(store=mine).run(lambda _work: mine.delete(once().runner().key) and b"late")
    assert once().outcome() is None


def test_a_runner_whose_ticket_is_gone_and_who_fails_gets_the_outcome_of_the_next(once, connect):
    mine = connect()

    def fail_late(work):
        mine.delete(once().runner().key)  # as when our session has ended on the server, and we did not hear of it
        once().run(lambda _work: b"by the next", timeout_s=30.0)
        mine.commit([work.fence], [Put("result", b"twice")])

    assert once(store=mine).run(fail_late) == b"by the next"
    assert once().outcome() == b"by the next"


def test_a_runner_that_lost_its_session_before_anybody_recorded_an_outcome_is_told(once, connect, eventually):
    store, onlooker = connect(session_ttl_s=TTL_S), once()

    def slow(_work):
        store.session.mark_ended()
        eventually(lambda: onlooker.runner() is None)
        return b"late"

    with pytest.raises(LockLost, match="our session ended before the outcome was recorded"):
        once(store=store).run(slow)
    assert once().outcome() is None


def test_work_under_its_fence_is_refused_once_another_runs_it(once, connect, store):
    mine = connect(session_ttl_s=TTL_S)
    late = []

    def slow(work):
        mine.session.mark_ended()
        once().run(lambda _work: b"by the next", timeout_s=30.0)
        try:
            mine.commit([work.fence], [Put("result", b"twice")])
        except Exception as error:
            late.append(error)
        return b"late"

    assert once(store=mine).run(slow) == b"by the next"
    assert late
    assert store.get("result") is None


class Renewal:
    """What a session says is left of it: as much as it has, or less when the test says so."""

    def __init__(self, session, monkeypatch):
        self.at_most, self.left_s = 1000.0, session.remaining_s
        monkeypatch.setattr(session, "remaining_s", self)

    def __call__(self):
        return min(self.at_most, self.left_s())

    def nearly_fails(self, work):
        self.at_most = 0.2
        assert work.is_stopped
        self.succeeds()

    def succeeds(self):
        self.at_most = 1000.0


def give_up(_work):
    raise RuntimeError("given up")


@pytest.mark.parametrize(
    "obey", [lambda _work: b"half", give_up, GuardedWork.raise_if_stopped], ids=["return", "raise", "check"]
)
def test_what_ends_after_being_told_to_stop_is_no_outcome_and_is_run_again_when_there_is_time(
    once, connect, monkeypatch, obey
):
    store = connect(session_ttl_s=30.0)
    renewal, begun = Renewal(store.session, monkeypatch), []

    def migrate(work):
        begun.append(work.is_stopped)
        if len(begun) == 3:
            return b"whole"
        renewal.nearly_fails(work)
        return obey(work)

    assert once(store=store, max_starts=1).run(migrate) == b"whole"
    assert begun == [False] * 3
    assert once().outcome() == b"whole"


def test_it_is_not_run_again_before_the_session_is_renewed(once, connect, monkeypatch):
    store = connect(session_ttl_s=30.0)
    renewal, runs = Renewal(store.session, monkeypatch), []
    renewed = threading.Timer(0.3, renewal.succeeds)

    def migrate(work):
        runs.append(work.is_stopped)
        if len(runs) == 1:
            renewal.at_most = 0.1
            renewed.start()
            assert work.is_stopped
        return str(len(runs)).encode()

    assert once(store=store).run(migrate) == b"2"
    assert runs == [False, False]
    renewed.join()


def test_who_is_told_to_stop_and_closes_it_does_not_run_it_again(once, connect, monkeypatch):
    store = connect(session_ttl_s=30.0)
    mine, renewal, runs = once(store=store), Renewal(store.session, monkeypatch), []

    def migrate(work):
        runs.append(work)
        renewal.nearly_fails(work)
        mine.close()
        return b"half"

    with pytest.raises(Closed):
        mine.run(migrate)
    assert len(runs) == 1
    assert once().outcome() is None


def test_a_waiter_reads_the_outcome_again_when_the_server_is_away_for_a_moment(
    once, connect, backend_url, in_thread, eventually
):
    gate, runner, third = Gate(), once(), connect()
    running = in_thread(lambda: runner.run(gate))
    assert gate.started.wait(20.0)
    third.create_ordered_key(
        "migrate/queue/t-", "0" * 32, b"{}", session=third.session
    )  # the waiter has no turn of its own
    with FaultyStore(latchwork.connect(backend_url)) as store:
        waiting = in_thread(lambda: once(store=store).run(never))
        eventually(lambda: len(runner.waiters()) == 2)
        store.add(Fault("fail", op="get", key="migrate/outcome"))
        gate.go.set()
        assert waiting.outcome() == b"done"
        assert [each.op for each in store.faults] == ["get"]
    assert running.outcome() == b"done"


def test_a_waiter_that_cannot_even_queue_gets_an_outcome_that_comes_meanwhile(once, backend_url, in_thread, eventually):
    gate, runner = Gate(), once()
    running = in_thread(lambda: runner.run(gate))
    assert gate.started.wait(20.0)
    no_tickets = Fault("fail", op="create", key="migrate/queue/*", times=None)
    with FaultyStore(latchwork.connect(backend_url), [no_tickets]) as store:
        waiting = in_thread(lambda: once(store=store).run(never))
        eventually(lambda: [fault for fault in store.faults if fault.op == "create"])
        gate.go.set()
        assert waiting.outcome() == b"done"
    assert running.outcome() == b"done"


def test_a_function_that_kills_its_runners_is_recorded_as_failed(once, connect):
    for _ in range(2):
        dying = connect(session_ttl_s=TTL_S)

        def die(_work, dying=dying):
            dying.session.close()
            return b""

        with pytest.raises((LockLost, Closed)):
            once(store=dying, max_starts=2).run(die)
    with pytest.raises(OnceFailed, match="whoever ran it vanished, 2 times"):
        once(max_starts=2).run(never)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("which", [1, 2])
def test_a_lost_answer_changes_nothing(once, connect, monkeypatch, applied, which):
    store = connect()
    lose_answer(store, monkeypatch, applied=applied, which=which)
    runs = []
    assert once(store=store).run(lambda _work: runs.append(1) or b"1") == b"1"
    assert len(runs) == 1
    assert b'"starts":1' in store.get("migrate/starts").value


def test_losing_the_session_or_closing_ends_a_wait(once, connect, in_thread, eventually):
    store = connect(session_ttl_s=TTL_S)
    gate, runner, losing, closing = Gate(), once(), once(store=store), once()
    running = in_thread(lambda: runner.run(gate))
    assert gate.started.wait(20.0)
    waiting = [in_thread(lambda each=each: each.run(never)) for each in (losing, closing)]
    eventually(lambda: len(runner.waiters()) == 2)
    store.session.mark_ended()
    closing.close()
    with pytest.raises(SessionLost):
        waiting[0].outcome()
    with pytest.raises(Closed, match="once 'migrate' was closed"):
        waiting[1].outcome()
    gate.go.set()
    running.outcome()


def test_bad_names_and_numbers_are_refused_before_any_io():
    with pytest.raises(InvalidKey):
        Once(None, "a//b")
    with pytest.raises(ValueError, match="max_starts"):
        Once(None, "a", max_starts=0)


def test_an_outcome_that_is_reset_as_soon_as_it_is_there_leaves_nobody_without_one(
    once, connect, in_thread, eventually, monkeypatch
):
    gate, store, third = Gate(b"old"), connect(), connect()
    runner, waiter, other = (once(store=each) for each in (connect(), store, third))
    running = in_thread(lambda: runner.run(gate, timeout_s=30.0))
    assert gate.started.wait(20.0)
    between = third.create_ordered_key("migrate/queue/t-", "0" * 32, b"{}", session=third.session).entry
    get, resets = store.get, []

    def reset_before_it_is_read(key, **options):
        if key == "migrate/outcome" and gate.go.is_set() and not resets:
            running.outcome()
            resets.append(other.reset())
            third.delete(between.key)
        return get(key, **options)

    waiting = in_thread(lambda: waiter.run(lambda _work: b"new", timeout_s=60.0))
    eventually(lambda: len(runner.waiters()) == 2)
    monkeypatch.setattr(store, "get", reset_before_it_is_read)
    gate.go.set()
    assert waiting.outcome() == b"new"
    assert resets
    assert other.outcome() == b"new"


def test_a_function_that_asks_for_its_own_outcome_is_refused_instead_of_hanging(once):
    mine, refusals = once(), []

    def asks(_work):
        with pytest.raises(LatchworkError, match="being run by this thread") as caught:
            mine.run(never, timeout_s=30.0)
        refusals.append(caught.value)
        return b"done"

    assert mine.run(asks, timeout_s=30.0) == b"done"
    assert refusals
    assert mine.run(never, timeout_s=30.0) == b"done"
