"""The calls of a store as futures. ``Store`` and ``Pipeline`` use them.

Each call is validated before any I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future

from latchwork.backends.base import MAX_ORDER_SUFFIX, MAX_VALUE_BYTES, Backend
from latchwork.backends.capabilities import Capabilities
from latchwork.backends.futures import mapped
from latchwork.backends.key_syntax import SUFFIX_DIGITS
from latchwork.errors import Conflict, InvalidKey, KeyExists, TransactionTooLarge, ValueTooLarge
from latchwork.store.call_timeouts import OwnershipLimit
from latchwork.store.keys import Resolved, Scope
from latchwork.store.session import Session
from latchwork.types import (
    Absent,
    At,
    Check,
    Committed,
    Create,
    Delete,
    Entry,
    Exists,
    Fence,
    HasId,
    Op,
    OrderedKey,
    Put,
    SessionAlive,
    SimpleCheck,
)

Entries = list[Entry]
Names = list[str]

#: The longest suffix of a sequential key, on every backend.
_LONGEST_SUFFIX = "9" * SUFFIX_DIGITS
_LONGEST_ORDER = "9" * MAX_ORDER_SUFFIX
#: The largest limit of any server: a greater one means no limit.
_MANY = 2**31 - 1


class StoreCalls:
    """The calls of a store that return futures. Thread-safe.

    A call raises an error if the lock or lease that limits the calls has ended, or if ``check`` raises because the
    store cannot be used.
    """

    def __init__(
        self, backend: Backend, scope: Scope, check: Callable[[], None], limit: OwnershipLimit | None = None
    ) -> None:
        self._unlimited = backend
        self._scope = scope
        self._check = check
        self._limit = limit

    @property
    def _backend(self) -> Backend:
        """The backend for a call that starts now.

        Raises:
            Closed, ForkedProcess: The store cannot be used.
            OwnershipLost: The lock or lease that limits the calls has ended.
        """
        return self._unlimited if self._limit is None else self._unlimited.within(self._limit.check())

    def get(self, key: str, *, stale_ok: bool = False) -> Future[Entry | None]:
        """Read a key asynchronously. The future returns its entry, or None if it does not exist."""
        self._check()
        absolute = self._scope.absolute_key_for_read(key)
        future = self._backend.get(absolute, stale_ok=stale_ok)
        return mapped(future, self._scope.relative_entry_or_none) if self._scope.prefix else future

    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> Future[list[Entry | None]]:
        """Read several keys asynchronously. The future returns an entry or None for each key, in order."""
        self._check()
        absolute = [self._scope.absolute_key_for_read(key) for key in keys]
        future = self._backend.get_many(absolute, stale_ok=stale_ok)
        return mapped(future, lambda found: [self._scope.relative_entry_or_none(entry) for entry in found])

    def list(
        self,
        prefix: str,
        *,
        recursive: bool = False,
        limit: int | None = None,
        start_after: str | None = None,
        stale_ok: bool = False,
    ) -> Future[Entries]:
        """List the entries below a prefix asynchronously, sorted by key. See ``Store.list`` for the arguments."""
        absolute = self._prefix(prefix)
        if limit is not None and limit < 0:
            raise ValueError(f"limit must be 0 or more, not {limit}")
        limit = None if limit is None or limit > _MANY else limit
        after = None if start_after is None else self._scope.absolute_key_for_read(start_after)
        future = self._backend.list(absolute, recursive=recursive, limit=limit, start_after=after, stale_ok=stale_ok)
        return (
            mapped(future, lambda found: [self._scope.relative_entry(e) for e in found])
            if self._scope.prefix
            else future
        )

    def children(self, prefix: str, *, stale_ok: bool = False) -> Future[Names]:
        """List the names directly below a prefix asynchronously. See ``Store.children``."""
        absolute = self._prefix(prefix)
        return self._backend.children(absolute, stale_ok=stale_ok)

    def put(self, key: str, value: bytes, *, session: Session | None = None) -> Future[Entry]:
        """Create or overwrite a key asynchronously. The future returns the entry."""
        return mapped(self._write(Put(key, value, session)), self._only_entry)

    def create(
        self, key: str, value: bytes, *, session: Session | None = None, sequential: bool = False
    ) -> Future[Entry]:
        """Create a key asynchronously. The future returns the entry, or fails with ``KeyExists``.

        Args:
            key: The key, or the text before the suffix with ``sequential``.
            value: The value.
            session: The session to which the key is bound, or None.
            sequential: Append a suffix that is greater than every earlier one below the same parent.
        """
        if not sequential:
            written = self._write(Create(key, value, session))
            return mapped(written, self._only_entry, lambda error: _key_exists_error(error, key))
        self._check()
        absolute = self._scope.absolute_key(key)
        self._scope.absolute_key(f"{key}{_LONGEST_SUFFIX}")
        check_value(f"{absolute}{_LONGEST_SUFFIX}", value)
        self._ensure_session_usable(session)
        return mapped(self._backend.create_sequential(absolute, value, session), self._scope.relative_entry)

    def create_ordered_key(
        self, key_prefix: str, unique_suffix: str, value: bytes, *, session: Session | None = None
    ) -> Future[OrderedKey]:
        """Create a key asynchronously, and return the older keys with the same key prefix. See
        ``Store.create_ordered_key``.
        """
        self._check()
        if not unique_suffix or "/" in unique_suffix:
            raise InvalidKey(
                f"{unique_suffix!r} cannot be the last segment of a key: it must not be empty or contain '/'"
            )
        key = f"{key_prefix}{unique_suffix}"
        longest = self._scope.absolute_key(f"{key}{_LONGEST_ORDER}")
        check_value(longest, value)
        self._ensure_session_usable(session)
        absolute = longest.removesuffix(f"{unique_suffix}{_LONGEST_ORDER}")
        future = self._backend.create_ordered_key(absolute, unique_suffix, value, session)
        return mapped(future, self._ordered, lambda error: _key_exists_error(error, key))

    def _ordered(self, made: OrderedKey) -> OrderedKey:
        return OrderedKey(self._scope.relative_entry(made.entry), made.older)

    def delete(self, key: str, *, version: Hashable | None = None) -> Future[bool]:
        """Delete a key asynchronously. The future returns whether the key existed."""
        if version is None:
            return mapped(self._write(Delete(key)), _has_deleted)
        return mapped(self.commit([At.of(key, version)], [Delete(key)]), _has_deleted)

    def delete_tree(self, prefix: str) -> Future[int]:
        """Delete a prefix and all keys below it asynchronously. The future returns the number of deleted keys."""
        self._check()
        return self._backend.delete_tree(self._scope.absolute_prefix(prefix))

    def commit(
        self, checks: Sequence[Check], ops: Sequence[Op | Resolved], *, by: Session | None = None
    ) -> Future[Committed]:
        """Commit a transaction asynchronously: apply all operations if all checks hold, otherwise none.

        Args:
            checks: The checks.
            ops: The operations.
            by: A session that the transaction also renews, if the backend supports it.
        """
        self._check()
        if by is not None:
            self._ensure_session_usable(by)
        parts = self._scope.absolute_checks(checks)
        sent = self._scope.absolute_ops(ops)
        simple = list(parts)
        session = check_transaction(simple, sent, self._unlimited.capabilities)
        if session is not None:
            self._ensure_session_usable(session)
        backend = self._backend
        future = backend.commit(simple, sent) if by is None else by.commit(backend, simple, sent)
        return mapped(
            future, self._scope.relative_result, lambda error: self._translate_conflict(error, parts, sent, ops)
        )

    def _write(self, op: Op) -> Future[Committed]:
        """Commit one operation without checks. This is faster than ``commit`` and has the same validation."""
        self._check()
        (sent,) = self._scope.absolute_ops([op])
        if not isinstance(sent, Delete):
            check_value(sent.key, sent.value)
            self._ensure_session_usable(sent.session)
        return self._backend.commit((), (sent,))

    def _only_entry(self, done: Committed) -> Entry:
        return self._scope.relative_entry(done.entries[0])

    def _translate_conflict(
        self,
        error: BaseException,
        sent_checks: dict[SimpleCheck, Check],
        sent_ops: Sequence[Op],
        given_ops: Sequence[Op | Resolved],
    ) -> BaseException:
        """Convert a ``Conflict`` of the backend to one that names the caller's keys and checks.

        Other errors are returned unchanged.

        Args:
            error: The error of the backend.
            sent_checks: The checks that were sent, with the caller's check for each.
            sent_ops: The operations that were sent.
            given_ops: The caller's operations.
        """
        if not isinstance(error, Conflict):
            return error
        given = [op.given if isinstance(op, Resolved) else op for op in given_ops]
        by_key = dict(zip([op.key for op in sent_ops], given, strict=True))
        originals = (by_key.get(one.key) if isinstance(one, Create) else sent_checks.get(one) for one in error.failed)  # type: ignore[call-overload]
        failed: list[object] = [one for one in dict.fromkeys(originals) if one is not None]
        told = "; ".join(_tell(one) for one in failed[:3]) or str(error)
        more = f" (and {len(failed) - 3} more)" if len(failed) > 3 else ""
        ours = Conflict(f"nothing was written: {told}{more}; read again and try again", failed)
        ours.__cause__ = error.__cause__
        return ours

    def _prefix(self, prefix: str) -> str:
        self._check()
        return self._scope.absolute_prefix_for_read(prefix)

    def _ensure_session_usable(self, session: object) -> None:
        if session is None:
            return
        if not isinstance(session, Session):
            msg = f"session must be a Session of this store, not {type(session).__name__}; use store.open_session()"
            raise TypeError(msg)
        session.ensure_usable()


def _has_deleted(done: Committed) -> bool:
    return bool(done.deleted)


def _key_exists_error(error: BaseException, key: str) -> BaseException:
    """Convert a ``Conflict`` to ``KeyExists`` if its cause is that the key exists. Other errors are returned
    unchanged.
    """
    if not isinstance(error, Conflict):
        return error
    ours = KeyExists(f"key {key!r} already exists; read it, or use put to overwrite it")
    ours.__cause__ = error
    return ours


def _tell(failed: object) -> str:
    if isinstance(failed, At):
        return f"key {failed.key!r} was written since it was read"
    if isinstance(failed, (Absent, Create)):
        return f"key {failed.key!r} exists"
    if isinstance(failed, Exists):
        return f"key {failed.key!r} does not exist"
    if isinstance(failed, Fence):
        return f"the fence with token {failed.token} is no longer valid (its ownership has ended)"
    return f"{failed!r} does not hold"


def check_value(key: str, value: bytes) -> None:
    """Check that a value is ``bytes`` and not too large.

    Raises:
        TypeError: The value is not ``bytes``.
        ValueTooLarge: The value and its key together exceed 1,000,000 bytes.
    """
    given: object = value  # callers without a type checker pass anything
    if not isinstance(given, bytes):
        raise TypeError(f"the value of key {key!r} must be bytes, not {type(given).__name__}; encode it first")
    size = len(value) + len(key)
    if size > MAX_VALUE_BYTES:
        msg = f"the value of key {key!r} has {size:,} bytes with its key, the limit is {MAX_VALUE_BYTES:,}; split it"
        raise ValueTooLarge(msg)


def _measure_checks(checks: Sequence[SimpleCheck]) -> int:
    """Return the number of bytes that a transaction's checks contribute to its size limit.

    The key of an ``Absent`` check counts twice, because a server may check it by writing and deleting the key.
    """
    size = 0
    for check in checks:
        if not isinstance(check, SessionAlive):
            size += len(check.key) * (2 if isinstance(check, Absent) else 1)
    return size


def check_transaction(checks: Sequence[SimpleCheck], ops: Sequence[Op], allowed: Capabilities) -> HasId | None:
    """Validate a transaction: it must not contradict itself or exceed the limits of the backend.

    Args:
        checks: The checks.
        ops: The operations.
        allowed: The limits of the backend.
    Returns:
        The session to which the transaction binds keys, or None.
    Raises:
        ValueError: A key is written twice, or two sessions are used.
        InvalidKey: A key is written below a key that the transaction binds to a session.
        ValueTooLarge: A value is too large.
        TransactionTooLarge: There are too many checks, operations or bytes.
    """
    keys: set[str] = set()
    session: HasId | None = None
    size = _measure_checks(checks)
    for op in ops:
        key = op.key
        if key in keys:
            raise ValueError(f"key {key!r} is written twice in one transaction; write it once")
        keys.add(key)
        size += len(key)
        if isinstance(op, Delete):
            continue
        check_value(key, op.value)
        size += len(op.value)
        if op.session is not None:
            if session is not None and op.session.id != session.id:
                both = ", ".join(sorted((session.id, op.session.id)))
                raise ValueError(f"a transaction cannot use two sessions ({both}); use one transaction for each")
            session = op.session
    if session is not None and len(ops) > 1:
        _check_leaves(ops)
    for count, limit, what in (
        (len(checks), allowed.max_txn_checks, "checks"),
        (len(ops), allowed.max_txn_ops, "operations"),
        (size, allowed.max_txn_bytes, "bytes"),
    ):
        if count > limit:
            msg = f"the transaction has {count:,} {what}, the limit of {allowed.name} is {limit:,}; split it"
            raise TransactionTooLarge(msg)
    return session


def _check_leaves(ops: Sequence[Op]) -> None:
    """Raise ``InvalidKey`` if a transaction writes a key below another one that it binds to a session.

    The backend makes the same check against the keys that already exist.
    """
    written = [op for op in ops if not isinstance(op, Delete)]
    leaves = tuple([f"{op.key}/" for op in written if op.session is not None])
    for op in written:
        if op.key.startswith(leaves):
            leaf = next(leaf for leaf in leaves if op.key.startswith(leaf))[:-1]
            msg = f"{op.key!r} is below {leaf!r}, which the same transaction binds to a session; move one of them"
            raise InvalidKey(msg)
