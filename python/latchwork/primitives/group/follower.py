"""Observes the views of a group, once per process, and writes new views when this process is the writer.

Keys:  <name>/followers/t-<nonce>   one ticket per observing process, bound to its session; says whether it ``writes``

The first process in this queue writes the views. The second one is its deputy: it also watches the members, and writes
a view that the first one has not written for a while. All others watch the head of the log and the ticket before their
own.

docs/design/groups-and-queues.md has the races.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from typing import Literal
from weakref import WeakValueDictionary

from latchwork._base.decoding import encode
from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.errors import Closed, Conflict, LatchworkError, PermissionDenied, WaitTimeout
from latchwork.primitives.fair.tickets import FATAL, QueuePosition, Ticket, TicketQueue, wait_until_ticket_gone
from latchwork.primitives.group.view_log import LogHead, ViewChangeStep, ViewLog, ViewState
from latchwork.primitives.group.views import View, ViewChange, compare_views, parse_member_id
from latchwork.primitives.waiting.deadline import RANK_DELAY_S, Deadline
from latchwork.primitives.waiting.participant import is_open
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.backoff import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.observers import add_listener
from latchwork.store.session import Session
from latchwork.store.steps import Pause, PendingCall, ask, coroutine_of
from latchwork.store.store import Store
from latchwork.store.watch import Batch, Watch
from latchwork.types import At, Committed, Entry, Put

_log = logging.getLogger(__name__)

#: Minimum number of seconds between two views. Changes in that time are one view.
GATHER_S = 0.02
#: Seconds after which a deputy checks whether the writer of a missing view still exists.
CHECK_S = 0.03

OnChanges = Callable[[list[ViewChange]], None]

_WRITES = "writes"
#: Called when the views cannot be followed, with the reason.
OnError = Callable[[LatchworkError], None]


class WriteSchedule:
    """Decides when the writer of a group's views, or its deputy, must write the next view. No I/O.

    Args:
        is_writer: Whether this process is the writer, which writes at once. A deputy waits ``RANK_DELAY_S`` seconds.
    """

    def __init__(self, *, is_writer: bool) -> None:
        self.is_writer = is_writer
        self._behind_since: float | None = None
        self._has_checked = False
        self._last_write_at = -math.inf

    def next_action(self, now: float, *, is_behind: bool) -> Literal["", "check", "write"]:
        """Return what the follower has to do now so that the newest view lists all members.

        Args:
            now: Local clock time.
            is_behind: Whether the members differ from those in the newest view.
        Returns:
            "" for nothing, "check" to check whether the writer still exists, "write" to write the next view.
        """
        if not is_behind:
            self._behind_since, self._has_checked = None, False
            return ""
        self._behind_since = now if self._behind_since is None else self._behind_since
        if now >= self._write_due_at():
            return "write"
        if not self.is_writer and not self._has_checked and now >= self._behind_since + CHECK_S:
            self._has_checked = True
            return "check"
        return ""

    def record_write(self, now: float) -> None:
        """Record that a view was written, or that none was necessary.

        Args:
            now: Local clock time.
        """
        self._last_write_at, self._behind_since, self._has_checked = now, now, False

    def pause_s(self, now: float, *, is_behind: bool) -> float | None:
        """Return after how many seconds ``next_action`` must be called again. None if only a change of the members
        requires it.

        Args:
            now: Local clock time.
            is_behind: Whether the members differ from those in the newest view.
        """
        if not is_behind or self._behind_since is None:
            return None if not is_behind else 0.0
        is_check_next = not self.is_writer and not self._has_checked
        due_at = self._behind_since + CHECK_S if is_check_next else self._write_due_at()
        return max(0.0, due_at - now)

    def _write_due_at(self) -> float:
        """Return the time at which the next view is due."""
        assert self._behind_since is not None
        delay_s = 0.0 if self.is_writer else RANK_DELAY_S
        return max(self._behind_since + delay_s, self._last_write_at + GATHER_S)


class Replica:
    """A local copy of the newest view of a group. A watch of the view log and our own writes keep it current.
    Thread-safe.

    Listeners are called with the changes between views, in order. They must be fast, because the mutex is held.
    """

    def __init__(self, view_log: ViewLog) -> None:
        self._view_log = view_log
        self._listeners: dict[object, OnChanges] = {}
        self._lock = mutex()
        self._head: Entry | None = None
        self._log_id = ""
        self._state = ViewState()
        self._last_reported: View | None = None

    def add_listener(self, listener: OnChanges) -> Callable[[], None]:
        """Call a listener now with the current view, and later with the changes of each new view.

        Returns:
            A function that removes the listener.
        """
        with self._lock:
            if self._last_reported is not None:
                listener([_build_first_change(self._last_reported)])
            return add_listener(self._listeners, listener)

    def current(self) -> tuple[Entry | None, ViewState]:
        """Return the entry of the log's head, or None without a log, and the state of the newest view.

        Only the writer may keep the state, until it writes the next view.
        """
        with self._lock:
            return self._head, self._state

    def is_outdated(self, name: str, token: int | None) -> bool:
        """Return whether the newest view lacks the current state of a member.

        Args:
            name: ID of the member.
            token: Token of the member's last write; None if the member has left.
        """
        with self._lock:
            return self._state.get_token(name) != token

    def list_ids(self) -> list[str]:
        """Return the IDs of the members in the newest view, in any order."""
        with self._lock:
            return list(self._state)

    def reset(self, deleted: Entry | None = None) -> bool:
        """Start again with an empty view, because the log was deleted. Return False if there was no log.

        Args:
            deleted: Do nothing if the known head is not this one. None for any.
        """
        with self._lock:
            if deleted is not None and self._head is not deleted:
                return False
            had_log, self._head, self._log_id, self._state = self._head is not None, None, "", ViewState()
            if self._last_reported is None:
                self._last_reported = View()
            return had_log

    async def advance_to(self, entry: Entry) -> None:
        """Update the copy to the newest view, given the entry of a new head of the view log.

        The changes since the known view are applied if the log still contains them. Otherwise the whole view is read.
        """
        head = LogHead.from_entry(entry)
        with self._lock:
            follows = self._head is not None and self._log_id == head.log_id
            number = self._state.number
        steps = await self._view_log.read_steps(head, number) if follows and head.number > number else None
        if steps is not None:
            self.apply_steps(entry, head, steps)
            return
        if not follows or head.number > number:
            newest, state = await self._view_log.load(entry)
            if newest is not None:
                self._replace_view(newest, state)

    def apply_steps(self, entry: Entry, head: LogHead, steps: Iterable[ViewChangeStep]) -> None:
        """Apply the stored changes that lead to a newer view. Changes that were applied before are skipped.

        Args:
            entry: The entry of the head of the view log.
            head: The decoded head, which names the newest view.
            steps: The changes from one view to the next, in order.
        """
        with self._lock:
            if self._head is not None and (self._log_id != head.log_id or entry.token <= self._head.token):
                return
            changes = [self._state.apply_step(step) for step in steps if step.number == self._state.number + 1]
            if self._state.number == head.number:
                self._head, self._log_id = entry, head.log_id
            if changes:
                last = self._last_reported
                if last is not None and last.number >= changes[0].view.number:  # a new log
                    changes = [compare_views(last, changes[-1].view)]
                self._last_reported = changes[-1].view
                self._notify(changes)

    def _replace_view(self, entry: Entry, state: ViewState) -> None:
        """Replace the known view by one that was read as a whole, and call the listeners with the differences.

        Args:
            entry: The entry of the log's head.
            state: The state of the new view.
        """
        with self._lock:
            if self._head is not None and entry.token <= self._head.token:
                return
            view, last = state.to_view(), self._last_reported
            self._head, self._log_id, self._state = entry, LogHead.from_entry(entry).log_id, state
            self._last_reported = view
            if last is None:
                self._notify([_build_first_change(view)])
            elif last != view:
                self._notify([compare_views(last, view)])

    def _notify(self, changes: list[ViewChange]) -> None:
        for listener in list(self._listeners.values()):
            listener(changes)


def _build_first_change(view: View) -> ViewChange:
    """Return the change from no known view to a view: all of its members have joined."""
    return ViewChange(view, view.members, (), ())


class SharedViewsRegistry:
    """The observed views of all groups of a store. Thread-safe.

    The views of a group are kept as long as an object uses them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = mutex()
        self._closed = False
        self._views: WeakValueDictionary[str, SharedViews] = WeakValueDictionary()

    def get_views(self, name: str) -> SharedViews:
        """Return the shared views of the group with this name."""
        with self._lock:
            views = self._views.get(name)
            if views is None:
                views = self._views[name] = SharedViews(self._store, name)
            closed = self._closed
        if closed:
            views.close()
        return views

    def close(self) -> None:
        """Stop observing all groups. Idempotent."""
        with self._lock:
            self._closed = True
            all_views = list(self._views.values())
        for views in all_views:
            views.close()


class SharedViews:
    """The views of a group, shared by all objects of a process. They are observed while there are subscribers.
    Thread-safe.

    Args:
        store: The store.
        name: The key of the group.
        session: The session of our ticket. None uses the store's primary session.
    """

    def __init__(self, store: Store, name: str, session: Session | None = None) -> None:
        self._store = store
        self._name = name
        self._session = session
        self._lock = mutex()
        self._closed = False
        self._follower: ViewFollower | None = None

    def subscribe(self, on_changes: OnChanges, on_error: OnError) -> Callable[[], Background | None]:
        """Subscribe to the views. The first call of ``on_changes`` contains the whole current view.

        Args:
            on_changes: Called with the changes of each new view, in order.
            on_error: Called with the reason if the views cannot be observed.
        Returns:
            A function that ends the subscription. After the last one it returns the background thread, which is ending;
                otherwise None.
        Raises:
            Closed: The store was closed.
        """
        with self._lock:
            if self._closed:
                raise Closed(f"the views of group {self._name!r} ended with their store; connect again")
            if self._follower is None:
                self._follower = ViewFollower(self._store, self._name, self._session)
            follower = self._follower
            listener_id = follower.add_listener(on_changes, on_error)

        def cancel() -> Background | None:
            with self._lock:
                if not follower.remove_listener(listener_id):
                    return None
                if self._follower is follower:
                    self._follower = None
            return follower.cancel()

        return cancel

    def close(self) -> None:
        """End all subscriptions. Thread-safe and idempotent."""
        with self._lock:
            self._closed = True
            follower, self._follower = self._follower, None
        if follower is not None:
            background = follower.cancel()
            if not background.is_running_here:
                background.block()


class ViewFollower:
    """Observes the views of a group, which are its numbered lists of members, in a background thread until ``cancel``.

    Args:
        store: The store.
        name: The key of the group.
        session: The session of our ticket. None uses the store's primary session.
    """

    def __init__(self, store: Store, name: str, session: Session | None) -> None:
        self._store = store
        self._what = f"group {name!r}"
        self._own_session = session
        self._view_log = ViewLog(store, name, self._what)
        self._replica = Replica(self._view_log)
        self._follower_queue = TicketQueue(store, f"{name}/followers", self._what)
        self._lock = mutex()
        self._cancelled = Signal()
        self._head_watch: Watch | None = None
        self._member_watch: Watch | None = None
        self._subscribers: dict[object, tuple[Callable[[], None], OnError]] = {}
        self._error: LatchworkError | None = None
        self._background = Background(self._run, f"latchwork-views-{name}")

    def add_listener(self, on_changes: OnChanges, on_error: OnError) -> object:
        """Call these functions with later changes of the views and with errors. See ``SharedViews.subscribe``.

        Args:
            on_changes: Called with the changes of each new view, in order.
            on_error: Called with the reason if the views cannot be observed.

        Returns:
            The ID of the listener, for ``remove_listener``.
        """
        listener_id = object()
        self._subscribers[listener_id] = (self._replica.add_listener(on_changes), on_error)
        if self._error is not None:
            on_error(self._error)
        return listener_id

    def remove_listener(self, listener_id: object) -> bool:
        """Remove the listener with this ID. Return True if no listener is left. Idempotent."""
        cancel, _ = self._subscribers.pop(listener_id, (None, None))
        if cancel is None:
            return False
        cancel()
        return not self._subscribers

    def cancel(self) -> Background:
        """Stop observing the views of the group permanently. Does not block. Thread-safe.

        Returns:
            The background thread, which ends soon.
        """
        self._cancelled.set()
        with self._lock:
            head_watch = self._head_watch
        if head_watch is not None:
            head_watch.close()
        return self._background

    async def _run(self) -> None:
        backoff = Backoff()
        while not self._cancelled.is_set():
            try:
                await self._follow(backoff)
            except LatchworkError as error:
                if isinstance(error, FATAL) or type(error) is LatchworkError or self._has_session_ended():
                    self._report_error(error)
                if self._is_final(error):
                    return
                _log.info("%s: following its views again after an error: %s", self._what, error)
            except Exception:
                _log.exception("%s: following its views failed unexpectedly, retrying", self._what)
            await Pause(self._store.clock, self._cancelled, backoff.next_s())

    def _has_session_ended(self) -> bool:
        """Return whether the session that this object was given has ended."""
        return self._own_session is not None and self._own_session.remaining_s() <= 0.0

    def _is_final(self, error: LatchworkError) -> bool:
        """Return whether the views cannot be followed anymore after this error."""
        if isinstance(error, Closed) and self._own_session is None:  # the session was closed, perhaps not the store
            return not is_open(self._store)
        return isinstance(error, FATAL) or self._has_session_ended()

    def _report_error(self, error: LatchworkError) -> None:
        """Call the error callbacks of all subscribers, unless this follower was canceled."""
        if self._cancelled.is_set():
            return
        self._error = error
        for _, on_error in list(self._subscribers.values()):
            on_error(error)

    async def _follow(self, backoff: Backoff) -> None:
        """Observe the views until the session ends or the follower is canceled.

        Args:
            backoff: Delays between retries. Reset after each new view.
        """
        session = self._own_session if self._own_session is not None else await ask(self._store.primary_session)
        session.ensure_usable()
        has_view = Signal()
        with closing(Waiter(self._store, session)) as waiter, self._store.watch(self._view_log.head_key) as head_watch:
            with self._lock:
                self._head_watch = head_watch
            cancel = session.on_end(head_watch.close)
            writer = Background(partial(self._run_writer, waiter, has_view), f"latchwork-views-{self._what}")
            try:
                while not self._cancelled.is_set():
                    await self._apply_head(await coroutine_of(head_watch.next)(None))
                    self._error = None
                    backoff.reset()
                    has_view.set()
            except Closed:
                if not self._cancelled.is_set():
                    session.ensure_usable()
                    raise
            finally:
                cancel()
                waiter.cancel()
                has_view.set()
                self._read_members_again()
                await writer

    async def _apply_head(self, batch: Batch) -> None:
        """Update the local copy after the head of the log was written or deleted.

        Args:
            batch: Changes of the head, of which only the last one counts.
        """
        entry = batch[-1].entry if batch else None
        if entry is not None:
            await self._replica.advance_to(entry)
        elif self._replica.reset():
            self._read_members_again()

    def _read_members_again(self) -> None:
        """Close the watch of the members, so that the writer opens another one and reads all members again."""
        with self._lock:
            member_watch = self._member_watch
        if member_watch is not None:
            member_watch.close()

    # Writing

    async def _run_writer(self, waiter: Waiter, has_view: Signal) -> None:
        """Queue for the role of the writer, and write views while this process has it or is the deputy.

        Args:
            waiter: Ends the loop when it is canceled.
            has_view: Set when the newest view is known, or when the waiter is canceled.
        """
        backoff = Backoff()
        while not waiter.is_cancelled:
            try:
                position = await self._follower_queue.join(waiter.session, {_WRITES: False})
                try:
                    schedule = await self._wait_for_role(position, waiter)
                    await Pause(self._store.clock, has_view, None)
                    if schedule is not None:
                        await self._write(position, waiter, schedule)
                finally:
                    await self._follower_queue.leave(position)
            except PermissionDenied as error:
                _log.info("%s: leaving views for other members to write: %s", self._what, error)
                return
            except Closed:
                continue
            except LatchworkError as error:
                _log.info("%s: writing views failed, retrying: %s", self._what, error)
            except Exception:
                _log.exception("%s: writing views failed unexpectedly, retrying", self._what)
            await waiter.pause(backoff.next_s())

    async def _wait_for_role(self, position: QueuePosition, waiter: Waiter) -> WriteSchedule | None:
        """Wait until this process is the writer of the views or its deputy.

        Returns:
            The schedule of the writer or of the deputy. None if canceled.
        """
        gone_or_writer = ""
        while not waiter.is_cancelled:
            ahead = await self._follower_queue.find_tickets_ahead(position)
            if not ahead or ahead[-1] == gone_or_writer:  # the ticket still exists, so its process is the writer
                return WriteSchedule(is_writer=not ahead)
            if not await wait_until_ticket_gone(ahead[-1], _is_not_writer, waiter, Deadline(self._store.clock, None)):
                return None
            gone_or_writer = ahead[-1]
        return None

    async def _write(self, position: QueuePosition, waiter: Waiter, schedule: WriteSchedule) -> None:
        """Write a new view whenever the members differ from the newest view: as the writer at once, as the deputy a
        little later.

        Args:
            position: Our position in the queue of observing processes.
            waiter: Ends the loop when it is canceled.
            schedule: Whether we are the writer, and when to write.
        """
        tokens: dict[str, int] = {}
        outdated: dict[str, Entry | None] = dict.fromkeys(self._replica.list_ids())
        pause_s: float | None = None
        role_write = self._start_role_write(position) if schedule.is_writer else None
        with self._store.watch(self._view_log.members_key) as watch:
            with self._lock:
                self._member_watch = watch
            while not waiter.is_cancelled:
                with suppress(WaitTimeout):
                    outdated |= self._update_tokens(await coroutine_of(watch.next)(pause_s), tokens)
                outdated = self._select_outdated(outdated, tokens)
                now = self._store.clock.now()
                action = schedule.next_action(now, is_behind=bool(outdated))
                if action == "check" and not await self._follower_queue.find_tickets_ahead(position):
                    schedule.is_writer, role_write = True, self._start_role_write(position)
                    action = schedule.next_action(now, is_behind=True)
                if action == "write":
                    schedule.record_write(now)
                    await self._append(outdated, tokens)
                    outdated = self._select_outdated(outdated, tokens)
                if role_write is not None:  # confirmed last, because no view depends on it
                    with suppress(Conflict):  # it says so already, or is gone, which the end of the session shows
                        await PendingCall(role_write)
                    role_write = None
                pause_s = schedule.pause_s(self._store.clock.now(), is_behind=bool(outdated))

    def _select_outdated(
        self, members: Mapping[str, Entry | None], tokens: Mapping[str, int]
    ) -> dict[str, Entry | None]:
        """Return the members whose current state the newest view lacks.

        Args:
            members: Entries by member ID. None for a member that has left.
            tokens: Token of the last write by member ID.
        """
        return {name: entry for name, entry in members.items() if self._replica.is_outdated(name, tokens.get(name))}

    def _update_tokens(self, batch: Batch, tokens: dict[str, int]) -> dict[str, Entry | None]:
        """Update a table of tokens from changes of member keys.

        Args:
            batch: The changes.
            tokens: Token of the last write by member ID.
        Returns:
            The entries of the changed members by ID. None for a member that has left.
        """
        changed: dict[str, Entry | None] = {}
        for change in batch:
            if change.key.rpartition("/")[0] != self._view_log.members_key:
                continue
            name = parse_member_id(change.key)
            changed[name] = change.entry
            if change.entry is None:
                tokens.pop(name, None)
            else:
                tokens[name] = change.entry.token
        return changed

    async def _append(self, members: Mapping[str, Entry | None], tokens: Mapping[str, int]) -> None:
        at, state = self._replica.current()
        if at is None and tokens.keys() - members.keys():  # the log was deleted after they were read
            members = dict.fromkeys(tokens)
        try:
            written = await self._view_log.append(at, state, members)
        except Conflict:  # another was faster, which the watch will show
            is_deleted = at is not None and await ask(self._store.get, self._view_log.head_key) is None
            if is_deleted and self._replica.reset(at):  # a watch may merge the creation and the deletion to no change
                self._read_members_again()
            return
        if written is None:
            return
        entry, head, step = written
        self._replica.apply_steps(entry, head, [step])
        _log.info("%s: view %d changes %d members", self._what, step.number, step.changes)
        await self._view_log.remove_old_after(at, head)

    def _start_role_write(self, position: QueuePosition) -> Future[Committed]:
        """Start to store in our ticket that this process is the writer of the views, so that the next one becomes its
        deputy.
        """
        body = {**Ticket.from_entry(position.ticket).body, _WRITES: True}
        return self._store.start_call(
            "commit", [At(position.ticket)], [Put(position.ticket.key, encode(body), position.session)]
        )


def _is_not_writer(ticket: Ticket) -> bool:
    return ticket.body.get(_WRITES) is not True
