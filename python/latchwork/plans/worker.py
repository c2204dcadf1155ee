"""Runs tasks of plans: as many at a time as it has slots, whoever's plans they are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from latchwork.errors import BadRecord, Closed, LatchworkError
from latchwork.interrupts import mutex
from latchwork.plans.control import Control
from latchwork.plans.finishing import PlanHooks
from latchwork.plans.keys import split_id
from latchwork.plans.place import Place, now_ms
from latchwork.plans.progress import Progress
from latchwork.plans.records import PlanRecord, PlanState
from latchwork.plans.retention import Retention, next_due_ms
from latchwork.primitives import Backlog
from latchwork.store import Backoff, Mirror, Session, Store
from latchwork.store.driving.background import Background
from latchwork.store.driving.bell import Bell
from latchwork.store.steps import Pause, Signal
from latchwork.tasks import DEFAULT, Failure, Feeder, Functions, GroupCommit, Payloads, Slots

if TYPE_CHECKING:
    from typing_extensions import Self

    from latchwork.tasks import RunIn

_log = logging.getLogger(__name__)

#: No item becomes a dead letter: a task has its own number of attempts.
_NO_LIMIT = 2**31
#: The machine's clock may be set: look again after so many seconds.
_MOST_WAIT_S = 600.0


class PlanWorker:
    """Takes tasks of plans whose dependencies are done, and runs them. Safe to share between threads.

    ``with PlanWorker(store, slots=4): ...`` works until the end of the block. Give it a store of its own where its
    session is to have a TTL of its own.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the name of the plans.
        slots: so many tasks at a time.
        functions: what may be run; those of ``@task`` by default.
        run_in: ``thread``, or ``process``: a child for each slot, which can be stopped by force.
        context: given to tasks that have a parameter annotated ``TaskContext``, as ``context.context``.
        allow_pickle: whether pickled arguments are read: whoever can write to the store can then run code here.
        session_ttl_s: seconds after which the tasks of a worker that died are free.
        label: what others see of it.
        on_failure: called with plan, task and failure of each try that raised.
    """

    def __init__(
        self,
        store: Store,
        name: str = "plans",
        *,
        slots: int = 1,
        functions: Functions = DEFAULT,
        run_in: RunIn = "thread",
        context: object = None,
        allow_pickle: bool = False,
        session_ttl_s: float = 10.0,
        label: str = "",
        on_failure: Callable[[str, str, Failure], object] | None = None,
    ) -> None:
        self._store = store
        self._place = Place(store, name)
        self._payloads = Payloads(allow_pickle=allow_pickle)
        self._slots = Slots(slots, functions, self._payloads, run_in=run_in, label=label, clock=store.clock)
        self._ttl_s = session_ttl_s
        self._label = label or threading.current_thread().name
        self._context = context
        self._on_failure = on_failure
        self._mutex = mutex()
        self._stop = Signal()
        self._session: Session | None = None
        self._plans: Mirror | None = None
        self._commits: GroupCommit | None = None
        self._hooks: PlanHooks | None = None
        self._feeder: Feeder | None = None
        self._news = Bell()
        self._keeper: Background | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PlanWorker {self._place.keys.name!r}, {self._slots.count} slots>"

    def start(self) -> None:
        """Begin to take tasks, in the background. Twice is fine.

        Raises:
            Closed: it was closed.
            Unavailable: the plans could not be read.
        """
        with self._mutex:
            if self._stop.is_set():
                raise Closed("this worker was closed; make another one")
            if self._feeder is not None:
                return
            plans = self._plans = self._store.mirror(self._place.keys.plans)
            session = self._session = self._store.open_session(self._ttl_s)
            backlog = Backlog(
                self._store, self._place.keys.backlog, max_attempts=_NO_LIMIT, session=session, label=self._label
            )
            progress = Progress(self._place)
            hooks = self._hooks = PlanHooks(
                self._place,
                plans,
                payloads=self._payloads,
                progress=progress,
                control=Control(self._place, progress, self._stop),
                failed=self._failed,
                label=self._label,
            )
            self._commits = GroupCommit(self._store, label=self._label)
            self._feeder = Feeder(
                backlog,
                self._slots,
                self._commits,
                hooks,
                store=self._store,
                node_id=self._label,
                context=self._context,
            )
            self._feeder.start()
            self._keeper = Background(self._keep, f"latchwork-plans-results-{self._label}")
        plans.on_change(self._plans_changed)

    def stats(self) -> Mapping[str, int]:
        """How many items were ``taken``, ``done``, ``released`` and ``lost`` since the start."""
        return {} if self._feeder is None else self._feeder.stats()

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
            keeper = self._keeper
            hooks, feeder, commits = self._hooks, self._feeder, self._commits
            plans, session = self._plans, self._session
        left = feeder.close(timeout_s) if feeder is not None else []
        self._slots.close(timeout_s)
        if keeper is not None:
            keeper.block()
        for each in (hooks, commits, plans, session):
            if each is not None:
                each.close()
        self._place.backlog.close()
        return left

    def _failed(self, plan: str, task: str, failure: Failure) -> None:
        _log.info("task %s of plan %s raised %s", task, plan, failure.summary)
        if self._on_failure is not None:
            try:
                self._on_failure(plan, task, failure)
            except Exception:
                _log.exception("on_failure of a worker of plans raised")

    def _plans_changed(self, *_: object) -> None:
        """Plans became ready, or end: look for items, and tell what runs of those that end to stop."""
        feeder, plans = self._feeder, self._plans
        if feeder is None or plans is None or self._stop.is_set():
            return
        with self._news.mutex:
            self._news.ring()
        feeder.poke()
        for path in feeder.running():
            plan_id, task = split_id(path.rpartition("/")[2])
            if not task.startswith("@") and self._ends(plans, plan_id):
                feeder.stop_task(path)

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
            except Closed:
                return
            except LatchworkError as error:
                _log.info("results of plans whose time is over stay for now: %s", error)
                await Pause(clock, self._stop, backoff.next_s())
                continue
            backoff = Backoff()
            left_s = None if due_ms is None else min(_MOST_WAIT_S, max(0.001, (due_ms - now_ms()) / 1000.0))
            await self._news.rung(rings, clock, left_s)

    def _ends(self, plans: Mirror, plan_id: str) -> bool:
        try:
            state = PlanRecord.of(plans[self._place.keys.plan(plan_id)].value).state
        except KeyError:
            return True
        except (BadRecord, LatchworkError):
            return False
        return state in (PlanState.CANCELLING, PlanState.REMOVING)
