"""Alerts and channels, for clients."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

from latchwork_workflows.client.transport import Transport, build_request, build_resource_path
from latchwork_workflows.schemas.alerts import Alert, Channel, ChannelChange, ChannelStored, ChannelTest


class AlertsClient:
    """Alerts and their deliveries."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(
        self, *, state: str = "", run: int | None = None, before: int | None = None, limit: int = 50
    ) -> builtins.list[Alert]:
        """Return alerts with their deliveries, newest first.

        Args:
            state: Return only alerts with a delivery in this state: ``pending``, ``sending``, ``sent``, ``failed`` or
                ``unsure``. Empty: any state.
            run: Return only alerts of this run. None: any run.
            before: Return only alerts with lower IDs, for the next page.
            limit: The number of alerts, 1 to 500.
        """
        return self._api.get("/alerts", list[Alert], state=state, run=run, before=before, limit=limit)

    def get(self, alert_id: int) -> Alert:
        """Return an alert with its deliveries.

        Raises:
            NotFound: There is no alert with this ID.
        """
        return self._api.get(build_resource_path("alerts", alert_id), Alert)

    def resend(self, delivery_id: int) -> None:
        """Send an alert again to one of its channels, as a new message. Recipients may get the message twice.

        Raises:
            NotFound: There is no delivery with this ID.
            WrongState: The delivery is being sent right now.
        """
        self._api.post(build_resource_path("deliveries", delivery_id, action="resend"), None, type(None))


class ChannelsClient:
    """The channels that send alerts."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(self) -> builtins.list[Channel]:
        """Return all alert channels, sorted by name."""
        return self._api.get("/channels", list[Channel])

    def set(self, name: str, kind: str, options: Mapping[str, Any], *, enabled: bool = True) -> bool:
        """Create or replace an alert channel, and return whether it is new.

        Args:
            name: The name by which workflows refer to the channel.
            kind: ``smtp``, ``webhook`` or ``apprise``.
            options: The options of this kind of channel. They refer to secrets as ``${secret:NAME}``.
            enabled: Whether the channel sends alerts. Default True.
        Raises:
            BadRequest: An option is invalid.
        """
        body = build_request(ChannelChange, kind=kind, options=dict(options), enabled=enabled)
        return self._api.put(build_resource_path("channels", name), body, ChannelStored).is_new

    def remove(self, name: str) -> None:
        """Delete an alert channel.

        Raises:
            NotFound: There is no such channel.
        """
        self._api.delete(build_resource_path("channels", name), type(None))

    def test(self, name: str) -> int:
        """Send a test message through a channel, and return the ID of the test alert. Its delivery shows whether
        sending succeeded.

        Raises:
            NotFound: There is no such channel.
        """
        return self._api.post(build_resource_path("channels", name, action="test"), None, ChannelTest).alert
