"""Taking items from a queue: the first item that nobody has claimed, and a claim on it.

Keys:  see ``items``
Claim: created in the transaction that counts the attempt, on condition that the item is as it was read.
"""

from __future__ import annotations

import contextlib
import logging
import random
import uuid
from dataclasses import dataclass
from functools import partial

from latchwork.errors import BadRecord, Conflict, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.interrupts import mutex
from latchwork.primitives.fair.tickets import FATAL, TicketQueue, read_body, write_body
from latchwork.primitives.fair.turns import take_turn
from latchwork.primitives.queue.claim import Claim
from latchwork.primitives.queue.items import Item, Names, item_id
from latchwork.primitives.waiting.common import Patience
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.backoff import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.session import Session
from latchwork.store.steps import OnInterrupt, Pause, Settled, ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Absent, At, Create, Delete, Entry, Op, Put

_log = logging.getLogger(__name__)

#: Items looked at beyond those that are claimed.
_PAGE = 16
#: A taker that was too slow for the first item tries one of the next so many.
_SPREAD = 8
#: Seconds for which a claim of unknown outcome is left to the next take.
_DOUBT_S = 1.0


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
        self._lock = mutex()
        self._doubtful: dict[str, _Doubt] = {}

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
        doubt = _Doubt(key, nonce, session, entry)
        undos = await OnInterrupt(partial(self._doubt, doubt))
        try:
            claim = (await ask(self._store.commit, [At(entry)], ops)).entries[1]
        except LatchworkError as error:
            await Settled(undos)
            if isinstance(error, OutcomeUnknown):
                self._doubt(doubt)
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
                self._doubt(_Doubt(claim.key, str(read_body(claim.value).get("nonce")), session, None))
                raise
            if data is None:
                await ask(self._store.delete, claim.key, version=claim.version)
                raise LatchworkError(f"item {item.id} of {self._what} has lost its value, somebody deleted it")
            value = data.value
        return Claim(self._store, self._names, item, value, claim, session=session, most=self._most)

    # Claims of unknown outcome

    def _doubt(self, doubt: _Doubt) -> None:
        """Note a claim that may be there, or come, unused: the next take has it, or a thread removes it."""
        with self._lock:
            self._doubtful[doubt.key] = doubt
        Background(partial(self._clear_doubt, doubt), f"latchwork-claims-{self._names.name}")

    async def _settle_doubts(self, session: Session) -> Claim | None:
        """The first claim of ours that turns out to be there."""
        with self._lock:
            mine = [doubt for doubt in self._doubtful.values() if doubt.session is session]
        for doubt in mine:
            await OnInterrupt(partial(self._doubt, doubt))  # whoever ends a doubt has the claim
            claim, item = await self._decide(doubt)
            if self._is_mine_to_end(doubt) and claim is not None and item is not None:
                return await self._claimed(Item.of(item), claim, session)
        return None

    async def _clear_doubt(self, doubt: _Doubt) -> None:
        """Remove a claim that no take wanted; ends with the session at the latest."""
        session, backoff = doubt.session, Backoff()
        await Pause(self._store.clock, session.lost, _DOUBT_S)
        while session.remaining_s() > 0.0 and self._doubtful.get(doubt.key) is doubt:
            try:
                claim, _ = await self._decide(doubt)
                if self._is_mine_to_end(doubt) and claim is not None:
                    await self._delete_later(claim, session, backoff)
            except FATAL as error:
                _log.warning("%s: %s stays until its session ends: %s", self._what, doubt.key, error)
                return
            except LatchworkError as error:
                _log.info("%s: %s is not cleared yet: %s", self._what, doubt.key, error)
                await Pause(self._store.clock, session.lost, backoff.next_s())

    async def _delete_later(self, claim: Entry, session: Session, backoff: Backoff) -> None:
        while session.remaining_s() > 0.0:
            try:
                await ask(self._store.delete, claim.key, version=claim.version)
            except Conflict:
                return
            except (Unavailable, OutcomeUnknown) as error:
                _log.info("%s: %s is not deleted yet: %s", self._what, claim.key, error)
                await Pause(self._store.clock, session.lost, backoff.next_s())
            else:
                return

    def _is_mine_to_end(self, doubt: _Doubt) -> bool:
        """True for one of the two that decided a doubt: the take, or the thread."""
        with self._lock:
            return self._doubtful.get(doubt.key) is doubt and bool(self._doubtful.pop(doubt.key))

    async def _decide(self, doubt: _Doubt) -> tuple[Entry | None, Entry | None]:
        """The claim of a doubt and its item, if it landed; if it did not, make sure that it never will.

        It checks the item as it was. As long as that is so, writing the item anew keeps it from landing.
        """
        item_key = self._names.item(doubt.key.rpartition("/")[2])
        while True:
            claim, item = await ask(self._store.get_many, [doubt.key, item_key])
            if claim is not None:
                return (claim, item) if read_body(claim.value).get("nonce") == doubt.nonce else (None, None)
            if item is None or doubt.item is None or item.version != doubt.item.version:
                return None, None
            with contextlib.suppress(Conflict):
                await ask(self._store.commit, [At(item), Absent(doubt.key)], [Put(item_key, item.value)])
                return None, None


@dataclass(frozen=True, slots=True, eq=False)
class _Doubt:
    """A claim of unknown outcome: its key, nonce and session; its item as it was, None if it is there for certain."""

    key: str
    nonce: str
    session: Session
    item: Entry | None


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
