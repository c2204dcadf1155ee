"""Reads of entries: the SQL statements, the decoding of their rows, and the queue of reads.

Keys are ASCII and compared by their bytes. What is below ``a`` is everything from ``a/`` up to, and not including,
``a0`` (the character after the slash). The index contains only the first characters of a key, so every comparison is
made twice.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

from latchwork.backends.base import VersionKey
from latchwork.backends.futures import reject, resolve
from latchwork.backends.postgres import errors
from latchwork.backends.postgres.call_queue import CallQueue, PostgresCall
from latchwork.backends.postgres.connection import Row, Statement, decode_number, encode_text_array
from latchwork.backends.postgres.errors import ConnectionBroken, ServerError
from latchwork.backends.postgres.schema import Schema
from latchwork.backends.postgres.store_connector import RETRY_S
from latchwork.errors import LatchworkError
from latchwork.types import Entry

_COLUMNS = "key, value, token, created, owner"
_END = "\x7f"  # after every character of a key
_RANGE = (
    "root = $1::int and left(key, {head}) >= left($2::text, {head}) and left(key, {head}) <= left($3::text, {head}) "
    "and key >= $2::text and key < $3::text"
)

# Visits one key per name directly below: after a key directly below, it continues with the next one ("!" comes before
# every character of a key), after one further down it jumps behind the whole subtree. So the cost is one index look-up
# per name, however much lies below. $4 is the position of the name within the key.
_VISITED = f"""
with recursive visited (key) as (
  (select key from {{s}}.entries where {_RANGE} order by left(key, {{head}}), key limit 1)
  union all
  select (
    select e.key from {{s}}.entries e, lateral (select case position('/' in substr(v.key, $4))
        when 0 then v.key || '!' else substr(v.key, 1, $4 + position('/' in substr(v.key, $4)) - 2) || '0' end as low) n
    where e.root = $1 and left(e.key, {{head}}) >= left(n.low, {{head}}) and left(e.key, {{head}}) <= left($3, {{head}})
      and e.key >= n.low and e.key < $3 order by left(e.key, {{head}}), e.key limit 1)
  from visited v where v.key is not null)
"""


class ReadStatements:
    """The SQL statements that read the entries of one root."""

    def __init__(self, schema: Schema, root: int) -> None:
        self._root = b"%d" % root
        at = "root = $1 and left(key, {head}) = left($2, {head}) and key = $2"
        ordered = " order by left(key, {head}), key limit $4"
        self._get = schema.query("get", f"select {_COLUMNS} from {{s}}.entries where {at}")
        self._get_many = schema.query(
            "get_many",
            f"select {', '.join('e.' + column for column in _COLUMNS.split(', '))} from unnest($2::text[]) k "
            "join {s}.entries e on e.root = $1 and left(e.key, {head}) = left(k, {head}) and e.key = k",
        )
        self._subtree = schema.query("subtree", f"select {_COLUMNS} from {{s}}.entries where {_RANGE}{ordered}")
        self._directly = schema.query(
            "directly",
            _VISITED + "select e.key, e.value, e.token, e.created, e.owner from visited v join {s}.entries e on "
            "e.root = $1 and left(e.key, {head}) = left(v.key, {head}) and e.key = v.key "
            "where position('/' in substr(v.key, $4)) = 0 order by v.key limit $5",
        )
        self._names = schema.query(
            "names", _VISITED + "select split_part(substr(key, $4), '/', 1) from visited where key is not null"
        )

    def select_key(self, key: str) -> Statement:
        """Return the statement that reads a key."""
        return Statement(self._get, (self._root, key.encode()))

    def select_keys(self, keys: Sequence[str]) -> Statement:
        """Return the statement that reads several keys. Its rows are in no particular order."""
        return Statement(self._get_many, (self._root, encode_text_array(keys)))

    def select_below(
        self, prefix: str, *, recursive: bool, limit: int | None, start_after: str | None
    ) -> builtins.list[Statement]:
        """Return the statements that list the entries below a prefix. See ``Backend.list`` for the arguments.

        Their rows, one statement after the other, are sorted by key. Together they may be more than the limit.
        """
        most = None if limit is None else b"%d" % limit
        found = []
        for low, high in list_subtree_ranges(prefix, start_after):
            if recursive:
                found.append(Statement(self._subtree, (self._root, low, high, most)))
            else:
                found.append(Statement(self._directly, (self._root, low, high, _position(prefix), most)))
        return found

    def select_names_below(self, prefix: str) -> builtins.list[Statement]:
        """Return the statements that read the names directly below a prefix. Their rows may contain a name twice."""
        return [
            Statement(self._names, (self._root, low, high, _position(prefix)))
            for low, high in list_subtree_ranges(prefix, None)
        ]

    def select_at_and_below(self, prefix: str) -> builtins.list[Statement]:
        """Return the statements that read the entry at a prefix and its whole subtree."""
        below = self.select_below(prefix, recursive=True, limit=None, start_after=None)
        return [self.select_key(prefix), *below] if prefix else below


def list_subtree_ranges(prefix: str, start_after: str | None) -> list[tuple[bytes, bytes]]:
    """Return the ranges of keys that make up a subtree, in order. At the root they exclude reserved keys.

    Args:
        prefix: The key at the top of the subtree.
        start_after: Exclude this key and all keys that sort before it.
    Returns:
        The first key of each range, and the first key after it.
    """
    found = [(prefix + "/", prefix + "0")] if prefix else [("", "@"), ("A", _END)]
    first = "" if start_after is None else start_after + "!"
    return [(max(low, first).encode(), high.encode()) for low, high in found if first < high]


def _position(prefix: str) -> bytes:
    return b"%d" % (len(prefix) + 2 if prefix else 1)


def decode_entry(row: Row) -> Entry:
    """Decode a row of the entries table."""
    key, value, token, created, owner = row
    assert key is not None
    at = decode_number(token)
    return Entry(
        key.decode(),
        value or b"",
        VersionKey(at),
        at,
        decode_number(created),
        None if owner is None else owner.decode(),
    )


def decode_text(data: bytes | None) -> str:
    """Decode a text that the server has sent. NULL becomes ""."""
    return "" if data is None else data.decode()


class Read(PostgresCall):
    """A read call with one or more statements.

    Args:
        what: Description of the call for messages.
        deadline: Local clock time.
        statements: The statements.
        decode: Converts the rows of all statements to the result of the call.
    """

    def __init__(
        self, what: str, deadline: float, statements: Sequence[Statement], decode: Callable[[list[Row]], Any]
    ) -> None:
        super().__init__(what, deadline)
        self.statements = statements
        self._decode = decode

    def complete(self, answers: Sequence[list[Row]]) -> None:
        """Complete the call with the rows of its statements."""
        rows = answers[0] if len(answers) == 1 else [row for answer in answers for row in answer]
        try:
            resolve(self.future, self._decode(rows))
        except Exception as error:
            reject(self.future, error)


class ReadQueue(CallQueue):
    """The queue of the reads of one store. Reads are repeated until their deadline if the connection is lost."""

    def _make_calls(self, calls: list[PostgresCall]) -> None:
        reason: Exception | None = None
        while pending := self._fail_late_calls(calls, reason):
            try:
                reason = self._make_reads_once([call for call in pending if isinstance(call, Read)])
            except ConnectionBroken as error:
                reason = errors.choose_informative_error(reason, error)
                self._disconnect()
            except LatchworkError as error:
                for call in pending:
                    reject(call.future, error)
            except BaseException:
                self._disconnect()
                raise

    def _make_reads_once(self, pending: list[Read]) -> ServerError | None:
        """Make the pending reads once. Return the error because of which some were not answered, or None."""
        deadline = min(call.deadline for call in pending)
        connection = self._connected(deadline)
        answers = iter(connection.run([each for call in pending for each in call.statements], deadline))
        reason: ServerError | None = None
        for call in pending:
            own = [next(answers) for _ in call.statements]
            refused = next((each for each in own if isinstance(each, ServerError)), None)
            if refused is None:
                call.complete([each for each in own if not isinstance(each, ServerError)])
            elif refused.is_transient:
                reason = refused
            else:
                reject(call.future, errors.translate_error(refused, call.what))
        if reason is not None:
            if reason.ends_connection:
                self._disconnect()
            self._connector.clock.wait(self._connector.closing, RETRY_S)
        return reason
