"""What a node takes ahead of its slots, and which items it takes alone. Pure."""

from __future__ import annotations

from latchwork.clock import SYSTEM_CLOCK
from latchwork.primitives import QueueItem
from latchwork.tasks import WorkerHooks
from latchwork.tasks.running.prefetch_queue import MANY, MOST_AHEAD, MOST_VAIN, ArrivalRate, compute_prefetch_limit
from latchwork.tasks.running.worker_hooks import SUSPECT, ClaimFilter


def item(name, attempts, why=""):
    return QueueItem(name, attempts, why, partition="any", sort_key="s")


class Everything(WorkerHooks):
    def select_partitions(self):
        return ["any"]

    def prepare_run(self, claim):
        raise NotImplementedError

    def handle_outcome(self, claim, outcome):
        raise NotImplementedError


def choosing():
    return ClaimFilter(Everything(), SYSTEM_CLOCK, "n1")


def test_a_node_of_long_calls_claims_nothing_ahead():
    assert compute_prefetch_limit(8, 1.0) == 0


def test_a_node_of_short_calls_claims_for_some_milliseconds_and_not_without_end():
    assert compute_prefetch_limit(8, 0.01) == 16
    assert compute_prefetch_limit(8, 0.0) == MOST_AHEAD


def test_a_node_takes_one_item_at_a_time_that_came_back_from_nodes_that_died():
    chosen = choosing()
    first, second = item("a", SUSPECT), item("b", SUSPECT)
    chosen.begin_search()
    assert chosen.should_claim(first)
    chosen.build_claim_ops(first)
    assert not chosen.should_claim(second)
    chosen.on_claimed(item("a", SUSPECT + 1))
    chosen.begin_search()
    assert not chosen.should_claim(second)
    assert chosen.should_claim(item("fresh", 0))
    assert chosen.on_claim_ended(item("a", SUSPECT + 1).path)
    assert chosen.should_claim(second)


def test_an_item_that_was_given_back_with_a_reason_is_taken_with_others():
    chosen = choosing()
    chosen.on_claimed(item("a", SUSPECT + 1))
    assert chosen.should_claim(item("b", SUSPECT, why="try 1 failed"))


def test_a_suspect_that_another_node_was_faster_to_take_keeps_us_from_no_other():
    chosen = choosing()
    chosen.begin_search()
    chosen.build_claim_ops(item("a", SUSPECT))
    chosen.begin_search()
    assert chosen.should_claim(item("b", SUSPECT))


def test_more_is_expected_of_many_at_a_time_until_looks_were_in_vain():
    arrivals = ArrivalRate()
    assert not arrivals.expects_more
    for _ in range(5):
        arrivals.record(int(4 * MANY))
    assert arrivals.expects_more
    for _ in range(MOST_VAIN):
        arrivals.record(0)
    assert arrivals.expects_more
    arrivals.record(0)
    assert not arrivals.expects_more
