"""Claims whose outcome is unknown. Each one is used by a later take, or released, or made impossible to commit.

A take writes its claim into the item, on condition that the item is unchanged since it was read. If a client finds the
item unchanged, it writes the item again. After that, the claim can never be committed.
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

#: Seconds for which an unconfirmed claim is left to the next take, before it is released in the background.
_LEFT_TO_TAKES_S = 1.0


class VersionedItem(Protocol):
    """An item as it was read."""

    @property
    def version(self) -> Hashable:
        """The version of the item's key."""


@dataclass(frozen=True, slots=True, eq=False)
class UnconfirmedClaim:
    """A claim whose outcome is unknown.

    Attributes:
        item_key: The key of its item.
        claim: The text that the take wrote into the item.
        holder: The claim holder.
        item: The item before it was claimed. None if the claim certainly exists, or if its item was new.
    """

    item_key: str
    claim: str
    holder: ClaimHolder
    item: VersionedItem | None

    @property
    def id(self) -> tuple[str, str]:
        """The key of the item and the claim. Several takes of one item may be unconfirmed."""
        return self.item_key, self.claim


class UnconfirmedClaims:
    """The claims of one queue object whose outcome is unknown. Thread-safe.

    Args:
        store: The store of the queue.
        what: Name of the queue, for messages.
    """

    def __init__(self, store: Store, what: str) -> None:
        self._store = store
        self._what = what
        self._lock = mutex()
        self._by_id: dict[tuple[str, str], UnconfirmedClaim] = {}

    def add(self, claims: Iterable[UnconfirmedClaim]) -> None:
        """Remember claims that no caller has received, because the outcome of their transaction is unknown.

        The next take of this client returns those that were committed. Otherwise they are released in the background.
        """
        claims = list(claims)
        with self._lock:
            for claim in claims:
                self._by_id[claim.id] = claim
        for claim in claims:
            self._store.cleanup.add(partial(self._release_unused, claim, Backoff()), _LEFT_TO_TAKES_S)

    def list_for_session(self, session: Session) -> list[UnconfirmedClaim]:
        """Return the unconfirmed claims that are bound to a session."""
        with self._lock:
            return [claim for claim in self._by_id.values() if claim.holder.session is session]

    async def resolve(self, claim: UnconfirmedClaim) -> Entry | None:
        """Find out whether a claim was committed. If it was not, make sure that it never will be.

        Returns:
            The item if the claim was committed; it belongs to the caller. None otherwise.
        """
        found = await self._confirm_or_invalidate(claim)
        return found if self._remove(claim) else None

    async def _release_unused(self, claim: UnconfirmedClaim, backoff: Backoff) -> float | None:
        """Try once to release a claim that no later take has returned to a caller. Runs as a background cleanup.

        Args:
            claim: The claim.
            backoff: Delays between attempts.
        Returns:
            Seconds until the next attempt. None if there is nothing left to do.
        """
        if claim.holder.session.remaining_s() <= 0.0 or self._by_id.get(claim.id) is not claim:
            return None
        try:
            found = await self._confirm_or_invalidate(claim)
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
        """Try once to release a claimed item. The attempt counts. Runs as a background cleanup.

        Args:
            found: The entry of the item.
            session: The session of the claim.
            backoff: Delays between attempts.
        Returns:
            Seconds until the next attempt. None if there is nothing left to do.
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

    def _remove(self, claim: UnconfirmedClaim) -> bool:
        """Remove a claim from the list. Return False if another thread has removed it before."""
        with self._lock:
            return self._by_id.get(claim.id) is claim and bool(self._by_id.pop(claim.id))

    async def _confirm_or_invalidate(self, claim: UnconfirmedClaim) -> Entry | None:
        """Return the item if the claim was committed. Otherwise make sure that it never will be, and return None.

        The claim is committed only if the item is unchanged. Writing the item again prevents that.
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
