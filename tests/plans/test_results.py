"""What a worker remembers of results: which it keeps, whose they are, and that each is read once."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

import latchwork
from latchwork.plans import Plans, PlanState, PlanWorker
from latchwork.plans.hooks import ResultCache
from latchwork.plans.records import PlanRecord
from latchwork.testing.faults import FaultyStore
from plans.work import FUNCTIONS, WAIT_S

PLAN = PlanRecord(PlanState.READY, started_ms=7, nonce="one")


def test_what_was_read_is_known_by_its_plan_and_its_task():
    results = ResultCache()
    results.add("p", PLAN, {"a": b"1", "b": b"2"})
    assert results.get("p", PLAN, ["a", "b", "c"]) == {"a": b"1", "b": b"2"}
    assert results.get("q", PLAN, ["a"]) == {}


def test_a_plan_that_was_built_again_under_an_id_has_results_of_its_own():
    results = ResultCache()
    results.add("p", PLAN, {"a": b"1"})
    assert results.get("p", replace(PLAN, nonce="two"), ["a"]) == {}
    assert results.get("p", replace(PLAN, started_ms=8), ["a"]) == {}
    assert results.get("p", replace(PLAN, generation=3), ["a"]) == {"a": b"1"}


def test_only_as_many_as_there_is_room_for_are_kept_the_last_used_ones():
    results = ResultCache(max_bytes=3 * 300)
    for name in "abc":
        results.add("p", PLAN, {name: b"x" * 100})
    assert results.get("p", PLAN, ["a"])
    results.add("p", PLAN, {"d": b"x" * 100})
    assert sorted(results.get("p", PLAN, "abcd")) == ["a", "c", "d"]


def test_a_large_result_is_not_kept():
    results = ResultCache()
    results.add("p", PLAN, {"a": b"x" * 5_000})
    assert results.get("p", PLAN, ["a"]) == {}


class Reads:
    def __init__(self):
        self.count = Counter()

    def next_fault(self, op, keys):
        if op == "get_many":
            self.count.update(key for key in keys if "/results/" in key)


def test_a_result_that_many_tasks_need_is_read_once_by_a_worker(backend_url, store):
    reads = Reads()
    with Plans(store, functions=FUNCTIONS).new() as plan:
        first = plan.add("same", 1)
        for _ in range(4):
            again = [plan.add("add", first, number) for number in range(10)]
            first = plan.add("total", [first, *again])
    with (
        FaultyStore(latchwork.connect(backend_url), reads) as theirs,
        PlanWorker(theirs, slots=1, functions=FUNCTIONS),
    ):
        assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert reads.count
    assert max(reads.count.values()) <= 2  # two that are taken at once may both ask
