"""A function that is run once in the cluster under a name; everybody has its result.

Keys:   <name>/outcome         how it ended: a line of JSON, then the result; bound to no session
        <name>/starts          how often it was started, as JSON
        <name>/queue/t-<nonce> one ticket for who runs it and for each who would, in order of arrival
Runner: the oldest ticket. It writes the outcome in one transaction with its ticket's fence, so of
        all that ever ran it one has written the outcome. The others watch the outcome and the ticket before their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing, suppress

from msgspec import Struct

from latchwork._base.decoding import Count, Decoder, Whole, encode
from latchwork.callers import PerCaller
from latchwork.checks import check_store, late_result
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
from latchwork.primitives.fair.tickets import QueuePosition, Ticket, TicketQueue, take_turn
from latchwork.primitives.queue.items import MAX_VALUE_BYTES
from latchwork.primitives.waiting.common import Closes, Patience, check_name, check_whole
from latchwork.primitives.waiting.waits import Waiter, Waits
from latchwork.primitives.waiting.work import MARGIN_PART, Ownership, Work, check_function
from latchwork.store.session import Session
from latchwork.store.steps import ask, called, driven
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Absent, At, Create, Entry, Put
from latchwork.words import message, reason

_log = logging.getLogger(__name__)

#: Seconds to go on trying to record an outcome while the server cannot be reached.
_RECORD_S = 60.0
_MOST_WHY = 10_000


class StartCount(Struct, frozen=True):
    """How often the function was started, and the nonce of the ticket that started it the last time."""

    starts: Count
    nonce: str = ""


class OnceOutcome(Struct, frozen=True):
    """How it ended, before the result: of a failure why, and where."""

    ok: bool
    kind: str = ""
    why: str = "no reason was given"
    host: str = "?"
    pid: Whole = 0


_STARTS: Decoder[StartCount] = Decoder(StartCount, "a number of starts", "reset it, or delete the key")
_OUTCOME: Decoder[OnceOutcome] = Decoder(OnceOutcome, "an outcome")


class Once(Closes):
    """``Once(store, "migrate-7").run(migrate)``: in all processes, ``migrate`` runs once, and all get what it returned.

    Exactly one outcome is recorded, result or failure, and it stays until ``reset``. The function itself may run again
    when its runner dies, is told to stop, or loses its session, before the outcome is recorded: writes that must happen
    once belong under ``work.fence``. Construction does no I/O. Safe to share between threads and processes.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which the outcome is.
        max_starts: a function whose runner has died or lost its session so often is recorded as failed.
        session: the session to live by; it stays the caller's. None takes the store's primary session.
        label: what others see when they ask who runs it.
    """

    def __init__(
        self, store: Store, name: str, *, max_starts: int = 3, session: Session | None = None, label: str = ""
    ) -> None:
        check_store(store, "Once")
        self.name = check_name(name, "once")
        if not check_whole(max_starts, "max_starts") >= 1:
            raise ValueError(f"max_starts must be at least 1, not {max_starts!r}")
        self._what = f"once {name!r}"
        self._store = store
        self._most = max_starts
        self._waits = Waits(store, self._what, session)
        self._queue = TicketQueue(store, f"{name}/queue", self._what, label)
        self._running = PerCaller()
        self._outcome_key = f"{name}/outcome"
        self._starts_key = f"{name}/starts"

    def __repr__(self) -> str:
        return f"<Once {self.name!r}>"

    @driven
    async def run(self, fn: Callable[[Work], bytes | None], *, timeout_s: float | None = None) -> bytes:
        """Run the function if nobody has; otherwise wait for its outcome.

        What a function does after ``work`` has told it to stop may be half done: if it ends then, whether it returns or
        raises, that is no outcome. It is run again here when our session is renewed after all, which is no new start;
        else by another.

        Args:
            fn: called as ``fn(work)`` in this thread, by one process at a time as long as it stops when ``work`` tells
                it to. Returns up to 990,000 bytes, None for none.
            timeout_s: seconds to wait for others, and for the server; None waits for ever. The function itself may take
                longer.
        Returns:
            What it returned, here or elsewhere: what is recorded.
        Raises:
            OnceFailed: it failed, now or earlier, here or elsewhere; the message has the reason. In the process that
                ran it, the exception itself is the cause.
            WaitTimeout: another still runs it.
            LockLost: it ran here, but our session ended before an outcome was recorded: another runs it again.
            SessionLost: our session ended while waiting.
            OutcomeUnknown: it ran here, and whether its outcome was recorded could not be found out; ask again.
            Unavailable: the server could not be reached in that time.
            Closed, ForkedProcess: as for every primitive; also when it was told to stop, and was closed meanwhile.
            LatchworkError: this is a callback, or the function itself asks for its own outcome.
            TypeError: the function does not take one argument, is async or a generator, and was not called; or it
                returned something else than bytes or None. Nothing is recorded: whoever has the right one runs it.
        """
        check_function(fn, self._what)
        if self._running.own.get("here", False):
            raise LatchworkError(f"{self._what} is run by this very thread; its function cannot wait for itself")
        patience = Patience(self._store.clock, timeout_s)
        while True:
            async with self._waits.begin(patience.left_s()) as (waiter, _):
                entry = await self._have_outcome(fn, waiter, patience)
                if entry is not None:
                    return _result(entry, self._what)
                self._waits.refuse_ended(waiter)
            if patience.is_over:
                runner = await self._queue.first_in_words()
                raise WaitTimeout(f"{self._what} is still run by {runner}; wait longer, or ask them")

    async def _have_outcome(
        self, fn: Callable[[Work], bytes | None], waiter: Waiter, patience: Patience
    ) -> Entry | None:
        """The outcome, ours or another's; None when time is over, or it was reset at once."""
        entry = await waiter.keep_trying(self._outcome, patience)
        if entry is not None:
            return entry
        place = await self._await_turn(waiter, patience)
        try:
            entry = await waiter.keep_trying(self._outcome, patience)
            return await self._run(fn, place) if entry is None and place is not None else entry
        finally:
            if place is not None:
                await self._queue.leave(place)

    @driven
    async def outcome(self) -> bytes | None:
        """The result, None while there is none. Runs nothing.

        Raises:
            OnceFailed: it failed.
        """
        self._waits.check()
        entry = await self._outcome()
        return None if entry is None else _result(entry, self._what)

    @driven
    async def runner(self) -> Ticket | None:
        """Who runs it now, None if nobody does."""
        return next(iter(await self._queue.tickets()), None)

    @driven
    async def waiters(self) -> list[Ticket]:
        """Who would run it next, in order."""
        return (await self._queue.tickets())[1:]

    @driven
    async def reset(self) -> None:
        """Forget the outcome: the next ``run`` runs it anew. Who waits now may get the old or the new outcome."""
        self._waits.check()
        await ask(self._store.delete, self._starts_key)
        await ask(self._store.delete, self._outcome_key)

    def close(self) -> None:
        """Call off who waits through this object. From any thread; twice is fine."""
        self._waits.close()

    # Waiting

    async def _outcome(self) -> Entry | None:
        entry: Entry | None = await ask(self._store.get, self._outcome_key)
        return entry

    async def _await_turn(self, waiter: Waiter, patience: Patience) -> QueuePosition | None:
        """Our ticket once nobody is ahead of us; None when there is an outcome first, or no more time."""

        def look(batch: Batch) -> None:
            if any(change.entry is not None for change in batch):
                turn.call_off()  # not the other waiter: that one has the outcome to read yet

        with self._waits.waiter(waiter.session) as turn, self._store.watch(self._outcome_key) as watch:
            watch.subscribe(look)
            try:
                return await take_turn(self._queue, turn, patience)
            except (Unavailable, OutcomeUnknown):
                if turn.is_off and not waiter.is_off:
                    return None  # we could not even queue, and need not any more
                raise

    # Running

    async def _run(self, fn: Callable[[Work], bytes | None], place: QueuePosition) -> Entry:
        """As the first in the queue, seeing no outcome, make one."""
        patience = Patience(self._store.clock, _RECORD_S)
        with closing(Waiter(self._store, place.session)) as waiter:
            starts = await waiter.keep_trying(lambda: self._count_start(place), patience)
        if starts > self._most:
            return await self._record(place, self._failure("", f"whoever ran it vanished, {self._most} times"))
        while True:
            entry = await self._run_once(fn, place) or await self._after_stop(place)
            if entry is not None:
                return entry
            self._waits.check()

    async def _run_once(self, fn: Callable[[Work], bytes | None], place: QueuePosition) -> Entry | None:
        """Run it, and record how it ended; None when it was told to stop before: its end is no outcome."""
        ownership = Ownership.by_session(self._what, place.fence, place.session, self._store.clock)
        try:
            value = await self._called(fn, ownership.guard_work())
        except _ToldToStop as stop:
            _log.info("%s was told to stop, and has ended: %s", self._what, stop.__cause__ or "by returning")
            return None
        except _WrongResult as error:
            await self._forget_start(place)
            raise TypeError(str(error)) from None
        except Exception as error:
            failure = self._failure(type(error).__name__, message(error))
            entry = await self._record(place, failure)
            if entry.value != failure:  # our session had ended: others have run it meanwhile, and theirs counts
                return entry
            told = f"{self._what} has failed here: {reason(error)}; reset it to have it run again"
            raise OnceFailed(told) from error
        finally:
            ownership.end()
        return await self._record(place, self._body({"ok": True}, value))

    async def _after_stop(self, place: QueuePosition) -> Entry | None:
        """Wait until the session was renewed or has ended; None to run it again, or what others have recorded."""
        session, patience = place.session, Patience(self._store.clock, _RECORD_S)
        with closing(Waiter(self._store, session)) as waiter:
            while 0.0 < (left_s := session.remaining_s()) <= session.ttl_s * MARGIN_PART:
                await waiter.pause(left_s)
            if left_s > 0.0:
                return None
            try:
                entry = await waiter.keep_trying(self._outcome, patience)
            except SessionLost as error:
                raise self._lost() from error
        if entry is None:
            raise self._lost()
        return entry

    async def _called(self, fn: Callable[[Work], bytes | None], work: Work) -> bytes:
        own = self._running.own
        own["here"] = True
        try:
            work.begin()
            value: object = await called(fn, work)
        except Exception as error:
            if work.is_stopped:
                raise _ToldToStop from error
            if isinstance(error, OwnershipLost):
                raise RuntimeError(f"something else was lost: {error}") from error  # noqa: TRY004 - not about types
            raise
        finally:
            own["here"] = False
            await work.finish()
        if work.is_stopped:
            raise _ToldToStop
        if value is None:
            return b""
        if not isinstance(value, bytes):
            late = late_result(value)
            kind = type(value).__name__ if late is None else f"{late}, which nobody runs"
            raise _WrongResult(
                f"the function of {self._what} must return bytes or None, not {kind}; it is not recorded"
            )
        if len(value) > MAX_VALUE_BYTES:
            raise ValueTooLarge(f"the result of {self._what} has {len(value):,} bytes, at most {MAX_VALUE_BYTES:,} fit")
        return value

    async def _count_start(self, place: QueuePosition) -> int:
        """Count this start once; returns its number."""
        while True:
            entry = await ask(self._store.get, self._starts_key)
            known = StartCount(0) if entry is None else _STARTS.decode_entry(entry)
            starts = known.starts
            if known.nonce == place.nonce:
                return starts
            check = Absent(self._starts_key) if entry is None else At(entry)
            more = Put(self._starts_key, encode(StartCount(starts + 1, place.nonce)))
            try:
                await ask(self._store.commit, [place.fence, check], [more])
            except Conflict as error:
                await self._refuse_lost(place, error)
            else:
                return starts + 1

    async def _forget_start(self, place: QueuePosition) -> None:
        """Take back the count of this start: the runner has not vanished, its code is wrong."""
        entry = await ask(self._store.get, self._starts_key)
        known = None if entry is None else _STARTS.find(entry.value)
        if entry is not None and known is not None and known.nonce == place.nonce and known.starts:
            less = Put(self._starts_key, encode(StartCount(known.starts - 1)))
            with suppress(LatchworkError):  # it counts, and that is all
                await ask(self._store.commit, [place.fence, At(entry)], [less])

    async def _record(self, place: QueuePosition, body: bytes) -> Entry:
        """Record the outcome, if there is none yet; returns the one that is recorded."""
        patience = Patience(self._store.clock, _RECORD_S)
        with closing(Waiter(self._store, place.session)) as waiter:
            try:
                return await waiter.keep_trying(lambda: self._create(place, body), patience)
            except SessionLost as error:
                raise self._lost() from error

    async def _create(self, place: QueuePosition, body: bytes) -> Entry:
        while True:
            try:
                done = await ask(self._store.commit, [place.fence], [Create(self._outcome_key, body)])
                return done.entries[0]
            except Conflict as error:
                there = await self._outcome()
                if there is not None:  # ours, if an answer was lost; or that of another, who ran it after our session
                    return there
                await self._refuse_lost(place, error)

    async def _refuse_lost(self, place: QueuePosition, error: Conflict) -> None:
        if place.session.remaining_s() <= 0.0 or await ask(self._store.get, place.ticket.key) is None:
            raise self._lost() from error

    def _lost(self) -> LockLost:
        return LockLost(f"{self._what} ran here, but our session ended before the outcome was recorded; others run it")

    def _failure(self, kind: str, why: str) -> bytes:
        return self._body({"ok": False, "kind": kind, "why": why[:_MOST_WHY]}, b"")

    def _body(self, head: dict[str, object], value: bytes) -> bytes:
        return encode({**head, **self._queue.about}) + b"\n" + value


class _WrongResult(Exception):
    """What it returned is no result."""


class _ToldToStop(Exception):
    """It ended after it was told to stop; the cause is what it raised."""


def _result(entry: Entry, what: str) -> bytes:
    head, _, value = entry.value.partition(b"\n")
    outcome = _OUTCOME.find(head)
    if outcome is None:
        raise BadRecord(f"key {entry.key!r} holds no outcome of {what}; reset it, or use another name")
    if outcome.ok:
        return value
    place = f"{outcome.host} (pid {outcome.pid})"
    kind = f"{outcome.kind}: " if outcome.kind else ""
    raise OnceFailed(f"{what} has failed on {place}: {kind}{outcome.why}; reset it to have it run again")
