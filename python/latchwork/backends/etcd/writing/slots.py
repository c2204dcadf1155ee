"""Slots: keys that guard writes. Each write compares and overwrites a slot key, so that its outcome can be found out
later.

A slot guards one write at a time. All slots of a store are bound to one lease, which every write contains. After the
end of the lease no late write can be applied, and no slot remains. docs/design/etcd-writes.md describes the states and
the races.

    @w/<lease>/<number>    "w" after a write, "s" after finding out the outcome of a lost one
"""

from __future__ import annotations

import itertools
import logging
import os
from concurrent.futures import Future

from latchwork._base.interrupts import mutex
from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import EtcdConnection
from latchwork.backends.etcd.layout import EtcdKeys
from latchwork.backends.etcd.writing import requests
from latchwork.backends.futures import FutureGenerator, run_generator
from latchwork.errors import LatchworkError

_log = logging.getLogger(__name__)

_TTL_S = 60
_RENEW_EVERY_S = _TTL_S / 4
WRITTEN, _SETTLED = b"w", b"s"
_OURS_ALREADY = "lease already exists"


def grant_lease(
    connection: EtcdConnection, ttl_s: int, description: str, deadline: float
) -> FutureGenerator[tuple[int, float]]:
    """Grant a lease with an ID that was never used before. Return its ID and its TTL in seconds.

    The TTL counts from before this call, because a request with a lost answer may have granted the lease.

    Args:
        connection: The connection.
        ttl_s: The requested TTL in seconds.
        description: A description of the call for messages.
        deadline: Local clock time.
    """
    # Not from `random`: programs that seed it alike would share their leases, and take each other's for their own.
    lease = (int.from_bytes(os.urandom(8), "big") >> 2) + 1
    try:
        answer = yield from connection.call(
            "LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=ttl_s), description, deadline
        )
    except LatchworkError as error:
        if error.__cause__ is None or not rpc_errors.message_contains(error.__cause__, _OURS_ALREADY):
            raise
        answer = yield from connection.call("LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=lease), description, deadline)
        if answer.TTL <= 0:  # it has run out again meanwhile
            raise
    return lease, float(answer.TTL)


class Slot:
    """A slot: a key that guards one write at a time, with its last known revision (0 if it does not exist).

    Attributes:
        write, read: The etcd operations that overwrite and read it.
    """

    __slots__ = ("key", "lease", "read", "revision", "write")

    def __init__(self, key: bytes, lease: int) -> None:
        self.key = key
        self.lease = lease
        self.revision = 0
        self.write = requests.put_operation(key, WRITTEN, lease)
        self.read = requests.read_operation(key)

    def build_compare(self) -> requests.Compare:
        """Build the comparison that makes a transaction fail if this slot key was overwritten."""
        return requests.comparison("mod_revision", self.key, self.revision)

    def build_resolve_request(self) -> bytes:
        """Encode the transaction that finds out whether the write that this slot guards was applied.

        If the write was not applied before, it cannot be applied afterwards.
        """
        settle = requests.put_operation(self.key, _SETTLED, self.lease)
        return requests.encode_transaction([self.build_compare()], [settle], [self.read])


class GuardSlots:
    """The slot keys that guard the writes of one store, and their lease. Thread-safe.

    Attributes:
        lease: The lease ID, or 0 while there is none.
        closing: Whether the store is being closed, so that no new lease is granted.
    """

    def __init__(self, connection: EtcdConnection, keys: EtcdKeys) -> None:
        self._connection = connection
        self._keys = keys
        self._lock = mutex()
        self._numbers = itertools.count()
        self._free: list[Slot] = []
        self.lease = 0
        self.closing = False

    def take_slot(self) -> Slot | None:
        """Return a slot that guards no write now, or None if there is no lease. The lease of the slot may have ended
        meanwhile.
        """
        try:
            return self._free.pop()
        except IndexError:
            lease = self.lease
            return Slot(self._keys.slot_key(lease, next(self._numbers)), lease) if lease else None

    def return_slot(self, slot: Slot) -> None:
        """Return a slot for later use, after the write that it guarded has ended."""
        if slot.lease == self.lease:
            self._free.append(slot)

    def grant_lease(self, deadline: float) -> FutureGenerator[None]:
        """Get a new lease for the slots. All slots of earlier leases become invalid."""
        lease, _ = yield from grant_lease(self._connection, _TTL_S, "prepare for writing", deadline)
        with self._lock:
            self._free = []
            self._numbers = itertools.count()
            self.lease = lease
        self._connection.timer.call_later(_RENEW_EVERY_S, lambda: self._keep(lease))

    def discard_lease(self, lease: int) -> None:
        """Stop using a lease for new writes. The outcome of earlier writes is still found out with it."""
        with self._lock:
            if self.lease == lease and lease:
                self.lease = 0
                self._free = []
                _log.info("writer %x has ended on the server; the next write opens another one", lease)

    def close(self, deadline: float) -> FutureGenerator[None]:
        """Revoke the lease. All its slots are deleted, so that no write in flight can be applied later."""
        self.closing = True
        lease, self.lease = self.lease, 0
        if lease:
            try:
                yield from self._connection.call(
                    "LeaseRevoke", pb.LeaseRevokeRequest(ID=lease), "close the store", deadline
                )
            except LatchworkError as error:
                _log.debug("writer %x could not be closed (%s); its guards disappear within %d s", lease, error, _TTL_S)

    # Private.

    def _keep(self, lease: int) -> None:
        if lease == self.lease and not self.closing:
            run_generator(self._renew(lease)).add_done_callback(lambda done: self._kept(lease, done))

    def _renew(self, lease: int) -> FutureGenerator[bool]:
        deadline = self._connection.clock.now() + _RENEW_EVERY_S
        answer = yield from self._connection.call(
            "LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=lease), "renew", deadline
        )
        return bool(answer.TTL > 0)

    def _kept(self, lease: int, done: Future[bool]) -> None:
        if done.exception() is None and not done.result():
            self.discard_lease(lease)
        else:
            self._connection.timer.call_later(_RENEW_EVERY_S, lambda: self._keep(lease))
