"""Alerts, their deliveries, and the channels that send them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from latchwork_workflows.schemas.base import Document
from latchwork_workflows.schemas.values import Plain

DeliveryWord = Literal["pending", "sending", "sent", "failed", "unsure"]


class Delivery(Document):
    """One alert by one channel.

    Attributes:
        id: The ID of the delivery.
        channel: The name of the channel.
        state: ``unsure``: it was sent twice, and whether it arrived is not known.
        tries: How often the channel refused it.
        doubts: How often its fate was not known.
        round: 1, and one more each time it is sent again on request.
        next_at: When it is tried next. None: it has ended.
        changed_at: When its state changed.
        error: The last error. None: there was none.
    """

    id: int
    channel: str
    state: DeliveryWord
    tries: int
    doubts: int
    round: int
    next_at: float | None
    changed_at: float
    error: str | None


class Alert(Document):
    """An event that was sent to channels.


    Attributes:
        id: The ID of the alert.
        run: The ID of the run. None: the test of a channel.
        project: The project of the workflow. None: the test of a channel.
        name: The name of the workflow. None: the test of a channel.
        kind: Such as ``failure``.
        task: The name of the task. Empty: it is about the run.
        at: When it happened.
        details: Further facts.
        deliveries: One per channel.
    """

    id: int
    run: int | None
    project: str | None
    name: str | None
    kind: str
    task: str
    at: float
    details: dict[str, Any]
    deliveries: list[Delivery]


class ChannelChange(Document):
    """A channel to store. Its options reference secrets as ``${secret:NAME}``."""

    kind: Literal["smtp", "webhook", "apprise"]
    options: Plain
    enabled: bool = True


class Channel(Document):
    """A channel.

    Attributes:
        name: The name by which workflows name it.
        kind: ``smtp``, ``webhook`` or ``apprise``.
        options: The options of its kind, without secrets.
        enabled: Whether it sends anything.
        changed_at: When it was changed.
        by: The account that changed it.
        secrets: The names of the secrets that its options name.
        workflows: The workflows whose newest version names it, as ``project.name``.
    """

    name: str
    kind: str
    options: dict[str, Any]
    enabled: bool
    changed_at: float
    by: str
    secrets: list[str] = Field(default_factory=list)
    workflows: list[str] = Field(default_factory=list)


class ChannelStored(Document):
    """The answer to a stored channel."""

    is_new: bool


class ChannelTest(Document):
    """The ID of the alert that tests a channel. The delivery of the alert has the result."""

    alert: int
