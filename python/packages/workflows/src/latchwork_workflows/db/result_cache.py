"""The cache of outputs of succeeded tasks, by cache key. Any shard writes, in the order of the keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db.tables import result_cache

_TOGETHER = 400


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Cached outputs of a task.

    Attributes:
        run: The run of the task.
        made_at: When the task succeeded, in seconds since the epoch.
        expires_at: When the entry expires.
        outputs: The outputs.
    """

    run_id: int
    made_at: float
    expires_at: float
    outputs: Mapping[str, Any]


def find_cache_entries(connection: sa.Connection, keys: Iterable[str]) -> dict[str, CacheEntry]:
    """Return the cached entries for these keys, including expired ones."""
    found: dict[str, CacheEntry] = {}
    wanted = sorted(set(keys))
    for start in range(0, len(wanted), _TOGETHER):
        chosen = sa.select(result_cache).where(result_cache.c.key.in_(wanted[start : start + _TOGETHER]))
        for row in connection.execute(chosen):
            found[row.key] = CacheEntry(row.run_id, row.made_at, row.expires_at, row.outputs)
    return found


def save_cache_entries(connection: sa.Connection, entries: Mapping[str, CacheEntry]) -> None:
    """Insert or replace cache entries, in the order of their keys, so that concurrent writers do not deadlock."""
    if not entries:
        return
    insert = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(result_cache)
    changed = ("run_id", "made_at", "expires_at", "outputs")
    upsert = insert.on_conflict_do_update(
        index_elements=["key"], set_={name: insert.excluded[name] for name in changed}
    )
    rows = [
        {"key": key, **{name: getattr(each, name) for name in changed[:3]}, "outputs": dict(each.outputs)}
        for key, each in sorted(entries.items())
    ]
    connection.execute(upsert, rows)


def delete_expired_cache_entries(connection: sa.Connection, now: float, limit: int = 500) -> int:
    """Delete up to ``limit`` expired cache entries and return how many were deleted."""
    old = sa.select(result_cache.c.key).where(result_cache.c.expires_at <= now).limit(limit)
    keys = list(connection.execute(old).scalars())
    for start in range(0, len(keys), _TOGETHER):
        part = result_cache.c.key.in_(keys[start : start + _TOGETHER])
        connection.execute(sa.delete(result_cache).where(part, result_cache.c.expires_at <= now))
    return len(keys)
