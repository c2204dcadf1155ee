"""``Node``: the life-cycle of a process that runs tasks.

    start -> open a session -> claim and run tasks -> session lost -> stop the tasks -> next session -> ...
    drain: claims no more tasks, and opens no next session
    close: asks tasks to stop, and ends the session

docs/design/tasks.md has the decisions. A system, such as the executor, implements ``WorkerSession``.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from latchwork._base.interrupts import condition
from latchwork._base.signals import end_signals, next_request
from latchwork._base.text import reason
from latchwork.errors import Closed, LatchworkError, MemberEvicted, NodeIdInUse, PermissionDenied, WaitTimeout
from latchwork.store import Backoff, Session, Store
from latchwork.store.forks import ForkGuard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from latchwork.tasks.running.slots import Slots
    from latchwork.tasks.running.worker_loop import WorkerLoop

_log = logging.getLogger(__name__)

#: Errors that a retry does not fix. ``Closed``: the store was closed, or an object that the node uses.
_FINAL = (NodeIdInUse, MemberEvicted, PermissionDenied, Closed)
#: Seconds that the tasks of a lost session have to stop before the next session begins.
_LOST_S = 10.0
#: Seconds between two checks for a second signal during a drain.
_HURRIED_S = 0.5
#: The request that ends ``run_forever`` without a signal.
_ENDED = "close()"


class WorkerSession(Protocol):
    """The work of a node during one session with the store, implemented by each system. Thread-safe.

    Construction does no I/O.
    """

    @property
    def session(self) -> Session:
        """The session that the claims are bound to. ``close`` closes it."""

    @property
    def worker_loop(self) -> WorkerLoop:
        """The loop that claims and runs the tasks."""

    @property
    def slots(self) -> Slots:
        """The slots that run the tasks."""

    def start(self) -> None:
        """Join the group of nodes and start to claim tasks.

        Raises:
            LatchworkError: It cannot join now. The node calls ``close`` next.
        """

    def drain(self, timeout_s: float | None) -> bool:
        """Claim no more tasks, and wait for the running ones.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Returns:
            Whether all tasks have ended; False after the timeout.
        """

    def close(self, timeout_s: float) -> list[str]:
        """Ask all tasks to stop, release their claims, leave the group, and close the session. A ``start`` in progress
        is ended, too.

        Idempotent. Several threads may call it at once; the shortest timeout counts.

        Args:
            timeout_s: Seconds to wait for the tasks.
        Returns:
            The paths of the tasks that still run.
        """

    def unavailable_reason(self) -> str | None:
        """Return the reason why no tasks can be claimed now, or None if they can be claimed."""


S = TypeVar("S", bound=WorkerSession)


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """Whether a node can do its work.

    Attributes:
        ok: Whether it has joined, renews its session and can take tasks.
        reasons: Why it cannot do its work; empty if it can.
        session_remaining_s: Seconds for which its session is certain to last.
        is_draining: Whether ``drain`` was called, so that it takes no more tasks.
    """

    ok: bool
    reasons: tuple[str, ...]
    session_remaining_s: float
    is_draining: bool


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """The current tasks of a node, and its counters over all its sessions.

    Attributes:
        node_id: ID of the node.
        slots: Number of tasks that it runs at a time.
        running: Number of tasks that it has now.
        stuck: IDs of tasks that were asked to stop and still run, sorted.
        taken: Number of tasks taken.
        done: Number of tasks whose outcome was stored.
        released: Number of tasks returned to the queue.
        dead_lettered: Number of tasks that became dead letters.
        lost: Number of tasks whose claim was lost.
    """

    node_id: str
    slots: int
    running: int
    stuck: tuple[str, ...]
    taken: int
    done: int
    released: int
    dead_lettered: int
    lost: int


class Node(ABC, Generic[S]):
    """The base class of processes that run tasks. Construction does no I/O. Thread-safe.

    Args:
        store: The store. The caller closes it.
        node_id: ID of the node.
        what: Description of the node for messages and logs: ``worker 'n1'``.
        slots: Number of tasks that it runs at a time.
        session_ttl_s: TTL of its sessions in seconds.
        drain_s: Seconds that ``run_forever`` gives tasks to end by themselves.
        close_s: Seconds that ``close`` waits for tasks by default.
    """

    def __init__(
        self,
        store: Store,
        node_id: str,
        *,
        what: str,
        slots: int,
        session_ttl_s: float,
        drain_s: float = 30.0,
        close_s: float = 30.0,
    ) -> None:
        self._store = store
        self._id = node_id
        self._what = what
        self._slots = slots
        self._ttl_s = session_ttl_s
        self._drain_s = drain_s
        self._close_s = close_s
        self._home = ForkGuard(what)
        self._changed = condition()
        self._end_requests: SimpleQueue[str] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._work: S | None = None
        self._is_ready = self._is_draining = self._is_closed = False
        self._error: LatchworkError | None = None
        self._trouble = ""
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _create_worker_session(self, session: Session) -> S:
        """Create the object that does the work of one session. Does no I/O."""

    def start(self) -> None:
        """Start a thread that joins the group of nodes and claims tasks. Idempotent.

        Raises:
            Closed: The node was closed or drained.
            ForkedProcess: The node was created by a parent of this process.
        """
        self._home.check()
        with self._changed:
            self._check_not_ended()
            if self._thread is None:
                thread = threading.Thread(target=self._run_sessions, name=f"latchwork-node-{self._id}", daemon=True)
                thread.start()
                self._thread = thread

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the node accepts tasks.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Raises:
            NodeIdInUse, MemberEvicted, PermissionDenied: The node has failed, and will never accept tasks.
            WaitTimeout: The node does not accept tasks yet. The message says why.
            Closed: The node was closed or drained.
        """
        self._home.check()
        clock = self._store.clock
        until = None if timeout_s is None else clock.now() + timeout_s
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                self._check_not_ended()
                if self._is_ready:
                    return
                left_s = None if until is None else until - clock.now()
                if left_s is not None and left_s <= 0.0:
                    raise WaitTimeout(f"{self._what} {self._explain_not_ready()}")
                clock.wait_condition(self._changed, left_s)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Accept no more tasks, and wait for the running ones. If the session is lost, the node does not join again.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Returns:
            Whether all tasks have ended. Call ``close`` in either case.
        """
        self._home.check()
        with self._changed:
            self._is_draining = True
            work = self._work
            self._changed.notify_all()
        return work is None or work.drain(timeout_s)

    def close(self, timeout_s: float | None = None) -> list[str]:
        """Ask all tasks to stop, release the claims of those that do not, and leave. Idempotent.

        A second call with a shorter timeout shortens the first one. In a forked child it does nothing.

        Args:
            timeout_s: Seconds to wait for tasks; None uses the timeout of an earlier call, or else the default of the
                node.
        Returns:
            The paths of the tasks that still run. Other nodes can take them when the session has ended.
        """
        if self._home.is_foreign:
            return []
        with self._changed:
            self._is_closed = True
            self._close_s = close_s = self._close_s if timeout_s is None else timeout_s
            thread, work = self._thread, self._work
            self._changed.notify_all()
        self._end_requests.put(_ENDED)
        left = [] if work is None else work.close(close_s)
        if left:
            _log.warning("%s: %d tasks did not end in time: %s", self._what, len(left), left[:5])
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        return left

    def run_forever(self, *, drain_s: float | None = None) -> list[str]:
        """Run the node until SIGTERM, SIGINT or ``close``. The first signal drains the node, the second one closes it
        at once.

        From the third signal on, the handlers that were set before this call apply. Outside the main thread, only
        ``close`` ends this call.

        Args:
            drain_s: Seconds in which tasks may end by themselves; None uses the default of the node.
        Returns:
            The paths of the tasks that still run, as for ``close``.
        Raises:
            NodeIdInUse, MemberEvicted, PermissionDenied: The node cannot run.
        """
        with end_signals(self._end_requests):
            try:
                self.start()
                if next_request(self._end_requests) != _ENDED:
                    self._drain_until_hurried(self._drain_s if drain_s is None else drain_s)
            finally:
                left = self.close()
        if self._error is not None:
            raise self._error
        return left

    def _drain_until_hurried(self, drain_s: float) -> None:
        _log.info("%s takes no more tasks, and waits up to %g s for those that are running", self._what, drain_s)
        clock = self._store.clock
        until = clock.now() + drain_s
        while (left_s := until - clock.now()) > 0.0 and self._end_requests.empty():
            if self.drain(min(_HURRIED_S, left_s)):
                return

    def health(self) -> NodeHealth:
        """Return whether the node can do its work, and the reasons if it cannot. Does no I/O."""
        self._home.check()
        with self._changed:
            work, is_ready, error, trouble = self._work, self._is_ready, self._error, self._explain_not_ready()
        left_s = 0.0 if work is None else work.session.remaining_s()
        if error is not None:
            reasons = [str(error)]
        elif work is None or not is_ready:
            reasons = [f"it {trouble}"]
        else:
            is_stuck = len(work.slots.stuck) >= self._slots
            found = (
                "its session has ended" if left_s <= 0.0 else None,
                "every slot has a task that was asked to stop and still runs" if is_stuck else None,
                work.unavailable_reason(),
            )
            reasons = [each for each in found if each is not None]
        return NodeHealth(not reasons, tuple(reasons), left_s, self._is_draining)

    def stats(self) -> WorkerStats:
        """Return the current tasks and the counters of the node. Does no I/O."""
        self._home.check()
        with self._changed:
            work, counts = self._work, Counter(self._counts)
        running: Sequence[str] = ()
        stuck: Sequence[str] = ()
        if work is not None:
            counts.update(work.worker_loop.stats())
            running, stuck = work.worker_loop.running(), work.slots.stuck
        totals = (counts[name] for name in ("taken", "done", "released", "dead_lettered", "lost"))
        return WorkerStats(self._id, self._slots, len(running), tuple(stuck), *totals)

    def _check_not_ended(self) -> None:
        if self._is_closed:
            raise Closed(f"{self._what} was closed; create another one")
        if self._is_draining:
            raise Closed(f"{self._what} was drained; create another one")

    def _explain_not_ready(self) -> str:
        if self._is_closed:
            return "was closed"
        if self._thread is None:
            return "was not started"
        return f"takes no tasks: {self._trouble}" if self._trouble else "takes no tasks yet"

    # The thread

    def _run_sessions(self) -> None:
        backoff = Backoff()
        while not self._is_ending():
            try:
                self._run_session(backoff)
            except Exception as error:
                if not self._is_ending() and self._record_error(error):
                    self._end_requests.put(_ENDED)
                    return
            with self._changed:
                if not self._is_ending():
                    self._store.clock.wait_condition(self._changed, backoff.next_s())

    def _is_ending(self) -> bool:
        return self._is_closed or self._is_draining

    def _record_error(self, error: Exception) -> bool:
        """Record and log an error of a session.

        Args:
            error: The error.
        Returns:
            Whether the error ends the node, because a retry cannot help.
        """
        why = reason(error)
        with self._changed:
            is_new, self._trouble = why != self._trouble, why
            if isinstance(error, _FINAL):
                self._error = error
            self._changed.notify_all()
        if self._error is not None:
            _log.error("%s ends: %s", self._what, why)
        elif not isinstance(error, LatchworkError):
            _log.error("%s failed unexpectedly, retrying", self._what, exc_info=error)
        else:
            _log.log(logging.WARNING if is_new else logging.DEBUG, "%s: retrying: %s", self._what, why)
        return self._error is not None

    def _run_session(self, backoff: Backoff) -> None:
        """Open a session and run tasks in it, until the session is lost or the node is closed."""
        session = self._store.open_session(self._ttl_s)
        try:
            work = self._create_worker_session(session)
        except BaseException:
            session.close()
            raise
        with self._changed:
            is_late = self._is_ending()
            self._work = None if is_late else work
        if is_late:
            work.close(0.0)
            return
        forget = session.on_end(self._notify)
        try:
            work.start()
            backoff.reset()
            self._wait_for_end(session)
        finally:
            forget()
            with self._changed:
                self._is_ready = False
                self._changed.notify_all()
            work.close(self._close_s if self._is_closed else _LOST_S)
            with self._changed:
                self._counts.update(work.worker_loop.stats())
                self._work = None

    def _wait_for_end(self, session: Session) -> None:
        _log.info("%s is ready and runs up to %d tasks at a time", self._what, self._slots)
        with self._changed:
            self._is_ready, self._trouble = True, ""
            self._changed.notify_all()
            while not self._is_closed:
                if session.state not in ("active", "suspect"):
                    _log.warning("%s has lost its session; other nodes take over its tasks", self._what)
                    return
                self._store.clock.wait_condition(self._changed, None)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def default_node_id(fallback: str = "node") -> str:
    """Generate an ID for a node: the name of the host and six random characters.

    Args:
        fallback: Name to use if the host has none.
    """
    host = "".join(each for each in socket.gethostname() if each.isalnum() or each in "-_")[:60] or fallback
    return f"{host}-{os.urandom(3).hex()}"
