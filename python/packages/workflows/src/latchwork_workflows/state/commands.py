"""The effect of each command on a run, and the states that allow it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from latchwork_workflows.errors import NotFound, WrongState
from latchwork_workflows.state import master_tasks
from latchwork_workflows.state.events import ForceStart, ForceSuccess, Recover, Rerun, Start
from latchwork_workflows.state.records import DONE, FAILED, RunEditor, RunState, Scope, TaskRun, TaskState, get_map_name

_NEW = frozenset({RunState.SUBMITTED, RunState.SERIAL_WAIT})
#: The states that allow each command. ``success`` also allows a recovery from chosen tasks.
TAKEN_IN = {
    "start": _NEW,
    "pause": frozenset({RunState.RUNNING}),
    "resume": frozenset({RunState.PAUSED, RunState.READY_PAUSE}),
    "stop": frozenset({RunState.RUNNING, RunState.READY_PAUSE, RunState.PAUSED, *_NEW}),
    "recover": frozenset({RunState.FAILURE, RunState.STOPPED}),
    "rerun": frozenset({RunState.SUCCESS, RunState.FAILURE, RunState.STOPPED}),
}


def list_possible_commands(state: RunState) -> tuple[str, ...]:
    """Return the names of the commands that a user may send to a run in this state."""
    return tuple(name for name, states in TAKEN_IN.items() if state in states and name != "start")


def start_run(editor: RunEditor, event: Start) -> None:
    """Start a run: set its tasks to WAITING, and tasks outside the requested scope to SKIPPED."""
    _require_state(editor, "start")
    _require_tasks(editor, event.start_from)
    chosen = _tasks_in_scope(editor, event)
    editor.dry, editor.fresh = event.dry, event.fresh
    editor.tasks = {
        name: TaskRun(TaskState.WAITING if name in chosen else TaskState.SKIPPED) for name in editor.plan.rules
    }
    editor.set_run_state(_state(waits=event.waits))


def _state(*, waits: bool) -> RunState:
    return RunState.SERIAL_WAIT if waits else RunState.RUNNING


def start_waiting_run(editor: RunEditor) -> None:
    """Start a run that was waiting for the concurrency limit of its workflow. Does nothing in other states."""
    if editor.state is RunState.SERIAL_WAIT:
        editor.set_run_state()


def pause_run(editor: RunEditor) -> None:
    """Pause the run: submit no more tasks to workers."""
    _require_state(editor, "pause")
    editor.state = RunState.READY_PAUSE


def resume_run(editor: RunEditor) -> None:
    """Resume a paused run. Tasks that were withdrawn from the queue are submitted again as new attempts."""
    _require_state(editor, "resume")
    for name, task in editor.tasks.items():
        if task.state is TaskState.PAUSED:
            editor.set_task_state(name, TaskState.READY)
    master_tasks.resume_children(editor)
    if editor.state is RunState.PAUSED:
        editor.set_run_state()
    else:
        editor.state = RunState.RUNNING


def stop_run(editor: RunEditor) -> None:
    """Stop the run: withdraw the queued tasks and kill the running ones."""
    _require_state(editor, "stop")
    editor.state = RunState.READY_STOP


def recover_run(editor: RunEditor, event: Recover) -> None:
    """Retry the failed and killed tasks of a run.

    The tasks of ``event.start_from`` and all tasks downstream of them also run again, whatever their state.
    """
    _require_state(editor, "recover", {_SUCCESS} if event.start_from else ())
    _require_tasks(editor, event.start_from)
    again = editor.plan.find_connected_tasks(event.start_from) if event.start_from else frozenset[str]()
    if not editor.tasks:  # stopped before it began
        editor.tasks = dict.fromkeys(editor.plan.rules, TaskRun())
    failed = {name for name in editor.tasks if _is_retried(editor, name)}
    for name, task in editor.tasks.items():
        if get_map_name(name) in again or name in failed:
            editor.tasks[name] = task.reset()
    editor.set_run_state(_state(waits=event.waits))


def _is_retried(editor: RunEditor, name: str) -> bool:
    """Return whether a recovered run retries this task because it has failed.

    An element of a map task is retried only together with its map. A failure that a ``conditions`` task evaluates is
    not retried.
    """
    state = editor.tasks[name].state
    if (base := get_map_name(name)) != name:
        return state in FAILED and _is_retried(editor, base)
    return state is TaskState.KILLED or (state is TaskState.FAILURE and master_tasks.makes_run_fail(editor, name))


def rerun_tasks(editor: RunEditor, event: Rerun) -> None:
    """Run all tasks of a completed run again. Reports about attempts that began before the rerun are ignored from now
    on.
    """
    _require_state(editor, "rerun")
    editor.round += 1
    editor.fresh = event.fresh
    editor.tasks = dict.fromkeys(editor.plan.rules, TaskRun())
    editor.set_run_state(_state(waits=event.waits))


def force_success(editor: RunEditor, event: ForceSuccess) -> None:
    """Mark a failed task as successful.

    If this was the last unfinished task of a failed run, the run becomes successful. Other completed runs keep their
    state.
    """
    _require_tasks(editor, [event.task], editor.tasks)
    task = editor.tasks.get(event.task)
    if task is None or task.state not in FAILED:
        raise WrongState(
            f"task {event.task!r} is {_state_text(task)}; only a failed or stopped task can be marked as success"
        )
    editor.set_task_state(event.task, TaskState.FORCED_SUCCESS)
    is_open = any(
        editor.tasks[name].state not in DONE and master_tasks.makes_run_fail(editor, name) for name in editor.plan.rules
    )
    if editor.state is RunState.FAILURE and not is_open:
        editor.state = RunState.SUCCESS
        editor.record_timeline_event("success")


def force_start(editor: RunEditor, event: ForceStart) -> None:
    """Start a queued task without waiting for a free pool slot: withdraw it and queue it again as a new attempt."""
    _require_tasks(editor, [event.task], editor.tasks)
    task = editor.tasks.get(event.task)
    if editor.state is not RunState.RUNNING or task is None or task.state is not TaskState.SUBMITTED:
        raise WrongState(
            f"task {event.task!r} is {_state_text(task)}, and its run is {editor.state.value}; only a queued task of "
            "a running run can be force-started"
        )
    editor.tasks[event.task] = replace(task, forced_after=task.n)


_SUCCESS = RunState.SUCCESS


def _tasks_in_scope(editor: RunEditor, event: Start) -> frozenset[str]:
    if not event.start_from:
        return frozenset(editor.plan.rules)
    if event.scope is Scope.ONLY:
        return frozenset(event.start_from)
    return editor.plan.find_connected_tasks(event.start_from, upstream=event.scope is Scope.UPSTREAM)


def _require_state(editor: RunEditor, command: str, more: Collection[RunState] = ()) -> None:
    states = TAKEN_IN[command].union(more)
    if editor.state not in states:
        takes = ", ".join(sorted(each.value for each in states))
        raise WrongState(f"the run is {editor.state.value}; {command} needs one that is {takes}")


def _require_tasks(editor: RunEditor, names: Iterable[str], more: Collection[str] = ()) -> None:
    for name in names:
        if name not in editor.plan.rules and name not in more:
            raise NotFound(f"the workflow has no task {name!r}; it has {', '.join(list(editor.plan.rules)[:20])}")


def _state_text(task: TaskRun | None) -> str:
    return "not there yet" if task is None else task.state.value
