"""The effect of each command on an instance, and the states that allow it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from latchwork_workflows.errors import UnknownWorkflow, WrongState
from latchwork_workflows.state import logical
from latchwork_workflows.state.events import ForceStart, ForceSuccess, Recover, Rerun, Start
from latchwork_workflows.state.records import DONE, FAILED, InstanceState, Scope, Task, TaskState, Working, base_of

_NEW = frozenset({InstanceState.SUBMITTED, InstanceState.SERIAL_WAIT})
#: The states that allow each command. ``success`` also allows a recovery from chosen tasks.
TAKEN_IN = {
    "start": _NEW,
    "pause": frozenset({InstanceState.RUNNING}),
    "resume": frozenset({InstanceState.PAUSED, InstanceState.READY_PAUSE}),
    "stop": frozenset({InstanceState.RUNNING, InstanceState.READY_PAUSE, InstanceState.PAUSED, *_NEW}),
    "recover": frozenset({InstanceState.FAILURE, InstanceState.STOPPED}),
    "rerun": frozenset({InstanceState.SUCCESS, InstanceState.FAILURE, InstanceState.STOPPED}),
}


def possible(state: InstanceState) -> tuple[str, ...]:
    """Return the user commands that an instance in this state allows."""
    return tuple(name for name, states in TAKEN_IN.items() if state in states and name != "start")


def start(work: Working, event: Start) -> None:
    """Set every task to waiting. Tasks out of scope are skipped."""
    _need(work, "start")
    _known(work, event.start_from)
    chosen = _in_scope(work, event)
    work.dry, work.fresh = event.dry, event.fresh
    work.tasks = {name: Task(TaskState.WAITING if name in chosen else TaskState.SKIPPED) for name in work.plan.rules}
    work.restart(_state(waits=event.waits))


def _state(*, waits: bool) -> InstanceState:
    return InstanceState.SERIAL_WAIT if waits else InstanceState.RUNNING


def begin(work: Working) -> None:
    """Start an instance that waits for its concurrency limit. Any other instance stays as it is."""
    if work.state is InstanceState.SERIAL_WAIT:
        work.restart()


def pause(work: Working) -> None:
    """Stop submitting tasks."""
    _need(work, "pause")
    work.state = InstanceState.READY_PAUSE


def resume(work: Working) -> None:
    """Resubmit the tasks that were withdrawn from the workers, as new attempts."""
    _need(work, "resume")
    for name, task in work.tasks.items():
        if task.state is TaskState.PAUSED:
            work.put(name, TaskState.READY)
    logical.resume(work)
    if work.state is InstanceState.PAUSED:
        work.restart()
    else:
        work.state = InstanceState.RUNNING


def stop(work: Working) -> None:
    """Withdraw all queued tasks and kill the running ones."""
    _need(work, "stop")
    work.state = InstanceState.READY_STOP


def recover(work: Working, event: Recover) -> None:
    """Run the failed and killed tasks again, and the chosen tasks with everything downstream of them."""
    _need(work, "recover", {_SUCCESS} if event.start_from else ())
    _known(work, event.start_from)
    again = work.plan.reached(event.start_from) if event.start_from else frozenset[str]()
    if not work.tasks:  # stopped before it began
        work.tasks = dict.fromkeys(work.plan.rules, Task())
    failed = {name for name in work.tasks if _again(work, name)}
    for name, task in work.tasks.items():
        if base_of(name) in again or name in failed:
            work.tasks[name] = task.again()
    work.restart(_state(waits=event.waits))


def _again(work: Working, name: str) -> bool:
    """Return whether a task failed and runs again.

    An element runs again only with its map. A failure that a condition evaluates does not count.
    """
    state = work.tasks[name].state
    if (base := base_of(name)) != name:
        return state in FAILED and _again(work, base)
    return state is TaskState.KILLED or (state is TaskState.FAILURE and logical.counts(work, name))


def rerun(work: Working, event: Rerun) -> None:
    """Start a new run. Later reports of earlier attempts are ignored."""
    _need(work, "rerun")
    work.run += 1
    work.fresh = event.fresh
    work.tasks = dict.fromkeys(work.plan.rules, Task())
    work.restart(_state(waits=event.waits))


def force_success(work: Working, event: ForceSuccess) -> None:
    """Mark a failed task as successful.

    A completed instance keeps its state, except that a failed instance without any other unfinished task becomes
    successful.
    """
    _known(work, [event.task], work.tasks)
    task = work.tasks.get(event.task)
    if task is None or task.state not in FAILED:
        raise WrongState(
            f"task {event.task!r} is {_word(task)}; only one that failed or was ended can be forced to success"
        )
    work.put(event.task, TaskState.FORCED_SUCCESS)
    is_open = any(work.tasks[name].state not in DONE and logical.counts(work, name) for name in work.plan.rules)
    if work.state is InstanceState.FAILURE and not is_open:
        work.state = InstanceState.SUCCESS
        work.tell("success")


def force_start(work: Working, event: ForceStart) -> None:
    """Withdraw a queued task and queue it again, as a new attempt that needs no slot."""
    _known(work, [event.task], work.tasks)
    task = work.tasks.get(event.task)
    if work.state is not InstanceState.RUNNING or task is None or task.state is not TaskState.SUBMITTED:
        raise WrongState(
            f"task {event.task!r} is {_word(task)}, its instance {work.state.value}; only a queued task of a running "
            "instance can be started by force"
        )
    work.tasks[event.task] = replace(task, forced_after=task.n)


_SUCCESS = InstanceState.SUCCESS


def _in_scope(work: Working, event: Start) -> frozenset[str]:
    if not event.start_from:
        return frozenset(work.plan.rules)
    if event.scope is Scope.ONLY:
        return frozenset(event.start_from)
    return work.plan.reached(event.start_from, upstream=event.scope is Scope.UPSTREAM)


def _need(work: Working, command: str, more: Collection[InstanceState] = ()) -> None:
    states = TAKEN_IN[command].union(more)
    if work.state not in states:
        takes = ", ".join(sorted(each.value for each in states))
        raise WrongState(f"the instance is {work.state.value}; {command} needs one that is {takes}")


def _known(work: Working, names: Iterable[str], more: Collection[str] = ()) -> None:
    for name in names:
        if name not in work.plan.rules and name not in more:
            raise UnknownWorkflow(f"the workflow has no task {name!r}; it has {', '.join(list(work.plan.rules)[:20])}")


def _word(task: Task | None) -> str:
    return "not there yet" if task is None else task.state.value
