"""Waiting for a turn in a queue of tickets: each waiter watches exactly one ticket ahead of it.

A hand-over costs the next in the queue one watch event, and one request to see that it is first and that its own ticket
is there. The values of tickets are read only where they decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from latchwork.primitives.fair.tickets import Blocks, Place, Ticket, TicketQueue, everyone
from latchwork.primitives.waiting.common import Patience
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.watch import Batch


async def take_turn(
    queue: TicketQueue,
    waiter: Waiter,
    patience: Patience,
    *,
    blocks: Blocks = everyone,
    body: Mapping[str, object] | None = None,
    on_ahead: Callable[[int], None] | None = None,
) -> Place | None:
    """Queue, and wait until nothing that blocks is ahead; None when time is over or the waiter was called off.

    No ticket is left behind when it ends without a place. ``on_ahead`` is called with how many block us, whenever that
    is looked at: with 0 when it seems to be our turn.

    Raises:
        SessionLost: the session ended while waiting.
        LockLost: somebody deleted our ticket while we waited.
        Unavailable, OutcomeUnknown: the server could not be reached before the time was over.
    """
    if patience.is_over and any(map(blocks, await queue.tickets())):
        return None  # a single try: do not even queue
    place = await waiter.keep_trying(lambda: queue.join(waiter.session, body), patience)
    has_turn = False
    wait = partial(await_turn, queue, place, waiter, patience, blocks, on_ahead)
    try:
        has_turn = await waiter.keep_trying(wait, patience)
    finally:
        if not has_turn:
            await queue.leave(place)
    return place if has_turn else None


async def await_turn(  # noqa: PLR0917 - as ``take_turn``
    queue: TicketQueue,
    place: Place,
    waiter: Waiter,
    patience: Patience,
    blocks: Blocks = everyone,
    on_ahead: Callable[[int], None] | None = None,
) -> bool:
    """Wait until nothing that blocks is ahead of a place; False when time is over or called off.

    Raises:
        SessionLost: the session has ended; also when our turn seems to have come, but the session ended while we slept.
        LockLost: our ticket is gone.
    """
    has_turn = await _await_turn(queue, place, waiter, patience, blocks, on_ahead or _nobody)
    queue.refuse_lost(place)
    return has_turn


def _nobody(_ahead: int) -> None:
    """Nobody wants to know."""


async def _await_turn(  # noqa: PLR0917 - one caller
    queue: TicketQueue, place: Place, waiter: Waiter, patience: Patience, blocks: Blocks, tell: Callable[[int], None]
) -> bool:
    over: set[str] = set()  # for good; an older state of the queue may go on showing them for a while
    while True:
        ahead = [key for key in await queue.ahead(place, blocks) if key not in over]
        tell(len(ahead))
        if not ahead:
            return True
        if patience.is_over:
            return await queue.has_nobody_ahead(place, ahead)
        if not await until_over(ahead[-1], blocks, waiter, patience, beside=True):
            return False
        over.add(ahead[-1])
        if await queue.are_gone(place, ahead[:-1], waiter.beside):
            tell(0)
            return True


async def until_over(key: str, blocks: Blocks, waiter: Waiter, patience: Patience, *, beside: bool = False) -> bool:
    """Wait until a ticket is gone or blocks no more; False when time is over or called off.

    One that no session owns is nobody's: another program wrote it, and nothing would ever end it.

    With ``beside`` the waiter may have the names of the other tickets then.
    """

    def is_over(batch: Batch) -> bool:
        entry = batch[-1].entry if batch else None
        return entry is None or entry.owner is None or not blocks(Ticket.of(entry))

    return await waiter.follow(key, is_over, patience, leaf=True, beside=beside)
