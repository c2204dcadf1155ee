"""A worker in one session: the partitions that it claims from, its slots, and its threads."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from latchwork.clock import Signal
from latchwork.errors import BadRecord, InvalidKey, Unavailable
from latchwork.primitives import Group, QueueClaim, QueueItem, WorkQueue
from latchwork.spi import mutex
from latchwork.store import Session, Store
from latchwork.tasks import (
    DeadLetter,
    Done,
    Functions,
    GroupCommit,
    Outcome,
    Payloads,
    RegisteredFunction,
    Release,
    Run,
    Settlement,
    Slots,
    StoredCall,
    TaskContext,
    TaskStopped,
    WorkerHooks,
    WorkerLoop,
)
from latchwork.tasks.children import DeadlineExtender, kill_orphans
from latchwork.types import Absent, Change, Check, Create, Delete, Op
from latchwork_workflows.bundles import BundleCache
from latchwork_workflows.keys import ItemName, Keys
from latchwork_workflows.logs import LogStore, LogStoreHealth
from latchwork_workflows.messages import AttemptResult, RunningRecord, TaskHead
from latchwork_workflows.secrets import Secrets
from latchwork_workflows.state import Outcome as Word
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.worker.attempt import ActiveAttempt, build_result
from latchwork_workflows.worker.attempt import RunOutcome as RunEnding
from latchwork_workflows.worker.options import MAX_CLAIMS, WorkerOptions
from latchwork_workflows.worker.pools import PoolSlots
from latchwork_workflows.worker.preparation import (
    ATTEMPTS,
    BUNDLES,
    AttemptPreparer,
    create_work_folder,
    current_user_name,
    format_tenants,
    may_run_as,
)
from latchwork_workflows.worker.runner import AttemptRunner

_log = logging.getLogger(__name__)

_FUNCTION = "latchwork_workflows:attempt"


class WorkflowHooks(WorkerHooks):
    """The part of the worker loop that is specific to workflows: which items to claim, how to run them, and how to end
    them.
    """

    def __init__(
        self,
        keys: Keys,
        session: Session,
        options: WorkerOptions,
        *,
        types: TaskTypes,
        health: LogStoreHealth,
        runner: AttemptRunner,
        cancels: Mapping[str, object],
        pools: PoolSlots,
    ) -> None:
        self._keys = keys
        self._session = session
        self._options = options
        self._types = frozenset(types.names)
        self._instant = frozenset(name for name in types.loaded if getattr(types.get(name), "is_instant", False))
        self._health = health
        self._runner = runner
        self._cancels = cancels
        self._pools = pools
        self._lock = mutex()
        self._attempts: dict[str, ActiveAttempt] = {}
        self.payloads = Payloads()
        self.functions = Functions()
        self._registered = RegisteredFunction(_FUNCTION, self.run)
        self.functions.add(self._registered)

    # Choose

    def select_partitions(self) -> Sequence[str]:
        """Return the work queue partitions from which to claim tasks now. Empty while no log can be written."""
        return self._pools.list_available_partitions() if self._health.is_ok else ()

    def list_watched_partitions(self) -> Sequence[str]:
        """Return the partitions to watch for new items: one for each worker group of this worker."""
        return self._options.groups

    def should_claim(self, item: QueueItem) -> bool:
        """Return whether this worker can run a queue item. True also for an invalid item, so that it is removed from
        the queue.
        """
        try:
            head = TaskHead.from_bytes(item.value)
        except BadRecord:
            return True
        return head.type in self._types and may_run_as(head.tenant, self._options.tenants)

    def build_claim_ops(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """Return preconditions and writes that are added to the transaction of a claim.

        The preconditions ensure that the attempt is not canceled and that its pool slots are free. The writes create
        the running key and the slots.
        """
        try:
            named = ItemName.parse(item.id)
        except InvalidKey:
            return (), ()
        slot = self._pools.reserve_slots(item.partition, named.attempt_key)
        if slot is None:
            return [Absent(item.key)], ()  # fails, because the item exists: it is left until a slot is free
        who = self._runner
        said = RunningRecord(who.worker, who.host, time.time(), item.why[:200]).to_bytes()
        running = Create(self._keys.running_key(named.shard, named.attempt_key), said, self._session)
        return [Absent(self._keys.cancel_key(named.attempt_key)), *slot[0]], [running, *slot[1]]

    def on_claim_refused(self, item: QueueItem) -> bool:
        """Return whether to search the queue again after a failed claim. False if the attempt is known to be
        canceled.
        """
        try:
            x = ItemName.parse(item.id).attempt_key
        except InvalidKey:
            return False
        return self._pools.forget_slots(x) and self._keys.cancel_key(x) not in self._cancels

    # Claim and run

    def prepare_run(self, claim: QueueClaim) -> Run | Settlement:
        """Build the call that runs a claimed attempt. If it must not run, return how to end its claim instead."""
        try:
            named = ItemName.parse(claim.item.id)
        except InvalidKey as error:
            return DeadLetter(f"it is not a task of workflows: {error}"[:500])
        self._pools.confirm_slots(named.attempt_key)
        try:
            head = _parse_head(claim.value, named)
        except BadRecord as error:
            head = TaskHead(named.shard, named.task, named.n, 1, 1, 1, "?", "?", "?", has_body=True)
            why = RunEnding(Word.FATAL, f"what the master wrote for this attempt cannot be read: {error}")
            return self._build_ending_without_run(ActiveAttempt(claim, head, claim.fence.token), why)
        attempt = ActiveAttempt(claim, head, claim.fence.token)
        if claim.attempts > MAX_CLAIMS:
            last = f"; the last one said: {claim.item.why}" if claim.item.why else ""
            why = RunEnding(Word.FATAL, f"it has killed its worker {MAX_CLAIMS} times{last}")
            return self._build_ending_without_run(attempt, why)
        if head.type in self._instant:
            return self._build_ending_without_run(attempt, RunEnding(Word.SUCCESS))
        with self._lock:
            self._attempts[head.attempt_key] = attempt  # from here on its cancel reaches it
        if self._keys.cancel_key(head.attempt_key) in self._cancels:
            return self._build_ending_without_run(
                attempt, RunEnding(Word.KILLED, "it was stopped on request before it started")
            )
        payload = self.payloads.encode_call(self._registered, (head.attempt_key,), {})
        return Run(StoredCall(_FUNCTION, payload), head.attempt_key, head.timeout_s, head.n)

    def run(self, attempt_key: str, context: TaskContext) -> None:
        """Run an attempt to its end. Its result is kept for ``handle_outcome``.

        Args:
            attempt_key: The key of the attempt.
            context: The context of the task.
        """
        with self._lock:
            attempt = self._attempts.get(attempt_key)
        if attempt is None:  # its claim was lost before it began
            raise TaskStopped(f"attempt {attempt_key} is no longer ours")
        attempt.result = self._runner.run(attempt, context)

    # End

    def handle_outcome(self, claim: QueueClaim, outcome: Outcome) -> Settlement:
        """Return how to end a claim: store the result of the attempt, or release the attempt if it has no result."""
        with self._lock:
            attempt = self._attempts.get(ItemName.parse(claim.item.id).attempt_key)
        if attempt is None:
            return Release("it was lost", count=False)
        if outcome.failure is None and attempt.result is not None:
            return self._done(attempt, attempt.result)
        if attempt.is_cancelled:
            return self._build_ending_without_run(attempt, RunEnding(Word.KILLED, "it was stopped by a command"))
        failure = outcome.failure
        kind = None if failure is None else failure.loaded_class
        why = "" if failure is None else failure.summary
        if kind is not None and issubclass(kind, TaskStopped):
            return Release(why[:200], count=False)
        _log.error("worker %s releases attempt %s: %s", self._runner.worker, attempt.attempt_key, why)
        return Release(why[:200], after_s=1.0)

    def _build_ending_without_run(self, attempt: ActiveAttempt, ending: RunEnding) -> Done:
        """Build the result of an attempt that was not started or was interrupted, and return how to end its claim."""
        result = build_result(attempt, ending, self._runner.worker, self._runner.host, has_log=False)
        return self._done(attempt, result)

    def _done(self, attempt: ActiveAttempt, result: AttemptResult) -> Done:
        head = attempt.head
        ops: list[Op] = [Create(self._keys.result_key(head.shard, head.attempt_key), result.to_bytes())]
        if head.has_body:
            ops.append(Delete(self._keys.data_key(head.attempt_key)))
        return Done(ops=tuple(ops))

    def build_settlement_ops(self, claim: QueueClaim) -> Sequence[Op]:
        """Return the writes after which an attempt no longer counts as running and its pool slots are free."""
        try:
            named = ItemName.parse(claim.item.id)
        except InvalidKey:
            return ()
        return [
            Delete(self._keys.running_key(named.shard, named.attempt_key)),
            *self._pools.build_release_ops(named.attempt_key),
        ]

    def on_claim_ended(self, claim: QueueClaim) -> bool:
        """Forget an attempt that has ended.

        Returns:
            Whether a pool slot may have become free. The watch may not show slots that existed only briefly.
        """
        try:
            x = ItemName.parse(claim.item.id).attempt_key
        except InvalidKey:
            return False
        with self._lock:
            found = self._attempts.get(x)
            if found is not None and found.claim is claim:
                del self._attempts[x]
        return self._pools.forget_slots(x)

    # Ended from outside

    def mark_cancelled(self, attempt_key: str) -> str | None:
        """Record that an attempt was canceled.

        Args:
            attempt_key: The key of the attempt.
        Returns:
            The key of its queue item if this worker has claimed it, otherwise None.
        """
        with self._lock:
            attempt = self._attempts.get(attempt_key)
        if attempt is None:
            return None
        attempt.is_cancelled = True
        return attempt.claim.item.path

    def stop_all_attempts(self, stop: Callable[[str], Any]) -> None:
        """Stop all running attempts, because the store cannot be reached and this worker is configured not to wait.

        Args:
            stop: Stops the attempt whose queue item has this key.
        """
        with self._lock:
            attempts = list(self._attempts.values())
        for each in attempts:
            each.is_disconnected = True
            stop(each.claim.item.path)

    @property
    def attempts(self) -> list[ActiveAttempt]:
        """The attempts that this worker has claimed, in no particular order."""
        with self._lock:
            return list(self._attempts.values())


def _parse_head(value: bytes, named: ItemName) -> TaskHead:
    head = TaskHead.from_bytes(value)
    if head.attempt_key != named.attempt_key or head.shard != named.shard:
        raise BadRecord(f"it belongs to attempt {head.attempt_key} of shard {head.shard}")
    return head


#: Disables the limit of attempts of the work queue: a task that was claimed too often gets a result instead.
_ANY_NUMBER = 1_000_000
#: Seconds between two probes of a log store that cannot be written.
_PROBE_S = 2.0
#: Seconds beyond the grace period of a child until its slot counts as stuck.
_STUCK_S = 20.0
#: Timeout of the first read of the cancel marks, in seconds.
_MIRROR_S = 30.0
#: Maximum length of a list in the labels.
_LABEL_CHARS = 1_500


class WorkflowSession:
    """Claims and runs tasks until the session in the store ends. Thread-safe.

    Args:
        store: The store.
        keys: The keys.
        name: Name of the worker.
        host: Name of the machine.
        options: Options of the worker.
        work_dir: Folder in which tasks run, created by ``work_folder``.
        logs: Log store to write to.
        types: Task types of this process.
        secrets: Secrets of this machine.
        session: The session. Closed at the end.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        name: str,
        host: str,
        options: WorkerOptions,
        *,
        work_dir: Path,
        logs: LogStore,
        types: TaskTypes,
        secrets: Secrets,
        session: Session,
    ) -> None:
        self._store = store
        self._keys = keys
        self._name = name
        self._options = options
        self._logs = logs
        self.session = session
        self._folder = work_dir / ATTEMPTS / name
        self.health = LogStoreHealth(self._log_store_changed)
        told_s, force_s = options.get_margins_s(session.ttl_s)
        self._deadlines = DeadlineExtender(session.remaining_s, margin_s=force_s)
        preparing = AttemptPreparer(options, types, secrets, BundleCache(work_dir / BUNDLES), logs)
        performing = AttemptRunner(
            store,
            keys,
            logs,
            self.health,
            preparer=preparing,
            options=options,
            deadline_extender=self._deadlines,
            folder=self._folder,
            worker=name,
            host=host,
        )
        self._cancels = store.mirror(keys.cancels, wait=False, values=False)
        self._pools = PoolSlots(store, keys, options.groups, self._poke, session)
        names = frozenset(types.names)
        self.hooks = WorkflowHooks(
            keys,
            session,
            options,
            types=types,
            health=self.health,
            runner=performing,
            cancels=self._cancels,
            pools=self._pools,
        )
        self.group = Group(
            store, keys.workers, member_id=name, labels=_build_labels(options, names, logs), session=session
        )
        self.slots = Slots(
            options.slots,
            self.hooks.functions,
            self.hooks.payloads,
            stop_grace_s=options.stop_grace_s + _STUCK_S,
            label=name,
            clock=store.clock,
        )
        self._commits = GroupCommit(store, label=name)
        backlog = WorkQueue(store, keys.backlog, max_attempts=_ANY_NUMBER, session=session, label=name)
        self.worker_loop = WorkerLoop(
            backlog, self.slots, self._commits, self.hooks, store=store, node_id=name, margin_s=told_s
        )
        self._ended = Signal()
        self._troubled = Signal()
        self._suspect = Signal()
        self._threads: list[threading.Thread] = []
        self._forgets: list[Callable[[], object]] = []

    def start(self) -> None:
        """Register this worker and start to claim tasks.

        Raises:
            NodeIdInUse, MemberEvicted: Another worker has the same name, or this worker was evicted.
            LogStoreMismatch: The log store belongs to another installation.
            LatchworkError: The worker cannot start now.
        """
        found = self._store.get(self._keys.id)
        if found is None:
            raise Unavailable("this store has no workflows yet; run 'latchwork workflows init', or a master")
        self._logs.check_owner(found.value.decode("ascii", "replace"))
        self.group.start()
        self.group.wait_joined(None)
        if (left := kill_orphans()) > 0:
            _log.warning(
                "worker %s: ended %d processes of tasks whose worker and supervisor were killed", self._name, left
            )
        _empty_folder(self._folder)  # of a dead worker of our name: its children ended with its session
        self._cancels.ready(_MIRROR_S)
        self._forgets.append(self._cancels.on_change(self._cancels_changed))
        self._pools.start_watching(_MIRROR_S)
        if self._options.on_disconnect == "stop":
            self._forgets.append(self.session.on_state(self._state_changed))
            self._start(self._end_when_disconnected, "cut-off")
        self._start(self._probe, "logs")
        self.worker_loop.start()

    def _start(self, target: Callable[[], None], what: str) -> None:
        thread = threading.Thread(target=target, name=f"latchwork-flows-{what}-{self._name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def drain(self, timeout_s: float | None) -> bool:
        """Stop claiming tasks, and wait for the running tasks to end.

        Args:
            timeout_s: Seconds to wait. None: forever.
        Returns:
            False if the time has elapsed.
        """
        return self.worker_loop.drain(timeout_s)

    def close(self, timeout_s: float) -> list[str]:
        """Stop all running tasks, release them to other workers, and remove this worker's registration. Idempotent.

        Args:
            timeout_s: Seconds to wait for the tasks.
        Returns:
            The keys of the queue items that are still claimed.
        """
        self._ended.set()
        for event in (self._troubled, self._suspect):
            event.set()
        left = self.worker_loop.close(timeout_s)
        self._commits.close(timeout_s if self.session.remaining_s() > 0.0 else 0.0)
        self.slots.close(timeout_s)
        for forget in self._forgets:
            forget()
        self._cancels.close()
        self._pools.close()
        for thread in self._threads:
            thread.join()
        self._deadlines.close()
        self.group.close()
        self.session.close()
        return left

    def unavailable_reason(self) -> str | None:
        """Return why this worker claims no tasks at present, for example because logs cannot be written. None if it
        claims tasks.
        """
        return None if self.health.is_ok else f"its logs cannot be written: {self.health.error}"

    # Events from others

    def _cancels_changed(self, batch: Iterable[Change]) -> None:
        for change in batch:
            path = None if change.entry is None else self.hooks.mark_cancelled(change.key.rpartition("/")[2])
            if path is not None:
                self.worker_loop.stop_task(path)

    def _state_changed(self, state: str) -> None:
        if state == "suspect":
            self._suspect.set()

    def _end_when_disconnected(self) -> None:
        clock = self._store.clock
        while not self._ended.is_set():
            self._suspect.wait()
            self._suspect.clear()
            clock.wait(self._ended, self._options.disconnect_grace_s)
            if not self._ended.is_set() and self.session.state in ("suspect", "lost"):
                _log.warning("worker %s: the store is not reachable; its tasks are stopped", self._name)
                self.hooks.stop_all_attempts(self.worker_loop.stop_task)

    def _poke(self) -> None:
        self.worker_loop.request_search()

    def _log_store_changed(self) -> None:
        if self.health.is_ok:
            self._poke()
        else:
            self._troubled.set()

    def _probe(self) -> None:
        """Check periodically whether the log store can be written again, after writes have failed."""
        while not self._ended.is_set():
            self._troubled.wait()
            self._troubled.clear()
            while not self._ended.is_set() and not self.health.is_ok:
                self._store.clock.wait(self._ended, _PROBE_S)
                try:
                    self._logs.check_writable()
                except OSError as error:
                    self.health.record(error)
                else:
                    self.health.record(None)


def _build_labels(options: WorkerOptions, types: frozenset[str], logs: LogStore) -> dict[str, str]:
    """Return the labels that describe this worker to other nodes."""
    tenants = format_tenants(options.tenants)
    return {
        "groups": ",".join(options.groups)[:_LABEL_CHARS],
        "slots": str(options.slots),
        "types": ",".join(sorted(types))[:_LABEL_CHARS],
        "user": current_user_name(),
        **({"tenants": tenants} if len(tenants) <= _LABEL_CHARS else {}),
        "logs": logs.url[:500],
        "version": _version(),
    }


def _version() -> str:
    try:
        return version("latchwork")
    except PackageNotFoundError:  # run from its source
        return "unknown"


def _empty_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    create_work_folder(folder)
