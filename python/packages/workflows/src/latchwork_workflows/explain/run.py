"""Explains why a run is in its state: its cause, or the tasks that block the rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from latchwork.spi import counted
from latchwork_workflows.state import FAILED, RunState, TaskState

#: Maximum number of tasks that are named. The others are counted.
_MAX = 3
_STUCK = frozenset({TaskState.RETRY_WAIT, TaskState.DELAYED, TaskState.READY, TaskState.SUBMITTED})


class RunCause(NamedTuple):
    """One reason.

    Attributes:
        task: Name of the task. Empty: the run itself.
        text: A sentence.
    """

    task: str
    text: str


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Known data about a run.

    Attributes:
        ahead: IDs of the active runs of its workflow, while it waits for the concurrency limit.
        owner: Master of the shard. Empty: none yet.
        backfill: ID of the backfill that it is a date of. None: none.
    """

    ahead: Sequence[int] = ()
    owner: str = ""
    backfill: int | None = None


def explain_run(
    state: RunState,
    tasks: Mapping[str, TaskState],
    on_master: frozenset[str],
    reasons: Mapping[str, str],
    facts: RunFacts,
) -> list[RunCause]:
    """Return the reasons why a run does not continue or has failed.

    The list is empty after a success and while a worker runs one of the tasks.

    Args:
        state: State of the run.
        tasks: States of its tasks, in the order of the definition.
        on_master: Names of the tasks that the master runs itself. They wait, although their state is RUNNING.
        reasons: Reasons by task name. Tasks without a reason are left out.
        facts: Known data about the run.
    """
    if state is RunState.SUBMITTED:
        return [RunCause("", _explain_not_started(facts))]
    if state is RunState.SERIAL_WAIT:
        return [RunCause("", _explain_concurrency_wait(facts))]
    running = [name for name, each in tasks.items() if each is TaskState.RUNNING and name not in on_master]
    if state is RunState.FAILURE:
        return _task_causes([name for name, each in tasks.items() if each in FAILED], reasons)
    if state is RunState.PAUSED:
        return [RunCause("", "It is paused: resume or stop it.")]
    if state in {RunState.READY_PAUSE, RunState.READY_STOP}:
        what = "pauses" if state is RunState.READY_PAUSE else "stops"
        left = f" when {_join_names(running)} {'has' if len(running) == 1 else 'have'} ended" if running else ""
        return [RunCause("", f"It {what}{left}; no more tasks start.")]
    if state is not RunState.RUNNING or running:
        return []
    waits = [
        name for name, each in tasks.items() if each in _STUCK or (each is TaskState.RUNNING and name in on_master)
    ]
    return _task_causes(waits, reasons)


def _explain_not_started(around: RunFacts) -> str:
    if around.backfill is not None:
        return f"It belongs to backfill {around.backfill}, whose earlier dates run first."
    return "No master owns its shard yet: start one." if not around.owner else "Its master has not started it yet."


def _explain_concurrency_wait(around: RunFacts) -> str:
    if not around.ahead:
        return "It waits until the pool of its project has room for its tasks, or its master has not checked it yet."
    runs = ", ".join(map(str, around.ahead[:_MAX]))
    more = f" and {len(around.ahead) - _MAX} more" if len(around.ahead) > _MAX else ""
    named = f"run {runs} of its workflow is" if len(around.ahead) == 1 else f"runs {runs}{more} of its workflow are"
    return f"It waits for the concurrency limit: {named} active."


def _task_causes(names: Sequence[str], reasons: Mapping[str, str]) -> list[RunCause]:
    found = [RunCause(name, reasons[name]) for name in names if name in reasons][:_MAX]
    if found and len(names) > len(found):
        found.append(
            RunCause("", f"The same or other reasons apply to {counted(len(names) - len(found), 'more task')}.")
        )
    return found


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(each) for each in names[:_MAX])
    return f"{shown} and {len(names) - _MAX} more" if len(names) > _MAX else shown
