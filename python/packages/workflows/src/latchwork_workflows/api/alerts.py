"""Alerts and their channels."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from latchwork_workflows.api import models as m
from latchwork_workflows.schemas.base import Document
from latchwork_workflows.services.alerts import seen as desk
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.web import Who

router = APIRouter(prefix="/api/v1", tags=["alerts"])
StateWord = Literal["", "pending", "sending", "sent", "failed", "unsure"]


class DeliveryRow(Document):
    """One alert by one channel. ``unsure``: it was sent twice, and nobody knows whether it came."""

    id: int
    channel: str
    state: Literal["pending", "sending", "sent", "failed", "unsure"]
    tries: int
    doubts: int
    round: int
    next_at: float | None
    changed_at: float
    error: str | None


class AlertRow(Document):
    """Something that people were told."""

    id: int
    instance: int | None
    project: str | None
    name: str | None
    kind: str
    task: str
    at: float
    details: dict[str, Any]
    deliveries: list[DeliveryRow]


class ChannelRequest(Document):
    """A channel. Secrets are named in its options: ``${secret:NAME}``."""

    kind: Literal["smtp", "webhook", "apprise"]
    options: m.Plain
    enabled: bool = True


class ChannelRow(Document):
    """A channel; ``workflows``: those that name it."""

    name: str
    kind: str
    options: dict[str, Any]
    enabled: bool
    changed_at: float
    by: str
    secrets: list[str]
    workflows: list[str]


class TestSent(Document):
    """The alert that tests a channel."""

    alert: int


@router.get("/alerts")
def list_alerts(
    *,
    request: Request,
    who: Who,
    project: Annotated[str, Query(max_length=100)] = "",
    state: Annotated[StateWord, Query(description="with a delivery in this state")] = "",
    instance: Annotated[int | None, Query(ge=1, le=m.MOST_ID)] = None,
    before: m.Before = None,
    limit: m.Limit = 50,
) -> list[AlertRow]:
    """Alerts and their deliveries, the newest first."""
    wanted = project.replace("\x00", "")
    found = desk.listed(parts_of(request), who, project=wanted, state=state, run=instance, before=before, most=limit)
    return [_alert(each) for each in found]


@router.get("/alerts/{alert_id}")
def show_alert(*, request: Request, who: Who, alert_id: m.Id) -> AlertRow:
    """One alert: how far its deliveries are."""
    return _alert(desk.find(parts_of(request), who, alert_id))


@router.post("/deliveries/{delivery_id}:resend", status_code=202)
def resend(*, request: Request, who: Who, delivery_id: m.Id) -> None:
    """Have it sent again, as another message."""
    desk.resend(parts_of(request), who, delivery_id)


@router.get("/channels")
def list_channels(request: Request, who: Who) -> list[ChannelRow]:
    """All channels, by name; for administrators."""
    return [
        ChannelRow(**{**each.row._mapping, "secrets": each.secrets, "workflows": each.workflows})  # noqa: SLF001
        for each in desk.channels(parts_of(request), who)
    ]


@router.put("/channels/{name}", status_code=204)
def set_channel(request: Request, who: Who, name: m.NamePath, given: ChannelRequest) -> None:
    """Make a channel, or change it."""
    desk.set_channel(parts_of(request), who, name, given.kind, given.options, enabled=given.enabled)


@router.delete("/channels/{name}", status_code=204)
def remove_channel(request: Request, who: Who, name: m.NamePath) -> None:
    """Delete a channel."""
    desk.remove_channel(parts_of(request), who, name)


@router.post("/channels/{name}:test", status_code=202)
def test_channel(request: Request, who: Who, name: m.NamePath) -> TestSent:
    """Have a test sent; the delivery of its alert says how that went."""
    return TestSent(alert=desk.test_channel(parts_of(request), who, name))


def _alert(each: desk.AlertSeen) -> AlertRow:
    row = {name: getattr(each.row, name) for name in AlertRow.model_fields if name != "deliveries"}
    return AlertRow(**row, deliveries=[DeliveryRow.model_validate(one) for one in each.deliveries])
