"""Builds the spec of an attempt for a worker, from a definition and a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latchwork_workflows.keys import Order, build_partition, build_sort_key
from latchwork_workflows.messages import TaskHead, TaskMessage
from latchwork_workflows.model.definition import PRIORITIES, Definition, TaskSpec
from latchwork_workflows.model.templates import CONNECTION, fill_references, iter_names
from latchwork_workflows.model.values import RunContext, compute_values
from latchwork_workflows.schemas.pools import get_pool_of_project
from latchwork_workflows.state import OnTimeout, build_element_name


def build_message(
    run: RunContext,
    task: TaskSpec,
    task_id: int,
    n: int,
    outputs: Mapping[str, Mapping[str, Any]],
    *,
    place: tuple[int, int, int],
    index: int = -1,
    cache_key: str | None = None,
) -> TaskMessage:
    """Build the message that tells a worker how to run an attempt.

    Args:
        run: The run.
        task: The task in the definition.
        task_id: The ID of the task's row.
        n: The number of the attempt.
        outputs: The outputs of tasks that have ended, by name.
        place: The shard, and the code and version of the workflow.
        index: The index of an element of a map task. -1 for other tasks.
        cache_key: The key for caching its outputs. None: they are not cached.
    Raises:
        KeyError, ValueError: As for ``compute_values``.
    """
    shard, code, version = place
    head = TaskHead(
        shard,
        task_id,
        n,
        run.run_id,
        code,
        version,
        run.definition.key,
        build_element_name(task.name, index),
        task.type,
        run.definition.tenant,
        None if task.on_timeout is OnTimeout.WARN else task.timeout_s,
        cache_key=cache_key,
        project=run.definition.project,
    )
    values = compute_values(run, task, n, outputs, index=index)
    env = build_environment(run, task, values)
    return TaskMessage(
        head, task.params, env, values, run.schedule_time, run.tz, select_connections(run, task, env, values)
    )


def build_environment(run: RunContext, task: TaskSpec, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of a task.

    Variables that would replace a value passed to the script are left out.

    Args:
        run: The run.
        task: The task in the definition.
        values: The values of the task, by name.
    """
    environment = run.get_environment(task).items()
    return {**{name: each for name, each in environment if values.get(name, each) == each}, **task.env}


def select_connections(
    run: RunContext, task: TaskSpec, env: Mapping[str, str], values: Mapping[str, Any]
) -> dict[str, Mapping[str, str]]:
    """Return the stored connections that a task uses, by name. Missing ones are left out, and the worker reports them.

    Args:
        run: The run.
        task: The task in the definition.
        env: The environment variables of the task.
        values: The values of the task, by name.
    """
    names = {each[len(CONNECTION) :] for each in iter_names([task.params, env]) if each.startswith(CONNECTION)}
    given = task.params.get("connection")
    try:
        given = fill_references(given, values, run.schedule_datetime) if isinstance(given, str) else None
    except (KeyError, ValueError):  # reported by the worker
        given = None
    if isinstance(given, str):
        names.add(given)
    return {name: run.connections[name] for name in sorted(names & run.connections.keys())}


def build_queue_key(
    definition: Definition,
    task: TaskSpec,
    run_id: int,
    priority: int,
    *,
    now: float,
    order: Order,
    forced: bool,
    has_project_pool: bool = False,
) -> str:
    """Return the partition and the sort key of an attempt in the work queue, as one text.

    Args:
        definition: The definition.
        task: The task in the definition.
        run_id: The ID of the run.
        priority: The priority of the run.
        now: Seconds since the epoch.
        order: Order in which tasks are claimed.
        forced: Whether the task starts without waiting for a pool slot.
        has_project_pool: Whether the project has a pool that limits its tasks.
    """
    pools = [] if forced or task.pool is None else [task.pool]
    if has_project_pool and not forced:
        pools.append(get_pool_of_project(definition.project))
    partition = build_partition(task.worker_group or definition.worker_group, *pools)
    in_run = PRIORITIES.index(task.priority)
    return f"{partition}/{build_sort_key(order, run_id, priority, in_run, now)}/{in_run}"
