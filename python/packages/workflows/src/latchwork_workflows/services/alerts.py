"""Alerts, their deliveries, and the channels, which administrators of all projects manage."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, TypeAlias

from latchwork_workflows.alerts import ChannelInvalid, validate_channel
from latchwork_workflows.alerts.channels import list_secret_names
from latchwork_workflows.db import alerts
from latchwork_workflows.db.history import record_event
from latchwork_workflows.schemas.alerts import Alert, Channel, Delivery
from latchwork_workflows.services.context import ServiceContext, list_visible_codes, require_role
from latchwork_workflows.services.errors import object_not_found
from latchwork_workflows.state.alerts import DeliveryState
from latchwork_workflows.web import HttpProblem, Identity, Role

Row: TypeAlias = Any
#: The states of deliveries, for filters.
STATES = tuple(each.value for each in DeliveryState)


def list_alerts(
    context: ServiceContext,
    user: Identity,
    *,
    project: str = "",
    state: str = "",
    run: int | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[Alert]:
    """Return the alerts that the account may see, newest first.

    Test alerts of channels are only visible with a role in all projects.

    Args:
        context: The service context of this process.
        user: The requesting account.
        project: Return only alerts of this project. Empty: all projects.
        state: Return only alerts with a delivery in this state. Empty: any state.
        run: Return only alerts of this run. None: any run.
        before: Return only alerts with lower IDs, for the next page.
        limit: The maximum number of results.
    Raises:
        HttpProblem: 422 (invalid) if the state is unknown.
    """
    if state and state not in STATES:
        why = f"{state[:40]!r} is not one of {', '.join(STATES)}"
        raise HttpProblem(422, f"state: {why}", errors=[("state", why)])
    with context.database.read() as connection:
        codes = list_visible_codes(connection, user, project)
        rows = alerts.list_newest_alerts(connection, codes=codes, state=state, run=run, before=before, limit=limit)
        found = alerts.list_deliveries(connection, [row.id for row in rows])
    return [_alert(row, found[row.id]) for row in rows]


def get_alert(context: ServiceContext, user: Identity, alert_id: int) -> Alert:
    """Return an alert with its deliveries.

    Raises:
        HttpProblem: 404 (not found) if there is no such alert or the account may not see it.
    """
    with context.database.read() as connection:
        row = alerts.find_alert(connection, alert_id)
        if row is None or not user.has_role(Role.VIEWER, row.project or ""):
            raise object_not_found(f"there is no alert {alert_id}")
        return _alert(row, alerts.list_deliveries(connection, [alert_id])[alert_id])


def resend_delivery(context: ServiceContext, user: Identity, delivery_id: int) -> None:
    """Send an alert again to one of its channels, whatever the state of the delivery. Recipients may get the message
    twice.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such delivery, 409
            (conflict) while the delivery is being sent.
    """
    with context.database.write() as connection:
        row = alerts.find_delivery(connection, delivery_id)
        if row is None or not user.has_role(Role.VIEWER, row.project or ""):
            raise object_not_found(f"there is no delivery {delivery_id}")
        require_role(user, Role.EDITOR, row.project or "")
        if not alerts.schedule_resend(connection, delivery_id, time.time()):
            raise HttpProblem(409, f"delivery {delivery_id} is being sent; try again in a minute")
        details = {"delivery": delivery_id, "channel": row.channel, "kind": row.kind}
        record_event(
            connection, "alert resend", by=user.name, project=row.project or "", run_id=row.run_id, details=details
        )


def list_channels(context: ServiceContext, user: Identity) -> list[Channel]:
    """Return all alert channels, sorted by name.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this.
    """
    require_role(user, Role.ADMIN)
    with context.database.read() as connection:
        rows, named = alerts.list_channels(connection), alerts.list_workflows_by_channel(connection)
    return [
        Channel.from_row(row, secrets=list_secret_names(row.options), workflows=sorted(named.get(row.name, ())))
        for row in rows
    ]


def set_channel(
    context: ServiceContext, user: Identity, name: str, kind: str, options: Mapping[str, Any], *, enabled: bool = True
) -> bool:
    """Create or replace an alert channel, and return whether it is new.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 422 (invalid) with each invalid option.
    """
    require_role(user, Role.ADMIN)
    try:
        checked = validate_channel(name, kind, options)
    except ChannelInvalid as error:
        raise HttpProblem(422, str(error), errors=error.problems) from None
    plain = checked.model_dump(mode="json", exclude_defaults=True)
    values = {"kind": kind, "options": plain, "enabled": enabled, "changed_at": time.time(), "by": user.name[:200]}
    with context.database.write() as connection:
        is_new = alerts.put_channel(connection, name, values)
        record_event(
            connection, "channel set", by=user.name, details={"channel": name, "kind": kind, "enabled": enabled}
        )
    return is_new


def remove_channel(context: ServiceContext, user: Identity, name: str) -> None:
    """Delete an alert channel. Its pending deliveries wait for a new channel of the same name, and finally fail.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such channel.
    """
    require_role(user, Role.ADMIN)
    with context.database.write() as connection:
        if not alerts.remove_channel(connection, name):
            raise object_not_found(f"there is no channel {name}")
        record_event(connection, "channel removed", by=user.name, details={"channel": name})


def send_test_alert(context: ServiceContext, user: Identity, name: str) -> int:
    """Send a test message through an alert channel.

    Returns:
        The ID of the test alert. Its delivery shows whether sending succeeded.
    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such channel.
    """
    require_role(user, Role.ADMIN)
    with context.database.write() as connection:
        if alerts.find_channel(connection, name) is None:
            raise object_not_found(f"there is no channel {name}")
        details = {"by": user.name}
        made = alerts.create_alert(
            connection, [name], kind="test", cause=uuid.uuid4().hex, now=time.time(), details=details
        )
        record_event(connection, "channel tested", by=user.name, details={"channel": name})
    return made or 0


def _alert(row: Row, deliveries: list[Row]) -> Alert:
    return Alert.from_row(row, run=row.run_id, deliveries=[Delivery.from_row(each) for each in deliveries])
