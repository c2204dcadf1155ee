"""Finds out the outcome of a write whose response was lost, after making sure that the write can no longer be applied.

It overwrites the slot, which is the key that guards the write. If that succeeds, the write was not applied and never
will be, because it compares an old revision of the slot. If it fails, the write was applied at the slot's revision, and
its result is read at that revision. docs/design/etcd-writes.md describes the states and the races.
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
from latchwork.backends.etcd.connection import EtcdConnection
from latchwork.backends.etcd.layout import EtcdKeys
from latchwork.backends.etcd.reads import read_ranges
from latchwork.backends.etcd.writing.slots import WRITTEN, GuardSlots, Slot
from latchwork.backends.etcd.writing.txn import Txn
from latchwork.backends.futures import FutureGenerator, LightFuture, chain, run_generator
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
ResolveWrite = Callable[[float], FutureGenerator[None]]


class WriteRecovery:
    """Finds out the outcome of the writes of one store whose responses were lost. Thread-safe.

    Attributes:
        unresolved: Writes that were reported as unknown and may still be applied. They are resolved when the server
            answers.
    """

    def __init__(self, connection: EtcdConnection, keys: EtcdKeys, slots: GuardSlots) -> None:
        self._connection = connection
        self._keys = keys
        self._slots = slots
        self._lock = mutex()
        self.unresolved: list[ResolveWrite] = []
        self._recovering: Future[None] | None = None

    def determine_outcome(
        self, txn: Txn, slot: Slot, error: Exception, deadline: float, *, answered: bool = False
    ) -> FutureGenerator[Any]:
        """Find out whether a failed transaction was applied.

        Args:
            txn: The transaction.
            slot: The key that guards the transaction.
            error: The error of the transaction.
            deadline: Local clock time.
            answered: Whether the server has completed the transaction, so that it cannot be applied later. The slot
                shows whether it was applied.

        Returns:
            The result of the transaction, or None if it was not applied and never will be.

        Raises:
            OutcomeUnknown: The outcome could not be found out before the deadline.
        """
        found = self._find_revision(slot, deadline) if answered else self._resolve_until(slot, deadline)
        try:
            revision = yield from found
        except _GuardGone as gone:
            raise _unknown(txn, "its guard is gone, so it can no longer be applied", error) from gone
        except LatchworkError:
            self.resolve_slot_later(slot)
            state = "the server is out of space" if answered else "it may still be applied"
            raise _unknown(txn, state, error) from error
        self._slots.return_slot(slot)
        if not revision:
            return None
        try:
            found = yield read_ranges(self._connection, txn.recall(revision), txn.what, deadline=deadline)
        except LatchworkError as failed:
            raise _unknown(txn, f"it was applied at revision {revision}", failed) from failed
        return txn.decode_recall(found, revision)

    def resolve_slot_later(self, slot: Slot) -> None:
        """Start to make sure, in the background, that the write which this slot guards cannot be applied later."""
        self.add_unresolved(partial(self._resolve_slot, slot))

    def add_unresolved(self, resolve: ResolveWrite) -> None:
        """Add a write whose outcome is unknown. It is resolved before the next call of this store, or when the server
        answers.

        Args:
            resolve: Makes sure that the write cannot be applied later.
        """
        self._connection.healthy = False
        with self._lock:
            self.unresolved.append(resolve)
        self._connection.timer.call_later(_PROBE_S, self._resolve_in_background)

    def wait_until_ready(self, deadline: float) -> FutureGenerator[None]:
        """Wait until the server answers, this client has slots, and no earlier write can be applied any more.

        Raises:
            Unavailable: The deadline has passed.
        """
        while not self._slots.lease or not self._connection.healthy or self.unresolved:
            if self._slots.closing:
                raise Closed("the store was closed; open a new one")
            try:
                yield self._connection.with_deadline(
                    self._recover(), deadline, "determine the outcome of earlier writes"
                )
            except Unavailable:
                if self._connection.clock.now() + _PROBE_S >= deadline:
                    raise
                yield self._connection.timer.after(0.05)

    def wait_until_resolved(self, deadline: float) -> FutureGenerator[None]:
        """Wait until no write whose outcome was reported as unknown can be applied any more.

        Raises:
            LatchworkError: The deadline has passed.
        """
        while self.unresolved:
            try:
                yield from self.wait_until_ready(deadline)
            except StoreFull:  # a full server gives no lease to write with; to read there is no need of one
                if self.unresolved:
                    raise

    # Settling one slot.

    def _resolve_until(self, slot: Slot, deadline: float) -> FutureGenerator[int]:
        """Find out the outcome of the write that a slot guards. Retry until the deadline or until the store is closed.

        Returns:
            The revision at which the write was applied, or 0 if it was not applied.
        """
        while True:
            left_s = deadline - self._connection.clock.now()
            try:
                return (yield from self._resolve(slot, min(1.0, max(left_s, 0.01))))
            except LatchworkError:
                if left_s <= 0.1 or self._connection.closed or self._slots.closing:
                    raise
                yield self._connection.timer.after(0.05)

    def _resolve(self, slot: Slot, timeout_s: float) -> FutureGenerator[int]:
        """Make sure that the write which a slot guards cannot be applied later, and find out whether it was applied.

        Returns:
            The revision at which it was applied, or 0 if it was not.

        Raises:
            Unavailable: The server gave no reliable response.
            _GuardGone: The slot does not exist any more. The write cannot be applied later, but may have been.
        """
        deadline = self._connection.clock.now() + timeout_s
        try:
            response = yield from self._connection.call(
                "Txn", slot.build_resolve_request(), "determine the outcome of a write", deadline
            )
        except SessionLost as error:
            self._slots.discard_lease(slot.lease)
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
            self._slots.discard_lease(slot.lease)
            raise _GuardGone
        slot.revision = kvs[0].mod_revision
        return slot.revision if kvs[0].value == WRITTEN else 0

    def _find_revision(self, slot: Slot, deadline: float) -> FutureGenerator[int]:
        """Return the revision at which the write that a slot guards was applied, or 0 if it was not applied.

        Raises:
            _GuardGone: The slot key does not exist any more. The write may have been applied.
        """
        found = yield from self._connection.call(
            "Range", pb.RangeRequest(key=slot.key), "determine the outcome of a write", deadline
        )
        if not found.kvs and slot.revision:
            self._slots.discard_lease(slot.lease)
            raise _GuardGone
        revision = found.kvs[0].mod_revision if found.kvs else 0
        landed = revision > slot.revision and found.kvs[0].value == WRITTEN
        slot.revision = revision or slot.revision
        return revision if landed else 0

    def _revoke(self, lease: int, deadline: float) -> FutureGenerator[None]:
        """Revoke the lease of slot keys, so that no write that they guard can be applied later."""
        with contextlib.suppress(SessionLost):
            yield from self._connection.call(
                "LeaseRevoke", pb.LeaseRevokeRequest(ID=lease), "determine the outcome of a write", deadline
            )
        self._slots.discard_lease(lease)

    def _resolve_slot(self, slot: Slot, timeout_s: float) -> FutureGenerator[None]:
        with contextlib.suppress(_GuardGone):
            yield from self._resolve(slot, timeout_s)
            self._slots.return_slot(slot)

    # Getting ready.

    def _resolve_in_background(self) -> None:
        if self.unresolved and not self._slots.closing:
            self._recover()
            self._connection.timer.call_later(_PROBE_S, self._resolve_in_background)

    def _recover(self) -> Future[None]:
        """Make the store able to write again after a failure. Concurrent callers share one attempt. Return its
        future.
        """
        recovering: Future[None] = LightFuture()
        with self._lock:
            if self._recovering is not None:
                return self._recovering
            self._recovering = recovering
        chain(run_generator(self._recover_once()), recovering)
        return recovering

    def _recover_once(self) -> FutureGenerator[None]:
        try:
            yield from self._get_ready(self._connection.clock.now() + _PROBE_S)
        finally:
            with self._lock:
                self._recovering = None

    def _get_ready(self, deadline: float) -> FutureGenerator[None]:
        while self.unresolved:
            resolve = self.unresolved[0]
            yield from resolve(_PROBE_S)
            with self._lock:
                self.unresolved.remove(resolve)
        if not self._slots.lease and not self._slots.closing:
            yield from self._slots.grant_lease(deadline)
        if not self._connection.healthy:
            probe = pb.RangeRequest(key=self._keys.slot_key(self._slots.lease, 0), count_only=True)
            try:
                yield from self._connection.call("Range", probe, "answer", deadline)
            except PermissionDenied:
                _log.debug("etcd answers, but this account may not read the store's guards")


class _GuardGone(Exception):
    """A slot does not exist any more, because its lease has ended or another client has deleted it."""


def _unknown(txn: Txn, state: str, error: BaseException) -> LatchworkError:
    said = rpc_errors.get_message(error) if isinstance(error, grpc.RpcError) else str(error)
    message = f"could not find out whether etcd did {txn.what} ({said}): {state}; "
    return rpc_errors.with_cause(
        OutcomeUnknown(message + "read the key with this store, its answer will be final"), error
    )
