"""The store: one contract over every backend.

A ``Store`` checks what it is asked before any I/O, waits for the backend's futures, and owns the sessions, watches and
mirrors opened through it. Namespaces are views that share all of that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar, cast

from latchwork.backends.base import Capability
from latchwork.clock import Clock
from latchwork.errors import Conflict, LatchworkError, LockLost, OwnershipLost, Unavailable
from latchwork.interrupts import entrance
from latchwork.store.answers import Limit
from latchwork.store.backoff import Backoff
from latchwork.store.calls import Calls, Entries, Names
from latchwork.store.core import Core, Shared
from latchwork.store.driving.cleanup import Cleanup
from latchwork.store.keys import Resolved, Scope
from latchwork.store.mirror import Mirror
from latchwork.store.owner import Origin, StoreOwner, origin
from latchwork.store.pipeline import DEFAULT_MAX_IN_FLIGHT, Pipeline
from latchwork.store.session import Session
from latchwork.store.steps import WRITES, Pause, Signal, ask, called, driven, run, steps_of
from latchwork.store.transaction import Tx
from latchwork.store.watch import Watch
from latchwork.types import Check, Committed, Entry, Fence, Op, Ordered

S = TypeVar("S", bound=Shared)
T = TypeVar("T")


class Store:
    """Keys, transactions, sessions and watches on one root. Safe to share between threads; open it with ``connect``.

    Every call raises ``Closed`` after ``close()``, ``ForkedProcess`` in a forked child, ``InvalidKey`` for a malformed
    or reserved key before any I/O, ``Unavailable`` when the server did not serve it in time, ``PermissionDenied`` when
    the account may not, and, if it writes, ``OutcomeUnknown`` when it may or may not have been applied.
    """

    def __init__(
        self,
        core: Core,
        scope: Scope = Scope(),  # noqa: B008 - frozen
        limit: Limit | None = None,
        *,
        created: Origin | None = None,
    ) -> None:
        self._owner: StoreOwner | None = StoreOwner(core, created or origin())
        core.owner = weakref.ref(self._owner)
        self._view(core, scope, limit)

    def _view(self, core: Core, scope: Scope, limit: Limit | None) -> None:
        self._core = core
        self._scope = scope
        self._limit = limit
        self._answers = core.answers if limit is None else core.answers.under(limit)
        self._calls = Calls(core.waiting, scope, core.check) if limit is None else self._calls_in_flight()
        self._calls_apart = Calls(core.apart, scope, core.check, limit)
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
        """The URL it was opened with, without any password."""
        return self._core.url

    @property
    def clock(self) -> Clock:
        """The clock that its sessions and waits use."""
        return self._core.clock

    @property
    def capabilities(self) -> Capability:
        """What the backend can do, and its limits."""
        return self._core.backend.capabilities

    # Reading

    @entrance
    def get(self, key: str, *, stale_ok: bool = False) -> Entry | None:
        """The entry of a key, or None; linearizable, unless ``stale_ok`` allows an older state for less work."""
        return self._answers.read(self._calls.get(key, stale_ok=stale_ok), f"get {key!r}")

    @entrance
    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> list[Entry | None]:
        """One answer per key, in order. Each is linearizable, unless ``stale_ok``; together they are no snapshot.

        With ``stale_ok`` up to 100 keys are read in their order, each from no older a state than the one before.
        """
        return self._answers.read(self._calls.get_many(keys, stale_ok=stale_ok), f"get_many of {len(keys)} keys")

    @entrance
    def list(
        self,
        prefix: str,
        *,
        recursive: bool = False,
        limit: int | None = None,
        start_after: str | None = None,
        stale_ok: bool = False,
    ) -> Entries:
        """The keys directly below a prefix, or its whole subtree; not the prefix itself.

        Args:
            prefix: a key, or "" for the root.
            recursive: the whole subtree instead of one level.
            limit: at most so many; None for all.
            start_after: a full key; only keys after it.
            stale_ok: allow an older state for less work.
        Returns:
            Sorted by plain string order of the full key, unique. Each entry linearizable, the list no snapshot.
        """
        future = self._calls.list(prefix, recursive=recursive, limit=limit, start_after=start_after, stale_ok=stale_ok)
        return self._answers.read(future, f"list {prefix!r}")

    @entrance
    def children(self, prefix: str, *, stale_ok: bool = False) -> Names:
        """The names directly below a prefix, of keys and implied parents; sorted, unique.

        With ``stale_ok`` for less work: perhaps all of one older state, with names of parents that are empty by now.
        """
        return self._answers.read(self._calls.children(prefix, stale_ok=stale_ok), f"children of {prefix!r}")

    # Writing

    @entrance
    def put(self, key: str, value: bytes, *, session: Session | None = None) -> Entry:
        """Create or overwrite a key.

        Args:
            key: the key.
            value: up to 1,000,000 bytes with the key. Writing the bytes that are there already is a write.
            session: bind the key to this session; without it an existing key keeps its owner.
        Raises:
            ValueTooLarge: before any I/O.
            InvalidKey: malformed; or below a session-bound key; or bound to a session with keys below it.
            SessionLost: the session has ended.
        """
        return self._answers.write(self._calls.put(key, value, session=session), f"put {key!r}")

    @entrance
    def create(self, key: str, value: bytes, *, session: Session | None = None, sequential: bool = False) -> Entry:
        """Create a key.

        Args:
            key: the key; with ``sequential``, what the suffix is appended to.
            value: up to 1,000,000 bytes with the key.
            session: bind the key to this session.
            sequential: append a suffix of fixed width, greater than every suffix committed before under that parent.
        Returns:
            The entry; its key has the suffix.
        Raises:
            KeyExists: it is there already.
            ValueTooLarge, InvalidKey, SessionLost: as for ``put``.
        """
        future = self._calls.create(key, value, session=session, sequential=sequential)
        return self._answers.write(future, f"create {key!r}")

    @entrance
    def create_ordered(self, stem: str, unique: str, value: bytes, *, session: Session | None = None) -> Ordered:
        """Create a key and return the names of the older keys of its kind, as a queue of waiters needs them.

        Keys are of one kind if they have the same parent and begin with the same ``stem``, and were created by this
        method. Their order is that of ``created``.

        Args:
            stem: the parent and the beginning of the last segment: ``orders/t-``.
            unique: the rest of the last segment. It must not have been used before for this kind.
            value: up to 1,000,000 bytes with the key.
            session: bind the key to this session.
        Returns:
            The entry, whose key may have a suffix, and the names of the older keys that were there when it was created
            or later. No other older key of the kind exists, now or at any later time. The names are None if they are
            not known: list the keys then.
        Raises:
            KeyExists: the key is there already. Not every backend can tell.
            ValueTooLarge, InvalidKey, SessionLost: as for ``put``.
        """
        future = self._calls.create_ordered(stem, unique, value, session=session)
        return self._answers.write(future, f"create {stem + unique!r}")

    @entrance
    def delete(self, key: str, *, version: Hashable | None = None) -> bool:
        """Delete a key; its descendants stay.

        Args:
            key: the key.
            version: delete it only if it was not written since it was read with this version.
        Returns:
            False if it was not there.
        Raises:
            Conflict: the version is another, or the key is gone.
        """
        return self._answers.write(self._calls.delete(key, version=version), f"delete {key!r}")

    @entrance
    def delete_tree(self, prefix: str) -> int:
        """Delete the key at a prefix and every key below it; how many there were. Not atomic. "" is the whole root."""
        return self._answers.write(self._calls.delete_tree(prefix), f"delete_tree {prefix!r}")

    @entrance
    def commit(self, checks: Sequence[Check], ops: Sequence[Op]) -> Committed:
        """Write several keys, all or nothing, if every check holds.

        Args:
            checks: ``At(entry)``, ``Absent(key)``, ``Exists(key)`` and every ``Fence``; at most 100 after fences are
                opened. They hold at one moment, the moment of the write.
            ops: ``Put``, ``Create``, ``Delete``; at most 100, each key once. Keys and values come to 1,000,000 bytes at
                most, with the keys of the checks; that of an ``Absent`` counts twice.
        Returns:
            The token of the commit, the entries written in order, the keys really deleted.
        Raises:
            Conflict: a check did not hold, or a key to be created exists; ``failed`` names at least one.
            TransactionTooLarge, ValueTooLarge: before any I/O.
            InvalidKey: a key is written below one that is bound to a session, here or before.
            ValueError: a key is written twice, or two sessions are used.
        """
        return self._answers.write(self._calls.commit(checks, ops), f"commit of {len(ops)} operations")

    @driven
    async def transact(self, fn: Callable[[Tx], T], *, guard: str | None = None, attempts: int = 10) -> T:
        """Read and write in one transaction, tried again when others were faster.

        ``fn(tx)`` may run several times and should do nothing but read and write through ``tx``. The commit checks all
        that it read, also when it wrote nothing: what it returns is made of one moment. Up to there it may see keys of
        different moments, and what it raises is raised at once.

        Args:
            fn: called with a ``Tx``; its result is returned.
            guard: a key that is read first, checked and bumped: makes ``tx.list`` safe among transactions that name
                the same guard (not against others, nor against expiring keys).
            attempts: how often to try; between tries it backs off with jitter.
        Raises:
            Conflict: refused that many times.
            TransactionTooLarge: it read or wrote more than 100 keys.
            OutcomeUnknown: as for any write; it is not tried again.
        """
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {attempts}")
        backoff = Backoff(0.01, 0.5, jitter=1.0)
        for attempt in range(1, attempts + 1):
            tx = Tx(self.get, self.list, guard)
            await tx.begin()
            result = await called(fn, tx)
            checks, ops = tx.plan()
            if not (checks or ops):
                return result
            try:
                await ask(self.commit, checks, ops)
            except Conflict as error:
                if attempt == attempts:
                    msg = f"the transaction was refused {attempts} times, others kept writing the same keys: {error}"
                    raise Conflict(msg, error.failed) from error
                await Pause(self.clock, Signal(), backoff.next_s())
            else:
                return result
        raise AssertionError

    def fence(self, token: int, *checks: Check) -> Fence:
        """A fence of these checks, valid in every namespace of this URL."""
        return Fence(token, tuple(self._scope.checks(checks)))

    def pipeline(self, *, max_in_flight: int = DEFAULT_MAX_IN_FLIGHT) -> Pipeline:
        """The same calls returning futures, many in flight."""
        return Pipeline(self._calls_in_flight(), self._core.dispatcher.outlet(), max_in_flight, store=self)

    # Following

    def watch(self, prefix: str, *, leaf: bool = False, beside: bool = False) -> Watch:
        """Batches of changes at and below a prefix; the first is the current state. Close it when done.

        Args:
            prefix: a key, or "" for the root.
            leaf: it is a session-bound key, and only its end matters: costs less where the server allows. Its changes
                and its end are reported; what is created or bound anew under its name need not be. The first state
                may be an older one.
            beside: with ``leaf``, read the names of its siblings as soon as it is gone, where that is quicker than to
                ask for them then; see ``Watch.beside``.
        """
        absolute = self._scope.below(prefix)
        watch = Watch(prefix, self._scope, self._core.clock, self._core.dispatcher)
        self._core.add_feed(watch, absolute, leaf=leaf, beside=beside)
        return watch

    def mirror(self, prefix: str, *, wait: bool = True, values: bool = True) -> Mirror:
        """A local read-only mapping of all keys at and below a prefix, kept current. Close it when done.

        Args:
            prefix: a key, or "" for the root.
            wait: return once the first state is there; else call ``ready`` yourself.
            values: False for entries with empty values, when they are large and only which keys there are, and that
                they change, matters.
        Raises:
            Unavailable: the first state did not come within the call timeout.
        """
        absolute = self._scope.below(prefix)
        mirror = Mirror(prefix, self._scope, self._core.clock, self._core.dispatcher, keep_values=values)
        self._core.add_feed(mirror, absolute, beats=True)
        return run(self.ready(mirror)) if wait else mirror

    def _calls_in_flight(self) -> Calls:
        """Calls for a caller that does not wait for each answer in its own thread."""
        return Calls(self._core.backend, self._scope, self._core.check, self._limit)

    @property
    def connection(self) -> object:
        """What it shares with its namespaces, for event loops; see ``Ask``."""
        return self._core

    @property
    def cleanup(self) -> Cleanup:
        """Runs cleanup jobs in the background, for the store and all its namespaces: for primitives."""
        return self._core.cleanup

    def begin(self, method: str, *args: Any, **options: Any) -> Future[Any]:
        """Begin one of the calls above without waiting for its answer: what an event loop does; see ``Ask``."""
        self._core.check()  # in a child of a fork no thread is left that would make the call
        if hasattr(Calls, method):
            future: Future[Any] = getattr(self._calls_apart, method)(*args, **options)
            return future
        if method == "primary_session":
            return self._core.begin_primary()
        return self._core.dispatcher.submit(getattr(self, method), *args, **options)  # has no answer of its own

    def answer_s(self, since: float | None = None) -> float:
        """Seconds that an event loop waits for an answer, of one asked for at that local time."""
        return self._answers.left_s(since)

    def late(self, method: str, args: tuple[Any, ...]) -> LatchworkError:
        """The error of a call that an event loop got no answer to in time."""
        what = f"{method} {args[0]!r}" if args and isinstance(args[0], str) else method
        return self._answers.late(what, writes=method in WRITES)

    async def ready(self, mirror: Mirror) -> Mirror:
        """The mirror once its first state is there; closed if that does not come in time: for protocols."""
        timeout_s = self._core.call_timeout_s
        try:
            timeout_s = self._answers.call_timeout_s
            return await steps_of(mirror.ready)(timeout_s)
        except BaseException as error:
            mirror.close()
            if isinstance(error, TimeoutError):
                msg = f"mirror {mirror.prefix!r}: no state from {self.url} within {timeout_s:.3g} s; try again"
                raise Unavailable(msg) from error
            raise

    # Sessions and the rest

    @property
    @entrance
    def session(self) -> Session:
        """The primary session, opened on first use, and anew on the next use after it was lost."""
        return self.primary_session()

    @property
    def given_session_ttl_s(self) -> float | None:
        """The ``session_ttl_s`` of the URL or of ``connect``, in seconds; None if neither gives it."""
        return self._core.given_session_ttl_s

    def primary_session(self) -> Session:
        """The same as ``session``, as a call that a protocol may make while it is driven."""
        self._core.check()
        return self._core.primary()

    def opened_session(self) -> Session | None:
        """The primary session if there is one that has not ended; opens none."""
        return self._core.opened_primary()

    @entrance
    def open_session(self, ttl_s: float) -> Session:
        """A session of its own.

        Args:
            ttl_s: seconds; raised to the server's least, or cut to its most, with a logged warning.
                ``session.ttl_s`` is what was granted.
        Raises:
            ValueError: it is not more than 0, or more than 1,000,000 (eleven days).
        """
        return self._core.open_session(ttl_s)

    def namespace(self, prefix: str) -> Store:
        """The same interface below a prefix. It shares this store's connection and sessions, and ends with it."""
        return _Namespace(self._owner, self._core, self._scope.namespace(prefix), self._limit)

    def shared(self, kind: Hashable, make: Callable[[Store], S]) -> S:
        """One object for all that use this store and this prefix: made at the first use, closed before the store ends.

        For libraries: something with a thread that many small objects of theirs need.

        Args:
            kind: names it.
            make: makes it without I/O, of a store with this prefix. It has a ``close()``, of which twice is fine.
        Raises:
            Closed: the store was closed, or is being closed.
        """
        # The view has no owner: the core holds what is made with it.
        made = self._core.shared((kind, self._scope), lambda: make(_Namespace(None, self._core, self._scope)))
        return cast("S", made)

    def time_left_s(self) -> float | None:
        """Seconds that its calls may wait if it is one for work under an ownership, see ``within``; None for others."""
        return None if self._limit is None else max(0.0, self._limit.remaining_s())

    def within(self, remaining_s: Callable[[], float], *, error: type[OwnershipLost] = LockLost) -> Store:
        """The same interface for work under an ownership: no call waits longer than that lasts.

        A call that has no answer when the ownership ends raises at that moment: a read ``error``, a write
        ``OutcomeUnknown``; later calls raise ``error`` before any I/O. Not promised: that a write which was sent does
        not land later; its fence sees to that. Sessions and watches opened through it, and futures of its pipelines,
        last as long as without it. It shares this store's connection and sessions, and ends with it.

        Args:
            remaining_s: tells how many seconds the ownership surely lasts; asked often, must do no I/O.
            error: what calls raise once it is over.
        """
        return _Namespace(self._owner, self._core, self._scope, Limit(remaining_s, error))

    def reopen(self) -> Store:
        """Connect again with the same URL, options, clock and observers: another store, with this one's namespace.

        For a child of a fork, where this store and what was made with it is the parent's: ``store = store.reopen()``,
        once in each child. This store stays as it is, and its sessions, locks and watches are its own.

        Raises:
            ConnectFailed, AuthenticationFailed: as for ``connect``.
            LatchworkError: it is no store that ``connect`` made, but one for tests that was built on another.
        """
        return self.reopen_for(origin())

    def reopen_for(self, created: Origin) -> Store:
        """Connect again for a caller at that place: for event loops."""
        return Store(self._core.reopened(), self._scope, created=created)

    def close(self) -> None:
        """End its sessions at once, then its watches and the connection. Twice is fine."""
        self._core.close()

    def take_over(self) -> Callable[[], None]:
        """Return what closes it, for a store built on this one: from now on, dropping this one closes nothing."""
        if self._owner is not None:
            self._owner.replace()
        return self.close


class _Namespace(Store):
    """A view; closing it leaves the store it came from open."""

    def __init__(self, owner: StoreOwner | None, core: Core, scope: Scope, limit: Limit | None = None) -> None:
        self._owner = owner
        self._view(core, scope, limit)

    def close(self) -> None:
        """Do nothing: the store it came from owns the connection."""

    def take_over(self) -> Callable[[], None]:
        """Return what does nothing: the store it came from is closed by its own user."""
        return self.close


def system_namespace(store: Store, name: str) -> Store:
    """The namespace in which one of latchwork's own systems keeps its keys: ``@<name>``, which no caller can write.

    Inside such a namespace this is the store itself, so the parts that a system is built from share its tree.

    Args:
        store: the caller's store, or a namespace of it.
        name: one of ``latchwork.store.keys.SYSTEMS``.
    """
    # The same object for each store object: parts that threads share are found by it.
    return store._systems.get(name) or store._systems.setdefault(name, _system_of(store, name))  # noqa: SLF001


def refuse_old_layout(store: Store, what: str, marks: Mapping[str, Callable[[bytes], bool]]) -> None:
    """Refuse a root at which an older version has kept the keys of a system, before there were reserved segments.

    Args:
        store: the caller's store, or a namespace of it. Inside a system there is no old layout, and no request is made.
        what: the system, for the message.
        marks: keys that the system always had there, each with what accepts its value. All of them have to be there, so
            that a caller's own keys of such a name are no reason.
    Raises:
        LatchworkError: all of them are there.
    """
    if store._scope.is_inside_system:  # noqa: SLF001 - of this module
        return
    found = store.get_many(list(marks))
    if all(entry is not None and fits(entry.value) for entry, fits in zip(found, marks.values(), strict=True)):
        raise LatchworkError(
            f"{store.url} has {what} of an older version, whose keys are outside of reserved segments (such as "
            f"{next(iter(marks))!r}); nothing migrates them: stop its processes and delete these keys, or use another "
            "root"
        )


def resolved(store: Store, ops: Iterable[Op]) -> list[Op]:
    """A caller's operations, with keys relative to its store, for a transaction of one of its system namespaces.

    Raises:
        InvalidKey: a key is malformed, or reserved.
    """
    given = list(ops)
    sent = store._scope.ops(given)  # noqa: SLF001 - of this module
    return cast("list[Op]", [Resolved(*both) for both in zip(sent, given, strict=True)])


def _system_of(store: Store, name: str) -> Store:
    scope = store._scope.system(name)  # noqa: SLF001 - of this module
    return store if scope is store._scope else _Namespace(store._owner, store._core, scope, store._limit)  # noqa: SLF001
