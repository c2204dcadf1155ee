"""Backfills: run one workflow for many dates. Start, read and stop them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db import backfills, workflow_queries
from latchwork_workflows.db.commands import Asked, CommandType, ask, was_asked
from latchwork_workflows.db.definitions import load as load_definition
from latchwork_workflows.db.history import told
from latchwork_workflows.db.related_runs import Behind
from latchwork_workflows.db.related_runs import behind as of_workflow
from latchwork_workflows.model.backfill_dates import DateRange, moments_of
from latchwork_workflows.model.model import Definition
from latchwork_workflows.schemas.backfills import Backfill, BackfillRequest, BackfillRun
from latchwork_workflows.schemas.commands import CommandSent
from latchwork_workflows.services.parts import Parts, need, seen, seen_codes
from latchwork_workflows.services.runs import ask_to_start, check_start, sent, workflow_to_start
from latchwork_workflows.state.backfills import STOPPABLE, BackfillState
from latchwork_workflows.web import Identity, Problem, Role

Row: TypeAlias = Any


def start(
    parts: Parts, who: Identity, project: str, name: str, given: BackfillRequest, *, unique_key: str | None = None
) -> CommandSent:
    """Request a backfill.

    Raises:
        Problem: 403, 404, 422 naming the field.
        WrongState: The workflow is offline.
        KeyReused: The key was used before, for another command.
    """
    row, body = workflow_to_start(parts, who, project, name)
    check_start(body, given.params, priority=given.priority)
    dates = _dates(given)
    wanted = _moments(dates, body)
    args = {
        **_args(given, row, wanted),
        "params": dict(given.params),
        "priority": given.priority,
        "dependents": given.dependents,
    }
    with parts.database.write() as connection:
        asked = ask_to_start(connection, CommandType.BACKFILL, row, body, args, unique_key=unique_key, by=who.name)
        if asked.is_new:
            details = {"workflow": name, "command": asked.id, "runs": len(wanted)}
            told(connection, "backfill", by=who.name, project=project, details=details)
            for each in _behind(connection, who, body.key, given.dependents):
                _follow(connection, who, each, given, dates, asked)
    parts.poke(asked.shard)
    return sent(parts, asked)


def behind(parts: Parts, who: Identity, project: str, name: str, dependents: str) -> list[str]:
    """Return the workflows that a backfill with ``dependents`` also runs, as ``project.name``.

    Raises:
        Problem: 403, the account may not run one of them; 404.
    """
    with parts.database.read() as connection:
        seen(who, workflow_queries.find(connection, project, name), f"workflow {project}.{name}")
        return [each.definition.key for each in _behind(connection, who, f"{project}.{name}", dependents)]


def _behind(connection: sa.Connection, who: Identity, key: str, dependents: str) -> list[Behind]:
    if dependents == "none":
        return []
    found = of_workflow(connection, key, is_all=dependents == "all")
    for each in found:
        _need_behind(who, each.definition.project)
    return found


def _need_behind(who: Identity, project: str) -> None:
    """Like ``need``, for a project that the request did not name.

    The error does not name a project that the account may not see.
    """
    if who.may(Role.VIEWER, project):
        need(who, Role.OPERATOR, project)
        return
    role = Role.OPERATOR.word
    what = "a workflow that waits for this one is in a project that you may not see"
    raise Problem(403, f"{what}, and {who.name} is no {role} there; ask an administrator for that role", needs=role)


def _follow(  # noqa: PLR0917 - one caller
    connection: sa.Connection,
    who: Identity,
    each: Behind,
    given: BackfillRequest,
    dates: DateRange | Sequence[date],
    first: Asked,
) -> None:
    """Request a backfill of a dependent workflow, in the shard of ``first`` and after it.

    It is created after the runs that it waits for. If it were created before them, its tasks would find older runs.
    """
    try:
        moments = moments_of(dates, each.definition.schedule, time.time())
    except ValueError:
        return  # its schedule fires on none of these dates
    args = {**_args(given, each, moments), "params": {}, "priority": None, "cause": first.id}
    asked = ask(connection, CommandType.BACKFILL, shard_id=first.shard, args=args, by=who.name)
    details = {"workflow": each.definition.name, "command": asked.id, "runs": len(moments), "cause": first.id}
    told(connection, "backfill", by=who.name, project=each.definition.project, details=details)


def _args(given: BackfillRequest, workflow: Row | Behind, moments: Sequence[float]) -> dict[str, Any]:
    """Return the arguments that the backfill of a workflow and those of its dependents have in common."""
    return {
        "code": workflow.code,
        "version": workflow.version,
        "moments": moments,
        "dry": given.dry,
        "no_cache": given.no_cache,
        "parallel": given.parallel,
        "order": given.order,
        "stop_on_failure": given.stop_on_failure,
    }


def _dates(given: BackfillRequest) -> DateRange | Sequence[date]:
    try:
        return given.chosen()
    except ValueError as error:
        field = "last" if given.first and given.last and not given.dates else "dates"
        raise Problem(422, f"{field}: {error}", errors=[(field, str(error))]) from None


def row_of(parts: Parts, who: Identity, number: int) -> Row:
    """Return the row of a backfill.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        return seen(who, backfills.find(connection, number), f"backfill {number}")


def get(parts: Parts, who: Identity, number: int) -> Backfill:
    """Return a backfill.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        row = seen(who, backfills.find(connection, number), f"backfill {number}")
        return _backfill(row, backfills.counts(connection, [number])[number])


def _backfill(row: Row, counts: Mapping[str, int]) -> Backfill:
    return Backfill.of(row, order=row.direction, counts=dict(counts))


def listed(
    parts: Parts,
    who: Identity,
    *,
    project: str = "",
    workflow: str = "",
    before: int | None = None,
    limit: int = 50,
) -> list[Backfill]:
    """Return backfills, the newest first: all, those of a project, or those of one of its workflows.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        if workflow and project:
            there = workflow_queries.find(connection, project, workflow)
            codes: list[int] | None = [seen(who, there, f"workflow {project}.{workflow}").code]
        else:
            codes = seen_codes(connection, who, project)
        rows = backfills.newest(connection, codes=codes, before=before, most=limit)
        counts = backfills.counts(connection, [row.id for row in rows])
    return [_backfill(row, counts[row.id]) for row in rows]


def runs(
    parts: Parts,
    who: Identity,
    number: int,
    *,
    state: str = "",
    after: float | None = None,
    limit: int | None = None,
) -> list[BackfillRun]:
    """Return the runs of a backfill, the oldest schedule time first.

    Args:
        parts: The parts of this process.
        who: The account that asks.
        number: ID of the backfill.
        state: Only those in this state. Empty: any.
        after: Only those with a later schedule time.
        limit: The most to return. None: all.
    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        seen(who, backfills.find(connection, number), f"backfill {number}")
        rows = backfills.instances(connection, number, state=state, after=after, most=limit)
    return [BackfillRun.of(row) for row in rows]


def moments(parts: Parts, who: Identity, project: str, name: str, dates: DateRange | Sequence[date]) -> list[float]:
    """Return the schedule times that a backfill of these dates would have, the oldest first. Requests nothing.

    Raises:
        Problem: 404, 422.
    """
    with parts.database.read() as connection:
        row = seen(who, workflow_queries.find(connection, project, name), f"workflow {project}.{name}")
        body = load_definition(connection, row.code, row.version)
    return _moments(dates, body)


def _moments(dates: DateRange | Sequence[date], body: Definition) -> list[float]:
    try:
        return moments_of(dates, body.schedule, time.time())
    except ValueError as error:
        raise Problem(422, f"dates: {error}", errors=[("dates", str(error))]) from None


def stop(parts: Parts, who: Identity, number: int, *, unique_key: str | None = None) -> CommandSent:
    """Request to stop a backfill: no more dates start, and the running ones are stopped.

    Raises:
        Problem: 403, 404, 409.
        KeyReused: The key was used before, for another command.
    """
    row = row_of(parts, who, number)
    need(who, Role.OPERATOR, row.project)
    with parts.database.write() as connection:
        if not was_asked(connection, row.project, unique_key) and BackfillState(row.state) not in STOPPABLE:
            raise Problem(409, f"backfill {number} is {row.state}; only one that is running or held can be stopped")
        asked = ask(
            connection,
            CommandType.BACKFILL_STOP,
            shard_id=row.shard,
            args={"backfill": number},
            project=row.project,
            unique_key=unique_key,
            by=who.name,
        )
        if asked.is_new:
            details = {"workflow": row.name, "backfill": number}
            told(connection, "backfill stop", by=who.name, project=row.project, details=details)
    parts.poke(asked.shard)
    return sent(parts, asked)
