"""What a backend is: keys, sessions and watches, as futures; everything else is built once, above it.

A backend never knows of locks, elections or jobs. Keys here are absolute below the URL's root and already validated
by the store, except that first segments starting with ``@`` are the backend's own: it hides them in lists and watches.

Rules for every method that returns a future:

- it does not block on the network (the embedded backend may do its local work in the calling thread);
- the future ends within ``call_timeout_s``, with a value or with an error of ``latchwork.errors``, never a foreign one;
- an error raised for a write is exact: ``Unavailable`` was not applied and never will be, ``OutcomeUnknown`` may have
  been, or may be yet;
- callbacks added to it may run on a client library's thread and must not block.

``waiting``, ``apart``, ``within`` and ``create_ordered`` have defaults: a class that names ``Backend`` as its base
inherits them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from latchwork.backends.futures import mapped
from latchwork.errors import LatchworkError
from latchwork.types import Change, Committed, Create, Entry, HasId, Op, Ordered, SimpleCheck

Names = list[str]

#: Portable limits of the contract; every backend carries at least these.
MAX_CHECKS = 100
MAX_OPS = 100
MAX_TXN_BYTES = 1_000_000
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
class Capability:
    """What a backend can do; a conformance test may be skipped only where one of these is False.

    Attributes:
        name: the scheme, for messages.
        multi_process: several processes (and machines, unless embedded) share the data.
        durable: acknowledged writes survive a restart of the server, or of all processes.
        verifies_password: a wrong password is refused when connecting.
        max_txn_checks: checks in one transaction.
        max_txn_ops: operations in one transaction.
        max_txn_bytes: keys and values of one transaction, those of checks included, in bytes.
    """

    name: str
    multi_process: bool = True
    durable: bool = True
    verifies_password: bool = True
    max_txn_checks: int = MAX_CHECKS
    max_txn_ops: int = MAX_OPS
    max_txn_bytes: int = MAX_TXN_BYTES


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Watch event: the complete current state of the watched prefix. First event of every watch, and after any gap.

    Attributes:
        entries: every key at or below the prefix, in any order.
        as_of: local clock time at or before which the state was current (when the read was sent).
    """

    entries: tuple[Entry, ...]
    as_of: float


@dataclass(frozen=True, slots=True)
class Delta:
    """Watch event: changes since the event before; latest state per key, states in between may be merged.

    Attributes:
        changes: at most one per key; an entry of None is a deletion.
        as_of: local clock time at or before which this was the newest state; None when unknown.
        beside: the names beside a leaf that has gone, all of one state that lacks it; None when they were not read.
    """

    changes: tuple[Change, ...]
    as_of: float | None = None
    beside: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Current:
    """Watch event: nothing changed, and the state reported so far is known to be current as of this local time."""

    as_of: float


@dataclass(frozen=True, slots=True)
class Broken:
    """Watch event, the last one: the watch ended for good (a permission was lost, the backend was closed)."""

    error: LatchworkError


WatchEvent = Snapshot | Delta | Current | Broken
#: Called by one thread at a time for each watch, in order. Never blocks and never raises; does not call the backend.
Sink = Callable[[WatchEvent], None]


class BackendWatch(Protocol):
    """A running watch."""

    def close(self) -> None:
        """Stop; no event is delivered after this returns, except when called from inside the sink. Twice is fine."""
        ...


@runtime_checkable
class ProvesCurrent(Protocol):
    """A running watch that proves its state to be current only while somebody asks, because a proof costs a write."""

    def prove_current(self) -> None:
        """Have ``Current`` arrive at least every 2 s, for half a minute from now on. Does not block."""
        ...


class BackendSession(Protocol):
    """A session on the server. The store's session thread drives it; it renews nothing by itself."""

    @property
    def id(self) -> str:
        """Unique for ever, never reused; what ``Entry.owner`` and ``SessionAlive`` name."""
        ...

    @property
    def ttl_s(self) -> float:
        """Seconds, as granted."""
        ...

    @property
    def opened_at(self) -> float:
        """Local clock time when the opening request was sent."""
        ...

    @property
    def token(self) -> int:
        """A store token of the opening."""
        ...

    @property
    def renew_every_s(self) -> float:
        """Seconds between calls of ``renew``."""
        ...

    @property
    def confirm_gap_s(self) -> float:
        """A renewal counts only when another confirmed one was sent at least so much later; 0: each counts."""
        ...

    def renew(self) -> Future[float]:
        """Ask an authority that can expire the session to keep it.

        The future gives the local clock time at which the confirmed renewal was sent. ``SessionLost`` means that the
        server says it is gone; any other error says nothing and extends nothing.
        """
        ...

    def close(self) -> Future[None]:
        """End it now: its keys vanish at once when the server is reachable. Nothing asked of it lands afterwards.

        From the moment this is called every later use of it fails with ``SessionLost``. Twice is fine.
        """
        ...


@runtime_checkable
class Touches(Protocol):
    """A session of which a renewal counts sooner when something cheap is asked of its server in between."""

    @property
    def touch_after_s(self) -> tuple[float, ...]:
        """Seconds from the send of a confirmed renewal to each touch before the next."""
        ...

    def touch(self) -> Future[float]:
        """Ask the server for what costs no transaction: the local time of the send, once it answered.

        A touch that was answered counts like a renewal once a renewal is confirmed that was sent ``confirm_gap_s``
        later; a renewal counts once a touch was answered that was sent so much later.
        """
        ...


@runtime_checkable
class Carries(Protocol):
    """A session that can be renewed by a transaction that does something else as well."""

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """As ``Backend.commit``, while the session lives; confirmed, it was a renewal."""
        ...


class Backend(Protocol):
    """One connection to one root on one kind of server. Safe to share between threads."""

    @property
    def capabilities(self) -> Capability:
        """What it can do, and its limits."""
        ...

    @property
    def waiting(self) -> Backend:
        """The same backend for callers that wait for each answer before they go on; by default itself.

        Its methods may do their work in the calling thread and return a future that has ended, where that saves the
        hand-over between threads; the deadlines are the same.
        """
        return self

    @property
    def apart(self) -> Backend:
        """The same backend for callers whose thread must not wait, nor do the work: an event loop's; by default itself.

        A backend that does its work in the calling thread has it done in others.
        """
        return self

    def within(self, limit_s: float) -> Backend:  # noqa: ARG002 - see there
        """The same backend for calls that have to end within this time, if ``call_timeout_s`` is not shorter.

        By default itself, which is right where calls only return futures: a caller stops waiting for one by itself. A
        backend that does its work in the calling thread has to end it in time.
        """
        return self

    def get(self, key: str, *, stale_ok: bool) -> Future[Entry | None]:
        """The entry, or None. Linearizable unless ``stale_ok``."""
        ...

    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> Future[list[Entry | None]]:
        """One answer per key, in order; each linearizable unless ``stale_ok``, together no snapshot.

        With ``stale_ok`` up to 100 keys are read in their order, each from no older a state than the one before.
        """
        ...

    def list(
        self, prefix: str, *, recursive: bool, limit: int | None, start_after: str | None, stale_ok: bool = False
    ) -> Future[list[Entry]]:
        """Keys directly below the prefix (or its whole subtree), not the prefix itself; "" is the root.

        Sorted by plain string order of the full key; ``start_after`` is a full key, exclusive. Reserved keys hidden.
        Each entry linearizable unless ``stale_ok``, the list no snapshot.
        """
        ...

    def children(self, prefix: str, *, stale_ok: bool = False) -> Future[Names]:
        """Names directly below, sorted, unique: keys and implied parents that have at least one descendant key.

        With ``stale_ok`` they are either linearizable, or all of one older state, in which a parent may be named that
        has no descendant key any more.
        """
        ...

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """All or nothing. Single writes are commits of one operation; a backend may have a fast path for them.

        The store has checked limits, duplicates and key syntax. With no ops it only checks (linearizable); then
        ``Committed.token`` is 0. Errors: ``Conflict`` naming at least one failed check (a ``Create`` of an existing key
        counts), ``InvalidKey`` for a key below a session-bound key or a session-bound key above others, ``SessionLost``
        when an operation's session has ended on the server or was closed here.
        """
        ...

    def create_sequential(self, key: str, value: bytes, session: HasId | None) -> Future[Entry]:
        """Create ``key`` + a suffix of fixed width, greater (in string order too) than every suffix committed before
        under that key's parent. Never removed parents keep their counter, also when all children are gone.
        """
        ...

    def create_ordered(self, stem: str, unique: str, value: bytes, session: HasId | None) -> Future[Ordered]:
        """Create the key ``stem + unique``, and name the older keys of its kind.

        Keys are of one kind if they have the same parent and begin with the same stem. ``unique`` has no slash, and is
        used once for each kind. A backend that needs it appends a suffix of ``MAX_ORDER_SUFFIX`` characters at most.

        ``Ordered.older`` has the last segment of every key of the kind with a smaller ``created`` that was there at one
        moment, the oldest first. The moment is that of the creation or a later one. A missing name lets two holders
        have one lock; a name too many, of a key that has gone, costs a request. The answer is None where this would
        cost another round trip, or where there are many: the caller then lists the keys, and orders them by their
        ``created``. By default the answer is always None.

        Two keys that this method creates never have the same ``created``. Errors: as of ``commit``.
        """
        created = self.commit((), (Create(stem + unique, value, session),))
        return mapped(created, lambda done: Ordered(done.entries[0], None))

    def delete_tree(self, prefix: str) -> Future[int]:
        """Delete the key at the prefix and all below it; how many keys were there. Not atomic. "" is the whole root."""
        ...

    def open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> Future[BackendSession]:
        """Open a session; a ``ttl_s`` below the server's least is raised to it (the granted one is in ``ttl_s``).

        ``on_gone`` may be called, from any thread, at most once, when the backend learns by itself that the server
        ended the session; it must not block. It is a shortcut, not a duty: ``renew`` tells too.
        """
        ...

    def watch(
        self, prefix: str, sink: Sink, *, leaf: bool = False, beside: bool = False, beats: bool = True
    ) -> BackendWatch:
        """Watch the key equal to the prefix and all below it (``ab`` never for ``a``); "" is the root.

        The first event is a ``Snapshot``. Then every committed change is reported (states in between may be merged);
        after any gap (disconnect, restart, compaction) either the missed changes or a new ``Snapshot`` follow, as soon
        as the server is back, by itself. A key never moves backwards. While connected, ``Current`` (or other events
        with ``as_of``) arrive at least every 2 s; of a watch that ``ProvesCurrent``, while somebody asks. No thread per
        watch.

        ``leaf`` asks for less, which may cost less: the prefix is a session-bound key with nothing below it. Its end is
        reported; what comes to be under its name later, or takes its place in the same commit, need not be. The first
        state may be an older one, but one without the key is not; ``Current`` need not come. With ``beside`` whoever
        watches a leaf will ask for the names beside it once it is gone: the backend may read them at once. Without
        ``beats`` nobody asks how old the state may be: ``Current`` need not come, and a quiet watch costs nothing.
        """
        ...

    def close(self) -> None:
        """End every watch (no ``Broken`` needed), close every session it opened, join its threads. Twice is fine."""
        ...


_DEFAULTS = ("waiting", "apart", "within", "create_ordered")


class _WithDefaults:
    """A backend that was written before some of ``_DEFAULTS`` were asked for."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        if name not in _DEFAULTS or hasattr(self._backend, name):
            return getattr(self._backend, name)
        return vars(Backend)[name].__get__(self)


def with_defaults(backend: Backend) -> Backend:
    """The backend itself, or one around it that has every method of ``Backend``."""
    complete = all(hasattr(backend, name) for name in _DEFAULTS)
    return backend if complete else cast("Backend", _WithDefaults(backend))


@dataclass(frozen=True, slots=True)
class VersionKey:
    """A ready-made opaque version for backends whose writes have unique numbers."""

    token: int

    def __repr__(self) -> str:
        return f"<version {self.token}>"


def check_version(version: Hashable, kind: type) -> None:
    """Refuse a version that another backend made.

    Raises:
        ValueError: the version did not come from this kind of backend.
    """
    if not isinstance(version, kind):
        msg = f"version {version!r} did not come from this store; read the key again with the store you write with"
        raise ValueError(msg)  # noqa: TRY004 - a wrong value, not a wrong type, for the caller
