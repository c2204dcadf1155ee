"""Runs tasks of plans: as many at a time as it has slots, whoever's plans they are. After a lost session it goes on."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from latchwork.errors import Closed, LatchworkError
from latchwork.interrupts import Finally, mutex
from latchwork.plans.keys import NAME
from latchwork.plans.place import Place, now_ms
from latchwork.plans.retention import Retention, next_due_ms
from latchwork.plans.running.limits import is_limited
from latchwork.plans.running.shift import Shift, Way
from latchwork.primitives.waiting import Starts
from latchwork.store import Backoff, Mirror, Store
from latchwork.store import session_ttl_s as ttl_s
from latchwork.store.driving.background import Background
from latchwork.store.driving.bell import Bell
from latchwork.store.steps import Pause, Signal, ask, called
from latchwork.tasks import DEFAULT, Failure, Functions, Payloads, Slots
from latchwork.words import counted

if TYPE_CHECKING:
    from latchwork.tasks import RunIn
    from latchwork.types import Entry

_log = logging.getLogger(__name__)

#: The TTL of a worker's session unless it or the URL gives one.
SESSION_TTL_S = 10.0
#: Tasks of a session that was lost have so many seconds to listen, before the next shift begins.
_END_S = 10.0
#: Places of limited plans are looked after so often, where there are any.
_TIDY_S = 5.0
#: The machine's clock may be set: look again after so many seconds.
_MOST_WAIT_S = 600.0


class PlanWorker(Starts):
    """Takes tasks of plans whose dependencies are done, and runs them. Safe to share between threads.

    ``with PlanWorker(store, slots=4): ...`` works until the end of the block. After its session is lost, its tasks are
    told to stop, others run them, and it begins anew.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the name of the plans.
        slots: so many tasks at a time.
        functions: what may be run; those of ``@task`` by default.
        run_in: ``thread``, or ``process``: a child for each slot, which can be stopped by force.
        context: given to tasks that have a parameter annotated ``TaskContext``, as ``context.context``.
        allow_pickle: whether pickled arguments are read: whoever can write to the store can then run code here.
        session_ttl_s: seconds after which the tasks of a worker that died are free; None for that of the URL, else 10.
        label: what others see of it.
        on_failure: called with plan, task and failure of each try that raised.
    """

    def __init__(
        self,
        store: Store,
        name: str = NAME,
        *,
        slots: int = 1,
        functions: Functions = DEFAULT,
        run_in: RunIn = "thread",
        context: object = None,
        allow_pickle: bool = False,
        session_ttl_s: float | None = None,
        label: str = "",
        on_failure: Callable[[str, str, Failure], object] | None = None,
    ) -> None:
        self._task_store = store
        self._place = Place(store, name)
        self._store = self._place.store
        payloads = Payloads(allow_pickle=allow_pickle)
        Slots(slots, functions, payloads, run_in=run_in)  # refuses what cannot be
        named = label or threading.current_thread().name
        self._way = Way(slots, functions, run_in, payloads, named, context, self._failed)
        self._ttl_s = ttl_s(store, session_ttl_s, SESSION_TTL_S)
        self._on_failure = on_failure
        self._mutex = mutex()
        self._stop = Signal()
        self._plans: Mirror | None = None
        self._taken: Mirror | None = None
        self._workers: Mirror | None = None
        self._shift: Shift | None = None
        self._counts: Counter[str] = Counter()
        self._news = Bell()
        self._threads: list[Background] = []
        self._is_started = False

    def __repr__(self) -> str:
        return f"<PlanWorker {self._place.keys.name!r}, {counted(self._way.slots, 'slot')}>"

    def start(self) -> None:
        """Begin to take tasks, in the background. Twice is fine.

        Raises:
            Closed: it was closed.
            Unavailable: the plans could not be read.
        """
        if self._stop.is_set():
            raise Closed("this worker was closed; make another one")
        with Finally(self._unless_started):
            if self._is_started:
                return
            plans = self._store.mirror(self._place.keys.plans)
            with self._mutex:
                if self._plans is None:
                    self._plans = plans
            if self._plans is not plans:  # another thread starts it
                plans.close()
                return
            self._taken = self._store.mirror(self._place.keys.places)
            self._workers = self._store.mirror(self._place.keys.workers)
            self._threads.append(Background(self._live, f"latchwork-plans-{self._way.label}"))
            self._threads.append(Background(self._keep, f"latchwork-plans-results-{self._way.label}"))
            plans.on_change(self._plans_changed)
            self._taken.on_change(self._place_given_back)
            self._is_started = True

    def _unless_started(self) -> None:
        if not self._is_started and self._plans is not None:
            self.end_soon()

    def end_soon(self) -> None:
        """After an interrupt: close, in the background."""
        Background(partial(called, self.close), f"latchwork-plans-close-{self._way.label}")

    def stats(self) -> Mapping[str, int]:
        """How many items were ``taken``, ``done``, ``released`` and ``lost`` since the start."""
        with self._mutex:
            counts, shift = Counter(self._counts), self._shift
        if shift is not None:
            counts.update(shift.feeder.stats())
        return dict(counts)

    def close(self, timeout_s: float = 30.0) -> list[str]:
        """Take nothing more, tell tasks to stop, give back what did not end. Twice is fine.

        Args:
            timeout_s: seconds to wait for tasks.
        Returns:
            The items of tasks that go on all the same; they are free when our session has ended.
        """
        self._stop.set()
        with self._news.mutex:
            self._news.ring()
        with self._mutex:
            threads, shift, mirrors = list(self._threads), self._shift, (self._plans, self._taken, self._workers)
        left = shift.end(timeout_s) if shift is not None else []
        for each in threads:
            each.block()
        for mirror in mirrors:
            if mirror is not None:
                mirror.close()
        self._place.backlog.close()
        return left

    # The thread

    async def _live(self) -> None:
        backoff = Backoff()
        while not self._stop.is_set():
            try:
                await self._work(backoff)
            except Closed:
                return
            except LatchworkError as error:
                _log.warning("worker %s of plans begins anew: %s", self._way.label, error)
            except Exception:  # nobody must vanish silently, whatever went wrong once
                _log.exception("worker %s of plans failed unexpectedly, and begins anew", self._way.label)
            await Pause(self._store.clock, self._stop, backoff.next_s())

    async def _work(self, backoff: Backoff) -> None:
        """One shift: what it had is run by others, or by the next one."""
        session = await ask(self._store.open_session, self._ttl_s)
        assert self._plans is not None
        assert self._taken is not None
        assert self._workers is not None
        mirrors = (self._plans, self._taken, self._workers)
        shift = Shift(self._task_store, self._place, mirrors, self._way, session=session, stop=self._stop)
        ended = Signal()
        cancel = session.on_end(ended.set)
        with self._mutex:
            self._shift = shift
        try:
            if self._stop.is_set():
                return
            await shift.mates.join(self._store)
            shift.begin()
            backoff.reset()
            take_back = self._stop.call_when_set(ended.set)
            await Pause(self._store.clock, ended, None)
            take_back()
            if not self._stop.is_set():
                _log.warning("worker %s of plans has lost its session; others run what it had", self._way.label)
        finally:
            cancel()
            shift.end(_END_S)
            with self._mutex:
                self._counts.update(shift.feeder.stats())
                self._shift = None

    def _failed(self, plan: str, task: str, failure: Failure) -> None:
        _log.info("task %s of plan %s raised %s", task, plan, failure.summary)
        if self._on_failure is not None:
            try:
                self._on_failure(plan, task, failure)
            except Exception:
                _log.exception("on_failure of a worker of plans raised")

    def _plans_changed(self, *_: object) -> None:
        if self._stop.is_set():
            return
        with self._news.mutex:
            self._news.ring()
        with self._mutex:
            shift = self._shift
        if shift is not None:
            shift.plans_changed()

    def _place_given_back(self, *_: object) -> None:
        with self._mutex:
            shift = self._shift
        if shift is not None:
            shift.place_given_back()

    async def _tidy(self, plans: Iterable[Entry]) -> float | None:
        """Look after the places of limited plans; in how many seconds again, None for never."""
        with self._mutex:
            shift = self._shift
        if shift is None or not any(is_limited(each.value) for each in plans):
            return None
        await shift.tidy()
        return _TIDY_S

    async def _keep(self) -> None:
        """Delete results when their time is over. While there are none with a time this waits, and asks nothing."""
        retention, plans, clock, backoff = Retention(self._place), self._plans, self._store.clock, Backoff()
        assert plans is not None
        while True:
            with self._news.mutex:
                rings = self._news.rings
                if self._stop.is_set():  # looked at with the rings: a close in between is a ring more
                    return
            try:
                entries = list(plans.snapshot().values())
                due_ms = next_due_ms(entries)
                if due_ms is not None and due_ms <= now_ms():
                    await retention.trim_all(entries, now_ms())
                    await Pause(clock, self._stop, backoff.next_s())  # until the mirror has what was written
                    continue
                tidy_s = await self._tidy(entries)
            except Closed:
                return
            except LatchworkError as error:
                _log.info("results of plans whose time is over stay for now: %s", error)
                await Pause(clock, self._stop, backoff.next_s())
                continue
            backoff = Backoff()
            left_s = tidy_s
            if due_ms is not None:
                left_s = min(tidy_s or _MOST_WAIT_S, max(0.001, (due_ms - now_ms()) / 1000.0))
            await self._news.rung(rings, clock, left_s)
