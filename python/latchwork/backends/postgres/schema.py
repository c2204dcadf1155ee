"""The tables and functions in the database, and how they are made.

    meta        one row: the format, and the timeline of the server as it was last seen
    roots       name to number
    entries     the keys. Only the first 1,000 characters are in the index: a row of an index must fit a third of a page
    changes     what was written last, in the order of the tokens: for watches, and to find out about lost answers
    sessions    their deadlines by the server's clock. No index on the deadline: a renewal then updates no index
    writers     one row for each open store that writes, with the timeline of the server. Without it, or on a server of
                another timeline, nothing of that store is written any more. The row of a killed process is deleted
                by the first store that begins to write a day later
    counters    one per parent of sequential keys, never removed
    tokens      the sequence of all tokens

A write takes the lock of its root before its token and keeps it to the end of its transaction, so tokens grow in the
order in which the writes become visible. Every write is one call of a function of ``schema.sql``: one round trip, and
nothing between the checks and the operations.
"""

from __future__ import annotations

from pathlib import Path

from latchwork.backends.base import MAX_OLDER
from latchwork.backends.postgres.connection import PostgresConnection, Query, Statement, decode_number, encode_text
from latchwork.backends.postgres.errors import (
    NO_NUMBER_LEFT,
    NOT_A_LEAF,
    ConnectionBroken,
    ServerError,
    translate_error,
)
from latchwork.errors import ConnectFailed

#: Raised by every incompatible change of the tables or the functions.
FORMAT = 1
#: Characters of a key that are in the index.
HEAD = 1000
#: A promoted standby may lack the last writes: its tokens go on so far behind the last one that it knows.
_TOKENS_SKIPPED = 1_000_000_000
#: First number of the advisory locks: of a root, and of the schema.
_ROOT_LOCK, _SCHEMA_LOCK = 1281848136, 1281848137
#: Younger changes are kept, however many there are; and so many are kept, however old.
KEPT_S, KEPT_CHANGES = 120, 20_000

# A session is alive until its deadline, and for a whole TTL after a start of the server: renewals are not flushed. A
# start in the future means that the clock was set back since.
_UNTIL = (
    "greatest(deadline, case when pg_postmaster_start_time() <= clock_timestamp() "
    "then pg_postmaster_start_time() + ttl_s * interval '1 second' end)"
)
_ALIVE = f"{_UNTIL} > clock_timestamp()"

_TIMELINE = "left(pg_walfile_name(pg_current_wal_lsn()), 8)"


class Schema:
    """The database schema of a store: its tables and functions, which are created if they do not exist."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._exists = self.query("exists", "select to_regclass('{s}.meta') is not null")
        self._register_root = self.query(
            "register_root",
            f"select format, timeline = {_TIMELINE}, (select id from {{s}}.roots where name = $1) from {{s}}.meta",
        )
        self._succeed = self.query("succeed", "select {s}.succeed()")
        self._make_root = self.query("make_root", "select {s}.make_root($1)")

    def query(self, name: str, sql: str, *, binary: tuple[int, ...] = ()) -> Query:
        """Return a query. In its text, ``{s}`` is replaced by the schema name, and ``{head}`` by the number of indexed
        characters of a key.

        Args:
            name: Unique name of the prepared statement.
            sql: The text.
            binary: Numbers of the parameters that are sent in binary format.
        """
        return Query(name.encode(), sql.format(s=self.name, head=HEAD).encode(), frozenset(binary))

    def prepare_connection(self, connection: PostgresConnection, root: str, server_name: str, deadline: float) -> int:
        """Prepare a new connection: create the schema and the root if they do not exist, and detect a changed server.

        Args:
            connection: The connection.
            root: The name of the root.
            server_name: Name of the server, for messages.
            deadline: Local clock time.
        Returns:
            The number of the root.
        Raises:
            ConnectFailed: The schema has a format that this version does not support.
            PermissionDenied: The account cannot use the schema.
            ConnectionBroken: The connection was lost.
        """

        def ask(query: Query, *params: str) -> list[tuple[bytes | None, ...]]:
            (answer,) = connection.run([Statement(query, tuple(map(encode_text, params)))], deadline)
            if isinstance(answer, ServerError):
                if answer.is_transient:
                    raise ConnectionBroken(str(answer)) from answer
                raise translate_error(answer, f"use the schema {self.name} of {server_name}") from answer
            return answer

        if ask(self._exists)[0][0] != b"\x01":
            self._make(connection, server_name, deadline)
        form, is_known, number_of = ask(self._register_root, root)[0]
        if decode_number(form) != FORMAT:
            raise ConnectFailed(
                f"the schema {self.name} of {server_name} has format {decode_number(form)}, and this version of "
                f"latchwork knows {FORMAT}; name another schema in the URL, or use the version that made it"
            )
        if is_known != b"\x01":
            ask(self._succeed)
        return decode_number(number_of if number_of is not None else ask(self._make_root, root)[0][0])

    def _make(self, connection: PostgresConnection, server_name: str, deadline: float) -> None:
        """Create the schema in one transaction, unless another client is just doing so."""
        body = (
            Path(__file__)
            .with_name("schema.sql")
            .read_text(encoding="utf-8")
            .format(
                s=self.name,
                head=HEAD,
                alive=_ALIVE,
                until=_UNTIL,
                format=FORMAT,
                timeline=_TIMELINE,
                root_lock=_ROOT_LOCK,
                not_a_leaf=NOT_A_LEAF,
                no_number_left=NO_NUMBER_LEFT,
                most_older=MAX_OLDER,
                tokens_skipped=_TOKENS_SKIPPED,
            )
        )
        # Not to_regclass: it may answer from a cache that is older than the lock.
        once = (
            f"do $make$ begin perform pg_advisory_xact_lock({_SCHEMA_LOCK}, 0); "
            "if not exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            f"where n.nspname = '{self.name}' and c.relname = 'meta') then "
            f"execute $all${body}$all$; end if; end $make$"
        )
        (answer,) = connection.run([Statement(Query(b"make", once.encode()))], deadline)
        if isinstance(answer, ServerError):
            raise translate_error(answer, f"make the schema {self.name} of {server_name}") from answer
