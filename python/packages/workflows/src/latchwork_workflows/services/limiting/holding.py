"""Who holds the slots of a task group or of a project, and who waits for one: as far as the asker may see them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from latchwork.errors import InvalidKey
from latchwork_workflows.db.views import slots
from latchwork_workflows.keys import attempt_of
from latchwork_workflows.model.model import NAME_PATTERN
from latchwork_workflows.services.parts import WorkerSeen
from latchwork_workflows.web import Identity, Problem, Role

Row: TypeAlias = Any


class SlotTask(NamedTuple):
    """A task that holds a slot, or waits for one. All but ``since`` is empty if the asker may not see its project.

    Attributes:
        task: its number; None: it may not be seen, or is no task of ours.
        name: of the task.
        workflow: ``project.name``.
        run: the number of its run.
        worker: that has it; empty: none.
        since: for how long it holds the slot or waits, as a moment in seconds since the epoch; None: not known.
    """

    task: int | None = None
    name: str = ""
    workflow: str = ""
    run: int | None = None
    worker: str = ""
    since: float | None = None


class Held(NamedTuple):
    """Who has the slots of a group, and who wants one.

    Attributes:
        holders: one for each slot that is taken, the longest first; None: the store cannot be asked.
        waiting: who is taken next, in their order.
        waiting_count: how many wait in all.
    """

    holders: tuple[SlotTask, ...] | None
    waiting: tuple[SlotTask, ...]
    waiting_count: int


def check_name(field: str, name: str) -> None:
    """Refuse what is no name of a group or a project.

    Raises:
        Problem: 422.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        what = f"{name!r:.60} is no name; use up to 100 letters, digits, '_', '-' and '.'"
        raise Problem(422, f"{field}: {what}", errors=[(field, what)])


def held(
    connection: sa.Connection, who: Identity, name: str, taken: Mapping[str, Sequence[str]] | None, *, most: int
) -> Held:
    """Who holds and who waits.

    Args:
        connection: a transaction.
        who: asks.
        name: of the group, or what the slots of a project are of.
        taken: the attempts that hold slots, by group; None: the store cannot be asked.
        most: so many of those that wait.
    """
    found = slots.waiting(connection, name, most)
    waiting = tuple(_seen(who, row, "", row.changed_at) for row in found.first)
    if taken is None:
        return Held(None, waiting, found.total)
    return Held(holders_of(connection, who, taken.get(name, ())), waiting, found.total)


def holders_of(connection: sa.Connection, who: Identity, names: Sequence[str]) -> tuple[SlotTask, ...]:
    """The tasks of these attempts, those that have their slots for the longest first."""
    found = tasks_of(connection, who, names)
    return _by_age(found[each] for each in names)


def at_work(connection: sa.Connection, who: Identity, workers: Sequence[WorkerSeen]) -> dict[str, tuple[SlotTask, ...]]:
    """What each of these workers runs, by its name; those that it has for the longest first."""
    found = tasks_of(connection, who, {x for each in workers for x in each.attempts})
    return {each.name: _by_age(found[x] for x in each.attempts) for each in workers}


def _by_age(found: Iterable[SlotTask]) -> tuple[SlotTask, ...]:
    return tuple(sorted(found, key=lambda each: (each.since is None, each.since or 0.0)))


def tasks_of(connection: sa.Connection, who: Identity, names: Collection[str]) -> dict[str, SlotTask]:
    """The tasks of these attempts, ``<task>.<n>``, by these names."""
    pairs = {name: _pair(name) for name in names}
    ids = {pair[0] for pair in pairs.values() if pair is not None}
    rows, claims = slots.of_tasks(connection, ids), slots.at_work(connection, ids)
    found = {}
    for name, pair in pairs.items():
        row, claim = (None, None) if pair is None else (rows.get(pair[0]), claims.get(pair))
        since = None if claim is None else claim.started_at
        found[name] = _seen(who, row, "" if claim is None else claim.worker, since)
    return found


def _pair(x: str) -> tuple[int, int] | None:
    try:
        return attempt_of(x)
    except InvalidKey:
        return None  # nobody of ours took this slot


def _seen(who: Identity, row: Row, worker: str, since: float | None) -> SlotTask:
    if row is None or not who.may(Role.VIEWER, row.project):
        return SlotTask(since=since)
    return SlotTask(row.id, row.name, f"{row.project}.{row.workflow}", row.instance, worker, since)
