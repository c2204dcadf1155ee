"""Stores the tasks of one submitter in batches, each task once, and completes their futures.

A submitter has a session, a key that shows that it is online, and a key that is its fence; see ``SubmitterSession``.
Every transaction that queues tasks checks that the fence exists. When the answer to a transaction is lost, the fence is
replaced, so that the transaction can no longer commit. A task with neither a queue item nor an outcome may then be
stored again, and runs once.
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
from latchwork.executor.futures import AllFuture, CallbackRunner, Stage, TaskFuture, TaskTicket
from latchwork.executor.items import TaskItem
from latchwork.executor.keys import ANY, Keys
from latchwork.executor.placement import TaskPlacer, needs_no_member
from latchwork.executor.stored import StoredTasks, TaskLocation, TaskState
from latchwork.executor.submitter_session import (
    PlacementRequest,
    SubmitterSession,
    TaskPreparer,
    WorkerWatch,
    add_task_name,
    build_put_copies_ops,
    open_submitter_session,
    replace_fence,
    wait_until,
)
from latchwork.primitives import WorkQueue
from latchwork.store import Backoff, Store
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.forks import ForkGuard
from latchwork.store.steps import Pause, ask, blocking, undone_if_interrupted
from latchwork.tasks import Payloads
from latchwork.types import Check, Exists, Op

_log = logging.getLogger(__name__)

#: Tasks that a message names.
_MOST_NAMED = 3

OnSessionLost = Literal["fail", "resubmit"]

#: Limits of one transaction: items, bytes, and writes including the index and the deleted results.
MOST_ITEMS, MOST_BYTES, MOST_WRITES = 80, 500_000, 90
#: Tasks to cancel at a time.
_MOST_CANCELLED = 40


class Submitter:
    """The unfinished tasks of one executor. Stores them in batches, and completes their futures. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        payloads: Decodes results.
        session_ttl_s: TTL of its session, in seconds.
        on_session_lost: What to do with tasks when the session is lost: ``fail`` or ``resubmit``.
        label: Label shown to other clients.
        wait_at_exit_s: Seconds for which the interpreter waits for its tasks at exit; None waits for all.
    Attributes:
        callbacks: Calls the done-callbacks of its futures.
        all_futures: Futures that span several of its tasks.
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
        self._placer = TaskPlacer(store, keys)
        self._workers = WorkerWatch(store.clock, keys.name, self._placer.has_members)
        self._preparer = TaskPreparer(store, keys, self._backlog, self._placer)
        self.callbacks = CallbackRunner(store.clock, keys.name)
        self._changed = Notifier()
        self._wake = Signal()
        self._stop = Signal()
        self._tickets: dict[int, TaskTicket] = {}
        self._requests: dict[int, PlacementRequest] = {}
        self._unplaced: deque[TaskTicket] = deque()
        self._to_place: deque[TaskTicket] = deque()
        self._queues = [self._unplaced, self._to_place]
        self._next = 0
        self._stored_ms = 0
        self._in_doubt: Sequence[tuple[TaskTicket, TaskItem]] = ()
        self._session: SubmitterSession | None = None
        self._background: Background | None = None
        self._closing = False
        self._ended = False
        self.all_futures: WeakSet[AllFuture[Any]] = WeakSet()

    # Submitting

    def add(self, item: TaskItem, hint: Any, what: str, wanted: PlacementRequest) -> TaskFuture[Any]:
        """Schedule a task to be stored soon, and return its future. Does no I/O.

        Args:
            item: The task, without its ID and position.
            hint: Annotation of the result.
            what: Description of the function in messages.
            wanted: How to choose the members for the task.
        Raises:
            RuntimeError: The executor was shut down.
        """
        if self._home.is_foreign:
            raise self._home.error()
        with self._changed.mutex:
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            ticket = TaskTicket(self._next, item, hint, what, self)
            self._next += 1
            self._tickets[ticket.number] = ticket
            self._requests[ticket.number] = wanted
            self._get_queue(ticket).append(ticket)
            if self._background is None:
                self._background = Background(self._run, f"latchwork-submits-{self._keys.name}")
        self._wake.set()
        return ticket.future

    def _get_queue(self, ticket: TaskTicket) -> deque[TaskTicket]:
        """Return the queue for a task that is not stored yet.

        Tasks that need no member have a separate queue, so that choosing members for other tasks does not delay them.
        """
        wanted = self._requests[ticket.number]
        is_plain = ticket.item is not None and needs_no_member(ticket.item, wanted.picker, wanted.copies)
        return self._unplaced if is_plain else self._to_place

    def missing_worker_hint(self) -> str:
        """Return text for the end of a message: that no worker is online. Empty if one is, or if that is unknown."""
        return self._workers.missing_worker_hint()

    async def flush(self, timeout_s: float | None) -> bool:
        """Wait until all tasks submitted before this call are stored or have ended. Return False after the timeout."""
        self._home.check()
        with self._changed.mutex:
            last = self._next

        def is_done() -> bool:
            return not any(ticket.number < last for queue in self._queues for ticket in queue)

        return await wait_until(self._changed, self._store.clock, is_done, timeout_s)

    async def wait_until_ended(self, timeout_s: float | None) -> bool:
        """Wait until all tasks have ended. Return False after the timeout."""
        return await wait_until(self._changed, self._store.clock, lambda: not self._tickets, timeout_s)

    def describe_active_tasks(self) -> str:
        """Return text for a message: the number of unfinished tasks, and the names of the first of them."""
        with self._changed.mutex:
            tickets = list(self._tickets.values())
        names = ", ".join(ticket.what for ticket in tickets[:_MOST_NAMED])
        return f"{counted(len(tickets), 'task')} ({names}{', ...' if len(tickets) > _MOST_NAMED else ''})"

    # The thread that stores

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            self._wake.clear()
            batch = self._next_batch()
            if self._ended:
                return
            if self._session is not None and self._session.session.remaining_s() <= 0.0:
                await self._on_session_lost(self._session)
                continue
            if not batch:
                await Pause(
                    self._store.clock, self._wake, await self._workers.check_workers(is_waiting=bool(self._tickets))
                )
                continue
            try:
                await self._send(batch)
                backoff.reset()
            except Exception as error:  # also from a picker: no future may wait forever
                await self._on_error(batch, error, backoff)

    async def _on_error(self, batch: Sequence[TaskTicket], error: Exception, backoff: Backoff) -> None:
        """Handle an error while a batch was stored.

        If the error is permanent and the tasks are certainly not stored, fail them. Otherwise retry after a pause.

        Args:
            batch: The tasks.
            error: The error.
            backoff: Pauses between retries.
        """
        if self._in_doubt or isinstance(error, (Unavailable, OutcomeUnknown, SessionLost)):
            _log.info("executor %s: %d tasks wait to be stored: %s", self._keys.name, len(batch), error)
            submitter_session = self._session
            if (
                isinstance(error, SessionLost)
                and submitter_session is not None
                and submitter_session.session.remaining_s() > 0.0
            ):
                submitter_session.session.mark_ended()
            await Pause(self._store.clock, self._stop, backoff.next_s())
            return
        if len(batch) > 1:  # one of them may be at fault: the others must not fail
            await self._send_separately(batch)
            return
        for ticket in batch:
            if not isinstance(error, LatchworkError):
                _log.error("executor %s: no worker can be chosen for %s", self._keys.name, ticket.what, exc_info=error)
            self._fail(ticket, add_task_name(error, ticket))

    async def _send_separately(self, batch: Sequence[TaskTicket]) -> None:
        """Store tasks one at a time, until the server cannot be reached."""
        for ticket in batch:
            try:
                await self._send([ticket])
            except (Unavailable, OutcomeUnknown, SessionLost) as error:
                _log.info("executor %s: tasks wait to be stored: %s", self._keys.name, error)
                return
            except Exception as error:
                if ticket.stage is Stage.WAITING:
                    await self._on_error([ticket], error, Backoff())

    def _next_batch(self) -> list[TaskTicket]:
        """Return the next tasks to store. They stay in their queue until they are stored."""
        with self._changed.mutex:
            for queue in self._queues:
                while queue and queue[0].stage in {Stage.ENDED, Stage.STORED}:
                    queue.popleft()
                    self._changed.notify_all()
            self._queues.reverse()  # alternate, so that tasks without placement do not wait for the others
            waiting = self._queues[0] or self._queues[1]
            batch: list[TaskTicket] = []
            writes = size = 0
            for ticket in waiting:
                if ticket.stage in {Stage.ENDED, Stage.STORED} or ticket.item is None:
                    continue
                writes += self._requests[ticket.number].copies
                size += len(ticket.item.payload) + 500
                if batch and (writes > MOST_ITEMS or size > MOST_BYTES or len(batch) >= MOST_ITEMS):
                    break
                batch.append(ticket)
            return batch

    async def _send(self, batch: Sequence[TaskTicket]) -> None:
        """Store a batch of tasks in one transaction. Tasks that cannot be stored now stay in their queue."""
        submitter_session = await self._open_session()
        if self._in_doubt:
            return await self._resolve_in_doubt(submitter_session, self._in_doubt)
        self._stored_ms = max(self._stored_ms, int(time.time() * 1000))  # a clock set back must not reorder tasks
        found = [
            each
            for ticket in batch
            if (each := await self._prepare(ticket, submitter_session, self._stored_ms)) is not None
        ]
        placed = [(ticket, item) for ticket, item in found if self._mark_in_doubt(ticket, item)]
        if not placed:
            return None
        fence = self._keys.fence_key(submitter_session.submitter_id, submitter_session.fence)
        checks: dict[Check, None] = {Exists(fence): None}
        ops: dict[Op, None] = {}
        for _, item in placed:
            if item.partitions != (ANY,):
                checks.update(dict.fromkeys(self._placer.build_member_checks(item.partitions, item.target)))
            ops.update(dict.fromkeys(build_put_copies_ops(self._backlog, item)))
        deletions = submitter_session.collector.take_deletions(max(0, MOST_WRITES - len(ops)))
        try:
            await ask(self._store.commit, list(checks), [*ops, *deletions])
            deletions = []
        except Conflict as error:
            await self._on_conflict(submitter_session, fence, placed, error)
        except OutcomeUnknown:
            await self._resolve_in_doubt(submitter_session, placed)
        except BaseException:
            self._mark_unsent(placed)
            raise
        else:
            self._mark_stored(placed)
        finally:
            if deletions:
                submitter_session.collector.requeue_deletions(deletions)

    async def _prepare(
        self, ticket: TaskTicket, submitter_session: SubmitterSession, at_ms: int
    ) -> tuple[TaskTicket, TaskItem] | None:
        """Build the queue item of a task. If no member may run the task, fail the task and return None.

        Args:
            ticket: The task.
            submitter_session: The current session of the submitter.
            at_ms: Current time in milliseconds since the epoch.
        Returns:
            The task and its item.
        """
        item = ticket.item
        if item is None:
            return None
        try:
            return ticket, await self._preparer.prepare(
                item, ticket.number, submitter_session, self._requests[ticket.number], at_ms
            )
        except NoSuchMember as error:
            self._fail(ticket, error)
            return None

    def _mark_in_doubt(self, ticket: TaskTicket, item: TaskItem) -> bool:
        """Mark a task as being sent, so that it may be stored. Return False if it was canceled meanwhile."""
        with self._changed.mutex:
            if ticket.stage is not Stage.WAITING:
                return False
            ticket.submitter_id, ticket.partitions, ticket.sort_key, ticket.stage = (
                item.submitter_id,
                item.partitions,
                item.sort_key,
                Stage.IN_DOUBT,
            )
            return True

    def _mark_stored(self, placed: Iterable[tuple[TaskTicket, TaskItem]]) -> None:
        with self._changed.mutex:
            for ticket, _ in placed:
                if ticket.stage is Stage.IN_DOUBT:
                    ticket.stage = Stage.STORED
                    if not self._resubmits:
                        ticket.item = None
                        self._requests.pop(ticket.number, None)
            self._changed.notify_all()
        self._wake.set()

    def _mark_unsent(self, placed: Iterable[tuple[TaskTicket, TaskItem]]) -> None:
        with self._changed.mutex:
            for ticket, _ in placed:
                if ticket.stage is Stage.IN_DOUBT:
                    ticket.stage = Stage.WAITING
            self._changed.notify_all()

    async def _on_conflict(
        self,
        submitter_session: SubmitterSession,
        fence: str,
        placed: Sequence[tuple[TaskTicket, TaskItem]],
        error: Conflict,
    ) -> None:
        """Retry or fail the tasks of a batch that was refused because a check failed. Nothing of it was written.

        Args:
            submitter_session: The session of the submitter that sent it.
            fence: The fence that the transaction checked.
            placed: The tasks and their queue items.
            error: The conflict, with the failed checks.
        """
        failed = {getattr(each, "key", None) for each in error.failed}
        if self._placer.record_departed(error.failed) and fence not in failed:
            self._mark_unsent(placed)
        else:
            await self._resolve_in_doubt(submitter_session, placed)

    async def _resolve_in_doubt(
        self, submitter_session: SubmitterSession, placed: Sequence[tuple[TaskTicket, TaskItem]]
    ) -> None:
        """Find out which tasks of a batch were stored, after the answer of its transaction was lost.

        First replaces the fence that the transaction checks, so that it can no longer commit.

        Args:
            submitter_session: The session of the submitter that sent it.
            placed: The tasks and their queue items.
        """
        self._in_doubt = placed
        await replace_fence(self._store, self._keys, submitter_session)
        locations = {ticket.number: TaskLocation.from_item(item, self._keys) for ticket, item in placed}
        missing = await self._stored.find_missing(locations)
        gone = {ticket.number: (ticket, item) for ticket, item in placed if ticket.number in missing}
        gone = {number: each for number, each in gone.items() if not each[0].future.done()}
        self._mark_unsent(gone.values())
        self._mark_stored([each for each in placed if each[0].number not in gone])
        self._in_doubt = ()

    async def _open_session(self) -> SubmitterSession:
        submitter_session = self._session
        if submitter_session is None:
            submitter_session = await open_submitter_session(
                self._store, self._keys, self._payloads, self, ttl_s=self._ttl_s, label=self._label
            )
            submitter_session.session.on_end(self._wake.set)
            with self._changed.mutex:
                self._session = submitter_session
            submitter_session.collector.start()
        return submitter_session

    async def _on_session_lost(self, submitter_session: SubmitterSession) -> None:
        """Collect the results that arrived before the session ended, then fail or resubmit the other tasks."""
        await submitter_session.collector.finish()
        error = submitter_session.build_lost_error(self._keys.name)
        self._in_doubt = ()
        with self._changed.mutex:
            self._session = None
            left = [
                each
                for each in self._tickets.values()
                if each.submitter_id == submitter_session.submitter_id and each.stage is not Stage.ENDED
            ]
            again = [each for each in left if each.item and (self._resubmits or each.stage is Stage.WAITING)]
            waiting = {each.number for queue in self._queues for each in queue}
            for ticket in again:
                ticket.stage = Stage.WAITING
            back = sorted((each for each in again if each.number not in waiting), key=lambda each: each.number)
            for ticket in reversed(back):
                self._get_queue(ticket).appendleft(ticket)
            self._changed.notify_all()
        for ticket in left:
            if ticket.stage is not Stage.WAITING:
                self._fail(ticket, error)
        self._wake.set()

    @property
    def has_tasks(self) -> bool:
        """Whether any task has not ended."""
        return bool(self._tickets)

    def get_ticket(self, number: int) -> TaskTicket | None:
        """Return the data about the task with this number. None if the task has ended."""
        self._workers.on_result()
        ticket = self._tickets.get(number)
        return None if ticket is None or ticket.stage is Stage.ENDED else ticket

    def end_task(self, ticket: TaskTicket, end_future: Callable[[], object]) -> None:
        """Remove a task that has ended, and complete its future.

        Args:
            ticket: The task.
            end_future: Completes the future.
        """
        with self._changed.mutex:
            ticket.stage, ticket.item = Stage.ENDED, None
        end_future()
        with self._changed.mutex:
            self._tickets.pop(ticket.number, None)
            self._requests.pop(ticket.number, None)
            self._preparer.forget(ticket.number)
            self._changed.notify_all()

    def _fail(self, ticket: TaskTicket, error: BaseException) -> None:
        self.end_task(ticket, partial(ticket.future.complete_with_exception, error))
        self._wake.set()

    @blocking
    async def cancel(self, ticket: TaskTicket, *, interrupt: bool) -> bool:
        """Cancel a task and remove it from the store.

        Args:
            ticket: The task.
            interrupt: Also cancel a running task: signal it to stop, and drop its result.
        Returns:
            Whether the task was canceled. False if it has ended, or is running and ``interrupt`` is not set.
        """
        self._home.check()
        while True:
            with self._changed.mutex:
                if ticket.stage is Stage.ENDED:
                    return ticket.future.cancelled()
                if ticket.stage is Stage.WAITING:
                    ticket.stage = Stage.ENDED
                    break
                submitter_session, is_in_doubt, version = (
                    self._session,
                    ticket.stage is Stage.IN_DOUBT,
                    self._changed.version,
                )
            if not is_in_doubt and submitter_session is not None:
                with undone_if_interrupted(partial(self.cancel_soon, [ticket], interrupt=interrupt)):
                    if not await self._remove_stored(ticket, submitter_session, interrupt):
                        return ticket.future.cancelled()
                break
            await self._changed.wait_for_change(version, self._store.clock, None)
        self.end_task(ticket, ticket.future.complete_cancelled)
        self._wake.set()
        return True

    async def _remove_stored(self, ticket: TaskTicket, submitter_session: SubmitterSession, interrupt: bool) -> bool:
        location, done = self._locate(ticket), ticket.future.done
        return await self._stored.remove(location, submitter_session.session, interrupt=interrupt, has_outcome=done)

    def cancel_soon(self, tickets: Iterable[TaskTicket], *, interrupt: bool) -> None:
        """Cancel tasks without waiting. Tasks that are not stored yet are canceled now, the others in the background.

        The background thread retries until the store has answered or the session has ended.

        Args:
            tickets: The tasks.
            interrupt: Also cancel running tasks.
        """
        if self._home.is_foreign:
            return
        left = self._drop_unsent(list(tickets))
        if left:
            name = f"latchwork-cancels-{self._keys.name}"
            Background(partial(self._cancel_all, left, interrupt), name)

    def _drop_unsent(self, tickets: Sequence[TaskTicket]) -> list[TaskTicket]:
        """Cancel the tasks that are not stored yet. Return the other tasks, which are or may be stored."""
        with self._changed.mutex:
            dropped = [ticket for ticket in tickets if ticket.stage is Stage.WAITING]
            for ticket in dropped:
                ticket.stage = Stage.ENDED
        for ticket in dropped:
            self.end_task(ticket, ticket.future.complete_cancelled)
        if dropped:
            self._wake.set()
        return [ticket for ticket in tickets if ticket.stage is not Stage.ENDED]

    async def _cancel_all(self, tickets: list[TaskTicket], interrupt: bool) -> None:
        backoff = Backoff()
        while left := self._drop_unsent(tickets):
            with self._changed.mutex:
                part = [ticket for ticket in left if ticket.stage is Stage.STORED][:_MOST_CANCELLED]
                submitter_session, version = self._session, self._changed.version
            if not part or submitter_session is None:
                await self._changed.wait_for_change(version, self._store.clock, None)
                tickets = left
                continue
            by_number = {ticket.number: ticket for ticket in part}
            locations = {number: self._locate(ticket) for number, ticket in by_number.items()}
            try:
                removed = await self._stored.remove_all(
                    locations, submitter_session.session, interrupt=interrupt, has_outcome=partial(_is_done, by_number)
                )
            except Closed:
                return
            except LatchworkError as error:
                _log.info("executor %s: %d tasks will be canceled later: %s", self._keys.name, len(left), error)
                await Pause(self._store.clock, self._stop, backoff.next_s())
                tickets = left
                continue
            for number in removed:
                self.end_task(by_number[number], by_number[number].future.complete_cancelled)
            tickets = [ticket for ticket in left if ticket.number not in by_number]
            self._wake.set()

    @blocking
    async def state(self, ticket: TaskTicket) -> TaskState:
        """Return the current state of a task, from memory if possible, otherwise from the store."""
        self._home.check()
        known = ticket.phase
        return await self._stored.read_state(self._locate(ticket)) if known is None else TaskState(known)

    def _locate(self, ticket: TaskTicket) -> TaskLocation:
        return TaskLocation(
            ticket.id, ticket.partitions, ticket.sort_key, self._keys.result_key(ticket.submitter_id, ticket.number)
        )

    # Forks

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the process that created the submitter."""
        return self._home.is_foreign

    def fail_in_child(self) -> None:
        """Fail all futures in a forked child process, where no thread would complete them."""
        try:
            self._home.check()
        except ForkedProcess as error:
            for future in [*(ticket.future for ticket in self._tickets.values()), *self.all_futures]:
                future.fail_in_child(error)

    # Closing

    def begin_close(self) -> list[TaskTicket]:
        """Accept no more tasks, and return the unfinished ones in order.

        Raises:
            ForkedProcess: This process is a fork of the process that created the submitter.
        """
        self._home.check()
        with self._changed.mutex:
            self._closing = True
            return sorted(self._tickets.values(), key=lambda ticket: ticket.number)

    async def close(self) -> None:
        """Stop the threads and end the session. Tasks that have not ended fail."""
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
        submitter_session = self._session  # read it now: the thread may have opened one meanwhile
        if submitter_session is not None:
            await submitter_session.collector.close()
            submitter_session.session.close()
        self._placer.close()
        self._backlog.close()


def _is_done(tickets: Mapping[int, TaskTicket], number: int) -> bool:
    """Return whether the future of the task with this number has ended."""
    return tickets[number].future.done()
