"""The interface of a backend: keys, sessions and watches. Operations return futures.

The layers above build everything else on this interface, so a backend knows nothing of locks, elections or jobs. Keys
are relative to the root in the URL, and the store has validated them. Keys whose first segment starts with ``@`` are
reserved for the backend, which hides them in lists and watches.

Rules for every method that returns a future:

- It does not block on the network. The embedded backend may do local work in the calling thread.
- The future is done within ``call_timeout_s``, with a value or with an error of ``latchwork.errors``.
- The error of a write is exact: with ``Unavailable`` the write was not applied and never will be. With
    ``OutcomeUnknown`` it may have been applied, or may still be.
- Callbacks of the future may run in a thread of a client library and must not block.

``for_blocking_calls``, ``for_event_loop``, ``within`` and ``create_ordered_key`` have defaults, which subclasses of
``Backend`` inherit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from msgspec import Struct

from latchwork.backends.capabilities import Capabilities
from latchwork.backends.futures import mapped
from latchwork.backends.timer import Timer
from latchwork.errors import LatchworkError
from latchwork.types import Change, Committed, Create, Entry, HasId, Op, OrderedKey, SimpleCheck

Names = list[str]

#: The maximum size of a value, on every backend.
MAX_VALUE_BYTES = 1_000_000
#: Maximum number of older keys that ``Backend.create_ordered_key`` returns. If there are more, it returns none.
MAX_OLDER = 64
#: Maximum number of characters that ``Backend.create_ordered_key`` may append to a key.
MAX_ORDER_SUFFIX = 12
#: The methods of ``Backend`` that return futures. A put, a create and a delete of a store are commits.
CALLS = (
    "get",
    "get_many",
    "list",
    "children",
    "commit",
    "create_sequential",
    "create_ordered_key",
    "delete_tree",
    "open_session",
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A watch event with the complete current state of the watched prefix. It is the first event, and follows every
    gap.

    Attributes:
        entries: All keys at or below the prefix, in any order.
        as_of: Local clock time at which the read was sent. The state is at least as new.
    """

    entries: tuple[Entry, ...]
    as_of: float


@dataclass(frozen=True, slots=True)
class Delta:
    """A watch event with the changes since the previous event. Several changes of a key may be merged into one.

    Attributes:
        changes: At most one per key. The entry of a deleted key is None.
        as_of: Local clock time at which this was known to be the newest state, or None if unknown.
        siblings: When a watched session-bound key was deleted: the names next to it, read after the deletion. None if
            they were not read.
    """

    changes: tuple[Change, ...]
    as_of: float | None = None
    siblings: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Current:
    """A watch event that reports no change: the reported state is known to have been up to date at this local time."""

    as_of: float


@dataclass(frozen=True, slots=True)
class Broken:
    """The last event of a watch that has ended with an error, such as a revoked permission or a closed backend."""

    error: LatchworkError


WatchEvent = Snapshot | Delta | Current | Broken
#: Called by one thread at a time for each watch, in order. Never blocks and never raises; does not call the backend.
WatchCallback = Callable[[WatchEvent], None]


class BackendWatch(Protocol):
    """A running watch."""

    def close(self) -> None:
        """Stop the watch. Idempotent.

        No event is delivered after this returns, except when it is called from the watch's own callback.
        """
        ...


@runtime_checkable
class ProvesCurrent(Protocol):
    """A watch that confirms only on request that its state is up to date, because each confirmation costs a write."""

    def prove_current(self) -> None:
        """Start to confirm that the state is up to date: deliver ``Current`` at least every 2 s for the next 30 s.

        Does not block.
        """
        ...


@runtime_checkable
class ReportsNotices(Protocol):
    """A backend that can warn of upcoming problems of its server."""

    def notices(self) -> tuple[str, ...]:
        """Return one sentence per upcoming problem, each with its remedy. They are at most an hour old. Does not
        block.
        """
        ...


class BackendSession(Protocol):
    """A session on the server. The store renews it."""

    @property
    def id(self) -> str:
        """The ID of the session, which is never reused."""
        ...

    @property
    def ttl_s(self) -> float:
        """The TTL in seconds that the server granted."""
        ...

    @property
    def opened_at(self) -> float:
        """The local clock time at which the request to open the session was sent."""
        ...

    @property
    def token(self) -> int:
        """A number that is greater than the tokens of all writes that were made before the session was opened."""
        ...

    @property
    def renew_every_s(self) -> float:
        """The interval in seconds between two calls of ``renew``."""
        ...

    @property
    def confirm_gap_s(self) -> float:
        """The seconds that must lie between two confirmed renewals before the earlier one extends the session.

        With 0, each confirmed renewal extends the session at once.
        """
        ...

    def renew(self) -> Future[float]:
        """Renew the session at the server that can expire it.

        Returns:
            A future of the local clock time at which the confirmed renewal was sent.
        Raises:
            SessionLost: (from the future) The server reports that the session has ended.
            LatchworkError: (from the future) The renewal failed for another reason. The session may still be active.
        """
        ...

    def close(self) -> Future[None]:
        """End the session on the server. Its keys are deleted at once if the server is reachable. Idempotent.

        From this call on, every use of the session fails with ``SessionLost``, and none of its earlier requests is
        applied later.
        """
        ...


@runtime_checkable
class Touchable(Protocol):
    """A session that can send a cheap request, called a touch, to make its renewals count sooner."""

    @property
    def touch_after_s(self) -> tuple[float, ...]:
        """The seconds after a confirmed renewal at which touches are sent, one value per touch, all before the next
        renewal. A touch is a cheap request.
        """
        ...

    @property
    def resumed_at(self) -> float:
        """The local clock time at which the request was sent that opened or resumed the session last.

        It counts like a renewal, but without the gap, once a renewal is confirmed that was sent later.
        """
        ...

    def touch(self) -> Future[float]:
        """Send a cheap request to the server, which needs no transaction.

        An answered touch counts like a renewal once a renewal is confirmed that was sent ``confirm_gap_s`` later. In
        the same way, a renewal counts once a touch is answered that was sent ``confirm_gap_s`` later.

        Returns:
            A future of the local clock time at which the touch was sent.
        """
        ...


@runtime_checkable
class SharesTimer(Protocol):
    """A session that is renewed in the thread of its backend's timer, so that ``renew`` must not block at all."""

    @property
    def timer(self) -> Timer:
        """The timer, which runs as long as the backend."""
        ...


@runtime_checkable
class RenewsWithCommit(Protocol):
    """A session that can be renewed as part of any other transaction."""

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction that also renews the session. See ``Backend.commit``."""
        ...


class Backend(Protocol):
    """A connection to one root on one kind of server. Thread-safe."""

    @property
    def capabilities(self) -> Capabilities:
        """The features and limits of the backend. Options of the URL may change them."""
        ...

    @property
    def for_blocking_calls(self) -> Backend:
        """A variant of this backend for callers that block until each answer arrives. The default is the backend
        itself.

        Its methods may do their work in the calling thread and return a completed future. The deadlines are the same.
        """
        return self

    @property
    def for_event_loop(self) -> Backend:
        """A variant of this backend for callers that must not block, such as an event loop. The default is the backend
        itself.

        A backend that does its work in the calling thread uses separate threads here.
        """
        return self

    def within(self, limit_s: float) -> Backend:  # noqa: ARG002 - see there
        """Return a variant of this backend whose calls end within ``limit_s`` seconds, and within ``call_timeout_s``.

        The default is the backend itself. That suffices if calls only return futures, because the caller stops waiting.
        A backend that does its work in the calling thread must enforce the limit itself.
        """
        return self

    def get(self, key: str, *, stale_ok: bool) -> Future[Entry | None]:
        """Read a key. The future returns its entry, or None if it does not exist.

        The read is linearizable unless ``stale_ok``.
        """
        ...

    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> Future[list[Entry | None]]:
        """Read several keys. The future returns an entry or None for each key, in order.

        Each single read is linearizable unless ``stale_ok``, but the keys are not read at one point in time. With
        ``stale_ok``, at most 100 keys are read in order, each from a state that is not older than the previous one.
        """
        ...

    def list(
        self, prefix: str, *, recursive: bool, limit: int | None, start_after: str | None, stale_ok: bool = False
    ) -> Future[list[Entry]]:
        """Read the entries below a prefix, sorted by key. The future returns a list.

        Each entry is linearizable unless ``stale_ok``, but the entries are not read at one point in time.

        Args:
            prefix: The prefix, which is not in the result itself. "" is the root.
            recursive: Read the whole subtree. Otherwise only the keys directly below the prefix.
            limit: The maximum number of entries. None is unlimited.
            start_after: Return only keys that sort after this full key.
            stale_ok: Allow a read from a server that is not up to date.
        """
        ...

    def children(self, prefix: str, *, stale_ok: bool = False) -> Future[Names]:
        """Read the names directly below a prefix, unique and sorted. Names that only have keys below them are included.

        With ``stale_ok``, the names may be those of an older state, and may include names that no longer have keys
        below them.
        """
        ...

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction: if all checks hold, apply all operations. Otherwise apply none.

        The caller must have validated the keys and the size of the transaction. Without operations, the checks are made
        on the newest state, and ``Committed.token`` is 0.

        Raises:
            Conflict: A check failed, or the key of a ``Create`` exists.
            InvalidKey: A key is below a session-bound key, or a session-bound key has keys below it.
            SessionLost: The session of an operation has ended on the server or was closed here.
        """
        ...

    def create_sequential(self, key: str, value: bytes, session: HasId | None) -> Future[Entry]:
        """Create ``key`` plus a numeric suffix. The future returns the entry.

        The suffix has a fixed width and is greater than every suffix that was committed before below the same parent,
        also when compared as text. The counter of a parent continues after all its children were deleted.
        """
        ...

    def create_ordered_key(
        self, key_prefix: str, unique_suffix: str, value: bytes, session: HasId | None
    ) -> Future[OrderedKey]:
        """Create the key ``key_prefix + unique_suffix``, and return the older keys with the same key prefix.

        ``OrderedKey.older`` has the last segment of every key with the same key prefix and a smaller ``created``, the
        oldest first. They are read at the time of the creation or later. It must not miss a key, because two clients
        could then hold one lock. An additional name of a deleted key only costs a request. It is None if the names
        would cost another round trip or if there are many: the caller then lists the keys and sorts them by
        ``created``. The default returns None.

        Two keys that this method creates never have the same ``created``.

        Args:
            key_prefix: The parent and the beginning of the last segment.
            unique_suffix: The rest of the key, without a slash, used only once per key prefix. A backend may append a
                suffix of at most ``MAX_ORDER_SUFFIX`` characters.
            value: The value.
            session: The session to which the key is bound, or None.
        Raises:
            LatchworkError: The same errors as those of ``commit``.
        """
        created = self.commit((), (Create(key_prefix + unique_suffix, value, session),))
        return mapped(created, lambda done: OrderedKey(done.entries[0], None))

    def delete_tree(self, prefix: str) -> Future[int]:
        """Delete the key at a prefix and everything below it. The future returns the number of deleted keys.

        Not atomic. The prefix "" is the root.
        """
        ...

    def open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> Future[BackendSession]:
        """Open a session. The future returns it.

        Args:
            ttl_s: The requested TTL in seconds. The server may grant another one, see ``BackendSession.ttl_s``.
            on_gone: Called at most once, from any thread, when the backend learns that the server has ended the
                session. Must not block. A backend need not call it, because ``renew`` also reports the end.
        """
        ...

    def watch(
        self,
        prefix: str,
        callback: WatchCallback,
        *,
        single_key: bool = False,
        siblings: bool = False,
        heartbeats: bool = True,
    ) -> BackendWatch:
        """Watch the key equal to the prefix and everything below it (``ab`` is not below ``a``). "" is the root.

        The first event is a ``Snapshot``. Every later committed change is reported, but several changes of a key may be
        merged. After a gap (disconnect, restart, compaction) the missed changes or a new ``Snapshot`` follow
        automatically. A key never moves back to an older state. While connected, an event with ``as_of`` arrives at
        least every 2 s, or on request if the watch is a ``ProvesCurrent``. There is no thread per watch.

        Args:
            prefix: The key prefix.
            callback: Callback for the events.
            single_key: Watch a single session-bound key, and report only its deletion. This may be cheaper. The first
                state may be old if it contains the key.
            siblings: With ``single_key``: the caller needs the names next to the key after its deletion, so the backend
                may read them at once.
            heartbeats: Also send ``Current`` events while nothing changes.
        """
        ...

    def close(self) -> None:
        """End all watches without a ``Broken`` event, close all sessions, and join all threads. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The version and state that a server reports.

    Attributes:
        version: The version of the server, or "" if it is unknown.
        least_version: The oldest version that the backend supports.
        wall_clock_s: The wall clock of the server during the call, in seconds since the epoch. None if it has none.
        usage: How much of a server's limit is used, as text, or "" if unknown.
        remedy: How to free space, or "" if there is enough.
    """

    version: str
    least_version: str
    wall_clock_s: float | None = None
    usage: str = ""
    remedy: str = ""


@runtime_checkable
class DescribesServer(Protocol):
    """A backend that can report the version and the state of its server."""

    def server_info(self) -> ServerInfo:
        """Read the version and the state of the server. Blocks until it answers.

        Raises:
            LatchworkError: The server did not answer, or the account lacks the permission.
        """
        ...


_DEFAULTS = ("for_blocking_calls", "for_event_loop", "within", "create_ordered_key")


class _WithDefaults:
    """A wrapper for a backend that lacks some of ``_DEFAULTS``."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        if name not in _DEFAULTS or hasattr(self._backend, name):
            return getattr(self._backend, name)
        return vars(Backend)[name].__get__(self)


def with_defaults(backend: Backend) -> Backend:
    """Return a backend that has every method of ``Backend``: the given one, or a wrapper that adds the missing
    methods.
    """
    complete = all(hasattr(backend, name) for name in _DEFAULTS)
    return backend if complete else cast("Backend", _WithDefaults(backend))


class VersionKey(Struct, frozen=True):
    """An opaque version for backends whose writes have unique numbers."""

    token: int

    def __repr__(self) -> str:
        return f"<version {self.token}>"


def check_version(version: Hashable, version_class: type) -> None:
    """Raise an error if a version was created by another kind of backend.

    Args:
        version: The version to check.
        version_class: The class of the versions of this backend.
    Raises:
        ValueError: The version is from another kind of backend.
    """
    if not isinstance(version, version_class):
        msg = f"version {version!r} did not come from this store; read the key again with the store that you write with"
        raise ValueError(msg)  # noqa: TRY004 - a wrong value, not a wrong type, for the caller
