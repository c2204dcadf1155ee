"""Explains in one sentence why a task is in its state and what would change it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from latchwork.spi import counted
from latchwork_workflows.explain.held_task import Held, why_held
from latchwork_workflows.model.model import Definition, TaskSpec
from latchwork_workflows.state import DONE, FAILED, InstanceState, TaskState, base_of
from latchwork_workflows.state.records import NOT_TAKEN, OVER

#: Maximum number of characters of an error that are shown. The log has all of it.
_MOST_SAID = 300
_PLAIN = {
    TaskState.SUCCESS: "It has succeeded.",
    TaskState.FORCED_SUCCESS: "It counts as success, because somebody said so.",
    TaskState.SKIPPED: "It is left out: it is switched off, or was not chosen at the start.",
    TaskState.KILLED: "It was ended, or taken back, because its run was stopped or failed.",
    TaskState.PAUSED: "It was taken back for a pause; resume the run.",
    TaskState.READY: "It is ready; the master queues it as soon as fewer tasks of this run are queued or running.",
}


class Crew(NamedTuple):
    """The workers of a worker group.

    Attributes:
        workers: Number of workers that are online.
        knowing: How many of them know the type of the task.
        slots: Total number of slots.
        busy: Number of used slots.
        refusing: How many of the ``knowing`` workers do not run tasks of its tenant.
    """

    workers: int
    knowing: int
    slots: int
    busy: int
    refusing: int = 0


class Ahead(NamedTuple):
    """The tasks before a queued one in its partition.

    Attributes:
        tasks: Number of tasks.
        is_more: There are more than that.
    """

    tasks: int
    is_more: bool = False


class Full(NamedTuple):
    """A pool without a free slot.

    Attributes:
        pool: Name of the pool.
        size: Number of its slots.
        holders: Descriptions of the holders. May be empty.
    """

    pool: str
    size: int
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """Known data about a task.

    Attributes:
        state: State of the task.
        n: Number of its newest attempt.
        failures: Number of failed attempts.
        wake_at: Time of its next transition, in seconds since the epoch.
        instance: State of its run.
        others: States of all tasks of the run, by name.
        owner: Master of the shard. Empty: none yet.
        crew: Workers of its group. None: the store was not queried.
        sizes: Sizes of all pools, by name.
        full: Pools of which it needs a slot and that have none free.
        held: Set for a task that its master runs itself. None: any other task.
        is_cut: Whether no branch that leads to it was chosen.
        last: Outcome of its newest ended attempt. Empty: there is none.
        error: Error of that attempt, if it failed.
        worker: Its current worker. Empty: none, or not known.
        blamed: Failed upstream task that blocks it. Empty: none.
        cached_from: Run whose outputs it has. None: it ran itself.
        until: Time at which it fails if it is still queued, in seconds since the epoch. None: never.
        ahead: Tasks before it in the queue. None: not known.
        cancel_sent_at: Time at which its cancel was sent, in seconds since the epoch. 0: time unknown. None: not sent,
            as far as known.
    """

    state: TaskState
    n: int
    failures: int
    wake_at: float | None
    instance: InstanceState
    others: Mapping[str, TaskState]
    owner: str = ""
    crew: Crew | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    full: Sequence[Full] = ()
    held: Held | None = None
    is_cut: bool = False
    last: str = ""
    error: str = ""
    worker: str = ""
    blamed: str = ""
    cached_from: int | None = None
    until: float | None = None
    ahead: Ahead | None = None
    cancel_sent_at: float | None = None


def why(name: str, known: Known, definition: Definition, now: float) -> str:
    """Return the explanation.

    Args:
        name: Name of the task.
        known: Known data about it.
        definition: The version of its run.
        now: Seconds since the epoch.
    """
    task = definition.task(base_of(name))
    state = known.state
    if known.instance is InstanceState.SERIAL_WAIT:
        return (
            f"Its run waits for its turn: another run of {definition.key} goes on, or is paused, or the pool of "
            f"project {definition.project} is full."
        )
    if known.held is not None and (answer := why_held(state, known.held, now)):
        return answer
    if known.is_cut:
        return "It is left out: no branch that leads to it was chosen."
    if state in _PLAIN or state is TaskState.FAILURE:
        return _ended(known, task.retries)
    if known.cancel_sent_at is not None and state in {TaskState.RUNNING, TaskState.SUBMITTED}:
        return _cancelled(known, known.cancel_sent_at, now)
    if state is TaskState.RUNNING:
        return f"It is running, attempt {known.n}{f', on worker {known.worker}' if known.worker else ''}."
    if not known.owner and known.instance not in OVER:
        return "No master has its shard yet: start one, or see the page of workers."
    if state in {TaskState.RETRY_WAIT, TaskState.DELAYED} and known.wake_at is not None:
        return _later(known, max(0.0, known.wake_at - now))
    if state is TaskState.SUBMITTED:
        left = "" if known.until is None else f" If none does in {max(0.0, known.until - now):.0f} s, it has failed."
        return _queued(task, definition, known) + left
    return _waits(task.after, known)


def _ended(known: Known, retries: int) -> str:
    if known.state is TaskState.SUCCESS and known.cached_from is not None:
        return f"It has succeeded without running: its outputs are from the cache, of run {known.cached_from}."
    if known.state is not TaskState.FAILURE:
        return _PLAIN[known.state]
    why_last = "; no worker took the last one in time" if known.last == NOT_TAKEN else ""
    tries = counted(known.failures, "attempt")
    said = f"; the error: {_first_line(known.error)}" if known.error and not why_last else "."
    return f"It has failed: {tries} of {retries + 1}{why_last}{said} Recover the run, or force it to success."


def _first_line(text: str) -> str:
    line = next((each.strip() for each in text.splitlines() if each.strip()), "")
    short = line if len(line) <= _MOST_SAID else f"{line[:_MOST_SAID]}..."
    return short if short.endswith((".", "!", "?")) else f"{short}."


def _later(known: Known, left_s: float) -> str:
    what = "It is delayed; it starts"
    if known.state is TaskState.RETRY_WAIT:
        failed = f"No worker took attempt {known.n} in time" if known.last == NOT_TAKEN else f"Attempt {known.n} failed"
        what = f"{failed}; the next one starts"
    return f"{what} in {left_s:.0f} s." if known.instance is InstanceState.RUNNING else f"{what} when the run goes on."


def _cancelled(known: Known, at: float, now: float) -> str:
    when = f" {max(0.0, now - at):.0f} s ago" if at else ""
    if known.state is TaskState.SUBMITTED:
        return f"Its cancel was sent{when}: no worker takes it any more."
    who = f"worker {known.worker}" if known.worker else "its worker"
    return f"It is being ended, attempt {known.n}: its cancel was sent to {who}{when}."


def _in_line(ahead: Ahead | None) -> str:
    if ahead is None:
        return "It is queued"
    if not ahead.tasks:
        return "It is queued, the next in line"
    return f"It is queued behind {'more than ' if ahead.is_more else ''}{counted(ahead.tasks, 'task')}"


def _queued(task: TaskSpec, definition: Definition, known: Known) -> str:
    group = task.worker_group or definition.worker_group
    pool, crew, is_queued = task.pool, known.crew, _in_line(known.ahead)
    if pool and pool not in known.sizes:
        create = f"create it with `latchwork workflows pools set {pool} --size N`"
        return f"It is queued for a slot of the pool {pool!r}, which does not exist: {create}."
    if crew is not None and not crew.workers:
        return f"It is queued for the worker group {group!r}, which has no worker: start one with --group {group}."
    if crew is not None and not crew.knowing:
        them = "whose worker does not know" if crew.workers == 1 else f"none of whose {crew.workers} workers knows"
        return f"It is queued for the worker group {group!r}, {them} the task type {task.type!r}: install it there."
    if crew is not None and crew.refusing == crew.knowing:
        return f"It is queued for the worker group {group!r}, {_refused(definition.tenant, crew.knowing, group)}"
    if known.full:
        return f"{is_queued}; {' and '.join(map(_taken, known.full))}."
    if crew is not None and crew.busy >= crew.slots > 0:
        slots, verb = ("the slot", "is") if crew.slots == 1 else (f"all {crew.slots} slots", "are")
        return f"{is_queued}; {slots} of the {counted(crew.workers, 'worker')} of the group {group!r} {verb} busy."
    limit = f" and for one of {known.sizes[pool]} slots of the pool {pool!r}" if pool else ""
    return f"{is_queued}; it waits for a worker of the group {group!r}{limit} to take it."


def _refused(tenant: str | None, workers: int, group: str) -> str:
    them = "whose worker runs no tasks" if workers == 1 else f"whose {workers} workers run no tasks"
    if tenant is None:
        return f"{them} without a tenant: name a `tenant` in the workflow that they list with --tenants."
    return f"{them} as the user {tenant!r}: start a worker there as root with --group {group} --tenants {tenant}."


def _taken(full: Full) -> str:
    slots, verb = ("the one slot", "is") if full.size == 1 else (f"all {full.size} slots", "are")
    shown = ", ".join(full.holders[:3]) + (f" and {len(full.holders) - 3} more" if len(full.holders) > 3 else "")
    return f"{slots} of the pool {full.pool!r} {verb} taken{f', by {shown}' if shown else ''}"


def _waits(after: Sequence[str], known: Known) -> str:
    failed = [each for each in after if known.others.get(each) in FAILED]
    if failed:
        return f"It waits for {_named(failed)}, which failed: it will not start unless the run is recovered."
    left = [each for each in after if known.others.get(each) not in DONE]
    if left and known.blamed:
        return f"It waits for {_named(left)}, behind {known.blamed!r}, which failed: recover the run."
    if left:
        return f"It waits for {_named(left)}."
    if known.instance in {InstanceState.PAUSED, InstanceState.READY_PAUSE}:
        return "Its run is paused; resume it."
    return f"Its run is {known.instance.value.replace('_', ' ')}; the master has not looked at it yet."


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(repr(each) for each in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def blamed(definition: Definition, states: Mapping[str, TaskState]) -> dict[str, str]:
    """Return, for each unfinished task, the first failed task upstream of it."""
    behind: dict[str, list[str]] = {}
    for task in definition.tasks:
        for each in task.after:
            behind.setdefault(each, []).append(task.name)
    found: dict[str, str] = {}
    for first in (each.name for each in definition.tasks if states.get(each.name) in FAILED):
        left = [first]
        while left:
            for name in behind.get(left.pop(), ()):
                if name not in found and states.get(name) not in DONE | FAILED:
                    found[name] = first
                    left.append(name)
    return found
