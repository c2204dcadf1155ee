"""What people did, and what happened: events, written with the fact and read the newest first. Audit and timeline."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from latchwork_workflows.db.tables import event


@dataclass(frozen=True, slots=True)
class Told:
    """One event.

    Attributes:
        id: grows with time, nearly.
        at: in seconds since the epoch.
        kind: what happened.
        by: who did it; empty: nobody, it happened.
        project: of what is no instance.
        instance: of which.
        task: of which.
        details: what else is known.
    """

    id: int
    at: float
    kind: str
    by: str
    project: str
    instance: int | None
    task: str
    details: Mapping[str, Any] | None


def told(
    connection: sa.Connection,
    kind: str,
    *,
    by: str,
    project: str = "",
    instance: int | None = None,
    task: str = "",
    details: Mapping[str, Any] | None = None,
) -> None:
    """Write that somebody did something, in the transaction in which it is done."""
    row = {"kind": kind, "by": by[:200], "project": project, "instance": instance, "task": task[:100]}
    connection.execute(sa.insert(event).values(**row, at=time.time(), details=dict(details) if details else None))


def of_instance(
    connection: sa.Connection, instance_id: int, *, before: int | None = None, most: int = 100
) -> list[Told]:
    """What happened to an instance, the newest first."""
    chosen = _rows().where(event.c.instance == instance_id).order_by(event.c.id.desc()).limit(most)
    return _read(connection, chosen if before is None else chosen.where(event.c.id < before))


def of_people(
    connection: sa.Connection,
    *,
    projects: Collection[str] | None = None,
    before: int | None = None,
    by: str = "",
    most: int = 100,
) -> list[Told]:
    """What people did, the newest first.

    Args:
        connection: a transaction.
        projects: in these only; None: in all, and where there is none.
        before: older than this id.
        by: this account only.
        most: so many.
    """
    chosen = _rows().where(event.c.by != "").order_by(event.c.id.desc()).limit(most)
    if projects is not None:
        chosen = chosen.where(event.c.project.in_(sorted(projects)))
    if by:
        chosen = chosen.where(event.c.by == by)
    return _read(connection, chosen if before is None else chosen.where(event.c.id < before))


def _rows() -> sa.Select[Any]:
    return sa.select(*(event.c[name] for name in Told.__slots__))


def _read(connection: sa.Connection, chosen: sa.Select[Any]) -> list[Told]:
    rows: Sequence[Any] = connection.execute(chosen).all()
    return [Told(*row) for row in rows]
