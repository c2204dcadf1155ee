"""Waiting until something is free in a partition of a work queue: only the first in the line watches the partition.

What it was told is enough to take it: its watch has all of the partition, so what is free there, and in which order, is
known without a look. It leaves the line in the background then; the next one sees the partition as it is. Or it stays:
then
its next wait goes on by the same watch, is told of what is new, and costs nothing.

Who waits with ``accept`` and sees a free item that it does not accept says so in its ticket: then those behind it do
not wait for it, because one of them may accept the item.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial

from latchwork.errors import BadRecord
from latchwork.interrupts import mutex
from latchwork.primitives.fair.tickets import Place, Ticket, TicketQueue, read_body, write_body
from latchwork.primitives.fair.turns import take_turn
from latchwork.primitives.queue.claims import Holding, QueueClaim
from latchwork.primitives.queue.items import Names, QueueItem, place_of
from latchwork.primitives.queue.pages import Pages
from latchwork.primitives.queue.taking import Accept
from latchwork.primitives.waiting.common import Patience
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.steps import OnInterrupt, Steps, ask
from latchwork.store.watch import Batch
from latchwork.types import Change, Entry, Put

_PASSES = "passes"
#: Pages that are looked at before a wait.
_PAGES = 3


#: Waits in a partition: by whom, how long, and for which items.
Wait = Callable[[str, Waiter, Patience, Accept], Steps["IsFree | None"]]


@dataclass(slots=True, eq=False)
class Post:
    """The head of a line, as long as somebody is there. One thread at a time.

    Attributes:
        place: its ticket.
        waiter: who is there, with the watch of the partition.
        look: what that has told.
        is_watching: whether the watch was opened.
    """

    place: Place
    waiter: Waiter
    look: IsFree
    is_watching: bool = False


class Waiting:
    """The lines of those that wait, one for each partition. Safe to share between threads."""

    def __init__(self, held: Holding, what: str, label: str) -> None:
        self._held = held
        self._store = held.store
        self._what = what
        self._label = label
        self._lines: dict[str, TicketQueue] = {}
        self._lock = mutex()
        self._posts: dict[str, Post] = {}
        self._looks: dict[str, IsFree] = {}
        self._is_closed = False

    def line(self, partition: str) -> TicketQueue:
        """The tickets of those that wait for a partition."""
        what = f"takers of partition {partition!r} of {self._what}"
        return self._lines.setdefault(
            partition, TicketQueue(self._store, self._held.names.takers(partition), what, self._label)
        )

    async def wait(self, partition: str, waiter: Waiter, patience: Patience, accept: Accept) -> IsFree | None:
        """Wait until an item that will do is free; what it was told. None when time is over or called off."""
        if await waiter.keep_trying(lambda: self._is_free(partition, accept), patience):
            return self._look(partition, accept)
        if patience.is_over:
            return None
        place = await take_turn(self.line(partition), waiter, patience, blocks=_blocks)
        if place is None:
            return None
        found = False
        post = Post(place, waiter, self._look(partition, accept))
        try:
            found = await self._told(partition, post, patience)
        finally:
            if found:
                self.line(partition).leave_later(place)
            else:
                await self.line(partition).leave(place)
        return post.look if found else None

    # Staying

    def kept(self, partition: str) -> Waiter | None:
        """Who has kept a place in the line of a partition."""
        post = self._posts.get(partition)
        return None if post is None else post.waiter

    def _kept_by(self, partition: str) -> Post | None:
        with self._lock:
            return self._posts.pop(partition, None)

    def taken(self, claims: Iterable[QueueClaim]) -> None:
        """We have these: whoever stays in the line of their partition is not told of them."""
        for claim in claims:
            item = claim.item
            look = self._looks.get(item.partition)
            if look is not None:
                look.ours[item.sort_key, item.id] = item.version

    async def stay(
        self,
        partition: str,
        waiter: Waiter,
        patience: Patience,
        accept: Accept,
        on_ahead: Callable[[int], None] | None = None,
    ) -> IsFree | None:
        """As ``wait``, without a look before; the place is kept, also when time is over, but not once called off.

        Args:
            partition: where.
            waiter: who waits: who has kept a place, if somebody has.
            patience: how long.
            accept: whether an item will do.
            on_ahead: called with how many are ahead in the line, whenever that is looked at.
        """
        is_kept, post = False, None
        await OnInterrupt(partial(self.leave, partition))
        try:
            post = self._kept_by(partition)
            if post is None:
                place = await take_turn(self.line(partition), waiter, patience, blocks=_blocks, on_ahead=on_ahead)
                if place is None:
                    return None
                post = Post(place, waiter, self._look(partition, accept))
                self._looks[partition] = post.look
            found = await self._told(partition, post, patience)
            is_kept = self._keep(partition, post)
        finally:
            if post is not None and not is_kept:
                self._looks.pop(partition, None)
                await self.line(partition).leave(post.place)
        return post.look if found else None

    def _keep(self, partition: str, post: Post) -> bool:
        with self._lock:
            if self._is_closed or post.waiter.is_off or post.look.lets_pass:
                return False
            self._posts[partition] = post
            post.waiter.is_kept = True
            return True

    def leave(self, partition: str) -> None:
        """Give up the place that was kept in a line, in the background; nothing if there is none."""
        post = self._kept_by(partition)
        if post is not None:
            self._looks.pop(partition, None)
            self.line(partition).leave_later(post.place)
            post.waiter.close()

    def close(self) -> None:
        """Keep no place, and give up those that are kept. Twice is fine."""
        with self._lock:
            self._is_closed = True
            partitions = list(self._posts)
        for partition in partitions:
            self.leave(partition)

    # At the head

    def _look(self, partition: str, accept: Accept) -> IsFree:
        return IsFree(self._held.names, partition, accept)

    async def _told(self, partition: str, post: Post, patience: Patience) -> bool:
        """Wait until the watch tells of something that will do; False when time is over or called off."""
        waiter, look = post.waiter, post.look
        while True:
            if post.is_watching:
                is_done = await waiter.go_on(look, patience)
            else:
                post.is_watching = True
                is_done = await waiter.follow(self._held.names.partition(partition), look, patience)
            if not is_done or look.is_found:
                return is_done
            await waiter.keep_trying(lambda: self._let_pass(post.place), patience)
            look.lets_pass = True

    async def _is_free(self, partition: str, accept: Accept) -> bool:
        """Whether the first pages have something: then there is nothing to wait for."""
        pages = Pages(self._held, partition, 1)
        for _ in range(_PAGES):
            free = await pages.next()
            if free is None or any(_suits(entry, accept) for entry in free):
                return free is not None
        return False

    async def _let_pass(self, place: Place) -> None:
        body = {**read_body(place.ticket.value), _PASSES: True}
        await ask(self._store.commit, [place.fence], [Put(place.ticket.key, write_body(body))])


class IsFree:
    """Follows a partition, and says whether an item that will do is free. One thread only.

    Attributes:
        is_found: whether one is. It may also be done because one is free that will not do, before those behind know.
        lets_pass: those behind know of what is free and will not do: they do not wait for it.
        ours: versions of items that we took: on a server that tells of a take key by key such an item comes before its
            claim, and looks free.
    """

    def __init__(self, names: Names, partition: str, accept: Accept) -> None:
        self._items = names.items(partition)
        self._claims = names.claims(partition)
        self._accept = accept
        self._suits: dict[tuple[str, str], bool] = {}
        self._entries: dict[tuple[str, str], Entry] = {}
        self._claimed: set[tuple[str, str]] = set()
        self._good: set[tuple[str, str]] = set()
        self._bad: set[tuple[str, str]] = set()
        self.is_found = False
        self.lets_pass = False
        self.ours: dict[tuple[str, str], Hashable] = {}

    def __call__(self, batch: Batch) -> bool:
        """Take note of changes; whether that is enough."""
        for change in batch:
            self._note(change)
        self.is_found = bool(self._good)
        return self.is_found or (bool(self._bad) and not self.lets_pass)

    def tell(self, most: int) -> list[QueueItem]:
        """What is free and will do, in order; none when it is more than that, or when it was not told what it is.

        It is told once: again only when it has changed.
        """
        told, self._good = sorted(self._good), set()
        if len(told) > most:
            return []
        try:
            return [QueueItem.of(self._entries[place]) for place in told]
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
            self.ours.pop(place, None)
        else:
            self._suits[place] = _suits(change.entry, self._accept)
            self._entries[place] = change.entry
        suits, is_free = self._suits.get(place), place not in self._claimed and not self._is_ours(place)
        (self._good.add if suits and is_free else self._good.discard)(place)
        (self._bad.add if suits is False and is_free else self._bad.discard)(place)

    def _is_ours(self, place: tuple[str, str]) -> bool:
        entry = self._entries.get(place)
        return entry is not None and place in self.ours and self.ours[place] == entry.version


def _suits(entry: Entry, accept: Accept) -> bool:
    """Whether an item will do. What is no item will do: who looks makes a dead letter of it."""
    try:
        return accept(QueueItem.of(entry))
    except BadRecord:
        return True


def _blocks(ticket: Ticket) -> bool:
    return ticket.body.get(_PASSES) is not True
