"""A queue of tickets: which state of it proves that it is our turn."""

from __future__ import annotations

import latchwork
from latchwork.primitives.fair.tickets import TicketQueue


def test_only_names_with_ours_and_without_those_ahead_prove_that_they_are_gone():
    with latchwork.connect("memory://tickets") as store:
        queue = TicketQueue(store, "orders", "lock 'orders'")
        first, second, ours = (queue.join(store.open_session(10.0)) for _ in range(3))
        names = [place.ticket.key.removeprefix("orders/") for place in (first, second, ours)]
        ahead = [first.ticket.key, second.ticket.key]
        assert not queue.are_gone(ours, ahead, names)
        assert not queue.are_gone(ours, ahead, names[1:])
        assert not queue.are_gone(ours, ahead, []), "a state without ours is older than ours"
        assert queue.are_gone(ours, ahead, names[2:])
        assert not queue.are_gone(ours, ahead), "read now: both are there"
        queue.leave(first)
        assert not queue.are_gone(ours, ahead)
        queue.leave(second)
        assert queue.are_gone(ours, ahead)
