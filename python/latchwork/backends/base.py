"""The interface of a backend: keys, sessions and watches, as futures. Everything else is built once, above it.

A backend knows nothing of locks, elections or jobs. Keys are absolute below the URL's root and validated by the store.
First segments that start with ``@`` belong to the backend, which hides them in lists and watches.

Rules for every method that returns a future:

- It does not block on the network. The embedded backend may do local work in the calling thread.
- The future ends within ``call_timeout_s``, with a value or with an error of ``latchwork.errors``.
- The error of a write is exact: ``Unavailable`` was not applied and never will be. ``OutcomeUnknown`` may have been
applied, or may still be.
- Its callbacks may run in a thread of a client library and must not block.

``waiting``, ``for_event_loop``, ``within`` and ``create_ordered`` have defaults that subclasses of ``Backend`` inherit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from latchwork.backends.capabilities import Capabilities
from latchwork.backends.futures import mapped
from latchwork.errors import LatchworkError
from latchwork.types import Change, Committed, Create, Entry, HasId, Op, Ordered, SimpleCheck

Names = list[str]

#: The maximum size of a value, on every backend.
MAX_VALUE_BYTES = 1_000_000
#: ``Backend.create_ordered`` names so many older keys; of more it says that it does not know them.
MAX_OLDER = 64
#: Characters that ``Backend.create_ordered`` may append to a key.
MAX_ORDER_SUFFIX = 12
#: The methods of ``Backend`` that return futures. A put, a create and a delete of a store are commits.
CALLS = (
    "get",
    "get_many",
    "list",
    "children",
    "commit",
    "create_sequential",
    "create_ordered",
    "delete_tree",
    "open_session",
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Watch event: the complete current state of the watched prefix. It is the first event, and follows every gap.

    Attributes:
        entries: All keys at or below the prefix, in any order.
        as_of: Local clock time at or before which the state was current (when the read was sent).
    """

    entries: tuple[Entry, ...]
    as_of: float


@dataclass(frozen=True, slots=True)
class Delta:
    """Watch event: the changes since the previous event. States in between may be merged.

    Attributes:
        changes: At most one per key; an entry of None is a deletion.
        as_of: Local clock time at or before which this was the newest state; None if unknown.
        siblings: The sibling names of a leaf that has been deleted, from one state without the leaf; None if they were
            not read.
    """

    changes: tuple[Change, ...]
    as_of: float | None = None
    siblings: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Current:
    """Watch event: nothing changed, and the reported state is known to be current as of this local time."""

    as_of: float


@dataclass(frozen=True, slots=True)
class Broken:
    """The last watch event: the watch has ended permanently (a permission was revoked, or the backend was closed)."""

    error: LatchworkError


WatchEvent = Snapshot | Delta | Current | Broken
#: Called by one thread at a time for each watch, in order. Never blocks and never raises; does not call the backend.
Sink = Callable[[WatchEvent], None]


class BackendWatch(Protocol):
    """A running watch."""

    def close(self) -> None:
        """Stop the watch.

        No event is delivered after this returns, except when called from inside the sink. Idempotent.
        """
        ...


@runtime_checkable
class ProvesCurrent(Protocol):
    """A watch that proves that its state is current only on request, because a proof costs a write."""

    def prove_current(self) -> None:
        """Prove the state current, by delivering ``Current`` at least every 2 s for the next half minute.

        Does not block.
        """
        ...


@runtime_checkable
class ReportsNotices(Protocol):
    """A backend that knows of problems that its server will soon have."""

    def notices(self) -> tuple[str, ...]:
        """Return a sentence for each problem, with its remedy. It is at most an hour old. Does not block."""
        ...


class BackendSession(Protocol):
    """A session on the server. The store's session thread renews it."""

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
        """The local clock time at which the request that opened the session was sent."""
        ...

    @property
    def token(self) -> int:
        """A number that is greater than the tokens of all writes before the session was opened."""
        ...

    @property
    def renew_every_s(self) -> float:
        """The number of seconds between two calls of ``renew``."""
        ...

    @property
    def confirm_gap_s(self) -> float:
        """The number of seconds by which another confirmed renewal must follow before a renewal counts.

        With 0, each confirmed renewal counts at once.
        """
        ...

    def renew(self) -> Future[float]:
        """Renew the session at an authority that can expire it.

        The future returns the local clock time at which the confirmed renewal was sent. ``SessionLost`` means that the
        server says that the session is gone. Any other error means nothing and extends nothing.
        """
        ...

    def close(self) -> Future[None]:
        """End the session on the server. Its keys disappear at once if the server is reachable.

        From this call on, every use of the session fails with ``SessionLost``, and no earlier request of it is applied
        later. Idempotent.
        """
        ...


@runtime_checkable
class Touchable(Protocol):
    """A session whose renewals count sooner if its server answers a cheap request ("touch") in between."""

    @property
    def touch_after_s(self) -> tuple[float, ...]:
        """The number of seconds from a confirmed renewal to each touch that is sent before the next renewal."""
        ...

    def touch(self) -> Future[float]:
        """Send a cheap request, which costs no transaction. Return a future of the local time at which it was sent.

        An answered touch counts like a renewal once a renewal is confirmed that was sent ``confirm_gap_s`` later. A
        renewal counts once a touch is answered that was sent that much later.
        """
        ...


@runtime_checkable
class RenewsWithCommit(Protocol):
    """A session that can be renewed by a transaction with other contents."""

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction like ``Backend.commit`` does, and renew the session with it."""
        ...


class Backend(Protocol):
    """A connection to one root on one kind of server. Thread-safe."""

    @property
    def capabilities(self) -> Capabilities:
        """The features and limits of the backend. Options of the URL may change them."""
        ...

    @property
    def waiting(self) -> Backend:
        """A form of this backend for callers that wait for each answer; by default the backend itself.

        Its methods may do their work in the calling thread and return a finished future, where that saves thread
        switches. The deadlines are the same.
        """
        return self

    @property
    def for_event_loop(self) -> Backend:
        """A form of this backend for callers that must not block, such as an event loop; by default the backend itself.

        A backend that does its work in the calling thread uses other threads here.
        """
        return self

    def within(self, limit_s: float) -> Backend:  # noqa: ARG002 - see there
        """Return a form of this backend whose calls end within ``limit_s`` seconds, if ``call_timeout_s`` is not
        shorter.

        The default is the backend itself, which is right if calls only return futures, because the caller stops
        waiting. A backend that does its work in the calling thread must end it in time.
        """
        return self

    def get(self, key: str, *, stale_ok: bool) -> Future[Entry | None]:
        """Read a key. The future returns its entry, or None. Linearizable unless ``stale_ok``."""
        ...

    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> Future[list[Entry | None]]:
        """Read several keys. The future returns an entry or None for each key, in order.

        Each read is linearizable unless ``stale_ok``. Together they are no snapshot. With ``stale_ok``, up to 100 keys
        are read in order, each from a state that is not older than the previous one.
        """
        ...

    def list(
        self, prefix: str, *, recursive: bool, limit: int | None, start_after: str | None, stale_ok: bool = False
    ) -> Future[list[Entry]]:
        """Return the keys directly below the prefix, or its whole subtree, without the prefix itself; "" is the root.

        The entries are sorted by the full key. ``start_after`` is a full key, exclusive. Reserved keys are hidden. Each
        entry is linearizable unless ``stale_ok``; the list is no snapshot.
        """
        ...

    def children(self, prefix: str, *, stale_ok: bool = False) -> Future[Names]:
        """Return the unique names directly below the prefix, sorted: keys, and implied parents of at least one key.

        With ``stale_ok`` the names are either linearizable, or all from one older state, which may contain a parent
        without keys.
        """
        ...

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction.

        A single write is a transaction of one operation, for which a backend may have a fast path.

        The store has validated limits, duplicates and key syntax. Without operations it only checks (linearizable), and
        ``Committed.token`` is 0. Errors: ``Conflict`` with at least one failed check (or ``Create`` of an existing
        key); ``InvalidKey`` for a key below a session-bound key, or a session-bound key above others; ``SessionLost``
        if the session of an operation has ended on the server or was closed here.
        """
        ...

    def create_sequential(self, key: str, value: bytes, session: HasId | None) -> Future[Entry]:
        """Create ``key`` plus a suffix of fixed width that is greater than every suffix committed before below its
        parent.

        The order holds for strings, too. A parent that is never removed keeps its counter when all children are gone.
        """
        ...

    def create_ordered(self, stem: str, unique: str, value: bytes, session: HasId | None) -> Future[Ordered]:
        """Create the key ``stem + unique``, and return the older keys of its kind.

        Keys are of one kind if they have the same parent and start with the same stem. ``unique`` contains no slash and
        is used once per kind. A backend may append a suffix of at most ``MAX_ORDER_SUFFIX`` characters.

        ``Ordered.older`` contains the last segment of every key of the kind with a smaller ``created`` that existed at
        one time, which is that of the creation or later; oldest first. A missing name lets two clients hold one lock.
        An additional name of a deleted key costs one request. ``older`` is None if it would cost another round trip, or
        if there are many: the caller then lists the keys and sorts them by ``created``. The default returns None.

        Two keys that this method creates never have the same ``created``. Errors: as for ``commit``.
        """
        created = self.commit((), (Create(stem + unique, value, session),))
        return mapped(created, lambda done: Ordered(done.entries[0], None))

    def delete_tree(self, prefix: str) -> Future[int]:
        """Delete the key at the prefix and everything below it, and return how many keys existed.

        Not atomic. "" is the root.
        """
        ...

    def open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> Future[BackendSession]:
        """Open a session.

        A ``ttl_s`` below the server's minimum is raised; the granted TTL is in ``ttl_s`` of the session.

        ``on_gone`` may be called at most once, from any thread, when the backend learns that the server has ended the
        session. It must not block. It is optional, because ``renew`` reports the end, too.
        """
        ...

    def watch(
        self, prefix: str, sink: Sink, *, leaf: bool = False, siblings: bool = False, beats: bool = True
    ) -> BackendWatch:
        """Watch the key equal to the prefix and everything below it (``ab`` is not below ``a``); "" is the root.

        The first event is a ``Snapshot``. Then every committed change is reported; states in between may be merged.
        After a gap (disconnect, restart, compaction) the missed changes or a new ``Snapshot`` follow automatically when
        the server is back. A key never moves backwards. While connected, ``Current`` or another event with ``as_of``
        arrives at least every 2 s; for a watch that ``ProvesCurrent``, on request. There is no thread per watch.

        ``leaf`` asks for less, which may cost less: the prefix is a session-bound key without keys below it, and only
        its end must be reported. The first state may be old if it contains the key. With ``siblings``, the caller will
        need the names next to the leaf after its end, and the backend may read them at once. Without ``beats``,
        ``Current`` need not arrive, and a quiet watch costs nothing.
        """
        ...

    def close(self) -> None:
        """End all watches, without the event ``Broken``, close all sessions, and join all threads. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says about itself.

    Attributes:
        version: The version of the server; "" if it does not say.
        least_version: The least version that the backend supports.
        wall_clock_s: The wall clock of the server during the call, in seconds since the epoch; None if it has none.
        usage: How much of a limit of the server is used, as text; "" if unknown.
        remedy: What to do about the usage; "" if there is room.
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
            LatchworkError: The server did not answer, or the account may not ask.
        """
        ...


_DEFAULTS = ("waiting", "for_event_loop", "within", "create_ordered")


class _WithDefaults:
    """A wrapper for a backend that lacks some of ``_DEFAULTS``."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        if name not in _DEFAULTS or hasattr(self._backend, name):
            return getattr(self._backend, name)
        return vars(Backend)[name].__get__(self)


def with_defaults(backend: Backend) -> Backend:
    """Return a backend that has every method of ``Backend``: the given one, or a wrapper that adds missing methods."""
    complete = all(hasattr(backend, name) for name in _DEFAULTS)
    return backend if complete else cast("Backend", _WithDefaults(backend))


@dataclass(frozen=True, slots=True)
class VersionKey:
    """An opaque version for backends whose writes have unique numbers."""

    token: int

    def __repr__(self) -> str:
        return f"<version {self.token}>"


def check_version(version: Hashable, kind: type) -> None:
    """Raise an error if a version was made by another kind of backend.

    Raises:
        ValueError: The version is not from this kind of backend.
    """
    if not isinstance(version, kind):
        msg = f"version {version!r} did not come from this store; read the key again with the store you write with"
        raise ValueError(msg)  # noqa: TRY004 - a wrong value, not a wrong type, for the caller
