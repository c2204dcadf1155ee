"""Pools: their sizes, the tasks that hold their slots, and the tasks that wait for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latchwork_workflows.db import pools
from latchwork_workflows.db.history import told
from latchwork_workflows.keys import pool_key
from latchwork_workflows.schemas.pools import Pool, PoolDetail, PoolSettings, project_of
from latchwork_workflows.services.parts import Parts, need, need_any, valid
from latchwork_workflows.services.workers import queued, tasks_of
from latchwork_workflows.web import Identity, Problem, Role

#: The master of this shard copies the sizes to the store.
FIRST_SHARD = 0


def listed(parts: Parts, who: Identity) -> list[Pool]:
    """Return the pools, sorted by name. The pool of a project is left out if ``who`` has no role there.

    Raises:
        Problem: 403.
    """
    need_any(who)
    with parts.database.read() as connection:
        found = [each for each in pools.every(connection) if _may_see(who, each.name)]
        users, waiting = pools.users(connection), pools.waiting_counts(connection)
        active = {each.name: pools.active_count(connection, x) for each in found if (x := project_of(each.name))}
    used = parts.slots()
    return [
        Pool(
            **each.model_dump(),
            used=None if used is None else len(used.get(pool_key(each.name), ())),
            waiting=waiting.get(pool_key(each.name), 0),
            active=active.get(each.name),
            workflows=_visible(who, users.get(each.name, [])),
        )
        for each in found
    ]


def find(parts: Parts, who: Identity, name: str, *, most: int = 100) -> PoolDetail:
    """Return a pool with its holders and the first ``most`` tasks that wait.

    Raises:
        Problem: 403; 404, there is none, or ``who`` may not see it.
    """
    need_any(who)
    taken = parts.slots()
    with parts.database.read() as connection:
        found = pools.find(connection, name) if _may_see(who, name) else None
        if found is None:
            raise _missing(name)
        project, key = project_of(name), pool_key(name)
        waiting, ids = pools.waiting(connection, key, most)
        holders = None if taken is None else list(tasks_of(connection, who, taken.get(key, ())))
        return PoolDetail(
            **found.model_dump(),
            used=None if holders is None else len(holders),
            waiting=waiting,
            active=None if project is None else pools.active_count(connection, project),
            workflows=_visible(who, pools.users(connection).get(name, [])),
            holders=holders,
            queue=queued(connection, who, ids),
        )


def put(parts: Parts, who: Identity, **values: Any) -> PoolSettings:
    """Create or change a pool. Tasks that run beyond a smaller size are not stopped.

    The pool of a project applies to tasks that are queued from now on.

    Args:
        parts: The parts of this process.
        who: Must be an editor of all projects.
        values: The fields of ``PoolSettings``.
    Raises:
        Problem: 403; 422 with the invalid fields.
    """
    need(who, Role.EDITOR)
    given = valid(PoolSettings, **values)
    with parts.database.write() as connection:
        is_new = pools.put(connection, given)
        told(
            connection,
            "pool set",
            by=who.name,
            project=project_of(given.name) or "",
            details={**given.model_dump(), "is_new": is_new},
        )
    parts.poke(FIRST_SHARD)
    return given


def remove(parts: Parts, who: Identity, name: str) -> None:
    """Remove a pool that no workflow names.

    Raises:
        Problem: 403; 404; 409 with the workflows that name it.
    """
    need(who, Role.EDITOR)
    with parts.database.write() as connection:
        users = pools.users(connection).get(name, [])
        if users:
            shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
            raise Problem(409, f"pool {name} is named by {shown}; apply these without it first")
        if not pools.remove(connection, name):
            raise _missing(name)
        told(connection, "pool remove", by=who.name, project=project_of(name) or "", details={"name": name})
    parts.poke(FIRST_SHARD)


def _may_see(who: Identity, name: str) -> bool:
    project = project_of(name)
    return project is None or who.may(Role.VIEWER, project)


def _visible(who: Identity, names: Sequence[str]) -> list[str]:
    return [each for each in names if who.may(Role.VIEWER, each.partition(".")[0])]


def _missing(name: str) -> Problem:
    return Problem(404, f"there is no pool {name[:100]!r}")
