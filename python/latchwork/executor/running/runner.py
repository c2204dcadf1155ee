"""``Runner``: a node that runs the tasks of an executor, in threads or in processes of its own.

docs/design/0022-executor.md has the steps and the races.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

from latchwork.checks import is_number
from latchwork.clock import SIGNALS_S
from latchwork.errors import Closed, LatchworkError, MemberEvicted, NodeIdInUse, PermissionDenied, WaitTimeout
from latchwork.executor.keys import NAME, Keys, check_member_id, executor_store
from latchwork.executor.running.lanes import Node
from latchwork.executor.running.shift import Plan, Shift
from latchwork.store import Backoff, Store
from latchwork.store import session_ttl_s as ttl_s
from latchwork.store.driving.background import Background
from latchwork.store.driving.bell import Bell
from latchwork.store.forks import Home
from latchwork.store.keys import validate_name
from latchwork.store.steps import Pause, Signal, ask, driven, ending, run, steps_of
from latchwork.tasks import DEFAULT, Functions, Payloads, RunIn, TaskLoop

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger(__name__)

#: The TTL of a runner's session unless it or the URL gives one.
SESSION_TTL_S = 10.0
#: Errors that no other try mends.
_FINAL = (NodeIdInUse, MemberEvicted, PermissionDenied, Closed)


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """What a runner does and has done.

    Attributes:
        node_id: the runner.
        slots: tasks at a time.
        running: tasks that it has now.
        stuck: tasks that were told to stop, and go on; sorted.
        taken, done, released, buried, lost: counts since it began.
    """

    node_id: str
    slots: int
    running: int
    stuck: tuple[str, ...]
    taken: int
    done: int
    released: int
    buried: int
    lost: int


@dataclass(frozen=True, slots=True)
class RunnerHealth:
    """Whether a runner can do its work.

    Attributes:
        ok: it is in the group, and its session is renewed.
        reasons: why not; empty if so.
        session_remaining_s: seconds for which its session is certain.
        is_draining: it takes nothing more.
    """

    ok: bool
    reasons: tuple[str, ...]
    session_remaining_s: float
    is_draining: bool


class Runner:
    """Runs tasks of an executor: ``with Runner(store, slots=8) as runner: runner.run_forever()``.

    After its session is lost, its tasks are told to stop, others run them, and it begins anew. It runs what is
    registered, and nothing else: what the store says is never imported, evaluated or unpickled, unless it says
    ``allow_pickle``. Not promised: that a thread which ignores ``should_stop`` ends; its slot is taken until it does.
    Construction does no I/O. Safe to share between threads.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the executor's name.
        node_id: who we are, one live member has it; default the host's name with six characters more.
        slots: tasks at a time; default one for each processor.
        run_in: ``thread``, or ``process`` for functions that do not say themselves: a child for each slot, ended by
            force when a task is told to stop and does not.
        functions: what may be run; those registered by ``task`` by default.
        allow_pickle: run pickled functions too: who can write to the store can run any code here then.
        weight: how much we can bear, for pickers that ask.
        labels: what we say of ourselves, for targets.
        accept: called with a function's name: whether to take a task of it now. It must be quick.
        steal_after_s: seconds without work after which tasks of others' lanes are taken; None for never.
        session_ttl_s: seconds after which others have our tasks when we are dead; None for that of the URL, else 10.
        max_attempts: a task that was taken so often, and never ended, becomes a dead letter.
        unknown_after_s: seconds after which a task that no member has the function of ends with ``UnknownFunction``.
        stop_grace_s: seconds from being told to stop to an end by force.
        context: what tasks get as ``TaskContext.context``: connections, models, caches.
    """

    def __init__(
        self,
        store: Store,
        name: str = NAME,
        *,
        node_id: str | None = None,
        slots: int | None = None,
        run_in: RunIn = "thread",
        functions: Functions = DEFAULT,
        allow_pickle: bool = False,
        weight: float = 1.0,
        labels: Mapping[str, str] | None = None,
        accept: Callable[[str], bool] | None = None,
        steal_after_s: float | None = 1.0,
        session_ttl_s: float | None = None,
        max_attempts: int = 5,
        unknown_after_s: float = 60.0,
        stop_grace_s: float = 5.0,
        context: object = None,
    ) -> None:
        system = executor_store(store, "a runner")
        self.name = validate_name(name)
        self.node_id = check_member_id(node_id if node_id is not None else _default_id())
        count = (os.cpu_count() or 1) if slots is None else slots
        if type(count) is not int or count < 1:
            raise ValueError(f"slots must be a whole number from 1, not {slots!r}")
        for option, value in (
            ("steal_after_s", 1.0 if steal_after_s is None else steal_after_s),
            ("unknown_after_s", unknown_after_s),
        ):
            if not is_number(value) or value <= 0:
                raise ValueError(f"{option} must be a number of seconds above 0, not {value!r}")
        self._store = system
        self._task_store = store
        self._keys = Keys(name)
        self._ttl_s = ttl_s(store, session_ttl_s, SESSION_TTL_S)
        self._payloads = Payloads(allow_pickle=allow_pickle)
        self._node = Node(self.node_id, functions, allow_pickle=allow_pickle, labels=labels or {}, accept=accept)
        self._loop = TaskLoop(self.node_id)
        self._plan = Plan(
            count,
            run_in,
            weight,
            dict(labels or {}),
            steal_after_s,
            max_attempts,
            unknown_after_s,
            stop_grace_s,
            context,
            self._loop.run,
        )
        self._home = Home(f"runner {self.node_id!r}")
        self._changed = Bell()
        self._stop = Signal()
        self._shift: Shift | None = None
        self._background: Background | None = None
        self._error: LatchworkError | None = None
        self._counts: dict[str, int] = {}
        self._is_draining = False
        self._is_ready = False
        self._close_s = 30.0

    def __repr__(self) -> str:
        return f"<Runner {self.node_id!r} of executor {self.name!r}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    @ending
    async def __exit__(self, *_: object) -> None:
        await steps_of(self.close)()

    # Life

    def start(self) -> None:
        """Join and begin to take tasks, in the background. Twice is fine.

        Raises:
            Closed: it was closed.
        """
        self._home.check()
        with self._changed.mutex:
            if self._stop.is_set():
                raise Closed(f"runner {self.node_id!r} was closed; make another one")
            if self._background is None:
                self._background = Background(self._live, f"latchwork-runner-life-{self.node_id}")

    @driven
    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until it takes tasks.

        Raises:
            NodeIdInUse, MemberEvicted, PermissionDenied: it never will.
            WaitTimeout: it does not yet.
            Closed: it was closed.
        """
        self._home.check()
        clock = self._store.clock
        until = None if timeout_s is None else clock.now() + timeout_s
        while True:
            with self._changed.mutex:
                if self._error is not None:
                    raise self._error
                if self._stop.is_set():
                    raise Closed(f"runner {self.node_id!r} was closed; make another one")
                if self._is_ready:
                    return
                rings = self._changed.rings
            left_s = None if until is None else until - clock.now()
            if left_s is not None and left_s <= 0.0:
                raise WaitTimeout(f"runner {self.node_id!r} of executor {self.name!r} takes no tasks yet")
            await self._changed.rung(rings, clock, left_s)

    @ending
    async def close(self, timeout_s: float = 30.0) -> None:
        """Tell all tasks to stop, give back what did not end, and leave. From any thread; twice is fine.

        Args:
            timeout_s: seconds to wait for tasks that are told to stop.
        """
        if self._home.is_foreign:
            return
        self._close_s = timeout_s
        self._stop.set()
        with self._changed.mutex:
            background, shift = self._background, self._shift
            self._changed.ring()
        if shift is not None:
            left = shift.end(timeout_s)
            if left:
                _log.warning("runner %s: %d tasks did not end in time: %s", self.node_id, len(left), left[:5])
        if background is not None and not background.is_mine:
            await background
        self._loop.close(0.5)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Leave the group, take nothing more, and wait for what runs; False when the time is over. ``close`` then.

        What is in our lane is everybody's from now on. After a lost session it does not begin anew.
        """
        self._home.check()
        with self._changed.mutex:
            self._is_draining = True
            shift = self._shift
            self._changed.ring()
        return True if shift is None else shift.drain(timeout_s)

    def run_forever(self, *, drain_s: float = 30.0) -> None:
        """Run until SIGTERM or SIGINT comes, or it is closed: then let tasks end, and close. In the main thread.

        Args:
            drain_s: seconds for tasks to end by themselves before they are told to stop.
        Raises:
            NodeIdInUse, MemberEvicted, PermissionDenied: it cannot run.
        """
        self.start()
        told = threading.Event()

        def tell(_number: int, _frame: FrameType | None) -> None:
            told.set()

        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, tell) for number in numbers}
        try:
            while not told.wait(SIGNALS_S) and not self._stop.is_set() and self._error is None:
                pass
            if told.is_set():
                self.drain(drain_s)
            run(steps_of(self.close)())
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._error is not None:
            raise self._error

    # While it runs

    def update(self, *, weight: float | None = None, labels: Mapping[str, str] | None = None) -> None:
        """Change what we say of ourselves, without rejoining. None leaves one as it is.

        Raises:
            SessionLost, Unavailable, OutcomeUnknown, ValueError: see ``Group.update``.
        """
        self._home.check()
        with self._changed.mutex:
            shift = self._shift
        if shift is not None:
            shift.group.update(weight=weight, labels=labels)
        if labels is not None:
            self._node.labels = dict(labels)
        self._plan = replace(
            self._plan,
            weight=self._plan.weight if weight is None else weight,
            labels=self._plan.labels if labels is None else dict(labels),
        )

    def stats(self) -> RunnerStats:
        """What it does and has done. Does no I/O."""
        with self._changed.mutex:
            shift, counts = self._shift, dict(self._counts)
        if shift is not None:
            for name, count in shift.feeder.stats().items():
                counts[name] = counts.get(name, 0) + count
        names = ("taken", "done", "released", "buried", "lost")
        running = 0 if shift is None else len(shift.feeder.running())
        stuck = () if shift is None else tuple(shift.slots.stuck)
        return RunnerStats(self.node_id, self._plan.slots, running, stuck, *(counts.get(name, 0) for name in names))

    def health(self) -> RunnerHealth:
        """Whether it can do its work. Does no I/O."""
        with self._changed.mutex:
            shift, is_ready, error = self._shift, self._is_ready, self._error
        left_s = 0.0 if shift is None else shift.session.remaining_s()
        reasons = [] if error is None else [str(error)]
        if error is None and not is_ready:
            reasons.append("it has not joined yet, or joins again")
        if is_ready and left_s <= 0.0:
            reasons.append("its session has ended")
        if shift is not None and len(shift.slots.stuck) >= self._plan.slots:
            reasons.append("all slots have tasks that were told to stop and go on")
        return RunnerHealth(not reasons, tuple(reasons), left_s, self._is_draining)

    # The thread

    async def _live(self) -> None:
        backoff = Backoff()
        while not self._stop.is_set() and not self._is_draining:
            try:
                await self._work(backoff)
            except _FINAL as error:
                if not self._stop.is_set():
                    _log.error("runner %s ends: %s", self.node_id, error)
                    self._fail(error)
                return
            except LatchworkError as error:
                _log.info("runner %s begins anew: %s", self.node_id, error)
            except Exception:  # nobody must vanish silently, whatever went wrong once
                _log.exception("runner %s failed unexpectedly, and begins anew", self.node_id)
            await Pause(self._store.clock, self._stop, backoff.next_s())

    async def _work(self, backoff: Backoff) -> None:
        """One shift."""
        session = await ask(self._store.open_session, self._ttl_s)
        shift = Shift(
            self._store,
            self._keys,
            self._node,
            self._plan,
            payloads=self._payloads,
            session=session,
            task_store=self._task_store,
        )
        ended = Signal()
        cancel = session.on_end(ended.set)
        with self._changed.mutex:
            self._shift = shift
        try:
            if self._stop.is_set():
                return
            await shift.begin()
            if self._is_draining:
                shift.drain(0.0)
            backoff.reset()
            self._ready(is_ready=True)
            _log.info("runner %s of executor %s takes tasks, %d at a time", self.node_id, self.name, self._plan.slots)
            take_back = self._stop.call_when_set(ended.set)
            await Pause(self._store.clock, ended, None)
            take_back()
        finally:
            cancel()
            self._ready(is_ready=False)
            shift.end(self._close_s)
            self._add_up(shift)

    def _ready(self, *, is_ready: bool) -> None:
        with self._changed.mutex:
            self._is_ready = is_ready
            self._changed.ring()

    def _add_up(self, shift: Shift) -> None:
        with self._changed.mutex:
            for name, count in shift.feeder.stats().items():
                self._counts[name] = self._counts.get(name, 0) + count
            self._shift = None

    def _fail(self, error: LatchworkError) -> None:
        with self._changed.mutex:
            self._error = error
            self._changed.ring()


def _default_id() -> str:
    host = "".join(each for each in socket.gethostname() if each.isalnum() or each in "-_")[:60] or "node"
    return f"{host}-{os.urandom(3).hex()}"
