"""What nobody waits for is dropped: items, cancels and data of attempts that a shard does not have in hands.

Only the shard's thread puts its items, and only after the rows that ask for them; so an item that the rows just read do
not ask for is nobody's. Cancels and data are listed before the items, since these go together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from latchwork.spi import counted
from latchwork_workflows.keys import attempt_of, is_attempt, x_of
from latchwork_workflows.master.book import Book
from latchwork_workflows.master.sending import Sending

_log = logging.getLogger(__name__)


def in_hands(book: Book) -> set[str]:
    """The attempts that a shard has with workers, or queued for them."""
    return {
        x_of(stored.ids[name], task.n)
        for stored in book.instances.values()
        for name, task in stored.known.tasks.items()
        if task.in_hands
    }


def mend(sending: Sending, book: Book, shard: int, is_ours: Callable[[Iterable[int]], set[int]]) -> None:
    """Drop what nobody waits for.

    Args:
        sending: of the shard, under its fence.
        book: read just now, with all results taken in.
        shard: which.
        is_ours: which of these tasks are of this shard, or of none any more if the shard is to care for those.
    """
    marked = sending.marked()
    items = sending.items()
    wanted = in_hands(book)
    orphans = {x: place for x, place in items.items() if place.item.shard == shard and x not in wanted}
    back = sending.take_back(orphans)
    ended = sending.cancel({x: place for x, place in orphans.items() if x not in back})
    left = {x for x in marked if x not in items and x not in wanted and is_attempt(x)}
    ours = is_ours({attempt_of(x)[0] for x in left})
    gone = sorted(x for x in left if attempt_of(x)[0] in ours)
    sending.unmark(gone)
    if orphans or gone:
        what = f"{counted(len(orphans), 'item')} and {counted(len(gone), 'mark')} that nobody waits for"
        _log.warning("shard %d: dropped %s (%d are ended by their workers)", shard, what, len(ended))
