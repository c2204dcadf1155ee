"""Queries for the tasks that workers run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db.run_queries import TASK
from latchwork_workflows.db.tables import attempt, definition, task, workflow_run

#: A row, by the names of its columns.
Row: TypeAlias = Any
_NAMED = sa.select(*TASK, definition.c.project, definition.c.name.label("workflow"))
_TOGETHER = 400


def load_tasks_with_workflows(connection: sa.Connection, ids: Collection[int]) -> dict[int, Row]:
    """Return tasks with the projects and names of their workflows, by task ID. Unknown IDs are left out."""
    found: dict[int, Row] = {}
    wanted = list(ids)
    for start in range(0, len(wanted), _TOGETHER):
        chosen = _NAMED.select_from(task).join(workflow_run, workflow_run.c.id == task.c.run_id)
        chosen = chosen.join(definition, definition.c.code == workflow_run.c.code)
        part = task.c.id.in_(wanted[start : start + _TOGETHER])
        found.update({row.id: row for row in connection.execute(chosen.where(part))})
    return found


def load_newest_claims(connection: sa.Connection, ids: Collection[int]) -> dict[tuple[int, int], Row]:
    """Return the worker and the start time of the newest claim of each attempt, by task ID and attempt number.

    Args:
        connection: A transaction.
        ids: The IDs of the tasks.
    """
    found: dict[tuple[int, int], Row] = {}
    wanted = list(ids)
    for start in range(0, len(wanted), _TOGETHER):
        chosen = sa.select(attempt.c.task, attempt.c.n, attempt.c.worker, attempt.c.started_at)
        chosen = chosen.where(attempt.c.task.in_(wanted[start : start + _TOGETHER]))
        found.update({(row.task, row.n): row for row in connection.execute(chosen.order_by(attempt.c.claim))})
    return found
