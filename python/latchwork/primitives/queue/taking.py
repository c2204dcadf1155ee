"""Taking items from a work queue: the first that nobody has claimed, many in one transaction.

Keys:  see ``items``
Claim: created in the transaction that counts the attempt, on condition that the item is as it was read.

What is free is read page by page; see ``pages``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from latchwork.errors import BadRecord, Conflict, LatchworkError, OutcomeUnknown
from latchwork.primitives.fair.tickets import read_body, write_body
from latchwork.primitives.queue.claims import Holding, QueueClaim
from latchwork.primitives.queue.handing import CreateClaimed
from latchwork.primitives.queue.in_doubt import Doubt, Doubts
from latchwork.primitives.queue.items import (
    QueueItem,
    letter_op,
    new_number,
    other_letter,
    shown,
)
from latchwork.primitives.queue.pages import EMPTY_S, FEW, NO_SHARE, Hint, Kept, Pages, Share
from latchwork.store.session import Session
from latchwork.store.steps import OnInterrupt, Settled, Steps, ask, called, steps_of
from latchwork.types import Absent, At, Check, Create, Delete, Entry, Op, Put

_log = logging.getLogger(__name__)

#: What one transaction takes of checks or writes, and of bytes.
MOST_WRITES, MOST_BYTES = 90, 500_000
MOST_TOGETHER = MOST_WRITES // 2

#: Seconds for which a take may begin behind many that were taken. An item that comes back before them waits so long.
HINT_S = 0.25

#: Checks and writes of the caller's.
Parts = tuple[Sequence[Check], Sequence[Op]]
Accept = Callable[[QueueItem], bool]
Extra = Callable[[QueueItem], Parts]
T = TypeVar("T")


def nothing_more(_item: QueueItem) -> Parts:
    """No checks and no writes."""
    return (), ()


def everything(_item: QueueItem) -> bool:
    """Any item will do."""
    return True


def no_share(_partition: str) -> Share:
    """Takers do not know each other."""
    return NO_SHARE


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller of ``try_take`` wants.

    Attributes:
        partitions: where to look, in this order.
        limit: so many at most.
        accept: whether an item will do.
        extra: checks and writes in the transaction that takes it.
        extra_dead: checks and writes in the transaction that makes a dead letter of it.
        on_refused: called for an item whose extra checks did not hold.
        share: which of the takers of a partition we are.
    """

    partitions: Sequence[str]
    limit: int = 1
    accept: Accept = everything
    extra: Extra = nothing_more
    extra_dead: Extra = nothing_more
    on_refused: Callable[[QueueItem], object] | None = None
    share: Callable[[str], Share] = no_share


@dataclass(frozen=True, slots=True, eq=False)
class Try:
    """One item that is to be taken: as it was read, as it would be, and what the caller adds."""

    entry: Entry
    item: QueueItem
    claim_key: str
    checks: Sequence[Check]
    ops: Sequence[Op]

    @property
    def size(self) -> int:
        """Bytes of keys and values that it writes, and checks, about."""
        values = sum(len(op.value) for op in self.ops if not isinstance(op, Delete))
        return len(self.entry.value) + 4 * len(self.entry.key) + values + 400


def batch_of(tries: Sequence[Try], most: int) -> list[Try]:
    """The first of these that fit into one transaction, at most so many; at least one."""
    batch: list[Try] = []
    keys: set[str] = set()
    checks: set[Check] = set()
    writes = size = 0
    for each in tries[:most]:
        more = {op.key for op in each.ops}
        checks.update(each.checks)
        writes += 2 + len(each.ops)
        size += each.size
        full = writes > MOST_WRITES or len(checks) + len(batch) + 1 > MOST_WRITES or size > MOST_BYTES
        if batch and (full or not keys.isdisjoint(more)):
            break
        keys |= more
        batch.append(each)
    return batch


def blamed(batch: Sequence[Try], failed: Sequence[object]) -> tuple[list[Try], list[Try]]:
    """Of a refused transaction: the items that others took or changed, and those whose extra checks did not hold."""
    keys = {getattr(each, "key", None) for each in failed}
    lost = [each for each in batch if each.entry.key in keys or each.claim_key in keys]
    refused = [each for each in batch if each not in lost and _is_refused(each, failed, keys)]
    return lost, refused


def _is_refused(each: Try, failed: Sequence[object], keys: set[str | None]) -> bool:
    return any(check in failed for check in each.checks) or any(op.key in keys for op in each.ops)


def _from_anywhere(free: list[Entry]) -> list[Entry]:
    """The same, from any of them on, those before it at the end."""
    at = random.randrange(len(free)) if free else 0
    return free[at:] + free[:at]


class Taking:
    """The heads of the partitions of one backlog. Safe to share between threads."""

    def __init__(self, held: Holding, what: str, about: dict[str, object]) -> None:
        self._held = held
        self._store = held.store
        self._names = held.names
        self._what = what
        self._about = about
        self._doubts = Doubts(held.store, what)
        self._hints: dict[str, Hint] = {}
        self._kept: dict[str, Kept] = {}

    @property
    def most(self) -> int:
        """Attempts that an item has."""
        return self._held.most

    async def try_take(self, wish: Wish, session: Session) -> list[QueueClaim]:
        """Take the first items that are free; what is taken already is not lost by trouble with the others."""
        return await self._surely(partial(self._take_from_partitions, wish, session), session)

    async def take_items(self, items: Sequence[QueueItem], wish: Wish, session: Session) -> list[QueueClaim]:
        """Take these as they were read; what is taken already is not lost by trouble with the others."""
        entries = [Entry(item.key, item.to_bytes(), item.version, 0, 0) for item in items]
        claims = await self._surely(partial(self._take_of, entries, wish, session), session)
        places = {item.key: at for at, item in enumerate(items)}
        return sorted(claims, key=lambda claim: places.get(claim.item.key, len(places)))

    async def _take_from_partitions(self, wish: Wish, session: Session, claims: list[QueueClaim]) -> None:
        await self._settle_doubts(wish, session, claims)
        for partition in self._worth_a_look(wish):
            await self._take_from_partition(partition, wish, session, claims)

    async def _surely(self, take: Callable[[list[QueueClaim]], Steps[object]], session: Session) -> list[QueueClaim]:
        claims: list[QueueClaim] = []
        try:
            await take(claims)
        except LatchworkError as error:
            if not claims:
                raise
            _log.info("%s: %d items were taken, the others not: %s", self._what, len(claims), error)
        except Exception:  # of a function of the caller's, who gets none of the claims
            self._give_up(claims, session)
            raise
        return claims

    def _worth_a_look(self, wish: Wish) -> list[str]:
        """The partitions to look into: without those that had nothing a moment ago, if others have what is known."""
        now = self._store.clock.now()
        kept = {partition: self._kept[partition] for partition in wish.partitions if partition in self._kept}
        if not any(each.fresh(now) for each in kept.values()):
            return list(wish.partitions)
        return [
            partition for partition in wish.partitions if partition not in kept or now >= kept[partition].is_empty_until
        ]

    async def _take_from_partition(
        self, partition: str, wish: Wish, session: Session, claims: list[QueueClaim]
    ) -> None:
        """Take what was read before; else from where the first free item was a moment ago; else from the head."""
        if len(claims) >= wish.limit:
            return
        had, now, share = len(claims), self._store.clock.now(), wish.share(partition)
        if share.is_known:
            kept = self._kept.setdefault(partition, Kept())
            kept.entries = await self._take_of(kept.fresh(now), wish, session, claims)
            if len(claims) > had:
                return
        hint = self._hints.pop(partition, None)
        wanted = (wish.limit - len(claims)) * share.count
        if hint is not None and now < hint.until:
            pages = Pages(self._held, partition, wanted, tidies=True, start=hint.start)
            await self._take_from(pages, wish, session, claims, share)
            if len(claims) >= wish.limit or (share.is_known and len(claims) > had):
                self._hints[partition] = Hint(pages.first or hint.start, hint.until)
                return
        pages = Pages(self._held, partition, wanted, tidies=True)
        await self._take_from(pages, wish, session, claims, share)
        found = pages.hint(now + HINT_S)
        if found is not None:
            self._hints[partition] = found
        if share.is_known and pages.is_empty:
            self._kept[partition].is_empty_until = now + EMPTY_S

    async def _take_from(
        self, pages: Pages, wish: Wish, session: Session, claims: list[QueueClaim], share: Share
    ) -> None:
        had = len(claims)
        while len(claims) < wish.limit and (free := await pages.next()) is not None:
            if not share.is_known:
                await self._take_of(free, wish, session, claims)
                continue
            kept, now = self._kept[pages.partition], self._store.clock.now()
            mine, others = kept.split(free, share, now)
            kept.keep(await self._take_of(mine, wish, session, claims), now)
            if len(claims) == had and not share.is_patient:
                await self._take_of(_from_anywhere(others)[:FEW], wish, session, claims)
            if len(claims) > had:
                return

    def create_claimed(
        self, partition: str, sort_key: str, item_id: str, value: bytes, session: Session
    ) -> CreateClaimed:
        """An item that is put and taken at once."""
        key = self._names.item(partition, sort_key, item_id)
        item = QueueItem(item_id, 1, size=len(value), value=value, partition=partition, sort_key=sort_key, key=key)
        return CreateClaimed(self._held, self._doubts, item, self._about, session=session)

    def _give_up(self, claims: Iterable[QueueClaim], session: Session) -> None:
        self._doubts.note(*(self._doubt(claim._claim, claim.item.key, session) for claim in claims))  # noqa: SLF001

    def _doubt(self, claim: Entry, item_key: str, session: Session) -> Doubt:
        return Doubt(claim.key, item_key, str(read_body(claim.value).get("nonce")), session, None)

    async def _take_of(self, free: list[Entry], wish: Wish, session: Session, claims: list[QueueClaim]) -> list[Entry]:
        """Take from a page; what is left of it.

        After others were faster, from anywhere in the page, so that takers spread out.
        """
        tries: list[Try] = []
        while len(claims) < wish.limit:
            left = wish.limit - len(claims)
            while free and len(tries) < min(left, MOST_TOGETHER):
                more = await self._try_of(free.pop(0), wish)
                tries += [] if more is None else [more]
            if not tries:
                return []
            batch = batch_of(tries, left)
            try:
                claims += await self._claim(batch, session)
                tries = [each for each in tries if each not in batch]
            except Conflict as error:
                lost, refused = blamed(batch, error.failed)
                if not (lost or refused):
                    raise
                await self._tell_refused(refused, wish)
                tries = [each for each in tries if each not in lost and each not in refused]
                if lost:
                    free, tries = _from_anywhere([*(each.entry for each in tries), *free]), []
        return [*(each.entry for each in tries), *free]

    async def _tell_refused(self, refused: Iterable[Try], wish: Wish) -> None:
        for each in refused:
            if wish.on_refused is not None:
                await called(wish.on_refused, QueueItem.of(each.entry))

    async def _try_of(self, entry: Entry, wish: Wish) -> Try | None:
        """How an item is to be taken; None if it will not do, or is a dead letter now, as is what is no item."""
        try:
            item = QueueItem.of(entry)
        except BadRecord:
            await self.bury(shown(entry), nothing_more)
            return None
        if item.attempts >= self._held.most:
            why = item.why or f"taken {item.attempts} times, and never acknowledged"
            await self.bury(item.given_back(why), wish.extra_dead)
            return None
        if not wish.accept(item):
            return None
        checks, ops = wish.extra(item)  # noqa: S610 - no Django here
        return Try(entry, item.taken(), self._names.claim_of(item), tuple(checks), tuple(ops))

    async def bury(self, item: QueueItem, extra: Extra) -> bool:
        """Make a dead letter of an item that nobody has: its takers died, or it is none and in everybody's way."""
        checks, ops = extra(item)
        letter = item.id
        while True:
            dead = letter_op(self._names, item, letter)
            held = [item.check, Absent(self._names.claim_of(item)), *checks]
            try:
                await ask(self._store.commit, held, [Delete(item.key), dead, *ops])
            except Conflict as error:
                if not any(getattr(each, "key", None) == dead.key for each in error.failed):
                    _log.info("%s: item %s is no dead letter yet: %s", self._what, item.path, error)
                    return False
                letter = other_letter(item.id)
            else:
                _log.warning("%s: item %s is a dead letter: %s", self._what, item.path, item.why)
                return True

    async def _claim(self, batch: Sequence[Try], session: Session) -> list[QueueClaim]:
        """Claim these, all or none."""
        nonce = new_number()
        body = write_body({**self._about, "nonce": nonce})
        doubts = [Doubt(each.claim_key, each.entry.key, nonce, session, each.entry) for each in batch]
        checks: list[Check] = [At(each.entry) for each in batch]
        ops: list[Op] = []
        for each in batch:
            ops += [Put(each.entry.key, each.item.to_bytes()), Create(each.claim_key, body, session)]
        for each in batch:
            checks += each.checks
            ops += each.ops
        undos = await OnInterrupt(partial(self._doubts.note, *doubts))
        try:
            written = (await ask(self._store.commit, checks, ops)).entries
        except LatchworkError as error:
            await Settled(undos)
            if isinstance(error, OutcomeUnknown):
                self._doubts.note(*doubts)
            raise
        pairs = [(each.item.at(written[2 * n]), written[2 * n + 1]) for n, each in enumerate(batch)]
        return await self._claimed(pairs, session)

    async def _claimed(self, pairs: Sequence[tuple[QueueItem, Entry]], session: Session) -> list[QueueClaim]:
        """The claims on items, with their values."""
        try:
            values = await self._large(item for item, _ in pairs)
        except LatchworkError:
            self._doubts.note(*(self._doubt(claim, item.key, session) for item, claim in pairs))
            raise
        claims = []
        for item, entry in pairs:
            value = values.get(item.data_id) if item.data_id else item.value
            claim = QueueClaim(self._held, item, value or b"", entry, session=session)
            if value is None:
                await steps_of(claim.bury)("its value is gone, somebody deleted it")
            else:
                claims.append(claim)
        return claims

    async def _large(self, items: Iterable[QueueItem]) -> dict[str, bytes]:
        """Values that are kept beside their items, by their names."""
        found = {}
        for number in [item.data_id for item in items if item.data_id]:
            entry = await ask(self._store.get, self._names.data(number))
            if entry is not None:
                found[number] = entry.value
        return found

    async def _settle_doubts(self, wish: Wish, session: Session, claims: list[QueueClaim]) -> None:
        """Claims of ours that turn out to be there, and are on items that are wanted now."""
        partitions = {self._names.items(partition) for partition in wish.partitions}
        for doubt in self._doubts.of(session):
            if len(claims) >= wish.limit:
                return
            if doubt.item_key.rpartition("/")[0].rpartition("/")[0] not in partitions:
                continue
            await OnInterrupt(partial(self._doubts.note, doubt))  # whoever ends a doubt has the claim
            landed = await self._doubts.settle(doubt)
            if landed is None:
                continue
            claim, entry = landed
            suits = False
            try:
                item = QueueItem.of(entry)
                suits = wish.accept(item)
            except BadRecord as error:
                _log.info("%s: %s", self._what, error)
            finally:
                if not suits:
                    self._doubts.note(self._doubt(claim, entry.key, session))
            if suits:
                claims += await self._claimed([(item, claim)], session)
