"""What programs ask of alerts and channels; a part of ``WorkflowClient``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latchwork_workflows.looking import told
from latchwork_workflows.services.alerts import seen as desk
from latchwork_workflows.services.many import Backfills


class Alerts(Backfills):
    """Alerts and channels, as they are seen and asked for. Safe to share between threads."""

    def alerts(
        self, *, state: str = "", run: int | None = None, before: int | None = None, most: int = 50
    ) -> list[desk.AlertSeen]:
        """The newest alerts with their deliveries.

        Args:
            state: with a delivery in this state: ``pending``, ``sending``, ``sent``, ``failed`` or ``unsure``.
            run: of this run.
            before: with lower ids.
            most: so many.
        """
        with told():
            return desk.listed(self._parts, self._who, state=state, run=run, before=before, most=most)

    def alert(self, number: int) -> desk.AlertSeen:
        """One alert with its deliveries. Raises UnknownWorkflow: there is none of this number."""
        with told():
            return desk.find(self._parts, self._who, number)

    def resend(self, delivery: int) -> None:
        """Have a delivery sent again, from the beginning: who got it gets another message.

        Raises:
            UnknownWorkflow: there is none of this number.
            WrongState: it is being sent right now.
        """
        with told():
            desk.resend(self._parts, self._who, delivery)

    def channels(self) -> list[desk.ChannelSeen]:
        """All channels, by name."""
        with told():
            return desk.channels(self._parts, self._who)

    def set_channel(self, name: str, kind: str, options: Mapping[str, Any], *, enabled: bool = True) -> bool:
        """Make a channel, or another one of its name; whether there was none.

        Args:
            name: of it.
            kind: ``smtp``, ``webhook`` or ``apprise``.
            options: what the kind takes; secrets are named, ``${secret:NAME}``.
            enabled: whether anything is sent by it.
        """
        with told():
            return desk.set_channel(self._parts, self._who, name, kind, options, enabled=enabled)

    def remove_channel(self, name: str) -> None:
        """Delete a channel. Raises UnknownWorkflow: there is none of this name."""
        with told():
            desk.remove_channel(self._parts, self._who, name)

    def test_channel(self, name: str) -> int:
        """Have a test sent by a channel; the id of its alert, whose delivery says how that went."""
        with told():
            return desk.test_channel(self._parts, self._who, name)
