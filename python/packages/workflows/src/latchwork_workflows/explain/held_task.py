"""Explains the state of tasks that the master runs itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from latchwork.spi import counted
from latchwork_workflows.state import DONE, FAILED, InstanceState, TaskState
from latchwork_workflows.state.conditions import Other


@dataclass(frozen=True, slots=True)
class Held:
    """Known data about a task that its master runs itself.

    Attributes:
        kind: ``sub_process``, ``dependent``, ``switch``, ``conditions`` or ``map``.
        child: ID and state of its child run. None: it has none.
        wanted: Of a dependent: each run that it waits for, and whether that is fulfilled.
        elements: Of a map: the states of its elements, by name.
        until: Time at which it fails, in seconds since the epoch. None: never.
    """

    kind: str
    child: tuple[int, InstanceState] | None = None
    wanted: Sequence[tuple[Other, bool | None]] = ()
    elements: Mapping[str, TaskState] = field(default_factory=dict)
    until: float | None = None


def why_held(state: TaskState, known: Held, now: float) -> str:
    """Return the explanation. Empty if the one for other tasks applies."""
    if known.kind == "sub_process" and known.child is not None:
        return _child(state, *known.child)
    if known.kind == "dependent" and state is TaskState.RUNNING:
        return _dependent(known, now)
    if known.kind == "map" and known.elements and state not in DONE:
        return _map(state, known.elements)
    return ""


def _child(state: TaskState, number: int, child: InstanceState) -> str:
    word = child.value.replace("_", " ")
    if state is TaskState.RUNNING and child is InstanceState.SERIAL_WAIT:
        return f"It waits for its run {number}, which waits for its turn: others of its workflow, or project, go on."
    if state is TaskState.RUNNING:
        ask = "; resume it, or stop this run" if child is InstanceState.PAUSED else ""
        return f"It waits for its run {number}, which is {word}{ask}."
    if state in FAILED:
        return f"Its run {number} is {word}: recover this run, which runs what failed there again and nothing else."
    return ""


def _dependent(known: Held, now: float) -> str:
    missing = [other for other, said in known.wanted if said is None]
    failed = [other for other, said in known.wanted if said is False]
    parts = []
    if failed:
        parts.append(f"{_named(failed)} failed: recover that")
    if missing:
        parts.append(f"no run of {_named(missing)} has succeeded yet")
    if not parts:
        return "What it waits for is there; the master has not looked yet."
    left = f" It is given up in {max(0.0, known.until - now):.0f} s." if known.until is not None else ""
    return f"It waits: {'; '.join(parts)}.{left}"


def _named(others: Sequence[Other]) -> str:
    shown = ", ".join(f"{each.workflow}{_part(each.task)} ({each.window})" for each in others[:5])
    return f"{shown} and {len(others) - 5} more" if len(others) > 5 else shown


def _part(task: str) -> str:
    return "" if not task else ", all tasks" if task == "*" else f", task {task!r}"


def _map(state: TaskState, elements: Mapping[str, TaskState]) -> str:
    done = sum(each in DONE for each in elements.values())
    failed = [name for name, each in elements.items() if each in FAILED]
    told = f"{done} of {counted(len(elements), 'item')} {'is' if done == 1 else 'are'} done"
    if failed:
        told += f", {len(failed)} failed, {failed[0]!r} first"
    after = " Recover the run: only what failed runs again." if state in FAILED else ""
    return f"{told[0].upper()}{told[1:]}.{after}"
