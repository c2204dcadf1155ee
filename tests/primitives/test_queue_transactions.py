"""Steps of every queue as parts of a caller's transaction, capacities, and requests for each step."""

from __future__ import annotations

import pytest

from latchwork.errors import Conflict, KeyExists, Unavailable, WaitTimeout
from latchwork.primitives import PriorityQueue, Queue, WorkQueue
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.types import Absent, Create, Exists, Put


class Numbered:
    """A ``Queue`` or a ``PriorityQueue``, used like the others."""

    def __init__(self, kind, store, **options):
        self.queue = kind(store, "work", **options)

    def put(self, value, **options):
        return self.queue.put(value, **options)

    def take(self, timeout_s=5.0):
        return self.queue.take(timeout_s)


class Partitioned:
    """A ``WorkQueue``, used like the others."""

    def __init__(self, store, **options):
        self.queue = WorkQueue(store, "work", **options)

    def put(self, value, **options):
        return self.queue.put("any", "s", value.decode(), value, **options)

    def take(self, timeout_s=5.0):
        return self.queue.take("any", timeout_s)


KINDS = {
    "Queue": lambda store, **options: Numbered(Queue, store, **options),
    "PriorityQueue": lambda store, **options: Numbered(PriorityQueue, store, **options),
    "WorkQueue": Partitioned,
}


@pytest.fixture(params=KINDS)
def make(request):
    """Make one of the queues; closed after the test."""
    made = []

    def one(store, **options):
        made.append(KINDS[request.param](store, **options))
        return made[-1]

    yield one
    for each in made:
        each.queue.close()


def test_a_page_is_marked_as_seen_and_put_or_neither(make, connect):
    """A crawler that marks a page first loses it when it dies before the put."""
    with FaultyStore(connect()) as store:
        queue = make(store)
        queue.put(b"first")
        store.add(Fault("fail", op="commit", key="seen/*"))
        with pytest.raises(Unavailable):
            queue.put(b"page", ops=[Create("seen/page", b"")], timeout_s=0)
        assert (store.get("seen/page"), queue.queue.size()) == (None, 1)
        queue.put(b"page", ops=[Create("seen/page", b"")])
        with pytest.raises((Conflict, KeyExists)):
            queue.put(b"page", ops=[Create("seen/page", b"")])
        assert (store.get("seen/page") is not None, queue.queue.size()) == (True, 2)


def test_a_put_whose_check_fails_puts_nothing(make, store):
    queue = make(store)
    with pytest.raises(Conflict):
        queue.put(b"1", checks=[Exists("leader")], ops=[Put("note", b"")])
    assert (queue.queue.size(), store.get("note")) == (0, None)
    store.put("leader", b"")
    queue.put(b"1", checks=[Exists("leader")], ops=[Put("note", b"")])
    assert (queue.queue.size(), store.get("note") is not None) == (1, True)


@pytest.mark.parametrize("fault", ["cut_before", "cut_after"])
def test_a_put_with_writes_and_a_lost_answer_is_applied_once(connect, fault):
    with FaultyStore(connect()) as store, Queue(store, "work") as queue:
        queue.put(b"first")
        store.add(Fault(fault, op="commit", key="seen/*"))
        queue.put(b"page", ops=[Create("seen/page", b"")])
        assert (store.get("seen/page") is not None, queue.size()) == (True, 2)


def test_a_release_writes_with_the_item_or_changes_nothing(make, store):
    queue = make(store)
    queue.put(b"1")
    claim = queue.take()
    with pytest.raises(Conflict):
        claim.release("later", checks=[Exists("leader")], ops=[Put("note", b"")])
    assert (claim.is_held, store.get("note")) == (True, None)
    claim.release("later", checks=[Absent("leader")], ops=[Put("note", b"")])
    assert store.get("note") is not None
    again = queue.take()
    assert (again.value, again.attempts, again.item.why) == (b"1", 2, "later")


def test_the_last_release_makes_a_dead_letter_with_the_callers_writes(make, store):
    queue = make(store, max_attempts=1)
    queue.put(b"1")
    claim = queue.take()
    with pytest.raises(Conflict):
        claim.release("bad", checks=[Exists("leader")])
    claim.release("bad", ops=[Put("note", b"")])
    assert ([letter.why for letter in queue.queue.dead_letters()], store.get("note") is not None) == (["bad"], True)


def test_claims_of_every_queue_end_together_in_one_transaction(store):
    queues = [make(store.namespace(name)) for name, make in KINDS.items()]
    claims = []
    for queue in queues:
        queue.put(b"1")
        claims.append(queue.take())
    ends = [claim.prepare_ack() for claim in claims]
    for queue, end in zip(queues, ends, strict=True):
        queue.queue._info.store.commit(end.checks, end.ops)
        end.mark_committed()
    assert [queue.queue.size() for queue in queues] == [0, 0, 0]


# Capacity


def test_a_full_queue_of_every_kind_makes_puts_wait_until_one_is_done(make, store, in_thread, eventually):
    queue = make(store, capacity=1)
    queue.put(b"1")
    with pytest.raises(WaitTimeout, match="is full, it holds 1 items"):
        queue.put(b"2", ops=[Put("note", b"")], timeout_s=0)
    assert store.get("note") is None
    waiting = in_thread(lambda: queue.put(b"2", ops=[Put("note", b"")], timeout_s=30.0))
    eventually(queue.queue.waiting_producers)
    queue.take().ack()
    waiting.outcome()
    assert (queue.queue.size(), store.get("note") is not None) == (1, True)


def test_items_of_a_bounded_work_queue_stay_in_their_partition_and_are_put_by_put_alone(store):
    with WorkQueue(store, "work", capacity=2) as queue:
        queue.put("a", "s", "1", b"")
        with pytest.raises(KeyExists):
            queue.put("a", "s", "1", b"")
        with pytest.raises(ValueError, match="your own transaction cannot enforce"):
            queue.put_ops("a", "s", {"2": b""})
        with pytest.raises(ValueError, match="your own transaction cannot enforce"):
            queue.create_claimed("a", "s", "2", b"", session=store.session)
        claim = queue.take("a")
        with pytest.raises(ValueError, match="its items stay in their partitions"):
            claim.release(partition="b")
        claim.move_to_dead_letters()
        queue.put("b", "s", "2", b"")
        queue.put("b", "s", "3", b"")
        with pytest.raises(WaitTimeout):
            queue.requeue("1", timeout_s=0)
        queue.take("b").ack()
        assert queue.requeue("1").path == "a/s/1"


# What is asked of a server


def calls_of(store, use):
    """The calls of one use, without those in the background."""
    before = len(store.calls)
    use()
    return [call.op for call in store.calls[before:] if call.op in {"get", "get_many", "list", "children", "commit"}]


def test_a_put_a_take_and_an_acknowledgement_are_one_write_each_and_a_take_two_reads(make, connect):
    with FaultyStore(connect(session_ttl_s=30.0)) as store:
        queue, claims = make(store), []
        for value in (b"1", b"2", b"3"):  # who puts alone does not read the tail any more
            queue.put(value)
            queue.take().ack()
        assert calls_of(store, lambda: queue.put(b"4")) == ["commit"]
        assert calls_of(store, lambda: claims.append(queue.take())) == ["children", "list", "commit"]
        assert calls_of(store, claims[0].ack) == ["commit"]


def test_a_waiting_taker_takes_a_new_item_without_a_look(make, connect, in_thread, eventually):
    with FaultyStore(connect(session_ttl_s=30.0)) as store:
        queue, other = make(store), make(connect())
        waiting = in_thread(lambda: queue.take(30.0))
        line = (
            other.queue.waiting_consumers
            if isinstance(other, Numbered)
            else lambda: other.queue.waiting_consumers("any")
        )
        eventually(line)
        before = len(store.calls)  # its first look is over
        other.put(b"1")
        assert waiting.outcome().value == b"1"
        looks = [call for call in store.calls[before:] if call.op in {"list", "children"}]
        assert [call.keys for call in looks if call.keys[0].startswith("work/partitions")] == []


def test_a_take_that_sees_nothing_at_its_server_asks_all_before_it_says_so(make, connect, monkeypatch):
    store = connect()
    queue = make(store)
    queue.put(b"1")
    children = store.children
    monkeypatch.setattr(
        store, "children", lambda prefix, **options: [] if options.get("stale_ok") else children(prefix, **options)
    )
    assert queue.take(0).value == b"1"


def test_a_take_of_what_its_server_shows_and_others_have_taken_takes_the_next(make, connect, monkeypatch):
    store = connect()
    queue, other = make(store), make(connect())
    for value in (b"1", b"2"):
        queue.put(value)
    listing, stale = store.list, store.list("work/partitions", recursive=True)
    other.take(0).ack()

    def old(prefix, **options):
        if options.pop("stale_ok", False):
            return [entry for entry in stale if entry.key.startswith(f"{prefix}/")]
        return listing(prefix, **options)

    monkeypatch.setattr(store, "list", old)
    assert queue.take(0).value == b"2"


def test_a_long_queue_is_divided_and_its_parts_vanish_behind_the_takers(store, monkeypatch):
    monkeypatch.setattr("latchwork.primitives.queue.queue._NUMBERS_PER_SORT_KEY", 3)
    with PriorityQueue(store, "work") as queue:
        queue.put_many([b"%d" % n for n in range(8)])
        queue.put_many([b"urgent %d" % n for n in range(4)], priority=0)
        taken = []
        while queue.size():
            with queue.take(0) as claim:
                taken.append(claim.value)
        assert taken == [*(b"urgent %d" % n for n in range(4)), *(b"%d" % n for n in range(8))]
        with pytest.raises(WaitTimeout):
            queue.take(0)
        assert len(store.children("work/partitions/all/sort_keys")) == 1
