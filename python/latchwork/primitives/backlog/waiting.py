"""Waiting until something is free in a lane of a backlog: only the first in the line watches the lane.

What it was told is enough to take it: its watch has all of the lane, so what is free there, and in which order, is
known without a look. It leaves the line in the background then; the next one sees the lane as it is.

Who waits with ``accept`` and sees a free item that it does not accept says so in its ticket: then those behind it do
not wait for it, because one of them may accept the item.
"""

from __future__ import annotations

from latchwork.errors import BadRecord
from latchwork.primitives.backlog.claim import Holding
from latchwork.primitives.backlog.items import BacklogItem, Names, place_of
from latchwork.primitives.backlog.pages import Pages
from latchwork.primitives.backlog.taking import Accept
from latchwork.primitives.fair.tickets import Place, Ticket, TicketQueue, read_body, write_body
from latchwork.primitives.fair.turns import take_turn
from latchwork.primitives.waiting.common import Patience
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.steps import ask
from latchwork.store.watch import Batch
from latchwork.types import Change, Entry, Put

_PASSES = "passes"
#: Pages that are looked at before a wait.
_PAGES = 3


class Waiting:
    """The lines of those that wait, one for each lane. Safe to share between threads."""

    def __init__(self, held: Holding, what: str, label: str) -> None:
        self._held = held
        self._store = held.store
        self._what = what
        self._label = label
        self._lines: dict[str, TicketQueue] = {}

    def line(self, lane: str) -> TicketQueue:
        """The tickets of those that wait for a lane."""
        what = f"takers of lane {lane!r} of {self._what}"
        return self._lines.setdefault(lane, TicketQueue(self._store, self._held.names.takers(lane), what, self._label))

    async def wait(self, lane: str, waiter: Waiter, patience: Patience, accept: Accept) -> IsFree | None:
        """Wait until an item that will do is free; what it was told. None when time is over or called off."""
        if await waiter.keep_trying(lambda: self._is_free(lane, accept), patience):
            return IsFree(self._held.names, lane, accept)
        if patience.is_over:
            return None
        line = self.line(lane)
        place = await take_turn(line, waiter, patience, blocks=_blocks)
        if place is None:
            return None
        look: IsFree | None = None
        try:
            look = await self._told(lane, place, waiter, patience, accept)
        finally:
            if look is None:
                await line.leave(place)
            else:
                line.leave_later(place)
        return look

    async def _told(self, lane: str, place: Place, waiter: Waiter, patience: Patience, accept: Accept) -> IsFree | None:
        look = IsFree(self._held.names, lane, accept)
        if not await waiter.follow(self._held.names.lane(lane), look, patience):
            return None
        if look.is_found:
            return look
        await waiter.keep_trying(lambda: self._let_pass(place), patience)
        look = IsFree(self._held.names, lane, accept, is_told=True)
        return look if await waiter.follow(self._held.names.lane(lane), look, patience) else None

    async def _is_free(self, lane: str, accept: Accept) -> bool:
        """Whether the first pages have something: then there is nothing to wait for."""
        pages = Pages(self._held, lane, 1)
        for _ in range(_PAGES):
            free = await pages.next()
            if free is None or any(_suits(entry, accept) for entry in free):
                return free is not None
        return False

    async def _let_pass(self, place: Place) -> None:
        body = {**read_body(place.ticket.value), _PASSES: True}
        await ask(self._store.commit, [place.fence], [Put(place.ticket.key, write_body(body))])


class IsFree:
    """Follows a lane, and says whether an item that will do is free. One thread only.

    Attributes:
        is_found: whether one is. It may also be done because one is free that will not do, before those behind know.
    """

    def __init__(self, names: Names, lane: str, accept: Accept, *, is_told: bool = False) -> None:
        self._items = names.items(lane)
        self._claims = names.claims(lane)
        self._accept = accept
        self._is_told = is_told
        self._suits: dict[tuple[str, str], bool] = {}
        self._entries: dict[tuple[str, str], Entry] = {}
        self._claimed: set[tuple[str, str]] = set()
        self._good: set[tuple[str, str]] = set()
        self._bad: set[tuple[str, str]] = set()
        self.is_found = False

    def __call__(self, batch: Batch) -> bool:
        """Take note of changes; whether that is enough."""
        for change in batch:
            self._note(change)
        self.is_found = bool(self._good)
        return self.is_found or (bool(self._bad) and not self._is_told)

    def first(self, most: int) -> list[BacklogItem]:
        """What is free and will do, in order; none when it is more than that, or when it was not told what it is."""
        if len(self._good) > most:
            return []
        try:
            return [BacklogItem.of(self._entries[place]) for place in sorted(self._good)]
        except BadRecord:  # who looks makes a dead letter of it
            return []

    def _note(self, change: Change) -> None:
        is_item = change.key.startswith(f"{self._items}/")
        if not (is_item or change.key.startswith(f"{self._claims}/")):
            return
        place = place_of(change.key, self._items if is_item else self._claims)
        if place is None:
            return
        if not is_item:
            (self._claimed.discard if change.entry is None else self._claimed.add)(place)
        elif change.entry is None:
            self._suits.pop(place, None)
            self._entries.pop(place, None)
        else:
            self._suits[place] = _suits(change.entry, self._accept)
            self._entries[place] = change.entry
        suits, is_free = self._suits.get(place), place not in self._claimed
        (self._good.add if suits and is_free else self._good.discard)(place)
        (self._bad.add if suits is False and is_free else self._bad.discard)(place)


def _suits(entry: Entry, accept: Accept) -> bool:
    """Whether an item will do. What is no item will do: who looks makes a dead letter of it."""
    try:
        return accept(BacklogItem.of(entry))
    except BadRecord:
        return True


def _blocks(ticket: Ticket) -> bool:
    return ticket.body.get(_PASSES) is not True
