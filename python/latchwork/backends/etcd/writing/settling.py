"""Determines what became of a lost write, after making sure that it can no longer be applied.

Settling a write overwrites its slot. If that succeeds, the write was not applied and never will be, because it compares
an old revision. If it fails, the slot's revision is that of the write, and what the write did is read at that revision.
docs/design/etcd-writes.md has the states and the races.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import grpc

from latchwork._base.interrupts import mutex
from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import Link
from latchwork.backends.etcd.layout import Keys
from latchwork.backends.etcd.reads import read_ranges
from latchwork.backends.etcd.writing.slots import WRITTEN, GuardSlots, Slot
from latchwork.backends.etcd.writing.txn import Txn
from latchwork.backends.futures import Outcome, Steps, chain, drive
from latchwork.errors import (
    Closed,
    LatchworkError,
    OutcomeUnknown,
    PermissionDenied,
    SessionLost,
    StoreFull,
    Unavailable,
)

_log = logging.getLogger(__name__)

_PROBE_S = 0.5

#: Makes sure, within so many seconds, that a write of unknown outcome cannot land any more; raises when it cannot.
Settle = Callable[[float], Steps[None]]


class Settling:
    """Settles the writes of one store. Thread-safe.

    Attributes:
        unsettled: Writes that were reported as unknown and may still be applied; settled as soon as the server answers.
    """

    def __init__(self, link: Link, keys: Keys, slots: GuardSlots) -> None:
        self._link = link
        self._keys = keys
        self._slots = slots
        self._lock = mutex()
        self.unsettled: list[Settle] = []
        self._recovering: Future[None] | None = None

    def determine_outcome(
        self, txn: Txn, slot: Slot, error: Exception, deadline: float, *, answered: bool = False
    ) -> Steps[Any]:
        """Find out what a failed transaction did. Return its result, or None if it was not applied and never will be.

        With ``answered`` the server has finished it: it was applied or never will be, and the slot decides.

        Raises:
            OutcomeUnknown: It could not be determined before the deadline.
        """
        settled = self._find_revision(slot, deadline) if answered else self._settle_until(slot, deadline)
        try:
            revision = yield from settled
        except _GuardGone as gone:
            raise _unknown(txn, "its guard is gone, so it cannot land any more", error) from gone
        except LatchworkError:
            self.settle_slot_later(slot)
            state = "the server is out of space" if answered else "it may land yet"
            raise _unknown(txn, state, error) from error
        self._slots.return_slot(slot)
        if not revision:
            return None
        try:
            found = yield read_ranges(self._link, txn.recall(revision), txn.what, deadline=deadline)
        except LatchworkError as failed:
            raise _unknown(txn, f"it was applied at revision {revision}", failed) from failed
        return txn.decode_recall(found, revision)

    def settle_slot_later(self, slot: Slot) -> None:
        """Make sure in the background that the write guarded by this slot cannot be applied any more."""
        self.leave(partial(self._settle_slot, slot))

    def leave(self, settle: Settle) -> None:
        """Add a write whose outcome is unknown.

        It is settled before the next call of this store, or when the server answers.
        """
        self._link.healthy = False
        with self._lock:
            self.unsettled.append(settle)
        self._link.timer.call_later(_PROBE_S, self._settle_in_background)

    def wait_until_ready(self, deadline: float) -> Steps[None]:
        """Wait until the server answers, this client has guard keys, and no earlier write can be applied any more.

        Raises:
            Unavailable: Not before the deadline.
        """
        while not self._slots.lease or not self._link.healthy or self.unsettled:
            if self._slots.closing:
                raise Closed("the store was closed; open a new one")
            try:
                yield self._link.with_deadline(self._recover(), deadline, "settle earlier writes")
            except Unavailable:
                if self._link.clock.now() + _PROBE_S >= deadline:
                    raise
                yield self._link.timer.after(0.05)

    def wait_until_settled(self, deadline: float) -> Steps[None]:
        """Wait until no write whose outcome was reported as unknown can be applied any more.

        Raises:
            LatchworkError: Not before the deadline.
        """
        while self.unsettled:
            try:
                yield from self.wait_until_ready(deadline)
            except StoreFull:  # a full server gives no lease to write with; to read there is no need of one
                if self.unsettled:
                    raise

    # Settling one slot.

    def _settle_until(self, slot: Slot, deadline: float) -> Steps[int]:
        """Settle the write of a slot. Retry until the deadline or until the store is closed."""
        while True:
            left_s = deadline - self._link.clock.now()
            try:
                return (yield from self._settle(slot, min(1.0, max(left_s, 0.01))))
            except LatchworkError:
                if left_s <= 0.1 or self._link.closed or self._slots.closing:
                    raise
                yield self._link.timer.after(0.05)

    def _settle(self, slot: Slot, timeout_s: float) -> Steps[int]:
        """Make sure that the write guarded by a slot cannot be applied later.

        Return its revision, or 0 if it was not applied.

        Raises:
            Unavailable: The server gave no reliable answer.
            _GuardGone: The slot is gone. Nothing can be applied, and what was applied is unknown.
        """
        deadline = self._link.clock.now() + timeout_s
        try:
            response = yield from self._link.call("Txn", slot.settling(), "settle a write", deadline)
        except SessionLost as error:
            self._slots.forget(slot.lease)
            raise _GuardGone from error
        except StoreFull:
            revision = yield from self._find_revision(slot, deadline)
            if not revision:  # no put is taken that would keep it from landing: end its lease
                yield from self._revoke(slot.lease, deadline)
                raise _GuardGone from None
            return revision
        if response.succeeded:
            slot.revision = response.header.revision
            return 0
        kvs = response.responses[0].response_range.kvs
        if not kvs:
            self._slots.forget(slot.lease)
            raise _GuardGone
        slot.revision = kvs[0].mod_revision
        return slot.revision if kvs[0].value == WRITTEN else 0

    def _find_revision(self, slot: Slot, deadline: float) -> Steps[int]:
        """Return the revision at which the write of a slot was applied, or 0 if it was not applied.

        Raises:
            _GuardGone: The slot existed and is gone; what was applied is unknown.
        """
        found = yield from self._link.call("Range", pb.RangeRequest(key=slot.key), "settle a write", deadline)
        if not found.kvs and slot.revision:
            self._slots.forget(slot.lease)
            raise _GuardGone
        revision = found.kvs[0].mod_revision if found.kvs else 0
        landed = revision > slot.revision and found.kvs[0].value == WRITTEN
        slot.revision = revision or slot.revision
        return revision if landed else 0

    def _revoke(self, lease: int, deadline: float) -> Steps[None]:
        """Revoke the lease of guard keys, so that no write sent with them can be applied any more."""
        with contextlib.suppress(SessionLost):
            yield from self._link.call("LeaseRevoke", pb.LeaseRevokeRequest(ID=lease), "settle a write", deadline)
        self._slots.forget(lease)

    def _settle_slot(self, slot: Slot, timeout_s: float) -> Steps[None]:
        with contextlib.suppress(_GuardGone):
            yield from self._settle(slot, timeout_s)
            self._slots.return_slot(slot)

    # Getting ready.

    def _settle_in_background(self) -> None:
        if self.unsettled and not self._slots.closing:
            self._recover()
            self._link.timer.call_later(_PROBE_S, self._settle_in_background)

    def _recover(self) -> Future[None]:
        """Make the store ready to write again, once for all callers that wait for it."""
        recovering: Future[None] = Outcome()
        with self._lock:
            if self._recovering is not None:
                return self._recovering
            self._recovering = recovering
        chain(drive(self._recover_once()), recovering)
        return recovering

    def _recover_once(self) -> Steps[None]:
        try:
            yield from self._get_ready(self._link.clock.now() + _PROBE_S)
        finally:
            with self._lock:
                self._recovering = None

    def _get_ready(self, deadline: float) -> Steps[None]:
        while self.unsettled:
            settle = self.unsettled[0]
            yield from settle(_PROBE_S)
            with self._lock:
                self.unsettled.remove(settle)
        if not self._slots.lease and not self._slots.closing:
            yield from self._slots.open(deadline)
        if not self._link.healthy:
            probe = pb.RangeRequest(key=self._keys.slot_key(self._slots.lease, 0), count_only=True)
            try:
                yield from self._link.call("Range", probe, "answer", deadline)
            except PermissionDenied:
                _log.debug("etcd answers, but this account may not read the store's guards")


class _GuardGone(Exception):
    """Raised when a guard key has disappeared, because its lease has ended or another client has deleted it."""


def _unknown(txn: Txn, state: str, error: BaseException) -> LatchworkError:
    said = rpc_errors.details(error) if isinstance(error, grpc.RpcError) else str(error)
    message = f"could not find out whether etcd did {txn.what} ({said}): {state}; "
    return rpc_errors.with_cause(
        OutcomeUnknown(message + "read the key with this store, its answer will be final"), error
    )
