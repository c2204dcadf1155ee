"""`PlanWorker`: a node that runs the tasks of all plans below one name in a number of slots.

A worker session is its work during one store session. All claims are bound to that session and end with it.
docs/design/plans.md describes the steps and the races.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from latchwork._base.event import Signal
from latchwork._base.text import counted
from latchwork.errors import BadRecord, Closed, LatchworkError
from latchwork.plans.completion import CallTracker
from latchwork.plans.control import ChildPlans, PlanControl
from latchwork.plans.hooks import PlanHooks
from latchwork.plans.keys import NAME, split_item_id
from latchwork.plans.permits import ParallelLimiter
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.propagation import EagerClaimer, Propagation
from latchwork.plans.records import PlanRecord
from latchwork.plans.removal import PlanRetention, next_expiry_ms, sweep_plans
from latchwork.plans.task_sharding import WorkerSharding
from latchwork.plans.wakeups import is_plan_ending
from latchwork.primitives import WorkQueue
from latchwork.schedules.wall_clock import WallClock
from latchwork.store import Backoff, Session, Store
from latchwork.store import session_ttl_s as ttl_s
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Pause
from latchwork.store.watch import Batch
from latchwork.tasks import DEFAULT, Failure, Functions, GroupCommit, Payloads, RunIn, Slots, WorkerLoop
from latchwork.tasks.children import DeadlineExtender
from latchwork.tasks.node import Node, default_node_id
from latchwork.types import Change

_log = logging.getLogger(__name__)
#: No item becomes a dead letter: tasks count their own attempts.
_NO_LIMIT = 2**31
#: Seconds to wait for the first state of the plans.
_MIRROR_S = 30.0
#: Seconds between checks for orphaned permits, while there are permits.
_ORPHAN_CHECK_S = 5.0
#: Seconds between sweeps by the worker with the first share, and the maximum pause, because the machine's clock may be
#: changed.
_SWEEP_S = 600.0

#: Default TTL of a worker's session in seconds, unless the worker or the URL sets one.
SESSION_TTL_S = 10.0


@dataclass(frozen=True, slots=True)
class PlanWorkerConfig:
    """Configuration of a plan worker.

    Attributes:
        slots: Number of tasks that run at the same time.
        functions: Functions that may be run.
        run_in: ``thread`` or ``process``.
        payloads: Encodes and decodes arguments and results.
        label: Name of the worker that other clients see.
        context: Object that tasks get.
        failed: Called with the plan, the task and the failure of each failed attempt.
    """

    slots: int
    functions: Functions
    run_in: RunIn
    payloads: Payloads
    label: str
    context: object
    failed: Callable[[str, str, Failure], object]


class PlanWorkerSession:
    """The work of a plan worker during one session with the store. Thread-safe.

    Args:
        store: Store that tasks get.
        plan_store: Access to the stored plans.
        config: Configuration of the worker.
        session: Session that claims are bound to; closed at the end.
    """

    def __init__(self, store: Store, plan_store: PlanStore, config: PlanWorkerConfig, *, session: Session) -> None:
        self._plan_store = plan_store
        self.session = session
        self._stop = Signal()
        keys = plan_store.keys
        prefixes = (keys.plans, keys.permits, keys.workers)
        self._mirrors = plans, taken, workers = [plan_store.store.mirror(each, wait=False) for each in prefixes]
        self._plans = plans
        self.limits = ParallelLimiter(keys, taken, session, store.clock)
        self._taken = taken
        self._extender = DeadlineExtender(session.remaining_s)
        self.slots = Slots(
            config.slots,
            config.functions,
            config.payloads,
            run_in=config.run_in,
            deadline_extender=self._extender,
            label=config.label,
            clock=store.clock,
        )
        self._commits = GroupCommit(plan_store.store, label=config.label)
        backlog = WorkQueue(plan_store.store, keys.queue, max_attempts=_NO_LIMIT, session=session, label=config.label)
        propagation = Propagation(plan_store)
        children = ChildPlans(plan_store, config.payloads, session)
        self.peers = WorkerSharding(keys, workers, session)
        claimer = EagerClaimer(plan_store, backlog, session)
        self._hooks = hooks = PlanHooks(
            plan_store,
            plans,
            payloads=config.payloads,
            propagation=propagation,
            control=PlanControl(plan_store, propagation, children),
            children=children,
            failed=config.failed,
            limits=self.limits,
            peers=self.peers,
            claimer=claimer,
            runs=CallTracker(lambda: self.slots.typical_duration_s),
            stop=self._stop,
        )
        self.worker_loop = WorkerLoop(
            backlog, self.slots, self._commits, hooks, store=store, node_id=config.label, context=config.context
        )
        self.limits.request_search = self.worker_loop.request_search
        claimer.free_slots, claimer.start_runs = self.worker_loop.free_capacity, self.worker_loop.run_claims
        self._notifier = Notifier()
        self._threads: list[Background] = []
        #: When ended plans or their results expire, in milliseconds since the epoch, by the key of the plan.
        self._expiries: dict[str, float] = {}
        self._has_permits = False

    def start(self) -> None:
        """Read the plans and start to claim tasks.

        Raises:
            LatchworkError: The plans cannot be read now.
        """
        for mirror in self._mirrors:
            mirror.ready(_MIRROR_S)
        self.peers.register(self._plan_store.store)
        self.worker_loop.start()
        self._threads.append(Background(self._clean_up, f"latchwork-plans-results-{self.session.id[:8]}"))
        self._plans.on_change(self._on_plans_changed)
        self._taken.on_change(self._on_permits_changed)

    def drain(self, timeout_s: float | None) -> bool:
        """Claim no more tasks, and wait for the running ones.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Returns:
            Whether all tasks have ended.
        """
        return self.worker_loop.drain(timeout_s)

    def close(self, timeout_s: float) -> list[str]:
        """Stop all tasks, release their claims, and close the session. Idempotent.

        Args:
            timeout_s: Seconds to wait for the tasks.
        Returns:
            The paths of the tasks that still run.
        """
        self._stop.set()
        self._notify()
        left = self.worker_loop.close(timeout_s)
        self.slots.close(min(timeout_s, 1.0) if left else timeout_s)
        self._hooks.close()
        self._commits.close(timeout_s if self.session.remaining_s() > 0.0 else 0.0)
        for thread in self._threads:
            thread.block()
        for mirror in self._mirrors:
            mirror.close()
        self._extender.close()
        self.session.close()
        return left

    def unavailable_reason(self) -> str | None:
        """Return None, because only a lost session can keep this worker from claiming tasks."""
        return None

    # Reactions to other clients

    def _notify(self) -> None:
        with self._notifier.mutex:
            self._notifier.notify_all()

    def _on_plans_changed(self, batch: Batch) -> None:
        """Search for items, because plans may have become ready. Stop the tasks of plans that are ending."""
        for change in batch:
            self._on_plan_changed(change)
        self._notify()
        self.worker_loop.request_search()
        for path in self.worker_loop.running():
            plan_id, task = split_item_id(path.rpartition("/")[2])
            if not task.startswith("@") and (self._is_plan_ending(plan_id) or self._is_replaced(path)):
                self.worker_loop.stop_task(path)

    def _on_plan_changed(self, change: Change) -> None:
        """Remember when a plan expires. Drop all other cached data of a plan that has ended."""
        try:
            plan = None if change.entry is None else PlanRecord.from_bytes(change.entry.value)
        except BadRecord:
            plan = None
        expiry_ms = None if plan is None else next_expiry_ms(plan)
        with self._notifier.mutex:
            self._expiries.pop(change.key, None)
            if expiry_ms is not None:
                self._expiries[change.key] = expiry_ms
        if plan is None or plan.state.has_ended:
            self._hooks.drop_plan_cache(change.key.rpartition("/")[2])

    def _on_permits_changed(self, *_: object) -> None:
        """Search for items that were skipped for lack of a permit, because another worker may have released one."""
        if self.limits.has_blocked_items:
            self.worker_loop.request_search()
        if not self._has_permits:
            self._notify()  # orphaned permits are looked for as long as there are permits

    def _is_replaced(self, path: str) -> bool:
        try:
            return self._hooks.is_plan_replaced(path)
        except LatchworkError:  # the mirror is closed
            return False

    def _is_plan_ending(self, plan_id: str) -> bool:
        try:
            return is_plan_ending(self._plans, self._plan_store.keys, plan_id)
        except LatchworkError:  # the mirror is closed
            return False

    # Cleanup

    async def _clean_up(self) -> None:
        """Delete expired plans and results, release orphaned permits, and sweep. An idle worker reads every ten
        minutes.
        """
        clock, backoff = self._plan_store.store.clock, Backoff()
        wall_clock = WallClock(clock)  # so that a clock that is briefly wrong removes nothing
        sweep_at = clock.now() + random.uniform(0.5, 1.0) * _SWEEP_S
        while True:
            with self._notifier.mutex:
                version = self._notifier.version
                if self._stop.is_set():  # checked with the counter, so that a later stop is not missed
                    return
                expiries, has_permits = dict(self._expiries), len(self._taken) > 0
                self._has_permits = has_permits
            try:
                now_ms = wall_clock.now() * 1000.0
                due = [key for key, each_ms in expiries.items() if each_ms <= now_ms]
                if due:
                    entries = [entry for key in due if (entry := self._plans.get(key)) is not None]
                    await PlanRetention(self._plan_store).delete_expired(entries, now_ms)
                    await Pause(clock, self._stop, backoff.next_s())  # until the mirror shows the changes
                    continue
                if has_permits:
                    await self.limits.release_orphaned_permits(self._plan_store, self.worker_loop.running())
                if clock.now() >= sweep_at:
                    share = self.peers.get_shard()
                    if share.consumers and share.rank == 0:
                        await sweep_plans(self._plan_store, now_ms)
                    sweep_at = clock.now() + _SWEEP_S
            except Closed:
                return
            except LatchworkError as error:
                _log.info("cannot delete expired plans, retrying: %s", error)
                await Pause(clock, self._stop, backoff.next_s())
                continue
            backoff = Backoff()
            until_s = [sweep_at - clock.now(), *((each_ms - now_ms) / 1000.0 for each_ms in expiries.values())]
            await self._notifier.wait_for_change(
                version, clock, max(0.001, min(until_s + [_ORPHAN_CHECK_S] * has_permits))
            )


class PlanWorker(Node[PlanWorkerSession]):
    """Runs the tasks of plans whose dependencies are done: ``with PlanWorker(store, slots=4): ...``.

    After a lost session its tasks are asked to stop, other workers run them, and it joins again. Construction does no
    I/O. Thread-safe.

    Args:
        store: The store, or a namespace of it. It is not closed.
        name: Name of the plans.
        slots: Number of tasks that run at the same time.
        functions: Functions that may be run; those of ``@task`` by default.
        run_in: ``thread``, or ``process``: one child process per slot, which can be killed.
        context: Object that tasks with a parameter annotated ``TaskContext`` get as ``context.context``.
        allow_pickle: Whether pickled arguments are read. Clients that can write to the store can then run code here.
        session_ttl_s: Seconds after which the tasks of a dead worker are free; None uses that of the URL, or 10.
        label: Name of the worker that others see; by default the host's name and six random characters.
        on_failure: Called with plan, task and failure of each failed attempt.
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
        self._plan_store = PlanStore(store, name)
        payloads = Payloads(allow_pickle=allow_pickle)
        Slots(slots, functions, payloads, run_in=run_in)  # validates the options
        named = label or default_node_id()
        self._config = PlanWorkerConfig(slots, functions, run_in, payloads, named, context, self._failed)
        self._on_failure = on_failure
        super().__init__(
            self._plan_store.store,
            named,
            what=f"worker {named!r} of plans {name!r}",
            slots=slots,
            session_ttl_s=ttl_s(store, session_ttl_s, SESSION_TTL_S),
        )

    def __repr__(self) -> str:
        return f"<PlanWorker {self._plan_store.keys.name!r}, {counted(self._config.slots, 'slot')}>"

    def close(self, timeout_s: float | None = None) -> list[str]:
        """Stop all tasks and close the worker. Idempotent.

        Args:
            timeout_s: Seconds to wait for tasks; None uses the timeout of an earlier call, or else 30.
        Returns:
            The paths of the tasks that still run. Other workers can take them when the session has ended.
        """
        left = super().close(timeout_s)
        self._plan_store.queue.close()
        return left

    def _create_worker_session(self, session: Session) -> PlanWorkerSession:
        return PlanWorkerSession(self._task_store, self._plan_store, self._config, session=session)

    def _failed(self, plan: str, task: str, failure: Failure) -> None:
        _log.info("task %s of plan %s failed: %s", task, plan, failure.summary)
        if self._on_failure is not None:
            try:
                self._on_failure(plan, task, failure)
            except Exception:
                _log.exception("callback on_failure of a plan worker raised an exception")
