"""``Worker``: a process that runs the tasks of its groups, each in a child of its own.

docs/design/0025 has the steps and the races.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from latchwork.checks import check_store
from latchwork.clock import SIGNALS_S
from latchwork.errors import Closed, LatchworkError, MemberEvicted, NodeIdInUse, PermissionDenied, WaitTimeout
from latchwork.interrupts import Finally
from latchwork.store import Backoff, Store, session_ttl_s
from latchwork.store.driving.background import Background
from latchwork.store.forks import Home
from latchwork.store.steps import Pause, Signal, ask, called
from latchwork.words import reason
from latchwork.workflows.definitions.model import NAME_PATTERN
from latchwork.workflows.home import Home as WorkflowsHome
from latchwork.workflows.keys import Keys, workflows_store
from latchwork.workflows.logs import LogStore
from latchwork.workflows.secrets import Secrets
from latchwork.workflows.types import TaskTypes
from latchwork.workflows.worker.options import WorkerOptions
from latchwork.workflows.worker.shift import Shift
from latchwork.workflows.worker.tenants import runs_as_root
from latchwork.workflows.worker.work_folder import ATTEMPTS, BUNDLES, work_folder

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger(__name__)

#: The TTL of a worker's session unless it or the URL gives one.
SESSION_TTL_S = 30.0
#: Errors after which a worker does not begin anew.
_FINAL = (NodeIdInUse, MemberEvicted, PermissionDenied)


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """Whether a worker can do its work.

    Attributes:
        ok: it takes tasks, and its logs are written.
        reasons: why not; empty if so.
        running: attempts that are here.
        session_remaining_s: seconds for which its session is certain.
    """

    ok: bool
    reasons: tuple[str, ...]
    running: int
    session_remaining_s: float


class Worker:
    """Runs tasks: ``with Worker(store, logs=open_logs(url)) as worker: worker.run_forever()``.

    It pulls: what it takes is its own as long as its session lasts, and its children end before that can. After a lost
    session it begins anew. Construction does no I/O. Safe to share between threads.

    Args:
        store: the root store of the workflows. It stays the caller's.
        logs: where logs and code bundles are.
        name: who we are, one live worker has it; the host's name with six characters more by default.
        options: how to run tasks.
        types: what can be run; ours and those that are installed by default.
        secrets: what this machine can tell; variables and installed packages by default.
        root: the name of the installation in the store.
    """

    def __init__(
        self,
        store: Store,
        *,
        logs: LogStore,
        name: str | None = None,
        options: WorkerOptions | None = None,
        types: TaskTypes | None = None,
        secrets: Secrets | None = None,
        root: str = "default",
    ) -> None:
        check_store(store, "a worker")
        self.name = _default_name() if name is None else name
        if re.match(NAME_PATTERN, self.name) is None:
            raise ValueError(f"{self.name!r} is no name of a worker; use letters, digits, '_', '-' and '.'")
        self.options = options or WorkerOptions()
        self._work_dir = self.options.work_dir or WorkflowsHome.of().folder / "work"
        self._store = workflows_store(store)
        self._keys = Keys(root)
        self._logs = logs
        self._types = types or TaskTypes()
        self._secrets = secrets or Secrets()
        self._host = socket.gethostname()
        self._home = Home(f"worker {self.name!r}")
        self._changed = threading.Condition()
        self._stop = Signal()
        self._is_draining = self._is_ready = False
        self._shift: Shift | None = None
        self._background: Background | None = None
        self._error: LatchworkError | None = None
        self._trouble = ""
        self._close_s = 30.0

    def __repr__(self) -> str:
        return f"<Worker {self.name!r}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Join and begin to take tasks, in the background. Twice is fine.

        Raises:
            Closed: it was closed.
            LatchworkError: another user can change its work folder, or it cannot be made.
        """
        self._home.check()  # first: a child of a fork may find the lock held for ever
        self._work_dir = work_folder(self._work_dir)
        for each in (ATTEMPTS, BUNDLES):
            work_folder(self._work_dir / each)
        with Finally(self._unless_started), self._changed:
            if self._stop.is_set():
                raise Closed(f"worker {self.name!r} was closed; make another one")
            if self._background is None:
                if runs_as_root(self.options.tenants):
                    _log.warning(
                        "worker %s: tasks without a tenant run as root; list the users of tasks with --tenants, or run "
                        "the worker as another user",
                        self.name,
                    )
                self._background = Background(self._live, f"latchwork-flows-worker-{self.name}")

    def _unless_started(self) -> None:
        """After an interrupt in it: what has begun unseen ends."""
        if self._background is None:
            self._stop.set()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until it takes tasks.

        Raises:
            NodeIdInUse, MemberEvicted, PermissionDenied: it never will.
            WaitTimeout: it does not yet, and why.
            Closed: it was closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._error is not None or self._stop.is_set(), timeout_s)
            if self._error is not None:
                raise self._error
            if self._stop.is_set():
                raise Closed(f"worker {self.name!r} was closed; make another one")
            if not self._is_ready:
                why = f": {self._trouble}" if self._trouble else ""
                raise WaitTimeout(f"worker {self.name!r} takes no tasks yet{why}")

    def drain(self, timeout_s: float | None = None) -> bool:
        """Take nothing more, and wait for what runs; False when the time is over. ``close`` then."""
        self._home.check()
        with self._changed:
            self._is_draining = True
            shift = self._shift
        return True if shift is None else shift.drain(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Tell all tasks to end, give back those that do not by themselves, and leave. Twice is fine.

        Args:
            timeout_s: seconds to wait for tasks; by default as long as they may take to end.
        """
        if self._home.is_foreign:
            return
        self._close_s = self.options.stop_grace_s + 10.0 if timeout_s is None else timeout_s
        self._stop.set()
        with self._changed:
            background, shift = self._background, self._shift
            self._changed.notify_all()
        if shift is not None:
            left = shift.end(self._close_s)
            if left:
                _log.warning("worker %s: %d tasks did not end in time: %s", self.name, len(left), left[:5])
        if background is not None and not background.is_mine:
            background.block()

    def run_forever(self) -> None:
        """Run until SIGTERM or SIGINT comes, or it is closed; then let tasks end for ``drain_s``, and close.

        What did not end is given back, which uses up none of its attempts. A second signal waits for nothing. In the
        main thread.

        Raises:
            NodeIdInUse, MemberEvicted, PermissionDenied: it cannot run.
        """
        self.start()
        told: list[int] = []

        def tell(number: int, _frame: FrameType | None) -> None:
            told.append(number)

        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, tell) for number in numbers}
        try:
            with self._changed:
                while not told and not self._stop.is_set() and self._error is None:
                    self._changed.wait(SIGNALS_S)
            if told:
                self._drain_unless_hurried(told)
            self.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._error is not None:
            raise self._error

    def _drain_unless_hurried(self, told: list[int]) -> None:
        clock = self._store.clock
        until = clock.now() + self.options.drain_s
        _log.info("worker %s takes nothing more, and waits %g s for its tasks", self.name, self.options.drain_s)
        while len(told) == 1 and clock.now() < until and not self.drain(min(SIGNALS_S, until - clock.now())):
            pass

    def health(self) -> WorkerHealth:
        """Whether it can do its work. Does no I/O."""
        with self._changed:
            shift, is_ready, error, trouble = self._shift, self._is_ready, self._error, self._trouble
        reasons = [str(error)] if error is not None else []
        if error is None and not is_ready:
            reasons.append(f"it takes no tasks{': ' + trouble if trouble else ' yet'}")
        if shift is not None and not shift.health.is_ok:
            reasons.append(f"its logs cannot be written: {shift.health.error}")
        running = [] if shift is None else shift.feeder.running()
        left_s = 0.0 if shift is None else shift.session.remaining_s()
        return WorkerHealth(not reasons, tuple(reasons), len(running), left_s)

    # The thread

    async def _live(self) -> None:
        backoff = Backoff()
        while not self._stop.is_set() and not self._is_draining:
            try:
                await self._work(backoff)
            except _FINAL as error:
                if not self._stop.is_set():
                    _log.error("worker %s ends: %s", self.name, error)
                    self._note(error=error)
                return
            except LatchworkError as error:
                if not self._stop.is_set():
                    _log.warning("worker %s takes no tasks, and tries again: %s", self.name, error)
                    self._note(trouble=str(error))
            except Exception as error:  # nobody must vanish silently, whatever went wrong once
                _log.exception("worker %s failed unexpectedly, and begins anew", self.name)
                self._note(trouble=reason(error))
            await Pause(self._store.clock, self._stop, backoff.next_s())

    async def _work(self, backoff: Backoff) -> None:
        """One shift."""
        ttl_s = session_ttl_s(self._store, self.options.session_ttl_s, SESSION_TTL_S)
        session = await ask(self._store.open_session, ttl_s)
        shift = Shift(
            self._store,
            self._keys,
            self.name,
            self._host,
            self.options,
            work_dir=self._work_dir,
            logs=self._logs,
            types=self._types,
            secrets=self._secrets,
            session=session,
        )
        ended = Signal()
        cancel = session.on_end(ended.set)
        with self._changed:
            self._shift = shift
        try:
            if self._stop.is_set():
                return
            await called(shift.begin)
            if self._is_draining:
                await called(shift.drain, 0.0)
            backoff.reset()
            self._note(is_ready=True)
            groups = ", ".join(self.options.groups)
            _log.info("worker %s takes tasks of %s, %d at a time", self.name, groups, self.options.slots)
            take_back = self._stop.call_when_set(ended.set)
            await Pause(self._store.clock, ended, None)
            take_back()
        finally:
            cancel()
            self._note()
            await called(shift.end, self._close_s)
            with self._changed:
                self._shift = None

    def _note(self, *, is_ready: bool = False, trouble: str = "", error: LatchworkError | None = None) -> None:
        with self._changed:
            self._is_ready, self._trouble = is_ready, trouble
            self._error = error or self._error
            self._changed.notify_all()


def _default_name() -> str:
    host = "".join(each for each in socket.gethostname() if each.isalnum() or each in "-_")[:60] or "worker"
    return f"{host}-{os.urandom(3).hex()}"
