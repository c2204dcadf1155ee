"""Taking items from a queue: the first item that nobody has claimed, and a claim on it.

Keys:  see ``items``
Claim: created in the transaction that counts the attempt, on condition that the item is as it was read.
"""

from __future__ import annotations

import logging
import random
import uuid
from functools import partial

from latchwork.errors import BadRecord, Conflict, LatchworkError, OutcomeUnknown
from latchwork.primitives.fair.tickets import TicketQueue, read_body, write_body
from latchwork.primitives.fair.turns import take_turn
from latchwork.primitives.queue.in_doubt import Doubt, Doubts
from latchwork.primitives.queue.numbered_claim import Claim
from latchwork.primitives.queue.numbered_items import Item, Names, item_id
from latchwork.primitives.waiting.common import Patience
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.session import Session
from latchwork.store.steps import OnInterrupt, Settled, ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Absent, At, Create, Delete, Entry, Op, Put

_log = logging.getLogger(__name__)

#: Items looked at beyond those that are claimed.
_PAGE = 16
#: A taker that was too slow for the first item tries one of the next so many.
_SPREAD = 8


class Taking:
    """The head of one queue. Safe to share between threads.

    Attributes:
        queue: the tickets of those that wait for an item.
    """

    def __init__(self, store: Store, names: Names, *, what: str, most: int, label: str) -> None:
        self.queue = TicketQueue(store, f"{names.name}/takers", f"takers of {what}", label)
        self._store = store
        self._names = names
        self._what = what
        self._most = most
        self._doubts = Doubts(store, what)

    async def await_item(self, waiter: Waiter, patience: Patience) -> Claim | None:
        """Wait in the queue, then for an item: only the first in the queue watches the items."""
        place = await take_turn(self.queue, waiter, patience)
        if place is None:
            return None
        try:
            while await waiter.follow(self._names.live, _IsFree(self._names), patience):
                claim = await waiter.keep_trying(lambda: self.try_take(waiter.session), patience)
                if claim is not None:
                    return claim
            return None
        finally:
            await self.queue.leave(place)

    async def try_take(self, session: Session) -> Claim | None:
        """Take the first free item, or None if there is none."""
        claim = await self._settle_doubts(session)
        after: str | None = None
        taken = set(await ask(self._store.children, self._names.claims)) if claim is None else set()
        while claim is None:
            limit = len(taken) + _PAGE
            page = await ask(self._store.list, self._names.items, limit=limit, start_after=after)
            claim = await self._claim_one([entry for entry in page if item_id(entry) not in taken], session)
            if len(page) < limit:
                break
            after = page[-1].key
        return claim

    async def _claim_one(self, free: list[Entry], session: Session) -> Claim | None:
        """Claim the first; whenever others are faster, one of the next, so that takers spread out."""
        at = 0
        while free:
            entry = free.pop(at)
            try:
                claim = await self._claim(entry, session)
            except Conflict:
                at = random.randrange(min(_SPREAD, len(free))) if free else 0
                continue
            if claim is not None:
                return claim
            at = 0
        return None

    async def _claim(self, entry: Entry, session: Session) -> Claim | None:
        """Claim an item; None when it has used up its attempts, and is a dead letter now, as is what is no item."""
        try:
            item = Item.of(entry)
        except BadRecord:
            await self._set_aside(entry)
            return None
        key = self._names.claim(item.id)
        if item.attempts >= self._most:
            dead = item.given_back(item.why or f"taken {item.attempts} times, and never acknowledged")
            letter = Create(self._names.letter(item.id), dead.to_bytes())
            await ask(self._store.commit, [At(entry), Absent(key)], [Delete(entry.key), letter])
            _log.warning("%s: item %s is a dead letter after %d attempts", self._what, item.id, item.attempts)
            return None
        nonce = uuid.uuid4().hex
        body = {**self.queue.about, "nonce": nonce}
        taken = item.taken()
        ops: list[Op] = [Put(entry.key, taken.to_bytes()), Create(key, write_body(body), session)]
        doubt = Doubt(key, entry.key, nonce, session, entry)
        undos = await OnInterrupt(partial(self._doubts.note, doubt))
        try:
            claim = (await ask(self._store.commit, [At(entry)], ops)).entries[1]
        except LatchworkError as error:
            await Settled(undos)
            if isinstance(error, OutcomeUnknown):
                self._doubts.note(doubt)
            raise
        return await self._claimed(taken, claim, session)

    async def _set_aside(self, entry: Entry) -> None:
        """Make a dead letter of a value that is no item: it would be first in the queue for ever."""
        letter = Item.shown(entry)
        ops: list[Op] = [Delete(entry.key), Create(self._names.letter(letter.id), letter.to_bytes())]
        await ask(self._store.commit, [At(entry), Absent(self._names.claim(letter.id))], ops)
        _log.error("%s: %s; it is a dead letter now", self._what, letter.why)

    async def _claimed(self, item: Item, claim: Entry, session: Session) -> Claim:
        value = item.value
        if item.data_id:
            try:
                data = await ask(self._store.get, self._names.data(item.data_id))
            except LatchworkError:
                nonce = str(read_body(claim.value).get("nonce"))
                self._doubts.note(Doubt(claim.key, self._names.item(item.id), nonce, session, None))
                raise
            if data is None:
                await ask(self._store.delete, claim.key, version=claim.version)
                raise LatchworkError(f"item {item.id} of {self._what} has lost its value, somebody deleted it")
            value = data.value
        return Claim(self._store, self._names, item, value, claim, session=session, most=self._most)

    async def _settle_doubts(self, session: Session) -> Claim | None:
        """The first claim of ours that turns out to be there."""
        for doubt in self._doubts.of(session):
            await OnInterrupt(partial(self._doubts.note, doubt))  # whoever ends a doubt has the claim
            landed = await self._doubts.settle(doubt)
            if landed is not None:
                claim, item = landed
                return await self._claimed(Item.of(item), claim, session)
        return None


class _IsFree:
    """Follows items and claims, and says whether an item is free. One thread only."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._items: set[str] = set()
        self._claims: set[str] = set()

    def __call__(self, batch: Batch) -> bool:
        for change in batch:
            parent, _, name = change.key.rpartition("/")
            known = self._items if parent == self._names.items else self._claims
            if change.entry is None:
                known.discard(name)
            else:
                known.add(name)
        return bool(self._items - self._claims)
