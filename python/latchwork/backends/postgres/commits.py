"""The calls that write: how they are encoded, and how their answers are decoded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from latchwork.backends.base import MAX_OLDER, VersionKey, check_version
from latchwork.backends.futures import reject, resolve
from latchwork.backends.outcomes import describe_transaction
from latchwork.backends.postgres import errors
from latchwork.backends.postgres.call_queue import PostgresCall
from latchwork.backends.postgres.connection import Row, Statement, decode_number, encode_number_array, encode_text_array
from latchwork.backends.postgres.errors import ServerError
from latchwork.backends.postgres.reads import decode_text
from latchwork.errors import Conflict, InvalidKey, LatchworkError, OutcomeUnknown, SessionLost
from latchwork.types import (
    Absent,
    At,
    Committed,
    Create,
    Delete,
    Entry,
    Exists,
    HasId,
    Op,
    OrderedKey,
    SessionAlive,
    SimpleCheck,
)

TREE_BATCH = 1_000  # keys deleted in one transaction: others get their turn in between
_REASONS: dict[type, str] = {
    At: "was written or deleted since it was read",
    Absent: "exists",
    Exists: "does not exist",
    Create: "exists already",
}
_KINDS: dict[type, str] = {At: "a", Absent: "n", Exists: "e"}


class Write(PostgresCall):
    """Base class of calls that write. If the response is lost, it can be found out whether the write was applied.

    Attributes:
        request: The ID of its request while the outcome is unknown, else 0.
        sent_at: Local clock time at which it was last sent.
        changes: False for a transaction that only checks.
    """

    changes = True

    def __init__(self, what: str, deadline: float) -> None:
        super().__init__(what, deadline)
        self.request = 0
        self.sent_at = 0.0

    def timeout_error(self, reason: Exception | None) -> LatchworkError:
        """Return the error for a write that was not answered in time.

        It is ``OutcomeUnknown`` if the write was sent, because it may have been applied.

        Args:
            reason: The error of the last attempt, or None.
        """
        if not self.request:
            return super().timeout_error(reason)
        why = "" if reason is None else f" ({reason})"
        made = OutcomeUnknown(
            f"PostgreSQL did not answer in time when asked to {self.what}{why}; it may have been applied, or may be "
            "yet: read again to know"
        )
        made.__cause__ = reason
        return made

    def record_applied(self, rows: Sequence[Row]) -> None:
        """Complete the call, because the server was found to have applied the write.

        Args:
            rows: The changes that the server has stored for the write.
        """
        raise NotImplementedError


class PostgresCommit(Write):
    """A transaction. Several are sent in one statement.

    Args:
        deadline: Local clock time.
        checks: The checks.
        ops: The operations.
        ended_sessions: IDs of the sessions that this client has closed.
        kind: "n" if the operation creates a numbered key, "o" if it also returns the names of older keys, else "".
        key_prefix: The parent of the key and the beginning of its name, which it shares with the older keys.
    """

    def __init__(
        self,
        deadline: float,
        checks: Sequence[SimpleCheck],
        ops: Sequence[Op],
        ended_sessions: Collection[str] = (),
        *,
        kind: str = "",
        key_prefix: str | None = None,
    ) -> None:
        super().__init__(describe_transaction(checks, ops), deadline)
        self.checks, self.ops, self.kind, self.key_prefix = checks, ops, kind, key_prefix
        self.changes = bool(ops)
        self.sessions = [None if isinstance(op, Delete) or op.session is None else op.session.id for op in ops]
        for check in checks:
            if isinstance(check, At):
                check_version(check.version, VersionKey)
        if ended_sessions:
            for session in self.sessions:
                if session in ended_sessions:
                    raise session_lost_error(session)
            failed = [
                check for check in checks if isinstance(check, SessionAlive) and check.session_id in ended_sessions
            ]
            if failed:
                raise conflict_error(failed)
        self.size = sum(len(op.value) for op in ops if not isinstance(op, Delete))

    @property
    def steps(self) -> int:
        """The number of checks and operations."""
        return len(self.checks) + len(self.ops)

    def complete(self, rows: Sequence[Row]) -> None:
        """Complete the call with the rows that the server has returned for it."""
        kinds = {row[1] for row in rows}
        if b"g" in kinds:
            reject(self.future, session_lost_error(decode_text(rows[0][5])))
        elif kinds & {b"c", b"x"}:
            failed = [(self.checks if row[1] == b"c" else self.ops)[decode_number(row[2])] for row in rows]
            reject(self.future, conflict_error(failed))
        else:
            entries = [self._entry(decode_number(row[2]), row[3:7]) for row in rows if row[1] != b"d"]
            deleted = [self.ops[decode_number(row[2])].key for row in rows if row[1] == b"d"]
            self._resolve(decode_number(rows[0][3]) if rows else 0, entries, deleted, rows[-1][7] if rows else None)

    def record_applied(self, rows: Sequence[Row]) -> None:
        """Complete the call, because the server was found to have applied the transaction.

        Args:
            rows: The changes that the server has stored for the transaction.
        """
        by_key = {decode_text(row[2]): row for row in rows}
        entries, deleted = [], []
        for at, op in enumerate(self.ops):
            row = by_key.get(op.key) if self.kind != "n" else rows[0]
            if row is not None and isinstance(op, Delete):
                deleted.append(op.key)
            elif row is not None:
                entries.append(self._entry(at, (row[1], row[3], row[4], row[2])))
        self._resolve(decode_number(rows[0][1]), entries, deleted, None)

    def _entry(self, at: int, row: Row) -> Entry:
        op = self.ops[at]
        assert not isinstance(op, Delete)
        token, owner = decode_number(row[0]), row[2]
        return Entry(
            decode_text(row[3]),
            op.value,
            VersionKey(token),
            token,
            decode_number(row[1]),
            None if owner is None else owner.decode(),
        )

    def _resolve(self, token: int, entries: list[Entry], deleted: list[str], older: bytes | None) -> None:
        done: Any = Committed(token, tuple(entries), tuple(deleted))
        if self.kind == "n":
            done = entries[0]
        elif self.kind == "o":
            names = None if older is None else [name for name in older.decode().split("/") if name]
            done = OrderedKey(entries[0], None if names is None or len(names) > MAX_OLDER else tuple(names))
        resolve(self.future, done)


class TreeDeletion(Write):
    """The deletion of a subtree, which takes several transactions."""

    def __init__(self, deadline: float, prefix: str) -> None:
        super().__init__(f"delete the tree at {prefix!r}", deadline)
        self.prefix = prefix
        self.deleted = 0

    def add(self, count: int) -> None:
        """Add to the number of deleted keys. Complete the call if the deletion is finished.

        Args:
            count: The number of keys that the last batch has deleted.
        """
        self.deleted += count
        if count < TREE_BATCH:
            resolve(self.future, self.deleted)

    def timeout_error(self, reason: Exception | None) -> LatchworkError:
        """Return the error for a deletion that was not completed in time.

        It is ``OutcomeUnknown`` if some keys were deleted.

        Args:
            reason: The error of the last attempt, or None.
        """
        error = super().timeout_error(reason)
        if not self.deleted:
            return error
        return OutcomeUnknown(f"{self.what}: {self.deleted} keys were deleted, then: {error}; do it again for the rest")

    def record_applied(self, rows: Sequence[Row]) -> None:
        """Record that a batch of the deletion was found to be applied.

        Args:
            rows: One row per deleted key.
        """
        self.add(len(rows))


class RepeatableCall(PostgresCall):
    """A statement that may be executed twice, so that it is sent again after a lost answer.

    Args:
        what: Description of the call for messages.
        deadline: Local clock time.
        statement: The statement.
        decode: Converts its rows to the result of the call.
        once: Do not send it again if its answer is lost.
        writes: Whether it may delete keys.
        sent: Called directly before it is sent.
    """

    def __init__(
        self,
        what: str,
        deadline: float,
        statement: Statement,
        decode: Callable[[list[Row]], Any],
        *,
        once: bool = False,
        writes: bool = False,
        sent: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(what, deadline)
        self.statement, self.once, self.writes, self.sent = statement, once, writes, sent
        self._decode = decode

    def complete(self, rows: list[Row]) -> None:
        """Complete the call with the rows that the server has returned for it."""
        try:
            resolve(self.future, self._decode(rows))
        except LatchworkError as error:
            reject(self.future, error)


def encode_commits(commits: Sequence[PostgresCommit]) -> tuple[bytes, ...]:
    """Encode several transactions as the parameters of one SQL statement."""
    check_ends: list[int] = []
    op_ends: list[int] = []
    value_ends: list[int] = []
    kinds: list[str] = []
    keys: list[str | None] = []
    tokens: list[int] = []
    op_kinds: list[str] = []
    op_keys: list[str | None] = []
    sessions: list[str | None] = []
    stems: list[str | None] = []
    values: list[bytes] = []
    size = 0
    for commit in commits:
        for check in commit.checks:
            kinds.append(_KINDS.get(type(check), "s"))
            keys.append(check.session_id if isinstance(check, SessionAlive) else check.key)
            version = check.version if isinstance(check, At) else None
            tokens.append(version.token if isinstance(version, VersionKey) else 0)
        for op, session in zip(commit.ops, commit.sessions, strict=True):
            if isinstance(op, Delete):
                op_kinds.append("d")
            else:
                op_kinds.append(commit.kind or ("c" if isinstance(op, Create) else "p"))
                values.append(op.value)
                size += len(op.value)
            op_keys.append(op.key)
            sessions.append(session)
            stems.append(commit.key_prefix)
            value_ends.append(size)
        check_ends.append(len(kinds))
        op_ends.append(len(op_kinds))
    return (
        encode_number_array([commit.request for commit in commits]),
        encode_number_array(check_ends),
        "".join(kinds).encode(),
        encode_text_array(keys),
        encode_number_array(tokens),
        encode_number_array(op_ends),
        "".join(op_kinds).encode(),
        encode_text_array(op_keys),
        encode_text_array(sessions),
        encode_text_array(stems),
        encode_number_array(value_ends),
        b"".join(values),
    )


def session_lost_error(session_id: str | None) -> SessionLost:
    """Return the ``SessionLost`` error for a session that has ended."""
    return SessionLost(f"session {session_id} has ended; stop what it protected and use a new session")


def conflict_error(failed: Sequence[SimpleCheck | Op]) -> Conflict:
    """Return the ``Conflict`` error for checks that do not hold."""
    first = failed[0]
    if isinstance(first, SessionAlive):
        what = f"session {first.session_id} has ended"
    else:
        what = f"{first.key!r} {_REASONS[type(first)]}"
    more = f" and {len(failed) - 1} more checks failed" if len(failed) > 1 else ""
    return Conflict(f"nothing was written: {what}{more}; read again, then try again", failed)


def build_sequential_commit(
    deadline: float, key: str, value: bytes, session: HasId | None, ended_sessions: Collection[str]
) -> PostgresCommit:
    """Return the transaction that creates a key whose suffix is the next number below its parent.

    Args:
        deadline: Local clock time.
        key: The key without the number.
        value: The value.
        session: The session to which the key is bound, or None.
        ended_sessions: IDs of the sessions that this client has closed.
    """
    return PostgresCommit(deadline, (), (Create(key, value, session),), ended_sessions, kind="n")


def build_ordered_commit(
    deadline: float, key_prefix: str, op: Create, ended_sessions: Collection[str]
) -> PostgresCommit:
    """Return the transaction that creates a key and reads the older keys with the same key prefix.

    Args:
        deadline: Local clock time.
        key_prefix: The parent and the beginning of the names.
        op: The creation of the key.
        ended_sessions: IDs of the sessions that this client has closed.
    """
    return PostgresCommit(deadline, (), (op,), ended_sessions, kind="o", key_prefix=key_prefix)


def refusal_error(error: ServerError, description: str) -> LatchworkError:
    """Return latchwork's error for a call whose statement the server refused.

    Args:
        error: The error of the server.
        description: A description of the call for the message.
    """
    if error.code == errors.NOT_A_LEAF:
        return InvalidKey(f"could not {description}: of {error.detail!r}, {error}; use another key")
    return errors.translate_error(error, description)
