"""What a hungry node does with what it is told: one claim without a look, or a look."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from latchwork.primitives import QueueItem, WorkQueue
from latchwork.tasks.running.item_notifications import compute_search_delay_s, select_direct_claims
from latchwork.tasks.running.worker_hooks import SUSPECT
from latchwork.testing.faults import Fault, FaultyStore

from . import examples
from .feeding import PAYLOADS, Node, System, put, result_of
from .test_children import eventually

PATIENCE_S = 45.0


def item(path, **about):
    lane, shelf, item_id = path.split("/")
    return QueueItem(item_id, partition=lane, sort_key=shelf, **about)


def test_what_was_told_is_claimed_in_the_order_of_a_look():
    told = [item("any/2/a"), item("any/1/b"), item("mine/9/z")]
    assert [each.path for each in select_direct_claims(told, ["mine", "any"], 3)] == ["mine/9/z", "any/1/b", "any/2/a"]


def test_a_look_is_made_for_more_than_there_is_room_for():
    assert select_direct_claims([item("any/1/a"), item("any/1/b")], ["any"], 1) == []


def test_a_look_is_made_where_the_node_takes_from_no_lane_that_told():
    assert select_direct_claims([item("any/1/a")], [], 5) == []
    assert select_direct_claims([item("any/1/a"), item("other/1/a")], ["any"], 5) == []


def test_a_look_is_made_for_what_may_kill_its_nodes():
    suspect = item("any/1/a", attempts=SUSPECT)
    assert select_direct_claims([suspect, item("any/1/b")], ["any"], 5) == []
    assert select_direct_claims([item("any/1/a", attempts=SUSPECT, why="given back")], ["any"], 5) != []


def test_who_has_others_ahead_looks_sooner_and_the_further_behind_the_later():
    assert compute_search_delay_s([], 10.0) == compute_search_delay_s([0, 0], 10.0) == 10.0
    assert compute_search_delay_s([1], 10.0) == compute_search_delay_s([0, 3, 1], 10.0) == 1.0
    assert compute_search_delay_s([3], 10.0) == 3.0


# On a node


def looks(store):
    """How often it read the index of the lane."""
    return sum(call.op == "list" and call.keys[0].endswith("/sort_keys") for call in store.calls)


def waits(store):
    eventually(lambda: store.children("work/consumers/any"))
    time.sleep(0.2)


def hungry(store):
    """A node that waits in the line, and how many looks it has made until then."""
    waits(store)
    return looks(store)


def test_a_told_item_is_claimed_without_a_look(store, connect):
    with FaultyStore(connect()) as faulty, Node(faulty, search_s=300.0) as node:
        before = hungry(faulty)
        put(store, examples.square, 3, id="one")
        assert result_of(store, "one").result(PAYLOADS) == 9
        eventually(lambda: node.worker_loop.stats() == {"taken": 1, "done": 1})
        claim = next(
            n
            for n, call in enumerate(faulty.calls)
            if call.op == "commit" and any(key.endswith("/items/s1/one") for key in call.keys)
        )
        assert looks_until(faulty, claim) == before


def looks_until(store, number):
    return sum(call.op == "list" and call.keys[0].endswith("/sort_keys") for call in store.calls[:number])


def test_a_node_that_takes_from_no_lane_takes_nothing_that_it_is_told(store, connect):
    """It must not take anything now, such as one whose logs cannot be written."""
    system = System()
    with Node(connect(), system, search_s=0.2) as node:
        waits(store)
        system.all_lanes = []
        put(store, examples.square, 3, id="one")
        time.sleep(0.5)
        assert node.worker_loop.stats() == {}
        system.all_lanes = ["any"]
        assert result_of(store, "one").result(PAYLOADS) == 9


def test_a_told_item_that_another_node_was_faster_to_take_is_looked_for_and_waited_for(store, connect):
    """Its claim is refused; the node goes on with what else there is."""
    with Node(connect(), name="n1", search_s=300.0) as one, Node(connect(), name="n2", search_s=300.0) as two:
        for n in range(40):
            put(store, examples.square, n, id=f"i{n:02}")
        assert [result_of(store, f"i{n:02}").result(PAYLOADS) for n in range(40)] == [n * n for n in range(40)]
        eventually(lambda: one.worker_loop.stats().get("done", 0) + two.worker_loop.stats().get("done", 0) == 40)


def test_a_told_item_whose_owner_is_gone_is_left_and_told(store, connect):
    system = System()
    with Node(connect(), system, search_s=300.0):
        waits(store)
        put(store, examples.square, 3, id="orphan", owner="nobody")
        eventually(lambda: "orphan" in system.refusals)
        put(store, examples.square, 4, id="other")
        assert result_of(store, "other").result(PAYLOADS) == 16
        assert store.get("results/orphan") is None


def test_a_node_that_is_told_again_and_again_still_looks_after_its_time(store, connect, monkeypatch):
    """What no lane tells is found by the look: being told is none."""
    monkeypatch.setattr("latchwork.tasks.running.worker_loop.TIDY_S", 300.0)
    system = System(lanes=["any", "quiet"])
    system.list_watched_partitions = lambda: ["any"]
    with Node(connect(), system, search_s=1.0):
        waits(store)
        put(store, examples.square, 3, id="quiet", lane="quiet")
        until, n = time.monotonic() + 20.0, 0
        while store.get("results/quiet") is None:
            put(store, examples.square, n, id=f"i{n}")
            result_of(store, f"i{n}")
            n += 1
            assert time.monotonic() < until


# During a search


@pytest.fixture
def searching(connect):
    """A store whose next search of a node is held after its first read, from ``hold()`` to ``release()``."""
    with FaultyStore(connect(session_ttl_s=30.0)) as faulty:
        gate, held, listing = threading.Event(), threading.Event(), faulty.list

        def held_list(prefix, *args, **options):
            found = listing(prefix, *args, **options)
            if not gate.is_set() and prefix.endswith("/sort_keys"):
                held.set()
                gate.wait(PATIENCE_S)
            return found

        def hold():
            gate.clear()
            assert held.wait(PATIENCE_S)

        gate.set()
        faulty.list, faulty.hold, faulty.release = held_list, hold, gate.set
        yield faulty
        gate.set()


@pytest.mark.threads
def test_an_item_that_comes_during_a_search_does_not_wait_for_it_and_costs_no_place(store, searching):
    with Node(searching, search_s=1.0) as node:
        waits(store)
        place = list(store.children("work/consumers/any"))
        searching.hold()
        for n in range(3):
            put(store, examples.square, n, id=f"i{n}")
            assert result_of(store, f"i{n}").result(PAYLOADS) == n * n
            eventually(lambda: node.worker_loop.running() == [])
        searching.release()
        eventually(lambda: node.worker_loop._searched is None)
        put(store, examples.square, 3, id="i3")
        assert result_of(store, "i3").result(PAYLOADS) == 9
        assert list(store.children("work/consumers/any")) == place
        eventually(lambda: node.worker_loop.stats() == {"taken": 4, "done": 4})


@pytest.mark.threads
@pytest.mark.parametrize("fault", ["cut_before", "cut_after"])
def test_an_item_whose_claim_fails_during_a_search_is_found_by_the_next_one(store, searching, fault):
    with Node(searching, search_s=1.0, slots=4) as node:
        waits(store)
        searching.hold()
        put(store, examples.square, 3, id="early")
        assert result_of(store, "early").result(PAYLOADS) == 9
        node.worker_loop._search_s = 300.0  # no other search is due
        searching.add(Fault(fault, op="commit", key="work/partitions/any/items/*"))
        put(store, examples.square, 4, id="late")
        eventually(lambda: searching.faults)
        eventually(lambda: node.worker_loop._notified.has_notification)
        searching.release()
        assert result_of(store, "late").result(PAYLOADS) == 16


@pytest.mark.threads
def test_a_node_whose_slots_are_filled_during_a_search_lets_the_next_be_told(store, connect, searching):
    with Node(searching, name="n1", search_s=1.0, slots=1) as one:
        waits(store)
        searching.hold()
        put(store, examples.waits, id="a")
        eventually(lambda: one.worker_loop.running() == ["any/s1/a"])
        eventually(lambda: store.children("work/consumers/any") == [])
        searching.release()
        eventually(lambda: one.worker_loop._searched is None)
        with Node(connect(), name="n2", search_s=300.0, slots=1):
            waits(store)
            assert len(store.children("work/consumers/any")) == 1
            assert b'"n2"' in store.list("work/consumers/any")[0].value


class HeldClaims:
    """Holds the commits that claim one item of a store, until ``release()``."""

    def __init__(self, store, item_id):
        self._gate, self._held = threading.Event(), threading.Event()
        commit = store.commit

        def held_commit(checks, ops):
            if any(op.key.endswith(f"/{item_id}") for op in ops):
                self._held.set()
                self._gate.wait(PATIENCE_S)
            return commit(checks, ops)

        store.commit, self.release = held_commit, self._gate.set

    def wait(self):
        assert self._held.wait(PATIENCE_S)


@pytest.mark.threads
def test_a_node_whose_slots_are_filled_by_a_claim_that_outlasts_the_search_takes_the_next_item(store, searching):
    with Node(searching, search_s=1.0, slots=1) as node:
        waits(store)
        searching.hold()
        node.worker_loop._search_s = 300.0  # no other search is due
        claim = HeldClaims(searching, "a")
        put(store, examples.waits, id="a")
        claim.wait()
        searching.release()
        time.sleep(0.5)
        claim.release()
        eventually(lambda: node.slots.free_slots == 0)
        time.sleep(0.2)
        assert node.worker_loop.stop_task("any/s1/a")
        result_of(store, "a")
        put(store, examples.square, 3, id="b")
        assert result_of(store, "b", 20.0).result(PAYLOADS) == 9


class Reserving(System):
    """Reserves something for each item that it claims, and takes all reservations back when a search begins."""

    def __init__(self, **options):
        super().__init__(**options)
        self.reserved, self.missing = set(), []

    def select_partitions(self):
        self.reserved.clear()
        return super().select_partitions()

    def build_claim_ops(self, item):
        self.reserved.add(item.id)
        return super().build_claim_ops(item)

    def prepare_run(self, claim):
        if claim.item.id not in self.reserved:
            self.missing.append(claim.item.id)
        return super().prepare_run(claim)


@pytest.mark.threads
def test_no_search_begins_before_the_claims_made_during_the_last_one_have_ended(store, searching):
    system = Reserving()
    with Node(searching, system, search_s=1.0) as node:
        waits(store)
        searching.hold()
        claim = HeldClaims(searching, "a")
        put(store, examples.square, 3, id="a")
        claim.wait()
        system.all_lanes = ["quiet"]  # so that no other search claims the item
        searching.release()
        node.worker_loop.request_search()
        time.sleep(0.5)
        claim.release()
        assert result_of(store, "a").result(PAYLOADS) == 9
        assert system.missing == []


@pytest.mark.threads
def test_a_claim_during_a_search_begins_no_search(store, searching):
    system = Reserving(lanes=["any", "quiet"])
    system.list_watched_partitions = lambda: ["any"]
    with Node(searching, system, search_s=1.0):
        waits(store)
        searching.hold()
        claim = HeldClaims(searching, "found")
        put(store, examples.square, 2, id="found", lane="quiet")
        searching.release()
        claim.wait()
        put(store, examples.square, 3, id="told")
        assert result_of(store, "told").result(PAYLOADS) == 9
        claim.release()
        assert result_of(store, "found").result(PAYLOADS) == 4
        assert system.missing == []


# Staying in the line


def test_a_node_whose_calls_end_at_once_stays_first_in_the_line(store, connect):
    """One item after the other costs it no place, so nothing but what claims and ends them."""
    with Node(connect(), search_s=300.0) as node:
        waits(store)
        place = list(store.children("work/consumers/any"))
        for n in range(5):
            put(store, examples.square, n, id=f"i{n}")
            assert result_of(store, f"i{n}").result(PAYLOADS) == n * n
            eventually(lambda: node.worker_loop.running() == [])
        assert list(store.children("work/consumers/any")) == place


def test_what_comes_while_a_node_runs_something_is_left_to_the_next(store, connect):
    """A call that lasts costs it its place: of two that last each node has one."""
    with Node(connect(), name="n1", search_s=300.0) as one, Node(connect(), name="n2", search_s=300.0) as two:
        eventually(lambda: len(store.children("work/consumers/any")) == 2)
        put(store, examples.waits, id="first")
        eventually(lambda: one.worker_loop.running() or two.worker_loop.running())
        first, other = (one, two) if one.worker_loop.running() else (two, one)
        time.sleep(0.5)
        put(store, examples.waits, id="second")
        eventually(lambda: other.worker_loop.running() == ["any/s1/second"])
        assert first.worker_loop.running() == ["any/s1/first"]


def test_a_node_that_is_told_while_it_runs_something_lets_the_next_be_told(store, connect, monkeypatch):
    """Two that come one right after the other: the second is its own, the third is the next one's."""
    monkeypatch.setattr("latchwork.tasks.running.item_notifications.STAY_S", 300.0)
    with Node(connect(), name="n1", search_s=300.0, slots=4) as one:
        waits(store)
        put(store, examples.waits, id="a")
        eventually(one.worker_loop.running)
        with Node(connect(), name="n2", search_s=300.0, slots=4) as two:
            eventually(lambda: len(store.children("work/consumers/any")) == 2)
            time.sleep(0.5)  # it looks once more after it has joined
            put(store, examples.waits, id="b")
            eventually(lambda: len(one.worker_loop.running()) == 2)
            eventually(lambda: b'"n2"' in min(store.list("work/consumers/any"), key=lambda each: each.created).value)
            put(store, examples.waits, id="c")
            eventually(lambda: two.worker_loop.running() == ["any/s1/c"])


def test_an_item_that_a_dead_first_was_told_of_is_taken_by_the_next_long_before_its_session_ends(store, connect):
    """The first in the line never comes for what it is told, as one that was killed a moment ago."""
    dead, ahead = WorkQueue(connect(), "work", label="dead"), []
    with closing(dead), ThreadPoolExecutor(1) as pool:
        told = pool.submit(dead.wait_items, "any", keep_position=True, on_ahead=ahead.append)
        eventually(lambda: ahead == [0])
        with Node(connect(), search_s=300.0):
            eventually(lambda: len(store.children("work/consumers/any")) == 2)
            began = time.monotonic()
            put(store, examples.square, 3, id="i")
            assert result_of(store, "i").result(PAYLOADS) == 9
            assert time.monotonic() - began < 30.0
            assert [each.id for each in told.result(10.0)] == ["i"]


def test_a_node_behind_others_that_finds_nothing_writes_nothing(connect):
    """It only looks."""
    with Node(connect(), name="n1"), FaultyStore(connect()) as faulty:
        waits(faulty)
        with Node(faulty, name="n2"):
            eventually(lambda: len(faulty.children("work/consumers/any")) == 2)
            time.sleep(0.5)
            seen, calls = looks(faulty), len(faulty.calls)
            eventually(lambda: looks(faulty) >= seen + 2)
            assert {call.op for call in faulty.calls[calls:]} <= {"list", "get", "get_many", "children", "renew"}
