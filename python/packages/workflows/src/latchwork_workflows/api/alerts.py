"""Alerts and their channels."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request

from latchwork_workflows.api import models as m
from latchwork_workflows.schemas.alerts import Alert, Channel, ChannelChange, ChannelStored, ChannelTest
from latchwork_workflows.services import alerts
from latchwork_workflows.services.context import get_context
from latchwork_workflows.web import CurrentUser

router = APIRouter(prefix="/api/v1", tags=["alerts"])
StateWord = Literal["", "pending", "sending", "sent", "failed", "unsure"]


@router.get("/alerts")
def list_alerts(
    *,
    request: Request,
    user: CurrentUser,
    project: Annotated[str, Query(max_length=100)] = "",
    state: Annotated[StateWord, Query(description="with a delivery in this state")] = "",
    run: Annotated[int | None, Query(ge=1, le=m.MAX_ID)] = None,
    before: m.Before = None,
    limit: m.Limit = 50,
) -> list[Alert]:
    """List alerts with their deliveries, newest first."""
    wanted = project.replace("\x00", "")
    return alerts.list_alerts(
        get_context(request), user, project=wanted, state=state, run=run, before=before, limit=limit
    )


@router.get("/alerts/{alert_id}")
def get_alert(*, request: Request, user: CurrentUser, alert_id: m.Id) -> Alert:
    """Return an alert with its deliveries."""
    return alerts.get_alert(get_context(request), user, alert_id)


@router.post("/deliveries/{delivery_id}:resend", status_code=202)
def resend_delivery(*, request: Request, user: CurrentUser, delivery_id: m.Id) -> None:
    """Send an alert again to one of its channels, as a new message."""
    alerts.resend_delivery(get_context(request), user, delivery_id)


@router.get("/channels")
def list_channels(request: Request, user: CurrentUser) -> list[Channel]:
    """List the alert channels, sorted by name. Only for administrators of all projects."""
    return alerts.list_channels(get_context(request), user)


@router.put("/channels/{name}")
def set_channel(request: Request, user: CurrentUser, name: m.NamePath, body: ChannelChange) -> ChannelStored:
    """Create or replace an alert channel."""
    is_new = alerts.set_channel(get_context(request), user, name, body.kind, body.options, enabled=body.enabled)
    return ChannelStored(is_new=is_new)


@router.delete("/channels/{name}", status_code=204)
def remove_channel(request: Request, user: CurrentUser, name: m.NamePath) -> None:
    """Delete an alert channel."""
    alerts.remove_channel(get_context(request), user, name)


@router.post("/channels/{name}:test", status_code=202)
def send_test_alert(request: Request, user: CurrentUser, name: m.NamePath) -> ChannelTest:
    """Send a test message through an alert channel. The delivery of the returned alert shows whether sending
    succeeded.
    """
    return ChannelTest(alert=alerts.send_test_alert(get_context(request), user, name))
