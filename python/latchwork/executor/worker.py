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

from latchwork._base.decoding import encode
from latchwork._base.event import Signal
from latchwork._base.validation import is_number
from latchwork.errors import Closed, LatchworkError
from latchwork.executor.hooks import ExecutorHooks, WorkerProfile
from latchwork.executor.keys import NAME, Keys, check_member_id, executor_store, member_partition, partition_member
from latchwork.executor.pickers import Load
from latchwork.executor.placement import MemberFunctions, decode_load
from latchwork.executor.sweeper import ExecutorSweeper
from latchwork.primitives import Group, View, ViewChange, WorkQueue
from latchwork.store import Session, Store
from latchwork.store import session_ttl_s as ttl_s
from latchwork.store.driving.background import Background
from latchwork.store.keys import validate_name
from latchwork.store.steps import Pause, ask, coroutine_of
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
#: Count at most this many tasks in a partition.
_COUNTED = 100


@dataclass(frozen=True, slots=True)
class ExecutorWorkerOptions:
    """The validated options of a worker.

    Attributes:
        slots: Number of tasks that it runs at a time.
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
    """The work of an executor's worker during one session with the store. Thread-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        node: The worker's profile.
        options: The worker's options.
        payloads: Encodes results and decodes arguments.
        session: The session; closed at the end.
        task_store: The store passed to tasks.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        node: WorkerProfile,
        options: ExecutorWorkerOptions,
        *,
        payloads: Payloads,
        session: Session,
        task_store: Store,
    ) -> None:
        self._store = store
        self._keys = keys
        self._node = node
        self._options = options
        self.session = session
        self._what = f"worker {node.member_id!r} of executor {keys.name!r}"
        self.group = Group(
            store, keys.group, member_id=node.member_id, weight=options.weight, labels=node.labels, session=session
        )
        self._backlog = WorkQueue(
            store, keys.backlog, max_attempts=options.max_attempts, session=session, label=node.member_id
        )
        self.hooks = ExecutorHooks(store, keys, self._backlog, node, self._members)
        self._deadlines = DeadlineExtender(session.remaining_s)
        self.slots = Slots(
            options.slots,
            node.functions,
            payloads,
            run_in=options.run_in,
            deadline_extender=self._deadlines,
            stop_grace_s=options.stop_grace_s,
            run_loop=options.run_loop,
            label=node.member_id,
            clock=store.clock,
        )
        self._commits = GroupCommit(store, label=node.member_id)
        self.worker_loop = WorkerLoop(
            self._backlog,
            self.slots,
            self._commits,
            self.hooks,
            store=task_store,
            node_id=node.member_id,
            context=options.context,
        )
        self._admin_queue = WorkQueue(store, keys.backlog, session=session, label=node.member_id)
        self._sweeper = ExecutorSweeper(store, keys, self._admin_queue, unknown_after_s=options.unknown_after_s)
        self._view: View | None = None
        self._stop = Signal()
        self._wake = Signal()
        self._submitters = store.watch(keys.submitters)
        self._marks = store.watch(keys.cancel_prefix(node.member_id))
        #: Submitters whose end the watch will report.
        self._reported: set[str] = set()
        self._maintenance: Background | None = None
        self._reported_load: tuple[int, int] = (-1, -1)
        self._number = 0
        self._idle_since = store.clock.now()
        self._help_after_s = options.steal_after_s
        self._sweep_s = min(_SWEEP_S, max(1.0, options.unknown_after_s))
        self._sweep_at = store.clock.now() + random.uniform(0.5, 1.0) * self._sweep_s

    def _members(self) -> Collection[str] | None:
        return None if self._view is None else self._view.ids

    def start(self) -> None:
        """Join the group of workers and start to claim tasks.

        Raises:
            NodeIdInUse, MemberEvicted, SessionLost, LatchworkError: Joining failed.
        """
        self.group.start()
        _ = self.group.view  # starts to observe the views, which takes about as long as joining
        self.group.wait_joined(None)
        names = [each.name for each in self._node.functions]
        offer = MemberFunctions(frozenset(names), self._node.allow_pickle, self._options.slots)
        key = self._keys.functions_key(self._node.member_id)
        self._store.put(key, encode(offer), session=self.session)
        self._view = self.group.wait(None)
        self.group.on_view(self._on_view_changed)
        self.worker_loop.start()
        self._submitters.subscribe(self._on_submitters_changed, self._on_watch_ended)
        self._marks.subscribe(self._on_cancel_marks, self._on_watch_ended)
        self._maintenance = Background(self._maintain, f"latchwork-executor-{self._node.member_id}")

    def drain(self, timeout_s: float | None) -> bool:
        """Leave the group, so that other members take this worker's tasks, then wait for the running tasks.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Returns:
            Whether all tasks have ended; False after the timeout.
        """
        with suppress(LatchworkError):
            self.group.close()
        return self.worker_loop.drain(timeout_s)

    def close(self, timeout_s: float) -> list[str]:
        """Stop all tasks, release their claims, and leave the group. Idempotent.

        Args:
            timeout_s: Seconds to wait for the tasks.
        Returns:
            The paths of the tasks that still run.
        """
        self._stop.set()
        self._wake.set()
        self._submitters.close()
        self._marks.close()
        left = self.worker_loop.close(timeout_s)
        self._commits.close(timeout_s if self.session.remaining_s() > 0.0 else 0.0)
        if self._maintenance is not None:
            self._maintenance.block()
        self.slots.close(min(timeout_s, 1.0))
        self._admin_queue.close()
        self.group.close()
        self._deadlines.close()
        self.session.close()
        return left

    def unavailable_reason(self) -> str | None:
        """Return None, because only a lost session can keep this worker from claiming tasks."""
        return None

    # Changes by other clients

    def _on_view_changed(self, change: ViewChange) -> None:
        """Take tasks from the partitions of members that have left."""
        self._view = change.view
        for member in change.left:
            if member.id not in change.view:
                self.hooks.add_orphaned_partition(member_partition(member.id))
        if change.left:
            self._sweep_at = min(self._sweep_at, self._store.clock.now() + 1.0)
        self.worker_loop.request_search()
        self._wake.set()

    def _on_watch_ended(self, error: LatchworkError) -> None:
        """End the session, because this worker would no longer notice that tasks must be stopped."""
        _log.warning("%s may no longer read, and starts over: %s", self._what, error)
        self.session.close()

    def _on_submitters_changed(self, batch: Iterable[Change]) -> None:
        """Stop the running tasks of submitters that are gone."""
        for change in batch:
            submitter_id = change.key.rpartition("/")[2]
            if change.entry is not None:
                self._reported.add(submitter_id)
            else:
                self._reported.discard(submitter_id)
                self._stop_tasks_of(submitter_id)

    def _stop_tasks_of(self, submitter_id: str) -> None:
        self._sweep_at = min(self._sweep_at, self._store.clock.now() + 0.5)
        for path in self.hooks.on_submitter_left(submitter_id):
            self.worker_loop.stop_task(path)
        self._wake.set()

    def _on_cancel_marks(self, batch: Iterable[Change]) -> None:
        """Stop running tasks that were canceled, and delete the keys that requested it."""
        marks = [change.key for change in batch if change.entry is not None]
        for key in marks:
            path = self.hooks.on_cancelled(key.rpartition("/")[2])
            if path is not None:
                self.worker_loop.stop_task(path)
        for start in range(0, len(marks), _COUNTED // 2):
            part = marks[start : start + _COUNTED // 2]
            try:
                self._store.commit([], [Delete(key) for key in part])
            except LatchworkError as error:
                _log.info("%s: marks are not deleted yet: %s", self._what, error)

    # Maintenance

    async def _maintain(self) -> None:
        clock = self._store.clock
        has_found_orphans = False
        self._wake.set()
        while not self._stop.is_set():
            is_busy = (
                bool(self.worker_loop.running())
                or bool(self.hooks.orphaned_partitions)
                or self._help_after_s is not None
            )
            sweep_s = max(_BUSY_S, self._sweep_at - clock.now())
            await Pause(clock, self._wake, _BUSY_S if is_busy else min(_IDLE_S, sweep_s))
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                if not has_found_orphans:
                    await self._find_orphans()
                    has_found_orphans = True
                await self._report_load()
                await self._stop_orphans()
                await self._remove_tasks_of_departed()
                await self._drop_empty_orphans()
                await self._steal_from_busiest()
                await self._sweep()
            except Closed:
                return
            except LatchworkError as error:
                _log.info("%s: maintenance is delayed: %s", self._what, error)
            except Exception:  # one failed step must not end the thread
                _log.exception("%s: maintenance failed", self._what)
            await Pause(clock, self._stop, 0.2)

    async def _find_orphans(self) -> None:
        """Find the partitions of members that left before this worker joined, and take tasks from them.

        The partitions are read after the first view of the group. Later views report all members that leave.
        """
        for partition in await coroutine_of(self._admin_queue.partitions)():
            owner = partition_member(partition)
            if owner is not None and owner not in (self._members() or ()):
                self.hooks.add_orphaned_partition(partition)
                self.worker_loop.request_search()

    async def _report_load(self) -> None:
        """Write the number of tasks queued and running on this worker, if it has changed."""
        running = len(self.worker_loop.running())
        queued = 0
        if self.slots.free_slots == 0:
            mine = await coroutine_of(self._admin_queue.items)(self._node.partition, _COUNTED)
            queued = max(0, len(mine) - running)
        if (running, queued) == self._reported_load or (self._reported_load == (-1, -1) and running == 0):
            return
        self._number += 1
        load = Load(running, queued, self._options.slots, self._number)
        key = self._keys.member_load_key(self._node.member_id)
        await ask(self._store.put, key, encode(load), session=self.session)
        self._reported_load = (running, queued)

    async def _stop_orphans(self) -> None:
        """Stop tasks whose submitters came and left between two batches of the watch, which does not report such
        submitters.

        The submitters are read after the tasks, and their IDs are never reused, so a missing submitter is gone.
        """
        owners = self.hooks.list_running_submitters() - self._reported
        if owners:
            for submitter_id in owners - set(await ask(self._store.children, self._keys.submitters)):
                self._stop_tasks_of(submitter_id)

    async def _remove_tasks_of_departed(self) -> None:
        """Remove the tasks of submitters that have left. They were noticed when one of their tasks was claimed."""
        submitter_ids = set(self.hooks.pop_departed())
        if not submitter_ids:
            return
        try:
            await self._sweeper.remove_tasks_of_departed(submitter_ids)
        except LatchworkError:
            self.hooks.add_departed(submitter_ids)
            raise

    async def _drop_empty_orphans(self) -> None:
        """Stop taking tasks from partitions of members that have left, and remove these, once they are empty."""
        for partition in self.hooks.orphaned_partitions:
            if await coroutine_of(self._admin_queue.items)(partition, 1):
                self.worker_loop.request_search()
            elif await coroutine_of(self._admin_queue.clean_index)(partition):
                self.hooks.remove_orphaned_partition(partition)

    async def _steal_from_busiest(self) -> None:
        """Steal tasks: if this worker has been idle for a while, also take tasks from the member with the most."""
        clock, after_s = self._store.clock, self._help_after_s
        if self.worker_loop.running() or self.slots.free_slots == 0:
            self._idle_since = clock.now()
            self._help_after_s = self._options.steal_after_s
            return
        if after_s is None or clock.now() - self._idle_since < after_s:
            return
        loads = [
            (entry.key.rpartition("/")[2], decode_load(entry.value))
            for entry in await ask(self._store.list, self._keys.load)
        ]
        busy = {member: load.queued for member, load in loads if load.queued > 0 and member != self._node.member_id}
        self.hooks.set_helped_partition(member_partition(max(busy, key=lambda each: busy[each])) if busy else None)
        if busy:
            self.worker_loop.request_search()
        self._idle_since = clock.now()
        self._help_after_s = min(2 * after_s, 8 * (self._options.steal_after_s or 1.0)) if not busy else after_s

    async def _sweep(self) -> None:
        """Remove the records of departed submitters and members, if this is the oldest member and a sweep is due."""
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
    Construction does no I/O. Thread-safe.

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
        steal_after_s: Idle seconds after which to take tasks from other members' partitions; None for never.
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
        self._options = ExecutorWorkerOptions(
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
        """Stop all tasks and close the worker, with its event loop for ``async def`` tasks. Idempotent.

        Args:
            timeout_s: Seconds to wait for tasks; None uses the timeout of an earlier call, or else 30.
        Returns:
            The paths of the tasks that still run. Other workers can take them when the session has ended.
        """
        left = super().close(timeout_s)
        self._tasks_loop.close(0.5)
        return left

    def _create_worker_session(self, session: Session) -> ExecutorWorkerSession:
        return ExecutorWorkerSession(
            self._store,
            self._keys,
            self._profile,
            self._options,
            payloads=self._payloads,
            session=session,
            task_store=self._task_store,
        )

    def update(self, *, weight: float | None = None, labels: Mapping[str, str] | None = None) -> None:
        """Change the weight or the labels of the worker without rejoining.

        Args:
            weight: New relative capacity; None keeps it.
            labels: New labels; None keeps them.
        Raises:
            SessionLost, Unavailable, OutcomeUnknown, ValueError: The change was not made, or its outcome is unknown.
        """
        self._home.check()
        with self._changed:
            work = self._work
        if work is not None:
            work.group.update(weight=weight, labels=labels)
        if labels is not None:
            self._profile.labels = dict(labels)
        self._options = replace(
            self._options,
            weight=self._options.weight if weight is None else weight,
            labels=self._options.labels if labels is None else dict(labels),
        )
