"""Read-only queries for instances, their tasks and attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork.spi import MAX_WHOLE
from latchwork_workflows.db.tables import attempt, command, definition, event, instance, task

#: A row, by the names of its columns.
Row: TypeAlias = Any
#: Up to so many workflows are queried one by one.
_MOST_CODES = 200
#: The largest possible ID.
MOST_ID = MAX_WHOLE

_INSTANCE = sa.select(
    *instance.c,
    definition.c.project,
    definition.c.name,
).join(definition, definition.c.code == instance.c.code)


#: The name of a task. Elements of maps include their index.
_NAME = sa.case(
    (task.c.map_index == -1, task.c.name),
    else_=task.c.name + "[" + sa.cast(task.c.map_index, sa.String) + "]",
).label("name")
#: All columns of a task, with its full name.
TASK = tuple(_NAME if each is task.c.name else each for each in task.c)
#: Attempts, with the names and rounds of their tasks.
_ATTEMPT = sa.select(*attempt.c, _NAME, task.c.run).join(task, task.c.id == attempt.c.task)


def find(connection: sa.Connection, instance_id: int) -> Row | None:
    """Return an instance with the name of its workflow, or None."""
    return connection.execute(_INSTANCE.where(instance.c.id == instance_id)).first()


def newest(
    connection: sa.Connection,
    *,
    codes: Collection[int] | None = None,
    state: str = "",
    before: int | None = None,
    most: int = 50,
) -> list[Row]:
    """Return the newest instances.

    Args:
        connection: A transaction.
        codes: Only of these workflows. None: of all.
        state: Only in this state. Empty: in any.
        before: Only with lower IDs.
        most: The maximum number of instances.
    """
    if codes is None:
        ids = list(connection.execute(_ids(before, state).order_by(instance.c.id.desc()).limit(most)).scalars())
    else:
        ids = _of_codes(connection, sorted(codes), before, state, most)
    return by_id(connection, ids)


def _of_codes(connection: sa.Connection, codes: Sequence[int], before: int | None, state: str, most: int) -> list[int]:
    """Return the newest IDs of each workflow from its index, merged, so that no scan skips most of its rows.

    For very many workflows it is a single scan, because then most rows belong to one of them.
    """
    chosen = _ids(before, state).limit(most)
    found: list[int] = []
    if len(codes) > _MOST_CODES:
        chosen = chosen.where((instance.c.code + 0).in_(codes)).order_by(instance.c.id.desc())
        found += connection.execute(chosen).scalars()
        return found
    mine = _of_code(connection, chosen, state)
    for code in codes:
        found += connection.execute(mine, {"of_code": code}).scalars()
    return sorted(found, reverse=True)[:most]


def _of_code(connection: sa.Connection, chosen: sa.Select[Any], state: str = "") -> sa.Select[Any]:
    """Return the query for one workflow, ``of_code``, newest first.

    For a workflow that has about one row in ten, PostgreSQL would scan backwards by ID through all newer rows of other
    workflows, such as a long backfill. It uses the index of the workflow if the order is that of the index and the code
    is not a constant.
    """
    code = sa.bindparam("of_code", type_=sa.BigInteger())
    if connection.dialect.name == "sqlite":
        return chosen.where(instance.c.code == code).order_by(instance.c.id.desc())
    same = [(instance.c.state, sa.literal(state))] if state else []
    index = [(instance.c.code, code), *same, (instance.c.id, None)]
    place = sa.tuple_(*(column for column, _ in index))
    least, most = (
        sa.tuple_(*(sa.literal(end, sa.BigInteger()) if each is None else each for _, each in index))
        for end in (0, MOST_ID)
    )
    return chosen.where(place >= least, place <= most).order_by(*(column.desc() for column, _ in index))


def _ids(before: int | None, state: str) -> sa.Select[Any]:
    chosen = sa.select(instance.c.id)
    if state:
        chosen = chosen.where(instance.c.state == state)
    return chosen if before is None else chosen.where(instance.c.id < before)


def by_id(connection: sa.Connection, ids: Collection[int]) -> list[Row]:
    """Return these instances, newest first. Unknown IDs are left out."""
    if not ids:
        return []
    return list(connection.execute(_INSTANCE.where(instance.c.id.in_(ids)).order_by(instance.c.id.desc())).all())


def recent(connection: sa.Connection, codes: Iterable[int], most: int) -> dict[int, list[Row]]:
    """Return the newest instances of each of these workflows, by code."""
    columns = (instance.c.id, instance.c.code, instance.c.state, instance.c.schedule_time, instance.c.created_at)
    of_code = _of_code(connection, sa.select(*columns)).limit(most)
    return {code: list(connection.execute(of_code, {"of_code": code}).all()) for code in codes}


def tasks(connection: sa.Connection, instance_id: int, run: int) -> list[Row]:
    """Return the tasks of a run, in the order of creation, at most 5,000."""
    chosen = sa.select(*TASK).where(task.c.instance == instance_id, task.c.run == run)
    return list(connection.execute(chosen.order_by(task.c.id).limit(5000)).all())


def task_states(connection: sa.Connection, ids: Collection[int], names: Collection[str]) -> dict[tuple[int, str], Row]:
    """Return the tasks with these names in the current runs of these instances, by instance and name."""
    if not ids or not names:
        return {}
    now = sa.and_(instance.c.id == task.c.instance, instance.c.run == task.c.run)
    chosen = sa.select(task.c.id, task.c.instance, task.c.name, task.c.state, task.c.n).join(instance, now)
    chosen = chosen.where(task.c.instance.in_(ids), task.c.name.in_(names), task.c.map_index == -1)
    return {(row.instance, row.name): row for row in connection.execute(chosen)}


def find_task(connection: sa.Connection, task_id: int) -> Row | None:
    """Return a task with the workflow of its instance, or None."""
    columns = (
        instance.c.code,
        instance.c.version,
        instance.c.shard,
        definition.c.project,
        instance.c.run.label("newest_run"),
    )
    chosen = sa.select(*TASK, definition.c.name.label("workflow"), *columns)
    chosen = chosen.join(instance, instance.c.id == task.c.instance).join(
        definition, definition.c.code == instance.c.code
    )
    return connection.execute(chosen.where(task.c.id == task_id)).first()


def attempts(connection: sa.Connection, instance_id: int, *, run: int | None = None, most: int = 2000) -> list[Row]:
    """Return the attempts of an instance with the names of their tasks, latest start first."""
    chosen = _ATTEMPT.where(task.c.instance == instance_id)
    if run is not None:
        chosen = chosen.where(task.c.run == run)
    return list(connection.execute(chosen.order_by(attempt.c.started_at.desc(), attempt.c.task).limit(most)).all())


def attempts_of_task(connection: sa.Connection, task_id: int, most: int = 200) -> list[Row]:
    """Return the attempts of a task, newest first."""
    chosen = _ATTEMPT.where(attempt.c.task == task_id)
    return list(connection.execute(chosen.order_by(attempt.c.n.desc(), attempt.c.claim.desc()).limit(most)).all())


def find_attempt(connection: sa.Connection, task_id: int, n: int, claim: int) -> Row | None:
    """Return an attempt, or None."""
    key = sa.and_(attempt.c.task == task_id, attempt.c.n == n, attempt.c.claim == claim)
    return connection.execute(_ATTEMPT.where(key)).first()


def find_command(connection: sa.Connection, command_id: int) -> Row | None:
    """Return a command, or None."""
    return connection.execute(sa.select(*command.c).where(command.c.id == command_id)).first()


def open_commands(connection: sa.Connection, instance_id: int) -> list[Row]:
    """Return the commands of an instance that are open or have failed, newest first, at most 20."""
    asked = sa.select(*command.c).where(command.c.instance == instance_id)
    asked = asked.where(sa.or_(command.c.done_at.is_(None), command.c.error.is_not(None)))
    return list(connection.execute(asked.order_by(command.c.id.desc()).limit(20)).all())


def fingerprint(connection: sa.Connection, instance_id: int) -> tuple[Any, ...]:
    """Return a value that differs whenever an instance has changed."""
    row = connection.execute(
        sa.select(instance.c.state, instance.c.run, instance.c.ended_at, instance.c.wake_at).where(
            instance.c.id == instance_id
        )
    ).first()
    of_tasks = sa.select(sa.func.max(task.c.changed_at), sa.func.max(task.c.id)).where(task.c.instance == instance_id)
    running = (
        sa.select(sa.func.max(attempt.c.started_at), sa.func.max(attempt.c.ended_at))
        .join(task, task.c.id == attempt.c.task)
        .where(task.c.instance == instance_id)
    )
    newest_event = sa.select(sa.func.max(event.c.id)).where(event.c.instance == instance_id)
    asked = sa.select(sa.func.max(command.c.id), sa.func.max(command.c.done_at)).where(
        command.c.instance == instance_id
    )
    parts = [connection.execute(each).first() for each in (of_tasks, running, newest_event, asked)]
    return (tuple(row) if row else None, *(tuple(each) if each else None for each in parts))
