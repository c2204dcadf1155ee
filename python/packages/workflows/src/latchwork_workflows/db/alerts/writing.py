"""Alerts as they are written: with the fact, in its transaction, one delivery for each channel.

``UNIQUE (instance, kind, cause)``: what is written again after a doubt is there once. The cause of an end is the moment
when the run last began, so that one which is recovered and fails again is told again; that of a task is its attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db.alerts.tables import alert, delivery
from latchwork_workflows.db.runs import Stored
from latchwork_workflows.db.tables import attempt, instance, task
from latchwork_workflows.keys import rows_ref
from latchwork_workflows.model.model import Definition
from latchwork_workflows.state import FAILED, Fact, Instance
from latchwork_workflows.state.alerting import DeliveryState

#: So many tasks that failed are named, and so many characters of what each said.
MOST_NAMED, MOST_ERROR = 20, 1000


def put(
    connection: sa.Connection,
    channels: Iterable[str],
    *,
    kind: str,
    cause: str,
    now: float,
    details: Mapping[str, Any],
    run: int | None = None,
    code: int | None = None,
    task_name: str = "",
) -> int | None:
    """Write an alert, to be delivered from now on; its id, None if it is there already."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    row = {"instance": run, "code": code, "kind": kind, "cause": cause, "task": task_name, "at": now}
    written = insert(alert).values(**row, details=dict(details)).on_conflict_do_nothing().returning(alert.c.id)
    made: int | None = connection.execute(written).scalar()
    rows = [
        {"alert": made, "channel": each, "state": DeliveryState.PENDING.value, "next_at": now, "changed_at": now}
        for each in dict.fromkeys(channels)
    ]
    if made is not None and rows:
        connection.execute(sa.insert(delivery), rows)
    return made


def put_fact(
    connection: sa.Connection,
    definition: Definition,
    run: Stored,
    after: Instance,
    fact: Fact,
    *,
    now: float,
    why: str = "",
) -> None:
    """Write what happened to a run, or to one of its tasks.

    Args:
        connection: the transaction in which the fact is written.
        definition: of the run; it says which channels.
        run: with the ids of its tasks.
        after: as it is now.
        fact: what happened.
        now: seconds since the epoch.
        why: of a run that a defect has ended; empty of any other.
    """
    began = connection.execute(sa.select(instance.c.started_at).where(instance.c.id == run.id)).scalar()
    details = {
        "workflow": definition.key,
        "version": run.version,
        "run": after.run,
        "schedule_time": run.schedule_time,
        "started_at": began,
        "state": after.state.value,
    }
    if fact.task:
        details |= {"n": fact.n, **_attempt(connection, run.ids[fact.task], fact.n)}
    else:
        details |= {"failed": _failed(connection, run, after), "why": why[:MOST_ERROR]}
    cause = f"{run.ids[fact.task]}.{fact.n}" if fact.task else f"{after.run}@{began!r}"
    channels = definition.alerts.channels if definition.alerts is not None else ()
    put(
        connection,
        channels,
        kind=fact.kind,
        cause=cause,
        now=now,
        details=details,
        run=run.id,
        code=run.code,
        task_name=fact.task,
    )


def put_takeover(
    connection: sa.Connection,
    runs: Collection[tuple[Definition, Stored]],
    *,
    shard: int,
    token: int,
    owners: tuple[str, str],
    now: float,
) -> None:
    """Write that the master of these runs of one workflow is gone, and another has them: one alert for all of them.

    Args:
        connection: the transaction in which the shard gets its owner.
        runs: that go on, with what they run.
        shard: which.
        token: of the new owner.
        owners: the former one, and the new one.
        now: seconds since the epoch.
    """
    definition, first = min(runs, key=lambda each: each[1].id)
    details = {
        "workflow": definition.key,
        "version": first.version,
        "run": first.known.run,
        "schedule_time": first.schedule_time,
        "state": first.known.state.value,
        "former": owners[0],
        "owner": owners[1],
        "runs": [each.id for _, each in list(runs)[:MOST_NAMED]],
        "count": len(runs),
    }
    channels = definition.alerts.channels if definition.alerts is not None else ()
    cause = f"shard {shard} by {token}"
    put(
        connection,
        channels,
        kind="takeover",
        cause=cause,
        now=now,
        details=details,
        run=first.id,
        code=first.code,
    )


def put_rows(
    connection: sa.Connection, definition: Definition, run: Stored, name: str, mail: Mapping[str, Any], *, now: float
) -> None:
    """Write that the rows of a query are to be mailed; they are in the log store by now.

    Args:
        connection: the transaction in which its task succeeds.
        definition: of the run.
        run: with the ids of its tasks.
        name: of the task.
        mail: the channel, and what it says instead of the channel.
        now: seconds since the epoch.
    """
    n = run.known.tasks[name].n
    mine = sa.select(attempt.c.log_ref).where(attempt.c.task == run.ids[name], attempt.c.n == n)
    ref = connection.execute(mine.order_by(attempt.c.claim.desc()).limit(1)).scalar()
    if not ref:
        return
    outputs = run.outputs.get(name, {})
    details = {
        "workflow": definition.key,
        "version": run.version,
        "run": run.known.run,
        "schedule_time": run.schedule_time,
        "n": n,
        "count_rows": outputs.get("rows"),
        "log_ref": rows_ref(ref),
        "mail": {"to": list(mail.get("to") or ()), "subject": str(mail.get("subject") or "")},
    }
    cause = f"{run.ids[name]}.{n}"
    put(
        connection,
        [str(mail.get("channel"))],
        kind="rows",
        cause=cause,
        now=now,
        details=details,
        run=run.id,
        code=run.code,
        task_name=name,
    )


def _attempt(connection: sa.Connection, row: int, n: int) -> dict[str, Any]:
    """What is known of the newest claim of an attempt."""
    chosen = sa.select(attempt.c.worker, attempt.c.host, attempt.c.error, attempt.c.started_at)
    mine = chosen.where(attempt.c.task == row, attempt.c.n == n).order_by(attempt.c.claim.desc()).limit(1)
    found = connection.execute(mine).first()
    if found is None:
        return {}
    return {"worker": found.worker, "host": found.host, "error": (found.error or "")[:MOST_ERROR]}


def _failed(connection: sa.Connection, run: Stored, after: Instance) -> list[dict[str, Any]]:
    """The first tasks that failed or were ended, and what their last attempts said."""
    names = [name for name, each in after.tasks.items() if each.state in FAILED and name in run.ids]
    rows = {run.ids[name]: name for name in names[:MOST_NAMED]}
    if not rows:
        return []
    chosen = sa.select(task.c.id, attempt.c.n, attempt.c.error, attempt.c.exit_code, attempt.c.worker)
    chosen = chosen.join(attempt, sa.and_(attempt.c.task == task.c.id, attempt.c.n == task.c.n))
    found = {row.id: row for row in connection.execute(chosen.where(task.c.id.in_(rows)).order_by(attempt.c.claim))}
    made = []
    for row, name in rows.items():
        last = found.get(row)
        said = {} if last is None else {"n": last.n, "error": (last.error or "")[:MOST_ERROR], "worker": last.worker}
        made.append({"name": name, "state": after.tasks[name].state.value, **said})
    if len(names) > MOST_NAMED:
        made.append({"name": f"and {len(names) - MOST_NAMED} more", "state": ""})
    return made
