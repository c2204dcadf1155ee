"""Tasks that the master runs itself instead of a worker: sub-processes, dependents, conditions, switches, and maps.

Pure.

They need no thread and no slot, and never enter the work queue. Their reads and writes are a ``Call``, done in the same
transaction or, for a switch, after it. The result of a call is an event.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from latchwork_workflows.state.conditions import Condition, TaskEnded, evaluate_condition
from latchwork_workflows.state.records import (
    DONE,
    FAILED,
    UNFINISHED,
    RunState,
    TaskRun,
    TaskState,
    build_element_name,
    get_map_name,
)

if TYPE_CHECKING:
    from latchwork_workflows.state.events import ChildForced, ChildPaused, Chose, Expanded, SeenFailed
    from latchwork_workflows.state.records import RunEditor

#: Seconds until a dependent checks again without a notification. A run that ended while the dependent registered itself
#: may have missed the registration.
LOOK_AGAIN_S = 30.0
#: Seconds between later checks, when every end is notified. Longer, because the checks of all dependents add up.
LOOK_RARELY_S = 300.0
_FIRST = {"sub_process": "open", "dependent": "look", "switch": "choose", "map": "expand"}


def start_task(editor: RunEditor, name: str, kind: str) -> bool:
    """Start a task that the master runs itself. Its predecessors must have ended.

    Args:
        editor: The run.
        name: Name of the task.
        kind: Kind of the task, such as ``sub_process`` or ``map``.
    Returns:
        Whether the task has ended immediately, so that its successors may be ready.
    """
    task = editor.tasks[name]
    rule = editor.plan.get_rule(name)
    on_master = replace(task.with_state(TaskState.RUNNING), n=task.n + 1, runs_on_master=True)
    if kind == "conditions":
        is_true = rule.when is None or evaluate_condition(rule.when, lambda leaf: _has_ended_as(editor, leaf))
        editor.tasks[name] = replace(on_master.with_state(TaskState.SUCCESS), chosen=rule.branches[0 if is_true else 1])
        return True
    if kind == "dependent":
        until = None if rule.timeout_s is None else editor.now + rule.timeout_s
        on_master = replace(on_master, fails_at=until, wake_at=_next_check_at(editor, until, LOOK_AGAIN_S))
    editor.tasks[name] = on_master
    editor.request_call(_FIRST[kind], name)
    return False


def _has_ended_as(editor: RunEditor, leaf: Condition) -> bool:
    if not isinstance(leaf, TaskEnded):
        return False
    return (editor.tasks[leaf.task].state in FAILED) is leaf.failed


def _next_check_at(editor: RunEditor, until: float | None, after_s: float) -> float:
    again = editor.now + after_s
    return again if until is None else min(again, max(until, editor.now))


# Events


def apply_event(editor: RunEditor, event: ChildPaused | ChildForced | SeenFailed | Chose | Expanded) -> None:
    """Apply an event to a task that the master runs itself. Events of older attempts are ignored."""
    kind = type(event).__name__
    if kind == "ChildForced":
        task = editor.tasks.get(event.task)
        if task is not None and task.state in FAILED and event.round == editor.round:
            editor.set_task_state(event.task, TaskState.FORCED_SUCCESS)
            if editor.state is RunState.FAILURE and all(
                editor.tasks[name].state in DONE or not makes_run_fail(editor, name) for name in editor.plan.rules
            ):
                editor.state = RunState.SUCCESS
                editor.record_timeline_event("success")
        return
    found = _find_master_task(editor, event)
    if found is None:
        return
    if kind == "ChildPaused" and editor.state is RunState.READY_PAUSE:
        editor.set_task_state(event.task, TaskState.PAUSED)
    elif kind == "SeenFailed":
        _fail_after_dependency(editor, event.task, found)
    elif kind == "Chose":
        editor.tasks[event.task] = replace(found.with_state(TaskState.SUCCESS), chosen=event.heads)  # type: ignore[union-attr]
    elif kind == "Expanded":
        _create_elements(editor, event.task, event.count)  # type: ignore[union-attr]


def _find_master_task(
    editor: RunEditor, event: ChildPaused | ChildForced | SeenFailed | Chose | Expanded
) -> TaskRun | None:
    task = editor.find_task_if_current(event.task, getattr(event, "n", 0), event.round)
    return task if task is not None and task.runs_on_master else None


def _fail_after_dependency(editor: RunEditor, name: str, task: TaskRun) -> None:
    """Fail a ``dependent`` task whose dependency failed, after the grace period ``wait_s`` of its rule."""
    until = editor.now + editor.plan.get_rule(name).wait_s
    if task.fails_at is not None:
        until = min(until, task.fails_at)
    if until <= editor.now:
        fail_task(editor, name)
    else:
        look_at = min(task.wake_at or until, _next_check_at(editor, until, LOOK_RARELY_S))
        editor.tasks[name] = replace(task, fails_at=until, wake_at=look_at)


def fail_task(editor: RunEditor, name: str) -> None:
    """Mark the task as failed."""
    task = editor.tasks[name]
    request_dependency_cleanup(editor, name)
    editor.record_timeline_event("failure", name, task.n)
    editor.tasks[name] = replace(task.with_state(TaskState.FAILURE), failures=task.failures + 1)


def _create_elements(editor: RunEditor, name: str, count: int) -> None:
    """Create ``count`` elements of a map task, one for each item of its list.

    Elements that have succeeded before a recovery are kept. Elements beyond a list that has become shorter are skipped.
    """
    there = {each for each in editor.tasks if each != name and get_map_name(each) == name}
    for index in range(count):
        each = build_element_name(name, index)
        known = editor.tasks.get(each, TaskRun())
        if known.state in {TaskState.WAITING, TaskState.SKIPPED}:
            editor.tasks[each] = replace(known.with_state(TaskState.READY), is_cut=False)
        there.discard(each)
    for each in there:  # the list has become shorter
        editor.set_task_state(each, TaskState.SKIPPED)


# Commands and time


def check_dependents(editor: RunEditor) -> None:
    """Request a check of every ``dependent`` task, because the workflows that it waits for may have changed."""
    for name, task in editor.tasks.items():
        if task.runs_on_master and editor.plan.get_kind(name) == "dependent":
            editor.request_call("look", name)


def request_dependency_check(editor: RunEditor, name: str) -> None:
    """Request that the master checks again whether the workflows that a ``dependent`` task waits for have succeeded.

    If the time limit of the task has passed, the task fails instead.
    """
    task = editor.tasks[name]
    if task.fails_at is not None and task.fails_at <= editor.now:
        fail_task(editor, name)
        return
    editor.tasks[name] = replace(task, wake_at=_next_check_at(editor, task.fails_at, LOOK_RARELY_S))
    editor.request_call("look", name)


def resume_children(editor: RunEditor) -> None:
    """Resume the child runs that are paused or are about to pause."""
    for name, task in editor.tasks.items():
        if task.runs_on_master and editor.plan.get_kind(name) == "sub_process":
            editor.request_call("resume", name)


def has_unfinished_elements(editor: RunEditor, name: str) -> bool:
    """Return whether the task is a map task with elements that have not succeeded yet.

    Such a task cannot succeed yet. After a recovery, its outputs may be collected before its list is read again, which
    may add elements.
    """
    return editor.plan.get_kind(name) == "map" and not _states_of_elements(editor, name) <= DONE


def _states_of_elements(editor: RunEditor, name: str) -> set[TaskState]:
    return {task.state for each, task in editor.tasks.items() if each != name and get_map_name(each) == name}


def request_dependency_cleanup(editor: RunEditor, name: str) -> None:
    """Request that the master deletes the registered dependencies of a ``dependent`` task. Ignores other tasks."""
    if editor.plan.get_kind(name) == "dependent":
        editor.request_call("forget", name)


# Consequences of the states


def makes_run_fail(editor: RunEditor, name: str) -> bool:
    """Return whether the failure of this task makes its run fail."""
    if name in editor.plan.rules:
        return name not in editor.plan.handled_failures
    return editor.tasks[get_map_name(name)].state not in DONE and get_map_name(name) not in editor.plan.handled_failures


def count_free_map_slots(editor: RunEditor) -> dict[str, int]:
    """Return, for each map task with a limit, how many more of its elements may be queued or running."""
    limits = {name: rule.map_parallel for name, rule in editor.plan.rules.items() if rule.maps and rule.map_parallel}
    if not limits:
        return {}
    for name, task in editor.tasks.items():
        base = get_map_name(name)
        if base in limits and base != name and task.state in {TaskState.SUBMITTED, TaskState.RUNNING}:
            limits[base] = (limits[base] or 0) - 1
    return {name: limit or 0 for name, limit in limits.items()}


def update_master_tasks(editor: RunEditor) -> bool:
    """Pause, resume or end the tasks that the master runs itself, according to the state of their run.

    Returns:
        Whether a task has ended.
    """
    on_master = [name for name, task in editor.tasks.items() if task.runs_on_master]
    is_ending = bool(editor.ending) or editor.state is RunState.READY_STOP
    is_pausing = editor.state is RunState.READY_PAUSE and not is_ending
    for name in sorted(on_master, key=lambda each: each in editor.plan.rules):  # elements before their maps
        kind = editor.plan.get_kind(name)
        if kind == "map":
            _update_map(editor, name, is_ending=is_ending, is_pausing=is_pausing)
        elif not (is_ending or is_pausing):
            continue
        elif kind == "sub_process":
            editor.request_call("stop" if is_ending else "pause", name)
        else:
            request_dependency_cleanup(editor, name)
            editor.set_task_state(name, TaskState.KILLED if is_ending else TaskState.PAUSED)
    return any(not editor.tasks[name].runs_on_master for name in on_master)


def _update_map(editor: RunEditor, name: str, *, is_ending: bool, is_pausing: bool) -> None:
    """End or pause a map task according to the states of its elements.

    Args:
        editor: The run.
        name: Name of the map task.
        is_ending: Whether the run is about to end.
        is_pausing: Whether the run is about to pause.
    """
    states = _states_of_elements(editor, name)
    if states & {TaskState.SUBMITTED, TaskState.RUNNING} or (not states and not is_ending):
        return
    if is_ending:
        editor.set_task_state(name, TaskState.KILLED)
    elif states <= DONE:
        editor.request_call("gather", name)
    elif is_pausing and states & (UNFINISHED | {TaskState.PAUSED, TaskState.WAITING}):
        editor.set_task_state(name, TaskState.PAUSED)
    elif not states & (UNFINISHED | {TaskState.PAUSED, TaskState.WAITING}):
        fail_task(editor, name)
