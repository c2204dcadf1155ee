"""Decisions between runs: commands and reports between parents and children, and time windows of dependents. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from latchwork_workflows.state.events import (
    ChildPaused,
    Ended,
    Event,
    Outcome,
    Pause,
    Recover,
    Rerun,
    Resume,
    Stop,
)
from latchwork_workflows.state.records import DONE, FAILED, OVER, RunState, TaskState

#: Maximum nesting depth of runs.
MAX_DEPTH = 100
_OF_CALL: dict[tuple[str, RunState], type[Pause | Resume | Stop | Rerun]] = {
    ("open", RunState.PAUSED): Resume,
    ("open", RunState.READY_PAUSE): Resume,
    ("open", RunState.SUCCESS): Rerun,
    ("resume", RunState.PAUSED): Resume,
    ("resume", RunState.READY_PAUSE): Resume,
    ("pause", RunState.RUNNING): Pause,
    **{
        ("stop", state): Stop
        for state in (
            RunState.SUBMITTED,
            RunState.SERIAL_WAIT,
            RunState.RUNNING,
            RunState.READY_PAUSE,
            RunState.PAUSED,
        )
    },
}
_ENDS = {
    RunState.SUCCESS: Outcome.SUCCESS,
    RunState.FAILURE: Outcome.FATAL,
    RunState.STOPPED: Outcome.KILLED,
}


def choose_event_for_child(call: str, child: RunState) -> Event | None:
    """Return the event that an action of a parent's task sends to its child run, or None if the child needs no event.

    If the task has a child run from an earlier attempt, that run continues: its failed tasks are retried and the others
    are kept.

    Args:
        call: The action: ``open``, ``pause``, ``resume`` or ``stop``.
        child: State of the child run.
    """
    if call == "open" and child in {RunState.FAILURE, RunState.STOPPED}:
        return Recover()
    made = _OF_CALL.get((call, child))
    return made() if made is not None else None


def choose_event_for_parent(child: RunState, task: str, n: int, round_number: int) -> Event | None:
    """Return the event that reports the state of a child run to the parent's task, or None if there is nothing to
    report yet.

    Args:
        child: State of the child run.
        task: Name of the parent's task.
        n: Number of the task's attempt.
        round_number: Rerun of the parent to which the attempt belongs. Starts at 1.
    """
    if child is RunState.PAUSED:
        return ChildPaused(task, n, round_number)
    outcome = _ENDS.get(child)
    return Ended(task, n, outcome, round_number) if outcome is not None else None


def may_command_child(command: str, parent: TaskState) -> bool:
    """Return whether a user may send this command to a child run.

    A paused child may be resumed only while its parent waits for it.

    Args:
        command: Name of the command.
        parent: State of the parent's task.
    """
    return command not in {"resume", "recover", "rerun"} or (command == "resume" and parent is TaskState.RUNNING)


_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
#: Value of ``WorkflowReference.task`` for every task of the run.
ALL_TASKS = "*"


class Span(NamedTuple):
    """Half-open interval [start, end), in seconds since the epoch."""

    start: float
    end: float


def list_time_spans(window: str, local_time: datetime) -> list[Span]:
    """Return the time spans that a time window such as ``last_day`` stands for, newest last.

    Args:
        window: One of ``WINDOWS``.
        local_time: The schedule time that the window is relative to. Its time zone defines where days begin.
    """
    return WINDOWS[window](local_time)


def _hours(first: int, last: int) -> Callable[[datetime], list[Span]]:
    def found(local_time: datetime) -> list[Span]:
        hour = local_time.replace(minute=0, second=0, microsecond=0).timestamp()
        return [Span(hour + 3600 * each, hour + 3600 * (each + 1)) for each in range(first, last + 1)]

    return found


def _days(first: int, last: int) -> Callable[[datetime], list[Span]]:
    def found(local_time: datetime) -> list[Span]:
        return [
            Span(_start_of_day(local_time, each), _start_of_day(local_time, each + 1))
            for each in range(first, last + 1)
        ]

    return found


def _start_of_day(local_time: datetime, shift: int) -> float:
    """Return the start of the day that is ``shift`` days after the given one, in the same time zone."""
    plain = datetime(local_time.year, local_time.month, local_time.day) + timedelta(days=shift)  # noqa: DTZ001
    return plain.replace(tzinfo=local_time.tzinfo).timestamp()


def _week(shift: int) -> Callable[[datetime], list[Span]]:
    def found(local_time: datetime) -> list[Span]:
        monday = 7 * shift - local_time.weekday()
        return [Span(_start_of_day(local_time, monday), _start_of_day(local_time, monday + 7))]

    return found


def _weekday(index: int) -> Callable[[datetime], list[Span]]:
    def found(local_time: datetime) -> list[Span]:
        day = index - 7 - local_time.weekday()
        return [Span(_start_of_day(local_time, day), _start_of_day(local_time, day + 1))]

    return found


def _month(shift: int, part: str = "") -> Callable[[datetime], list[Span]]:
    def found(local_time: datetime) -> list[Span]:
        months = local_time.year * 12 + local_time.month - 1 + shift
        first = local_time.replace(year=months // 12, month=months % 12 + 1, day=1)
        after = local_time.replace(year=(months + 1) // 12, month=(months + 1) % 12 + 1, day=1)
        start, end = _start_of_day(first, 0), _start_of_day(after, 0)
        if part:
            start, end = (start, _start_of_day(first, 1)) if part == "begin" else (_start_of_day(after, -1), end)
        return [Span(start, end)]

    return found


WINDOWS: dict[str, Callable[[datetime], list[Span]]] = {
    "this_hour": _hours(0, 0),
    "last_hour": _hours(-1, -1),
    "last_2_hours": _hours(-2, -1),
    "last_3_hours": _hours(-3, -1),
    "last_24_hours": _hours(-24, -1),
    "today": _days(0, 0),
    "yesterday": _days(-1, -1),
    "last_2_days": _days(-2, -1),
    "last_3_days": _days(-3, -1),
    "last_7_days": _days(-7, -1),
    "this_week": _week(0),
    "last_week": _week(-1),
    **{f"last_{name}": _weekday(index) for index, name in enumerate(_DAYS)},
    "this_month": _month(0),
    "last_month": _month(-1),
    "last_month_begin": _month(-1, "begin"),
    "last_month_end": _month(-1, "end"),
}


def join_window_names(names: Iterable[str] = WINDOWS) -> str:
    """Join the names of time windows into text for a message."""
    return ", ".join(names)


def is_fulfilled(state: RunState, task: str, tasks: Mapping[str, TaskState]) -> bool | None:
    """Return whether a run fulfills a dependency: True if so, False if the run failed, None if it may still succeed.

    Args:
        state: State of the run.
        task: Name of the task to wait for. Empty: the run as a whole. ``ALL_TASKS``: every task.
        tasks: States of the tasks of the run, by name. Ignored for the run as a whole.
    """
    if not task:
        if state is RunState.SUCCESS:
            return True
        return False if state in {RunState.FAILURE, RunState.STOPPED} else None
    return _evaluate_tasks(state, tasks.values() if task == ALL_TASKS else [tasks[task]] if task in tasks else [])


def _evaluate_tasks(state: RunState, tasks: Iterable[TaskState]) -> bool | None:
    """Return True if all tasks have succeeded, False if one has failed, and None otherwise.

    A disabled task counts as successful. A task that waits for a retry has not failed yet.
    """
    states = set(tasks)
    if states and states <= DONE:
        return True
    is_over = state in OVER and state is not RunState.PAUSED
    return False if is_over or states & FAILED else None


def combine_span_results(found: Iterable[bool | None]) -> bool | None:
    """Combine the results of several time spans into one: False if one failed, True if all succeeded, otherwise None.

    Args:
        found: Result of each time span. None: no run yet.
    """
    said = list(found)
    if False in said:
        return False
    return None if None in said or not said else True
