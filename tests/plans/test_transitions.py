"""Each transition of a plan or a task is refused when a key that it relies on has changed since it was read."""

from __future__ import annotations

import uuid

import pytest

import latchwork
from latchwork import Conflict
from latchwork.plans.keys import Keys
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskRecord, TaskState
from latchwork.plans.transitions import Transitions
from latchwork.types import Create

KEYS = Keys("default")
PLAN, ADDS, DRAFT = KEYS.plan_key("p"), KEYS.additions_key("p"), KEYS.draft_key("p")
A, B = KEYS.task_key("p", "a"), KEYS.task_key("p", "b")
TODO_A, TODO_B, TODO_C = (KEYS.unfinished_key("p", name) for name in "abc")


class Stored:
    """A plan of two tasks in a store: ``a``, which runs, and ``b`` after it."""

    def __init__(self, store):
        self.store = store
        self.transitions = Transitions(KEYS, lambda key, name, value: [Create(f"items/{key}/{name}", value)])
        store.put(PLAN, PlanRecord(PlanState.READY, tasks=2).to_bytes())
        store.put(A, TaskRecord(TaskState.READY, 0, "fn", successors=("b",)).to_bytes())
        store.put(B, TaskRecord(TaskState.WAITING, 1, "fn", deps=("a",)).to_bytes())
        for key in (TODO_A, TODO_B, TODO_C, ADDS, DRAFT):
            store.put(key, b"")

    def commit(self, part):
        self.store.commit(part.checks, part.ops)

    @property
    def plan(self):
        entry = self.store.get(PLAN)
        return entry, PlanRecord.from_bytes(entry.value)

    def task(self, key):
        return Task.from_entry(self.store.get(key))


def passed_on(stored):
    """The end of ``a``, which makes ``b`` ready, while ``c`` has not ended and the end of ``gone`` is on its way."""
    ready = [stored.task(B)]
    return stored.transitions.build_delegating_completion(
        "p", stored.plan, stored.task(A), b"1", ready=ready, witnesses=["c"], ended_deps=["gone"]
    )


def added(stored):
    record = TaskRecord(TaskState.WAITING, 2, "fn", deps=("a", "b"))
    deps = [stored.task(A), stored.task(B)]
    return stored.transitions.build_addition("p", *stored.plan, name="d", task=record, deps=deps, addition_count=1)


#: What makes each transition, the keys that have to be as they were read, and those that only have to exist.
TRANSITIONS = {
    "built": (lambda s: s.transitions.build_task_writes("p", [("d", s.task(A).record)])[0], [], [DRAFT]),
    "started": (lambda s: s.transitions.build_start("p", *s.plan, 0), [PLAN], [DRAFT]),
    "made ready": (lambda s: s.transitions.build_ready("p", s.plan, s.task(B)), [PLAN, B]),
    "passed on": (passed_on, [PLAN, A, B, KEYS.unfinished_key("p", "gone")], [TODO_C]),
    "done": (lambda s: s.transitions.build_completion("p", s.task(A), b"1"), [A]),
    "completed": (lambda s: s.transitions.build_plan_completion(*s.plan, s.store.get(ADDS), ADDS, 0), [PLAN, ADDS]),
    "completed, nothing added": (
        lambda s: s.transitions.build_plan_completion(*s.plan, None, f"{ADDS}-", 0),
        [PLAN, f"{ADDS}-"],
    ),
    "tried": (lambda s: s.transitions.build_failed_attempt(s.task(A), "why"), [A]),
    "failed": (lambda s: s.transitions.build_failure("p", *s.plan, s.task(A), reason="why", result=b""), [PLAN, A]),
    "skipped": (lambda s: s.transitions.build_skip("p", s.plan[0], s.task(B)), [PLAN, B]),
    "cancelling": (lambda s: s.transitions.build_cancel_start("p", *s.plan, PlanState.CANCELLED), [PLAN]),
    "cancelled": (lambda s: s.transitions.build_task_cancel("p", s.plan[0], s.task(B)), [PLAN, B]),
    "all cancelled": (lambda s: s.transitions.build_cancel_end(*s.plan, 0), [PLAN]),
    "recovering": (lambda s: s.transitions.build_recovery_start("p", *s.plan), [PLAN]),
    "reset": (lambda s: s.transitions.build_reset("p", s.plan[0], s.task(B)), [PLAN, B]),
    "recovered": (lambda s: s.transitions.build_recovery_end(*s.plan), [PLAN]),
    "added": (added, [PLAN, A, B]),
    "removing": (lambda s: s.transitions.build_removal_start("p", *s.plan), [PLAN]),
}


@pytest.fixture
def stored():
    with latchwork.connect(f"memory://{uuid.uuid4().hex}/plans") as store:
        yield Stored(store)


@pytest.mark.parametrize("name", TRANSITIONS)
def test_a_transition_lands_when_nothing_has_changed(stored, name):
    stored.commit(TRANSITIONS[name][0](stored))


@pytest.mark.parametrize(
    ("name", "key", "vanishes"),
    [
        pytest.param(name, key, kind == 1, id=f"{name}-{key.replace('/', '.')}")
        for name, (_, *keys) in TRANSITIONS.items()
        for kind, some in enumerate(keys)
        for key in some
    ],
)
def test_a_transition_is_refused_once_a_key_has_changed_that_it_relies_on(stored, name, key, vanishes):
    part = TRANSITIONS[name][0](stored)
    found = stored.store.get(key)
    if vanishes:
        stored.store.delete(key)
    else:
        stored.store.put(key, b"" if found is None else found.value)
    with pytest.raises(Conflict):
        stored.commit(part)
