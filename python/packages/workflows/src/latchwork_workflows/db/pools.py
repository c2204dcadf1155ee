"""Pools in the database. The master of the first shard copies their sizes to the store, in which workers take slots.

The tasks that run are counted by slots in the store. The tasks that are queued or running are counted by rows of all
shards; a start counts them under the lock of the pool's row, so two starts come one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db.tables import IS_GOING, definition, definition_version, pool, task, workflow_run
from latchwork_workflows.keys import list_pool_keys
from latchwork_workflows.model.definition import Definition
from latchwork_workflows.schemas.pools import PoolSettings
from latchwork_workflows.state import TaskState

#: The size of a pool that is created because a workflow names it.
DEFAULT_SIZE = 1
_FIND = sa.select(pool).where(pool.c.name == sa.bindparam("name"))
_FIND_LOCKED = _FIND.with_for_update()


def list_pools(connection: sa.Connection) -> list[PoolSettings]:
    """Return all pools, sorted by name."""
    return [PoolSettings.model_validate(row) for row in connection.execute(sa.select(pool).order_by(pool.c.name))]


def find_pool(connection: sa.Connection, name: str, *, lock: bool = False) -> PoolSettings | None:
    """Return a pool, or None if there is none.

    Args:
        connection: A transaction.
        name: The name of the pool.
        lock: Lock its row until the end of the transaction.
    """
    row = connection.execute(_FIND_LOCKED if lock else _FIND, {"name": name}).first()
    return None if row is None else PoolSettings.model_validate(row)


def create_missing_pools(connection: sa.Connection, names: Iterable[str]) -> None:
    """Create the named pools that do not exist, with a size of 1."""
    rows = [{"name": name, "size": DEFAULT_SIZE, "admission": "suspend"} for name in sorted(set(names))]
    if rows:
        insert = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(pool)
        connection.execute(insert.on_conflict_do_nothing(index_elements=["name"]), rows)


def save_pool(connection: sa.Connection, settings: PoolSettings) -> bool:
    """Create or change a pool, and return whether it is new."""
    values = settings.model_dump()
    changed = connection.execute(sa.update(pool).where(pool.c.name == settings.name).values(**values)).rowcount
    if not changed:
        connection.execute(sa.insert(pool).values(**values))
    return not changed


def remove_pool(connection: sa.Connection, name: str) -> bool:
    """Delete a pool, and return whether it existed."""
    return bool(connection.execute(sa.delete(pool).where(pool.c.name == name)).rowcount)


def list_workflows_by_pool(connection: sa.Connection) -> dict[str, list[str]]:
    """Return, for each pool, the workflows that use it in their newest version, as ``project.name``."""
    newest = sa.and_(
        definition_version.c.code == definition.c.code, definition_version.c.version == definition.c.version
    )
    chosen = sa.select(definition_version.c.body).join(definition, newest)
    named = chosen.where(definition_version.c.body.contains('"pool"', autoescape=True))
    found: dict[str, list[str]] = {}
    for body in connection.execute(named.order_by(definition.c.project, definition.c.name)).scalars():
        try:
            flow = Definition.model_validate_json(body)
        except ValueError:
            continue  # written by a later version
        for name in sorted({each.pool for each in flow.tasks if each.pool is not None}):
            found.setdefault(name, []).append(flow.key)
    return found


def count_active_tasks(connection: sa.Connection, project: str) -> int:
    """Return how many tasks of a project are queued or running, in all shards."""
    of_project = sa.select(definition.c.code).where(definition.c.project == project)
    active = _build_active_runs_cte(workflow_run.c.code.in_(of_project))
    chosen = sa.select(sa.func.count()).select_from(active).join(task, _is_of(active))
    states = task.c.state.in_([TaskState.SUBMITTED.value, TaskState.RUNNING.value])
    return int(connection.execute(chosen.where(states, task.c.queue_key.is_not(None))).scalar_one())


def count_waiting_tasks_by_pool(connection: sa.Connection) -> dict[str, int]:
    """Return the number of queued tasks that need a slot of each pool, by pool key. Pools without such tasks are left
    out.
    """
    found: dict[str, int] = {}
    for _, partition, _ in _iter_queued_tasks(connection):
        for name in list_pool_keys(partition):
            found[name] = found.get(name, 0) + 1
    return found


def find_waiting_tasks(connection: sa.Connection, name: str, limit: int) -> tuple[int, list[int]]:
    """Return the number of tasks that wait for a slot of a pool, and the IDs of the first ones in queue order.

    Args:
        connection: A transaction.
        name: The key of the pool in the store.
        limit: The maximum number of IDs.
    """
    mine = [
        (sort_key, number)
        for number, partition, sort_key in _iter_queued_tasks(connection)
        if name in list_pool_keys(partition)
    ]
    return len(mine), [number for _, number in nsmallest(limit, mine)]


def _iter_queued_tasks(connection: sa.Connection) -> Iterator[tuple[int, str, str]]:
    """Yield the ID, the partition and the sort key of each queued task that needs a slot of a pool."""
    active = _build_active_runs_cte()
    chosen = sa.select(task.c.id, task.c.queue_key).select_from(active).join(task, _is_of(active))
    chosen = chosen.where(task.c.state == TaskState.SUBMITTED.value, task.c.queue_key.contains("~"))
    for row in connection.execute(chosen):
        partition, _, sort_key = row.queue_key.partition("/")
        yield row.id, partition, sort_key


def _build_active_runs_cte(*more: sa.ColumnElement[bool]) -> sa.CTE:
    """Build a common table expression of the active runs, to which a query for tasks can be restricted.

    There are few active runs. Without the restriction, a database may read all tasks of a long history.
    """
    return (
        sa.select(workflow_run.c.id, workflow_run.c.round)
        .where(IS_GOING, *more)
        .cte("going")
        .prefix_with("MATERIALIZED")
    )


def _is_of(active: sa.CTE) -> sa.ColumnElement[bool]:
    return sa.and_(task.c.run_id == active.c.id, task.c.round == active.c.round)
