"""Explains the state of tasks that the master runs itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from latchwork.spi import counted
from latchwork_workflows.state import DONE, FAILED, RunState, TaskState
from latchwork_workflows.state.conditions import RunSucceeded


@dataclass(frozen=True, slots=True)
class MasterTaskFacts:
    """Known data about a task that its master runs itself.

    Attributes:
        kind: ``sub_process``, ``dependent``, ``switch``, ``conditions`` or ``map``.
        child: ID and state of its child run. None: it has none.
        wanted: Of a dependent: each run that it waits for, and whether that is fulfilled.
        elements: Of a map: the states of its elements, by name.
        until: Time at which it fails, in seconds since the epoch. None: never.
    """

    kind: str
    child: tuple[int, RunState] | None = None
    wanted: Sequence[tuple[RunSucceeded, bool | None]] = ()
    elements: Mapping[str, TaskState] = field(default_factory=dict)
    until: float | None = None


def explain_master_task(state: TaskState, facts: MasterTaskFacts, now: float) -> str:
    """Explain in one sentence the state of a task that the master runs itself.

    Args:
        state: State of the task.
        facts: Known data about the task.
        now: Seconds since the epoch.
    Returns:
        The sentence. Empty if ``explain_task`` has the explanation.
    """
    if facts.kind == "sub_process" and facts.child is not None:
        return _explain_child(state, *facts.child)
    if facts.kind == "dependent" and state is TaskState.RUNNING:
        return _explain_dependent(facts, now)
    if facts.kind == "map" and facts.elements and state not in DONE:
        return _explain_map(state, facts.elements)
    return ""


def _explain_child(state: TaskState, number: int, child: RunState) -> str:
    word = child.value.replace("_", " ")
    if state is TaskState.RUNNING and child is RunState.SERIAL_WAIT:
        return (
            f"It waits for its run {number}, which waits for the concurrency limit: other runs of its workflow or "
            "project are active."
        )
    if state is TaskState.RUNNING:
        ask = "; resume it, or stop this run" if child is RunState.PAUSED else ""
        return f"It waits for its run {number}, which is {word}{ask}."
    if state in FAILED:
        return f"Its run {number} is {word}: recover this run. Only the tasks that failed there run again."
    return ""


def _explain_dependent(known: MasterTaskFacts, now: float) -> str:
    missing = [other for other, said in known.wanted if said is None]
    failed = [other for other, said in known.wanted if said is False]
    parts = []
    if failed:
        parts.append(f"{_join_conditions(failed)} failed: recover it")
    if missing:
        parts.append(f"no run of {_join_conditions(missing)} has succeeded yet")
    if not parts:
        return "Its dependencies have succeeded; its master has not noticed it yet."
    left = f" It fails in {max(0.0, known.until - now):.0f} s." if known.until is not None else ""
    return f"It waits: {'; '.join(parts)}.{left}"


def _join_conditions(others: Sequence[RunSucceeded]) -> str:
    shown = ", ".join(f"{each.workflow}{_task_text(each.task)} ({each.window})" for each in others[:5])
    return f"{shown} and {len(others) - 5} more" if len(others) > 5 else shown


def _task_text(task: str) -> str:
    return "" if not task else ", all tasks" if task == "*" else f", task {task!r}"


def _explain_map(state: TaskState, elements: Mapping[str, TaskState]) -> str:
    done = sum(each in DONE for each in elements.values())
    failed = [name for name, each in elements.items() if each in FAILED]
    text = f"{done} of {counted(len(elements), 'item')} {'is' if done == 1 else 'are'} done"
    if failed:
        text += f", {len(failed)} failed, {failed[0]!r} first"
    after = " Recover the run: only failed items run again." if state in FAILED else ""
    return f"{text[0].upper()}{text[1:]}.{after}"
