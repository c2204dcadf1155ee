"""A function that runs once in the cluster under a name. All processes get its result.

Keys:   <name>/outcome         how it ended: a line of JSON, then the result; not bound to a session
        <name>/starts          how often it was started, as JSON
        <name>/queue/t-<nonce> one ticket per runner and waiter, in order of arrival
Runner: the oldest ticket. It writes the outcome in one transaction with its ticket's fence, so one of all runners has
        written the outcome. The others watch the outcome and the ticket before their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing, suppress

from msgspec import Struct

from latchwork._base.decoding import Count, Decoder, Whole, encode
from latchwork._base.execution_context import PerCaller
from latchwork._base.text import message, reason
from latchwork._base.validation import check_store, deferred_result_kind
from latchwork.errors import (
    BadRecord,
    Conflict,
    LatchworkError,
    LockLost,
    OnceFailed,
    OutcomeUnknown,
    OwnershipLost,
    SessionLost,
    Unavailable,
    ValueTooLarge,
    WaitTimeout,
)
from latchwork.primitives.fair.tickets import QueuePosition, Ticket, TicketQueue, wait_for_turn
from latchwork.primitives.queue.items import MAX_VALUE_BYTES
from latchwork.primitives.waiting.arguments import check_integer, check_name
from latchwork.primitives.waiting.closable import Closable
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.ownership import MARGIN_PART, GuardedWork, Ownership, check_function
from latchwork.primitives.waiting.waiter import Waiter, WaiterRegistry
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking, call_user_function
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Absent, At, Create, Entry, Put

_log = logging.getLogger(__name__)

#: Seconds to go on trying to record an outcome while the server cannot be reached.
_RECORD_S = 60.0
_MOST_WHY = 10_000


class StartCount(Struct, frozen=True):
    """The stored number of times that the function was started.

    Attributes:
        starts: The number of starts.
        nonce: The unique name of the last ticket that started it.
    """

    starts: Count
    nonce: str = ""


class OnceOutcome(Struct, frozen=True):
    """The stored outcome of the function. In the stored value, the result follows after this record.

    Attributes:
        ok: Whether the function succeeded.
        kind: Type of the exception after a failure.
        why: Message of the exception after a failure.
        host: Host name of the process that ran it.
        pid: ID of that process.
    """

    ok: bool
    kind: str = ""
    why: str = "no reason was given"
    host: str = "?"
    pid: Whole = 0


_STARTS: Decoder[StartCount] = Decoder(StartCount, "a number of starts", "reset it, or delete the key")
_OUTCOME: Decoder[OnceOutcome] = Decoder(OnceOutcome, "an outcome")


class Once(Closable):
    """A function that runs once in the cluster: ``Once(store, "migrate-7").run(migrate)`` runs ``migrate`` in one
    process.

    All other processes get its result. Exactly one outcome is recorded, a result or a failure, and it stays until
    ``reset``. The function may run again if its process dies, is stopped or loses its session before the outcome is
    recorded. Use ``work.fence`` for writes that must happen once. Construction does no I/O. Thread-safe, and shared by
    processes.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the outcome.
        max_starts: After so many processes died or lost their sessions while they ran the function, it is recorded as
            failed.
        session: The session of our ticket, which the caller closes. None uses the store's primary session.
        label: The name of this client, shown to others.
    """

    def __init__(
        self, store: Store, name: str, *, max_starts: int = 3, session: Session | None = None, label: str = ""
    ) -> None:
        check_store(store, "Once")
        self.name = check_name(name, "once")
        if not check_integer(max_starts, "max_starts") >= 1:
            raise ValueError(f"max_starts must be at least 1, not {max_starts!r}")
        self._what = f"once {name!r}"
        self._store = store
        self._most = max_starts
        self._waits = WaiterRegistry(store, self._what, session)
        self._queue = TicketQueue(store, f"{name}/queue", self._what, label)
        self._running = PerCaller()
        self._outcome_key = f"{name}/outcome"
        self._starts_key = f"{name}/starts"

    def __repr__(self) -> str:
        return f"<Once {self.name!r}>"

    @blocking
    async def run(self, fn: Callable[[GuardedWork], bytes | None], *, timeout_s: float | None = None) -> bytes:
        """Run the function if no process has run it, or wait for another process that runs it. Return its result.

        If the function ends after ``work`` was stopped, it may be half done, so nothing is recorded. It runs again here
        if our session is renewed after all, which does not count as another start. Otherwise another process runs it.

        Args:
            fn: Called as ``fn(work)`` in this thread, by one process at a time as long as it stops in time. Returns up
                to 990,000 bytes, or None.
            timeout_s: Seconds to wait for others and for the server. None waits forever. The function itself may take
                longer.
        Returns:
            The recorded result, of this process or another one.
        Raises:
            OnceFailed: It failed, now or earlier, in this process or another one. The message has the reason. In the
                process that ran it, the exception is the cause.
            WaitTimeout: Another process still runs it.
            LockLost: It ran here, but our session ended before an outcome was recorded. Another process runs it again.
            SessionLost: Our session ended while waiting.
            OutcomeUnknown: It ran here, and it is unknown whether its outcome was recorded. Call again.
            Unavailable: The server could not be reached in time.
            Closed, ForkedProcess: As for every primitive. Also if the function was stopped and this object was closed.
            LatchworkError: The call is inside a callback, or inside the function itself.
            TypeError: The function does not take one argument, is async or a generator, and was not called; or it
                returned neither bytes nor None. Nothing is recorded.
        """
        check_function(fn, self._what)
        if self._running.values.get("here", False):
            raise LatchworkError(f"{self._what} is being run by this thread; its function cannot wait for itself")
        deadline = Deadline(self._store.clock, timeout_s)
        while True:
            async with self._waits.start(deadline.left_s()) as (waiter, _):
                entry = await self._wait_for_outcome(fn, waiter, deadline)
                if entry is not None:
                    return _decode_result(entry, self._what)
                self._waits.raise_if_ended(waiter)
            if deadline.has_passed:
                runner = await self._queue.describe_first()
                raise WaitTimeout(f"{self._what} is still being run by {runner}; wait longer, or check that process")

    async def _wait_for_outcome(
        self, fn: Callable[[GuardedWork], bytes | None], waiter: Waiter, deadline: Deadline
    ) -> Entry | None:
        """Wait for the outcome, and run the function if it is our turn.

        Returns:
            The entry of the outcome. None after the timeout, or if the outcome was deleted again at once.
        """
        entry = await waiter.keep_trying(self._outcome, deadline)
        if entry is not None:
            return entry
        position = await self._await_turn(waiter, deadline)
        try:
            entry = await waiter.keep_trying(self._outcome, deadline)
            return await self._run_and_record(fn, position) if entry is None and position is not None else entry
        finally:
            if position is not None:
                await self._queue.leave(position)

    @blocking
    async def outcome(self) -> bytes | None:
        """Read the result without running the function. Return None if there is no outcome yet.

        Raises:
            OnceFailed: The function failed.
        """
        self._waits.ensure_usable()
        entry = await self._outcome()
        return None if entry is None else _decode_result(entry, self._what)

    @blocking
    async def runner(self) -> Ticket | None:
        """Return the client that is running the function, as its ``Ticket`` in the queue describes it, or None."""
        return next(iter(await self._queue.tickets()), None)

    @blocking
    async def waiters(self) -> list[Ticket]:
        """Return the clients that wait for the outcome, in the order in which they would run the function.

        Returns:
            One ``Ticket`` per client, which describes the client.
        """
        return (await self._queue.tickets())[1:]

    @blocking
    async def reset(self) -> None:
        """Delete the outcome, so that the next call of ``run`` runs the function again.

        Clients that are waiting may get the old outcome or the new one.
        """
        self._waits.ensure_usable()
        await ask(self._store.delete, self._starts_key)
        await ask(self._store.delete, self._outcome_key)

    def close(self) -> None:
        """Make all waiting calls of this object raise ``Closed``. Thread-safe and idempotent."""
        self._waits.close()

    # Waiting

    async def _outcome(self) -> Entry | None:
        entry: Entry | None = await ask(self._store.get, self._outcome_key)
        return entry

    async def _await_turn(self, waiter: Waiter, deadline: Deadline) -> QueuePosition | None:
        """Wait until this client is first in the queue, or until another client has stored the outcome.

        Returns:
            The position of this client. None if there is an outcome, or after the timeout.
        """

        def on_outcome(batch: Batch) -> None:
            if any(change.entry is not None for change in batch):
                turn.cancel()  # not the other waiter, which still has to read the outcome

        with self._waits.open_waiter(waiter.session) as turn, self._store.watch(self._outcome_key) as watch:
            watch.subscribe(on_outcome)
            try:
                return await wait_for_turn(self._queue, turn, deadline)
            except (Unavailable, OutcomeUnknown):
                if turn.is_cancelled and not waiter.is_cancelled:
                    return None  # we could not even queue, and need not any more
                raise

    # Running

    async def _run_and_record(self, fn: Callable[[GuardedWork], bytes | None], position: QueuePosition) -> Entry:
        """Run the function until it ends without being stopped, and record its outcome. The caller is first in the
        queue.

        Args:
            fn: The function.
            position: Our position in the queue.
        Returns:
            The entry of the recorded outcome.
        """
        deadline = Deadline(self._store.clock, _RECORD_S)
        with closing(Waiter(self._store, position.session)) as waiter:
            starts = await waiter.keep_trying(lambda: self._count_start(position), deadline)
        if starts > self._most:
            return await self._store_outcome(
                position, self._failure("", f"whoever ran it vanished, {self._most} times")
            )
        while True:
            entry = await self._run_function(fn, position) or await self._wait_after_stop(position)
            if entry is not None:
                return entry
            self._waits.ensure_usable()

    async def _run_function(self, fn: Callable[[GuardedWork], bytes | None], position: QueuePosition) -> Entry | None:
        """Run the function once and record its outcome.

        Args:
            fn: The function.
            position: Our position in the queue, which is the first one.
        Returns:
            The entry of the recorded outcome. None if the function was stopped before it ended.
        """
        ownership = Ownership.for_session(self._what, position.fence, position.session, self._store.clock)
        try:
            value = await self._call_function(fn, ownership.guard_work())
        except _EndedAfterStop as stop:
            _log.info("%s was asked to stop and has ended: %s", self._what, stop.__cause__ or "by returning")
            return None
        except _WrongResult as error:
            await self._uncount_start(position)
            raise TypeError(str(error)) from None
        except Exception as error:
            failure = self._failure(type(error).__name__, message(error))
            entry = await self._store_outcome(position, failure)
            if entry.value != failure:  # our session had ended: others have run it meanwhile, and theirs counts
                return entry
            told = f"{self._what} has failed here: {reason(error)}; reset it to run it again"
            raise OnceFailed(told) from error
        finally:
            ownership.end()
        return await self._store_outcome(position, self._encode_outcome({"ok": True}, value))

    async def _wait_after_stop(self, position: QueuePosition) -> Entry | None:
        """After the function was stopped, wait until our session was renewed or has ended.

        Returns:
            None if the session was renewed, so that the function must run again. Otherwise the entry of the outcome
                that another client has recorded.
        Raises:
            LockLost: The session ended, and there is no outcome.
        """
        session, deadline = position.session, Deadline(self._store.clock, _RECORD_S)
        with closing(Waiter(self._store, session)) as waiter:
            while 0.0 < (left_s := session.remaining_s()) <= session.ttl_s * MARGIN_PART:
                await waiter.pause(left_s)
            if left_s > 0.0:
                return None
            try:
                entry = await waiter.keep_trying(self._outcome, deadline)
            except SessionLost as error:
                raise self._lost() from error
        if entry is None:
            raise self._lost()
        return entry

    async def _call_function(self, fn: Callable[[GuardedWork], bytes | None], work: GuardedWork) -> bytes:
        own = self._running.values
        own["here"] = True
        try:
            work.start_watching()
            value: object = await call_user_function(fn, work)
        except Exception as error:
            if work.is_stopped:
                raise _EndedAfterStop from error
            if isinstance(error, OwnershipLost):
                raise RuntimeError(f"something else was lost: {error}") from error  # noqa: TRY004 - not about types
            raise
        finally:
            own["here"] = False
            await work.stop_watching()
        if work.is_stopped:
            raise _EndedAfterStop
        if value is None:
            return b""
        if not isinstance(value, bytes):
            late = deferred_result_kind(value)
            kind = type(value).__name__ if late is None else f"{late}, which nobody runs"
            raise _WrongResult(
                f"the function of {self._what} must return bytes or None, not {kind}; it is not recorded"
            )
        if len(value) > MAX_VALUE_BYTES:
            raise ValueTooLarge(f"the result of {self._what} has {len(value):,} bytes, at most {MAX_VALUE_BYTES:,} fit")
        return value

    async def _count_start(self, position: QueuePosition) -> int:
        """Count this start of the function exactly once. Return the total number of starts."""
        while True:
            entry = await ask(self._store.get, self._starts_key)
            known = StartCount(0) if entry is None else _STARTS.decode_entry(entry)
            starts = known.starts
            if known.nonce == position.nonce:
                return starts
            check = Absent(self._starts_key) if entry is None else At(entry)
            more = Put(self._starts_key, encode(StartCount(starts + 1, position.nonce)))
            try:
                await ask(self._store.commit, [position.fence, check], [more])
            except Conflict as error:
                await self._raise_if_lost(position, error)
            else:
                return starts + 1

    async def _uncount_start(self, position: QueuePosition) -> None:
        """Subtract this start from the stored number, because the function returned an invalid result and nothing is
        recorded.
        """
        entry = await ask(self._store.get, self._starts_key)
        known = None if entry is None else _STARTS.find(entry.value)
        if entry is not None and known is not None and known.nonce == position.nonce and known.starts:
            less = Put(self._starts_key, encode(StartCount(known.starts - 1)))
            with suppress(LatchworkError):  # it counts, and that is all
                await ask(self._store.commit, [position.fence, At(entry)], [less])

    async def _store_outcome(self, position: QueuePosition, body: bytes) -> Entry:
        """Store the outcome of the function, unless an outcome is stored already. Return the stored entry.

        Args:
            position: Our position in the queue. We must be first.
            body: The encoded outcome.
        """
        deadline = Deadline(self._store.clock, _RECORD_S)
        with closing(Waiter(self._store, position.session)) as waiter:
            try:
                return await waiter.keep_trying(lambda: self._create(position, body), deadline)
            except SessionLost as error:
                raise self._lost() from error

    async def _create(self, position: QueuePosition, body: bytes) -> Entry:
        while True:
            try:
                done = await ask(self._store.commit, [position.fence], [Create(self._outcome_key, body)])
                return done.entries[0]
            except Conflict as error:
                there = await self._outcome()
                if there is not None:  # ours, if an answer was lost; or that of another, who ran it after our session
                    return there
                await self._raise_if_lost(position, error)

    async def _raise_if_lost(self, position: QueuePosition, error: Conflict) -> None:
        if position.session.remaining_s() <= 0.0 or await ask(self._store.get, position.ticket.key) is None:
            raise self._lost() from error

    def _lost(self) -> LockLost:
        return LockLost(f"{self._what} ran here, but our session ended before the outcome was recorded; others run it")

    def _failure(self, kind: str, why: str) -> bytes:
        return self._encode_outcome({"ok": False, "kind": kind, "why": why[:_MOST_WHY]}, b"")

    def _encode_outcome(self, head: dict[str, object], value: bytes) -> bytes:
        return encode({**head, **self._queue.creator}) + b"\n" + value


class _WrongResult(Exception):
    """Raised when the function returned an invalid result."""


class _EndedAfterStop(Exception):
    """Raised when the function ended with an error after it was stopped. The error is the cause."""


def _decode_result(entry: Entry, what: str) -> bytes:
    head, _, value = entry.value.partition(b"\n")
    outcome = _OUTCOME.find(head)
    if outcome is None:
        raise BadRecord(f"key {entry.key!r} does not contain an outcome of {what}; reset it, or use another name")
    if outcome.ok:
        return value
    process = f"{outcome.host} (pid {outcome.pid})"
    kind = f"{outcome.kind}: " if outcome.kind else ""
    raise OnceFailed(f"{what} has failed on {process}: {kind}{outcome.why}; reset it to run it again")
