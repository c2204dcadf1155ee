"""The etcd backend, which combines reads, writes, sessions and watches. Thread-safe."""

from __future__ import annotations

import builtins
import copy
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from typing import Any

from latchwork._base.interrupts import mutex
from latchwork.backends.base import Backend, BackendSession, BackendWatch, ServerInfo, WatchCallback
from latchwork.backends.etcd import SPEC
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import decode_response
from latchwork.backends.etcd.layout import EtcdKeys
from latchwork.backends.etcd.reads import EtcdReader
from latchwork.backends.etcd.sessions import EtcdSessions
from latchwork.backends.etcd.shared_connections import acquire_connection, release_connection
from latchwork.backends.etcd.watching.watches import StoreWatches
from latchwork.backends.etcd.writing import requests
from latchwork.backends.etcd.writing.compiler import EtcdCommit, TxnCompiler
from latchwork.backends.etcd.writing.sequences import SequentialKeys
from latchwork.backends.etcd.writing.txn import Txn, build_tree_deletion
from latchwork.backends.etcd.writing.writes import EtcdWriter
from latchwork.backends.futures import FutureGenerator, failed, run_generator
from latchwork.backends.url import StoreURL
from latchwork.clock import Clock
from latchwork.errors import LatchworkError, Unavailable
from latchwork.types import Committed, Create, Entry, HasId, Op, OrderedKey, SimpleCheck

_log = logging.getLogger(__name__)

_CLOSE_S = 2.0


class EtcdBackend(Backend):
    """One root on an etcd cluster, over a connection that other stores of the process may share."""

    capabilities = SPEC.capabilities
    _in_caller_thread = False

    def __init__(self, url: StoreURL, clock: Clock, client: Any = None) -> None:
        self._clock = clock
        self._call_timeout_s = url.call_timeout_s
        self._keys = EtcdKeys(url.root)
        self._shared = acquire_connection(url, clock, client)
        self._connection = self._shared.connection
        self._writer = EtcdWriter(self._connection, self._keys)
        self._recovery = self._writer.recovery
        self._compiler = TxnCompiler(self._keys)
        self._reader = EtcdReader(self._connection, self._keys, self._compiler.codec)
        self._watches = StoreWatches(self._shared.hub, self._keys, self._compiler.codec)
        self._sessions = EtcdSessions(self._connection, self._keys, self._writer, self._watches)
        self._sequences = SequentialKeys(
            self._connection, self._keys, self._writer, self._compiler, self._sessions.ended
        )
        self._lock = mutex()
        self._closed = False

    @property
    def for_blocking_calls(self) -> EtcdBackend:
        """A variant of this backend that makes its calls in the caller's thread and blocks until they end."""
        variant = copy.copy(self)
        variant._in_caller_thread = True  # noqa: SLF001 - a copy of our own
        variant._reader = EtcdReader(self._connection, self._keys, self._compiler.codec, in_caller_thread=True)  # noqa: SLF001
        return variant

    @classmethod
    def connect(cls, url: StoreURL, clock: Clock, client: Any = None) -> EtcdBackend:
        """Connect to an etcd cluster, on the channel of a client if one is given.

        Blocks until the cluster has answered.

        Raises:
            ConnectFailed: The cluster did not answer within ``connect_timeout_s``.
            AuthenticationFailed: The cluster refused the account, or needs one.
        """
        backend = cls(url, clock, client)
        try:
            backend._connection.connect(pb.RangeRequest(key=backend._keys.unused_key(0), count_only=True))
        except BaseException:
            backend.close()
            raise
        return backend

    def server_info(self) -> ServerInfo:
        """Read the version of the server and the size of its database. Blocks.

        The result has no clock, because etcd does not report it. The remedy is as of the last check of the notices.
        """
        deadline = self._clock.now() + self._call_timeout_s
        found = run_generator(
            self._connection.call("Status", pb.StatusRequest(), "tell its version", deadline)
        ).result()
        usage = f"{found.dbSize / 1e6:,.0f} MB of the space quota, by default 2,147"
        return ServerInfo(found.version, "3.4", None, usage, "; ".join(self.notices()))

    def notices(self) -> tuple[str, ...]:
        """Return one sentence for each upcoming problem of the server's database. Does not block."""
        return self._connection.notices()

    def get(self, key: str, *, stale_ok: bool) -> Future[Entry | None]:
        """Read a key. The future returns its entry, or None."""
        if self._recovery.unresolved and not stale_ok:
            return self._read_when_resolved(lambda: self._reader.get(key, stale_ok=False))
        return self._reader.get(key, stale_ok=stale_ok)

    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> Future[list[Entry | None]]:
        """Read several keys. The future returns an entry or None for each key, in order."""
        if stale_ok:
            return self._reader.get_many(keys, stale_ok=True)
        return self._read_when_resolved(lambda: self._reader.get_many(keys))

    def list(
        self,
        prefix: str,
        *,
        recursive: bool,
        limit: int | None,
        start_after: str | None,
        stale_ok: bool = False,  # noqa: ARG002
    ) -> Future[list[Entry]]:
        """Read the entries below a prefix, sorted by key. See ``Backend.list``.

        ``stale_ok`` has no effect, because a stale read is not faster.
        """
        return self._read_when_resolved(
            lambda: self._reader.entries(prefix, recursive=recursive, limit=limit, start_after=start_after)
        )

    def children(self, prefix: str, *, stale_ok: bool = False) -> Future[builtins.list[str]]:  # noqa: ARG002
        """Read the names directly below a prefix, unique and sorted.

        ``stale_ok`` has no effect, because a stale read is not faster.
        """
        return self._read_when_resolved(lambda: self._reader.children(prefix))

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction: apply all operations if all checks hold, otherwise none."""
        commit = EtcdCommit(self._compiler, checks, ops, self._sessions.ended)
        try:
            return (
                self._writer.write(commit, commit.rebuild, in_caller_thread=self._in_caller_thread)
                if ops
                else self._commit_checks_only(commit.as_txn())
            )
        except (LatchworkError, ValueError) as error:
            return failed(error)

    def create_sequential(self, key: str, value: bytes, session: HasId | None) -> Future[Entry]:
        """Create a key whose suffix is the next number below its parent, in one transaction."""
        return self._sequences.create(key, value, session)

    def create_ordered_key(
        self, key_prefix: str, unique_suffix: str, value: bytes, session: HasId | None
    ) -> Future[OrderedKey]:
        """Create a key and read the older keys with the same key prefix, in one transaction. See
        ``Backend.create_ordered_key``.
        """
        plan = partial(
            self._compiler.compile_create_ordered_key,
            key_prefix,
            Create(key_prefix + unique_suffix, value, session),
            self._sessions.ended,
        )
        try:
            return self._writer.write(plan(), plan, in_caller_thread=self._in_caller_thread)
        except (LatchworkError, ValueError) as error:
            return failed(error)

    def delete_tree(self, prefix: str) -> Future[int]:
        """Delete the key at a prefix and all keys below it in one transaction.

        The future returns the number of deleted keys.
        """
        txn = build_tree_deletion(self._keys.ranges_at_or_below(prefix), f"delete the tree at {prefix!r}")
        return self._writer.write(txn, lambda: txn, in_caller_thread=self._in_caller_thread)

    def open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> Future[BackendSession]:
        """Open a session, which is a lease of the server with a marker key."""
        return self._sessions.open(ttl_s, on_gone)

    def watch(
        self,
        prefix: str,
        callback: WatchCallback,
        *,
        single_key: bool = False,
        siblings: bool = False,  # noqa: ARG002
        heartbeats: bool = True,
    ) -> BackendWatch:
        """Watch all keys at and below a prefix. ``siblings`` has no effect here.

        Args:
            prefix: The key prefix.
            callback: Callback for the events.
            single_key: Watch a single session-bound key, and report only its deletion.
            siblings: Ignored.
            heartbeats: Also send ``Current`` events while nothing changes.
        """
        return self._watches.watch(prefix, callback, single_key=single_key, heartbeats=heartbeats)

    def close(self) -> None:
        """End the watches, sessions and writes, and close the connection if no other store uses it. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        limit_s = min(_CLOSE_S, self._call_timeout_s)
        closing = threading.Thread(target=self._end, args=(limit_s,), name="latchwork-etcd-close", daemon=True)
        closing.start()
        closing.join(2 * limit_s)
        if closing.is_alive():
            _log.warning("the connection to etcd did not close within %.3g s; its threads are left behind", 2 * limit_s)

    # Private.

    def _end(self, limit_s: float) -> None:
        """Close everything in one separate thread, because gRPC may wait forever for a lock that an interrupt left
        held.
        """
        self._watches.close()
        deadline = self._clock.now() + limit_s
        ending = [*self._sessions.end_all(), run_generator(self._writer.slots.close(deadline))]
        wait_for(ending, timeout=limit_s)
        release_connection(self._shared, limit_s)

    def _read_when_resolved(self, call: Callable[[], Future[Any]]) -> Future[Any]:
        """Make a read after the outcome of all earlier writes was found out, so that its result is final."""
        if not self._recovery.unresolved:
            return call()

        def steps() -> FutureGenerator[Any]:
            yield from self._recovery.wait_until_resolved(self._clock.now() + self._call_timeout_s)
            return (yield call())

        return run_generator(steps())

    def _commit_checks_only(self, txn: Txn) -> Future[Committed]:
        """Commit a transaction without operations. It is only a read, so it may be repeated."""
        deadline = self._clock.now() + self._call_timeout_s
        return self._read_when_resolved(lambda: run_generator(self._check(txn, deadline)))

    def _check(self, txn: Txn, deadline: float) -> FutureGenerator[Committed]:
        """Let the server check the conditions of a transaction.

        If one does not hold, or if there are too many, read the keys instead.
        """
        if not txn.is_flat:
            yield from self._writer.raise_failed_check(txn, deadline)
            return Committed(0)
        compares = requests.encode_transaction(txn.build_compares(), ())
        decode = partial(decode_response, "Txn")
        while not (
            yield self._connection.read("Txn", compares, txn.what, decode, in_caller_thread=self._in_caller_thread)
        ).succeeded:
            yield from self._writer.raise_failed_check(txn, deadline)
            if self._clock.now() >= deadline:
                raise Unavailable(f"could not {txn.what} in time because others wrote at the same time; try again")
        return Committed(0)
