"""Clients of a history in a process of their own, which can be frozen and killed."""

from __future__ import annotations

from latchwork_testkit.histories.clients import Clients
from trials.remote import Wire


def serve(wire: Wire, specs: list[tuple[str, int, str]], give_up_after_s: float | None, mean_pause_s: float) -> None:
    clients = Clients(specs, wire.report, give_up_after_s=give_up_after_s, mean_pause_s=mean_pause_s)
    wire.serve(clients)
    clients.close()
