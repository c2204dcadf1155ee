"""Claims of unknown outcome. Each one is found by a later take, or released, or can never be committed.

A take writes its claim into the item, and checks that the item is as it was read. So a client that finds the item
unchanged writes it once more: after that the claim can never be committed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from latchwork._base.interrupts import mutex
from latchwork.errors import BadRecord, Conflict, LatchworkError
from latchwork.primitives.fair.tickets import FATAL
from latchwork.primitives.queue.items import ClaimHolder, QueueItem
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import At, Delete, Entry, Put

_log = logging.getLogger(__name__)

#: Seconds for which a claim in doubt is left to the next take.
_LEFT_TO_TAKES_S = 1.0


class VersionedItem(Protocol):
    """An item as it was read."""

    @property
    def version(self) -> Hashable:
        """The version of the item's key."""


@dataclass(frozen=True, slots=True, eq=False)
class ClaimInDoubt:
    """A claim of unknown outcome.

    Attributes:
        item_key: The key of its item.
        claim: The text that the take wrote into the item.
        holder: Its holder.
        item: The item before it was claimed; None if the claim certainly exists, or its item was new.
    """

    item_key: str
    claim: str
    holder: ClaimHolder
    item: VersionedItem | None


class ClaimsInDoubt:
    """The claims of one queue object whose outcome is unknown. Thread-safe.

    Args:
        store: The store of the queue.
        what: Description of the queue for messages.
    """

    def __init__(self, store: Store, what: str) -> None:
        self._store = store
        self._what = what
        self._lock = mutex()
        self._open: dict[str, ClaimInDoubt] = {}

    def add(self, claims: Iterable[ClaimInDoubt]) -> None:
        """Record claims that may exist, or may still be committed, and that no caller has.

        The next take uses them, or they are released in the background.
        """
        claims = list(claims)
        with self._lock:
            for each in claims:
                self._open[each.item_key] = each
        for each in claims:
            self._store.cleanup.add(partial(self._clear, each, Backoff()), _LEFT_TO_TAKES_S)

    def list_for_session(self, session: Session) -> list[ClaimInDoubt]:
        """Return the claims that are bound to a session."""
        with self._lock:
            return [each for each in self._open.values() if each.holder.session is session]

    async def resolve(self, claim: ClaimInDoubt) -> Entry | None:
        """Return the item if the claim was committed, and None otherwise. In that case it never will be.

        A returned item belongs to the caller.
        """
        found = await self._decide(claim)
        return found if self._remove(claim) else None

    async def _clear(self, claim: ClaimInDoubt, backoff: Backoff) -> float | None:
        """Try once to release a claim that no take used. Return the seconds until the next try, or None.

        It is a job of the store's cleanup thread.
        """
        if claim.holder.session.remaining_s() <= 0.0 or self._open.get(claim.item_key) is not claim:
            return None
        try:
            found = await self._decide(claim)
        except FATAL as error:
            _log.warning("%s: %s stays claimed until its session ends: %s", self._what, claim.item_key, error)
            return None
        except LatchworkError as error:
            _log.info("%s: %s is not released yet: %s", self._what, claim.item_key, error)
            return backoff.next_s()
        if self._remove(claim) and found is not None:
            self._store.cleanup.add(partial(self._release, found, claim.holder.session, Backoff()))
        return None

    async def _release(self, found: Entry, session: Session, backoff: Backoff) -> float | None:
        """Try once to release an item. Return the seconds until the next try, or None. Its attempt counts.

        It is a job of the store's cleanup thread.
        """
        if session.remaining_s() <= 0.0:
            return None
        item = QueueItem.from_entry(found)
        try:
            await ask(self._store.commit, [At(found)], [Put(found.key, item.with_reason(item.why).to_bytes())])
        except Conflict:
            return None
        except FATAL as error:
            _log.warning("%s: %s stays claimed until its session ends: %s", self._what, found.key, error)
        except LatchworkError as error:
            _log.info("%s: %s is not released yet: %s", self._what, found.key, error)
            return backoff.next_s()
        return None

    def _remove(self, claim: ClaimInDoubt) -> bool:
        """Remove a claim from the list. Return whether it was still in it, so that of two threads only one resolves the
        claim.
        """
        with self._lock:
            return self._open.get(claim.item_key) is claim and bool(self._open.pop(claim.item_key))

    async def _decide(self, claim: ClaimInDoubt) -> Entry | None:
        """Return the item if the claim was committed; otherwise make sure that it never will be, and return None.

        The claim checks that the item is as it was read, so writing the item again keeps it from being committed.
        """
        while True:
            found: Entry | None = await ask(self._store.get, claim.item_key)
            if found is None:
                return None
            if claim.item is None or found.version != claim.item.version:
                return found if _has_claim(found, claim.claim) else None
            with contextlib.suppress(Conflict):
                await ask(self._store.commit, [At(found)], [Put(found.key, found.value)])
                return None


def _has_claim(entry: Entry, claim: str) -> bool:
    try:
        return QueueItem.from_entry(entry).claim == claim
    except BadRecord:
        return False


def delete_later(store: Store, key: str) -> None:
    """Delete a key in the background."""
    store.cleanup.add(partial(_delete, store, key, Backoff()))


async def _delete(store: Store, key: str, backoff: Backoff) -> float | None:
    try:
        await ask(store.commit, [], [Delete(key)])
    except FATAL as error:
        _log.warning("%s stays: %s", key, error)
    except LatchworkError as error:
        _log.info("%s is not deleted yet: %s", key, error)
        return backoff.next_s()
    return None
