"""Claims of unknown outcome: each is found by a later take, or removed, or kept from landing.

A claim is created in the transaction that writes its item anew, on condition that the item is as it was read. So who
does not find the claim writes the item once more: then the claim never lands.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from functools import partial

from latchwork.errors import Conflict, LatchworkError
from latchwork.interrupts import mutex
from latchwork.primitives.fair.tickets import FATAL, read_body
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import Absent, At, Entry, Put

_log = logging.getLogger(__name__)

#: Seconds for which a claim of unknown outcome is left to the next take.
_DOUBT_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Doubt:
    """A claim of unknown outcome.

    Attributes:
        key: of the claim.
        item_key: of its item.
        nonce: by which the claim is known to be ours.
        session: that it is bound to.
        item: as it was when it was claimed; None if the claim is there for certain.
    """

    key: str
    item_key: str
    nonce: str
    session: Session
    item: Entry | None


class Doubts:
    """The claims of one object whose outcome is unknown. Safe to share between threads.

    Args:
        store: where they are.
        what: the queue in words, for messages.
    """

    def __init__(self, store: Store, what: str) -> None:
        self._store = store
        self._what = what
        self._lock = mutex()
        self._doubtful: dict[str, Doubt] = {}

    def note(self, *doubts: Doubt) -> None:
        """Note claims that may be there, or come, unused: the next take has them, or they are removed."""
        with self._lock:
            for doubt in doubts:
                self._doubtful[doubt.key] = doubt
        for doubt in doubts:
            self._store.cleanup.add(partial(self._clear, doubt, Backoff()), _DOUBT_S)

    def of(self, session: Session) -> list[Doubt]:
        """Those that are bound to a session."""
        with self._lock:
            return [doubt for doubt in self._doubtful.values() if doubt.session is session]

    async def settle(self, doubt: Doubt) -> tuple[Entry, Entry] | None:
        """Claim and item of a doubt, if it landed: the claim is the caller's then. Else it never will land."""
        claim, item = await self._decide(doubt)
        if claim is not None and item is None:  # somebody removed the item: the cleanup removes the claim
            return None
        is_mine = self._is_mine_to_end(doubt)
        return (claim, item) if is_mine and claim is not None and item is not None else None

    async def _clear(self, doubt: Doubt, backoff: Backoff) -> float | None:
        """Try once to remove a claim that no take wanted; a ``CleanupJob``."""
        if doubt.session.remaining_s() <= 0.0 or self._doubtful.get(doubt.key) is not doubt:
            return None
        try:
            claim, _ = await self._decide(doubt)
        except FATAL as error:
            _log.warning("%s: %s stays until its session ends: %s", self._what, doubt.key, error)
            return None
        except LatchworkError as error:
            _log.info("%s: %s is not cleared yet: %s", self._what, doubt.key, error)
            return backoff.next_s()
        if self._is_mine_to_end(doubt) and claim is not None:
            delete_claim_later(self._store, claim, doubt.session, self._what)
        return None

    def _is_mine_to_end(self, doubt: Doubt) -> bool:
        """True for one of the two that decided a doubt: the take, or the cleanup."""
        with self._lock:
            return self._doubtful.get(doubt.key) is doubt and bool(self._doubtful.pop(doubt.key))

    async def _decide(self, doubt: Doubt) -> tuple[Entry | None, Entry | None]:
        """The claim of a doubt and its item, if it landed; if it did not, make sure that it never will.

        It checks the item as it was. As long as that is so, writing the item anew keeps it from landing.
        """
        while True:
            claim, item = await ask(self._store.get_many, [doubt.key, doubt.item_key])
            if claim is not None:
                if read_body(claim.value).get("nonce") != doubt.nonce:
                    return None, None
                if item is None or item.token < claim.token:  # no snapshot: as it was before it was claimed
                    item = await ask(self._store.get, doubt.item_key)
                return claim, item
            if item is None or doubt.item is None or item.version != doubt.item.version:
                if await ask(self._store.get, doubt.key) is None:
                    return None, None
                continue  # no snapshot: it landed between the reads of the two
            with contextlib.suppress(Conflict):
                await ask(self._store.commit, [At(item), Absent(doubt.key)], [Put(item.key, item.value)])
                return None, None


def delete_claim_later(store: Store, claim: Entry, session: Session, what: str) -> None:
    """Delete a claim as it is in the background, until it is gone, was written again, or its session has ended."""
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
