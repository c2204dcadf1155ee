"""Claims of unknown outcome: each one is found by a later take, or removed, or prevented from landing.

A claim is created in the transaction that writes its item again, on condition that the item is as it was read. So a
client that does not find the claim writes the item once more: after that the claim can never land.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from latchwork._base.decoding import read_object
from latchwork._base.interrupts import mutex
from latchwork.errors import Conflict, LatchworkError
from latchwork.primitives.fair.tickets import FATAL
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import Absent, At, Entry, Put

_log = logging.getLogger(__name__)

#: Seconds for which a claim in doubt is left to the next take.
_LEFT_TO_TAKES_S = 1.0


class HasVersion(Protocol):
    """An item as it was read."""

    @property
    def version(self) -> Hashable:
        """The version of its key."""


@dataclass(frozen=True, slots=True, eq=False)
class ClaimInDoubt:
    """A claim of unknown outcome.

    Attributes:
        key: of the claim.
        item_key: of its item.
        nonce: identifies the claim as ours.
        session: the session it is bound to.
        item: the item before it was claimed; None if the claim certainly exists.
    """

    key: str
    item_key: str
    nonce: str
    session: Session
    item: HasVersion | None

    @classmethod
    def certain(cls, claim: Entry, item_key: str, session: Session) -> ClaimInDoubt:
        """Return the record of a claim that exists and that no caller knows of."""
        return cls(claim.key, item_key, str(read_object(claim.value).get("nonce")), session, None)


class ClaimsInDoubt:
    """The claims of one queue object that are in doubt. Thread-safe.

    Args:
        store: the store of the queue.
        what: the queue, for messages.
    """

    def __init__(self, store: Store, what: str) -> None:
        self._store = store
        self._what = what
        self._lock = mutex()
        self._open: dict[str, ClaimInDoubt] = {}

    def note(self, claims: Iterable[ClaimInDoubt]) -> None:
        """Record claims that may exist, or may still land, unused: the next take uses them, or they are removed."""
        claims = list(claims)
        with self._lock:
            for each in claims:
                self._open[each.key] = each
        for each in claims:
            self._store.cleanup.add(partial(self._clear, each, Backoff()), _LEFT_TO_TAKES_S)

    def of(self, session: Session) -> list[ClaimInDoubt]:
        """Return the claims that are bound to a session."""
        with self._lock:
            return [each for each in self._open.values() if each.session is session]

    async def settle(self, claim: ClaimInDoubt) -> tuple[Entry, Entry] | None:
        """Return claim and item if the claim landed: it belongs to the caller then. Otherwise it never will land."""
        found, item = await self._decide(claim)
        if found is not None and item is None:  # another client removed the item: the cleanup removes the claim
            return None
        is_ours = self._remove(claim)
        return (found, item) if is_ours and found is not None and item is not None else None

    async def _clear(self, claim: ClaimInDoubt, backoff: Backoff) -> float | None:
        """Try once to remove a claim that no take used; a ``CleanupJob``."""
        if claim.session.remaining_s() <= 0.0 or self._open.get(claim.key) is not claim:
            return None
        try:
            found, _ = await self._decide(claim)
        except FATAL as error:
            _log.warning("%s: %s stays until its session ends: %s", self._what, claim.key, error)
            return None
        except LatchworkError as error:
            _log.info("%s: %s is not cleared yet: %s", self._what, claim.key, error)
            return backoff.next_s()
        if self._remove(claim) and found is not None:
            delete_claim_later(self._store, found, claim.session, self._what)
        return None

    def _remove(self, claim: ClaimInDoubt) -> bool:
        """Return True to exactly one of the take and the cleanup that decided a claim."""
        with self._lock:
            return self._open.get(claim.key) is claim and bool(self._open.pop(claim.key))

    async def _decide(self, claim: ClaimInDoubt) -> tuple[Entry | None, Entry | None]:
        """Return the claim and its item if it landed; otherwise make sure that it never will.

        It checks the item as it was. As long as that holds, writing the item again keeps it from landing.
        """
        while True:
            found, item = await ask(self._store.get_many, [claim.key, claim.item_key])
            if found is not None:
                if read_object(found.value).get("nonce") != claim.nonce:
                    return None, None
                if item is None or item.token < found.token:  # no snapshot: as it was before it was claimed
                    item = await ask(self._store.get, claim.item_key)
                return found, item
            if item is None or claim.item is None or item.version != claim.item.version:
                if await ask(self._store.get, claim.key) is None:
                    return None, None
                continue  # no snapshot: it landed between the reads of the two
            with contextlib.suppress(Conflict):
                await ask(self._store.commit, [At(item), Absent(claim.key)], [Put(item.key, item.value)])
                return None, None


def delete_claim_later(store: Store, claim: Entry, session: Session, what: str) -> None:
    """Delete a claim in the background, until it is gone, was written again, or its session has ended."""
    store.cleanup.add(partial(_delete_claim, store, claim, session, what, Backoff()))


async def _delete_claim(store: Store, claim: Entry, session: Session, what: str, backoff: Backoff) -> float | None:
    if session.remaining_s() <= 0.0:
        return None
    try:
        await ask(store.delete, claim.key, version=claim.version)
    except Conflict:
        return None
    except FATAL as error:
        _log.warning("%s: %s stays until its session ends: %s", what, claim.key, error)
    except LatchworkError as error:
        _log.info("%s: %s is not deleted yet: %s", what, claim.key, error)
        return backoff.next_s()
    return None
