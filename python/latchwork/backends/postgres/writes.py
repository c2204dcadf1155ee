"""The queue of writes: many commits in one statement, and how the outcome of a write is found after its answer was
lost.

Every write contains the ID of its writer, which is the row of one open store in the table ``writers``, and a request ID
that is stored with its changes. When an answer was lost, the store replaces its writer by a new one, under the lock of
the root:

    the lost statement had the lock before   it has ended, and its changes are found by the request IDs
    it has not had the lock yet              its writer no longer exists, so it does nothing: it can be sent again

So before any later request of this store is answered, a lost write was applied or never will be. A write whose deadline
passes before the server can be asked is ``OutcomeUnknown``. Reads of the same store wait for the outcome, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence

from latchwork.backends.futures import reject, resolve
from latchwork.backends.out_of_space import OutOfSpaceLog
from latchwork.backends.postgres import errors
from latchwork.backends.postgres.call_queue import CallQueue, PostgresCall
from latchwork.backends.postgres.change_notifier import ChangeNotifier
from latchwork.backends.postgres.commits import (
    TREE_BATCH,
    PostgresCommit,
    RepeatableCall,
    TreeDeletion,
    Write,
    encode_commits,
    refusal_error,
)
from latchwork.backends.postgres.connection import (
    Answer,
    PostgresConnection,
    Row,
    Statement,
    decode_number,
    encode_number_array,
    encode_text,
    encode_text_array,
)
from latchwork.backends.postgres.errors import ConnectionBroken, ServerError
from latchwork.backends.postgres.schema import KEPT_CHANGES, KEPT_S
from latchwork.backends.postgres.store_connector import RETRY_S, StoreConnector
from latchwork.errors import LatchworkError, StoreFull

_BATCH_BYTES = 2_000_000
_BATCH_STEPS = 1_000
#: The changes of a request that was sent longer ago may have been forgotten.
_REMEMBERED_S = KEPT_S * 0.8
#: Changes that this store makes between two times at which it has old ones forgotten.
_TRIM_EVERY = KEPT_CHANGES // 4


class WriteBarrier(PostgresCall):
    """A call that completes when the outcome of every earlier write of this store is known."""


class NotifyStores(PostgresCall):
    """A call that completes when the other stores have been notified of this store's changes."""

    def __init__(self, deadline: float) -> None:
        super().__init__("notify other stores", deadline)


class WriteQueue(CallQueue):
    """The queue of the writes of one store, which are made in order.

    Args:
        connector: Opens the connections.
        name: The name of the thread.
        committed: Called after a transaction may have been committed.
        notices: Notifies other stores of changed keys.
    """

    def __init__(
        self, connector: StoreConnector, name: str, committed: Callable[[], None], notices: ChangeNotifier
    ) -> None:
        super().__init__(connector, name)
        self._committed = committed
        self._notices = notices
        self._space = OutOfSpaceLog(connector.server_name)
        self._writer = 0
        self._in_doubt: dict[int, Write] = {}
        self._seen = 0  # a token of this store; its later writes have greater ones
        self._untrimmed = 0
        query = connector.schema.query
        self._write = query(
            "write", f"select * from {{s}}.write({', '.join(f'${at}' for at in range(1, 15))})", binary=(13,)
        )
        self._tree = query("tree", "select {s}.delete_below($1, $2, $3, $4, $5)")
        self._supersede = query("supersede", "select * from {s}.supersede($1, $2, $3, $4, $5)")
        self._leave = query("leave", "select {s}.leave($1, $2, $3)")
        self._notify = query("notify", "select {s}.notify($1, $2)")
        self._trim = query("trim", "select {s}.trim($1, $2, $3)")

    @property
    def is_in_doubt(self) -> bool:
        """Whether the outcome of an earlier write is unknown, so that the result of a read might still change."""
        return bool(self._in_doubt)

    def make_close_call(self, deadline: float, sessions: Sequence[str]) -> RepeatableCall:
        """Return the call that ends sessions and removes this store from the table of writers, when the store is
        closed.

        Args:
            deadline: Local clock time.
            sessions: IDs of the sessions to end.
        """
        params = (b"%d" % self._connector.root, b"%d" % self._writer, encode_text_array(sessions))
        return RepeatableCall("close the store", deadline, Statement(self._leave, params), lambda _: None, writes=True)

    # Private: in the thread whose turn it is.

    def _take_next_calls(self) -> list[PostgresCall]:
        calls: list[PostgresCall] = []
        size = steps = 0
        while self._queue and steps < _BATCH_STEPS and size < _BATCH_BYTES:
            call = self._queue.popleft()
            calls.append(call)
            if isinstance(call, PostgresCommit):
                size += call.size
                steps += call.steps
        return calls

    def _make_calls(self, calls: list[PostgresCall]) -> None:
        reason: Exception | None = None
        while pending := self._fail_late_calls(calls, reason):
            deadline = min(call.deadline for call in pending)
            try:
                connection = self._connect_and_resolve(deadline)
                pending = [call for call in pending if not call.future.done()]
                reason = self._send(connection, pending, deadline)
            except ConnectionBroken as error:
                reason = errors.choose_informative_error(reason, error)
                self._fail_pending(pending, error)
            except LatchworkError as error:
                for call in pending:
                    reject(
                        call.future, call.timeout_error(error) if isinstance(call, Write) and call.request else error
                    )
            except BaseException:
                self._disconnect()  # what was sent is in doubt
                raise

    def _fail_pending(self, pending: Collection[PostgresCall], error: ConnectionBroken) -> None:
        """Close a broken connection, and fail the calls that must not be sent twice."""
        self._disconnect()
        self._notices.add(None)  # one that was on its way may be lost
        for call in pending:
            if isinstance(call, RepeatableCall) and call.once:
                reject(call.future, call.timeout_error(error))

    def _connect_and_resolve(self, deadline: float) -> PostgresConnection:
        """Return an open connection, after the outcome of every earlier write was found out."""
        connection = self._connected(deadline)
        if self._writer and not self._in_doubt:
            return connection
        after = secrets.randbits(62) or 1
        doubts = dict(self._in_doubt)
        numbers = [self._connector.root, self._writer, after, self._seen]
        params = (*(b"%d" % each for each in numbers), encode_number_array(list(doubts)))
        (answer,) = connection.run([Statement(self._supersede, params)], deadline)
        if isinstance(answer, ServerError):
            self._disconnect()
            if answer.is_transient:
                raise ConnectionBroken(str(answer)) from answer
            raise errors.translate_error(answer, "begin to write")
        self._writer = after
        self._in_doubt.clear()
        rows: dict[int, list[Row]] = {}
        for row in answer:
            rows.setdefault(decode_number(row[0]), []).append(row)
        for request, write in doubts.items():
            self._resolve_outcome(write, rows.get(request, ()))
        if rows:
            self._committed()
        return connection

    def _resolve_outcome(self, write: Write, rows: Sequence[Row]) -> None:
        """Complete a write whose outcome was unknown, if it was applied. Otherwise it stays in the queue and is sent
        again.

        Args:
            write: The write.
            rows: The changes that the server has stored for the write. Empty if it was not applied.
        """
        if rows:
            write.record_applied(rows)
        elif self._connector.clock.now() - write.sent_at > _REMEMBERED_S:
            reject(
                write.future,
                write.timeout_error(ConnectionBroken("it is not remembered any more whether it was applied")),
            )
        write.request = 0

    def _send(
        self, connection: PostgresConnection, pending: Sequence[PostgresCall], deadline: float
    ) -> ServerError | None:
        """Send the pending calls, and complete the calls that were answered.

        Returns:
            The error because of which some calls were not completed, or None.
        """
        batches = self._make_statements(pending)
        writes = self._queue_notifications(pending)
        extra = self._make_unanswered_statements()
        if not batches and not extra:
            return None
        answers = connection.run([*(statement for statement, _ in batches), *extra], deadline, unanswered=len(extra))
        self._in_doubt.clear()
        refused = [self._complete_calls(calls, answer) for (_, calls), answer in zip(batches, answers, strict=True)]
        if writes:
            self._committed()
        reason = next((error for error in refused if error is not None), None)
        if reason is not None:
            if reason.ends_connection:
                self._disconnect()
            self._connector.clock.wait(self._connector.closing, RETRY_S)
        return reason

    def _make_statements(self, pending: Sequence[PostgresCall]) -> list[tuple[Statement, Sequence[PostgresCall]]]:
        """Return the SQL statements for the pending calls, each with the calls that it completes.

        The outcome of calls that change data is unknown from now until they are answered.
        """
        now = self._connector.clock.now()
        for call in pending:
            if isinstance(call, Write) and call.changes:
                call.request, call.sent_at = secrets.randbits(62) or 1, now
                self._in_doubt[call.request] = call
        root, writer = b"%d" % self._connector.root, b"%d" % self._writer
        commits = [call for call in pending if isinstance(call, PostgresCommit)]
        batches: list[tuple[Statement, Sequence[PostgresCall]]] = []
        if commits:
            batches.append((Statement(self._write, (root, writer, *encode_commits(commits))), commits))
        for call in pending:
            if isinstance(call, TreeDeletion):
                params = (root, writer, b"%d" % call.request, call.prefix.encode(), b"%d" % TREE_BATCH)
                batches.append((Statement(self._tree, params), [call]))
            elif isinstance(call, RepeatableCall):
                call.sent()
                batches.append((call.statement, [call]))
            elif isinstance(call, WriteBarrier | NotifyStores):
                resolve(call.future, None)
        return batches

    def _queue_notifications(self, pending: Sequence[PostgresCall]) -> bool:
        """Add the keys that the pending calls write to the next notification. Return whether there are any."""
        writes = False
        for call in pending:
            if isinstance(call, PostgresCommit) and call.changes:
                self._notices.add(None if call.kind == "n" else [op.key for op in call.ops])
            elif isinstance(call, TreeDeletion) or (isinstance(call, RepeatableCall) and call.writes):
                self._notices.add(None)
            else:
                continue
            writes = True
        return writes

    def _make_unanswered_statements(self) -> list[Statement]:
        """Return the SQL statements that are sent after the writes, and for whose answers the store does not wait."""
        extra = []
        if self._untrimmed >= _TRIM_EVERY:
            self._untrimmed = 0
            params = (b"%d" % self._connector.root, b"%d" % KEPT_CHANGES, b"%d" % KEPT_S)
            extra.append(Statement(self._trim, params))
        notification = None if self._connector.is_pooled else self._notices.take_payload()
        if notification is not None:
            extra.append(Statement(self._notify, (encode_text(self._connector.channel_name), notification)))
        return extra

    def _complete_calls(self, calls: Sequence[PostgresCall], answer: Answer) -> ServerError | None:
        """Complete the calls of a statement with its answer.

        Returns:
            The error because of which the calls must be sent again, or None.
        """
        for call in calls:
            if isinstance(call, Write):
                call.request = 0
        if isinstance(answer, list):
            self._end(calls, answer)
        elif answer.is_transient:
            return answer
        elif len(calls) == 1:
            error = refusal_error(answer, calls[0].what)
            if isinstance(error, StoreFull):
                self._space.record_refusal(error)
            reject(calls[0].future, error)
        else:  # one of them was refused, and all with it
            for call in calls:
                self._make_calls([call])
        return None

    def _end(self, calls: Sequence[PostgresCall], rows: list[Row]) -> None:
        first = calls[0]
        if isinstance(first, RepeatableCall):
            first.complete(rows)
        elif isinstance(first, TreeDeletion):
            if rows[0][0] is None:  # superseded: to be sent by another writer
                self._writer = 0
            else:
                self._untrimmed += decode_number(rows[0][0])
                first.add(decode_number(rows[0][0]))
        elif rows and rows[0][1] == b"s":
            self._writer = 0
        else:
            self._untrimmed += len(rows)
            own: list[list[Row]] = [[] for _ in calls]
            for row in rows:
                own[decode_number(row[0]) - 1].append(row)
                if row[1] in {b"w", b"o", b"d"}:
                    self._seen = max(self._seen, decode_number(row[3]))
            if self._space.is_full and any(row[1] in {b"w", b"o"} for row in rows):
                self._space.record_write()
            for call, its in zip(calls, own, strict=True):
                assert isinstance(call, PostgresCommit)
                call.complete(its)
