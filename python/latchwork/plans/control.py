"""Control operations on whole plans: start, cancel, recover, remove. A worker that claims the queue item executes them.

The name of a control item contains the generation of its plan. An item of an older generation has no effect. If its
worker dies, another worker repeats the operation: each step checks what is already done.

A task may wait for a child plan. It is in state ``child`` meanwhile and has no queue item, so no worker holds it. The
records of task and child plan name each other. Whatever ends the child creates the task's item again, in the same
transaction and with a check of the task. The worker that claims this item finishes the task. docs/design/plans.md lists
the races.
"""

from __future__ import annotations

import uuid

from msgspec.structs import replace

from latchwork.errors import BadRecord, LatchworkError
from latchwork.plans.builder import decode_child_plan
from latchwork.plans.drafts import delete_draft, write_draft
from latchwork.plans.errors import ChildPlanFailed, NoSuchPlan
from latchwork.plans.keys import MAX_CHILD_PREFIX, PARTITION, item_id
from latchwork.plans.plan_store import PlanStore, now_ms
from latchwork.plans.propagation import Propagation, check_held
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.plans.removal import delete_plan
from latchwork.plans.transitions import StoredPlan, TxnPart
from latchwork.plans.wakeups import build_parent_wakeup, read_plan_or_none
from latchwork.primitives import QueueClaim, QueueItem
from latchwork.store import Session
from latchwork.store.steps import ask
from latchwork.tasks import Outcome, Payloads
from latchwork.types import Absent, At, Create, Entry, Exists, Put

#: End states from which a plan can be recovered.
_ENDED_BADLY = (PlanState.FAILED, PlanState.CANCELLED)

#: Number of tasks that one round of a cancellation handles.
_ROUND = 200


class ChildPlans:
    """Starts, cancels and recovers the child plans of tasks, and reads their outcomes. Thread-safe.

    Args:
        plan_store: Access to the stored plans.
        payloads: Encodes values.
        session: Session that drafts are bound to.
    """

    def __init__(self, plan_store: PlanStore, payloads: Payloads, session: Session) -> None:
        self._plan_store = plan_store
        self._payloads = payloads
        self._session = session

    # Starting

    async def write_draft(self, plan_id: str, plan: PlanRecord, task: Task, spec: bytes) -> tuple[str, Entry]:
        """Store the draft of a child plan under a new ID.

        If a task is executed twice, two drafts are written, but only one of them is started.

        Args:
            plan_id: ID of the plan of the task.
            plan: Record of this plan.
            task: The task that returned the child plan.
            spec: The encoded child plan.
        Returns:
            The ID of the child plan, and the entry of its draft.
        Raises:
            LatchworkError, ValueError: The child plan is invalid.
        """
        read = decode_child_plan(spec, (plan_id, task.name), plan.depth + 1)
        child_id = f"{task.name[:MAX_CHILD_PREFIX]}-{uuid.uuid4().hex[:16]}"
        there = Exists(task.entry.key)  # fails if the plan is being removed
        entry = await write_draft(
            self._plan_store, child_id, read.plan, read.tasks, session=self._session, checks=(there,)
        )
        if entry is None:
            raise LatchworkError(
                f"the child plan {child_id!r} of task {task.name!r} was already started by another worker"
            )
        return child_id, entry

    def build_child_start(self, task: Task, child_id: str, draft: Entry) -> TxnPart:
        """Return the checks and writes that start a child plan and make its task wait for it.

        The caller must end the claim of the task in the same transaction.

        Args:
            task: The task that returned the child plan.
            child_id: ID of the child plan.
            draft: Entry of its draft.
        """
        part = self._plan_store.transitions.build_start(child_id, draft, PlanRecord.from_bytes(draft.value), now_ms())
        waits = replace(task.record, state=TaskState.CHILD, child=child_id, why="")
        return TxnPart([At(task.entry), *part.checks], [Put(task.entry.key, waits.to_bytes()), *part.ops])

    async def delete_draft(self, child_id: str, draft: Entry) -> None:
        """Delete the draft of a child plan that will not be started."""
        await delete_draft(self._plan_store, child_id, PlanRecord.from_bytes(draft.value).nonce)

    # Ending

    async def read_outcome(self, plan_id: str, task: Task) -> tuple[Outcome | None, TxnPart]:
        """Read the outcome of a task's child plan.

        Returns:
            The outcome, or None while the child plan is running; and a check that the child plan has not changed.
        """
        child_id = task.record.child
        found = await read_plan_or_none(self._plan_store, child_id)
        if found is None:
            return _failed(f"child plan {child_id!r} was removed"), TxnPart([], [])
        entry, child = found
        check = TxnPart([At(entry)], [])
        if child.state in _ENDED_BADLY:
            why = "; ".join(f"task {name} failed: {reason}" for name, reason in child.failed[:3])
            return _failed(f"child plan {child_id!r} is {child.state.value}{': ' if why else ''}{why}"), check
        if child.state is not PlanState.COMPLETED:
            return None, check
        if not child.result_task:
            return Outcome(self._payloads.encode(None, f"the result of task {task.name!r} of plan {plan_id!r}")), check
        data = (await self._plan_store.read_outcomes(child_id, [child.result_task])).get(child.result_task)
        if data is None:
            return _failed(f"task {child.result_task!r} of child plan {child_id!r} no longer has a result"), check
        return Outcome.from_bytes(data), check

    # Canceling and recovering

    async def cancel_child(
        self, plan_id: str, stored_plan: tuple[Entry, PlanRecord], task: Task, claim: QueueClaim
    ) -> TxnPart | None:
        """Request the cancellation of a task's child plan. Cancel the task itself once the child plan has ended.

        Args:
            plan_id: ID of the plan of the task.
            stored_plan: Entry and record of this plan.
            task: The task that waits for the child plan.
            claim: Claim of the control operation; its fence guards the write.
        Returns:
            None if the child plan has not ended yet. Otherwise the checks and writes that cancel the task itself.
        """
        plan_store, child_id = self._plan_store, task.record.child
        found = await read_plan_or_none(plan_store, child_id)
        if found is None or found[1].state.has_ended:
            part = plan_store.transitions.build_task_cancel(plan_id, stored_plan[0], task)
            part.checks.extend([At(found[0])] if found is not None else [])
            return part
        entry, child = found
        if child.state is PlanState.READY:
            await plan_store.commit(
                plan_store.transitions.build_cancel_start(child_id, entry, child, PlanState.CANCELLED), claim.fence
            )
        return None

    async def build_child_recovery(
        self, plan_id: str, stored_plan: tuple[Entry, PlanRecord], task: Task, item: QueueItem | None
    ) -> TxnPart | None:
        """Return the checks and writes that recover a child plan and make its task wait for it again.

        Args:
            plan_id: ID of the plan of the task.
            stored_plan: Entry and record of this plan.
            task: The task whose child plan is recovered.
            item: Queue item of the task; None if there is none.
        Returns:
            None if the child plan no longer exists.
        """
        plan_store, child_id = self._plan_store, task.record.child
        found = await read_plan_or_none(plan_store, child_id)
        if found is None or found[1].state is PlanState.REMOVING:
            return None
        entry, child = found
        waits = replace(task.record, state=TaskState.CHILD, attempts=0, why="")
        part = plan_store.transitions.build_reactivation(plan_id, stored_plan[0], task, waits)
        if child.state in _ENDED_BADLY:
            more = plan_store.transitions.build_recovery_start(child_id, entry, child)
            return TxnPart([*part.checks, *more.checks], [*part.ops, *more.ops])
        part.checks.append(At(entry))
        if child.state is PlanState.COMPLETED and item is None:
            part.ops.extend(plan_store.transitions.build_item_ops(plan_id, stored_plan[1], task.name, task.record))
        return part


def _failed(why: str) -> Outcome:
    return Outcome.from_exception(ChildPlanFailed(why), is_final=True)


class PlanControl:
    """Executes the control operations of plans: start, cancel, recover and remove. Thread-safe."""

    def __init__(self, plan_store: PlanStore, propagation: Propagation, children: ChildPlans) -> None:
        self._plan_store = plan_store
        self._children = children
        self._propagation = propagation

    async def execute(self, claim: QueueClaim, plan_id: str, operation: str) -> None:
        """Execute a control operation.

        Args:
            claim: Claim of the queue item of the operation.
            plan_id: ID of the plan.
            operation: Name and generation of the operation, such as ``@start.0``.
        Raises:
            OwnershipLost: The claim has ended. Another worker continues.
            PlanBusy: Tasks are still running. Release the item, wait and repeat.
        """
        name, _, generation = operation.removeprefix("@").partition(".")
        try:
            entry, plan = await self._plan_store.read_plan(plan_id)
        except (NoSuchPlan, BadRecord):
            return
        if not generation.isdecimal() or plan.generation != int(generation):
            return
        if name == "start" and plan.state is PlanState.READY:
            await self._make_runnable_tasks_ready(plan_id, (entry, plan))
        elif name == "cancel" and plan.state is PlanState.CANCELLING:
            await self._cancel_tasks(claim, plan_id, plan.generation)
        elif name == "recover" and plan.state in (PlanState.RECOVERING, PlanState.READY):
            await self._recover_plan(claim, plan_id, plan.generation)
        elif name == "remove" and plan.state is PlanState.REMOVING:
            await self._delete_plan(claim, plan_id)

    async def _make_runnable_tasks_ready(self, plan_id: str, stored_plan: StoredPlan) -> None:
        """Make all tasks ready whose dependencies are done, and end the plan if no task is left.

        A dependency that ends during this call makes its successors ready itself.
        """
        tasks = await self._plan_store.read_all_tasks(plan_id)
        done = {each.name for each in tasks if each.record.state is TaskState.DONE}
        waiting = [each for each in tasks if each.record.state is TaskState.WAITING]
        free = [each.name for each in waiting if done.issuperset(each.record.deps)]
        await self._propagation.make_ready(plan_id, stored_plan, free, known_ended=done)
        await self._propagation.complete_plan(plan_id)

    # Canceling

    async def _cancel_tasks(self, claim: QueueClaim, plan_id: str, generation: int) -> None:
        """Cancel all tasks that have not ended. Running tasks are stopped by their own workers."""
        plan_store = self._plan_store
        while True:
            check_held(claim)
            entry, plan = await plan_store.read_plan(plan_id)
            if plan.generation != generation or plan.state is not PlanState.CANCELLING:
                return
            names = await plan_store.list_unfinished_tasks(plan_id, _ROUND)
            if not names:
                wakeup = await build_parent_wakeup(plan_store, plan_id, plan)
                if await plan_store.commit(
                    plan_store.transitions.build_cancel_end(entry, plan, now_ms()).merge(wakeup), claim.fence
                ):
                    return
                continue
            ended = 0
            for task in await plan_store.read_tasks(plan_id, names):
                ended += await self._cancel_task(claim, plan_id, entry, plan, task)
            if not ended:
                raise PlanBusy(f"plan {plan_id!r} is being canceled while tasks are running")

    async def _cancel_task(self, claim: QueueClaim, plan_id: str, entry: Entry, plan: PlanRecord, task: Task) -> bool:
        """Cancel one task. Return whether it is canceled; False if it or its child plan is still running."""
        part = self._plan_store.transitions.build_task_cancel(plan_id, entry, task)
        if task.record.state is TaskState.CHILD:
            ended = await self._children.cancel_child(plan_id, (entry, plan), task, claim)
            if ended is None:
                return False
            part = ended
        if task.record.state in (TaskState.READY, TaskState.CHILD):
            sort_key = self._plan_store.transitions.get_sort_key(plan, task.record)
            item = await ask(self._plan_store.queue.find, PARTITION, sort_key, item_id(plan_id, task.name))
            self._add_item_removal(part, item, sort_key, item_id(plan_id, task.name))
        elif task.record.state is not TaskState.WAITING:
            return False
        return await self._plan_store.commit(part, claim.fence)

    def _add_item_removal(self, part: TxnPart, item: QueueItem | None, sort_key: str, name: str) -> None:
        """Add the removal of a task's unclaimed queue item to a transaction, or a check that there is still no such
        item.

        Args:
            part: Checks and writes of the transaction; this call extends them.
            item: The item as it was found; None if there was none.
            sort_key: Sort key of the item.
            name: ID of the item.
        """
        if item is None:
            part.checks.append(Absent(self._plan_store.queue.key(PARTITION, sort_key, name)))
            return
        checks, ops = self._plan_store.queue.removal_ops(item)
        part.checks.extend(checks)
        part.ops.extend(ops)

    def _add_item_check(self, part: TxnPart, item: QueueItem | None, sort_key: str, name: str) -> None:
        """Add a check that an unclaimed queue item is unchanged, or still does not exist.

        Args:
            part: Checks and writes of the transaction; this call extends the checks.
            item: The item as it was found; None if there was none.
            sort_key: Sort key of the item.
            name: ID of the item.
        """
        if item is not None:
            part.checks.extend(self._plan_store.queue.removal_ops(item)[0])
        elif not any(op.key.endswith(f"/{name}") and isinstance(op, Create) for op in part.ops):
            part.checks.append(Absent(self._plan_store.queue.key(PARTITION, sort_key, name)))

    # Recovering

    async def _recover_plan(self, claim: QueueClaim, plan_id: str, generation: int) -> None:
        """Set all unsuccessful tasks back to waiting, make the plan ready, and then make its runnable tasks ready."""
        plan_store = self._plan_store
        while True:
            entry, plan = await plan_store.read_plan(plan_id)
            if plan.generation != generation:
                return
            if plan.state is PlanState.READY:
                break
            if plan.state is not PlanState.RECOVERING:
                return
            tasks = await plan_store.read_all_tasks(plan_id)
            for task in tasks:
                if task.record.state.is_unsuccessful:
                    await self._reset_task(claim, plan_id, (entry, plan), task)
            check_held(claim)
            await plan_store.commit(plan_store.transitions.build_recovery_end(entry, plan), claim.fence)
        await self._make_runnable_tasks_ready(plan_id, (entry, plan))

    async def _reset_task(self, claim: QueueClaim, plan_id: str, stored_plan: StoredPlan, task: Task) -> None:
        """Set an unsuccessful task back to waiting. No task of the plan runs meanwhile.

        Raises:
            PlanBusy: A worker still holds the task.
        """
        entry, plan = stored_plan
        plan_store = self._plan_store
        sort_key, name = plan_store.transitions.get_sort_key(plan, task.record), item_id(plan_id, task.name)
        check_held(claim)
        item = await ask(plan_store.queue.find, PARTITION, sort_key, name)
        again = (
            await self._children.build_child_recovery(plan_id, stored_plan, task, item) if task.record.child else None
        )
        if again is not None:
            part = again
            self._add_item_check(part, item, sort_key, name)
        else:
            part = plan_store.transitions.build_reset(plan_id, entry, task)
            self._add_item_removal(part, item, sort_key, name)
        await plan_store.commit(part, claim.fence)
        found = await plan_store.read_tasks(plan_id, [task.name])
        now = await ask(plan_store.store.get, entry.key)
        if found and found[0].record.state.is_unsuccessful and now is not None and now.version == entry.version:
            raise PlanBusy(f"plan {plan_id!r} is being recovered, but a worker still holds task {task.name!r}")

    # Removing

    async def _delete_plan(self, claim: QueueClaim, plan_id: str) -> None:
        """Delete everything that belongs to the plan, its record last."""
        check_held(claim)
        await delete_plan(self._plan_store, plan_id, lambda: check_held(claim))


class PlanBusy(LatchworkError):
    """The operation must wait until running tasks of the plan have ended."""
