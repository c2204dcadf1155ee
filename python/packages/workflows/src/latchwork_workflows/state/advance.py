"""Compute the next state of an instance from its state and events. Pure, and the only way to change an instance.

Events are applied in the order in which they were seen. A duplicate or late event, or an event of an earlier attempt,
changes nothing. A command that the current state does not allow raises an error and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from latchwork_workflows.state import commands, logical
from latchwork_workflows.state.events import (
    Begin,
    ChildForced,
    ChildPaused,
    Chose,
    Claimed,
    Ended,
    Event,
    Expanded,
    ForceStart,
    ForceSuccess,
    Lost,
    Outcome,
    Pause,
    Recover,
    Removed,
    Rerun,
    Resume,
    SeenFailed,
    Start,
    Stop,
    Wake,
)
from latchwork_workflows.state.records import (
    IN_HANDS,
    NOT_TAKEN,
    Instance,
    InstanceState,
    OnTimeout,
    Plan,
    Task,
    TaskState,
    Working,
)
from latchwork_workflows.state.settle import settle


def advance(plan: Plan, instance: Instance, events: Iterable[Event], now: float) -> Instance:
    """Return the instance after these events.

    Args:
        plan: The plan of the version that the instance was started with.
        instance: The current state. It is not changed.
        events: The events, in order. If empty, only time has passed.
        now: Seconds since the epoch.
    Returns:
        The new state. ``facts`` contains only the facts of this call.
    Raises:
        WrongState: The current state does not allow a command.
        UnknownWorkflow: A command names a task that does not exist.
    """
    work = Working(plan, instance, now)
    for event in events:
        _apply(work, event)
    settle(work)
    return work.result()


def _apply(work: Working, event: Event) -> None:  # noqa: C901, PLR0912 - one line for each event
    match event:
        case Start():
            commands.start(work, event)
        case Begin():
            commands.begin(work)
        case Pause():
            commands.pause(work)
        case Resume():
            commands.resume(work)
        case Stop():
            commands.stop(work)
        case Recover():
            commands.recover(work, event)
        case Rerun():
            commands.rerun(work, event)
        case ForceSuccess():
            commands.force_success(work, event)
        case ForceStart():
            commands.force_start(work, event)
        case Claimed():
            _claimed(work, event)
        case Lost():
            _lost(work, event)
        case Ended():
            _ended(work, event)
        case Removed():
            _removed(work, event)
        case ChildPaused() | ChildForced() | SeenFailed() | Chose() | Expanded():
            logical.apply(work, event)
        case Wake():
            logical.wake(work)


def _claimed(work: Working, event: Claimed) -> None:
    task = work.attempt(event.task, event.n, event.run)
    if task is None or task.state is not TaskState.SUBMITTED:
        return
    rule = work.plan.rule(event.task)
    warns = rule.timeout_s is not None and rule.on_timeout is not OnTimeout.FAIL
    work.put(event.task, TaskState.RUNNING, wake_at=work.now + rule.timeout_s if warns and rule.timeout_s else None)


def _lost(work: Working, event: Lost) -> None:
    task = work.attempt(event.task, event.n, event.run)
    if task is None or task.state is not TaskState.RUNNING or task.held:
        return
    work.queue(event.task, task.n)
    if event.died:
        work.tell("failover", event.task, event.n)


def _ended(work: Working, event: Ended) -> None:
    task = work.attempt(event.task, event.n, event.run)
    if task is None or task.state not in IN_HANDS:
        return
    if event.outcome is Outcome.SUCCESS and logical.is_open_map(work, event.task):
        return
    if task.held:
        logical.ended(work, event.task)
    _overdue(work, event, task)
    if event.outcome is Outcome.SUCCESS:
        work.put(event.task, TaskState.SUCCESS)
    elif event.outcome is Outcome.KILLED:
        work.put(event.task, TaskState.KILLED)
    else:
        _failed(work, event, replace(task, failures=task.failures + 1))


def _overdue(work: Working, event: Ended, task: Task) -> None:
    """Record a timeout that has not been reported yet: the worker may have ended the attempt at its limit."""
    rule = work.plan.rule(event.task)
    is_said = task.state is TaskState.RUNNING and task.wake_at is None
    if task.held or is_said or rule.timeout_s is None or rule.on_timeout is OnTimeout.FAIL:
        return
    if event.took_s >= rule.timeout_s:
        work.tell("timeout", event.task, event.n)


def _failed(work: Working, event: Ended, task: Task) -> None:
    rule = work.plan.rule(event.task)
    goes_on = work.state in {InstanceState.RUNNING, InstanceState.READY_PAUSE} and not work.ending
    again = goes_on and event.outcome is not Outcome.FATAL and task.failures <= rule.retries
    work.tasks[event.task] = task
    if again:
        work.tell("retry", event.task, event.n)
        work.put(event.task, TaskState.RETRY_WAIT, wake_at=work.now + rule.retry_interval_s)
    else:
        work.tell("failure", event.task, event.n)
        work.put(event.task, TaskState.FAILURE)


def _removed(work: Working, event: Removed) -> None:
    task = work.attempt(event.task, event.n, event.run)
    if task is None or task.state is not TaskState.SUBMITTED:
        return
    if work.ending or work.state is InstanceState.READY_STOP:
        work.put(event.task, TaskState.KILLED)
    elif work.state is InstanceState.READY_PAUSE:
        work.put(event.task, TaskState.PAUSED)
    elif task.is_overdue and task.forced_after != task.n:
        work.tell(NOT_TAKEN, event.task, event.n)
        ended = Ended(event.task, event.n, Outcome.FAILURE, event.run)
        _failed(work, ended, replace(task, failures=task.failures + 1))
    else:  # resumed or force-started in the meantime: another attempt
        work.put(event.task, TaskState.READY)
