"""The life of a node, the same for each kind: start, ready, lost session, drain, close, signals, forks."""

from __future__ import annotations

import logging
import signal
import threading
import uuid

import pytest

import latchwork
from latchwork.errors import Closed, NodeIdInUse, PermissionDenied, Unavailable, WaitTimeout
from latchwork.testing.faults import FaultyStore
from latchwork_testkit.conformance.children import run_in_fork
from patience import eventually
from signalling import signals_later
from tasks.nodes import KINDS

pytestmark = pytest.mark.threads

WAIT_S = 60.0
FOREVER_S = 3600.0


@pytest.fixture
def url():
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(url):
    with latchwork.connect(url) as opened:
        yield opened


@pytest.fixture
def faulty(url):
    """Another client of the store, that can be cut off."""
    with FaultyStore(latchwork.connect(url)) as opened:
        yield opened


@pytest.fixture(params=KINDS)
def kind(request, store, tmp_path):
    made = KINDS[request.param](store, tmp_path)
    with made.closing:
        yield made
        made.release()


@pytest.fixture
def node(kind):
    made = kind.node()
    yield made
    kind.release()
    made.close(1.0)


@pytest.fixture
def ready(node):
    node.start()
    node.wait_ready(WAIT_S)
    return node


def has_begun(kind, *names):
    eventually(lambda: kind.begun() == list(names), WAIT_S, f"the begin of {names}")


def in_thread(call):
    """Call it in a thread: a list that gets what it returned or raised."""
    given = []

    def run():
        try:
            given.append(call())
        except BaseException as error:
            given.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, given


def ended(thread, given):
    thread.join(WAIT_S)
    assert given, "it still waits"
    return given[0]


# Start


def test_a_node_that_was_not_started_is_not_healthy_and_says_so(node):
    assert node.health().reasons == ("it was not started",)
    with pytest.raises(WaitTimeout, match="was not started"):
        node.wait_ready(0.0)


def test_a_node_is_started_once_however_often_it_is_told(ready):
    before = threading.active_count()
    ready.start()
    assert threading.active_count() == before
    assert ready.health().ok


def test_a_start_does_not_wait_for_the_store_and_the_node_joins_when_it_is_back(kind, faulty):
    faulty.cut_off()
    node = kind.node(faulty)
    node.start()
    with pytest.raises(WaitTimeout, match="takes no tasks"):
        node.wait_ready(0.0)
    assert not node.health().ok
    faulty.reconnect()
    node.wait_ready(WAIT_S)
    assert node.health().ok
    node.close(1.0)


def test_health_says_why_a_node_does_not_join(node, monkeypatch):
    def refuse(_session):
        raise Unavailable("the disk is full")

    monkeypatch.setattr(node, "_create_worker_session", refuse)
    node.start()
    eventually(lambda: "the disk is full" in str(node.health().reasons), WAIT_S)
    with pytest.raises(WaitTimeout, match="the disk is full"):
        node.wait_ready(0.0)


def test_the_same_trouble_is_a_warning_once(node, monkeypatch, caplog):
    tries = []

    def refuse(_session):
        tries.append(1)
        raise Unavailable("the disk is full")

    monkeypatch.setattr(node, "_create_worker_session", refuse)
    with caplog.at_level(logging.WARNING):
        node.start()
        eventually(lambda: len(tries) >= 3, WAIT_S)
    assert sum("the disk is full" in record.message for record in caplog.records) == 1


def test_an_unexpected_error_does_not_end_a_node(node, monkeypatch):
    made, tries = node._create_worker_session, []

    def fails_once(session):
        tries.append(session)
        return made(session) if len(tries) > 1 else 1 / 0

    monkeypatch.setattr(node, "_create_worker_session", fails_once)
    node.start()
    node.wait_ready(WAIT_S)
    assert node.health().ok
    assert tries[0].state == "closed"


@pytest.mark.parametrize("error", [PermissionDenied("no rights"), NodeIdInUse("n1 is taken"), Closed("no store")])
def test_an_error_that_no_other_try_fixes_ends_a_node(node, monkeypatch, error):
    def refuse(_session):
        raise error

    monkeypatch.setattr(node, "_create_worker_session", refuse)
    node.start()
    with pytest.raises(type(error), match=str(error)):
        node.wait_ready(WAIT_S)
    assert node.health().reasons == (str(error),)
    eventually(lambda: not node._thread.is_alive(), WAIT_S)
    with pytest.raises(type(error), match=str(error)):
        node.run_forever()


def test_an_interrupt_while_a_node_is_waited_for_leaves_it_to_the_caller(kind, faulty):
    faulty.cut_off()
    node = kind.node(faulty)
    node.start()
    with signals_later(signal.SIGINT), pytest.raises(KeyboardInterrupt):
        node.wait_ready(None)
    faulty.reconnect()
    node.wait_ready(WAIT_S)
    node.close(1.0)


def test_a_with_block_that_raises_closes_its_node(node):
    with pytest.raises(SystemExit), node:
        node.wait_ready(WAIT_S)
        raise SystemExit
    assert node.health().reasons == ("it was closed",)


# Lost session


def test_a_node_joins_again_after_a_lost_session_and_counts_on(kind, faulty):
    node = kind.node(faulty)
    with node:
        kind.put("a")
        has_begun(kind, "a")
        before = node.stats().taken
        faulty.expire_sessions()
        has_begun(kind, "a", "a")
        node.wait_ready(WAIT_S)
        assert node.stats().taken > before
        assert node.health().ok
        kind.release()
        eventually(lambda: node.stats().done >= 1, WAIT_S)


def test_a_node_whose_session_is_lost_while_it_drains_does_not_join_again(kind, store, ready):
    kind.put("a")
    has_begun(kind, "a")
    assert not ready.drain(0.0)
    ready._work.session.close()
    eventually(lambda: not ready._thread.is_alive(), WAIT_S)
    assert ready.drain(0.0)
    assert kind.bound_to_sessions() == []


# Drain


def test_a_node_that_drains_ends_its_tasks_and_takes_no_others(kind, ready):
    kind.put("a")
    has_begun(kind, "a")
    assert not ready.drain(0.0)
    assert ready.health().is_draining
    kind.put("b")
    thread, given = in_thread(lambda: ready.drain(WAIT_S))
    kind.release()
    assert ended(thread, given) is True
    assert ready.stats().done >= 1
    assert kind.begun() == ["a"]


def test_a_node_that_was_drained_before_it_joined_takes_nothing(kind, node):
    joined, make = threading.Event(), node._create_worker_session

    def late(session):
        assert joined.wait(WAIT_S)
        return make(session)

    node._create_worker_session = late
    kind.put("a")
    node.start()
    assert node.drain(0.0)
    joined.set()
    with pytest.raises(Closed, match="was drained"):
        node.wait_ready(WAIT_S)
    eventually(lambda: not node._thread.is_alive(), WAIT_S)
    assert kind.begun() == []
    assert not node.health().ok


# Close


def test_a_closed_node_has_left_nothing_that_its_session_held(kind, store, ready):
    kind.put("a")
    has_begun(kind, "a")
    assert kind.bound_to_sessions() != []
    assert ready.close(WAIT_S) == []
    assert kind.bound_to_sessions() == []
    assert not ready._thread.is_alive()


def test_a_node_is_closed_as_often_as_one_likes_and_does_not_start_again(ready):
    assert ready.close() == []
    assert ready.close() == []
    assert ready.health().reasons == ("it was closed",)
    for use in (ready.start, ready.wait_ready, ready.run_forever):
        with pytest.raises(Closed, match="was closed"):
            use()


def test_a_node_with_nothing_to_do_does_not_use_the_time_of_its_close(ready):
    thread, given = in_thread(lambda: ready.close(FOREVER_S))
    assert ended(thread, given) == []


def test_a_node_that_never_began_can_be_closed(node):
    assert node.close() == []
    with pytest.raises(Closed):
        node.start()


def test_a_close_ends_a_start_that_waits_for_the_store(kind, faulty):
    node = kind.node(faulty)
    begun, end = threading.Event(), node._create_worker_session

    def made(session):
        work = end(session)
        faulty.cut_off()
        begun.set()
        return work

    node._create_worker_session = made
    node.start()
    assert begun.wait(WAIT_S)
    waiting, given = in_thread(node.wait_ready)
    thread, left = in_thread(lambda: node.close(1.0))
    assert ended(thread, left) == []
    assert isinstance(ended(waiting, given), Closed)
    assert not node._thread.is_alive()
    faulty.reconnect()


def test_a_close_with_less_patience_shortens_the_one_before(kind, ready):
    kind.put_deaf("a")
    has_begun(kind, "a")
    thread, given = in_thread(lambda: ready.close(FOREVER_S))
    eventually(lambda: ready.health().reasons == ("it was closed",), WAIT_S)
    ready.close(0.0)
    ended(thread, given)


# Signals


def test_a_signal_lets_tasks_end_by_themselves_and_closes(kind, node):
    kind.put("a")
    in_thread(lambda: eventually(lambda: node.health().is_draining, WAIT_S) and kind.release())
    before = signal.getsignal(signal.SIGTERM)
    with signals_later(signal.SIGTERM, when=lambda: kind.begun() == ["a"]):
        assert node.run_forever(drain_s=FOREVER_S) == []
    assert node.stats().done >= 1
    assert node.health().reasons == ("it was closed",)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_does_not_wait_for_tasks(kind, store, node, numbers):
    kind.put("a")
    with signals_later(*numbers, when=lambda: kind.begun() == ["a"]):
        assert node.run_forever(drain_s=FOREVER_S) == []
    assert kind.bound_to_sessions() == []


def test_a_signal_while_a_node_cannot_join_ends_it(kind, faulty):
    faulty.cut_off()
    node = kind.node(faulty)
    with signals_later(signal.SIGTERM):
        assert node.run_forever() == []
    faulty.reconnect()


def test_run_forever_in_another_thread_works_until_close(node):
    thread, given = in_thread(node.run_forever)
    node.wait_ready(WAIT_S)
    node.close()
    assert ended(thread, given) == []


def test_a_close_by_another_thread_ends_run_forever(node):
    def close():
        node.wait_ready(WAIT_S)
        node.close()

    thread, given = in_thread(close)
    node.start()
    assert node.run_forever() == []
    ended(thread, given)


# Forks


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_of_a_fork_is_refused_and_its_close_leaves_the_node_of_its_parent(ready):
    uses = ("start", "wait_ready", "drain", "health", "stats", "run_forever")
    said = run_in_fork({**{name: getattr(ready, name) for name in uses}, "close": ready.close})
    assert said == {**dict.fromkeys(uses, "ForkedProcess"), "close": "[]"}
    assert ready.health().ok
