"""Inspection and control of a stored executor, from a process that neither submits nor runs its tasks.

Used by the commands and the pages. To count tasks, it reads their names, one sort key at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from latchwork.errors import BadRecord, Conflict, LatchworkError
from latchwork.executor.errors import NoSuchTask, TaskCancelled
from latchwork.executor.finished import FinishedTask, FinishedTasks, create_finished_ops, finished_key
from latchwork.executor.items import TaskItem, parse_task
from latchwork.executor.keys import (
    DETACHED,
    NAME,
    Keys,
    check_task_id,
    executor_store,
    make_detached_id,
    make_item_id,
    parse_task_id,
    partition_member,
    queued_at_s,
)
from latchwork.executor.placement import MemberFunctions, decode_member_functions
from latchwork.executor.stored import StoredTasks, TaskLocation, TaskState, decode_final_state
from latchwork.primitives import Group, QueueItem, WorkQueue
from latchwork.store import Store
from latchwork.store.keys import validate_name
from latchwork.store.steps import run
from latchwork.tasks import PICKLED, Outcome
from latchwork.types import At, Check, Create, Delete, Op

_CLAIMS = 100_000


@dataclass(frozen=True, slots=True)
class ExecutorWorkerInfo:
    """A worker of an executor, as stored.

    Attributes:
        id: Its member ID.
        host: Its host name.
        pid: Its process ID.
        weight: Its relative capacity.
        labels: Its labels.
        joined_at_s: When it joined, in Unix seconds by its clock.
        slots: Number of tasks that it runs at a time; 0 if unknown.
        running: Number of tasks that it has claimed.
        queued: Number of tasks in its partition, including running ones.
        functions: Names of the functions that it can run, sorted.
        allow_pickle: Whether it also runs pickled functions.
    """

    id: str
    host: str = ""
    pid: int = 0
    weight: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    joined_at_s: float = 0.0
    slots: int = 0
    running: int = 0
    queued: int = 0
    functions: tuple[str, ...] = ()
    allow_pickle: bool = False


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition of the queue of tasks.

    Attributes:
        name: Its name; ``any`` is the partition shared by all members.
        tasks: Number of copies of tasks in it, including running ones.
        running: Number of copies that are claimed.
        is_orphan: Whether its member has left, so that all other members take from it.
    """

    name: str
    tasks: int
    running: int
    is_orphan: bool = False


@dataclass(frozen=True, slots=True)
class ExecutorState:
    """A snapshot of an executor.

    Attributes:
        name: Its name.
        workers: Its workers, sorted by ID.
        partitions: Its partitions, sorted by name.
        submitters: Number of submitters online.
        dead: Number of dead letters.
    """

    name: str
    workers: tuple[ExecutorWorkerInfo, ...]
    partitions: tuple[PartitionInfo, ...]
    submitters: int
    dead: int


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task that has not ended.

    Attributes:
        id: Its task ID.
        function: Its function's name; empty if pickled, or if the item is not a valid task.
        phase: ``queued`` or ``running``.
        partitions: Partitions in which its copies were found.
        running_on: Members that hold a copy, sorted.
        attempts: How often it was claimed.
        failures: How often it raised an error and was retried.
        priority: 0 runs before 9.
        queued_at_s: When it was stored, in Unix seconds by its submitter's clock.
        submitter: Its submitter's ID; ``d`` for a detached task, empty for an invalid item.
        why: Reason given when it was last released.
    """

    id: str
    function: str
    phase: str
    partitions: tuple[str, ...]
    running_on: tuple[str, ...] = ()
    attempts: int = 0
    failures: int = 0
    priority: int = 0
    queued_at_s: float = 0.0
    submitter: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeadTask:
    """A dead letter: a task that was claimed too often, or an item that is not a valid task.

    Attributes:
        letter: ID that ``requeue_task`` and ``drop_task`` take.
        id: Its task ID; empty for an invalid item.
        function: Its function's name.
        attempts: How often it was claimed.
        why: Why it became a dead letter.
    """

    letter: str
    id: str
    function: str
    attempts: int
    why: str


def inspect(store: Store, name: str = NAME) -> ExecutorState:
    """Return the workers, the partitions and the number of tasks of an executor. Only reads."""
    with _opened(store, name) as (system, keys, backlog), closing(Group(system, keys.group)) as group:
        members = group.members()
        ids = {member.id for member in members}
        offers = {
            each.key.rpartition("/")[2]: decode_member_functions(each.value) for each in system.list(keys.functions)
        }
        running: dict[str, int] = {}
        partitions = []
        for partition in backlog.partitions():
            holders = [ticket.label for ticket in backlog.claims(partition, _CLAIMS).values()]
            for holder in holders:
                running[holder] = running.get(holder, 0) + 1
            owner = partition_member(partition)
            partitions.append(
                PartitionInfo(partition, backlog.size(partition), len(holders), owner is not None and owner not in ids)
            )
        queued = {partition_member(partition.name): partition.tasks for partition in partitions}
        workers = [
            ExecutorWorkerInfo(
                member.id,
                member.host,
                member.pid,
                member.weight,
                {label: str(value) for label, value in member.labels.items()},
                member.joined_at,
                offers.get(member.id, _NOTHING).slots,
                running.get(member.id, 0),
                queued.get(member.id, 0),
                tuple(sorted(offers.get(member.id, _NOTHING).functions)),
                offers.get(member.id, _NOTHING).allow_pickle,
            )
            for member in members
        ]
        dead = len(backlog.dead_letters(_CLAIMS))
        return ExecutorState(name, tuple(workers), tuple(partitions), len(system.children(keys.submitters)), dead)


def list_tasks(store: Store, name: str = NAME, *, limit: int = 100) -> list[PendingTask]:
    """Return tasks that have not ended, partition by partition, in the order in which they are taken. Only reads.

    Args:
        store: The executor's store.
        name: Its name.
        limit: Maximum number of copies to read.
    """
    with _opened(store, name) as (_, _, backlog):
        found: dict[str, PendingTask] = {}
        for partition in backlog.partitions():
            items = backlog.items(partition, limit)
            limit -= len(items)
            claims = backlog.claims(partition, _CLAIMS)
            for item in items:
                holder = claims.get(item.path)
                record = _to_record(item, None if holder is None else holder.label)
                there = found.get(record.id)
                found[record.id] = record if there is None else _merge(there, record)
            if limit <= 0:
                break
        return list(found.values())


def find_task(store: Store, task_id: str, name: str = NAME) -> TaskState:
    """Return the current state of a task of any submitter. Only reads.

    Args:
        store: The executor's store.
        task_id: ID from ``TaskFuture.id``, ``TaskRef.id`` or ``list_tasks``.
        name: The executor's name.
    Raises:
        NoSuchTask: Nothing is stored. The task ended and its result was fetched, or it never existed.
    """
    with _opened(store, name) as (system, keys, backlog):
        location, final_state = _locate(system, keys, backlog, task_id)
        return final_state if location is None else run(StoredTasks(system, keys, backlog).read_state(location))


def cancel_task(store: Store, task_id: str, name: str = NAME, *, interrupt: bool = False) -> bool:
    """Cancel a task of any submitter. A wait for its result raises ``CancelledError``.

    Args:
        store: The executor's store.
        task_id: ID from ``TaskFuture.id``, ``TaskRef.id`` or ``list_tasks``.
        name: The executor's name.
        interrupt: Also cancel a running task: signal it to stop, and drop its result.
    Returns:
        Whether the task was canceled. False if it has ended, or is running and ``interrupt`` is not set.
    Raises:
        NoSuchTask: Nothing of the task is stored.
        Unavailable, OutcomeUnknown: The store could not be reached. Retry.
    """
    with _opened(store, name) as (system, keys, backlog):
        location, _ = _locate(system, keys, backlog, task_id)
        if location is None:
            return False
        outcome = Outcome.from_exception(TaskCancelled(f"task {task_id} was cancelled"))
        ops: list[Op] = [Create(location.result_key, outcome.to_bytes()), *create_finished_ops(keys, location, outcome)]
        stored = StoredTasks(system, keys, backlog)
        return run(stored.remove(location, None, interrupt=interrupt, has_outcome=lambda: False, ops=lambda: ops))


def finished_tasks(store: Store, name: str = NAME, *, limit: int = 100) -> list[FinishedTask]:
    """Return detached tasks that have ended and are still stored. The tasks that expire first come first. Only reads.

    Args:
        store: The executor's store.
        name: Its name.
        limit: Maximum number to read.
    """
    with _opened(store, name) as (system, keys, backlog):
        return run(FinishedTasks(system, keys, StoredTasks(system, keys, backlog)).read(limit))


def forget_task(store: Store, task_id: str, name: str = NAME) -> bool:
    """Delete the record and the result of a detached task that has ended.

    Args:
        store: The executor's store.
        task_id: ID of the task.
        name: The executor's name.
    Returns:
        Whether the task existed.
    Raises:
        LatchworkError: The task has not ended. Cancel it first.
        InvalidKey: The ID is not that of a detached task.
    """
    given = make_detached_id(check_task_id(task_id.removeprefix(f"{DETACHED}.")))
    with _opened(store, name) as (system, keys, backlog):
        return run(FinishedTasks(system, keys, StoredTasks(system, keys, backlog)).forget(given))


def forget_finished_tasks(store: Store, name: str = NAME, *, older_than_s: float = 0.0) -> int:
    """Delete the records and results of detached tasks that ended some time ago, whether or not they were fetched.

    Args:
        store: The executor's store.
        name: Its name.
        older_than_s: Seconds since the end of a task, by the clocks of its worker and of this process; 0 deletes all
            tasks that have ended.
    Returns:
        The number of deleted tasks.
    """
    with _opened(store, name) as (system, keys, backlog):
        finished = FinishedTasks(system, keys, StoredTasks(system, keys, backlog))
        return run(finished.delete_ended_before(time.time() - older_than_s))


def dead_tasks(store: Store, name: str = NAME, *, limit: int = 100) -> list[DeadTask]:
    """Return the first dead letters of an executor. Only reads.

    Args:
        store: The executor's store.
        name: Its name.
        limit: Maximum number to read.
    """
    with _opened(store, name) as (_, _, backlog):
        return [_to_dead_task(item) for item in backlog.dead_letters(limit)]


def requeue_task(store: Store, letter: str, name: str = NAME) -> str:
    """Put a dead detached task back into the queue, with its attempts reset.

    A task of a submitter cannot be requeued, because its future has already failed.

    Args:
        store: The executor's store.
        letter: ID of the dead letter, from ``dead_tasks``.
        name: The executor's name.
    Returns:
        The task ID.
    Raises:
        LatchworkError: There is no such dead letter, or it cannot be requeued. The message says why.
    """
    with _opened(store, name) as (system, keys, backlog):
        dead = next((item for item in backlog.dead_letters(_CLAIMS) if item.dead_letter_id == letter), None)
        if dead is None:
            raise NoSuchTask(f"executor {name!r} has no dead letter {letter!r}; list them with dead_tasks()")
        try:
            task = parse_task(dead.value)
        except BadRecord as error:
            raise LatchworkError(f"dead letter {letter!r} is not a task and can only be dropped: {error}") from None
        if not task.is_detached or task.blob:
            why = "its arguments are gone" if task.is_detached else "its submitter was notified that it died"
            raise LatchworkError(f"task {task.id} cannot be queued again: {why}; submit it again")
        outcome = keys.outcome_key(task.id)
        checks: list[Check] = [] if (known := system.get(keys.record_key(task.id))) is None else [At(known)]
        if not checks:
            raise NoSuchTask(f"task {task.id} was forgotten; drop the letter, and submit it again")
        backlog.requeue(
            letter, checks=checks, ops=[Delete(outcome), Delete(finished_key(keys, TaskLocation.from_item(task, keys)))]
        )
        return task.id


def drop_task(store: Store, letter: str, name: str = NAME) -> None:
    """Delete a dead letter permanently.

    Args:
        store: The executor's store.
        letter: ID of the dead letter, from ``dead_tasks``.
        name: The executor's name.
    Raises:
        NoSuchTask: There is no such dead letter.
    """
    with _opened(store, name) as (_, _, backlog):
        try:
            backlog.drop(letter)
        except Conflict as error:
            raise NoSuchTask(f"executor {name!r}: {error}") from None


_NOTHING = MemberFunctions()


@contextmanager
def _opened(store: Store, name: str) -> Iterator[tuple[Store, Keys, WorkQueue]]:
    system, keys = executor_store(store, "an executor"), Keys(validate_name(name))
    with closing(WorkQueue(system, keys.backlog)) as backlog:
        yield system, keys, backlog


def _to_record(item: QueueItem, holder: str | None) -> PendingTask:
    phase, on = ("queued", ()) if holder is None else ("running", (holder,))
    at_s = queued_at_s(item.sort_key)
    try:
        task = parse_task(item.value)
    except BadRecord as error:
        why = f"it is not a task: {error}"
        return PendingTask(item.id, "", phase, (item.partition,), on, item.attempts, item.failures, 0, at_s, "", why)
    function = "" if task.function == PICKLED else task.function
    return PendingTask(
        task.id,
        function,
        phase,
        (item.partition,),
        on,
        item.attempts,
        item.failures,
        task.priority,
        at_s,
        task.submitter_id,
        item.why,
    )


def _merge(one: PendingTask, other: PendingTask) -> PendingTask:
    """Merge the records of two copies of a task into one."""
    on = tuple(sorted({*one.running_on, *other.running_on}))
    return replace(
        one,
        phase="running" if on else "queued",
        partitions=tuple(dict.fromkeys([*one.partitions, *other.partitions])),
        running_on=on,
        attempts=max(one.attempts, other.attempts),
        failures=max(one.failures, other.failures),
        why=one.why or other.why,
    )


def _to_dead_task(item: QueueItem) -> DeadTask:
    try:
        task = parse_task(item.value)
    except BadRecord:
        return DeadTask(item.dead_letter_id, "", "", item.attempts, item.why)
    return DeadTask(item.dead_letter_id, task.id, task.function, item.attempts, item.why)


def _locate(store: Store, keys: Keys, backlog: WorkQueue, task_id: str) -> tuple[TaskLocation | None, TaskState]:
    """Find out where a task is stored, and its state.

    Returns:
        The location, or None if the task has ended; and its state.
    """
    submitter_id, number = parse_task_id(task_id)
    detached = submitter_id == DETACHED
    task = next(_iter_task_copies(store, backlog, submitter_id, task_id), None)
    if task is not None:
        return TaskLocation.from_item(task, keys), TaskState("queued")
    final_state = store.get(keys.outcome_key(task_id) if detached else keys.result_key(submitter_id, number))
    if final_state is None:
        raise NoSuchTask(
            f"executor {keys.name!r} has no task {task_id!r}: it has ended and its result "
            "was fetched, or it never existed"
        )
    return None, decode_final_state(final_state.value)


def _iter_task_copies(store: Store, backlog: WorkQueue, submitter_id: str, task_id: str) -> Iterator[TaskItem]:
    """Yield the copies of a task that are in the queue. Searches the sort keys of its submitter in all partitions."""
    for partition in backlog.partitions():
        prefix = backlog.key(partition, "x", "x").removesuffix("/x/x")
        for sort_key in store.children(prefix):
            for each in store.children(f"{prefix}/{sort_key}") if sort_key.endswith(f"-{submitter_id}") else ():
                item = backlog.find(partition, sort_key, each) if _is_copy(each, task_id) else None
                if item is not None:
                    yield parse_task(item.value)


def _is_copy(item_id: str, task_id: str) -> bool:
    """Return whether the ID of a queue item belongs to a copy of a task."""
    copy = item_id.removeprefix(f"{task_id}.")
    return copy.isascii() and copy.isdecimal() and item_id == make_item_id(task_id, int(copy))
