"""Alerts, their deliveries, and channels.

An alert is written in the transaction of the event that it reports. One master sends all alerts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db.runs import StoredRun
from latchwork_workflows.db.tables import (
    SENDER,
    about,
    alert,
    attempt,
    channel,
    definition,
    definition_version,
    delivery,
    task,
    workflow_run,
)
from latchwork_workflows.errors import NotOwner
from latchwork_workflows.keys import build_result_file_name
from latchwork_workflows.model.definition import Definition
from latchwork_workflows.state import FAILED, TimelineEvent, WorkflowRun
from latchwork_workflows.state.alerts import DeliveryState, DeliveryStatus, SendResult, apply_send_result

#: The maximum number of failed tasks in an alert, and of characters of each error.
MAX_NAMED, MAX_ERROR = 20, 1000


def create_alert(
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
    """Create an alert and one delivery for each channel, to be sent at once.

    Args:
        connection: The transaction in which the cause is written.
        channels: The names of the channels.
        kind: The kind of the alert.
        cause: Identifies the cause. A second alert with the same cause is not created.
        now: Seconds since the epoch.
        details: Details for the message.
        run: The run that the alert is about, if any.
        code: The workflow that the alert is about, if any.
        task_name: The task that the alert is about, if any.
    Returns:
        The ID of the alert, or None if an alert with this cause exists.
    """
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    row = {"run_id": run, "code": code, "kind": kind, "cause": cause, "task": task_name, "at": now}
    written = insert(alert).values(**row, details=dict(details)).on_conflict_do_nothing().returning(alert.c.id)
    made: int | None = connection.execute(written).scalar()
    rows = [
        {"alert": made, "channel": each, "state": DeliveryState.PENDING.value, "next_at": now, "changed_at": now}
        for each in dict.fromkeys(channels)
    ]
    if made is not None and rows:
        connection.execute(sa.insert(delivery), rows)
    return made


def create_run_alert(
    connection: sa.Connection,
    definition: Definition,
    run: StoredRun,
    after: WorkflowRun,
    timeline_event: TimelineEvent,
    *,
    now: float,
    why: str = "",
) -> None:
    """Create an alert about an event of a run or of one of its tasks, such as a failure.

    Args:
        connection: The transaction that writes the new state of the run.
        definition: The definition of the run. It names the channels.
        run: The run as stored before.
        after: The new state of the run.
        timeline_event: The event: its kind, and the task attempt it is about, if any.
        now: Seconds since the epoch.
        why: The reason, if an internal error has ended the run. Otherwise empty.
    """
    began = connection.execute(sa.select(workflow_run.c.started_at).where(workflow_run.c.id == run.id)).scalar()
    details = {
        "workflow": definition.key,
        "version": run.version,
        "round": after.round,
        "schedule_time": run.schedule_time,
        "started_at": began,
        "state": after.state.value,
    }
    if timeline_event.task:
        details |= {"n": timeline_event.n, **_load_attempt(connection, run.ids[timeline_event.task], timeline_event.n)}
    else:
        details |= {"failed": _load_failed_tasks(connection, run, after), "why": why[:MAX_ERROR]}
    cause = f"{run.ids[timeline_event.task]}.{timeline_event.n}" if timeline_event.task else f"{after.round}@{began!r}"
    channels = definition.alerts.channels if definition.alerts is not None else ()
    create_alert(
        connection,
        channels,
        kind=timeline_event.kind,
        cause=cause,
        now=now,
        details=details,
        run=run.id,
        code=run.code,
        task_name=timeline_event.task,
    )


def create_takeover_alert(
    connection: sa.Connection,
    runs: Collection[tuple[Definition, StoredRun]],
    *,
    shard: int,
    token: int,
    owners: tuple[str, str],
    now: float,
) -> None:
    """Create one alert about all runs of a workflow that another master has taken over.

    Args:
        connection: The transaction in which the shard gets its new owner.
        runs: The active runs of the workflow, with their definitions.
        shard: The ID of the shard.
        token: The fencing token of the new owner.
        owners: The former owner and the new owner.
        now: Seconds since the epoch.
    """
    definition, first = min(runs, key=lambda each: each[1].id)
    details = {
        "workflow": definition.key,
        "version": first.version,
        "round": first.known.round,
        "schedule_time": first.schedule_time,
        "state": first.known.state.value,
        "former": owners[0],
        "owner": owners[1],
        "runs": [each.id for _, each in list(runs)[:MAX_NAMED]],
        "count": len(runs),
    }
    channels = definition.alerts.channels if definition.alerts is not None else ()
    cause = f"shard {shard} by {token}"
    create_alert(
        connection,
        channels,
        kind="takeover",
        cause=cause,
        now=now,
        details=details,
        run=first.id,
        code=first.code,
    )


def create_query_result_alert(
    connection: sa.Connection, definition: Definition, run: StoredRun, name: str, mail: Mapping[str, Any], *, now: float
) -> None:
    """Create an alert that mails the result rows of a query. The rows are already in the log store.

    Args:
        connection: The transaction in which the task succeeds.
        definition: The definition of the run.
        run: The run, with the IDs of its tasks.
        name: The name of the task.
        mail: The channel, and optionally ``to`` and ``subject``, which replace those of the channel.
        now: Seconds since the epoch.
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
        "round": run.known.round,
        "schedule_time": run.schedule_time,
        "n": n,
        "count_rows": outputs.get("rows"),
        "log_ref": build_result_file_name(ref),
        "mail": {"to": list(mail.get("to") or ()), "subject": str(mail.get("subject") or "")},
    }
    cause = f"{run.ids[name]}.{n}"
    create_alert(
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


def _load_attempt(connection: sa.Connection, row: int, n: int) -> dict[str, Any]:
    """Return the worker, the host and the error of an attempt's newest claim, for the text of an alert.

    Args:
        connection: A transaction.
        row: The ID of the task's row.
        n: The number of the attempt.
    """
    chosen = sa.select(attempt.c.worker, attempt.c.host, attempt.c.error, attempt.c.started_at)
    mine = chosen.where(attempt.c.task == row, attempt.c.n == n).order_by(attempt.c.claim.desc()).limit(1)
    found = connection.execute(mine).first()
    if found is None:
        return {}
    return {"worker": found.worker, "host": found.host, "error": (found.error or "")[:MAX_ERROR]}


def _load_failed_tasks(connection: sa.Connection, run: StoredRun, after: WorkflowRun) -> list[dict[str, Any]]:
    """Return the first tasks of a run that failed or were killed, with their error messages, for the text of an
    alert.
    """
    names = [name for name, each in after.tasks.items() if each.state in FAILED and name in run.ids]
    rows = {run.ids[name]: name for name in names[:MAX_NAMED]}
    if not rows:
        return []
    chosen = sa.select(task.c.id, attempt.c.n, attempt.c.error, attempt.c.exit_code, attempt.c.worker)
    chosen = chosen.join(attempt, sa.and_(attempt.c.task == task.c.id, attempt.c.n == task.c.n))
    found = {row.id: row for row in connection.execute(chosen.where(task.c.id.in_(rows)).order_by(attempt.c.claim))}
    made = []
    for row, name in rows.items():
        last = found.get(row)
        said = {} if last is None else {"n": last.n, "error": (last.error or "")[:MAX_ERROR], "worker": last.worker}
        made.append({"name": name, "state": after.tasks[name].state.value, **said})
    if len(names) > MAX_NAMED:
        made.append({"name": f"and {len(names) - MAX_NAMED} more", "state": ""})
    return made


_TOKEN = sa.cast(about.c.value, sa.BigInteger)
#: Seconds that a delivery may be SENDING before ``doctor`` reports it.
STUCK_S = 900.0


class DueDelivery(NamedTuple):
    """A delivery that is due.

    Attributes:
        id: The ID of the delivery.
        channel: The name of its channel.
    """

    id: int
    channel: str


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery that this sender has marked as SENDING.

    Attributes:
        id: The ID of the delivery.
        round: The number of times that a user has requested a resend.
        by: The name of its channel.
        channel: The row of its channel: ``kind``, ``options``, ``enabled``. None: no channel has its name.
        alert: The row of its alert.
    """

    id: int
    round: int
    by: str
    channel: Any
    alert: Any


@dataclass(frozen=True, slots=True)
class SenderLease:
    """The exclusive right of one process to send alerts.

    Attributes:
        token: The token of the hold, from the store.
    """

    token: int

    def acquire(self, connection: sa.Connection) -> None:
        """Become the process that sends alerts.

        Raises:
            NotOwner: There is a newer sender.
        """
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        row = {"name": SENDER, "value": str(self.token)}
        connection.execute(insert(about).values(**row).on_conflict_do_nothing())
        mine = sa.update(about).where(about.c.name == SENDER, self.token >= _TOKEN)
        if not connection.execute(mine.values(value=str(self.token))).rowcount:
            raise NotOwner(f"alerts have a newer sender than token {self.token}")

    def check_owner(self, connection: sa.Connection) -> None:
        """Check that this process is still the sender.

        Must be the first statement of each transaction of the sender.

        Raises:
            NotOwner: Another process is the sender. The transaction must be rolled back.
        """
        mine = sa.update(about).where(about.c.name == SENDER, about.c.value == str(self.token))
        if not connection.execute(mine.values(value=str(self.token))).rowcount:
            raise NotOwner(f"alerts are no longer sent by token {self.token}")

    def claim(self, connection: sa.Connection, delivery_id: int, now: float) -> ClaimedDelivery | None:
        """Mark a delivery as SENDING. Call this before sending its message.

        Returns:
            The delivery with its alert and its channel, or None if it is not due or does not exist.
        Raises:
            NotOwner: Another process is the sender.
        """
        self.check_owner(connection)
        mine = sa.update(delivery).where(delivery.c.id == delivery_id, delivery.c.state == DeliveryState.PENDING.value)
        mine = mine.where(delivery.c.next_at <= now)
        values = {"state": DeliveryState.SENDING.value, "token": self.token, "changed_at": now, "next_at": now}
        row = connection.execute(mine.values(**values).returning(*delivery.c)).first()
        if row is None:
            return None
        way = connection.execute(sa.select(channel).where(channel.c.name == row.channel)).first()
        what = connection.execute(sa.select(alert).where(alert.c.id == row.alert)).one()
        return ClaimedDelivery(row.id, row.round, row.channel, way, what)

    def record_result(
        self, connection: sa.Connection, delivery_id: int, answer: SendResult, error: str, now: float
    ) -> DeliveryState | None:
        """Store the result of an attempt to send. A former sender may also do this, because its result is valid.

        Args:
            connection: A transaction.
            delivery_id: The ID of the delivery.
            answer: The result.
            error: The error message. Empty if the alert was accepted.
            now: Seconds since the epoch.
        Returns:
            The new state of the delivery, or None if another sender has already decided its result.
        """
        chosen = sa.select(delivery).where(delivery.c.id == delivery_id, *self._owner_conditions())
        row = connection.execute(chosen.with_for_update()).first()
        if row is None:
            return None
        known = apply_send_result(_known(row), answer, error, now)
        connection.execute(
            sa.update(delivery)
            .where(delivery.c.id == delivery_id, *self._owner_conditions())
            .values(_columns(known, now))
        )
        return known.state

    def _owner_conditions(self) -> tuple[sa.ColumnElement[bool], ...]:
        return (delivery.c.state == DeliveryState.SENDING.value, delivery.c.token == self.token)

    def mark_in_doubt(self, connection: sa.Connection, is_mine: Callable[[int], bool], now: float) -> int:
        """Mark the deliveries that an earlier sender left in state SENDING as in doubt, and return their number.

        It is unknown whether their messages were sent. They are sent once more, and then shown as ``unsure``.

        Args:
            connection: A transaction.
            is_mine: Returns whether this process is sending a delivery now. It is called after the rows were read. No
                delivery can be claimed in between, because that needs the lock of this transaction.
            now: Seconds since the epoch.
        Raises:
            NotOwner: Another process is the sender.
        """
        self.check_owner(connection)
        chosen = sa.select(delivery).where(delivery.c.state == DeliveryState.SENDING.value)
        rows = [row for row in connection.execute(chosen.limit(1000)) if not is_mine(row.id)]
        for row in rows:
            error = "its sender ended before it received an answer"
            known = apply_send_result(_known(row), SendResult.DOUBT, error, now)
            same = sa.and_(delivery.c.id == row.id, delivery.c.state == row.state, delivery.c.token == row.token)
            connection.execute(sa.update(delivery).where(same).values(_columns(known, now)))
        return len(rows)


def list_due_deliveries(
    connection: sa.Connection, now: float, *, exclude: Iterable[str] = (), limit: int = 200
) -> list[DueDelivery]:
    """Return the deliveries that are due, oldest first.

    Args:
        connection: A transaction.
        now: Seconds since the epoch.
        exclude: Names of channels whose deliveries are left out.
        limit: The maximum number of deliveries.
    """
    chosen = sa.select(delivery.c.id, delivery.c.channel).where(delivery.c.next_at <= now)
    chosen = chosen.where(delivery.c.state == DeliveryState.PENDING.value, delivery.c.channel.not_in(sorted(exclude)))
    return [
        DueDelivery(*row) for row in connection.execute(chosen.order_by(delivery.c.next_at, delivery.c.id).limit(limit))
    ]


def has_other_unfinished_sends(connection: sa.Connection, mine: Collection[int]) -> bool:
    """Return whether any delivery is in state SENDING, apart from the deliveries with the IDs in ``mine``."""
    chosen = sa.select(delivery.c.id).where(delivery.c.state == DeliveryState.SENDING.value).limit(len(mine) + 1)
    return any(each not in mine for each in connection.execute(chosen).scalars())


def _known(row: Any) -> DeliveryStatus:
    return DeliveryStatus(DeliveryState(row.state), row.tries, row.doubts, row.next_at, row.error or "")


def _columns(known: DeliveryStatus, now: float) -> dict[str, Any]:
    return {
        "state": known.state.value,
        "tries": known.tries,
        "doubts": known.unknown_results,
        "next_at": known.next_at,
        "changed_at": now,
        "error": known.error[:2000] or None,
    }


#: A row, by the names of its columns.
Row: TypeAlias = Any
_ALERT = sa.select(*alert.c, definition.c.project, definition.c.name).outerjoin(
    definition, definition.c.code == alert.c.code
)
_SENDING = DeliveryState.SENDING.value


def list_newest_alerts(
    connection: sa.Connection,
    *,
    codes: Collection[int] | None = None,
    state: str = "",
    run: int | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[Row]:
    """Return alerts with the names of their workflows, newest first.

    Args:
        connection: A transaction.
        codes: Return only alerts of these workflows. None: all alerts, including channel tests.
        state: Return only alerts with a delivery in this state. Empty: any state.
        run: Return only alerts of this run. None: any run.
        before: Return only alerts with lower IDs, for the next page.
        limit: The maximum number of alerts.
    """
    chosen = _ALERT.order_by(alert.c.id.desc()).limit(limit)
    if codes is not None:
        chosen = chosen.where(alert.c.code.in_(codes))
    if state:
        mine = sa.select(delivery.c.alert).where(delivery.c.state == state).order_by(delivery.c.id.desc()).limit(10_000)
        chosen = chosen.where(alert.c.id.in_(mine))
    if run is not None:
        chosen = chosen.where(alert.c.run_id == run)
    return list(connection.execute(chosen if before is None else chosen.where(alert.c.id < before)).all())


def find_alert(connection: sa.Connection, alert_id: int) -> Row | None:
    """Return an alert with the name of its workflow, or None if there is none."""
    return connection.execute(_ALERT.where(alert.c.id == alert_id)).first()


def list_deliveries(connection: sa.Connection, alerts: Collection[int]) -> dict[int, list[Row]]:
    """Return the deliveries of each of the given alerts, sorted by channel."""
    found: dict[int, list[Row]] = {each: [] for each in alerts}
    if alerts:
        chosen = sa.select(delivery).where(delivery.c.alert.in_(alerts)).order_by(delivery.c.channel)
        for row in connection.execute(chosen):
            found[row.alert].append(row)
    return found


def find_delivery(connection: sa.Connection, delivery_id: int) -> Row | None:
    """Return a delivery with the project, the workflow and the run of its alert, or None if there is none."""
    columns = (alert.c.run_id, alert.c.kind, definition.c.project, definition.c.name)
    joined = sa.select(*delivery.c, *columns).join(alert, alert.c.id == delivery.c.alert)
    joined = joined.outerjoin(definition, definition.c.code == alert.c.code)
    return connection.execute(joined.where(delivery.c.id == delivery_id)).first()


def schedule_resend(connection: sa.Connection, delivery_id: int, now: float) -> bool:
    """Schedule a delivery to be sent again as a new message.

    Returns:
        False if the delivery is being sent right now and so cannot be scheduled.
    """
    mine = sa.update(delivery).where(delivery.c.id == delivery_id, delivery.c.state != _SENDING)
    fresh = {"state": DeliveryState.PENDING.value, "tries": 0, "doubts": 0, "token": None, "error": None}
    values = {**fresh, "round": delivery.c.round + 1, "next_at": now, "changed_at": now}
    return bool(connection.execute(mine.values(**values)).rowcount)


def list_channels(connection: sa.Connection) -> list[Row]:
    """Return all alert channels, sorted by name."""
    return list(connection.execute(sa.select(channel).order_by(channel.c.name)).all())


def find_channel(connection: sa.Connection, name: str) -> Row | None:
    """Return the alert channel of this name, or None."""
    return connection.execute(sa.select(channel).where(channel.c.name == name)).first()


def put_channel(connection: sa.Connection, name: str, values: Mapping[str, Any]) -> bool:
    """Create or replace an alert channel, and return whether it is new.

    Args:
        connection: A transaction.
        name: The name of the channel.
        values: Its columns. The options must be valid.
    """
    changed = sa.update(channel).where(channel.c.name == name).values(**values)
    if connection.execute(changed).rowcount:
        return False
    connection.execute(sa.insert(channel).values(name=name, **values))
    return True


def remove_channel(connection: sa.Connection, name: str) -> bool:
    """Delete an alert channel, and return whether it existed."""
    return bool(connection.execute(sa.delete(channel).where(channel.c.name == name)).rowcount)


def list_workflows_by_channel(connection: sa.Connection) -> dict[str, list[str]]:
    """Return the workflows that send alerts to each channel according to their newest versions, by channel name."""
    newest_ = sa.and_(
        definition_version.c.code == definition.c.code, definition_version.c.version == definition.c.version
    )
    chosen = sa.select(definition_version.c.body).join(definition, newest_)
    found: dict[str, list[str]] = {}
    for (body,) in connection.execute(chosen.where(definition_version.c.body.contains("channel"))):
        try:
            said = Definition.model_validate_json(body)
        except ValueError:
            continue
        names = set(said.alerts.channels) if said.alerts is not None else set()
        names |= {str(each.params["mail"].get("channel")) for each in said.tasks if _mails(each.params)}
        for name in names:
            found.setdefault(name, []).append(said.key)
    return found


def _mails(params: Mapping[str, Any]) -> bool:
    return isinstance(params.get("mail"), dict)


def list_overdue_deliveries(connection: sa.Connection, before: float, limit: int = 1000) -> list[Row]:
    """Return unfinished deliveries that were due before a given time.

    Each row has ``id``, ``channel``, ``state`` and ``next_at``.
    """
    columns = (delivery.c.id, delivery.c.channel, delivery.c.state, delivery.c.next_at)
    chosen = sa.select(*columns).where(delivery.c.next_at < before).order_by(delivery.c.next_at, delivery.c.id)
    return list(connection.execute(chosen.limit(limit)).all())


def delete_test_alerts(connection: sa.Connection, before: float, limit: int = 500) -> int:
    """Delete test alerts that are older than a given time, and return how many were deleted.

    A test alert belongs to no run, so it is not deleted together with a run.
    """
    chosen = sa.select(alert.c.id).where(alert.c.run_id.is_(None), alert.c.at < before).order_by(alert.c.id)
    ids = list(connection.execute(chosen.limit(limit)).scalars())
    if ids:
        connection.execute(sa.delete(alert).where(alert.c.id.in_(ids)))
    return len(ids)
