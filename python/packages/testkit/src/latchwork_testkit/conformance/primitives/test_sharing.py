"""Queues, counters, groups and barriers: nothing is lost, and nothing is handed out twice."""

from __future__ import annotations

import contextlib

from latchwork.errors import WaitTimeout
from latchwork.primitives import Barrier, Counter, Group, Once, Queue

WAIT_S = 30.0


def take_all(queue):
    """Take and acknowledge all items of a queue, and return their numbers."""
    taken = []
    with contextlib.suppress(WaitTimeout):
        while True:
            claim = queue.take(1.0)
            taken.append(int(claim.value))
            claim.ack()
    return taken


def test_items_of_a_queue_are_taken_in_the_order_in_which_they_were_put(client):
    producer, consumer = Queue(client(), "work"), Queue(client(), "work")
    producer.put_many([b"%d" % number for number in range(5)])
    assert take_all(consumer) == [0, 1, 2, 3, 4]
    producer.close()
    consumer.close()


def test_each_item_of_a_queue_is_taken_by_one_of_many_consumers(client, run_concurrently):
    producer = Queue(client(), "work")
    producer.put_many([b"%d" % number for number in range(20)])
    consumers = [Queue(client(), "work") for _ in range(3)]
    results = run_concurrently(*(lambda queue=queue: take_all(queue) for queue in consumers))
    assert sorted(number for taken in results for number in taken) == list(range(20))
    for queue in (producer, *consumers):
        queue.close()


def test_an_item_whose_taker_lost_its_session_is_taken_again(client):
    producer = Queue(client(), "work")
    producer.put(b"job")
    lost = client()
    Queue(lost, "work").take(WAIT_S)
    lost.session.close()
    again = Queue(client(), "work")
    claim = again.take(WAIT_S)
    assert claim.value == b"job"
    claim.ack()
    assert producer.size() == 0
    producer.close()
    again.close()


def test_no_addition_to_a_counter_is_lost(client, run_concurrently):
    counters = [Counter(client(), "hits") for _ in range(4)]
    run_concurrently(*(lambda counter=counter: [counter.add() for _ in range(10)] for counter in counters))
    assert counters[0].value() == 40


def test_once_runs_a_function_once_for_all_callers(client, run_concurrently):
    runs = []

    def work(_work):
        runs.append(1)
        return b"done"

    asked = [Once(client(), "migrate") for _ in range(4)]
    assert run_concurrently(*(lambda once=once: once.run(work) for once in asked)) == [b"done"] * 4
    assert len(runs) == 1
    for once in asked:
        once.close()


def test_no_party_passes_a_barrier_before_all_have_arrived(client, run_concurrently):
    names = ("a", "b", "c")
    barriers = [Barrier(client(), "phase", parties=names, member_id=name) for name in names]
    assert run_concurrently(*(lambda barrier=barrier: barrier.wait(WAIT_S) for barrier in barriers)) == [0, 0, 0]
    for barrier in barriers:
        barrier.close()


def test_all_members_of_a_group_see_the_same_views(client):
    members = [Group(client(), "web", member_id=name) for name in ("a", "b", "c")]
    for member in members:
        member.start()
    views = [member.wait_until(lambda view: len(view.members) == 3, WAIT_S) for member in members]
    assert len({tuple(each.id for each in view.members) for view in views}) == 1
    members[2].close()
    views = [member.wait_until(lambda view: len(view.members) == 2, WAIT_S) for member in members[:2]]
    assert len({view.number for view in views}) == 1
    for member in members[:2]:
        member.close()
