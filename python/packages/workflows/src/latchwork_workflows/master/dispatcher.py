"""Sends tasks to workers: builds task specs and writes their items to the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from latchwork.errors import Conflict, InvalidKey, LatchworkError, OutcomeUnknown, QuotaExceeded, Unavailable
from latchwork.primitives import QueueItem, WorkQueue
from latchwork.store import Store
from latchwork.types import Absent, Check, Delete, Exists, Fence, Op, Put
from latchwork_workflows.db import Database, settings
from latchwork_workflows.db.attempts import AttemptRow
from latchwork_workflows.db.runs import StoredRun
from latchwork_workflows.errors import NotOwner
from latchwork_workflows.keys import ItemName, Keys
from latchwork_workflows.master.commands import get_error_text, may_concern_one_run
from latchwork_workflows.master.state_cache import LoadedVersion, StateCache, SubmittedAttempt, VersionCache
from latchwork_workflows.messages import encode_cancel_request
from latchwork_workflows.model.master_tasks import choose_branch
from latchwork_workflows.model.specs import build_message
from latchwork_workflows.model.templates import CONNECTION, iter_names
from latchwork_workflows.model.values import RunContext, compute_values
from latchwork_workflows.state import TaskRun, TaskState, WorkflowPlan, WorkflowRun, get_element_index, get_map_name
from latchwork_workflows.state.records import NOT_TAKEN

#: Maximum number of switches that are decided in one iteration of the shard loop,
MAX_CHOICES = 200
#: and the seconds after which no further switch is decided.
_CHOICES_S = 0.2


class SwitchChoice(NamedTuple):
    """Decision of a switch.

    Attributes:
        heads: First tasks of the chosen branch.
        error: Why it cannot be decided. Empty if it was decided.
    """

    heads: tuple[str, ...] = ()
    error: str = ""


class TaskItemBuilder:
    """Builds queue items for tasks of one shard, with everything that workers need. Not thread-safe.

    Args:
        database: Database with the runs and the settings of their projects.
        plans: Cache of workflow versions.
        shard: ID of the shard.
    """

    def __init__(self, database: Database, plans: VersionCache, shard: int) -> None:
        self._database = database
        self._plans = plans
        self._shard = shard
        self._runs: dict[int, tuple[LoadedVersion, RunContext]] = {}

    def preload(self, connection: sa.Connection, written: Iterable[StoredRun]) -> None:
        """Read the data that ``build_items`` needs for these runs, in the transaction that wrote the runs.

        ``build_items`` then needs no query. If reading fails here, it reads the data itself.
        """
        self._runs = {}
        parameters: dict[str, Mapping[str, Any]] = {}
        for stored in written:
            if any(map(_is_queued, stored.known.tasks.values())):
                with suppress(ValueError):
                    self._read(connection, stored, parameters)

    def _read(self, connection: sa.Connection, stored: StoredRun, parameters: dict[str, Mapping[str, Any]]) -> None:
        version = self._plans.get(connection, stored.code, stored.version)
        project = version.definition.project
        if project not in parameters:
            parameters[project] = settings.load_parameters(connection, project)
        self._runs[stored.id] = version, load_run_context(connection, version, stored, parameters[project])

    def build_items(
        self, cache: StateCache, attempts: Collection[SubmittedAttempt]
    ) -> tuple[list[TaskItem], list[tuple[SubmittedAttempt, str]]]:
        """Build the queue items of some attempts.

        Args:
            cache: State of the runs.
            attempts: The attempts.
        Returns:
            The items, and the attempts for which no item can be built, each with the reason.
        """
        unread = self._read_missing(cache, {each.run_id for each in attempts})
        made: list[TaskItem] = []
        failed = [(each, unread[each.run_id]) for each in attempts if each.run_id in unread]
        for attempt in (each for each in attempts if each.run_id not in unread):
            try:
                made.append(self._task_item(cache.runs[attempt.run_id], attempt))
            except Exception as error:
                if not may_concern_one_run(error):
                    raise
                failed.append((attempt, get_error_text(error)))
        self._runs = {}
        return made, failed

    def decide_switches(
        self, cache: StateCache, master_attempts: Collection[SubmittedAttempt]
    ) -> dict[SubmittedAttempt, SwitchChoice | None]:
        """Evaluate the expressions of ``switch`` tasks and choose their branches. Runs without an open transaction.

        Args:
            cache: State of the runs.
            master_attempts: Tasks that the master runs itself.
        Returns:
            The choice of each ``switch`` task, and None for any other task. If evaluation takes long, some switches are
                left out.
        """
        switches = self._find_switch_tasks(cache, master_attempts)
        made: dict[SubmittedAttempt, SwitchChoice | None] = dict.fromkeys(set(master_attempts) - set(switches))
        switches = switches[:MAX_CHOICES]
        unread = self._read_missing(cache, {each.run_id for each in switches})
        until = time.monotonic() + _CHOICES_S
        for attempt in switches:
            why = unread.get(attempt.run_id, "")
            made[attempt] = SwitchChoice(error=why) if why else self._decide(cache.runs[attempt.run_id], attempt)
            if time.monotonic() > until:
                break
        self._runs = {}
        return made

    def _find_switch_tasks(
        self, cache: StateCache, master_attempts: Iterable[SubmittedAttempt]
    ) -> list[SubmittedAttempt]:
        """Return the attempts of ``switch`` tasks.

        Attempts whose workflow version cannot be read are returned, too. Evaluating them reports the error.

        Args:
            cache: State of the runs.
            master_attempts: Attempts that the master runs itself.
        """
        found: list[SubmittedAttempt] = []
        with self._database.read() as connection:
            for attempt in master_attempts:
                stored = cache.runs[attempt.run_id]
                try:
                    plan = self._plans.get(connection, stored.code, stored.version).plan
                except Exception as error:
                    if not may_concern_one_run(error):
                        raise
                    found.append(attempt)
                else:
                    found += [attempt] if plan.get_kind(attempt.name) == "switch" else []
        return found

    def _decide(self, stored: StoredRun, attempt: SubmittedAttempt) -> SwitchChoice:
        """Choose the branch of a switch task. An error of its expressions is returned in the choice."""
        version, run = self._runs[stored.id]
        task = version.tasks[attempt.name]
        try:
            return SwitchChoice(
                tuple(choose_branch(task, compute_values(run, task, attempt.n, stored.outputs), stored.outputs))
            )
        except Exception as error:
            if not may_concern_one_run(error):
                raise
            return SwitchChoice(error=get_error_text(error))

    def _read_missing(self, cache: StateCache, run_ids: set[int]) -> dict[int, str]:
        """Read the context of runs that was not read before.

        Args:
            cache: The state of the shard.
            run_ids: IDs of the runs.
        Returns:
            The error text of each run whose context could not be read, by run ID.
        """
        rest = [cache.runs[each] for each in sorted(run_ids - self._runs.keys())]
        if not rest:
            return {}
        failed: dict[int, str] = {}
        parameters: dict[str, Mapping[str, Any]] = {}
        with self._database.read() as connection:
            for stored in rest:
                try:
                    with connection.begin_nested():  # PostgreSQL aborts the whole transaction after an error
                        self._read(connection, stored, parameters)
                except Exception as error:
                    if not may_concern_one_run(error):
                        raise
                    failed[stored.id] = get_error_text(error)
        return failed

    def _task_item(self, stored: StoredRun, attempt: SubmittedAttempt) -> TaskItem:
        """Build the queue item of a submitted attempt, with the message for the worker."""
        version, run = self._runs[stored.id]
        task, index = version.tasks[get_map_name(attempt.name)], get_element_index(attempt.name)
        key = self._plans.compute_cache_key(run, task, attempt.n, stored.outputs, index=index)
        place = (self._shard, stored.code, stored.version)
        spec = build_message(
            run, task, attempt.task, attempt.n, stored.outputs, place=place, index=index, cache_key=key
        )
        value, body = spec.to_bytes()
        return TaskItem(
            ItemPosition.from_queue_key(stored.queue_keys[attempt.name], attempt.task, attempt.n, self._shard),
            value,
            body,
        )


def _is_queued(task: TaskRun) -> bool:
    return task.state is TaskState.SUBMITTED


def load_run_context(
    connection: sa.Connection, version: LoadedVersion, stored: StoredRun, parameters: Mapping[str, Any] | None = None
) -> RunContext:
    """Load what is needed to compute the values of a run's tasks: its definition, parameters, and project settings.

    Args:
        connection: A transaction.
        version: The workflow version of the run.
        stored: The run.
        parameters: The stored parameters of the project. None: read them from the database.
    """
    project = version.definition.project
    environments = settings.load_environments(connection, project, version.environments) if version.environments else {}
    return RunContext(
        version.definition,
        stored.id,
        stored.schedule_time,
        stored.params,
        settings.load_parameters(connection, project) if parameters is None else parameters,
        environments,
        _connections(connection, project, version, environments),
    )


def _connections(
    connection: sa.Connection, project: str, version: LoadedVersion, environments: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    if version.connections is None:
        return settings.load_connections(connection, project)
    named = {each[len(CONNECTION) :] for each in iter_names(environments) if each.startswith(CONNECTION)}
    names = version.connections | named
    return settings.load_connections(connection, project, names) if names else {}


_log = logging.getLogger(__name__)

#: Maximum number of operations in one transaction. The limit of the store is 100.
_MAX_OPS = 90
_MAX_BYTES = 700_000
#: Size of a project's slots that means unlimited.
MAX_TASKS = 10_000


@dataclass(frozen=True, slots=True)
class ItemPosition:
    """Position of an attempt's item in the work queue.

    Attributes:
        partition: Partition of the work queue.
        sort_key: Sort key within the partition.
        item: Name of the item.
    """

    partition: str
    sort_key: str
    item: ItemName

    @classmethod
    def from_queue_key(cls, queue_key: str, task: int, n: int, shard: int) -> ItemPosition:
        """Return the position that a queue key from the database describes.

        Args:
            queue_key: Partition, sort key and priority, separated by slashes.
            task: ID of the task.
            n: Number of the attempt.
            shard: ID of the shard.
        """
        partition, sort_key, priority = queue_key.split("/")
        return cls(partition, sort_key, ItemName(task, n, shard, int(priority)))


@dataclass(frozen=True, slots=True)
class TaskItem:
    """A task to put into the work queue.

    Attributes:
        place: Its position.
        value: Value of the item.
        body: Second part of a large task spec.
    """

    place: ItemPosition
    value: bytes
    body: bytes | None = None


class Dispatcher:
    """Access to the store for the owner of one shard. Not thread-safe.

    Args:
        store: Store of the process, usable while we hold the lock of the shard.
        keys: Keys of the installation.
        shard: ID of the shard.
        fence: Proof of ownership.
    Attributes:
        put_error: Why the last call of ``put_items`` did not put all items. None if it did.
    """

    def __init__(self, store: Store, keys: Keys, shard: int, fence: Fence) -> None:
        self.put_error: LatchworkError | None = None
        self._store = store
        self.keys = keys
        self._shard = shard
        self._fence = fence
        self._backlog = WorkQueue(store, keys.backlog)

    def close(self) -> None:
        """Close the work queue. Nothing is deleted from the store."""
        self._backlog.close()

    def check_owner(self) -> None:
        """Check that this node still owns the shard, by asking the store.

        Raises:
            NotOwner: The shard has another owner, or none.
        """
        try:
            self._store.commit([self._fence], [])
        except Conflict as error:
            raise NotOwner(f"shard {self._shard} has another owner in the store") from error

    def get_item_key(self, place: ItemPosition) -> str:
        """Return the key of a queue item in the store."""
        return self._backlog.key(place.partition, place.sort_key, place.item.id)

    def notify_masters(self, shards: Iterable[int]) -> None:
        """Notify the masters of other shards that commands are waiting.

        Errors are ignored, because masters also poll.
        """
        for each in shards:
            try:
                self._store.put(self.keys.notify_key(each), b"")
            except LatchworkError:
                _log.debug("shard %d was not notified", each, exc_info=True)

    # Results

    def delete_results(self, ended: Sequence[str], unknown_keys: Sequence[str], seq: int) -> None:
        """Delete the results of attempts that are now in the database, and the requests to cancel these attempts.

        Args:
            ended: Keys of the attempts that have ended.
            unknown_keys: Keys that were not written by Latchwork.
            seq: Number of the transaction that wrote the results. It shows later whether the database was restored from
                an older backup.
        """
        ops = [Delete(key) for x in ended for key in (self.keys.result_key(self._shard, x), self.keys.cancel_key(x))]
        ops += [Delete(key) for key in unknown_keys]
        for start in range(0, len(ops), _MAX_OPS):
            mark = Put(self.keys.restore_mark_key(self._shard), str(seq).encode())
            self._commit([], [mark, *ops[start : start + _MAX_OPS]])

    def _commit(self, checks: Sequence[Check], ops: Sequence[Op]) -> None:
        try:
            self._store.commit([self._fence, *checks], ops)
        except Conflict:
            self.check_owner()
            raise

    def list_values(self, prefix: str) -> dict[str, bytes]:
        """Return all entries below a key prefix of the store, as values by key."""
        return {each.key: each.value for each in self._store.list(prefix, recursive=True)}

    def write(self, ops: Sequence[Op]) -> None:
        """Apply writes to the store, in as many transactions as needed. Fails if this node no longer owns the shard."""
        for start in range(0, len(ops), _MAX_OPS):
            self._commit([], ops[start : start + _MAX_OPS])

    # Putting

    def put_items(self, task_items: Iterable[TaskItem]) -> list[str]:
        """Add items to the work queue, except those that exist already and those whose attempts have ended.

        Returns:
            The keys of the attempts for which nothing more needs to be done.
        """
        self.put_error = None
        done: list[str] = []
        for batch in _batches(task_items):
            try:
                self._commit(
                    [Absent(self.keys.result_key(self._shard, each.place.item.attempt_key)) for each in batch],
                    list(dict.fromkeys(op for each in batch for op in self._ops_of(each))),
                )
            except Conflict:
                done += self._put_each(batch)
            except (Unavailable, OutcomeUnknown) as error:
                self.put_error = error
                return done
            else:
                done += [each.place.item.attempt_key for each in batch]
        return done

    def _ops_of(self, task_item: TaskItem) -> list[Op]:
        place = task_item.place
        ops = self._backlog.put_ops(place.partition, place.sort_key, {place.item.id: task_item.value})
        return (
            ops if task_item.body is None else [*ops, Put(self.keys.data_key(place.item.attempt_key), task_item.body)]
        )

    def _put_each(self, batch: Sequence[TaskItem]) -> list[str]:
        """Add the items of a batch one by one. Skip items that exist already or whose attempts have ended.

        Returns:
            The keys of the attempts for which nothing more needs to be done.
        """
        items = self._store.get_many([self.get_item_key(each.place) for each in batch])
        results = self._store.get_many(
            [self.keys.result_key(self._shard, each.place.item.attempt_key) for each in batch]
        )
        done = [each.place.item.attempt_key for each, item in zip(batch, items, strict=True) if item is not None]
        ended = {each.place.item.attempt_key for each, result in zip(batch, results, strict=True) if result is not None}
        for each in batch:
            x = each.place.item.attempt_key
            if x in done or x in ended:
                continue
            try:
                self._commit([Absent(self.keys.result_key(self._shard, x))], self._ops_of(each))
            except Conflict:
                continue  # it was queued or ended just now: the next iteration sees it
            done.append(x)
        return done

    # Withdraw and cancel

    def withdraw_items(self, places: Mapping[str, ItemPosition]) -> list[str]:
        """Remove items from the work queue, except those that a worker has claimed.

        Args:
            places: The positions of the items, by attempt key.
        Returns:
            The keys of the attempts that no worker can claim any more, including those removed earlier.
        """
        gone: list[str] = []
        for x, place in places.items():
            item = self._backlog.find(place.partition, place.sort_key, place.item.id)
            if item is None:
                if not self._is_running_or_ended(x):
                    gone.append(x)
            elif self._remove(x, item):
                gone.append(x)
        return gone

    def _is_running_or_ended(self, attempt_key: str) -> bool:
        """Return whether an attempt without a queue item is running or has ended.

        The key of the claim is read first, because the end of an attempt replaces that key with a result.
        """
        keys = (self.keys.running_key(self._shard, attempt_key), self.keys.result_key(self._shard, attempt_key))
        return any(self._store.get(key) is not None for key in keys)

    def _remove(self, attempt_key: str, item: QueueItem) -> bool:
        checks, ops = self._backlog.removal_ops(item)
        try:
            self._commit(
                checks, [*ops, Delete(self.keys.data_key(attempt_key)), Delete(self.keys.cancel_key(attempt_key))]
            )
        except Conflict:
            return False  # a worker claimed it: it runs, or is canceled later
        return True

    def request_cancels(self, places: Mapping[str, ItemPosition]) -> list[str]:
        """Request workers to stop running attempts, and prevent that other workers claim them.

        Args:
            places: The positions of the queue items, by attempt key.
        Returns:
            The keys of the attempts that got a request.
        """
        requested: list[str] = []
        for x, place in places.items():
            try:
                self._commit(
                    [Exists(self.get_item_key(place))],
                    [Put(self.keys.cancel_key(x), encode_cancel_request(time.time()))],
                )
            except Conflict:
                continue  # it has ended
            requested.append(x)
        return requested

    # Repair

    def list_items(self) -> dict[str, ItemPosition]:
        """Return the positions of all items in the work queue, by attempt key. Items with unknown names are skipped.

        The work queue contains the items of all shards.
        """
        found = {}
        partitions = f"{self.keys.backlog}/partitions"
        for entry in self._store.list(partitions, recursive=True):
            partition, _, rest = entry.key[len(partitions) + 1 :].partition("/")
            kind, _, rest = rest.partition("/")
            sort_key, _, name = rest.partition("/")
            if kind == "items":
                with suppress(InvalidKey):
                    item = ItemName.parse(name)
                    found[item.attempt_key] = ItemPosition(partition, sort_key, item)
        return found

    def list_attempts_with_extra_keys(self) -> set[str]:
        """Return the keys of the attempts, in all shards, that have a cancel request or a separate key for a large task
        spec.
        """
        keys = self.keys
        return {
            entry.key[len(prefix) + 1 :].partition("/")[0]
            for prefix in (keys.cancels, keys.every_data)
            for entry in self._store.list(prefix, recursive=True)
        }

    def delete_extra_keys(self, attempts: Sequence[str]) -> None:
        """Delete the cancel requests and the separate spec keys of attempts that have no queue item."""
        ops = [Delete(key) for x in attempts for key in (self.keys.cancel_key(x), self.keys.data_key(x))]
        for start in range(0, len(ops), _MAX_OPS):
            self._commit([], ops[start : start + _MAX_OPS])

    def did_worker_die(self, place: ItemPosition) -> bool | None:
        """Return whether a running attempt has lost its claim because its worker died.

        Reads the queue item, the key of the claim and the result, in this order.

        Args:
            place: The position of the queue item.
        Returns:
            True: its worker died. False: its worker released the claim. None: the claim was not lost, because the
            attempt is running or has ended.
        """
        item = self._backlog.find(place.partition, place.sort_key, place.item.id)
        if self._is_running_or_ended(place.item.attempt_key):
            return None
        return item is None or not item.why


def _batches(task_items: Iterable[TaskItem]) -> Iterable[list[TaskItem]]:
    batch: list[TaskItem] = []
    size = count = 0
    for each in task_items:
        more = len(each.value) + len(each.body or b"") + 400
        ops = 3 if each.body is not None else 2
        if batch and (count + ops > _MAX_OPS or size + more > _MAX_BYTES):
            yield batch
            batch, size, count = [], 0, 0
        batch.append(each)
        size += more
        count += ops
    if batch:
        yield batch


#: Errors that end one iteration of the shard loop, and not the loop. The next iteration retries.
PASSING: tuple[type[LatchworkError], ...] = (Unavailable, OutcomeUnknown, QuotaExceeded, Conflict)


def build_dispatch_timeout_rows(
    stored: StoredRun, plan: WorkflowPlan, after: WorkflowRun, now: float
) -> list[AttemptRow]:
    """Build a history row for each attempt that was withdrawn because no worker claimed it in time.

    Args:
        stored: The run before.
        plan: Plan of the workflow version.
        after: The run now.
        now: Seconds since the epoch.
    """
    return [
        AttemptRow(
            stored.ids[timeline_event.task],
            timeline_event.n,
            0,
            "",
            "",
            now,
            ended_at=now,
            outcome=NOT_TAKEN,
            error=f"no worker claimed it within {plan.get_rule(timeline_event.task).max_queued_s or 0:g} s",
        )
        for timeline_event in after.timeline_events
        if timeline_event.kind == NOT_TAKEN
    ]
