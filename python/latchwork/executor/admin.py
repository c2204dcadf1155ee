"""Reads and edits a stored executor from a process that neither submits nor runs its tasks.

Used by the CLI and the pages. Counting tasks reads their names, one sort key at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from latchwork.errors import BadRecord, Conflict, LatchworkError
from latchwork.executor.errors import NoSuchTask, TaskCancelled
from latchwork.executor.finished import FinishedTask, FinishedTasks, mark_key, mark_ops
from latchwork.executor.items import TaskItem, task_of
from latchwork.executor.keys import (
    DETACHED,
    NAME,
    Keys,
    check_task_id,
    detached_id,
    executor_store,
    item_id_of,
    member_of,
    queued_at_s,
    task_number,
)
from latchwork.executor.placing import Offer, read_offer
from latchwork.executor.stored import StoredTasks, TaskLocation, TaskState, ended
from latchwork.primitives import Group, QueueItem, WorkQueue
from latchwork.store import Store
from latchwork.store.keys import validate_name
from latchwork.store.steps import run
from latchwork.tasks import PICKLED, Outcome
from latchwork.types import At, Check, Create, Delete, Op

_CLAIMS = 100_000


@dataclass(frozen=True, slots=True)
class ExecutorWorkerInfo:
    """A worker, as stored.

    Attributes:
        id: Its member ID.
        host: Its host name.
        pid: Its process ID.
        weight: Its relative capacity.
        labels: Its labels.
        joined_at_s: When it joined, in Unix seconds by its clock.
        slots: Tasks it runs at a time; 0 if unknown.
        running: Tasks it has claimed.
        queued: Tasks in its lane, including running ones.
        functions: Names of the functions it can run, sorted.
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
class LaneInfo:
    """A lane of tasks.

    Attributes:
        name: Its name; ``any`` is the lane shared by all members.
        tasks: Copies of tasks in it, including running ones.
        running: Copies that are claimed.
        is_orphan: Its member has left; all other members take from it.
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
        lanes: Its lanes, sorted by name.
        submitters: Number of submitters online.
        dead: Number of dead letters.
    """

    name: str
    workers: tuple[ExecutorWorkerInfo, ...]
    lanes: tuple[LaneInfo, ...]
    submitters: int
    dead: int


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task that has not ended.

    Attributes:
        id: Its task ID.
        function: Its function's name; empty if pickled, or if the item is not a valid task.
        phase: ``queued`` or ``running``.
        lanes: Lanes in which its copies were found.
        running_on: Members that hold a copy, sorted.
        attempts: How often it was claimed.
        priority: 0 runs before 9.
        queued_at_s: When it was stored, in Unix seconds by its submitter's clock.
        submitter: Its submitter's ID; ``d`` for a detached task, empty for an invalid item.
        why: Reason given when it was last released.
    """

    id: str
    function: str
    phase: str
    lanes: tuple[str, ...]
    running_on: tuple[str, ...] = ()
    attempts: int = 0
    priority: int = 0
    queued_at_s: float = 0.0
    submitter: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeadTask:
    """A dead letter: a task that was claimed too often, or an item that is not a valid task.

    Attributes:
        letter: ID that ``revive_task`` and ``drop_task`` take.
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
    """Return the workers, lanes and claims of an executor. Read-only."""
    with _opened(store, name) as (system, keys, backlog), closing(Group(system, keys.group)) as group:
        members = group.members()
        ids = {member.id for member in members}
        said = {_last(each.key): read_offer(each.value) for each in system.list(keys.functions)}
        running: dict[str, int] = {}
        lanes = []
        for lane in backlog.partitions():
            holders = [ticket.label for ticket in backlog.claims(lane, _CLAIMS).values()]
            for holder in holders:
                running[holder] = running.get(holder, 0) + 1
            owner = member_of(lane)
            lanes.append(LaneInfo(lane, backlog.size(lane), len(holders), owner is not None and owner not in ids))
        queued = {member_of(lane.name): lane.tasks for lane in lanes}
        workers = [
            ExecutorWorkerInfo(
                member.id,
                member.host,
                member.pid,
                member.weight,
                {label: str(value) for label, value in member.labels.items()},
                member.joined_at,
                said.get(member.id, _NOTHING).slots,
                running.get(member.id, 0),
                queued.get(member.id, 0),
                tuple(sorted(said.get(member.id, _NOTHING).functions)),
                said.get(member.id, _NOTHING).allow_pickle,
            )
            for member in members
        ]
        dead = len(backlog.dead_letters(_CLAIMS))
        return ExecutorState(name, tuple(workers), tuple(lanes), len(system.children(keys.subs)), dead)


def list_tasks(store: Store, name: str = NAME, *, limit: int = 100) -> list[TaskRecord]:
    """Return tasks that have not ended, lane by lane, in the order in which they are taken. Read-only.

    Args:
        store: The executor's store.
        name: Its name.
        limit: Maximum number of copies to read.
    """
    with _opened(store, name) as (_, _, backlog):
        found: dict[str, TaskRecord] = {}
        for lane in backlog.partitions():
            items = backlog.items(lane, limit)
            limit -= len(items)
            claims = backlog.claims(lane, _CLAIMS)
            for item in items:
                holder = claims.get(item.path)
                record = _record(item, None if holder is None else holder.label)
                there = found.get(record.id)
                found[record.id] = record if there is None else _merged(there, record)
            if limit <= 0:
                break
        return list(found.values())


def find_task(store: Store, task_id: str, name: str = NAME) -> TaskState:
    """Return the stored state of a task of any submitter. Read-only.

    Raises:
        NoSuchTask: Nothing is stored. The task ended and its result was fetched, or it never existed.
    """
    with _opened(store, name) as (system, keys, backlog):
        place, over = _look(system, keys, backlog, task_id)
        return over if place is None else run(StoredTasks(system, keys, backlog).state(place))


def cancel_task(store: Store, task_id: str, name: str = NAME, *, interrupt: bool = False) -> bool:
    """Cancel a task of any submitter. A wait for its result raises ``CancelledError``.

    Args:
        store: The executor's store.
        task_id: ID from ``TaskFuture.id``, ``TaskRef.id`` or ``list_tasks``.
        name: The executor's name.
        interrupt: Also cancel a running task: signal it to stop, and drop its result.
    Returns:
        False if the task is running or has ended.
    Raises:
        NoSuchTask: Nothing of the task is stored.
        Unavailable, OutcomeUnknown: The store could not be reached. Retry.
    """
    with _opened(store, name) as (system, keys, backlog):
        place, _ = _look(system, keys, backlog, task_id)
        if place is None:
            return False
        outcome = Outcome.failed(TaskCancelled(f"task {task_id} was cancelled"))
        ops: list[Op] = [Create(place.result_key, outcome.to_bytes()), *mark_ops(keys, place, outcome)]
        stored = StoredTasks(system, keys, backlog)
        return run(stored.take_back(place, None, interrupt=interrupt, is_over=lambda: False, ops=lambda: ops))


def finished_tasks(store: Store, name: str = NAME, *, limit: int = 100) -> list[FinishedTask]:
    """Return detached tasks that have ended and are still stored, the first ones to expire first. Read-only.

    Args:
        store: The executor's store.
        name: Its name.
        limit: Maximum number to read.
    """
    with _opened(store, name) as (system, keys, backlog):
        return run(FinishedTasks(system, keys, StoredTasks(system, keys, backlog)).read(limit))


def forget_task(store: Store, task_id: str, name: str = NAME) -> bool:
    """Delete the record and the result of a detached task; False if there is no such task.

    Raises:
        LatchworkError: The task has not ended. Cancel it first.
        InvalidKey: The ID is not that of a detached task.
    """
    given = detached_id(check_task_id(task_id.removeprefix(f"{DETACHED}.")))
    with _opened(store, name) as (system, keys, backlog):
        return run(FinishedTasks(system, keys, StoredTasks(system, keys, backlog)).forget(given))


def forget_finished_tasks(store: Store, name: str = NAME, *, older_than_s: float = 0.0) -> int:
    """Delete the records and results of all detached tasks that ended some time ago, whether fetched or not.

    Args:
        store: The executor's store.
        name: Its name.
        older_than_s: Seconds since the end of a task, by the clock of its worker and ours; 0 deletes all that ended.
    Returns:
        The number of tasks deleted.
    """
    with _opened(store, name) as (system, keys, backlog):
        finished = FinishedTasks(system, keys, StoredTasks(system, keys, backlog))
        return run(finished.forget_older(time.time() - older_than_s))


def dead_tasks(store: Store, name: str = NAME, *, limit: int = 100) -> list[DeadTask]:
    """Return the first dead letters. Read-only."""
    with _opened(store, name) as (_, _, backlog):
        return [_dead(item) for item in backlog.dead_letters(limit)]


def revive_task(store: Store, letter: str, name: str = NAME) -> str:
    """Requeue a dead detached task with its attempts reset, and return its ID.

    A task of a submitter cannot be requeued, because its future has already failed.

    Raises:
        LatchworkError: There is no such letter, or it cannot be requeued. The message says why.
    """
    with _opened(store, name) as (system, keys, backlog):
        dead = next((item for item in backlog.dead_letters(_CLAIMS) if item.letter == letter), None)
        if dead is None:
            raise NoSuchTask(f"executor {name!r} has no dead letter {letter!r}; list them with dead_tasks()")
        try:
            task = task_of(dead.value)
        except BadRecord as error:
            raise LatchworkError(f"dead letter {letter!r} is no task, and can only be dropped: {error}") from None
        if not task.is_detached or task.blob:
            why = "its arguments are gone" if task.is_detached else "its submitter was notified that it died"
            raise LatchworkError(f"task {task.id} cannot be put back: {why}; submit it again")
        outcome = keys.outcome(task.id)
        checks: list[Check] = [] if (known := system.get(keys.record(task.id))) is None else [At(known)]
        if not checks:
            raise NoSuchTask(f"task {task.id} was forgotten; drop the letter, and submit it again")
        backlog.revive(
            letter, checks=checks, ops=[Delete(outcome), Delete(mark_key(keys, TaskLocation.for_item(task, keys)))]
        )
        return task.id


def drop_task(store: Store, letter: str, name: str = NAME) -> None:
    """Delete a dead letter permanently.

    Raises:
        NoSuchTask: There is no such dead letter.
    """
    with _opened(store, name) as (_, _, backlog):
        try:
            backlog.drop(letter)
        except Conflict as error:
            raise NoSuchTask(f"executor {name!r}: {error}") from None


_NOTHING = Offer()


@contextmanager
def _opened(store: Store, name: str) -> Iterator[tuple[Store, Keys, WorkQueue]]:
    system, keys = executor_store(store, "an executor"), Keys(validate_name(name))
    with closing(WorkQueue(system, keys.backlog)) as backlog:
        yield system, keys, backlog


def _last(key: str) -> str:
    return key.rpartition("/")[2]


def _record(item: QueueItem, holder: str | None) -> TaskRecord:
    phase, on = ("queued", ()) if holder is None else ("running", (holder,))
    at_s = queued_at_s(item.sort_key)
    try:
        task = task_of(item.value)
    except BadRecord as error:
        why = f"it is no task: {error}"
        return TaskRecord(item.id, "", phase, (item.partition,), on, item.attempts, 0, at_s, "", why)
    function = "" if task.function == PICKLED else task.function
    return TaskRecord(
        task.id, function, phase, (item.partition,), on, item.attempts, task.priority, at_s, task.sid, item.why
    )


def _merged(one: TaskRecord, other: TaskRecord) -> TaskRecord:
    """Merge the records of two copies of a task."""
    on = tuple(sorted({*one.running_on, *other.running_on}))
    return replace(
        one,
        phase="running" if on else "queued",
        lanes=tuple(dict.fromkeys([*one.lanes, *other.lanes])),
        running_on=on,
        attempts=max(one.attempts, other.attempts),
        why=one.why or other.why,
    )


def _dead(item: QueueItem) -> DeadTask:
    try:
        task = task_of(item.value)
    except BadRecord:
        return DeadTask(item.letter, "", "", item.attempts, item.why)
    return DeadTask(item.letter, task.id, task.function, item.attempts, item.why)


def _look(store: Store, keys: Keys, backlog: WorkQueue, task_id: str) -> tuple[TaskLocation | None, TaskState]:
    """Locate a task, or return None and its final state if it has ended."""
    sid, number = task_number(task_id)
    detached = sid == DETACHED
    task = next(_tasks_of(store, backlog, sid, task_id), None)
    if task is not None:
        return TaskLocation.for_item(task, keys), TaskState("queued")
    over = store.get(keys.outcome(task_id) if detached else keys.result(sid, number))
    if over is None:
        raise NoSuchTask(
            f"executor {keys.name!r} has no task {task_id!r}: it ended and its result was fetched, or it never existed"
        )
    return None, ended(over.value)


def _tasks_of(store: Store, backlog: WorkQueue, sid: str, task_id: str) -> Iterator[TaskItem]:
    """Yield the stored copies of a task, found by its submitter's sort keys."""
    for lane in backlog.partitions():
        prefix = backlog.key(lane, "x", "x").removesuffix("/x/x")
        for shelf in _of(store.children(prefix), sid):
            for each in store.children(f"{prefix}/{shelf}"):
                item = backlog.find(lane, shelf, each) if _is_copy(each, task_id) else None
                if item is not None:
                    yield task_of(item.value)


def _of(shelves: Iterable[str], sid: str) -> list[str]:
    return [shelf for shelf in shelves if shelf.endswith(f"-{sid}")]


def _is_copy(item_id: str, task_id: str) -> bool:
    """Return whether this is the item ID of a copy of a task."""
    copy = item_id.removeprefix(f"{task_id}.")
    return copy.isascii() and copy.isdecimal() and item_id == item_id_of(task_id, int(copy))
