"""Pools: their sizes, the tasks that hold their slots, and the tasks that wait for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latchwork_workflows.db import pools
from latchwork_workflows.db.history import record_event
from latchwork_workflows.keys import build_pool_key
from latchwork_workflows.schemas.pools import Pool, PoolDetail, PoolSettings, get_project_of_pool
from latchwork_workflows.services.context import ServiceContext, require_any_role, require_role, validate
from latchwork_workflows.services.errors import object_not_found
from latchwork_workflows.services.workers import list_queued_tasks, list_tasks_of_attempts
from latchwork_workflows.web import HttpProblem, Identity, Role

#: The master of this shard copies the sizes to the store.
FIRST_SHARD = 0


def list_pools(context: ServiceContext, user: Identity) -> list[Pool]:
    """Return the pools that the account may see, sorted by name.

    Raises:
        HttpProblem: 403 (forbidden) if the account has no role in any project.
    """
    require_any_role(user)
    with context.database.read() as connection:
        found = [each for each in pools.list_pools(connection) if _may_see(user, each.name)]
        users, waiting = pools.list_workflows_by_pool(connection), pools.count_waiting_tasks_by_pool(connection)
        active = {
            each.name: pools.count_active_tasks(connection, x)
            for each in found
            if (x := get_project_of_pool(each.name))
        }
    used = context.get_slot_holders()
    return [
        Pool(
            **each.model_dump(),
            used=None if used is None else len(used.get(build_pool_key(each.name), ())),
            waiting=waiting.get(build_pool_key(each.name), 0),
            active=active.get(each.name),
            workflows=_visible(user, users.get(each.name, [])),
        )
        for each in found
    ]


def get_pool(context: ServiceContext, user: Identity, name: str, *, limit: int = 100) -> PoolDetail:
    """Return a pool with the tasks that hold its slots and the first tasks that wait for a slot.

    Args:
        context: The service context of this process.
        user: The requesting account.
        name: Name of the pool.
        limit: The maximum number of waiting tasks.
    Raises:
        HttpProblem: 403 (forbidden) if the account has no role in any project, 404 (not found) if there is no such pool
            or the account may not see it.
    """
    require_any_role(user)
    taken = context.get_slot_holders()
    with context.database.read() as connection:
        found = pools.find_pool(connection, name) if _may_see(user, name) else None
        if found is None:
            raise _missing(name)
        project, key = get_project_of_pool(name), build_pool_key(name)
        waiting, ids = pools.find_waiting_tasks(connection, key, limit)
        holders = None if taken is None else list(list_tasks_of_attempts(connection, user, taken.get(key, ())))
        return PoolDetail(
            **found.model_dump(),
            used=None if holders is None else len(holders),
            waiting=waiting,
            active=None if project is None else pools.count_active_tasks(connection, project),
            workflows=_visible(user, pools.list_workflows_by_pool(connection).get(name, [])),
            holders=holders,
            queue=list_queued_tasks(connection, user, ids),
        )


def set_pool(context: ServiceContext, user: Identity, **values: Any) -> PoolSettings:
    """Create or change a pool. If it becomes smaller, running tasks are not stopped.

    If the pool is the limit of a project, it applies to tasks that are queued from now on.

    Args:
        context: The service context of this process.
        user: Must be an editor of all projects.
        values: The fields of ``PoolSettings``.
    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 422 (invalid) with the invalid fields.
    """
    require_role(user, Role.EDITOR)
    given = validate(PoolSettings, **values)
    with context.database.write() as connection:
        is_new = pools.save_pool(connection, given)
        record_event(
            connection,
            "pool set",
            by=user.name,
            project=get_project_of_pool(given.name) or "",
            details={**given.model_dump(), "is_new": is_new},
        )
    context.notify_master(FIRST_SHARD)
    return given


def remove_pool(context: ServiceContext, user: Identity, name: str) -> None:
    """Remove a pool that no workflow uses.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such pool, 409
            (conflict) with the workflows that use the pool.
    """
    require_role(user, Role.EDITOR)
    with context.database.write() as connection:
        users = pools.list_workflows_by_pool(connection).get(name, [])
        if users:
            shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
            raise HttpProblem(409, f"pool {name} is named by {shown}; apply these without it first")
        if not pools.remove_pool(connection, name):
            raise _missing(name)
        record_event(
            connection, "pool remove", by=user.name, project=get_project_of_pool(name) or "", details={"name": name}
        )
    context.notify_master(FIRST_SHARD)


def _may_see(user: Identity, name: str) -> bool:
    project = get_project_of_pool(name)
    return project is None or user.has_role(Role.VIEWER, project)


def _visible(user: Identity, names: Sequence[str]) -> list[str]:
    return [each for each in names if user.has_role(Role.VIEWER, each.partition(".")[0])]


def _missing(name: str) -> HttpProblem:
    return object_not_found(f"there is no pool {name[:100]!r}")
