"""Backfills, as somebody looks at them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db.tables import backfill, definition, instance

#: A row, by the names of its columns.
Row: TypeAlias = Any

_BACKFILL = sa.select(*backfill.c, definition.c.project, definition.c.name).join(
    definition, definition.c.code == backfill.c.code
)


def find(connection: sa.Connection, number: int) -> Row | None:
    """One backfill with the name of its workflow; None if there is none."""
    return connection.execute(_BACKFILL.where(backfill.c.id == number)).first()


def newest(
    connection: sa.Connection, *, codes: Collection[int] | None = None, before: int | None = None, most: int = 50
) -> list[Row]:
    """The newest backfills: of these workflows, or of all; with lower ids than ``before``."""
    chosen = _BACKFILL.order_by(backfill.c.id.desc()).limit(most)
    if codes is not None:
        chosen = chosen.where(backfill.c.code.in_(codes))
    return list(connection.execute(chosen if before is None else chosen.where(backfill.c.id < before)).all())


def counts(connection: sa.Connection, numbers: Collection[int]) -> dict[int, dict[str, int]]:
    """How many instances of each of these backfills are in each state."""
    if not numbers:
        return {}
    by = (instance.c.backfill, instance.c.state)
    counted = sa.select(*by, sa.func.count().label("count")).where(instance.c.backfill.in_(numbers)).group_by(*by)
    found: dict[int, dict[str, int]] = {number: {} for number in numbers}
    for row in connection.execute(counted):
        found[row.backfill][row.state] = row[2]
    return found


def instances(
    connection: sa.Connection, number: int, *, state: str = "", after: float | None = None, most: int | None = None
) -> list[Row]:
    """The instances of a backfill, the oldest moment first: in a state, of moments behind one, so many."""
    columns = (instance.c.id, instance.c.schedule_time, instance.c.state, instance.c.started_at, instance.c.ended_at)
    chosen = sa.select(*columns).where(instance.c.backfill == number).order_by(instance.c.schedule_time)
    if state:
        chosen = chosen.where(instance.c.state == state)
    if after is not None:
        chosen = chosen.where(instance.c.schedule_time > after)
    return list(connection.execute(chosen.limit(most)).all())
