"""A worker of plans in a process of its own, which others kill, freeze and cut off. Its tasks report what they get."""

from __future__ import annotations

import logging
import os
import signal
import threading

import latchwork
from latchwork.plans import PlanWorker, child_plan
from latchwork.tasks import Functions, Retry, TaskContext

SESSION_TTL_S = 2.0
SLOTS = 3
MODULUS = 1_000_003
BIG = 1_200_000
FUNCTIONS = Functions()
_AGAIN = Retry(attempts=50, initial_s=0.02, max_s=0.2)
_report = print


def _run(context: TaskContext, parts: list[int]) -> None:
    _report({"task": context.task_id, "parts": parts, "attempt": context.attempt, "pid": os.getpid()})
    context.wait_for_stop(0.01)


@FUNCTIONS.task(name="step")
def step(number: int, parts: list[int], context: TaskContext) -> int:
    """The sum of what came before, and its own number."""
    _run(context, parts)
    return (number + sum(parts)) % MODULUS


@FUNCTIONS.task(name="flaky", retry=_AGAIN)
def flaky(number: int, parts: list[int], context: TaskContext) -> int:
    """The same; its first try fails."""
    _run(context, parts)
    if context.attempt == 1:
        raise OSError("the first time")
    return (number + sum(parts)) % MODULUS


@FUNCTIONS.task(name="big")
def big(number: int, parts: list[int], context: TaskContext) -> bytes:
    """So much that it is kept elsewhere."""
    _run(context, parts)
    return bytes([(number + sum(parts)) % 251]) * BIG


@FUNCTIONS.task(name="size")
def size(number: int, value: bytes, context: TaskContext) -> int:
    """What is left of it."""
    _run(context, [len(value), value[0]])
    return number


@FUNCTIONS.task(name="nested")
def nested(number: int, parts: list[int], context: TaskContext) -> object:
    """The same by a plan of its own."""
    _run(context, parts)
    plan = child_plan(functions=FUNCTIONS)
    pieces = [plan.add("step", each, []) for each in parts]
    return plan.with_result(plan.add("step", number, pieces, name="sum"))


def serve(wire, url, node_id):
    """Work until told to end, or killed."""
    global _report  # noqa: PLW0603 - one worker in a process
    _report = wire.report
    logging.basicConfig(level=logging.INFO)
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    with (
        latchwork.connect(url, session_ttl_s=SESSION_TTL_S) as store,
        PlanWorker(store, slots=SLOTS, functions=FUNCTIONS, session_ttl_s=SESSION_TTL_S, label=node_id),
    ):
        wire.report({"ready": node_id})
        while not told.wait(0.2):
            pass
