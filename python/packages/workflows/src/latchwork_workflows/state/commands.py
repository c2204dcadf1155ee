"""What each command does to an instance, and which state takes it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from latchwork_workflows.errors import UnknownWorkflow, WrongState
from latchwork_workflows.state import logical
from latchwork_workflows.state.events import ForceStart, ForceSuccess, Recover, Rerun, Start
from latchwork_workflows.state.records import DONE, FAILED, InstanceState, Scope, Task, TaskState, Working, base_of

_NEW = frozenset({InstanceState.SUBMITTED, InstanceState.SERIAL_WAIT})
#: The states of an instance that take each command. A recovery from chosen tasks is taken by ``success`` as well.
TAKEN_IN = {
    "start": _NEW,
    "pause": frozenset({InstanceState.RUNNING}),
    "resume": frozenset({InstanceState.PAUSED, InstanceState.READY_PAUSE}),
    "stop": frozenset({InstanceState.RUNNING, InstanceState.READY_PAUSE, InstanceState.PAUSED, *_NEW}),
    "recover": frozenset({InstanceState.FAILURE, InstanceState.STOPPED}),
    "rerun": frozenset({InstanceState.SUCCESS, InstanceState.FAILURE, InstanceState.STOPPED}),
}


def possible(state: InstanceState) -> tuple[str, ...]:
    """The commands of people that an instance in this state takes."""
    return tuple(name for name, states in TAKEN_IN.items() if state in states and name != "start")


def start(work: Working, event: Start) -> None:
    """Every task waits; those out of scope are skipped."""
    _need(work, "start")
    _known(work, event.start_from)
    chosen = _in_scope(work, event)
    work.dry, work.fresh = event.dry, event.fresh
    work.tasks = {name: Task(TaskState.WAITING if name in chosen else TaskState.SKIPPED) for name in work.plan.rules}
    work.restart(_state(waits=event.waits))


def _state(*, waits: bool) -> InstanceState:
    return InstanceState.SERIAL_WAIT if waits else InstanceState.RUNNING


def begin(work: Working) -> None:
    """It waits no more; one that does not wait is left as it is."""
    if work.state is InstanceState.SERIAL_WAIT:
        work.restart()


def pause(work: Working) -> None:
    """Nothing is submitted any more."""
    _need(work, "pause")
    work.state = InstanceState.READY_PAUSE


def resume(work: Working) -> None:
    """What was taken back from the workers is submitted again, as another attempt."""
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
    """Everything is taken back, and what runs is ended."""
    _need(work, "stop")
    work.state = InstanceState.READY_STOP


def recover(work: Working, event: Recover) -> None:
    """What failed or was ended waits again, and all that was chosen with everything behind it."""
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
    """Whether it failed and runs again: an element only with its map, and not what conditions have looked at."""
    state = work.tasks[name].state
    if (base := base_of(name)) != name:
        return state in FAILED and _again(work, base)
    return state is TaskState.KILLED or (state is TaskState.FAILURE and logical.counts(work, name))


def rerun(work: Working, event: Rerun) -> None:
    """A new run: what earlier attempts tell from now on is history."""
    _need(work, "rerun")
    work.run += 1
    work.fresh = event.fresh
    work.tasks = dict.fromkeys(work.plan.rules, Task())
    work.restart(_state(waits=event.waits))


def force_success(work: Working, event: ForceSuccess) -> None:
    """The task counts as success. An instance that is over stays so, unless nothing else is open: then it succeeded."""
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
    """The queued task is to be taken back and queued again where no slot is needed, as another attempt."""
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
