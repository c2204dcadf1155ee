"""Stores the tasks of one submitter in batches, none of them twice, and ends their futures.

A submitter has a session, and a key that shows it is online; both are in a ``SubmitterSession``. Every transaction that
puts tasks checks the version of that key. When the answer to one is lost, the key is rewritten, so that the transaction
can no longer commit. A task with neither an item nor an outcome may then be put again, and runs once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal
from weakref import WeakSet

from latchwork._base.event import Signal
from latchwork._base.text import counted
from latchwork.errors import Closed, Conflict, ForkedProcess, LatchworkError, OutcomeUnknown, SessionLost, Unavailable
from latchwork.executor.errors import NoSuchMember
from latchwork.executor.futures import AllFuture, Callbacks, Stage, TaskFuture, TaskTicket
from latchwork.executor.items import TaskItem
from latchwork.executor.keys import ANY, Keys
from latchwork.executor.placing import Placing, is_for_all
from latchwork.executor.stored import StoredTasks, TaskLocation, TaskState
from latchwork.executor.submitter_session import (
    PlacementRequest,
    Preparing,
    SubmitterSession,
    WorkerWatch,
    copies_ops,
    named,
    open_line,
    until,
    write_anew,
)
from latchwork.primitives import WorkQueue
from latchwork.store import Backoff, Store
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.forks import ForkGuard
from latchwork.store.steps import Pause, ask, driven, undone_if_interrupted
from latchwork.tasks import Payloads
from latchwork.types import At, Check, Op

_log = logging.getLogger(__name__)

#: Tasks that a message names.
_MOST_NAMED = 3

OnSessionLost = Literal["fail", "resubmit"]

#: Limits of one transaction: items, bytes, and writes including the index and the deleted results.
MOST_ITEMS, MOST_BYTES, MOST_WRITES = 80, 500_000, 90
#: Tasks to cancel at a time.
_MOST_CANCELLED = 40


class Submitter:
    """All tasks that one executor has submitted and whose results have not arrived. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        payloads: Decodes results.
        session_ttl_s: TTL of its session, in seconds.
        on_session_lost: What to do with tasks when the session is lost.
        label: Label shown to other clients.

    Attributes:
        callbacks: Calls the done-callbacks of its futures.
        wholes: Futures that span several of its tasks.
        wait_at_exit_s: Seconds for which the interpreter waits for its tasks at exit; None waits for all.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        payloads: Payloads,
        *,
        session_ttl_s: float,
        on_session_lost: OnSessionLost,
        label: str,
        wait_at_exit_s: float | None = None,
    ) -> None:
        self.wait_at_exit_s = wait_at_exit_s
        self._store = store
        self._keys = keys
        self._payloads = payloads
        self._ttl_s = session_ttl_s
        self._resubmits = on_session_lost == "resubmit"
        self._label = label
        self._home = ForkGuard(f"executor {keys.name!r}")
        self._backlog = WorkQueue(store, keys.backlog, label=label)
        self._stored = StoredTasks(store, keys, self._backlog)
        self._placing = Placing(store, keys)
        self._workers = WorkerWatch(store.clock, keys.name, self._placing.has_members)
        self._preparing = Preparing(store, keys, self._backlog, self._placing)
        self.callbacks = Callbacks(store.clock, keys.name)
        self._changed = Notifier()
        self._wake = Signal()
        self._stop = Signal()
        self._tickets: dict[int, TaskTicket] = {}
        self._wanted: dict[int, PlacementRequest] = {}
        self._plain: deque[TaskTicket] = deque()
        self._to_place: deque[TaskTicket] = deque()
        self._queues = [self._plain, self._to_place]
        self._next = 0
        self._doubts: Sequence[tuple[TaskTicket, TaskItem]] = ()
        self._line: SubmitterSession | None = None
        self._background: Background | None = None
        self._closing = False
        self._ended = False
        self.wholes: WeakSet[AllFuture[Any]] = WeakSet()

    # Submitting

    def add(self, item: TaskItem, hint: Any, what: str, wanted: PlacementRequest) -> TaskFuture[Any]:
        """Queue a task to be stored soon, in order. Performs no I/O. Raises ``RuntimeError`` after a shutdown."""
        if self._home.is_foreign:
            raise self._home.error()
        with self._changed.mutex:
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            ticket = TaskTicket(self._next, item, hint, what, self)
            self._next += 1
            self._tickets[ticket.number] = ticket
            self._wanted[ticket.number] = wanted
            self._queue_of(ticket).append(ticket)
            if self._background is None:
                self._background = Background(self._run, f"latchwork-submits-{self._keys.name}")
        self._wake.set()
        return ticket.future

    def _queue_of(self, ticket: TaskTicket) -> deque[TaskTicket]:
        """Return the queue of an unstored task.

        Tasks that need no member have a separate one, so they never wait for placement.
        """
        wanted = self._wanted[ticket.number]
        is_plain = ticket.item is not None and is_for_all(ticket.item, wanted.picker, wanted.copies)
        return self._plain if is_plain else self._to_place

    def why_nothing_runs(self) -> str:
        """Return a message suffix saying that no worker is online; empty if there is one, or if unknown."""
        return self._workers.why()

    async def flush(self, timeout_s: float | None) -> bool:
        """Wait until all previously submitted tasks are stored or have ended; False on timeout."""
        self._home.check()
        with self._changed.mutex:
            last = self._next

        def is_done() -> bool:
            return not any(ticket.number < last for queue in self._queues for ticket in queue)

        return await until(self._changed, self._store.clock, is_done, timeout_s)

    async def wait_over(self, timeout_s: float | None) -> bool:
        """Wait until no task is left; False on timeout."""
        return await until(self._changed, self._store.clock, lambda: not self._tickets, timeout_s)

    def waits_for(self) -> str:
        """Return a description of the active tasks for a message: their number and the first of them."""
        with self._changed.mutex:
            tickets = list(self._tickets.values())
        names = ", ".join(ticket.what for ticket in tickets[:_MOST_NAMED])
        return f"{counted(len(tickets), 'task')} ({names}{', ...' if len(tickets) > _MOST_NAMED else ''})"

    # The thread that stores

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            self._wake.clear()
            batch = self._batch()
            if self._ended:
                return
            if self._line is not None and self._line.session.remaining_s() <= 0.0:
                await self._lose_line(self._line)
                continue
            if not batch:
                await Pause(self._store.clock, self._wake, await self._workers.look(is_waiting=bool(self._tickets)))
                continue
            try:
                await self._send(batch)
                backoff.reset()
            except Exception as error:  # also from a picker: no future may wait forever
                await self._trouble(batch, error, backoff)

    async def _trouble(self, batch: Sequence[TaskTicket], error: Exception, backoff: Backoff) -> None:
        """Retry tasks that could not be stored, unless the error is permanent and they are certainly not stored."""
        if self._doubts or isinstance(error, (Unavailable, OutcomeUnknown, SessionLost)):
            _log.info("executor %s: %d tasks wait to be stored: %s", self._keys.name, len(batch), error)
            line = self._line
            if isinstance(error, SessionLost) and line is not None and line.session.remaining_s() > 0.0:
                line.session.mark_ended()
            await Pause(self._store.clock, self._stop, backoff.next_s())
            return
        if len(batch) > 1:  # one of them may be at fault: the others must not fail
            await self._one_by_one(batch)
            return
        for ticket in batch:
            if not isinstance(error, LatchworkError):
                _log.error("executor %s: %s cannot be placed", self._keys.name, ticket.what, exc_info=error)
            self._fail(ticket, named(error, ticket))

    async def _one_by_one(self, batch: Sequence[TaskTicket]) -> None:
        """Store tasks one at a time, until the server is unreachable."""
        for ticket in batch:
            try:
                await self._send([ticket])
            except (Unavailable, OutcomeUnknown, SessionLost) as error:
                _log.info("executor %s: tasks wait to be stored: %s", self._keys.name, error)
                return
            except Exception as error:
                if ticket.stage is Stage.WAITING:
                    await self._trouble([ticket], error, Backoff())

    def _batch(self) -> list[TaskTicket]:
        """Return the next tasks to store. They stay queued until they are stored."""
        with self._changed.mutex:
            for queue in self._queues:
                while queue and queue[0].stage in {Stage.OVER, Stage.STORED}:
                    queue.popleft()
                    self._changed.notify_all()
            self._queues.reverse()  # alternate, so that tasks without placement do not wait for the others
            waiting = self._queues[0] or self._queues[1]
            batch: list[TaskTicket] = []
            writes = size = 0
            for ticket in waiting:
                if ticket.stage in {Stage.OVER, Stage.STORED} or ticket.item is None:
                    continue
                writes += self._wanted[ticket.number].copies
                size += len(ticket.item.payload) + 500
                if batch and (writes > MOST_ITEMS or size > MOST_BYTES or len(batch) >= MOST_ITEMS):
                    break
                batch.append(ticket)
            return batch

    async def _send(self, batch: Sequence[TaskTicket]) -> None:
        """Store as many of these tasks as possible."""
        line = await self._open_line()
        if self._doubts:
            return await self._settle(line, self._doubts)
        at_ms = int(time.time() * 1000)
        found = [each for ticket in batch if (each := await self._placed(ticket, line, at_ms)) is not None]
        placed = [(ticket, item) for ticket, item in found if self._is_doubtful_now(ticket, item)]
        if not placed:
            return None
        checks: dict[Check, None] = {At(line.sub): None}
        ops: dict[Op, None] = {}
        for _, item in placed:
            if item.lanes != (ANY,):
                checks.update(dict.fromkeys(self._placing.checks(item.lanes, item.target)))
            ops.update(dict.fromkeys(copies_ops(self._backlog, item)))
        deletions = line.collector.take_read(max(0, MOST_WRITES - len(ops)))
        try:
            await ask(self._store.commit, list(checks), [*ops, *deletions])
            deletions = []
        except Conflict as error:
            await self._refused(line, placed, error)
        except OutcomeUnknown:
            await self._settle(line, placed)
        except BaseException:
            self._unsent(placed)
            raise
        else:
            self._settled(placed)
        finally:
            if deletions:
                line.collector.give_back(deletions)

    async def _placed(
        self, ticket: TaskTicket, line: SubmitterSession, at_ms: int
    ) -> tuple[TaskTicket, TaskItem] | None:
        """Return a ticket and its item to store; None if the task has ended."""
        item = ticket.item
        if item is None:
            return None
        try:
            return ticket, await self._preparing.ready(item, ticket.number, line, self._wanted[ticket.number], at_ms)
        except NoSuchMember as error:
            self._fail(ticket, error)
            return None

    def _is_doubtful_now(self, ticket: TaskTicket, item: TaskItem) -> bool:
        """Mark a task as being sent; False if it was cancelled meanwhile."""
        with self._changed.mutex:
            if ticket.stage is not Stage.WAITING:
                return False
            ticket.sid, ticket.lanes, ticket.shelf, ticket.stage = item.sid, item.lanes, item.shelf, Stage.DOUBTFUL
            return True

    def _settled(self, placed: Iterable[tuple[TaskTicket, TaskItem]]) -> None:
        with self._changed.mutex:
            for ticket, _ in placed:
                if ticket.stage is Stage.DOUBTFUL:
                    ticket.stage = Stage.STORED
                    if not self._resubmits:
                        ticket.item = None
                        self._wanted.pop(ticket.number, None)
            self._changed.notify_all()
        self._wake.set()

    def _unsent(self, placed: Iterable[tuple[TaskTicket, TaskItem]]) -> None:
        with self._changed.mutex:
            for ticket, _ in placed:
                if ticket.stage is Stage.DOUBTFUL:
                    ticket.stage = Stage.WAITING
            self._changed.notify_all()

    async def _refused(
        self, line: SubmitterSession, placed: Sequence[tuple[TaskTicket, TaskItem]], error: Conflict
    ) -> None:
        """Handle a failed check, after which this attempt wrote nothing."""
        failed = {getattr(each, "key", None) for each in error.failed}
        if self._placing.refused(error.failed) and line.sub.key not in failed:
            self._unsent(placed)
        else:
            await self._settle(line, placed)

    async def _settle(self, line: SubmitterSession, placed: Sequence[tuple[TaskTicket, TaskItem]]) -> None:
        """Prevent a transaction in doubt from committing later, then read which of its tasks are stored."""
        self._doubts = placed
        await write_anew(self._store, line)
        places = {ticket.number: TaskLocation.for_item(item, self._keys) for ticket, item in placed}
        missing = await self._stored.missing(places)
        gone = {ticket.number: (ticket, item) for ticket, item in placed if ticket.number in missing}
        gone = {number: each for number, each in gone.items() if not each[0].future.done()}
        self._unsent(gone.values())
        self._settled([each for each in placed if each[0].number not in gone])
        self._doubts = ()

    async def _open_line(self) -> SubmitterSession:
        line = self._line
        if line is None:
            line = await open_line(self._store, self._keys, self._payloads, self, ttl_s=self._ttl_s, label=self._label)
            line.session.on_end(self._wake.set)
            with self._changed.mutex:
                self._line = line
            line.collector.start()
        return line

    async def _lose_line(self, line: SubmitterSession) -> None:
        """Handle the end of the session: collect earlier results, then fail or resubmit the other tasks."""
        await line.collector.finish()
        error = line.lost_error(self._keys.name)
        self._doubts = ()
        with self._changed.mutex:
            self._line = None
            left = [each for each in self._tickets.values() if each.sid == line.sid and each.stage is not Stage.OVER]
            again = [each for each in left if each.item and (self._resubmits or each.stage is Stage.WAITING)]
            waiting = {each.number for queue in self._queues for each in queue}
            for ticket in again:
                ticket.stage = Stage.WAITING
            back = sorted((each for each in again if each.number not in waiting), key=lambda each: each.number)
            for ticket in reversed(back):
                self._queue_of(ticket).appendleft(ticket)
            self._changed.notify_all()
        for ticket in left:
            if ticket.stage is not Stage.WAITING:
                self._fail(ticket, error)
        self._wake.set()

    def ticket(self, number: int) -> TaskTicket | None:
        """Return the ticket for a result; None if the task has ended."""
        self._workers.progress()
        ticket = self._tickets.get(number)
        return None if ticket is None or ticket.stage is Stage.OVER else ticket

    def end(self, ticket: TaskTicket, tell: Callable[[], object]) -> None:
        """Mark a task as ended, end its future with ``tell``, and forget it."""
        with self._changed.mutex:
            ticket.stage, ticket.item = Stage.OVER, None
        tell()
        with self._changed.mutex:
            self._tickets.pop(ticket.number, None)
            self._wanted.pop(ticket.number, None)
            self._preparing.forget(ticket.number)
            self._changed.notify_all()

    def _fail(self, ticket: TaskTicket, error: BaseException) -> None:
        self.end(ticket, partial(ticket.future.end_raising, error))
        self._wake.set()

    @driven
    async def cancel(self, ticket: TaskTicket, *, interrupt: bool) -> bool:
        """Cancel a task; see ``TaskFuture.cancel``."""
        self._home.check()
        while True:
            with self._changed.mutex:
                if ticket.stage is Stage.OVER:
                    return ticket.future.cancelled()
                if ticket.stage is Stage.WAITING:
                    ticket.stage = Stage.OVER
                    break
                line, is_doubtful, version = self._line, ticket.stage is Stage.DOUBTFUL, self._changed.version
            if not is_doubtful and line is not None:
                with undone_if_interrupted(partial(self.cancel_soon, [ticket], interrupt=interrupt)):
                    if not await self._take_back(ticket, line, interrupt):
                        return ticket.future.cancelled()
                break
            await self._changed.changed_since(version, self._store.clock, None)
        self.end(ticket, ticket.future.end_cancelled)
        self._wake.set()
        return True

    async def _take_back(self, ticket: TaskTicket, line: SubmitterSession, interrupt: bool) -> bool:
        place, done = self._place(ticket), ticket.future.done
        return await self._stored.take_back(place, line.session, interrupt=interrupt, is_over=done)

    def cancel_soon(self, tickets: Iterable[TaskTicket], *, interrupt: bool) -> None:
        """Cancel tasks: unstored ones immediately, others in the background. Performs no I/O.

        The background part retries until the store has answered or the session has ended.
        """
        if self._home.is_foreign:
            return
        left = self._drop_unsent(list(tickets))
        if left:
            name = f"latchwork-cancels-{self._keys.name}"
            Background(partial(self._cancel_all, left, interrupt), name)

    def _drop_unsent(self, tickets: Sequence[TaskTicket]) -> list[TaskTicket]:
        """Cancel the unstored tasks; return the tasks that are stored or may be."""
        with self._changed.mutex:
            dropped = [ticket for ticket in tickets if ticket.stage is Stage.WAITING]
            for ticket in dropped:
                ticket.stage = Stage.OVER
        for ticket in dropped:
            self.end(ticket, ticket.future.end_cancelled)
        if dropped:
            self._wake.set()
        return [ticket for ticket in tickets if ticket.stage is not Stage.OVER]

    async def _cancel_all(self, tickets: list[TaskTicket], interrupt: bool) -> None:
        backoff = Backoff()
        while left := self._drop_unsent(tickets):
            with self._changed.mutex:
                part = [ticket for ticket in left if ticket.stage is Stage.STORED][:_MOST_CANCELLED]
                line, version = self._line, self._changed.version
            if not part or line is None:
                await self._changed.changed_since(version, self._store.clock, None)
                tickets = left
                continue
            by_number = {ticket.number: ticket for ticket in part}
            places = {number: self._place(ticket) for number, ticket in by_number.items()}
            try:
                removed = await self._stored.take_back_all(
                    places, line.session, interrupt=interrupt, is_over=partial(_is_done, by_number)
                )
            except Closed:
                return
            except LatchworkError as error:
                _log.info("executor %s: %d tasks are cancelled later: %s", self._keys.name, len(left), error)
                await Pause(self._store.clock, self._stop, backoff.next_s())
                tickets = left
                continue
            for number in removed:
                self.end(by_number[number], by_number[number].future.end_cancelled)
            tickets = [ticket for ticket in left if ticket.number not in by_number]
            self._wake.set()

    @driven
    async def state(self, ticket: TaskTicket) -> TaskState:
        """Return a task's state; see ``TaskFuture.state``."""
        self._home.check()
        known = ticket.phase
        return await self._stored.state(self._place(ticket)) if known is None else TaskState(known)

    def _place(self, ticket: TaskTicket) -> TaskLocation:
        return TaskLocation(ticket.id, ticket.lanes, ticket.shelf, self._keys.result(ticket.sid, ticket.number))

    # Forks

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that made the submitter."""
        return self._home.is_foreign

    def end_in_child(self) -> None:
        """Fail the futures in a forked child, where no thread would end them."""
        try:
            self._home.check()
        except ForkedProcess as error:
            for future in [*(ticket.future for ticket in self._tickets.values()), *self.wholes]:
                future.end_in_child(error)

    # Closing

    def begin_close(self) -> list[TaskTicket]:
        """Accept no more tasks, and return the active ones in order. Raises ``ForkedProcess`` in a child."""
        self._home.check()
        with self._changed.mutex:
            self._closing = True
            return sorted(self._tickets.values(), key=lambda ticket: ticket.number)

    async def close(self) -> None:
        """End the threads and the session. Tasks that have not ended fail."""
        with self._changed.mutex:
            self._closing = self._ended = True
            background, left = self._background, list(self._tickets.values())
        closed = Closed(f"executor {self._keys.name!r} was closed before the task had ended")
        for ticket in left:
            self._fail(ticket, closed)
        self._stop.set()
        self._wake.set()
        if background is not None and not background.is_running_here:
            await background
        line = self._line  # read it now: the thread may have opened one meanwhile
        if line is not None:
            await line.collector.close()
            line.session.close()
        self._placing.close()
        self._backlog.close()


def _is_done(tickets: Mapping[int, TaskTicket], number: int) -> bool:
    """Return whether the outcome of a task was fetched."""
    return tickets[number].future.done()
