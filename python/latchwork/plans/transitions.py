"""State changes of plans and their tasks. Each function builds the checks and writes of a transaction from data that
was read. Pure.

docs/design/plans.md lists, for each change, the possible callers, the races, and the check that notices each race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from latchwork._base.decoding import encode
from latchwork.plans.keys import CONTROL_SORT_KEY, Keys, item_id, sort_key
from latchwork.plans.records import (
    MAX_FAILURES,
    MAX_REASON,
    ItemSettings,
    PlanRecord,
    PlanState,
    Task,
    TaskRecord,
    TaskState,
)
from latchwork.types import Absent, At, Check, Create, Delete, Entry, Exists, Op, Put

#: A task with more successors does not delegate them. Also the maximum number of pending dependencies of an added task.
MAX_LINKED = 30
#: Maximum number of writes; a transaction may have 100.
MAX_WRITES = 90
#: Maximum size of records that are rewritten together; a transaction may have a megabyte.
MAX_BYTES = 600_000
#: Maximum size of an item in bytes; longer hints are left out.
_MAX_ITEM = 2_000

#: Returns the writes that put an item into the queue, given its sort key, ID and value.
PutItem = Callable[[str, str, bytes], "list[Op]"]
#: A plan as it was read: its entry for checks, and its record.
StoredPlan = tuple[Entry, PlanRecord]


class TxnPart(NamedTuple):
    """Checks and writes that are part of a transaction."""

    checks: list[Check]
    ops: list[Op]

    def merge(self, other: TxnPart) -> TxnPart:
        """Return the checks and writes of both parts."""
        return TxnPart([*self.checks, *other.checks], [*self.ops, *other.ops])


class Transitions:
    """Builds the checks and writes for each state change of the plans below one name. Does no I/O.

    Args:
        keys: Keys of the plans.
        put_item: Returns the writes that put an item into the work queue.
    """

    def __init__(self, keys: Keys, put_item: PutItem) -> None:
        self.keys = keys
        self._put_item = put_item

    # Items

    def build_item_ops(self, plan_id: str, plan: PlanRecord, name: str, task: TaskRecord) -> list[Op]:
        """Return the writes that create the queue item of a ready task."""
        return self._put_item(self.get_sort_key(plan, task), item_id(plan_id, name), encode_item_settings(task))

    def get_sort_key(self, plan: PlanRecord, task: TaskRecord) -> str:
        """Return the sort key of a task's queue item."""
        return sort_key(plan.priority, plan.started_ms, task.number)

    def build_control_item_ops(self, plan_id: str, operation: str, generation: int) -> list[Op]:
        """Return the writes that create the queue item of a control operation.

        Args:
            plan_id: ID of the plan.
            operation: ``start``, ``cancel``, ``recover`` or ``remove``.
            generation: Generation of the plan; the item has no effect after the generation has changed.
        """
        return self._put_item(CONTROL_SORT_KEY, item_id(plan_id, f"@{operation}.{generation}"), b"")

    # Building and starting

    def build_draft(self, plan_id: str, plan: PlanRecord, session: object) -> TxnPart:
        """Return the writes that create a plan as a draft without tasks. Tasks of a draft do not run.

        The draft is deleted automatically after the session of its creator has ended.
        """
        return TxnPart(
            [],
            [
                Create(self.keys.plan_key(plan_id), plan.to_bytes()),
                Create(self.keys.draft_key(plan_id), b"", session),  # type: ignore[arg-type]
            ],
        )

    def build_task_writes(self, plan_id: str, tasks: Iterable[tuple[str, TaskRecord]]) -> list[TxnPart]:
        """Return the transactions that write the tasks of a draft, as few as possible."""
        check = Exists(self.keys.draft_key(plan_id))
        parts: list[TxnPart] = []
        ops: list[Op] = []
        size = 0
        for name, task in tasks:
            record = task.to_bytes()
            unit: list[Op] = [
                Create(self.keys.unfinished_key(plan_id, name), b""),
                Create(self.keys.task_key(plan_id, name), record),
            ]
            for op in unit:
                cost = len(getattr(op, "value", b"")) + 2 * len(op.key) + 100
                if len(ops) >= MAX_WRITES or (ops and size + cost > 900_000):
                    parts.append(TxnPart([check], ops))
                    ops, size = [], 0
                ops.append(op)
                size += cost
        return [*parts, TxnPart([check], ops)] if ops else parts

    def build_start(self, plan_id: str, entry: Entry, plan: PlanRecord, now_ms: int) -> TxnPart:
        """Return the checks and writes that start a complete draft. A worker then makes its first tasks ready."""
        ready = replace(plan, state=PlanState.READY, started_ms=now_ms)
        draft = self.keys.draft_key(plan_id)
        return TxnPart(
            [At(entry), Exists(draft)],
            [
                Put(entry.key, ready.to_bytes()),
                Delete(draft),
                *self.build_control_item_ops(plan_id, "start", ready.generation),
            ],
        )

    # Running

    def build_ready(
        self, plan_id: str, stored_plan: StoredPlan, task: Task, item: Sequence[Op] | None = None
    ) -> TxnPart:
        """Return the checks and writes that move a waiting task to ready. All of its dependencies must be done.

        Any worker may do this, because a done task stays done.

        Args:
            plan_id: ID of the plan.
            stored_plan: The plan, read before the caller checked the dependencies. The transaction checks that it has
                not changed.
            task: The waiting task.
            item: Writes that create and claim its queue item; None creates an unclaimed item.
        """
        ready = task.record.with_state(TaskState.READY)
        put = self.build_item_ops(plan_id, stored_plan[1], task.name, task.record) if item is None else item
        return TxnPart([At(stored_plan[0]), At(task.entry)], [Put(task.entry.key, ready.to_bytes()), *put])

    def build_delegating_completion(
        self,
        plan_id: str,
        stored_plan: StoredPlan | None,
        task: Task,
        result: bytes,
        *,
        ready: Sequence[Task] = (),
        witnesses: Iterable[str] = (),
        ended_deps: Iterable[str] = (),
        items: Mapping[str, Sequence[Op]] | None = None,
    ) -> TxnPart | None:
        """Return the checks and writes that complete a task and leave its successors to another unfinished task.

        When this transaction commits, each successor either becomes ready or depends on another unfinished task
        (a witness), which makes it ready later. A task without successors needs any unfinished task of the plan as its
        witness, which ends the plan later. So the last task of a plan to end never delegates. The caller adds a check
        that it still holds the task's claim.

        Args:
            plan_id: ID of the plan.
            stored_plan: The plan without failed tasks, as it was read before the dependencies of ``ready`` were
                checked.
            task: The task to complete.
            result: Value of the key of its result.
            ready: Successors that become ready, because this task is their last dependency.
            witnesses: Names of tasks that have not ended; the transaction checks them.
            ended_deps: Names of dependencies of ``ready`` whose completions may not be committed yet.
            items: By successor, the writes that create and claim its queue item; others get an unclaimed item.
        Returns:
            None if the caller must handle the successors itself: no other task will, or the transaction would be too
            large.
        """
        others = list(witnesses)
        if len(task.record.successors) > MAX_LINKED or not (ready or others):
            return None
        part = self.build_completion(plan_id, task, result)
        for each in ready:
            assert stored_plan is not None
            part = part.merge(self.build_ready(plan_id, stored_plan, each, (items or {}).get(each.name)))
        part.checks.extend(Absent(self.keys.unfinished_key(plan_id, each)) for each in ended_deps)
        part.checks.extend(Exists(self.keys.unfinished_key(plan_id, each)) for each in others)
        checks, ops = list(dict.fromkeys(part.checks)), list(dict.fromkeys(part.ops))
        if sum(len(each.entry.value) for each in ready) > MAX_BYTES // 4:
            return None
        return TxnPart(checks, ops) if max(len(checks), len(ops)) <= MAX_WRITES else None

    def build_completion(self, plan_id: str, task: Task, result: bytes) -> TxnPart:
        """Return the checks and writes that complete a task and store its result."""
        return TxnPart(
            [At(task.entry)],
            [
                Put(task.entry.key, task.record.with_state(TaskState.DONE).to_bytes()),
                Put(self.keys.result_key(plan_id, task.name), result),
                Delete(self.keys.unfinished_key(plan_id, task.name)),
            ],
        )

    def build_plan_completion(
        self, entry: Entry, plan: PlanRecord, additions: Entry | None, additions_key: str, now_ms: int
    ) -> TxnPart:
        """Return the checks and writes that end a plan whose tasks have all ended.

        Args:
            entry: Entry of the plan.
            plan: Its decoded record.
            additions: Entry of the key that is rewritten whenever a task is added, read before the tasks were checked;
                None if it does not exist. The transaction checks it, and so fails if a task was added meanwhile.
            additions_key: Name of this key.
            now_ms: End time in milliseconds since the epoch.
        """
        state = PlanState.FAILED if plan.failed else PlanState.COMPLETED
        guard: Check = Absent(additions_key) if additions is None else At(additions)
        return TxnPart([At(entry), guard], [Put(entry.key, replace(plan, state=state, ended_ms=now_ms).to_bytes())])

    # Failing

    def build_failed_attempt(self, task: Task, reason: str) -> TxnPart:
        """Return the checks and writes that record a failed attempt of a task that will be retried.

        Args:
            task: The task as it was read.
            reason: Error of the attempt.
        """
        again = replace(task.record, attempts=task.record.attempts + 1, why=reason[:MAX_REASON])
        return TxnPart([At(task.entry)], [Put(task.entry.key, again.to_bytes())])

    def build_failure(
        self, plan_id: str, entry: Entry, plan: PlanRecord, task: Task, *, reason: str, result: bytes
    ) -> TxnPart:
        """Return the checks and writes that fail a task permanently. With ``on_failure="stop"`` they also begin to end
        the plan.

        Args:
            plan_id: ID of the plan.
            entry: Entry of the plan.
            plan: Its decoded record.
            task: The task as it was read.
            reason: Error of the last attempt.
            result: Value of the key of its result, which contains the error.
        """
        lost = replace(task.record, state=TaskState.FAILED, attempts=task.record.attempts + 1, why=reason[:MAX_REASON])
        part = TxnPart(
            [At(task.entry)],
            [
                Put(task.entry.key, lost.to_bytes()),
                Put(self.keys.result_key(plan_id, task.name), result),
                Delete(self.keys.unfinished_key(plan_id, task.name)),
            ],
        )
        stops = plan.on_failure == "stop" and plan.state is PlanState.READY
        if not stops and len(plan.failed) >= MAX_FAILURES:
            return part
        changed = plan.with_failure(task.name, reason)
        part.checks.append(At(entry))
        if stops:
            more = self.build_cancel_start(plan_id, entry, changed, PlanState.FAILED)
            part.ops.extend(more.ops)
        else:
            part.ops.append(Put(entry.key, changed.to_bytes()))
        return part

    def build_skip(self, plan_id: str, entry: Entry, task: Task) -> TxnPart:
        """Return the checks and writes that skip a task that can no longer run.

        They check the plan, because a recovery makes the task wait again.
        """
        return self._build_task_end(plan_id, entry, task, TaskState.SKIPPED)

    def _build_task_end(self, plan_id: str, entry: Entry, task: Task, state: TaskState) -> TxnPart:
        return TxnPart(
            [At(entry), At(task.entry)],
            [
                Put(task.entry.key, task.record.with_state(state).to_bytes()),
                Delete(self.keys.unfinished_key(plan_id, task.name)),
            ],
        )

    # Canceling

    def build_cancel_start(self, plan_id: str, entry: Entry, plan: PlanRecord, outcome: PlanState) -> TxnPart:
        """Return the checks and writes that mark a plan as being canceled, and queue the cancellation of its tasks.

        No task of the plan is claimed from then on.

        Args:
            plan_id: ID of the plan.
            entry: Entry of the plan.
            plan: Its decoded record.
            outcome: State of the plan after the cancellation: ``CANCELLED`` or ``FAILED``.
        """
        changed = replace(plan, state=PlanState.CANCELLING, generation=plan.generation + 1, outcome=outcome)
        return TxnPart(
            [At(entry)],
            [Put(entry.key, changed.to_bytes()), *self.build_control_item_ops(plan_id, "cancel", changed.generation)],
        )

    def build_task_cancel(self, plan_id: str, entry: Entry, task: Task) -> TxnPart:
        """Return the checks and writes that cancel a task that is not running. The caller adds the removal of its queue
        item.
        """
        return self._build_task_end(plan_id, entry, task, TaskState.CANCELLED)

    def build_cancel_end(self, entry: Entry, plan: PlanRecord, now_ms: int) -> TxnPart:
        """Return the checks and writes that end a canceled plan. All of its tasks must have ended."""
        return TxnPart([At(entry)], [Put(entry.key, replace(plan, state=plan.outcome, ended_ms=now_ms).to_bytes())])

    # Recovering

    def build_recovery_start(self, plan_id: str, entry: Entry, plan: PlanRecord) -> TxnPart:
        """Return the checks and writes that mark a plan as being recovered, and queue its recovery.

        No task of the plan is claimed until all of its unsuccessful tasks are waiting again.
        """
        changed = replace(plan, state=PlanState.RECOVERING, generation=plan.generation + 1, failed=(), ended_ms=0)
        return TxnPart(
            [At(entry)],
            [Put(entry.key, changed.to_bytes()), *self.build_control_item_ops(plan_id, "recover", changed.generation)],
        )

    def build_reset(self, plan_id: str, entry: Entry, task: Task) -> TxnPart:
        """Return the checks and writes that set an unsuccessful task back to waiting."""
        waits = replace(task.record, state=TaskState.WAITING, attempts=0, why="", child="")
        return self.build_reactivation(plan_id, entry, task, waits)

    def build_reactivation(self, plan_id: str, entry: Entry, task: Task, record: TaskRecord) -> TxnPart:
        """Return the checks and writes that replace the record of an unsuccessful task and delete its result.

        Args:
            plan_id: ID of the plan.
            entry: Entry of the plan.
            task: The task as it was read.
            record: The new record, which is unfinished.
        """
        return TxnPart(
            [At(entry), At(task.entry)],
            [
                Put(task.entry.key, record.to_bytes()),
                Put(self.keys.unfinished_key(plan_id, task.name), b""),
                Delete(self.keys.result_key(plan_id, task.name)),
            ],
        )

    def build_recovery_end(self, entry: Entry, plan: PlanRecord) -> TxnPart:
        """Return the checks and writes that make a recovered plan ready, so that its tasks can be claimed again."""
        return TxnPart([At(entry)], [Put(entry.key, replace(plan, state=PlanState.READY).to_bytes())])

    # Adding and removing

    def build_addition(
        self,
        plan_id: str,
        entry: Entry,
        plan: PlanRecord,
        *,
        name: str,
        task: TaskRecord,
        deps: Sequence[Task],
        addition_count: int,
    ) -> TxnPart:
        """Return the checks and writes that add a task to a running plan.

        Unfinished dependencies are rewritten with the new task as a successor. A completion that read them before
        conflicts and is retried.

        Args:
            plan_id: ID of the plan.
            entry: Entry of the plan.
            plan: Its decoded record.
            name: Name of the new task.
            task: Record of the new task.
            deps: Its dependencies as they were read.
            addition_count: Number of tasks that were added to the plan, including this one.
        """
        open_deps = [dep for dep in deps if dep.record.state is not TaskState.DONE]
        is_unsuccessful = any(dep.record.state.is_unsuccessful for dep in open_deps)
        waits = any(dep.record.state.is_live for dep in open_deps)
        state = TaskState.SKIPPED if is_unsuccessful else TaskState.WAITING if waits else TaskState.READY
        record = task.with_state(state)
        part = TxnPart(
            [At(entry), *(At(dep.entry) for dep in open_deps)],
            [
                Create(self.keys.task_key(plan_id, name), record.to_bytes()),
                Put(self.keys.additions_key(plan_id), str(addition_count).encode()),
            ],
        )
        for dep in open_deps:
            linked = replace(dep.record, successors=(*dep.record.successors, name))
            part.ops.append(Put(dep.entry.key, linked.to_bytes()))
        if not is_unsuccessful:
            part.ops.append(Create(self.keys.unfinished_key(plan_id, name), b""))
        if state is TaskState.READY:
            part.ops.extend(self.build_item_ops(plan_id, plan, name, record))
        return part

    def build_removal_start(self, plan_id: str, entry: Entry, plan: PlanRecord) -> TxnPart:
        """Return the checks and writes that mark a plan for removal, in any state.

        The caller then deletes the plan. If the caller dies, a worker finishes the deletion.
        """
        changed = replace(plan, state=PlanState.REMOVING, generation=plan.generation + 1)
        return TxnPart(
            [At(entry)],
            [Put(entry.key, changed.to_bytes()), *self.build_control_item_ops(plan_id, "remove", changed.generation)],
        )

    def build_id_reservation(self, plan_id: str, plan: PlanRecord) -> TxnPart:
        """Return the writes that reserve the ID of a plan whose record is missing, while its leftover keys are deleted.

        They create a record that is marked for removal.
        """
        changed = replace(plan, state=PlanState.REMOVING, generation=plan.generation + 1)
        made = Create(self.keys.plan_key(plan_id), changed.to_bytes())
        return TxnPart([], [made, *self.build_control_item_ops(plan_id, "remove", changed.generation)])


def batch_tasks(tasks: Iterable[Task], max_tasks: int) -> list[list[Task]]:
    """Split tasks, in order, into batches that one transaction can rewrite.

    Args:
        tasks: The tasks.
        max_tasks: Maximum number of tasks per batch. Batches of large tasks have fewer.
    """
    found: list[list[Task]] = []
    size = 0
    for task in tasks:
        size += len(task.entry.value)
        if not found or len(found[-1]) >= max_tasks or size > MAX_BYTES:
            found.append([])
            size = len(task.entry.value)
        found[-1].append(task)
    return found


def encode_item_settings(task: TaskRecord) -> bytes:
    """Encode the value of a task's queue item: its timeout and the tasks whose results it needs."""
    value = encode(ItemSettings(task.timeout_s, task.args_from))
    return value if len(value) <= _MAX_ITEM else encode(ItemSettings(task.timeout_s))
