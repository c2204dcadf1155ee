"""Compute the next state of a run from its state and events. Pure, and the only way to change a run.

Events are applied in the order in which they were seen. A duplicate or late event, or an event of an earlier attempt,
changes nothing. A command that the current state does not allow raises an error and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from latchwork_workflows.state import commands, master_tasks
from latchwork_workflows.state.consequences import apply_consequences
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
    AT_WORKERS,
    NOT_TAKEN,
    OnTimeout,
    RunEditor,
    RunState,
    TaskRun,
    TaskState,
    WorkflowPlan,
    WorkflowRun,
)


def advance(plan: WorkflowPlan, run: WorkflowRun, events: Iterable[Event], now: float) -> WorkflowRun:
    """Apply events to a run and return its next state. This is the only way to change a run.

    Args:
        plan: The plan of the version that the run was started with.
        run: The current state. It is not changed.
        events: The events, in order. If empty, only time has passed.
        now: Seconds since the epoch.
    Returns:
        The new state. ``timeline_events`` contains only those of this call.
    Raises:
        WrongState: The current state does not allow a command.
        NotFound: A command names a task that does not exist.
    """
    editor = RunEditor(plan, run, now)
    for event in events:
        _apply_event(editor, event)
    apply_consequences(editor)
    return editor.build_run()


def _apply_event(editor: RunEditor, event: Event) -> None:  # noqa: C901, PLR0912 - one line for each event
    """Apply one event to the run. See the classes of events in ``events``."""
    match event:
        case Start():
            commands.start_run(editor, event)
        case Begin():
            commands.start_waiting_run(editor)
        case Pause():
            commands.pause_run(editor)
        case Resume():
            commands.resume_run(editor)
        case Stop():
            commands.stop_run(editor)
        case Recover():
            commands.recover_run(editor, event)
        case Rerun():
            commands.rerun_tasks(editor, event)
        case ForceSuccess():
            commands.force_success(editor, event)
        case ForceStart():
            commands.force_start(editor, event)
        case Claimed():
            _task_claimed(editor, event)
        case Lost():
            _claim_lost(editor, event)
        case Ended():
            _attempt_ended(editor, event)
        case Removed():
            _item_removed(editor, event)
        case ChildPaused() | ChildForced() | SeenFailed() | Chose() | Expanded():
            master_tasks.apply_event(editor, event)
        case Wake():
            master_tasks.check_dependents(editor)


def _task_claimed(editor: RunEditor, event: Claimed) -> None:
    """Mark a submitted task as running, because a worker has claimed its item."""
    task = editor.find_task_if_current(event.task, event.n, event.round)
    if task is None or task.state is not TaskState.SUBMITTED:
        return
    rule = editor.plan.get_rule(event.task)
    warns = rule.timeout_s is not None and rule.on_timeout is not OnTimeout.FAIL
    editor.set_task_state(
        event.task, TaskState.RUNNING, wake_at=editor.now + rule.timeout_s if warns and rule.timeout_s else None
    )


def _claim_lost(editor: RunEditor, event: Lost) -> None:
    """Queue a running task again, because its worker has lost the claim. Attempts of the master are not claimed."""
    task = editor.find_task_if_current(event.task, event.n, event.round)
    if task is None or task.state is not TaskState.RUNNING or task.runs_on_master:
        return
    editor.queue_task(event.task, task.n)
    if event.died:
        editor.record_timeline_event("failover", event.task, event.n)


def _attempt_ended(editor: RunEditor, event: Ended) -> None:
    """Set the state of a task whose attempt has ended. A failed attempt may be followed by a retry."""
    task = editor.find_task_if_current(event.task, event.n, event.round)
    if task is None or task.state not in AT_WORKERS:
        return
    if event.outcome is Outcome.SUCCESS and master_tasks.has_unfinished_elements(editor, event.task):
        return
    if task.runs_on_master:
        master_tasks.request_dependency_cleanup(editor, event.task)
    _record_timeout(editor, event, task)
    if event.outcome is Outcome.SUCCESS:
        editor.set_task_state(event.task, TaskState.SUCCESS)
    elif event.outcome is Outcome.KILLED:
        editor.set_task_state(event.task, TaskState.KILLED)
    else:
        _attempt_failed(editor, event, replace(task, failures=task.failures + 1))


def _record_timeout(editor: RunEditor, event: Ended, task: TaskRun) -> None:
    """Record a timeout that the master has not recorded yet.

    The worker may have ended the attempt at its time limit before the master noticed the timeout.
    """
    rule = editor.plan.get_rule(event.task)
    is_said = task.state is TaskState.RUNNING and task.wake_at is None
    if task.runs_on_master or is_said or rule.timeout_s is None or rule.on_timeout is OnTimeout.FAIL:
        return
    if event.took_s >= rule.timeout_s:
        editor.record_timeline_event("timeout", event.task, event.n)


def _attempt_failed(editor: RunEditor, event: Ended, task: TaskRun) -> None:
    """Schedule a retry of a task whose attempt has failed, or mark the task as failed.

    Args:
        editor: The run.
        event: The end of the attempt.
        task: The task, with this failure counted.
    """
    rule = editor.plan.get_rule(event.task)
    goes_on = editor.state in {RunState.RUNNING, RunState.READY_PAUSE} and not editor.ending
    again = goes_on and event.outcome is not Outcome.FATAL and task.failures <= rule.retries
    editor.tasks[event.task] = task
    if again:
        editor.record_timeline_event("retry", event.task, event.n)
        editor.set_task_state(event.task, TaskState.RETRY_WAIT, wake_at=editor.now + rule.retry_interval_s)
    else:
        editor.record_timeline_event("failure", event.task, event.n)
        editor.set_task_state(event.task, TaskState.FAILURE)


def _item_removed(editor: RunEditor, event: Removed) -> None:
    """Set the state of a submitted task whose item was withdrawn from the queue before a worker claimed it.

    The state depends on why it was withdrawn: the run ends, the run pauses, or the task was not claimed in time.
    """
    task = editor.find_task_if_current(event.task, event.n, event.round)
    if task is None or task.state is not TaskState.SUBMITTED:
        return
    if editor.ending or editor.state is RunState.READY_STOP:
        editor.set_task_state(event.task, TaskState.KILLED)
    elif editor.state is RunState.READY_PAUSE:
        editor.set_task_state(event.task, TaskState.PAUSED)
    elif task.is_overdue and task.forced_after != task.n:
        editor.record_timeline_event(NOT_TAKEN, event.task, event.n)
        ended = Ended(event.task, event.n, Outcome.FAILURE, event.round)
        _attempt_failed(editor, ended, replace(task, failures=task.failures + 1))
    else:  # resumed or force-started in the meantime: another attempt
        editor.set_task_state(event.task, TaskState.READY)
