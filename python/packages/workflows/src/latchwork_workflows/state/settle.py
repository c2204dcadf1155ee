"""State changes that follow from the current states, whatever event led to them. Idempotent."""

from __future__ import annotations

from dataclasses import replace

from latchwork_workflows.state import logical
from latchwork_workflows.state.records import (
    DONE,
    FAILED,
    IN_HANDS,
    MOST_IN_HANDS,
    MOVING,
    OVER,
    InstanceState,
    OnFailure,
    OnTimeout,
    Rule,
    Task,
    TaskState,
    Working,
    base_of,
)

#: No worker has such a task. It becomes KILLED when the instance ends early.
_IDLE = frozenset({TaskState.READY, TaskState.DELAYED, TaskState.RETRY_WAIT, TaskState.PAUSED})


#: Clocks of two masters may differ by this many seconds before a wait is corrected.
_APART_S = 5.0


def settle(work: Working) -> None:
    """Apply timers, make tasks ready, submit them, and complete the instance if it has ended, in this order."""
    if work.state in OVER or work.state in {InstanceState.SUBMITTED, InstanceState.SERIAL_WAIT}:
        return
    _time(work)
    is_open = True
    while is_open:  # a failed map may end the others, or conditions may depend on it
        _end_on_failure(work)
        if work.state is InstanceState.RUNNING and not work.ending:
            _make_ready(work)
            while _submit(work):  # conditions are decided at once, so their successors may be ready
                _make_ready(work)
        elif work.ending or work.state is InstanceState.READY_STOP:
            _kill_idle(work)
        is_open = logical.hold(work)
    _finish(work)


def _time(work: Working) -> None:
    """Apply the timers that are due."""
    for name, task in work.tasks.items():
        if task.wake_at is None:
            continue
        if task.wake_at > work.now:
            _nearer(work, name, task)
        elif task.held:
            logical.due(work, name)
        else:
            _its_time(work, name, task)
    if work.warn_at is not None and work.warn_at <= work.now:
        work.warn_at = None
        if work.plan.on_timeout is not OnTimeout.FAIL:
            work.tell("timeout")
        if work.plan.on_timeout is not OnTimeout.WARN:
            work.ending = work.ending or "timeout"


def _nearer(work: Working, name: str, task: Task) -> None:
    """Shorten a wait that is longer than its rule allows, because a clock was ahead or was set back."""
    rule, most_s = work.plan.rule(name), None
    if task.held:
        most_s = logical.LOOK_RARELY_S
    elif task.state is TaskState.DELAYED:
        most_s = rule.delay_s
    elif task.state is TaskState.RETRY_WAIT:
        most_s = rule.retry_interval_s
    if most_s is not None and task.wake_at is not None and task.wake_at > work.now + most_s + _APART_S:
        work.tasks[name] = replace(task, wake_at=work.now + most_s)


def _its_time(work: Working, name: str, task: Task) -> None:
    if task.state is TaskState.RUNNING:
        work.tell("timeout", name, task.n)
        work.put(name, TaskState.RUNNING)
    elif work.state is not InstanceState.RUNNING or work.ending:
        return
    elif task.state is TaskState.SUBMITTED:  # overdue: it is withdrawn, unless a worker claims it first
        work.tasks[name] = replace(task, wake_at=None)
    elif task.state in {TaskState.DELAYED, TaskState.RETRY_WAIT}:
        work.put(name, TaskState.READY)


def _end_on_failure(work: Working) -> None:
    """End the other tasks after a final failure, if the definition says so."""
    if work.ending or work.plan.on_failure is not OnFailure.END or work.state is InstanceState.READY_STOP:
        return
    if any(task.state in FAILED and logical.counts(work, name) for name, task in work.tasks.items()):
        work.ending = "failure"


def _make_ready(work: Working) -> None:
    """Make tasks ready whose predecessors are done.

    A skipped task is done at once, so the order of the plan matters.
    """
    for name, rule in work.plan.rules.items():
        if _is_cut(work, name, rule):
            work.tasks[name] = replace(work.tasks[name].to(TaskState.SKIPPED), cut=True)
        elif _may_start(work, name, rule):
            _arrived(work, name, rule)


def _waits(work: Working, name: str) -> bool:
    task = work.tasks.get(name)  # missing if the instance was stopped before it began
    return task is not None and task.state is TaskState.WAITING


def _is_cut(work: Working, name: str, rule: Rule) -> bool:
    """Return whether a waiting task never runs: no branch to it was chosen, or all its predecessors are cut."""
    if not _waits(work, name):
        return False
    forks = work.plan.forks.get(name)
    if forks:
        return all(_refuses(work.tasks[fork], name) for fork in forks)
    return bool(rule.after) and all(work.tasks[before].cut for before in rule.after)


def _refuses(fork: Task, head: str) -> bool:
    return fork.cut or (fork.state in DONE and fork.chosen is not None and head not in fork.chosen)


def _may_start(work: Working, name: str, rule: Rule) -> bool:
    """Return whether a task waits, its predecessors are done, and a branch leads to it. Conditions accept failures too.

    One branch is enough: the task does not wait for the other branches to be decided.
    """
    enough = DONE | FAILED if rule.kind == "conditions" else DONE
    forks = work.plan.forks.get(name, ())

    def is_done(before: str) -> bool:
        return work.tasks[before].state in enough

    def leads(fork: str) -> bool:
        return is_done(fork) and not _refuses(work.tasks[fork], name)

    return (
        _waits(work, name)
        and all(is_done(before) for before in rule.after if before not in forks)
        and (not forks or any(leads(fork) for fork in forks))
    )


def _arrived(work: Working, name: str, rule: Rule) -> None:
    if not rule.enabled:
        work.put(name, TaskState.SKIPPED)
    elif work.dry:
        work.put(name, TaskState.SUCCESS)
    elif rule.delay_s > 0:
        work.put(name, TaskState.DELAYED, wake_at=work.now + rule.delay_s)
    else:
        work.put(name, TaskState.READY)


def _submit(work: Working) -> bool:
    """Submit ready tasks to the workers, in the order of the definition and up to the limit.

    The master takes all ready logical tasks at once. Returns whether other tasks may be ready now.
    """
    free = MOST_IN_HANDS - sum(task.in_hands for task in work.tasks.values())
    of_maps = logical.room(work)
    is_more = False
    for name, task in list(work.tasks.items()):
        if task.state is not TaskState.READY or of_maps.get(base := base_of(name), 1) <= 0:
            continue
        kind = work.plan.kind(name)
        if kind:
            is_more = logical.take(work, name, kind) or is_more
        elif free > 0:
            work.queue(name, task.n + 1)
            free -= 1
        else:
            continue
        if base in of_maps and base != name:
            of_maps[base] -= 1
    return is_more


def _kill_idle(work: Working) -> None:
    for name, task in work.tasks.items():
        if task.state in _IDLE:
            if task.state is TaskState.PAUSED and work.plan.kind(name) == "sub_process":
                work.call("stop", name)  # its child is paused
            work.put(name, TaskState.KILLED)


def _finish(work: Working) -> None:
    """End or pause the instance if no task can continue. Map elements are represented by their maps."""
    tasks = {name: work.tasks[name] for name in work.plan.rules if name in work.tasks}
    states = {task.state for name, task in tasks.items() if task.state not in FAILED or logical.counts(work, name)}
    if any(task.state in IN_HANDS for task in tasks.values()):
        return
    if work.state is InstanceState.READY_STOP:
        _over(work, InstanceState.STOPPED, "stopped")
    elif states <= DONE:
        _over(work, InstanceState.SUCCESS, "success")
    elif work.ending or not (states & MOVING or TaskState.PAUSED in states or _can_go_on(work)):
        _over(work, InstanceState.FAILURE, "failure")
    elif work.state is InstanceState.READY_PAUSE:
        _over(work, InstanceState.PAUSED, "paused")


def _can_go_on(work: Working) -> bool:
    """Return whether a waiting task could start or be skipped. Possible only in a pause."""
    return any(_may_start(work, name, rule) or _is_cut(work, name, rule) for name, rule in work.plan.rules.items())


def _over(work: Working, state: InstanceState, kind: str) -> None:
    work.state = state
    work.warn_at = None
    work.tell(kind)
