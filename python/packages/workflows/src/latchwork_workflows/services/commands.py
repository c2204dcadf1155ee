"""Commands: their results, and how to withdraw a start."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from latchwork_workflows.db import backfills, run_queries, workflow_queries
from latchwork_workflows.db.commands import withdraw
from latchwork_workflows.db.history import told
from latchwork_workflows.schemas.commands import Command
from latchwork_workflows.services import runs
from latchwork_workflows.services.parts import Parts, need, seen
from latchwork_workflows.web import Identity, Problem, Role


def get(parts: Parts, who: Identity, number: int) -> Command:
    """Return a command. One without a project, such as a repair, is shown to administrators of all projects.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        row = run_queries.find_command(connection, number)
        if row is None:
            raise Problem(404, f"there is no command {number}")
        about = _about(connection, row)
        if about is not None or not who.may(Role.ADMIN):  # a repair is about a shard, which has no project
            seen(who, about, f"command {number}")
    return Command.of(row, run=row.instance)


def _about(connection: sa.Connection, row: sa.Row[Any]) -> sa.Row[Any] | None:
    """Return the run, the backfill or the workflow that a command is about, with its project."""
    if row.instance is not None:
        return run_queries.find(connection, row.instance)
    args = row.args if isinstance(row.args, dict) else {}
    backfill, code = args.get("backfill"), args.get("code")
    if isinstance(backfill, int):
        return backfills.find(connection, backfill)
    return workflow_queries.by_code(connection, code) if isinstance(code, int) else None


def stop(parts: Parts, who: Identity, number: int) -> None:
    """Withdraw a start that no master has carried out yet, or stop the run that it created.

    Raises:
        Problem: 403, 404; 409 if it started no run, was refused, or its run has ended.
    """
    with parts.database.write() as connection:
        row = run_queries.find_command(connection, number)
        code = row.args.get("code") if row is not None and isinstance(row.args, dict) else None
        workflow = workflow_queries.by_code(connection, code) if isinstance(code, int) else None
        of = seen(who, workflow, f"command {number} that starts something")
        need(who, Role.OPERATOR, of.project)
        if withdraw(connection, number, time.time(), by=who.name):
            details = {"workflow": of.name, "command": number}
            told(connection, "start withdrawn", by=who.name, project=of.project, details=details)
            return
        row = run_queries.find_command(connection, number)
    if row is None or row.instance is None:
        why = None if row is None else row.error
        raise Problem(409, f"command {number} has led to no run: {why or 'it asked for none'}", possible=[])
    runs.act(parts, who, row.instance, "stop")
