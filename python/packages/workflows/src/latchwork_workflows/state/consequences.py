"""Changes that follow from the current state of a run, whatever event led to it. Idempotent."""

from __future__ import annotations

from dataclasses import replace

from latchwork_workflows.state import master_tasks
from latchwork_workflows.state.records import (
    AT_WORKERS,
    DONE,
    FAILED,
    MAX_IN_HANDS,
    OVER,
    UNFINISHED,
    OnFailure,
    OnTimeout,
    RunEditor,
    RunState,
    TaskRule,
    TaskRun,
    TaskState,
    get_map_name,
)

#: No worker has such a task. It becomes KILLED when the run ends early.
_IDLE = frozenset({TaskState.READY, TaskState.DELAYED, TaskState.RETRY_WAIT, TaskState.PAUSED})


#: Clocks of two masters may differ by this many seconds before a wait is corrected.
_APART_S = 5.0


def apply_consequences(editor: RunEditor) -> None:
    """Apply all changes that follow from the current state: timers, ready tasks, submissions, and the end of the
    run.
    """
    if editor.state in OVER or editor.state in {RunState.SUBMITTED, RunState.SERIAL_WAIT}:
        return
    _apply_timers(editor)
    is_open = True
    while is_open:  # a failed map may end the others, or conditions may depend on it
        _end_on_failure(editor)
        if editor.state is RunState.RUNNING and not editor.ending:
            _update_waiting_tasks(editor)
            while _submit_ready_tasks(editor):  # conditions are decided at once, so their successors may be ready
                _update_waiting_tasks(editor)
        elif editor.ending or editor.state is RunState.READY_STOP:
            _kill_idle(editor)
        is_open = master_tasks.update_master_tasks(editor)
    _finish_run(editor)


def _apply_timers(editor: RunEditor) -> None:
    """Apply the time limits, delays and retries that are due."""
    for name, task in editor.tasks.items():
        if task.wake_at is None:
            continue
        if task.wake_at > editor.now:
            _shorten_wait(editor, name, task)
        elif task.runs_on_master:
            master_tasks.request_dependency_check(editor, name)
        else:
            _apply_task_timer(editor, name, task)
    if editor.warn_at is not None and editor.warn_at <= editor.now:
        editor.warn_at = None
        if editor.plan.on_timeout is not OnTimeout.FAIL:
            editor.record_timeline_event("timeout")
        if editor.plan.on_timeout is not OnTimeout.WARN:
            editor.ending = editor.ending or "timeout"


def _shorten_wait(editor: RunEditor, name: str, task: TaskRun) -> None:
    """Shorten a wait that is longer than the rule of its task allows.

    This happens if the clock of a master was ahead or was set back.
    """
    rule, most_s = editor.plan.get_rule(name), None
    if task.runs_on_master:
        most_s = master_tasks.LOOK_RARELY_S
    elif task.state is TaskState.DELAYED:
        most_s = rule.delay_s
    elif task.state is TaskState.RETRY_WAIT:
        most_s = rule.retry_interval_s
    if most_s is not None and task.wake_at is not None and task.wake_at > editor.now + most_s + _APART_S:
        editor.tasks[name] = replace(task, wake_at=editor.now + most_s)


def _apply_task_timer(editor: RunEditor, name: str, task: TaskRun) -> None:
    """Apply the timer of a task that is due: a timeout, the end of a delay, or the end of a pause before a retry."""
    if task.state is TaskState.RUNNING:
        editor.record_timeline_event("timeout", name, task.n)
        editor.set_task_state(name, TaskState.RUNNING)
    elif editor.state is not RunState.RUNNING or editor.ending:
        return
    elif task.state is TaskState.SUBMITTED:  # overdue: it is withdrawn, unless a worker claims it first
        editor.tasks[name] = replace(task, wake_at=None)
    elif task.state in {TaskState.DELAYED, TaskState.RETRY_WAIT}:
        editor.set_task_state(name, TaskState.READY)


def _end_on_failure(editor: RunEditor) -> None:
    """End the other tasks after a final failure, if the workflow is defined with ``on_failure="end"``."""
    if editor.ending or editor.plan.on_failure is not OnFailure.END or editor.state is RunState.READY_STOP:
        return
    if any(task.state in FAILED and master_tasks.makes_run_fail(editor, name) for name, task in editor.tasks.items()):
        editor.ending = "failure"


def _update_waiting_tasks(editor: RunEditor) -> None:
    """Update the waiting tasks whose predecessors have ended: make them ready or skip them.

    Works in topological order, because skipped tasks end immediately.
    """
    for name, rule in editor.plan.rules.items():
        if _is_unreachable(editor, name, rule):
            editor.tasks[name] = replace(editor.tasks[name].with_state(TaskState.SKIPPED), is_cut=True)
        elif _may_start(editor, name, rule):
            _start_task(editor, name, rule)


def _must_wait(editor: RunEditor, name: str) -> bool:
    """Return whether a task waits for its predecessors."""
    task = editor.tasks.get(name)  # missing if the run was stopped before it began
    return task is not None and task.state is TaskState.WAITING


def _is_unreachable(editor: RunEditor, name: str, rule: TaskRule) -> bool:
    """Return whether a waiting task can never run.

    This is so if none of the branches that lead to it was chosen, or if none of its predecessors can run.
    """
    if not _must_wait(editor, name):
        return False
    forks = editor.plan.deciding_tasks.get(name)
    if forks:
        return all(_not_chosen(editor.tasks[fork], name) for fork in forks)
    return bool(rule.after) and all(editor.tasks[before].is_cut for before in rule.after)


def _not_chosen(fork: TaskRun, head: str) -> bool:
    """Return whether a deciding task cannot run, or has not chosen the branch that begins with ``head``."""
    return fork.is_cut or (fork.state in DONE and fork.chosen is not None and head not in fork.chosen)


def _may_start(editor: RunEditor, name: str, rule: TaskRule) -> bool:
    """Return whether a waiting task can start: its predecessors have ended, and a chosen branch leads to it.

    A ``conditions`` task also starts after failures. One chosen branch is enough, even if others are not decided yet.
    """
    enough = DONE | FAILED if rule.kind == "conditions" else DONE
    forks = editor.plan.deciding_tasks.get(name, ())

    def is_done(before: str) -> bool:
        return editor.tasks[before].state in enough

    def leads(fork: str) -> bool:
        return is_done(fork) and not _not_chosen(editor.tasks[fork], name)

    return (
        _must_wait(editor, name)
        and all(is_done(before) for before in rule.after if before not in forks)
        and (not forks or any(leads(fork) for fork in forks))
    )


def _start_task(editor: RunEditor, name: str, rule: TaskRule) -> None:
    """Make a task ready that no longer waits. A disabled task is skipped, and a delayed one waits for its delay."""
    if not rule.enabled:
        editor.set_task_state(name, TaskState.SKIPPED)
    elif editor.dry:
        editor.set_task_state(name, TaskState.SUCCESS)
    elif rule.delay_s > 0:
        editor.set_task_state(name, TaskState.DELAYED, wake_at=editor.now + rule.delay_s)
    else:
        editor.set_task_state(name, TaskState.READY)


def _submit_ready_tasks(editor: RunEditor) -> bool:
    """Submit ready tasks to the workers in the order of the definition, as far as the limits allow.

    Tasks that the master runs itself all start immediately.

    Returns:
        Whether other tasks may be ready now.
    """
    free = MAX_IN_HANDS - sum(task.is_at_worker for task in editor.tasks.values())
    of_maps = master_tasks.count_free_map_slots(editor)
    is_more = False
    for name, task in list(editor.tasks.items()):
        if task.state is not TaskState.READY or of_maps.get(base := get_map_name(name), 1) <= 0:
            continue
        kind = editor.plan.get_kind(name)
        if kind:
            is_more = master_tasks.start_task(editor, name, kind) or is_more
        elif free > 0:
            editor.queue_task(name, task.n + 1)
            free -= 1
        else:
            continue
        if base in of_maps and base != name:
            of_maps[base] -= 1
    return is_more


def _kill_idle(editor: RunEditor) -> None:
    for name, task in editor.tasks.items():
        if task.state in _IDLE:
            if task.state is TaskState.PAUSED and editor.plan.get_kind(name) == "sub_process":
                editor.request_call("stop", name)  # its child is paused
            editor.set_task_state(name, TaskState.KILLED)


def _finish_run(editor: RunEditor) -> None:
    """End or pause the run if none of its tasks can continue. The elements of a map task are not examined
    separately.
    """
    tasks = {name: editor.tasks[name] for name in editor.plan.rules if name in editor.tasks}
    states = {
        task.state
        for name, task in tasks.items()
        if task.state not in FAILED or master_tasks.makes_run_fail(editor, name)
    }
    if any(task.state in AT_WORKERS for task in tasks.values()):
        return
    if editor.state is RunState.READY_STOP:
        _end_run(editor, RunState.STOPPED, "stopped")
    elif states <= DONE:
        _end_run(editor, RunState.SUCCESS, "success")
    elif editor.ending or not (states & UNFINISHED or TaskState.PAUSED in states or _has_startable_task(editor)):
        _end_run(editor, RunState.FAILURE, "failure")
    elif editor.state is RunState.READY_PAUSE:
        _end_run(editor, RunState.PAUSED, "paused")


def _has_startable_task(editor: RunEditor) -> bool:
    """Return whether any waiting task could start or be skipped. Only a paused run has such tasks."""
    return any(
        _may_start(editor, name, rule) or _is_unreachable(editor, name, rule)
        for name, rule in editor.plan.rules.items()
    )


def _end_run(editor: RunEditor, state: RunState, kind: str) -> None:
    editor.state = state
    editor.warn_at = None
    editor.record_timeline_event(kind)
