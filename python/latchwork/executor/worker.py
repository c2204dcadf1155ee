"""``ExecutorWorker``: a node that runs an executor's tasks in threads or child processes.

docs/design/executor.md describes the protocol and its races.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from latchwork._base.decoding import encode
from latchwork._base.event import Signal
from latchwork._base.validation import is_number
from latchwork.errors import Closed, LatchworkError
from latchwork.executor.hooks import ExecutorHooks, WorkerProfile
from latchwork.executor.keys import NAME, Keys, check_member_id, executor_store, lane_of, member_of
from latchwork.executor.pickers import Load
from latchwork.executor.placing import Offer, read_load
from latchwork.executor.sweeping import ExecutorSweeper
from latchwork.primitives import Group, View, ViewChange, WorkQueue
from latchwork.store import Backoff, Session, Store, Watch
from latchwork.store import session_ttl_s as ttl_s
from latchwork.store.driving.background import Background
from latchwork.store.keys import validate_name
from latchwork.store.steps import Pause, ask, steps_of
from latchwork.tasks import DEFAULT, Functions, GroupCommit, Payloads, RunAsync, RunIn, Slots, TaskLoop, WorkerLoop
from latchwork.tasks.children import DeadlineExtender
from latchwork.tasks.node import Node, default_node_id
from latchwork.types import Change, Delete

#: Default TTL of a worker's session, in seconds.
SESSION_TTL_S = 10.0


_log = logging.getLogger(__name__)

#: Seconds between maintenance rounds while busy, and the maximum while idle.
_BUSY_S, _IDLE_S = 1.0, 5.0
#: Seconds between sweeps by the oldest member, and before a retry of a failed sweep.
_SWEEP_S, _SWEEP_AGAIN_S = 30.0, 2.0
#: Count at most this many tasks in a lane.
_COUNTED = 100


@dataclass(frozen=True, slots=True)
class ExecutorWorkerOptions:
    """The validated options of a worker.

    Attributes:
        slots: Tasks it runs at a time.
        run_in: ``thread`` or ``process``.
        weight: Its relative capacity.
        labels: Its labels.
        steal_after_s: Idle seconds after which it helps other members; None for never.
        max_attempts: Number of claims after which a task that never ended becomes a dead letter.
        unknown_after_s: Seconds for which a task waits for a member that has its function.
        stop_grace_s: Seconds between the signal to stop and a forced end.
        context: User object passed to tasks.
        run_loop: Runs ``async def`` functions; outlives the worker session.
    """

    slots: int
    run_in: RunIn
    weight: float
    labels: Mapping[str, str]
    steal_after_s: float | None
    max_attempts: int
    unknown_after_s: float
    stop_grace_s: float
    context: object = field(default=None)
    run_loop: RunAsync | None = None


class ExecutorWorkerSession:
    """Runs tasks for the duration of one session. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        node: The worker's profile.
        plan: The worker's options.
        payloads: Encodes results and decodes arguments.
        session: The session; closed at the end.
        task_store: The store passed to tasks.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        node: WorkerProfile,
        plan: ExecutorWorkerOptions,
        *,
        payloads: Payloads,
        session: Session,
        task_store: Store,
    ) -> None:
        self._store = store
        self._keys = keys
        self._node = node
        self._plan = plan
        self.session = session
        self._what = f"worker {node.member_id!r} of executor {keys.name!r}"
        self.group = Group(
            store, keys.group, member_id=node.member_id, weight=plan.weight, labels=node.labels, session=session
        )
        self._backlog = WorkQueue(
            store, keys.backlog, max_attempts=plan.max_attempts, session=session, label=node.member_id
        )
        self.lanes = ExecutorHooks(store, keys, self._backlog, node, self._members)
        self._leash = DeadlineExtender(session.remaining_s)
        self.slots = Slots(
            plan.slots,
            node.functions,
            payloads,
            run_in=plan.run_in,
            leash=self._leash,
            stop_grace_s=plan.stop_grace_s,
            run_loop=plan.run_loop,
            label=node.member_id,
            clock=store.clock,
        )
        self._commits = GroupCommit(store, label=node.member_id)
        self.feeder = WorkerLoop(
            self._backlog,
            self.slots,
            self._commits,
            self.lanes,
            store=task_store,
            node_id=node.member_id,
            context=plan.context,
        )
        self._records = WorkQueue(store, keys.backlog, session=session, label=node.member_id)
        self._sweeper = ExecutorSweeper(store, keys, self._records, unknown_after_s=plan.unknown_after_s)
        self._view: View | None = None
        self._stop = Signal()
        self._wake = Signal()
        #: Submitters that the current watch has reported. It reports their end, too.
        self._reported: set[str] = set()
        self._threads: list[Background] = []
        self._watches: list[Watch] = []
        self._said: tuple[int, int] = (-1, -1)
        self._number = 0
        self._idle_since = store.clock.now()
        self._help_after_s = plan.steal_after_s
        self._sweep_s = min(_SWEEP_S, max(1.0, plan.unknown_after_s))
        self._sweep_at = store.clock.now() + random.uniform(0.5, 1.0) * self._sweep_s

    def _members(self) -> Collection[str] | None:
        return None if self._view is None else self._view.ids

    def begin(self) -> None:
        """Join the group and start to take tasks.

        Raises:
            NodeIdInUse, MemberEvicted, SessionLost, LatchworkError: Joining failed.
        """
        self.group.start()
        self.group.wait_joined(None)
        names = [each.name for each in self._node.functions]
        offer = Offer(frozenset(names), self._node.allow_pickle, self._plan.slots)
        key = self._keys.functions_of(self._node.member_id)
        self._store.put(key, encode(offer), session=self.session)
        self._view = self.group.wait(None)
        for lane in self._records.partitions():
            owner = member_of(lane)
            if owner is not None and owner not in self._view:
                self.lanes.adopt(lane)
        self.group.on_view(self._seen)
        self.feeder.start()
        for name, prefix, see, begun in (
            ("subs", self._keys.subs, self._see_sub, self._reported.clear),
            ("cancels", self._keys.cancels_at(self._node.member_id), self._see_mark, lambda: None),
        ):
            thread = f"latchwork-executor-{name}-{self._node.member_id}"
            self._threads.append(Background(partial(self._follow, prefix, see, begun), thread))
        self._threads.append(Background(self._chores, f"latchwork-executor-{self._node.member_id}"))

    def drain(self, timeout_s: float | None) -> bool:
        """Leave the group, which opens our lane to other members, then wait for running tasks. False on timeout."""
        with suppress(LatchworkError):
            self.group.close()
        return self.feeder.drain(timeout_s)

    def end(self, timeout_s: float) -> list[str]:
        """Stop and release all tasks, and leave; see ``WorkerSession``. Each step is idempotent."""
        self._stop.set()
        self._wake.set()
        for watch in list(self._watches):
            watch.close()
        left = self.feeder.close(timeout_s)
        self._commits.close(timeout_s if self.session.remaining_s() > 0.0 else 0.0)
        for thread in self._threads:
            thread.block()
        self.slots.close(min(timeout_s, 1.0))
        self._records.close()
        self.group.close()
        self._leash.close()
        self.session.close()
        return left

    def trouble(self) -> str | None:
        """Return None: nothing but a lost session prevents it from taking tasks."""
        return None

    # Changes by other clients

    def _seen(self, change: ViewChange) -> None:
        """Take from the lanes of members that have left, and no longer from those of members that joined."""
        self._view = change.view
        for member in change.left:
            if member.id not in change.view:
                self.lanes.adopt(lane_of(member.id))
        for member in change.joined:
            self.lanes.disown(lane_of(member.id))
        if change.left:
            self._sweep_at = min(self._sweep_at, self._store.clock.now() + 1.0)
        self.feeder.poke()
        self._wake.set()

    async def _follow(self, prefix: str, see: Callable[[Iterable[Change]], None], begun: Callable[[], None]) -> None:
        """Call ``see`` with the changes below a prefix until the session ends, and ``begun`` before each watch."""
        backoff = Backoff()
        while not self._stop.is_set():
            try:
                with self._store.watch(prefix) as watch:
                    self._watches.append(watch)
                    if self._stop.is_set():
                        return
                    begun()
                    while True:
                        see(await steps_of(watch.next)(None))
                        backoff.reset()
            except Closed:
                return
            except LatchworkError as error:
                _log.warning("%s cannot follow %s, trying again: %s", self._what, prefix, error)
                await Pause(self._store.clock, self._stop, backoff.next_s())

    def _see_sub(self, batch: Iterable[Change]) -> None:
        """Stop the tasks of submitters that are gone."""
        for change in batch:
            sid = change.key.rpartition("/")[2]
            if change.entry is not None:
                self._reported.add(sid)
            else:
                self._reported.discard(sid)
                self._stop_tasks_of(sid)

    def _stop_tasks_of(self, sid: str) -> None:
        self._sweep_at = min(self._sweep_at, self._store.clock.now() + 0.5)
        for path in self.lanes.gone(sid):
            self.feeder.stop_task(path)
        self._wake.set()

    def _see_mark(self, batch: Iterable[Change]) -> None:
        """Stop running tasks that were cancelled."""
        marks = [change.key for change in batch if change.entry is not None]
        for key in marks:
            path = self.lanes.cancelled(key.rpartition("/")[2])
            if path is not None:
                self.feeder.stop_task(path)
        for start in range(0, len(marks), _COUNTED // 2):
            part = marks[start : start + _COUNTED // 2]
            try:
                self._store.commit([], [Delete(key) for key in part])
            except LatchworkError as error:
                _log.info("%s: marks stay for now: %s", self._what, error)

    # Maintenance

    async def _chores(self) -> None:
        clock = self._store.clock
        while not self._stop.is_set():
            is_busy = bool(self.feeder.running()) or bool(self.lanes.orphans) or self._help_after_s is not None
            sweep_s = max(_BUSY_S, self._sweep_at - clock.now())
            await Pause(clock, self._wake, _BUSY_S if is_busy else min(_IDLE_S, sweep_s))
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                await self._say_load()
                await self._stop_orphans()
                await self._drop()
                await self._look_at_orphans()
                await self._help()
                await self._sweep()
            except Closed:
                return
            except LatchworkError as error:
                _log.info("%s: maintenance is delayed: %s", self._what, error)
            except Exception:  # one failed step must not end the thread
                _log.exception("%s: maintenance failed", self._what)
            await Pause(clock, self._stop, 0.2)

    async def _say_load(self) -> None:
        """Write the number of queued and running tasks here, if it has changed."""
        running = len(self.feeder.running())
        queued = 0
        if self.slots.free == 0:
            mine = await steps_of(self._records.items)(self._node.lane, _COUNTED)
            queued = max(0, len(mine) - running)
        if (running, queued) == self._said or (self._said == (-1, -1) and running == 0):
            return
        self._number += 1
        load = Load(running, queued, self._plan.slots, self._number)
        key = self._keys.load_of(self._node.member_id)
        await ask(self._store.put, key, encode(load), session=self.session)
        self._said = (running, queued)

    async def _stop_orphans(self) -> None:
        """Stop tasks whose submitters left before the watch began, since it does not report those.

        Owners are noted before the submitters are read, and submitter IDs are never reused, so a missing owner is gone.
        """
        owners = self.lanes.owners() - self._reported
        if owners:
            for sid in owners - set(await ask(self._store.children, self._keys.subs)):
                self._stop_tasks_of(sid)

    async def _drop(self) -> None:
        """Remove tasks of submitters that were found to be gone when claiming."""
        sids = set(self.lanes.submitters_gone())
        if not sids:
            return
        try:
            await self._sweeper.drop_of(sids)
        except LatchworkError:
            self.lanes.note_gone(sids)
            raise

    async def _look_at_orphans(self) -> None:
        """Forget orphaned lanes that are empty, and remove them from the store."""
        for lane in self.lanes.orphans:
            if await steps_of(self._records.items)(lane, 1):
                self.feeder.poke()
            elif await steps_of(self._records.tidy)(lane):
                self.lanes.disown(lane)

    async def _help(self) -> None:
        """After an idle period, take tasks from the busiest member."""
        clock, after_s = self._store.clock, self._help_after_s
        if self.feeder.running() or self.slots.free == 0:
            self._idle_since = clock.now()
            self._help_after_s = self._plan.steal_after_s
            return
        if after_s is None or clock.now() - self._idle_since < after_s:
            return
        loads = [
            (entry.key.rpartition("/")[2], read_load(entry.value))
            for entry in await ask(self._store.list, self._keys.load)
        ]
        busy = {member: load.queued for member, load in loads if load.queued > 0 and member != self._node.member_id}
        self.lanes.help(lane_of(max(busy, key=lambda each: busy[each])) if busy else None)
        if busy:
            self.feeder.poke()
        self._idle_since = clock.now()
        self._help_after_s = min(2 * after_s, 8 * (self._plan.steal_after_s or 1.0)) if not busy else after_s

    async def _sweep(self) -> None:
        """Remove leftovers of departed submitters, if we are the oldest member and a sweep is due."""
        now = self._store.clock.now()
        if now < self._sweep_at:
            return
        self._sweep_at = now + self._sweep_s
        view = self._view
        if view is not None and view.members and view.by_age[0].id == self._node.member_id:
            try:
                await self._sweeper.sweep(view.ids)
            except LatchworkError:
                self._sweep_at = min(self._sweep_at, self._store.clock.now() + _SWEEP_AGAIN_S)
                raise


class ExecutorWorker(Node[ExecutorWorkerSession]):
    """Runs tasks of an executor: ``with ExecutorWorker(store, slots=8) as worker: worker.run_forever()``.

    When its session is lost, its tasks are signaled to stop, other workers run them, and it starts a new session. It
    runs registered functions only. Stored data is never imported, evaluated or unpickled unless ``allow_pickle`` is
    set. Not promised: that a thread which ignores ``should_stop`` ends; it occupies its slot until it does.
    Construction performs no I/O. Thread-safe.

    Args:
        store: A store, or a namespace of one. The caller closes it.
        name: The executor's name.
        node_id: ID, unique among online members. Defaults to the host name and six random characters.
        slots: Tasks to run at a time. Defaults to the number of processors.
        run_in: ``thread``, or ``process``, for functions that do not specify it. A process is a child per slot, killed
            if its task ignores the signal to stop.
        functions: Functions that may run; defaults to those registered by ``task``.
        allow_pickle: Also run pickled functions. Any client that can write to the store can then run any code here.
        weight: Relative capacity, for pickers that use it.
        labels: Labels of this worker, for targets.
        accept: Called with a function's name; returns whether to take one of its tasks now. Must be quick.
        steal_after_s: Idle seconds after which to take tasks from other members' lanes; None for never.
        session_ttl_s: Seconds after a crash until other workers get our tasks; None uses the URL's, or 10.
        max_attempts: Number of claims after which a task that never ended becomes a dead letter.
        unknown_after_s: Seconds after which a task whose function no member has ends with ``UnknownFunction``, from the
            time at which the oldest member first saw it.
        stop_grace_s: Seconds between the signal to stop and a forced end.
        context: User object passed to tasks as ``TaskContext.context``: connections, models, caches.
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
        system = executor_store(store, "a worker")
        self.name = validate_name(name)
        self.node_id = check_member_id(node_id if node_id is not None else default_node_id())
        count = (os.cpu_count() or 1) if slots is None else slots
        if type(count) is not int or count < 1:
            raise ValueError(f"slots must be a whole number from 1, not {slots!r}")
        for option, value in (
            ("steal_after_s", 1.0 if steal_after_s is None else steal_after_s),
            ("unknown_after_s", unknown_after_s),
        ):
            if not is_number(value) or value <= 0:
                raise ValueError(f"{option} must be a number of seconds above 0, not {value!r}")
        self._task_store = store
        self._keys = Keys(name)
        self._payloads = Payloads(allow_pickle=allow_pickle)
        self._profile = WorkerProfile(
            self.node_id, functions, allow_pickle=allow_pickle, labels=labels or {}, accept=accept
        )
        self._tasks_loop = TaskLoop(self.node_id)
        self._plan = ExecutorWorkerOptions(
            count,
            run_in,
            weight,
            dict(labels or {}),
            steal_after_s,
            max_attempts,
            unknown_after_s,
            stop_grace_s,
            context,
            self._tasks_loop.run,
        )
        super().__init__(
            system,
            self.node_id,
            what=f"worker {self.node_id!r} of executor {self.name!r}",
            slots=count,
            session_ttl_s=ttl_s(store, session_ttl_s, SESSION_TTL_S),
        )

    def __repr__(self) -> str:
        return f"<ExecutorWorker {self.node_id!r} of executor {self.name!r}>"

    def close(self, timeout_s: float | None = None) -> list[str]:
        """Close the worker and its event loop for ``async def`` tasks; see ``Node.close``."""
        left = super().close(timeout_s)
        self._tasks_loop.close(0.5)
        return left

    def _worker_session(self, session: Session) -> ExecutorWorkerSession:
        return ExecutorWorkerSession(
            self._store,
            self._keys,
            self._profile,
            self._plan,
            payloads=self._payloads,
            session=session,
            task_store=self._task_store,
        )

    def update(self, *, weight: float | None = None, labels: Mapping[str, str] | None = None) -> None:
        """Change the weight or labels without rejoining. None keeps one unchanged.

        Raises:
            SessionLost, Unavailable, OutcomeUnknown, ValueError: See ``Group.update``.
        """
        self._home.check()
        with self._changed:
            work = self._work
        if work is not None:
            work.group.update(weight=weight, labels=labels)
        if labels is not None:
            self._profile.labels = dict(labels)
        self._plan = replace(
            self._plan,
            weight=self._plan.weight if weight is None else weight,
            labels=self._plan.labels if labels is None else dict(labels),
        )
