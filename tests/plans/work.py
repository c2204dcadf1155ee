"""What plans of tests call, and how tests wait."""

from __future__ import annotations

import threading
import time

from latchwork.plans import child_plan
from latchwork.plans.records import PlanRecord, PlanState
from latchwork.store import system_namespace
from latchwork.tasks import Functions, Retry, TaskContext

WAIT_S = 30.0
FUNCTIONS = Functions()
LOCK = threading.Lock()
CALLS = []
GATE = threading.Event()


def called(*what):
    with LOCK:
        CALLS.append(what)


@FUNCTIONS.task(name="echo")
def echo(*values: object) -> list[object]:
    called("echo", *values)
    return list(values)


@FUNCTIONS.task(name="add")
def add(*values: int) -> int:
    called("add", *values)
    return sum(values)


@FUNCTIONS.task(name="number")
def number_of(number: int, parts: list[int]) -> int:
    called("number", number, parts)
    return number


@FUNCTIONS.task(name="total")
def total(values: list[int]) -> int:
    return sum(values)


@FUNCTIONS.task(name="fails")
def fails(*_: object) -> int:
    called("fails")
    raise ValueError("no such day")


@FUNCTIONS.task(name="fails-once", retry=Retry(attempts=3, initial_s=0.01))
def fails_once(key: str) -> str:
    called("fails-once", key)
    if sum(each == ("fails-once", key) for each in CALLS) == 1:
        raise OSError("the first time")
    return key


@FUNCTIONS.task(name="fails-until-gate")
def fails_until_gate(value: int) -> int:
    called("gate", value)
    if not GATE.is_set():
        raise ValueError("not yet")
    return value


@FUNCTIONS.task(name="waits")
def waits(context: TaskContext) -> str:
    called("waits")
    context.wait_for_stop(WAIT_S)
    context.log.info("stopped")
    return "stopped" if context.should_stop else "late"


@FUNCTIONS.task(name="waits-for-gate")
def waits_for_gate() -> str:
    called("waits-for-gate")
    return "open" if GATE.wait(WAIT_S) else "shut"


@FUNCTIONS.task(name="deaf")
def deaf() -> None:
    called("deaf")
    GATE.wait(WAIT_S)


@FUNCTIONS.task(name="inner")
def inner(count: int) -> object:
    """A plan instead of a value: that of the sum of so many numbers."""
    called("inner", count)
    plan = child_plan("inner", functions=FUNCTIONS)
    return plan.with_result(plan.add("add", *plan.map("same", range(count)), name="sum"))


@FUNCTIONS.task(name="same")
def same(value: object) -> object:
    called("same", value)
    return value


@FUNCTIONS.task(name="moment")
def moment(value: object) -> object:
    time.sleep(0.02)
    return value


@FUNCTIONS.task(name="inner-gate")
def inner_gate(value: int) -> object:
    called("inner-gate", value)
    plan = child_plan("gate", functions=FUNCTIONS)
    kept = plan.add("same", value, name="kept")
    return plan.with_result(plan.add("fails-until-gate", kept, name="gate"))


@FUNCTIONS.task(name="inner-waits")
def inner_waits() -> object:
    plan = child_plan("waits", functions=FUNCTIONS)
    return plan.with_result(plan.add("waits", name="waits"))


@FUNCTIONS.task(name="asks")
def asks(context: TaskContext) -> object:
    return context.context


@FUNCTIONS.task(name="large")
def large(size: int) -> bytes:
    return b"x" * size


@FUNCTIONS.task(name="size")
def size_of(value: bytes) -> int:
    return len(value)


def wait_until(true):
    until = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.01)


KINDS = ("tasks", "todo", "results", "drafts", "adds", "data", "plans", "running")


def what_is_left(store, name="default"):
    """All keys but the empty shelves of the backlog, which its next taker forgets, and tickets of who waits."""
    store = system_namespace(store, "plans")
    keys = [entry.key for kind in KINDS for entry in store.list(f"{name}/{kind}", recursive=True)]
    lanes = [entry.key for entry in store.list(f"{name}/backlog/partitions", recursive=True)]
    return keys + [key for key in lanes if "/sort_keys/" not in key]


def nothing_left(store, *, but=(), name="default"):
    wait_until(lambda: not [key for key in what_is_left(store, name) if not any(part in key for part in but)])


def plans_record():
    return PlanRecord(PlanState.DRAFT)


def run_of(plans):
    ((_, record),) = plans.list()
    return record
