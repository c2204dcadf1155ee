"""Read-only queries for runs, their tasks and attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork.spi import MAX_WHOLE
from latchwork_workflows.db.tables import attempt, command, definition, event, task, workflow_run

#: A row, by the names of its columns.
Row: TypeAlias = Any
#: Up to so many workflows are queried one by one.
_MAX_CODES = 200
#: The largest possible ID.
MAX_ID = MAX_WHOLE

_RUN = sa.select(
    *workflow_run.c,
    definition.c.project,
    definition.c.name,
).join(definition, definition.c.code == workflow_run.c.code)


#: The name of a task. Elements of maps include their index.
_NAME = sa.case(
    (task.c.map_index == -1, task.c.name),
    else_=task.c.name + "[" + sa.cast(task.c.map_index, sa.String) + "]",
).label("name")
#: All columns of a task, with its full name.
TASK = tuple(_NAME if each is task.c.name else each for each in task.c)
#: Attempts, with the names and rounds of their tasks.
_ATTEMPT = sa.select(*attempt.c, _NAME, task.c.round).join(task, task.c.id == attempt.c.task)


def find_run(connection: sa.Connection, run_id: int) -> Row | None:
    """Return a run with the name of its workflow, or None if there is none."""
    return connection.execute(_RUN.where(workflow_run.c.id == run_id)).first()


def list_newest_runs(
    connection: sa.Connection,
    *,
    codes: Collection[int] | None = None,
    state: str = "",
    before: int | None = None,
    limit: int = 50,
) -> list[Row]:
    """Return runs with the names of their workflows, newest first.

    Args:
        connection: A transaction.
        codes: Return only runs of these workflows. None: all workflows.
        state: Return only runs in this state. Empty: any state.
        before: Return only runs with lower IDs, for the next page.
        limit: The maximum number of runs.
    """
    if codes is None:
        ids = list(
            connection.execute(_ids_query(before, state).order_by(workflow_run.c.id.desc()).limit(limit)).scalars()
        )
    else:
        ids = _list_newest_ids(connection, sorted(codes), before, state, limit)
    return load_runs_by_id(connection, ids)


def _list_newest_ids(
    connection: sa.Connection, codes: Sequence[int], before: int | None, state: str, limit: int
) -> list[int]:
    """Return the newest run IDs of several workflows. They are merged from one index scan for each workflow.

    This avoids a scan that skips most of its rows. Only for very many workflows, a single scan is used.

    Args:
        connection: A transaction.
        codes: The codes of the workflows.
        before: Return only lower IDs, for the next page.
        state: Return only runs in this state. Empty: any state.
        limit: The maximum number of IDs.
    """
    chosen = _ids_query(before, state).limit(limit)
    found: list[int] = []
    if len(codes) > _MAX_CODES:
        chosen = chosen.where((workflow_run.c.code + 0).in_(codes)).order_by(workflow_run.c.id.desc())
        found += connection.execute(chosen).scalars()
        return found
    mine = _build_newest_query(connection, chosen, state)
    for code in codes:
        found += connection.execute(mine, {"of_code": code}).scalars()
    return sorted(found, reverse=True)[:limit]


def _build_newest_query(connection: sa.Connection, query: sa.Select[Any], state: str = "") -> sa.Select[Any]:
    """Build the query for the newest runs of one workflow, which is the parameter ``of_code``.

    PostgreSQL uses the index of the workflow only if the order is that of the index and the code is not a constant.
    Otherwise it may scan all newer runs of other workflows.
    """
    code = sa.bindparam("of_code", type_=sa.BigInteger())
    if connection.dialect.name == "sqlite":
        return query.where(workflow_run.c.code == code).order_by(workflow_run.c.id.desc())
    same = [(workflow_run.c.state, sa.literal(state))] if state else []
    index = [(workflow_run.c.code, code), *same, (workflow_run.c.id, None)]
    place = sa.tuple_(*(column for column, _ in index))
    least, limit = (
        sa.tuple_(*(sa.literal(end, sa.BigInteger()) if each is None else each for _, each in index))
        for end in (0, MAX_ID)
    )
    return query.where(place >= least, place <= limit).order_by(*(column.desc() for column, _ in index))


def _ids_query(before: int | None, state: str) -> sa.Select[Any]:
    chosen = sa.select(workflow_run.c.id)
    if state:
        chosen = chosen.where(workflow_run.c.state == state)
    return chosen if before is None else chosen.where(workflow_run.c.id < before)


def load_runs_by_id(connection: sa.Connection, ids: Collection[int]) -> list[Row]:
    """Return the runs with these IDs, newest first. Unknown IDs are left out."""
    if not ids:
        return []
    return list(connection.execute(_RUN.where(workflow_run.c.id.in_(ids)).order_by(workflow_run.c.id.desc())).all())


def list_recent_runs(connection: sa.Connection, codes: Iterable[int], limit: int) -> dict[int, list[Row]]:
    """Return the newest runs of each given workflow, by workflow ID.

    Args:
        connection: A transaction.
        codes: The codes of the workflows.
        limit: The maximum number of runs of each workflow.
    """
    columns = (
        workflow_run.c.id,
        workflow_run.c.code,
        workflow_run.c.state,
        workflow_run.c.schedule_time,
        workflow_run.c.created_at,
    )
    of_code = _build_newest_query(connection, sa.select(*columns)).limit(limit)
    return {code: list(connection.execute(of_code, {"of_code": code}).all()) for code in codes}


def list_tasks_of_run(connection: sa.Connection, run_id: int, round_number: int) -> list[Row]:
    """Return the tasks of a run in the order of creation, at most 5,000.

    Args:
        connection: A transaction.
        run_id: The ID of the run.
        round_number: Return the tasks of this start or rerun of the run, counted from 1.
    """
    chosen = sa.select(*TASK).where(task.c.run_id == run_id, task.c.round == round_number)
    return list(connection.execute(chosen.order_by(task.c.id).limit(5000)).all())


def get_task_states(
    connection: sa.Connection, ids: Collection[int], names: Collection[str]
) -> dict[tuple[int, str], Row]:
    """Return the current state of the named tasks in each of the given runs, by run ID and task name.

    Args:
        connection: A transaction.
        ids: The IDs of the runs.
        names: The names of the tasks.
    """
    if not ids or not names:
        return {}
    now = sa.and_(workflow_run.c.id == task.c.run_id, workflow_run.c.round == task.c.round)
    chosen = sa.select(task.c.id, task.c.run_id, task.c.name, task.c.state, task.c.n).join(workflow_run, now)
    chosen = chosen.where(task.c.run_id.in_(ids), task.c.name.in_(names), task.c.map_index == -1)
    return {(row.run_id, row.name): row for row in connection.execute(chosen)}


def find_task(connection: sa.Connection, task_id: int) -> Row | None:
    """Return a task with the workflow of its run, or None if there is none."""
    columns = (
        workflow_run.c.code,
        workflow_run.c.version,
        workflow_run.c.shard,
        definition.c.project,
        workflow_run.c.round.label("newest_round"),
    )
    chosen = sa.select(*TASK, definition.c.name.label("workflow"), *columns)
    chosen = chosen.join(workflow_run, workflow_run.c.id == task.c.run_id).join(
        definition, definition.c.code == workflow_run.c.code
    )
    return connection.execute(chosen.where(task.c.id == task_id)).first()


def list_attempts_of_run(
    connection: sa.Connection, run_id: int, *, round_number: int | None = None, limit: int = 2000
) -> list[Row]:
    """Return the attempts of a run with the names of their tasks, latest start first.

    Args:
        connection: A transaction.
        run_id: The ID of the run.
        round_number: Return only attempts from this start or rerun of the run, counted from 1. None: all.
        limit: The maximum number of attempts.
    """
    chosen = _ATTEMPT.where(task.c.run_id == run_id)
    if round_number is not None:
        chosen = chosen.where(task.c.round == round_number)
    return list(connection.execute(chosen.order_by(attempt.c.started_at.desc(), attempt.c.task).limit(limit)).all())


def list_attempts_of_task(connection: sa.Connection, task_id: int, limit: int = 200) -> list[Row]:
    """Return the attempts of a task, newest first."""
    chosen = _ATTEMPT.where(attempt.c.task == task_id)
    return list(connection.execute(chosen.order_by(attempt.c.n.desc(), attempt.c.claim.desc()).limit(limit)).all())


def find_attempt(connection: sa.Connection, task_id: int, attempt_number: int, claim: int) -> Row | None:
    """Return the row of one claim of an attempt, or None if there is none."""
    key = sa.and_(attempt.c.task == task_id, attempt.c.n == attempt_number, attempt.c.claim == claim)
    return connection.execute(_ATTEMPT.where(key)).first()


def find_command(connection: sa.Connection, command_id: int) -> Row | None:
    """Return the command with this ID, or None."""
    return connection.execute(sa.select(*command.c).where(command.c.id == command_id)).first()


def list_unfinished_commands(connection: sa.Connection, run_id: int) -> list[Row]:
    """Return the commands of a run that are unfinished or have failed, newest first. At most 20."""
    asked = sa.select(*command.c).where(command.c.run_id == run_id)
    asked = asked.where(sa.or_(command.c.done_at.is_(None), command.c.error.is_not(None)))
    return list(connection.execute(asked.order_by(command.c.id.desc()).limit(20)).all())


def compute_fingerprint(connection: sa.Connection, run_id: int) -> tuple[Any, ...]:
    """Return a value that changes whenever the run changes. Pages use it to notice changes."""
    row = connection.execute(
        sa.select(workflow_run.c.state, workflow_run.c.round, workflow_run.c.ended_at, workflow_run.c.wake_at).where(
            workflow_run.c.id == run_id
        )
    ).first()
    of_tasks = sa.select(sa.func.max(task.c.changed_at), sa.func.max(task.c.id)).where(task.c.run_id == run_id)
    running = (
        sa.select(sa.func.max(attempt.c.started_at), sa.func.max(attempt.c.ended_at))
        .join(task, task.c.id == attempt.c.task)
        .where(task.c.run_id == run_id)
    )
    newest_event = sa.select(sa.func.max(event.c.id)).where(event.c.run_id == run_id)
    asked = sa.select(sa.func.max(command.c.id), sa.func.max(command.c.done_at)).where(command.c.run_id == run_id)
    parts = [connection.execute(each).first() for each in (of_tasks, running, newest_event, asked)]
    return (tuple(row) if row else None, *(tuple(each) if each else None for each in parts))
