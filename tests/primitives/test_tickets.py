"""A queue of tickets: which state of it proves that it is our turn."""

from __future__ import annotations

import latchwork
from latchwork.primitives.fair.tickets import TicketQueue
from latchwork.store.steps import run


def test_only_names_with_ours_and_without_those_ahead_prove_that_they_are_gone():
    with latchwork.connect("memory://tickets") as store:
        queue = TicketQueue(store, "orders", "lock 'orders'")
        first, second, ours = (run(queue.join(store.open_session(10.0))) for _ in range(3))
        names = [place.ticket.key.removeprefix("orders/") for place in (first, second, ours)]
        ahead = [first.ticket.key, second.ticket.key]
        assert not run(queue.is_first_by_names(ours, ahead, names))
        assert not run(queue.is_first_by_names(ours, ahead, names[1:]))
        assert not run(queue.is_first_by_names(ours, ahead, [])), "a state without ours is older than ours"
        assert run(queue.is_first_by_names(ours, ahead, names[2:]))
        assert not run(queue.is_first_by_names(ours, ahead)), "read now: both are there"
        run(queue.leave(first))
        assert not run(queue.is_first_by_names(ours, ahead))
        run(queue.leave(second))
        assert run(queue.is_first_by_names(ours, ahead))
