"""Each edge of a plan's and a task's life: from what was read to one transaction. Pure; nothing here does I/O.

Who may call an edge, what may have happened meanwhile, and which check notices it: docs/design/plans.md.
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
    ItemHints,
    PlanRecord,
    PlanState,
    Task,
    TaskRecord,
    TaskState,
)
from latchwork.types import Absent, At, Check, Create, Delete, Entry, Exists, Op, Put

#: The end of a task with more successors than this looks at them after it; so many tasks an added one may wait for.
MAX_LINKED = 30
#: Of the 100 that a transaction may have.
MAX_WRITES = 90
#: Bytes of records that are rewritten together; of a megabyte that a transaction may have.
MAX_BYTES = 600_000
#: Bytes of an item; a longer list of what to read is left to the task's record.
_MAX_ITEM = 2_000

#: Puts an item into the backlog: by shelf, id and value.
PutItem = Callable[[str, str, bytes], "list[Op]"]
#: A plan as it was read: the entry for checks.
StoredPlan = tuple[Entry, PlanRecord]


class TxnPart(NamedTuple):
    """One transaction."""

    checks: list[Check]
    ops: list[Op]

    def merge(self, other: TxnPart) -> TxnPart:
        """Both in one."""
        return TxnPart([*self.checks, *other.checks], [*self.ops, *other.ops])


class Transitions:
    """The transitions of the plans below one name."""

    def __init__(self, keys: Keys, put_item: PutItem) -> None:
        self.keys = keys
        self._put_item = put_item

    # Items

    def item_ops(self, plan_id: str, plan: PlanRecord, name: str, task: TaskRecord) -> list[Op]:
        """The item of a task that is ready."""
        return self._put_item(self.sort_key(plan, task), item_id(plan_id, name), item_value(task))

    def sort_key(self, plan: PlanRecord, task: TaskRecord) -> str:
        """Where the item of a task is."""
        return sort_key(plan.priority, plan.started_ms, task.number)

    def control_ops(self, plan_id: str, what: str, generation: int) -> list[Op]:
        """The item of something that is to be done with a whole plan, once for each generation."""
        return self._put_item(CONTROL_SORT_KEY, item_id(plan_id, f"@{what}.{generation}"), b"")

    # Building and starting

    def create_draft(self, plan_id: str, plan: PlanRecord, session: object) -> TxnPart:
        """An empty draft, and that its builder lives. Nothing of a draft is in the backlog."""
        return TxnPart(
            [],
            [
                Create(self.keys.plan(plan_id), plan.to_bytes()),
                Create(self.keys.draft(plan_id), b"", session),  # type: ignore[arg-type]
            ],
        )

    def write_tasks(self, plan_id: str, tasks: Iterable[tuple[str, TaskRecord]]) -> list[TxnPart]:
        """The tasks of a draft, as many as fit into each transaction."""
        check = Exists(self.keys.draft(plan_id))
        edits: list[TxnPart] = []
        ops: list[Op] = []
        size = 0
        for name, task in tasks:
            record = task.to_bytes()
            unit: list[Op] = [Create(self.keys.todo(plan_id, name), b""), Create(self.keys.task(plan_id, name), record)]
            for op in unit:
                cost = len(getattr(op, "value", b"")) + 2 * len(op.key) + 100
                if len(ops) >= MAX_WRITES or (ops and size + cost > 900_000):
                    edits.append(TxnPart([check], ops))
                    ops, size = [], 0
                ops.append(op)
                size += cost
        return [*edits, TxnPart([check], ops)] if ops else edits

    def start(self, plan_id: str, entry: Entry, plan: PlanRecord, now_ms: int) -> TxnPart:
        """A whole draft becomes ready; a worker makes its first tasks ready."""
        ready = replace(plan, state=PlanState.READY, started_ms=now_ms)
        draft = self.keys.draft(plan_id)
        return TxnPart(
            [At(entry), Exists(draft)],
            [Put(entry.key, ready.to_bytes()), Delete(draft), *self.control_ops(plan_id, "start", ready.generation)],
        )

    # RunningTask

    def make_ready(self, plan_id: str, seen: StoredPlan, task: Task, item: Sequence[Op] | None = None) -> TxnPart:
        """A task plan_key dependencies are done. That never becomes false again, so anybody may try it.

        ``seen`` was read before the dependencies were looked at: as long as the plan is ready and no task of it has
        failed, whatever has ended is done. ``item`` puts its item another way: taken already.
        """
        ready = task.record.with_state(TaskState.READY)
        put = self.item_ops(plan_id, seen[1], task.name, task.record) if item is None else item
        return TxnPart([At(seen[0]), At(task.entry)], [Put(task.entry.key, ready.to_bytes()), *put])

    def complete_delegating(
        self,
        plan_id: str,
        seen: StoredPlan | None,
        task: Task,
        result: bytes,
        *,
        ready: Sequence[Task] = (),
        witnesses: Iterable[str] = (),
        ended_deps: Iterable[str] = (),
        items: Mapping[str, Sequence[Op]] | None = None,
    ) -> TxnPart | None:
        """A task is done, and nobody has to look at what follows: another end is known to come, and does it.

        Each successor is made ready, or waits for another task that has not ended when this lands; where there is no
        successor, some task of the plan has not ended then. So the last that ends never passes on. The caller adds the
        claim's fence.

        ``seen`` is the plan, in which no task has failed, as it was before the dependencies of ``ready`` were looked
        at; ``ready`` are the successors that this is the last of; ``witnesses`` are tasks that have not ended; ``ended_deps``
        are those plan_key ends are on their way, without which one of ``ready`` would have to wait; ``items`` has what
        puts their items another way. None where who ends this one has to look: nobody else will, or all of it is more
        than a transaction holds.
        """
        others = list(witnesses)
        if len(task.record.successors) > MAX_LINKED or not (ready or others):
            return None
        edit = self.complete_task(plan_id, task, result)
        for each in ready:
            assert seen is not None
            edit = edit.merge(self.make_ready(plan_id, seen, each, (items or {}).get(each.name)))
        edit.checks.extend(Absent(self.keys.todo(plan_id, each)) for each in ended_deps)
        edit.checks.extend(Exists(self.keys.todo(plan_id, each)) for each in others)
        checks, ops = list(dict.fromkeys(edit.checks)), list(dict.fromkeys(edit.ops))
        if sum(len(each.entry.value) for each in ready) > MAX_BYTES // 4:
            return None
        return TxnPart(checks, ops) if max(len(checks), len(ops)) <= MAX_WRITES else None

    def complete_task(self, plan_id: str, task: Task, result: bytes) -> TxnPart:
        """A task is done."""
        return TxnPart(
            [At(task.entry)],
            [
                Put(task.entry.key, task.record.with_state(TaskState.DONE).to_bytes()),
                Put(self.keys.result(plan_id, task.name), result),
                Delete(self.keys.todo(plan_id, task.name)),
            ],
        )

    def complete_plan(self, entry: Entry, plan: PlanRecord, adds: Entry | None, adds_key: str, now_ms: int) -> TxnPart:
        """Nothing is left to do. ``adds`` was read before that was looked at: an added task is noticed."""
        state = PlanState.FAILED if plan.failed else PlanState.COMPLETED
        guard: Check = Absent(adds_key) if adds is None else At(adds)
        return TxnPart([At(entry), guard], [Put(entry.key, replace(plan, state=state, ended_ms=now_ms).to_bytes())])

    # Failing

    def record_attempt(self, task: Task, why: str) -> TxnPart:
        """A try has failed, and another follows."""
        again = replace(task.record, attempts=task.record.attempts + 1, why=why[:MAX_REASON])
        return TxnPart([At(task.entry)], [Put(task.entry.key, again.to_bytes())])

    def fail_task(
        self, plan_id: str, entry: Entry, plan: PlanRecord, task: Task, *, why: str, result: bytes
    ) -> TxnPart:
        """A task has failed for good; a plan that stops begins to end."""
        lost = replace(task.record, state=TaskState.FAILED, attempts=task.record.attempts + 1, why=why[:MAX_REASON])
        edit = TxnPart(
            [At(task.entry)],
            [
                Put(task.entry.key, lost.to_bytes()),
                Put(self.keys.result(plan_id, task.name), result),
                Delete(self.keys.todo(plan_id, task.name)),
            ],
        )
        stops = plan.on_failure == "stop" and plan.state is PlanState.READY
        if not stops and len(plan.failed) >= MAX_FAILURES:
            return edit
        told = plan.with_failure(task.name, why)
        edit.checks.append(At(entry))
        if stops:
            more = self.begin_cancel(plan_id, entry, told, PlanState.FAILED)
            edit.ops.extend(more.ops)
        else:
            edit.ops.append(Put(entry.key, told.to_bytes()))
        return edit

    def skip_task(self, plan_id: str, entry: Entry, task: Task) -> TxnPart:
        """A task that can never run now. ``entry`` is the plan: after a recover this one waits again."""
        return self._ended(plan_id, entry, task, TaskState.SKIPPED)

    def _ended(self, plan_id: str, entry: Entry, task: Task, state: TaskState) -> TxnPart:
        return TxnPart(
            [At(entry), At(task.entry)],
            [
                Put(task.entry.key, task.record.with_state(state).to_bytes()),
                Delete(self.keys.todo(plan_id, task.name)),
            ],
        )

    # Cancelling

    def begin_cancel(self, plan_id: str, entry: Entry, plan: PlanRecord, outcome: PlanState) -> TxnPart:
        """Nothing more is claimed; a worker ends what is left."""
        told = replace(plan, state=PlanState.CANCELLING, generation=plan.generation + 1, outcome=outcome)
        return TxnPart(
            [At(entry)], [Put(entry.key, told.to_bytes()), *self.control_ops(plan_id, "cancel", told.generation)]
        )

    def cancel_task(self, plan_id: str, entry: Entry, task: Task) -> TxnPart:
        """A task that does not run, or plan_key run has ended; that of one which is ready takes its item claims_ahead."""
        return self._ended(plan_id, entry, task, TaskState.CANCELLED)

    def end_cancel(self, entry: Entry, plan: PlanRecord, now_ms: int) -> TxnPart:
        """Nothing is left."""
        return TxnPart([At(entry)], [Put(entry.key, replace(plan, state=plan.outcome, ended_ms=now_ms).to_bytes())])

    # Recovering

    def begin_recovery(self, plan_id: str, entry: Entry, plan: PlanRecord) -> TxnPart:
        """What was lost is to run again; nothing is claimed until all of it waits."""
        told = replace(plan, state=PlanState.RECOVERING, generation=plan.generation + 1, failed=(), ended_ms=0)
        return TxnPart(
            [At(entry)], [Put(entry.key, told.to_bytes()), *self.control_ops(plan_id, "recover", told.generation)]
        )

    def reset_task(self, plan_id: str, entry: Entry, task: Task) -> TxnPart:
        """A task that was lost waits again."""
        waits = replace(task.record, state=TaskState.WAITING, attempts=0, why="", child="")
        return self.reactivate_task(plan_id, entry, task, waits)

    def reactivate_task(self, plan_id: str, entry: Entry, task: Task, record: TaskRecord) -> TxnPart:
        """A task that was lost is live again, and has no result."""
        return TxnPart(
            [At(entry), At(task.entry)],
            [
                Put(task.entry.key, record.to_bytes()),
                Put(self.keys.todo(plan_id, task.name), b""),
                Delete(self.keys.result(plan_id, task.name)),
            ],
        )

    def end_recovery(self, entry: Entry, plan: PlanRecord) -> TxnPart:
        """All that was lost waits: tasks may be claimed again."""
        return TxnPart([At(entry)], [Put(entry.key, replace(plan, state=PlanState.READY).to_bytes())])

    # Adding and removing

    def add_task(
        self,
        plan_id: str,
        entry: Entry,
        plan: PlanRecord,
        *,
        name: str,
        task: TaskRecord,
        deps: Sequence[Task],
        adds: int,
    ) -> TxnPart:
        """A task is added to a plan that runs. A dependency that is not done is rewritten, so that its end sees it."""
        open_deps = [dep for dep in deps if dep.record.state is not TaskState.DONE]
        is_unsuccessful = any(dep.record.state.is_unsuccessful for dep in open_deps)
        waits = any(dep.record.state.is_live for dep in open_deps)
        state = TaskState.SKIPPED if is_unsuccessful else TaskState.WAITING if waits else TaskState.READY
        record = task.with_state(state)
        edit = TxnPart(
            [At(entry), *(At(dep.entry) for dep in open_deps)],
            [
                Create(self.keys.task(plan_id, name), record.to_bytes()),
                Put(self.keys.adds(plan_id), str(adds).encode()),
            ],
        )
        for dep in open_deps:
            linked = replace(dep.record, successors=(*dep.record.successors, name))
            edit.ops.append(Put(dep.entry.key, linked.to_bytes()))
        if not is_unsuccessful:
            edit.ops.append(Create(self.keys.todo(plan_id, name), b""))
        if state is TaskState.READY:
            edit.ops.extend(self.item_ops(plan_id, plan, name, record))
        return edit

    def begin_removal(self, plan_id: str, entry: Entry, plan: PlanRecord) -> TxnPart:
        """The plan is to go, whatever it does; a worker deletes it."""
        told = replace(plan, state=PlanState.REMOVING, generation=plan.generation + 1)
        return TxnPart(
            [At(entry)], [Put(entry.key, told.to_bytes()), *self.control_ops(plan_id, "remove", told.generation)]
        )

    def reserve_id(self, plan_id: str, plan: PlanRecord) -> TxnPart:
        """Keys without a plan are to go: until then nobody builds under that id."""
        told = replace(plan, state=PlanState.REMOVING, generation=plan.generation + 1)
        made = Create(self.keys.plan(plan_id), told.to_bytes())
        return TxnPart([], [made, *self.control_ops(plan_id, "remove", told.generation)])


def batch_tasks(tasks: Iterable[Task], most: int) -> list[list[Task]]:
    """In order, as many together as one transaction may rewrite: at most so many; a large one alone."""
    found: list[list[Task]] = []
    size = 0
    for task in tasks:
        size += len(task.entry.value)
        if not found or len(found[-1]) >= most or size > MAX_BYTES:
            found.append([])
            size = len(task.entry.value)
        found[-1].append(task)
    return found


def item_value(task: TaskRecord) -> bytes:
    """What the item of a task has: what is needed before the task is read."""
    value = encode(ItemHints(task.timeout_s, task.args_from))
    return value if len(value) <= _MAX_ITEM else encode(ItemHints(task.timeout_s))
