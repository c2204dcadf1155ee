"""Ends that are decided together: on what each relies, what happens to one that is refused, and what a task costs."""

from __future__ import annotations

from collections import Counter

import pytest

import latchwork
from latchwork.errors import Conflict
from latchwork.plans import Plans, PlanState, PlanWorker, TaskState
from latchwork.plans.completion import CallTracker, Completion, CompletionBatcher
from latchwork.plans.keys import PARTITION, split_item_id
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.propagation import Propagation
from latchwork.plans.records import encode_inline_result
from latchwork.store.observe.calls import StoreObserver
from latchwork.store.steps import Signal, run
from latchwork.tasks import Done, Functions, Outcome, Payloads
from latchwork.types import Absent, Exists

WAIT_S = 60.0
FUNCTIONS = Functions()
OUTCOME = Outcome(Payloads().encode(7, "seven"))


@FUNCTIONS.task(name="echo")
def echo(*values: object) -> int:
    return len(values)


class Bench:
    """A started plan whose tasks are taken here, and ended by hand."""

    def __init__(self, store, build, **options):
        self.store, self.plan_store = store, PlanStore(store, "default")
        with Plans(store, functions=FUNCTIONS).new(id="p", **options) as plan:
            build(plan)
        self.entry, self.plan = run(self.plan_store.read_plan("p"))
        self.progress = Propagation(self.plan_store)
        self.ends = CompletionBatcher(self.plan_store, self.progress, None, Signal())
        self.claims = {}
        self.take()

    def take(self):
        """Claim what is ready."""
        run(
            self.progress.make_ready(
                "p", (self.entry, self.plan), [each.name for each in run(self.plan_store.read_all_tasks("p"))]
            )
        )
        for claim in self.plan_store.queue.try_take([PARTITION], limit=40):
            self.claims[split_item_id(claim.item.id)[1]] = claim

    def decide(self, *names, again=False):
        """How the claims of these end, decided in one round."""
        made = [self.completion(name, again=again) for name in names]
        run(self.ends._complete_once("p", made))
        return [each.settlement.result(0) for each in made]

    def completion(self, name, *, again=False):
        """The end of a task, which is to be decided for the first time or again."""
        (task,) = run(self.plan_store.read_tasks("p", [name]))
        seen = (None, None, None) if again else (self.plan, task, self.entry)
        return Completion(self.claims[name], "p", name, OUTCOME, encode_inline_result(OUTCOME.to_bytes()), *seen)

    def commit(self, name, done):
        """Whether the end of a claim lands."""
        part = self.claims[name].prepare_ack(done.ops)
        try:
            self.store.commit([*part.checks, *done.checks], part.ops)
        except Conflict:
            part.mark_not_committed()
            return False
        part.mark_committed()
        return True

    def state(self, name):
        return run(self.plan_store.read_tasks("p", [name]))[0].record.state


@pytest.fixture
def two_and_sum(store):
    def build(plan):
        plan.add(echo, [plan.add(echo, 1, name="one"), plan.add(echo, 2, name="two")], name="sum")

    return Bench(store, build)


def test_of_ends_decided_together_each_relies_on_the_next_and_the_last_makes_ready(two_and_sum):
    bench, keys = two_and_sum, two_and_sum.plan_store.keys
    one, two = bench.decide("one", "two")
    assert Exists(keys.unfinished_key("p", "two")) in one.checks
    assert Absent(keys.unfinished_key("p", "one")) in two.checks
    assert [bench.commit("one", one), bench.commit("two", two)] == [True, True]
    assert bench.state("sum") is TaskState.READY


def test_an_end_does_not_make_ready_what_waits_for_one_that_was_to_come_before_it(two_and_sum):
    bench = two_and_sum
    _, two = bench.decide("one", "two")
    assert not bench.commit("two", two)
    assert bench.state("sum") is TaskState.WAITING


def test_an_end_that_is_refused_is_written_and_looked_after_and_its_item_goes_last(two_and_sum):
    bench = two_and_sum
    one, two = bench.decide("one", "two")
    assert not bench.commit("two", two)
    (again,) = bench.decide("two", again=True)
    assert (bench.state("two"), bench.state("sum")) == (TaskState.DONE, TaskState.WAITING)
    assert not bench.commit("one", one)  # it relied on one that has ended
    both = bench.decide("one", again=True)
    assert bench.state("sum") is TaskState.READY
    assert bench.commit("two", again)
    assert bench.commit("one", both[0])


def test_ends_of_a_round_before_are_taken_to_be_on_their_way(two_and_sum):
    bench = two_and_sum
    (one,) = bench.decide("one")
    (two,) = bench.decide("two")
    assert Absent(bench.plan_store.keys.unfinished_key("p", "one")) in two.checks
    assert not bench.commit("one", one) or bench.commit("two", two)
    assert bench.state("sum") is TaskState.READY


def test_ends_that_nobody_waits_for_rely_on_a_task_outside_and_the_last_ones_end_the_plan(store):
    bench = Bench(store, lambda plan: [plan.add(echo, n, name=f"n{n}") for n in range(4)])
    first = bench.decide("n0", "n1")
    witnesses = {check for done in first for check in done.checks if isinstance(check, Exists)}
    assert witnesses == {Exists(bench.plan_store.keys.unfinished_key("p", "n3"))}
    assert [bench.commit(name, done) for name, done in zip(("n0", "n1"), first, strict=True)] == [True, True]
    last = bench.decide("n2", "n3")
    assert run(bench.plan_store.read_plan("p"))[1].state is PlanState.COMPLETED
    assert [bench.commit(name, done) for name, done in zip(("n2", "n3"), last, strict=True)] == [True, True]


def test_an_end_relies_on_the_last_of_what_a_successor_waits_for_without_reading_the_successor(store):
    def build(plan):
        plan.add(echo, [plan.add(echo, n, name=f"n{n}") for n in range(4)], name="sum")

    bench = Bench(store, build)
    reads = []
    ask = bench.plan_store.read_tasks

    async def tasks(plan_id, names):
        reads.extend(names)
        return await ask(plan_id, names)

    bench.plan_store.read_tasks = tasks
    for name in ("n0", "n1"):
        (done,) = bench.decide(name)
        assert Exists(bench.plan_store.keys.unfinished_key("p", "n3")) in done.checks
        assert bench.commit(name, done)
    assert "sum" not in reads
    (last,) = bench.decide("n3")  # which the others relied on: now the one before
    assert Exists(bench.plan_store.keys.unfinished_key("p", "n2")) in last.checks
    assert bench.commit("n3", last)
    assert "sum" not in reads
    (last,) = bench.decide("n2")
    assert bench.commit("n2", last)
    assert bench.state("sum") is TaskState.READY


def test_who_has_written_results_leaves_what_waits_for_another_to_its_end_and_reads_none_of_it(store):
    """That other end has not landed, so it finds what is written here: it is enough that the last reads the sum."""

    def build(plan):
        plan.add(echo, [plan.add(echo, n, name=f"n{n}") for n in range(3)], name="sum")

    bench = Bench(store, build)
    reads = []
    ask, complete = bench.plan_store.read_tasks, bench.progress.complete_plan

    async def tasks(plan_id, names):
        reads.extend(names)
        return await ask(plan_id, names)

    async def completes(plan_id):
        reads.append("complete")
        await complete(plan_id)

    bench.plan_store.read_tasks, bench.progress.complete_plan = tasks, completes
    for name in ("n2", "n0"):
        bench.decide(name, again=True)
        bench.ends._plans.clear()  # nothing is remembered, as of another worker
    assert "complete" not in reads
    assert bench.state("sum") is TaskState.WAITING
    assert reads.count("sum") == 2  # by the second, whose hint n2 has ended, and by the line before
    bench.decide("n1", again=True)
    assert bench.state("sum") is TaskState.READY


def test_an_end_waits_a_moment_for_those_that_are_about_to_come_and_not_for_long_calls(store):
    bench = Bench(store, lambda plan: [plan.add(echo, n, name=f"n{n}") for n in range(3)])
    typical, rounds = [0.001], []
    runs = CallTracker(lambda: typical[0])
    ends = CompletionBatcher(bench.plan_store, bench.progress, None, Signal(), expects_more=runs.expects_return_soon)
    for claim in bench.claims.values():
        runs.add(claim)

    async def decide(_plan_id, some):
        rounds.append(sorted(each.name for each in some))
        for each in some:
            each.set_settlement(Done())

    async def second():
        if len(rounds) == 1 and runs.expects_return_soon():
            runs.remove(bench.claims["n1"])
            ends.add(end("n1"))
            typical[0] = 1.0  # and n2 takes long

    def end(name):
        return Completion(bench.claims[name], "p", name, OUTCOME, b"", bench.plan)

    ends._complete_with_retries, wait = decide, ends._wait_for_more

    async def gather():
        await second()
        await wait()

    ends._wait_for_more = gather
    ends.add(end("n2")).result(WAIT_S)  # its thread is there
    runs.remove(bench.claims["n0"])
    ends.add(end("n0")).result(WAIT_S)
    ends.close()
    assert rounds == [["n2"], ["n0", "n1"]]
    assert not runs.expects_return_soon()


def test_two_last_ends_that_are_written_at_once_do_not_leave_the_plan_to_each_other(store):
    """Whoever looks second sees nothing alive, and ends the plan: both look behind their own results."""
    bench = Bench(store, lambda plan: [plan.add(echo, n, name=f"n{n}") for n in range(2)])
    write, waits = bench.ends._write_results, []

    async def written(plan_id, some):
        done = await write(plan_id, some)
        if not waits:  # the other one's whole end comes in between
            waits.append("n1")
            bench.decide("n1", again=True)
        return done

    bench.ends._write_results = written
    bench.decide("n0", again=True)
    assert run(bench.plan_store.read_plan("p"))[1].state is PlanState.COMPLETED


@pytest.mark.parametrize(("before", "behind"), [(12, 12), (1, 30), (10, 30)])
def test_ends_of_dense_layers_fit_into_their_transactions_and_no_task_runs_twice(store, caplog, before, behind):
    """The last of a layer would check an edge for each pair, and take along all that comes behind it."""
    counted = Functions()
    runs = Counter()

    @counted.task(name="counts")
    def counts(number: int, *_values: object) -> int:
        runs[number] += 1
        return number

    with Plans(store, functions=counted).new() as plan:
        layer = [plan.add(counts, number) for number in range(before)]
        for number in range(behind):
            plan.add(counts, before + number, *layer)
    with PlanWorker(store, slots=16, functions=counted):
        assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    assert set(runs.values()) == {1}
    assert "cannot be completed" not in caplog.text


def test_what_is_remembered_of_a_successor_that_was_rewritten_is_not_relied_on(two_and_sum):
    bench = two_and_sum
    (one,) = bench.decide("one")
    assert bench.commit("one", one)
    bench.ends._get_cache("p", bench.plan).add(run(bench.plan_store.read_tasks("p", ["sum"])))
    key = bench.plan_store.keys.task_key("p", "sum")
    bench.store.put(key, bench.store.get(key).value)  # as an added task does
    (two,) = bench.decide("two")
    assert not bench.commit("two", two)
    (two,) = bench.decide("two", again=True)
    assert bench.state("sum") is TaskState.READY
    assert bench.commit("two", two)


class Calls(StoreObserver):
    def __init__(self):
        self.count = Counter()

    def called(self, info):
        self.count[info.call] += 1


def fan(plan, count):
    for number in range(count):
        plan.add(echo, number)


def layers(plan, count):
    before = []
    for number in range(0, count, 20):
        before = [plan.add(echo, before[at : at + 5], number) for at in range(20)]


def chain(plan, count):
    ref = plan.add(echo, 0)
    for _ in range(count - 1):
        ref = plan.add(echo, ref)


#: By shape: how many tasks; requests for each from its start to its end, all threads and waits of the worker included;
#: bytes of keys and values for each that stay. A task alone costs some ten requests; many together share them.
COSTS = [(fan, 300, 3.0, 600), (layers, 300, 5.0, 1100), (chain, 60, 3.5, 1000)]


@pytest.mark.parametrize(("shape", "count", "requests", "stored"), COSTS, ids=["fan", "layers", "chain"])
def test_a_task_among_many_costs_few_requests_and_bytes(backend_url, store, shape, count, requests, stored):
    calls = Calls()
    with Plans(store, functions=FUNCTIONS).new() as plan:
        shape(plan, count)
    with (
        latchwork.connect(backend_url, observers=[calls]) as theirs,
        PlanWorker(theirs, slots=4, functions=FUNCTIONS),
    ):
        assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    made = sum(calls.count.values()) / count
    assert made <= requests, (made, calls.count)
    left = sum(len(entry.key) + len(entry.value) for entry in store.list("default", recursive=True)) / count
    assert left <= stored, left
