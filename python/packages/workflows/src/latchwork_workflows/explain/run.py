"""Explains why a run is in its state: its cause, or the tasks that block the rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from latchwork.spi import counted
from latchwork_workflows.state import FAILED, InstanceState, TaskState

#: Maximum number of tasks that are named. The others are counted.
_MOST = 3
_STUCK = frozenset({TaskState.RETRY_WAIT, TaskState.DELAYED, TaskState.READY, TaskState.SUBMITTED})


class Cause(NamedTuple):
    """One reason.

    Attributes:
        task: Name of the task. Empty: the run itself.
        text: A sentence.
    """

    task: str
    text: str


@dataclass(frozen=True, slots=True)
class Around:
    """Known data about a run.

    Attributes:
        ahead: IDs of the active runs of its workflow, while it waits for the concurrency limit.
        owner: Master of the shard. Empty: none yet.
        backfill: ID of the backfill that it is a date of. None: none.
    """

    ahead: Sequence[int] = ()
    owner: str = ""
    backfill: int | None = None


def causes(
    state: InstanceState,
    tasks: Mapping[str, TaskState],
    held: frozenset[str],
    reasons: Mapping[str, str],
    around: Around,
) -> list[Cause]:
    """Return why a run does not continue, or why it failed. Empty while a task is running, and after a success.

    Args:
        state: State of the run.
        tasks: States of its tasks, in the order of the definition.
        held: Tasks that the master runs itself: they wait, although they count as running.
        reasons: Reasons by task. Tasks without one are left out.
        around: Known data about the run.
    """
    if state is InstanceState.SUBMITTED:
        return [Cause("", _unbegun(around))]
    if state is InstanceState.SERIAL_WAIT:
        return [Cause("", _turn(around))]
    at_work = [name for name, each in tasks.items() if each is TaskState.RUNNING and name not in held]
    if state is InstanceState.FAILURE:
        return _of([name for name, each in tasks.items() if each in FAILED], reasons)
    if state is InstanceState.PAUSED:
        return [Cause("", "It is paused: resume it, or stop it.")]
    if state in {InstanceState.READY_PAUSE, InstanceState.READY_STOP}:
        what = "pauses" if state is InstanceState.READY_PAUSE else "stops"
        left = f" when {_named(at_work)} {'has' if len(at_work) == 1 else 'have'} ended" if at_work else ""
        return [Cause("", f"It {what}{left}; nothing more starts.")]
    if state is not InstanceState.RUNNING or at_work:
        return []
    waits = [name for name, each in tasks.items() if each in _STUCK or (each is TaskState.RUNNING and name in held)]
    return _of(waits, reasons)


def _unbegun(around: Around) -> str:
    if around.backfill is not None:
        return f"It is a date of backfill {around.backfill} that has not begun: those before it have the places."
    return "No master has its shard yet: start one." if not around.owner else "Its master has not begun it yet."


def _turn(around: Around) -> str:
    if not around.ahead:
        return "It waits for its turn: its project has as many tasks as it may, or its master has not looked yet."
    runs = ", ".join(map(str, around.ahead[:_MOST]))
    more = f" and {len(around.ahead) - _MOST} more" if len(around.ahead) > _MOST else ""
    verb = "goes" if len(around.ahead) == 1 else "go"
    return (
        f"It waits for its turn: {'run' if len(around.ahead) == 1 else 'runs'} {runs}{more} of its workflow {verb} on."
    )


def _of(names: Sequence[str], reasons: Mapping[str, str]) -> list[Cause]:
    found = [Cause(name, reasons[name]) for name in names if name in reasons][:_MOST]
    if found and len(names) > len(found):
        found.append(
            Cause("", f"The same, or another reason, holds for {counted(len(names) - len(found), 'more task')}.")
        )
    return found


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(repr(each) for each in names[:_MOST])
    return f"{shown} and {len(names) - _MOST} more" if len(names) > _MOST else shown
