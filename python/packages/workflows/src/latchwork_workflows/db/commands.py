"""Commands: what people, clocks and other shards ask of the owner of a shard. Anybody inserts, the owner consumes.

A command that was consumed stays, with ``done_at``: a repeated ``unique_key`` finds it and starts nothing more. One
that could not be done has an ``error``. ``args`` of each type:

``start``          code, version, params, priority (None: that of the definition), start_from, scope, dry,
                   no_cache, schedule_time (None: when the command was written); ``instance`` is set once there is one
``backfill``       code, version, moments (each becomes an instance), params, priority, dry, parallel, order,
                   stop_on_failure, no_cache, dependents, cause (the command whose backfill leads to it);
                   ``backfill`` of the row is set once there is one
``backfill_stop``  backfill
``recover``        start_from
``force_success``, ``force_start``   task
``rerun``          no_cache
``pause``, ``resume``, ``stop``   none
``wake``           none; or backfill, whose next moments are to be started; or code, of which something has ended, and
                   after: who waits for it has looked, up to this instance
``mend``           none, and no instance: the shard is read again, and what nobody waits for is dropped
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa

from latchwork.errors import LatchworkError
from latchwork_workflows.db.tables import command, shard
from latchwork_workflows.errors import KeyReused


class CommandType(StrEnum):
    """What can be asked."""

    START = "start"
    RECOVER = "recover"
    RERUN = "rerun"
    RESUME = "resume"
    PAUSE = "pause"
    STOP = "stop"
    FORCE_SUCCESS = "force_success"
    FORCE_START = "force_start"
    BACKFILL = "backfill"
    BACKFILL_STOP = "backfill_stop"
    TIMER = "timer"
    WAKE = "wake"
    FAILOVER = "failover"
    WAITING_THREAD = "waiting_thread"
    MEND = "mend"


#: What only masters and ``doctor`` write; who else asks for it is refused.
INTERNAL = frozenset(
    {CommandType.TIMER, CommandType.WAKE, CommandType.FAILOVER, CommandType.WAITING_THREAD, CommandType.MEND}
)


class Asked(NamedTuple):
    """A command that was written.

    Attributes:
        id: of it.
        shard: whose owner consumes it.
        is_new: whether it was written just now; False: its unique key was there.
    """

    id: int
    shard: int
    is_new: bool


def ask(
    connection: sa.Connection,
    kind: CommandType,
    *,
    shard_id: int,
    instance: int | None = None,
    args: Mapping[str, Any] | None = None,
    project: str = "",
    unique_key: str | None = None,
    by: str = "",
) -> Asked:
    """Write a command, unless its unique key was given before for the same.

    Args:
        connection: a transaction.
        kind: what is asked.
        shard_id: of the instance; of a start any, see ``draw``.
        instance: which, unless it is a start.
        args: as the head of this module says.
        project: whose unique key it is: another project may have given the same one.
        unique_key: at most 200 characters; the same key and the same command again change nothing.
        by: who asks.
    Raises:
        KeyReused: the key was given before, for another command.
    """
    given = dict(args or {})
    row = {"type": kind.value, "args": given, "project": project, "unique_key": unique_key, "by": by[:200]}
    new = sa.insert(command).values(**row, shard=shard_id, instance=instance, created_at=time.time())
    if unique_key is None:
        return Asked(int(connection.execute(new.returning(command.c.id)).scalar_one()), shard_id, is_new=True)
    try:
        with connection.begin_nested():
            return Asked(int(connection.execute(new.returning(command.c.id)).scalar_one()), shard_id, is_new=True)
    except sa.exc.IntegrityError:
        there = connection.execute(sa.select(command).where(_has_key(project, unique_key))).one()
    is_same = there.type == kind.value and _asked(there.args) == _asked(given)
    makes = kind in {CommandType.START, CommandType.BACKFILL}
    if not is_same or (not makes and there.instance != instance):
        raise KeyReused(
            f"the key {unique_key!r} was used for command {there.id}, which is another one; give each command its own"
        )
    return Asked(int(there.id), int(there.shard), is_new=False)


def was_asked(connection: sa.Connection, project: str, unique_key: str | None) -> bool:
    """Whether a command has this key of a project: what is asked again needs no state that takes it."""
    if unique_key is None:
        return False
    return connection.execute(sa.select(command.c.id).where(_has_key(project, unique_key))).first() is not None


def _has_key(project: str, unique_key: str) -> sa.ColumnElement[bool]:
    return sa.and_(command.c.project == project, command.c.unique_key == unique_key)


def draw(connection: sa.Connection) -> int:
    """A shard for a new instance.

    Raises:
        LatchworkError: the database has none: nobody has set it up.
    """
    ids: list[int] = list(connection.execute(sa.select(shard.c.id)).scalars())
    if not ids:
        raise LatchworkError("the database has no shards; run `latchwork workflows init` first")
    return secrets.choice(ids)


def _asked(args: Mapping[str, Any]) -> dict[str, Any]:
    """Without the version: there may be a newer one when a client asks again, and it means the same."""
    return {name: value for name, value in args.items() if name != "version"}
