"""Explains in one sentence why a task is in its state and what would change it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from latchwork.spi import counted
from latchwork_workflows.explain.master_task import MasterTaskFacts, explain_master_task
from latchwork_workflows.model.definition import Definition, TaskSpec
from latchwork_workflows.state import DONE, FAILED, RunState, TaskState, get_map_name
from latchwork_workflows.state.records import NOT_TAKEN, OVER

#: Maximum number of characters of an error that are shown. The log has all of it.
_MAX_SAID = 300
_HINT = "Recover the run, or mark the task as successful."
_PLAIN = {
    TaskState.SUCCESS: "It has succeeded.",
    TaskState.FORCED_SUCCESS: "A user marked it as successful.",
    TaskState.SKIPPED: "It was skipped: it is disabled, or was not selected at the start.",
    TaskState.KILLED: "It was stopped or withdrawn, because its run was stopped or failed.",
    TaskState.PAUSED: "It was withdrawn for a pause: resume the run.",
    TaskState.READY: "It is ready; the master queues it as soon as fewer tasks of this run are queued or running.",
}


class GroupWorkers(NamedTuple):
    """The workers of a worker group.

    Attributes:
        workers: Number of workers that are online.
        with_type: How many of them know the type of the task.
        slots: Total number of slots.
        busy: Number of used slots.
        without_tenant: How many of the ``knowing`` workers do not run tasks of its tenant.
    """

    workers: int
    with_type: int
    slots: int
    busy: int
    without_tenant: int = 0


class QueuePosition(NamedTuple):
    """How many tasks are before a queued task.

    Attributes:
        tasks: Number of tasks that were counted.
        is_more: Whether there are more tasks than were counted.
    """

    tasks: int
    is_more: bool = False


class FullPool(NamedTuple):
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
class TaskFacts:
    """Known data about a task.

    Attributes:
        state: State of the task.
        n: Number of its newest attempt.
        failures: Number of failed attempts.
        wake_at: Time of its next transition, in seconds since the epoch.
        run_state: State of its run.
        task_states: States of all tasks of the run, by name.
        owner: Master of the shard. Empty: none yet.
        group_workers: Workers of its group. None: the store was not queried.
        sizes: Sizes of all pools, by name.
        full_pools: Pools of which it needs a slot and that have none free.
        master_task: Set for a task that its master runs itself. None: any other task.
        is_cut: Whether no branch that leads to it was chosen.
        last: Outcome of its newest ended attempt. Empty: there is none.
        error: Error of that attempt, if it failed.
        worker: Its current worker. Empty: none, or not known.
        failed_upstream: Failed upstream task that blocks it. Empty: none.
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
    run_state: RunState
    task_states: Mapping[str, TaskState]
    owner: str = ""
    group_workers: GroupWorkers | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    full_pools: Sequence[FullPool] = ()
    master_task: MasterTaskFacts | None = None
    is_cut: bool = False
    last: str = ""
    error: str = ""
    worker: str = ""
    failed_upstream: str = ""
    cached_from: int | None = None
    until: float | None = None
    ahead: QueuePosition | None = None
    cancel_sent_at: float | None = None


def explain_task(name: str, facts: TaskFacts, definition: Definition, now: float) -> str:
    """Explain in one sentence why a task is in its state and what would change it.

    Args:
        name: Name of the task.
        facts: Known data about it.
        definition: The definition that its run was started with.
        now: Seconds since the epoch.
    """
    task = definition.task(get_map_name(name))
    state = facts.state
    if facts.run_state is RunState.SERIAL_WAIT:
        return (
            f"Its run waits for the concurrency limit: another run of {definition.key} is active or paused, or the "
            f"pool of project {definition.project} is full."
        )
    if facts.master_task is not None and (answer := explain_master_task(state, facts.master_task, now)):
        return answer
    if facts.is_cut:
        return "It was skipped: no branch that leads to it was chosen."
    if state in _PLAIN or state is TaskState.FAILURE:
        return _explain_ended(facts, task.retries)
    if facts.cancel_sent_at is not None and state in {TaskState.RUNNING, TaskState.SUBMITTED}:
        return _explain_cancel(facts, facts.cancel_sent_at, now)
    if state is TaskState.RUNNING:
        return f"It is running, attempt {facts.n}{f', on worker {facts.worker}' if facts.worker else ''}."
    if not facts.owner and facts.run_state not in OVER:
        return "No master owns its shard yet: start one, or see the Workers page."
    if state in {TaskState.RETRY_WAIT, TaskState.DELAYED} and facts.wake_at is not None:
        return _explain_delay(facts, max(0.0, facts.wake_at - now))
    if state is TaskState.SUBMITTED:
        left = (
            "" if facts.until is None else f" If none claims it within {max(0.0, facts.until - now):.0f} s, it fails."
        )
        return _explain_queued(task, definition, facts) + left
    return _explain_waiting(task.after, facts)


def _explain_ended(known: TaskFacts, retries: int) -> str:
    if known.state is TaskState.SUCCESS and known.cached_from is not None:
        return f"It has succeeded without running: its outputs are the cached ones of run {known.cached_from}."
    if known.state is not TaskState.FAILURE:
        return _PLAIN[known.state]
    why_last = "; no worker claimed the last one in time" if known.last == NOT_TAKEN else ""
    said = f": {_first_line(known.error)}" if known.error and not why_last else "."
    return f"It failed after {known.failures} of {counted(retries + 1, 'attempt')}{why_last}{said} {_HINT}"


def _first_line(text: str) -> str:
    line = next((each.strip() for each in text.splitlines() if each.strip()), "")
    short = line if len(line) <= _MAX_SAID else f"{line[:_MAX_SAID]}..."
    return short if short.endswith((".", "!", "?")) else f"{short}."


def _explain_delay(known: TaskFacts, left_s: float) -> str:
    what = "It is delayed; it starts"
    if known.state is TaskState.RETRY_WAIT:
        failed = (
            f"No worker claimed attempt {known.n} in time" if known.last == NOT_TAKEN else f"Attempt {known.n} failed"
        )
        what = f"{failed}; the next one starts"
    return f"{what} in {left_s:.0f} s." if known.run_state is RunState.RUNNING else f"{what} when the run continues."


def _explain_cancel(known: TaskFacts, at: float, now: float) -> str:
    when = f" {max(0.0, now - at):.0f} s ago" if at else ""
    if known.state is TaskState.SUBMITTED:
        return f"It was canceled{when}: no worker claims it any more."
    who = f"worker {known.worker}" if known.worker else "its worker"
    return f"It is being stopped, attempt {known.n}: a cancel request was sent to {who}{when}."


def _queue_text(ahead: QueuePosition | None) -> str:
    if ahead is None:
        return "It is queued"
    if not ahead.tasks:
        return "It is next in the queue"
    return f"It is queued behind {'more than ' if ahead.is_more else ''}{counted(ahead.tasks, 'task')}"


def _explain_queued(task: TaskSpec, definition: Definition, known: TaskFacts) -> str:
    group = task.worker_group or definition.worker_group
    pool, crew, is_queued = task.pool, known.group_workers, _queue_text(known.ahead)
    if pool and pool not in known.sizes:
        create = f"create it with `latchwork workflows pools set {pool} --size N`"
        return f"It is queued for a slot of the pool {pool!r}, which does not exist: {create}."
    if crew is not None and not crew.workers:
        return f"It is queued for the worker group {group!r}, which has no worker: start one with --group {group}."
    if crew is not None and not crew.with_type:
        them = (
            "whose worker does not support" if crew.workers == 1 else f"none of whose {crew.workers} workers supports"
        )
        return f"It is queued for the worker group {group!r}, {them} the task type {task.type!r}: install it there."
    if crew is not None and crew.without_tenant == crew.with_type:
        return f"It is queued for the worker group {group!r}, {_tenant_text(definition.tenant, crew.with_type, group)}"
    if known.full_pools:
        return f"{is_queued}; {' and '.join(map(_full_pool_text, known.full_pools))}."
    if crew is not None and crew.busy >= crew.slots > 0:
        slots, verb = ("the slot", "is") if crew.slots == 1 else (f"all {crew.slots} slots", "are")
        return f"{is_queued}; {slots} of the {counted(crew.workers, 'worker')} of the group {group!r} {verb} busy."
    limit = f" and for one of {known.sizes[pool]} slots of the pool {pool!r}" if pool else ""
    return f"{is_queued}; it waits for a worker of the group {group!r}{limit}."


def _tenant_text(tenant: str | None, workers: int, group: str) -> str:
    them = "whose worker runs no tasks" if workers == 1 else f"whose {workers} workers run no tasks"
    if tenant is None:
        return f"{them} without a tenant: set a `tenant` of the workflow that they list with --tenants."
    return f"{them} as the user {tenant!r}: start a worker there as root with --group {group} --tenants {tenant}."


def _full_pool_text(full: FullPool) -> str:
    slots, verb = ("the one slot", "is") if full.size == 1 else (f"all {full.size} slots", "are")
    shown = ", ".join(full.holders[:3]) + (f" and {len(full.holders) - 3} more" if len(full.holders) > 3 else "")
    return f"{slots} of the pool {full.pool!r} {verb} in use{f' by {shown}' if shown else ''}"


def _explain_waiting(after: Sequence[str], known: TaskFacts) -> str:
    failed = [each for each in after if known.task_states.get(each) in FAILED]
    if failed:
        return f"It waits for {_join_names(failed)}, which failed: it starts only if the run is recovered."
    left = [each for each in after if known.task_states.get(each) not in DONE]
    if left and known.failed_upstream:
        return f"It waits for {_join_names(left)}, behind {known.failed_upstream!r}, which failed: recover the run."
    if left:
        return f"It waits for {_join_names(left)}."
    if known.run_state in {RunState.PAUSED, RunState.READY_PAUSE}:
        return "Its run is paused: resume it."
    return f"Its run is {known.run_state.value.replace('_', ' ')}; its master has not checked it yet."


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(each) for each in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def find_failed_upstream_tasks(definition: Definition, states: Mapping[str, TaskState]) -> dict[str, str]:
    """Return, for each unfinished task with a failed task upstream of it, the name of the first such task."""
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
