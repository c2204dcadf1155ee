"""The ZooKeeper backend. One connection serves everything without a session, and each session has its own."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from latchwork._base.interrupts import mutex
from latchwork.backends.base import Backend, BackendSession, BackendWatch, ServerInfo, WatchCallback
from latchwork.backends.capabilities import Capabilities
from latchwork.backends.futures import FutureGenerator, LightFuture, chain, failed, reject, run_generator, then
from latchwork.backends.outcomes import describe_transaction
from latchwork.backends.server_versions import parse_zookeeper_info, warn_once, zookeeper_may_lose_data
from latchwork.backends.timer import Timer
from latchwork.backends.url import StoreURL, join_hosts
from latchwork.backends.zookeeper import SPEC, wire
from latchwork.backends.zookeeper.connection import ConnectionSettings, ZooKeeperConnection
from latchwork.backends.zookeeper.errors import NoReply, WriteCounterMissing, no_reply_error, session_lost_error
from latchwork.backends.zookeeper.layout import ZnodeLayout
from latchwork.backends.zookeeper.reads import Lister, ZooKeeperReader
from latchwork.backends.zookeeper.sessions import ZooKeeperSession
from latchwork.backends.zookeeper.timing import Timing
from latchwork.backends.zookeeper.watching.watches import ZooKeeperWatchHub
from latchwork.backends.zookeeper.writing.parents import remove_empty_parents
from latchwork.backends.zookeeper.writing.sequences import create_ordered_key, create_sequential
from latchwork.backends.zookeeper.writing.write_task import WriteTask, create_write_counter
from latchwork.backends.zookeeper.writing.writes import ZooKeeperWriter
from latchwork.clock import Clock
from latchwork.errors import AuthenticationFailed, BackendNotInstalled, Closed, ConnectFailed, InvalidURL, Unavailable
from latchwork.types import Committed, Create, Delete, Entry, HasId, Op, OrderedKey, SimpleCheck

T = TypeVar("T")

_log = logging.getLogger(__name__)

_OPEN_ACL = ((31, "world", "anyone"),)
_CREATOR_ACL = ((31, "auth", ""),)
#: A parent that has been empty for so many seconds is removed; when the store is closed, at once, for so long at most.
_SWEEP_S, _LAST_SWEEP_S = 60.0, 0.25
_SERVER_WORD_S = 1.0
_MAY_LOSE_DATA = (
    "ZooKeeper %s at %s may lose confirmed writes when its leader changes; upgrade to 3.8.4, 3.9.4 or newer"
)
_FAREWELL_S = 1.0


class ZooKeeperBackend(Backend):
    """A ``Backend`` over ZooKeeper 3.6 or newer. Thread-safe.

    Raises:
        ConnectFailed: No server answered within ``connect_timeout_s``.
    """

    def __init__(self, url: StoreURL, clock: Clock) -> None:
        options = _kazoo_options(url)
        self._lock = mutex()
        self._closed = False
        self._sessions: dict[str, ZooKeeperSession] = {}
        self._readying: Future[int] | None = None
        self._emptied: dict[str, float] = {}
        self._clock = clock
        self._call_timeout_s = url.call_timeout_s
        self._timer = Timer(clock, "latchwork-zk-timer")
        timing = Timing(url.connect_timeout_s, servers=len(url.hosts), tls=bool(options.get("use_ssl")))
        self._settings = ConnectionSettings(url.hosts, options, url.call_timeout_s, clock, self._timer, timing)
        self._sasl = "sasl" in url.options
        wanted = url.options.get("acl") or ("creator" if url.user is not None else "open")
        self._layout = ZnodeLayout(url.root, wire.encode_acl(_CREATOR_ACL if wanted == "creator" else _OPEN_ACL))
        self._reader = ZooKeeperReader(self._layout)
        self._lister = Lister(self._reader)
        self._writer = ZooKeeperWriter(self._lister, self._timer, self._sweep_later)
        self._main = ZooKeeperConnection(self._settings, url.session_ttl_s, self, "latchwork-zk")
        self._hub = ZooKeeperWatchHub(self._main, self._lister, self._timer, clock)
        self._connect(url)
        self._warning = threading.Thread(
            target=self._warn_of_losses, args=(url,), name="latchwork-zk-version", daemon=True
        )
        self._warning.start()

    @property
    def capabilities(self) -> Capabilities:
        """The features and limits of this store.

        With SASL the servers verify passwords. With digest authentication, only the ACLs of znodes do.
        """
        return replace(SPEC.capabilities, verifies_password=self._sasl)

    # Reading.

    def get(self, key: str, *, stale_ok: bool) -> Future[Entry | None]:
        """Read a key with one request, or two if it has keys below it. The future returns its entry, or None."""
        return self._read(f"get {key!r}", lambda deadline: self._get(key, deadline, stale_ok=stale_ok))

    def _get(self, key: str, deadline: float, *, stale_ok: bool) -> FutureGenerator[Entry | None]:
        entry = yield from self._reader.get(self._main, key, deadline, stale_ok=stale_ok)
        self._writer.version_cache.record(entry)
        return entry

    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> Future[list[Entry | None]]:
        """Read several keys. The future returns an entry or None for each key, in order."""
        return self._read(
            f"get {len(keys)} keys",
            lambda deadline: self._reader.get_many(self._main, list(keys), deadline, stale_ok=stale_ok),
        )

    def list(
        self, prefix: str, *, recursive: bool, limit: int | None, start_after: str | None, stale_ok: bool = False
    ) -> Future[list[Entry]]:
        """Read the entries below a prefix, sorted by key. See ``Backend.list``.

        ``stale_ok`` has no effect on the read of a whole subtree.
        """
        level = partial(self._lister.list_direct_entries, stale_ok=stale_ok)
        steps = self._lister.list_subtree if recursive else level
        return self._read(f"list {prefix!r}", lambda deadline: steps(self._main, prefix, limit, start_after, deadline))

    def children(self, prefix: str, *, stale_ok: bool = False) -> Future[list[str]]:  # type: ignore[valid-type]  # the method above hides list
        """Read the names directly below a prefix, unsorted. The future returns a list.

        Parents without any keys below them are removed soon afterwards. They are not returned, except with
        ``stale_ok``.
        """
        steps = partial(self._lister.children, self._main, prefix, stale_ok=stale_ok)
        return then(self._read(f"list {prefix!r}", steps), self._names_only)

    def _names_only(self, found: tuple[Any, Any]) -> Any:
        names, childless = found
        self._sweep_later(childless)
        return names

    # Writing.

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction: apply all operations if all checks hold, otherwise none.

        This takes one request if the versions of the keys that this client remembers are still current.
        """
        owner = next((op.session for op in ops if not isinstance(op, Delete) and op.session is not None), None)
        return self._commit_by(owner, checks, ops)

    def _commit_by(self, owner: HasId | None, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        return self._write(
            owner, describe_transaction(checks, ops), lambda task: self._writer.commit(task, checks, ops)
        )

    def create_sequential(self, key: str, value: bytes, session: HasId | None) -> Future[Entry]:
        """Create a key whose numeric suffix is greater than all earlier ones below its parent."""
        return self._write(
            session,
            f"create {key!r} with a suffix",
            lambda task: create_sequential(self._reader, self._writer.version_cache, task, key, value),
        )

    def create_ordered_key(
        self, key_prefix: str, unique_suffix: str, value: bytes, session: HasId | None
    ) -> Future[OrderedKey]:
        """Create a key and read the older keys with the same key prefix. See ``Backend.create_ordered_key``.

        This takes one request if the parent exists.
        """
        op = Create(key_prefix + unique_suffix, value, session)
        return self._write(
            session,
            describe_transaction((), (op,)),
            lambda task: create_ordered_key(self._reader, self._writer.version_cache, task, key_prefix, op),
        )

    def delete_tree(self, prefix: str) -> Future[int]:
        """Delete the key at a prefix and all keys below it. The future returns the number of deleted keys.

        The znode of a parent of sequential keys is kept without a value, because it has their counter.
        """
        return self._write(None, f"delete tree {prefix!r}", lambda task: self._writer.delete_tree(task, prefix))

    # Sessions and watches.

    def open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> Future[BackendSession]:
        """Open a session: a separate ZooKeeper session with its own connection."""
        with self._lock:
            if self._closed:
                return failed(Closed("open a session: the store was closed; open a new one"))
            session = ZooKeeperSession(self._settings, self._layout, ttl_s, on_gone, self._commit_by)
            self._sessions = {each: other for each, other in self._sessions.items() if not self._is_history(other)} | {
                session.id: session
            }
        opened: Future[Any] = run_generator(session.open(self._reader))
        return opened

    def _is_history(self, session: ZooKeeperSession) -> bool:
        return session.connection.has_ended and session.connection.join(0)

    def watch(
        self,
        prefix: str,
        callback: WatchCallback,
        *,
        single_key: bool = False,
        siblings: bool = False,
        heartbeats: bool = True,
    ) -> BackendWatch:
        """Watch all keys at and below a prefix, or with ``single_key`` a single session-bound key. See
        ``Backend.watch``.
        """
        if single_key:
            return self._hub.watch_single_key(prefix, callback, siblings=siblings)
        return self._hub.watch(prefix, callback, heartbeats=heartbeats)

    def close(self) -> None:
        """End the watches and sessions, and close the connections. Idempotent.

        If the servers are unreachable, this takes up to a second.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sessions = list(self._sessions.values())
        self._hub.close()
        self._sweep_last()
        end = self._main.close_session(self._clock.now() + _FAREWELL_S, discard=False)
        goodbyes: tuple[Future[Any], ...] = (*(session.close() for session in sessions), end)
        deadline = self._clock.now() + _FAREWELL_S
        for goodbye in goodbyes:
            try:
                goodbye.exception(max(0.0, deadline - self._clock.now()))
            except TimeoutError:
                _log.info("a ZooKeeper session could not be closed on the server; it expires there after its TTL")
        connections = [*(session.connection for session in sessions), self._main]
        for connection in connections:
            connection.abandon()
        self._warning.join(_SERVER_WORD_S)
        for connection in connections:
            if not connection.join(self._call_timeout_s):
                _log.error("a ZooKeeper connection thread did not end; please report this")
        self._timer.close()

    def _sweep_last(self) -> None:
        with self._lock:
            keys, self._emptied = list(self._emptied), {}
        if keys and self._main.is_connected:
            with contextlib.suppress(TimeoutError):
                self._sweep_now(keys).exception(_LAST_SWEEP_S)

    # Called by the main connection.

    def on_connected(self) -> None:
        """Set the watches of the server again on a new connection."""
        _log.debug("connected to ZooKeeper, root %s", self._layout.root)
        self._hub.on_connected()

    def on_event(self, kind: int, path: str) -> None:
        """Pass a watch event of the server to the watches.

        Args:
            kind: ZooKeeper's event type.
            path: The path of the znode.
        """
        self._hub.on_event(kind, path)

    def on_event_batch_end(self) -> None:
        """Let the watches handle the events that have arrived together."""
        self._hub.on_event_batch_end()

    def on_expired(self) -> bool:
        """Return False, to continue with a new ZooKeeper session, because no key is bound to the expired one."""
        with self._lock:
            self._readying = None
        return self._closed

    # Private.

    def server_info(self) -> ServerInfo:
        """Read the version of the server and its clock. Blocks. The clock is read by creating a key."""
        version, _ = parse_zookeeper_info(self._main.ask_server(b"srvr", _SERVER_WORD_S))
        key = f"doctor/clock-{uuid.uuid4().hex}"
        self.commit((), (Create(key, b"", None),)).result()
        try:
            payload = wire.encode_path_request(self._layout.path(key))
            reply: wire.Reply = self._main.call(wire.GET_DATA, payload).result()
        finally:
            self.commit((), (Delete(key),)).result()
        return ServerInfo(version, "3.6", wire.parse_data(reply.body)[0].stat.ctime / 1000)

    def _connect(self, url: StoreURL) -> None:
        self._main.start()
        try:
            self._main.first_connected.result(url.connect_timeout_s)
        except (TimeoutError, NoReply) as error:
            self._closed = True
            # not of the attempt that is cut off here
            refused, last_error = self._main.was_authentication_refused, self._main.last_connect_error
            self._main.abandon()
            self._main.join(url.connect_timeout_s)
            self._timer.close()
            if refused:
                raise AuthenticationFailed(
                    f"ZooKeeper at {url.redacted()} refused SASL for {url.user!r}; check user and password, and "
                    "that the server has SASLAuthenticationProvider and a JAAS section Server"
                ) from error
            raise ConnectFailed(
                f"no ZooKeeper server of {url.redacted()} answered within {url.connect_timeout_s:g} s"
                f"{f' ({last_error})' if last_error else ''}; check the hosts, that the servers run, "
                "and the TLS options (tls_ca, tls_cert, tls_key)"
            ) from error

    def _warn_of_losses(self, url: StoreURL) -> None:
        """Log a warning if the connected server has a version that may lose data. Does not wait for the answer of the
        server.
        """
        version, has_leader = parse_zookeeper_info(
            self._main.ask_server(b"srvr", min(_SERVER_WORD_S, url.connect_timeout_s))
        )
        if has_leader and zookeeper_may_lose_data(version):
            warn_once(_log, _MAY_LOSE_DATA, version, join_hosts(url.hosts))

    def _read(self, description: str, steps: Callable[[float], FutureGenerator[T]]) -> Future[T]:
        return run_generator(self._read_steps(description, steps))

    def _read_steps(self, description: str, steps: Callable[[float], FutureGenerator[T]]) -> FutureGenerator[T]:
        """Make a read, and repeat it after each lost connection until the deadline.

        A new ZooKeeper session may be connected to a server with an older state.
        """
        main = self._main
        deadline = main.deadline()
        while True:
            zk_session = main.zk_session
            try:
                result = yield from steps(deadline)
            except NoReply as no_reply:
                if main.has_ended or not no_reply.sent or main.has_passed(deadline):
                    raise no_reply_error(
                        no_reply, description=description, is_write=False, closed=self._closed
                    ) from no_reply
                continue
            if main.zk_session == zk_session:
                return result

    def _write(
        self, owner: HasId | None, description: str, steps: Callable[[WriteTask], FutureGenerator[T]]
    ) -> Future[T]:
        connection = self._main
        if owner is not None:
            session = self._sessions.get(owner.id)
            if session is None or session.connection.has_ended:
                return failed(session_lost_error(owner.id, description))
            connection = session.connection
        task = WriteTask(connection, connection.deadline(), None if owner is None else owner.id, description)
        return run_generator(self._write_steps(task, steps))

    def _write_steps(self, task: WriteTask, steps: Callable[[WriteTask], FutureGenerator[T]]) -> FutureGenerator[T]:
        while True:
            if task.connection.counter_path is None:
                if task.session_id is not None:
                    raise session_lost_error(task.session_id, task.what)
                if self._closed:
                    raise Closed(f"{task.what}: the store was closed; open a new one")
                yield self._ready(task)
            try:
                return (yield from steps(task))
            except WriteCounterMissing:
                with self._lock:
                    self._readying = None

    def _ready(self, task: WriteTask) -> Future[int]:
        """Make sure that the main connection has a znode in which it numbers its writes. Concurrent calls share this
        work.

        Returns:
            A future of the number of the ZooKeeper transaction that created the znode.
        """
        readying: Future[int] = LightFuture()
        try:
            with self._lock:
                if self._readying is not None and not (self._readying.done() and self._main.counter_path is None):
                    return self._readying
                self._readying = readying
            chain(
                run_generator(create_write_counter(self._reader, task, self._layout.writer_path(uuid.uuid4().hex))),
                readying,
            )
        except BaseException:  # others wait for it
            reject(readying, Unavailable(f"{task.what}: another thread was interrupted as it prepared it; try again"))
            raise
        return readying

    def _sweep_later(self, keys: Iterable[str]) -> None:
        """Remove parents that are still empty after a while, many at once."""
        due = self._clock.now() + _SWEEP_S
        with self._lock:
            begin = not self._emptied
            self._emptied.update(dict.fromkeys(keys, due))
            if not begin or not self._emptied or self._closed:
                return
        self._timer.call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        now = self._clock.now()
        with self._lock:
            keys = [key for key, due in self._emptied.items() if due <= now]
            for key in keys:
                del self._emptied[key]
            left_s = min(self._emptied.values(), default=now) - now
            again = bool(self._emptied) and not self._closed
        if again:
            self._timer.call_later(max(left_s, _SWEEP_S / 4), self._sweep)
        if not self._closed:
            self._sweep_now(keys)

    def _sweep_now(self, keys: Sequence[str]) -> Future[None]:
        self._writer.version_cache.parents.record_emptied(keys)
        return run_generator(remove_empty_parents(self._reader, self._main, keys, self._main.deadline()))


def _kazoo_options(url: StoreURL) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "sasl" in url.options:
        options["sasl_options"] = _sasl_options(url)
    elif url.user is not None:
        options["auth_data"] = {("digest", f"{url.user}:{url.password or ''}")}
    files = {"ca": "tls_ca", "certfile": "tls_cert", "keyfile": "tls_key"}
    given = {ours: url.options[name] for ours, name in files.items() if name in url.options}
    if given:
        options |= {"use_ssl": True, "verify_certs": True, "check_hostname": True, **given}
    return options


def _sasl_options(url: StoreURL) -> dict[str, Any]:
    if url.user is None or url.password is None:
        raise InvalidURL(f"sasl= needs a user and a password; {url.redacted()} does not have both; add them")
    if importlib.util.find_spec("puresasl") is None:
        raise BackendNotInstalled('zk:// with sasl= needs pure-sasl; run: pip install "latchwork[zookeeper-sasl]"')
    return {"mechanism": "DIGEST-MD5", "username": url.user, "password": url.password}
