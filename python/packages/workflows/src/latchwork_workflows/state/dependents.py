"""Whether a run of another workflow is what a dependent waits for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from latchwork_workflows.state.records import DONE, FAILED, OVER, InstanceState, TaskState

#: Of ``Other.task``: each task of the run.
ALL_TASKS = "*"


def of_run(state: InstanceState, task: str, tasks: Mapping[str, TaskState]) -> bool | None:
    """What one run says: True, it is as wanted; False, it failed; None, it goes on, or may go on.

    Args:
        state: of the run.
        task: of it; empty: the run as a whole; ``ALL_TASKS``: each of its tasks.
        tasks: their states, by name; those of the run as a whole are not looked at.
    """
    if not task:
        if state is InstanceState.SUCCESS:
            return True
        return False if state in {InstanceState.FAILURE, InstanceState.STOPPED} else None
    return _of_tasks(state, tasks.values() if task == ALL_TASKS else [tasks[task]] if task in tasks else [])


def _of_tasks(state: InstanceState, tasks: Iterable[TaskState]) -> bool | None:
    """One that was switched off counts as success, and one that is tried again has not failed yet."""
    states = set(tasks)
    if states and states <= DONE:
        return True
    is_over = state in OVER and state is not InstanceState.PAUSED
    return False if is_over or states & FAILED else None


def of_spans(found: Iterable[bool | None]) -> bool | None:
    """What the newest runs of several spans say together; a span without one is None."""
    said = list(found)
    if False in said:
        return False
    return None if None in said or not said else True
