"""Alerts, their deliveries, and the channels, which administrators of all projects manage."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, TypeAlias

from latchwork_workflows.alerts import ChannelInvalid, checked_channel
from latchwork_workflows.alerts.channels import secrets_of
from latchwork_workflows.db import alerts
from latchwork_workflows.db.history import told
from latchwork_workflows.schemas.alerts import Alert, Channel, Delivery
from latchwork_workflows.services.parts import Parts, need, seen_codes
from latchwork_workflows.state.alerts import DeliveryState
from latchwork_workflows.web import Identity, Problem, Role

Row: TypeAlias = Any
#: The states of deliveries, for filters.
STATES = tuple(each.value for each in DeliveryState)


def listed(
    parts: Parts,
    who: Identity,
    *,
    project: str = "",
    state: str = "",
    run: int | None = None,
    before: int | None = None,
    most: int = 50,
) -> list[Alert]:
    """Return the newest alerts that ``who`` may see. Tests of channels need a role in all projects.

    Raises:
        Problem: 422, the state is unknown.
    """
    if state and state not in STATES:
        why = f"{state[:40]!r} is none of {', '.join(STATES)}"
        raise Problem(422, f"state: {why}", errors=[("state", why)])
    with parts.database.read() as connection:
        codes = seen_codes(connection, who, project)
        rows = alerts.newest(connection, codes=codes, state=state, run=run, before=before, most=most)
        found = alerts.deliveries_of(connection, [row.id for row in rows])
    return [_alert(row, found[row.id]) for row in rows]


def find(parts: Parts, who: Identity, number: int) -> Alert:
    """Return an alert.

    Raises:
        Problem: 404, it does not exist or ``who`` may not see it.
    """
    with parts.database.read() as connection:
        row = alerts.find_alert(connection, number)
        if row is None or not who.may(Role.VIEWER, row.project or ""):
            raise Problem(404, f"there is no alert {number}")
        return _alert(row, alerts.deliveries_of(connection, [number])[number])


def resend(parts: Parts, who: Identity, number: int) -> None:
    """Send a delivery again from the start, whatever its state. Recipients that got it get another message.

    Raises:
        Problem: 403, 404, 409 while it is being sent.
    """
    with parts.database.write() as connection:
        row = alerts.find(connection, number)
        if row is None or not who.may(Role.VIEWER, row.project or ""):
            raise Problem(404, f"there is no delivery {number}")
        need(who, Role.EDITOR, row.project or "")
        if not alerts.send_again(connection, number, time.time()):
            raise Problem(409, f"delivery {number} is being sent right now; look again in a minute")
        details = {"delivery": number, "channel": row.channel, "kind": row.kind}
        told(connection, "alert resend", by=who.name, project=row.project or "", instance=row.instance, details=details)


def channels(parts: Parts, who: Identity) -> list[Channel]:
    """Return all channels, sorted by name.

    Raises:
        Problem: 403.
    """
    need(who, Role.ADMIN)
    with parts.database.read() as connection:
        rows, named = alerts.channels(connection), alerts.named(connection)
    return [Channel.of(row, secrets=secrets_of(row.options), workflows=sorted(named.get(row.name, ()))) for row in rows]


def set_channel(
    parts: Parts, who: Identity, name: str, kind: str, options: Mapping[str, Any], *, enabled: bool = True
) -> bool:
    """Create or replace a channel. Return whether it is new.

    Raises:
        Problem: 403; 422 with each invalid option.
    """
    need(who, Role.ADMIN)
    try:
        checked = checked_channel(name, kind, options)
    except ChannelInvalid as error:
        raise Problem(422, str(error), errors=error.problems) from None
    plain = checked.model_dump(mode="json", exclude_defaults=True)
    values = {"kind": kind, "options": plain, "enabled": enabled, "changed_at": time.time(), "by": who.name[:200]}
    with parts.database.write() as connection:
        is_new = alerts.put_channel(connection, name, values)
        told(connection, "channel set", by=who.name, details={"channel": name, "kind": kind, "enabled": enabled})
    return is_new


def remove_channel(parts: Parts, who: Identity, name: str) -> None:
    """Delete a channel. Its deliveries wait for another channel of this name, and fail in the end.

    Raises:
        Problem: 403, 404.
    """
    need(who, Role.ADMIN)
    with parts.database.write() as connection:
        if not alerts.remove_channel(connection, name):
            raise Problem(404, f"there is no channel {name}")
        told(connection, "channel removed", by=who.name, details={"channel": name})


def test_channel(parts: Parts, who: Identity, name: str) -> int:
    """Send a test message through a channel. Return the ID of its alert, whose delivery has the result.

    Raises:
        Problem: 403, 404.
    """
    need(who, Role.ADMIN)
    with parts.database.write() as connection:
        if alerts.find_channel(connection, name) is None:
            raise Problem(404, f"there is no channel {name}")
        details = {"by": who.name}
        made = alerts.put(connection, [name], kind="test", cause=uuid.uuid4().hex, now=time.time(), details=details)
        told(connection, "channel tested", by=who.name, details={"channel": name})
    return made or 0


def _alert(row: Row, deliveries: list[Row]) -> Alert:
    return Alert.of(row, run=row.instance, deliveries=[Delivery.of(each) for each in deliveries])
