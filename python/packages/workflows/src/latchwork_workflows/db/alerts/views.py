"""Alerts and channels, as somebody looks at them, and the changes that people make: all but what the sender does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db.alerts.tables import alert, channel, delivery
from latchwork_workflows.db.tables import definition, definition_version
from latchwork_workflows.model.model import Definition
from latchwork_workflows.state.alerting import DeliveryState

#: A row, by the names of its columns.
Row: TypeAlias = Any
_ALERT = sa.select(*alert.c, definition.c.project, definition.c.name).outerjoin(
    definition, definition.c.code == alert.c.code
)
_SENDING = DeliveryState.SENDING.value


def newest(
    connection: sa.Connection,
    *,
    codes: Collection[int] | None = None,
    state: str = "",
    run: int | None = None,
    before: int | None = None,
    most: int = 50,
) -> list[Row]:
    """The newest alerts with the names of their workflows.

    Args:
        connection: a transaction.
        codes: of these workflows; None: of all, tests of channels among them.
        state: with a delivery in this state.
        run: of this run.
        before: with lower ids.
        most: so many.
    """
    chosen = _ALERT.order_by(alert.c.id.desc()).limit(most)
    if codes is not None:
        chosen = chosen.where(alert.c.code.in_(codes))
    if state:
        mine = sa.select(delivery.c.alert).where(delivery.c.state == state).order_by(delivery.c.id.desc()).limit(10_000)
        chosen = chosen.where(alert.c.id.in_(mine))
    if run is not None:
        chosen = chosen.where(alert.c.instance == run)
    return list(connection.execute(chosen if before is None else chosen.where(alert.c.id < before)).all())


def find_alert(connection: sa.Connection, number: int) -> Row | None:
    """An alert with the name of its workflow; None: there is none."""
    return connection.execute(_ALERT.where(alert.c.id == number)).first()


def deliveries_of(connection: sa.Connection, alerts: Collection[int]) -> dict[int, list[Row]]:
    """The deliveries of each of these alerts, by channel."""
    found: dict[int, list[Row]] = {each: [] for each in alerts}
    if alerts:
        chosen = sa.select(delivery).where(delivery.c.alert.in_(alerts)).order_by(delivery.c.channel)
        for row in connection.execute(chosen):
            found[row.alert].append(row)
    return found


def find(connection: sa.Connection, number: int) -> Row | None:
    """A delivery with the project, the workflow and the run of its alert; None: there is none."""
    columns = (alert.c.instance, alert.c.kind, definition.c.project, definition.c.name)
    joined = sa.select(*delivery.c, *columns).join(alert, alert.c.id == delivery.c.alert)
    joined = joined.outerjoin(definition, definition.c.code == alert.c.code)
    return connection.execute(joined.where(delivery.c.id == number)).first()


def send_again(connection: sa.Connection, number: int, now: float) -> bool:
    """Have a delivery sent from the beginning, as another message; False: it is being sent right now."""
    mine = sa.update(delivery).where(delivery.c.id == number, delivery.c.state != _SENDING)
    fresh = {"state": DeliveryState.PENDING.value, "tries": 0, "doubts": 0, "token": None, "error": None}
    values = {**fresh, "round": delivery.c.round + 1, "next_at": now, "changed_at": now}
    return bool(connection.execute(mine.values(**values)).rowcount)


def channels(connection: sa.Connection) -> list[Row]:
    """All channels, by name."""
    return list(connection.execute(sa.select(channel).order_by(channel.c.name)).all())


def find_channel(connection: sa.Connection, name: str) -> Row | None:
    """A channel; None: there is none of this name."""
    return connection.execute(sa.select(channel).where(channel.c.name == name)).first()


def put_channel(connection: sa.Connection, name: str, values: Mapping[str, Any]) -> bool:
    """Write a channel whose options were checked; whether there was none of its name."""
    changed = sa.update(channel).where(channel.c.name == name).values(**values)
    if connection.execute(changed).rowcount:
        return False
    connection.execute(sa.insert(channel).values(name=name, **values))
    return True


def remove_channel(connection: sa.Connection, name: str) -> bool:
    """Delete a channel; False: there is none of this name."""
    return bool(connection.execute(sa.delete(channel).where(channel.c.name == name)).rowcount)


def named(connection: sa.Connection) -> dict[str, list[str]]:
    """The channels that the newest versions of workflows name, each with these workflows."""
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


def stuck(connection: sa.Connection, before: float, most: int = 1000) -> list[Row]:
    """Deliveries that are open, and whose time came before a moment: ``id``, ``channel``, ``state``, ``next_at``."""
    columns = (delivery.c.id, delivery.c.channel, delivery.c.state, delivery.c.next_at)
    chosen = sa.select(*columns).where(delivery.c.next_at < before).order_by(delivery.c.next_at, delivery.c.id)
    return list(connection.execute(chosen.limit(most)).all())


def remove_tests(connection: sa.Connection, before: float, most: int = 500) -> int:
    """Delete tests of channels from before a moment: they are of no run that they would go with."""
    chosen = sa.select(alert.c.id).where(alert.c.instance.is_(None), alert.c.at < before).order_by(alert.c.id)
    ids = list(connection.execute(chosen.limit(most)).scalars())
    if ids:
        connection.execute(sa.delete(alert).where(alert.c.id.in_(ids)))
    return len(ids)
