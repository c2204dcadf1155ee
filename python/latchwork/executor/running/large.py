"""Outcomes that are too large for a key: written before the result that names them, deleted when none will.

A run whose end is refused (cancelled while it ran, another copy was faster, its claim was lost) has written its outcome
already. Its claim decides whether the result may come yet: once the claim is not as it was, nothing that checks it is
ever written; and a result that is there then, and names the outcome, is there because it was.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from latchwork.errors import Closed, Conflict, ForkedProcess, LatchworkError
from latchwork.executor.items import ref_of
from latchwork.interrupts import mutex
from latchwork.primitives import QueueClaim
from latchwork.store import Backoff, Store
from latchwork.store.steps import ask
from latchwork.tasks import BlobRef, Blobs
from latchwork.types import Fence

_log = logging.getLogger(__name__)

#: Seconds of the longest pause before it is looked again.
_LONGEST_S = 5.0


@dataclass(frozen=True, slots=True)
class _Written:
    ref: BlobRef
    result_key: str


class LargeOutcomes:
    """Large outcomes of one worker's claims. Safe to share between threads.

    Args:
        store: the store.
        blobs: where large values are.
    """

    def __init__(self, store: Store, blobs: Blobs) -> None:
        self._store = store
        self._blobs = blobs
        self._lock = mutex()
        self._written: dict[QueueClaim, _Written] = {}

    def write(self, claim: QueueClaim, owner: str, result_key: str, stored: bytes) -> BlobRef:
        """Write the outcome of a claim's run; the one that was written if its end is tried again."""
        with self._lock:
            found = self._written.get(claim)
        if found is None:
            found = _Written(self._blobs.write(owner, stored), result_key)
            with self._lock:
                self._written[claim] = found
        return found.ref

    def named(self, claim: QueueClaim, *_: object) -> None:
        """The result that names it is written."""
        with self._lock:
            self._written.pop(claim, None)

    def over(self, claim: QueueClaim) -> None:
        """The claim is over: what no result names is deleted, in the background. Asks no store."""
        with self._lock:
            found = self._written.pop(claim, None)
        if found is not None:
            backoff = Backoff(longest_s=_LONGEST_S)
            self._store.cleanup.add(partial(self._clear, found, claim.fence, backoff))

    async def _clear(self, written: _Written, fence: Fence, backoff: Backoff) -> float | None:
        """Look once whether a result names it, and delete it if none will; a ``CleanupJob``."""
        try:
            is_named = await self._is_named(written, fence)
        except (Closed, ForkedProcess):
            return None
        except LatchworkError as error:
            _log.info("large value %s is not cleared yet: %s", written.ref.id, error)
            is_named = None
        if is_named is False:
            self._blobs.forget(written.ref)
        return backoff.next_s() if is_named is None else None

    async def _is_named(self, written: _Written, fence: Fence) -> bool | None:
        """Whether a result names it; None while one may come yet. The claim is asked for first."""
        try:
            await ask(self._store.commit, [fence], [])
        except Conflict:  # and it never holds again
            result = await ask(self._store.get, written.result_key)
            return result is not None and ref_of(result.value) == written.ref
        return None
