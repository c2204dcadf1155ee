"""Plans while they are built: everything that is wrong is said before anything is stored."""

from __future__ import annotations

import pytest

from latchwork.errors import InvalidKey
from latchwork.plans import DuplicateTask, ForeignRef, PlanBuilder, Ref, WrongState
from latchwork.plans.builder import PlanDraft, PlanOptions
from latchwork.plans.keys import Keys
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskRecord, TaskState
from latchwork.plans.transitions import MAX_LINKED, Transitions
from latchwork.tasks import Functions, NotSerializable, Payloads, Retry, StoredRetry, UnknownFunction
from latchwork.types import Create, Entry

FUNCTIONS = Functions()


@FUNCTIONS.task(name="load", retry=Retry(attempts=3), timeout_s=5.0)
def load(day: str) -> list[int]:
    return [len(day)]


@FUNCTIONS.task(name="total")
def total(parts: list[list[int]], *, more: object = None) -> int:
    return sum(map(sum, parts))


class Started(Exception):
    pass


@pytest.fixture
def started():
    return []


@pytest.fixture
def plan(started):
    return builder("p", started)


def builder(plan_id, started, **options):
    draft = PlanDraft(plan_id, PlanOptions(**options))
    return PlanBuilder(draft, FUNCTIONS, Payloads(), lambda draft: started.append(draft) or f"handle {draft.id}")


def test_a_plan_has_its_calls_in_order_with_what_depends_on_what(plan, started):
    with plan:
        days = plan.map(load, ["mon", "tue"])
        answer = plan.add(total, days, more={"x": [days[0]]}, name="total", after=[plan.add("load", "wed", name="wed")])
    records = started[0].build_records()
    assert list(records) == ["t00000", "t00001", "wed", "total"]
    assert records["total"].deps == ("t00000", "t00001", "wed")
    assert records["total"].args_from == ("t00000", "t00001")
    assert records["t00000"].successors == records["wed"].successors == ("total",)
    assert records["wed"].retry.attempts == 3
    assert records["wed"].timeout_s == 5.0
    assert [each.number for each in records.values()] == [0, 1, 2, 3]
    assert answer == Ref("total", "p")


def test_all_refs_that_are_not_of_the_plan_are_named_at_once(plan):
    other = builder("q", [])
    mine = plan.add(load, "mon")
    foreign, unknown = other.add(load, "tue", name="tue"), Ref("nowhere", "p")
    with pytest.raises(ForeignRef) as caught:
        plan.add(total, [mine, foreign], more=unknown, after=["text"])
    for part in ("'tue' belongs to plan 'q'", "no task 'nowhere'", "'text' is not a Ref"):
        assert part in str(caught.value)
    assert len(plan) == 1


@pytest.mark.parametrize(
    ("call", "error", "why"),
    [
        (lambda plan: plan.add("lode", "x"), UnknownFunction, "near it: load"),
        (lambda plan: plan.add(load), TypeError, "missing a required argument: 'day'"),
        (lambda plan: plan.add(load, object()), NotSerializable, "argument 'day' of 'load'"),
        (lambda plan: plan.add(load, "x", name="a/b"), InvalidKey, "the name of a task 'a/b'"),
        (lambda plan: plan.add(load, "x", name="@start"), InvalidKey, "contains invalid characters"),
        (lambda plan: plan.add(load, "x", name="a~b"), InvalidKey, "contains invalid characters"),
        (lambda plan: plan.add(load, "x", name=""), InvalidKey, "1 to 50"),
        (lambda plan: plan.add(load, "x", name="n" * 51), InvalidKey, "1 to 50"),
        (lambda plan: plan.add(load, "x", timeout_s=0), ValueError, "timeout_s of 'load'"),
        (lambda plan: plan.add(total, (plan.add(load, "x"),)), NotSerializable, "put it into a list"),
    ],
)
def test_a_call_that_cannot_be_stored_says_why(plan, call, error, why):
    with pytest.raises(error, match=why):
        call(plan)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"on_failure": "ignore"}, "on_failure must be"),
        ({"priority": 10}, "priority must be"),
        ({"priority": True}, "priority must be"),
        ({"keep_results_s": -1}, "keep_results_s must be"),
        ({"title": "\x1b[31m"}, "the name of a plan"),
    ],
)
def test_an_option_that_cannot_be_says_why(options, why):
    with pytest.raises(ValueError, match=why):
        PlanOptions(**options)


def test_two_tasks_of_one_name_are_refused_and_made_names_keep_clear_of_given_ones(plan):
    plan.add(load, "x", name="t00001")
    with pytest.raises(DuplicateTask, match="'t00001'"):
        plan.add(load, "y", name="t00001")
    assert plan.add(load, "y").name == "t00002"
    assert plan.add(load, "z").name == "t00003"


def test_map_adds_all_or_none(plan):
    with pytest.raises(NotSerializable):
        plan.map(load, ["mon", object()])
    assert len(plan) == 0


def test_a_block_that_raises_starts_nothing(plan, started):
    with pytest.raises(Started), plan:
        plan.add(load, "x")
        raise Started
    assert started == []
    with pytest.raises(WrongState, match="was not started"):
        _ = plan.handle


def test_starting_twice_is_one_start_and_nothing_is_added_after_it(plan, started):
    plan.add(load, "x")
    assert plan.start() == plan.start() == plan.handle == "handle p"
    assert len(started) == 1
    with pytest.raises(WrongState, match="with its handle"):
        plan.add(load, "y")


# What is written


def put_item(sort_key, item, value):
    return [Create(f"items/{sort_key}/{item}", value)]


def task(name, state=TaskState.WAITING, **options):
    record = TaskRecord(state, 0, "load", **options)
    return Task(name, record, Entry(f"default/tasks/p/{name}", record.to_bytes(), name, 1, 1, None))


def test_records_come_back_as_they_were_stored():
    record = TaskRecord(
        TaskState.FAILED,
        7,
        "f",
        ("a", "b"),
        ("b",),
        ("c",),
        StoredRetry(4, 0.1, 1.5, 10.0, 0.5, ("x:Y",)),
        2.5,
        3,
        "why",
        b"\nx",
    )
    assert TaskRecord.from_bytes(record.to_bytes()) == record
    plan = PlanRecord(PlanState.READY, 3, "t", "continue", 9, 5, 6, 7, (("a", "b"),), PlanState.FAILED, 1.5)
    assert PlanRecord.from_bytes(plan.to_bytes()) == plan


def test_the_largest_end_is_within_what_a_transaction_may_have():
    transitions, seen = Transitions(Keys("default"), put_item), (task("p").entry, PlanRecord(PlanState.READY))
    successors = tuple(f"s{number}" for number in range(MAX_LINKED))
    ended = task("t", TaskState.READY, successors=successors)
    part = transitions.build_delegating_completion(
        "p", seen, ended, b"", ready=[task(s) for s in successors[:20]], ended_deps=successors
    )
    assert part is not None
    assert len(part.ops) + 3 <= 100
    assert len(part.checks) + 4 <= 100
    assert (
        transitions.build_delegating_completion(
            "p", seen, ended, b"", ready=[task(s) for s in successors], ended_deps=map(str, range(90))
        )
        is None
    )


def test_a_plan_of_wide_tasks_is_built_by_two_keys_for_each_however_many_edges():
    transitions = Transitions(Keys("default"), put_item)
    deps = tuple(f"d{number}" for number in range(1000))
    tasks = [(f"t{number}", TaskRecord(TaskState.WAITING, number, "f", deps)) for number in range(100)]
    parts = transitions.build_task_writes("p", tasks)
    assert sum(len(part.ops) for part in parts) == 200
    assert all(len(part.ops) <= 100 for part in parts)
