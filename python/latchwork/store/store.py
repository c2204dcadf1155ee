"""The store, whose methods behave in the same way on every backend.

A ``Store`` validates calls before any I/O, waits for the backend's futures, and owns the sessions, watches and mirrors
that are opened through it. Namespaces are views that share all of that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar, cast

from latchwork._base.event import Signal
from latchwork._base.interrupts import not_reentrant
from latchwork.backends.base import ReportsNotices
from latchwork.backends.capabilities import Capabilities
from latchwork.clock import Clock
from latchwork.errors import Conflict, LatchworkError, LockLost, OwnershipLost, Unavailable
from latchwork.store.backoff import Backoff
from latchwork.store.call_timeouts import OwnershipLimit
from latchwork.store.calls import Entries, Names, StoreCalls
from latchwork.store.connection import SharedObject, StoreConnection
from latchwork.store.driving.cleanup import CleanupThread
from latchwork.store.keys import Resolved, Scope
from latchwork.store.mirror import Mirror
from latchwork.store.owner import CodeLocation, StoreOwner, find_caller_location
from latchwork.store.pipeline import DEFAULT_MAX_IN_FLIGHT, Pipeline
from latchwork.store.session import Session
from latchwork.store.steps import WRITES, Pause, ask, blocking, call_user_function, coroutine_of, run
from latchwork.store.transaction import Tx
from latchwork.store.watch import Watch
from latchwork.types import Check, Committed, Entry, Fence, Op, OrderedKey

S = TypeVar("S", bound=SharedObject)
T = TypeVar("T")


class Store:
    """Keys, transactions, sessions and watches on one root, opened with ``connect``. Thread-safe.

    Every call raises ``Closed`` after ``close()``, ``ForkedProcess`` in a forked child, ``InvalidKey`` for a malformed
    or reserved key before any I/O, ``Unavailable`` if the server did not serve it in time, and ``PermissionDenied`` if
    the account lacks permission. A write also raises ``OutcomeUnknown`` if it may or may not have been applied.
    """

    def __init__(
        self,
        core: StoreConnection,
        scope: Scope = Scope(),  # noqa: B008 - frozen
        limit: OwnershipLimit | None = None,
        *,
        created: CodeLocation | None = None,
    ) -> None:
        self._owner: StoreOwner | None = StoreOwner(core, created or find_caller_location())
        core.owner = weakref.ref(self._owner)
        self._view(core, scope, limit)

    def _view(self, core: StoreConnection, scope: Scope, limit: OwnershipLimit | None) -> None:
        self._core = core
        self._scope = scope
        self._limit = limit
        self._timeouts = core.timeouts if limit is None else core.timeouts.with_limit(limit)
        self._calls = (
            StoreCalls(core.for_blocking_calls, scope, core.ensure_usable) if limit is None else self._calls_in_flight()
        )
        self._event_loop_calls = StoreCalls(core.for_event_loop, scope, core.ensure_usable, limit)
        self._systems: dict[str, Store] = {}

    def __repr__(self) -> str:
        below = f" below {self._scope.prefix!r}" if self._scope.prefix else ""
        return f"<Store {self._core.url}{below}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of the store, without any password."""
        return self._core.url

    @property
    def clock(self) -> Clock:
        """The clock used by the store's sessions and waits."""
        return self._core.clock

    @property
    def capabilities(self) -> Capabilities:
        """The features and limits of the backend."""
        return self._core.backend.capabilities

    @property
    def server_notices(self) -> tuple[str, ...]:
        """One sentence for each upcoming problem of the server, such as a database that approaches its quota.

        Reading the property does no I/O. The sentences may be up to an hour older than the previous read of the
        property.
        """
        backend: object = self._core.backend
        return backend.notices() if isinstance(backend, ReportsNotices) else ()

    # Reading

    @not_reentrant
    def get(self, key: str, *, stale_ok: bool = False) -> Entry | None:
        """Return the entry of a key, or None if the key does not exist.

        Linearizable, unless ``stale_ok`` allows an older state at a lower cost.
        """
        return self._timeouts.wait_for_read(self._calls.get(key, stale_ok=stale_ok), f"get {key!r}")

    @not_reentrant
    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> list[Entry | None]:
        """Return the entry of each key in order, or None for a key that does not exist.

        Each read is linearizable, unless ``stale_ok`` is true, but the keys are not read at one point in time. With
        ``stale_ok``, up to 100 keys are read in order, each from a state that is not older than that of the key before.
        """
        return self._timeouts.wait_for_read(
            self._calls.get_many(keys, stale_ok=stale_ok), f"get_many of {len(keys)} keys"
        )

    @not_reentrant
    def list(
        self,
        prefix: str,
        *,
        recursive: bool = False,
        limit: int | None = None,
        start_after: str | None = None,
        stale_ok: bool = False,
    ) -> Entries:
        """Return the entries directly below a prefix, or of its whole subtree, without that of the prefix itself.

        Args:
            prefix: A key, or "" for the root.
            recursive: Return the whole subtree instead of one level.
            limit: Maximum number of entries; None for all.
            start_after: A full key; return only keys after it.
            stale_ok: Allow an older state at lower cost.
        Returns:
            Entries sorted by plain string order of the full key, unique. Each is linearizable; the list is not a
                snapshot.
        """
        future = self._calls.list(prefix, recursive=recursive, limit=limit, start_after=start_after, stale_ok=stale_ok)
        return self._timeouts.wait_for_read(future, f"list {prefix!r}")

    @not_reentrant
    def children(self, prefix: str, *, stale_ok: bool = False) -> Names:
        """Return the names directly below a prefix, sorted and unique, including names that only have keys below them.

        ``stale_ok`` lowers the cost. The names may then be those of an older state, and include names without any keys.
        """
        return self._timeouts.wait_for_read(self._calls.children(prefix, stale_ok=stale_ok), f"children of {prefix!r}")

    # Writing

    @not_reentrant
    def put(self, key: str, value: bytes, *, session: Session | None = None) -> Entry:
        """Create or overwrite a key.

        Args:
            key: The key.
            value: Up to 1,000,000 bytes with the key. Writing an unchanged value is a write.
            session: Bind the key to this session; without it, an existing key keeps its owner.
        Raises:
            ValueTooLarge: The value is too large. Raised before any I/O.
            InvalidKey: The key is malformed, is below a session-bound key, or is bound to a session with keys below it.
            SessionLost: The session has ended.
        """
        return self._timeouts.wait_for_write(self._calls.put(key, value, session=session), f"put {key!r}")

    @not_reentrant
    def create(self, key: str, value: bytes, *, session: Session | None = None, sequential: bool = False) -> Entry:
        """Create a key.

        Args:
            key: The key; with ``sequential``, the text before the suffix.
            value: Up to 1,000,000 bytes with the key.
            session: Bind the key to this session.
            sequential: Append a fixed-width suffix, greater than every suffix committed before under that parent.
        Returns:
            The entry; its key includes the suffix.
        Raises:
            KeyExists: The key exists.
            ValueTooLarge, InvalidKey, SessionLost: As for ``put``.
        """
        future = self._calls.create(key, value, session=session, sequential=sequential)
        return self._timeouts.wait_for_write(future, f"create {key!r}")

    @not_reentrant
    def create_ordered_key(
        self, key_prefix: str, unique_suffix: str, value: bytes, *, session: Session | None = None
    ) -> OrderedKey:
        """Create a key for a queue of waiters, and return the names of the older keys of that queue.

        The keys of a queue have the same parent, begin with the same ``key_prefix`` and were created by this method.
        They are ordered by ``created``.

        Args:
            key_prefix: The parent and the beginning of the last segment: ``orders/t-``.
            unique_suffix: The rest of the last segment, never used before in this queue.
            value: Up to 1,000,000 bytes with the key.
            session: Bind the key to this session.
        Returns:
            The entry, whose key may have a suffix, and the names of the older keys that existed when it was created or
                later. There are no other older keys in the queue, now or later. The names are None if unknown: list the
                keys then.
        Raises:
            KeyExists: The key exists. Not every backend can detect it.
            ValueTooLarge, InvalidKey, SessionLost: As for ``put``.
        """
        future = self._calls.create_ordered_key(key_prefix, unique_suffix, value, session=session)
        return self._timeouts.wait_for_write(future, f"create {key_prefix + unique_suffix!r}")

    @not_reentrant
    def delete(self, key: str, *, version: Hashable | None = None) -> bool:
        """Delete a key. Keys below it are not deleted.

        Args:
            key: The key.
            version: Delete the key only if this is still its version.
        Returns:
            False if the key did not exist.
        Raises:
            Conflict: The key has another version, or does not exist.
        """
        return self._timeouts.wait_for_write(self._calls.delete(key, version=version), f"delete {key!r}")

    @not_reentrant
    def delete_tree(self, prefix: str) -> int:
        """Delete the key at a prefix and all keys below it. Return the number of deleted keys.

        The deletion is not atomic. "" deletes all keys below the root.
        """
        return self._timeouts.wait_for_write(self._calls.delete_tree(prefix), f"delete_tree {prefix!r}")

    @not_reentrant
    def commit(self, checks: Sequence[Check], ops: Sequence[Op]) -> Committed:
        """Write several keys in one atomic transaction if all checks hold.

        Args:
            checks: ``At(entry)``, ``Absent(key)``, ``Exists(key)`` or ``Fence`` objects. At most 100, where each check
                in a fence counts. They all hold at the time of the write.
            ops: ``Put``, ``Create`` or ``Delete`` objects. At most 100, and each key at most once. Keys, values and the
                keys of checks together have at most 1,000,000 bytes. The key of an ``Absent`` counts twice.
        Returns:
            The token of the commit, the written entries in order, and the deleted keys that existed.
        Raises:
            Conflict: A check failed, or a key to create exists. ``failed`` names at least one.
            TransactionTooLarge, ValueTooLarge: A limit is exceeded. Raised before any I/O.
            InvalidKey: A key is below one that is bound to a session, in this transaction or before.
            ValueError: A key is written twice, or two sessions are used.
        """
        return self._timeouts.wait_for_write(self._calls.commit(checks, ops), f"commit of {len(ops)} operations")

    @blocking
    async def transact(self, fn: Callable[[Tx], T], *, guard: str | None = None, attempts: int = 10) -> T:
        """Read and write in one transaction, and repeat it after a conflict.

        ``fn(tx)`` may be called several times, and should only read and write through ``tx``. The commit checks all
        reads of ``tx``, even if nothing was written, so the returned result is based on a consistent state. Before the
        commit, ``fn`` may see keys from different points in time. An error that ``fn`` raises is raised at once.

        Args:
            fn: Called with a ``Tx``. Its result is returned.
            guard: A key that is read first, checked and rewritten. It makes ``tx.list`` consistent among transactions
                with the same guard, but not with other writes or expiring keys.
            attempts: Number of attempts, with random and increasing pauses between them.
        Raises:
            Conflict: Every attempt was refused.
            TransactionTooLarge: More than 100 keys were read or written.
            OutcomeUnknown: The outcome of the commit is unknown. It is not retried.
        """
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {attempts}")
        backoff = Backoff(0.01, 0.5, jitter=1.0)
        for attempt in range(1, attempts + 1):
            tx = Tx(self.get, self.list, guard)
            await tx.read_guard()
            result = await call_user_function(fn, tx)
            checks, ops = tx.build_checks_and_ops()
            if not (checks or ops):
                return result
            try:
                await ask(self.commit, checks, ops)
            except Conflict as error:
                if attempt == attempts:
                    msg = (
                        f"the transaction was refused {attempts} times, because others kept "
                        f"writing the same keys: {error}"
                    )
                    raise Conflict(msg, error.failed) from error
                await Pause(self.clock, Signal(), backoff.next_s())
            else:
                return result
        raise AssertionError

    def fence(self, token: int, *checks: Check) -> Fence:
        """Return a fence, which makes a transaction fail if one of these checks does not hold.

        It proves an ownership, and is valid in every namespace of the same store URL.

        Args:
            token: A number that is greater than the tokens of all earlier owners.
            checks: Conditions that hold as long as the ownership lasts.
        """
        return Fence(token, tuple(self._scope.absolute_checks(checks)))

    def pipeline(self, *, max_in_flight: int = DEFAULT_MAX_IN_FLIGHT) -> Pipeline:
        """Return an object whose calls return futures, so that many calls can be in flight at the same time.

        Args:
            max_in_flight: Maximum number of calls in flight. Further calls block.
        """
        return Pipeline(
            self._calls_in_flight(), self._core.dispatcher.create_callback_queue(), max_in_flight, store=self
        )

    # Watching

    def watch(self, prefix: str, *, single_key: bool = False, siblings: bool = False) -> Watch:
        """Watch all keys at and below a prefix.

        The first batch of changes is the current state. Close the watch after use.

        Args:
            prefix: A key, or "" for the root.
            single_key: Watch a single session-bound key, which is cheaper on some servers. Its changes and its deletion
                are reported. If a key with the same name is created afterwards, that may not be reported. The first
                state may be an older one.
            siblings: With ``single_key``, read the names next to the key as soon as it is deleted, if that is faster
                than a later request. See ``Watch.siblings``.
        """
        absolute = self._scope.absolute_prefix_for_read(prefix)
        watch = Watch(prefix, self._scope, self._core.clock, self._core.dispatcher)
        self._core.start_watch(watch, absolute, single_key=single_key, siblings=siblings)
        return watch

    def mirror(self, prefix: str, *, wait: bool = True, values: bool = True) -> Mirror:
        """Return a local read-only copy of all keys at and below a prefix, which is kept up to date. Close it after
        use.

        Args:
            prefix: A key, or "" for the root.
            wait: Wait until the first state has arrived. Otherwise call ``ready``.
            values: Whether the entries have their values. With False the values are empty, which saves memory if only
                the keys and their changes matter.
        Raises:
            Unavailable: The first state did not arrive within the call timeout.
        """
        absolute = self._scope.absolute_prefix_for_read(prefix)
        mirror = Mirror(prefix, self._scope, self._core.clock, self._core.dispatcher, keep_values=values)
        self._core.start_watch(mirror, absolute, heartbeats=True)
        return run(self.ready(mirror)) if wait else mirror

    def _calls_in_flight(self) -> StoreCalls:
        """Return the calls of this store as futures that do not block the caller's thread."""
        return StoreCalls(self._core.backend, self._scope, self._core.ensure_usable, self._limit)

    @property
    def connection(self) -> object:
        """The connection that the store and its namespaces share. An event loop limits the number of its calls in
        flight.
        """
        return self._core

    @property
    def cleanup(self) -> CleanupThread:
        """The background thread that removes what interrupted calls have left. The store and its namespaces share
        it.
        """
        return self._core.cleanup

    def start_call(self, method: str, *args: Any, **options: Any) -> Future[Any]:
        """Start the call with this method name without blocking, and return a future of its result. For event loops."""
        self._core.ensure_usable()  # a forked child has no thread to make the call
        if hasattr(StoreCalls, method):
            future: Future[Any] = getattr(self._event_loop_calls, method)(*args, **options)
            return future
        if method == "primary_session":
            return self._core.primary_session_future()
        return self._core.dispatcher.submit(getattr(self, method), *args, **options)  # not a backend call

    def remaining_timeout_s(self, since: float | None = None) -> float:
        """Return the number of seconds for which an event loop should still wait for the answer to a call.

        Args:
            since: Local clock time at which the call was made. None means now.
        """
        return self._timeouts.remaining_timeout_s(since)

    def timeout_error(self, method: str, args: tuple[Any, ...]) -> LatchworkError:
        """Return the error for a call of an event loop that was not answered in time.

        Args:
            method: The name of the method.
            args: Its arguments.
        """
        what = f"{method} {args[0]!r}" if args and isinstance(args[0], str) else method
        return self._timeouts.timeout_error(what, writes=method in WRITES)

    async def ready(self, mirror: Mirror) -> Mirror:
        """Wait until a mirror has its first state, and return the mirror. On a timeout the mirror is closed."""
        timeout_s = self._core.call_timeout_s
        try:
            timeout_s = self._timeouts.call_timeout_s
            return await coroutine_of(mirror.ready)(timeout_s)
        except BaseException as error:
            mirror.close()
            if isinstance(error, TimeoutError):
                msg = f"mirror {mirror.prefix!r}: no state from {self.url} within {timeout_s:.3g} s; try again"
                raise Unavailable(msg) from error
            raise

    # Sessions and the rest

    @property
    @not_reentrant
    def session(self) -> Session:
        """The default session. It is opened on first use. After it was lost, the next use opens a new one."""
        return self.primary_session()

    @property
    def given_session_ttl_s(self) -> float | None:
        """The ``session_ttl_s`` that was given in the URL or to ``connect``, in seconds. None if it was not given."""
        return self._core.given_session_ttl_s

    def primary_session(self) -> Session:
        """Return the default session, like ``session``, and open it if necessary. Step coroutines may await this."""
        self._core.ensure_usable()
        return self._core.get_primary_session()

    def find_open_session(self) -> Session | None:
        """Return the default session if it is open. Return None otherwise, without opening one."""
        return self._core.find_open_primary_session()

    @not_reentrant
    def open_session(self, ttl_s: float) -> Session:
        """Open a separate session.

        Args:
            ttl_s: TTL in seconds. If the server allows only a longer or shorter one, that is used and a warning is
                logged. ``session.ttl_s`` is the granted TTL.
        Raises:
            ValueError: The TTL is not above 0, or above 1,000,000 (eleven days).
        """
        return self._core.open_session(ttl_s)

    def namespace(self, prefix: str) -> Store:
        """Return a store whose keys are all below a prefix. It shares the connection and the sessions of this store.

        Closing this store also closes the namespace.
        """
        return _Namespace(self._owner, self._core, self._scope.nested_scope(prefix), self._limit)

    def shared(self, kind: Hashable, make: Callable[[Store], S]) -> S:
        """Return an object that all users of this store and prefix share, such as a thread for many small objects.

        The first call creates the object. It is closed before the store is closed.

        Args:
            kind: Identifies the object.
            make: Creates it without I/O, from a store with this prefix. It needs an idempotent ``close()``.
        Raises:
            Closed: The store was closed, or is being closed.
        """
        # The view has no owner, because the core holds the object made with it.
        made = self._core.shared((kind, self._scope), lambda: make(_Namespace(None, self._core, self._scope)))
        return cast("S", made)

    def time_left_s(self) -> float | None:
        """Return the seconds until the lock or lease expires that was passed to ``within``. None without one."""
        return None if self._limit is None else max(0.0, self._limit.remaining_s())

    def within(self, remaining_s: Callable[[], float], *, error: type[OwnershipLost] = LockLost) -> Store:
        """Return a view of this store for the work of a lock or lease owner. No call waits longer than the ownership
        lasts.

        When the ownership ends, a call that is still waiting for its answer raises: a read raises ``error``, a write
        ``OutcomeUnknown``. Later calls raise ``error`` before any I/O. Not promised: that a write that was sent is not
        committed later. Use a fence to prevent that. Sessions and watches that are opened through the view, and futures
        of its pipelines, are not limited. The view shares the connection and the sessions of this store, and is closed
        with it.

        Args:
            remaining_s: Returns the seconds for which the ownership certainly lasts. Called often, so it must perform
                no I/O.
            error: The error that calls raise after the ownership has ended.
        """
        return _Namespace(self._owner, self._core, self._scope, OwnershipLimit(remaining_s, error))

    def reopen(self) -> Store:
        """Connect again with the same URL, options, clock and observers, and return a new store with the same
        namespace.

        This is for a forked child, where the store and the objects created with it belong to the parent: call ``store =
        store.reopen()`` once in each child. The old store is unchanged and keeps its sessions, locks and watches.

        Raises:
            ConnectFailed, AuthenticationFailed: As for ``connect``.
            LatchworkError: The store was not opened with ``connect``.
        """
        return self.reopen_for(find_caller_location())

    def reopen_for(self, created: CodeLocation) -> Store:
        """Connect again like ``reopen``.

        Args:
            created: The place in the caller's code, for the warning about a store that was not closed.
        """
        return Store(self._core.reconnect(), self._scope, created=created)

    def close(self) -> None:
        """Close the store: end its sessions, then its watches and the connection. Idempotent."""
        self._core.close()

    def take_over(self) -> Callable[[], None]:
        """Make the caller responsible for closing this store.

        Returns:
            A function that closes this store. When this store is garbage collected, it is no longer closed
                automatically.
        """
        if self._owner is not None:
            self._owner.disable_closing()
        return self.close


class _Namespace(Store):
    """A view of a store. Closing it does not close the store."""

    def __init__(
        self, owner: StoreOwner | None, core: StoreConnection, scope: Scope, limit: OwnershipLimit | None = None
    ) -> None:
        self._owner = owner
        self._view(core, scope, limit)

    def close(self) -> None:
        """Do nothing, because the connection belongs to the store from which the namespace was made."""

    def take_over(self) -> Callable[[], None]:
        """Return a function that does nothing, because the connection belongs to the original store."""
        return self.close


def system_namespace(store: Store, name: str) -> Store:
    """Return the namespace ``@<name>`` for the keys of one of latchwork's components. Users cannot write there.

    If the store already is such a namespace, return the store itself, so that all classes of a component share its
    keys.

    Args:
        store: The user's store, or a namespace of it.
        name: One of ``latchwork.store.keys.SYSTEMS``.
    """
    # Cached per store object, because parts shared by threads are looked up by it.
    return store._systems.get(name) or store._systems.setdefault(name, _system_of(store, name))  # noqa: SLF001


def resolve_ops(store: Store, ops: Iterable[Op]) -> list[Op]:
    """Convert a user's operations to operations with absolute keys, so that a component can include them in a
    transaction.

    Raises:
        InvalidKey: A key is malformed, or reserved.
    """
    given = list(ops)
    sent = store._scope.absolute_ops(given)  # noqa: SLF001 - of this module
    return cast("list[Op]", [Resolved(*both) for both in zip(sent, given, strict=True)])


def _system_of(store: Store, name: str) -> Store:
    scope = store._scope.component_scope(name)  # noqa: SLF001 - of this module
    return store if scope is store._scope else _Namespace(store._owner, store._core, scope, store._limit)  # noqa: SLF001
