"""A task that waits for a plan of its own: how it begins to, how it is told of the end, and what that end is.

The task is ``child`` meanwhile: it has no item, so nobody has it. Its record names the plan, and the plan's record it.
Whatever ends the plan makes the task's item again, in the same transaction and with a check of the task; who takes that
finishes the task. docs/design/0024 has the races.
"""

from __future__ import annotations

import uuid

from msgspec.structs import replace

from latchwork.errors import LatchworkError
from latchwork.plans.errors import ChildPlanFailed
from latchwork.plans.keys import MOST_CHILD_NAME
from latchwork.plans.place import Place, now_ms
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.plans.running.child_plan import read_spec
from latchwork.plans.running.waking import read_child
from latchwork.plans.states import Edit
from latchwork.plans.writing import drop_draft, write_draft
from latchwork.primitives import QueueClaim, QueueItem
from latchwork.store import Session
from latchwork.tasks import Outcome, Payloads
from latchwork.types import At, Entry, Exists, Put

#: Ends that a recover undoes.
_ENDED_BADLY = (PlanState.FAILED, PlanState.CANCELLED)


class Children:
    """The child plans of tasks. Safe to share between threads.

    Args:
        place: where the plans are.
        payloads: writes values.
        session: what drafts live by.
    """

    def __init__(self, place: Place, payloads: Payloads, session: Session) -> None:
        self._place = place
        self._payloads = payloads
        self._session = session

    # Begin

    async def written(self, plan_id: str, plan: PlanRecord, task: Task, spec: bytes) -> tuple[str, Entry]:
        """The draft of a child, under an id of its own: of two runs of a task each writes one, and one is started.

        Raises:
            LatchworkError, ValueError: it cannot be.
        """
        read = read_spec(spec, (plan_id, task.name), plan.depth + 1)
        child_id = f"{task.name[:MOST_CHILD_NAME]}-{uuid.uuid4().hex[:16]}"
        there = Exists(task.entry.key)  # not under a plan that is being removed
        entry = await write_draft(self._place, child_id, read.plan, read.tasks, session=self._session, checks=(there,))
        if entry is None:
            raise LatchworkError(f"the child plan {child_id!r} of task {task.name!r} was started by somebody else")
        return child_id, entry

    def begun(self, task: Task, child_id: str, draft: Entry) -> Edit:
        """The child is started, and the task waits for it. The caller adds the end of its claim."""
        edit = self._place.edges.started(child_id, draft, PlanRecord.of(draft.value), now_ms())
        waits = replace(task.record, state=TaskState.CHILD, child=child_id, why="")
        return Edit([At(task.entry), *edit.checks], [Put(task.entry.key, waits.to_bytes()), *edit.ops])

    async def drop(self, child_id: str, draft: Entry) -> None:
        """Delete a draft that will not be started."""
        await drop_draft(self._place, child_id, PlanRecord.of(draft.value).nonce)

    # End

    async def outcome(self, plan_id: str, task: Task) -> tuple[Outcome | None, Edit]:
        """How the child of a task ended, with the check that it did; None if it has not."""
        child_id = task.record.child
        found = await read_child(self._place, child_id)
        if found is None:
            return _failed(f"child plan {child_id!r} was removed"), Edit([], [])
        entry, child = found
        check = Edit([At(entry)], [])
        if child.state in _ENDED_BADLY:
            why = "; ".join(f"task {name} failed: {reason}" for name, reason in child.failed[:3])
            return _failed(f"child plan {child_id!r} is {child.state.value}{': ' if why else ''}{why}"), check
        if child.state is not PlanState.COMPLETED:
            return None, check
        if not child.gives:
            return Outcome(self._payloads.encode(None, f"the result of task {task.name!r} of plan {plan_id!r}")), check
        data = (await self._place.outcomes(child_id, [child.gives])).get(child.gives)
        if data is None:
            return _failed(f"task {child.gives!r} of child plan {child_id!r} has no result any more"), check
        return Outcome.of(data), check

    # Cancel and recover

    async def cancelled(
        self, plan_id: str, seen: tuple[Entry, PlanRecord], task: Task, claim: QueueClaim
    ) -> Edit | None:
        """The end of a task that waits, once its child has ended; until then None, and the child is told to."""
        place, child_id = self._place, task.record.child
        found = await read_child(place, child_id)
        if found is None or found[1].state.has_ended:
            edit = place.edges.cancelled(plan_id, seen[0], task)
            edit.checks.extend([At(found[0])] if found is not None else [])
            return edit
        entry, child = found
        if child.state is PlanState.READY:
            await place.commit(place.edges.cancelling(child_id, entry, child, PlanState.CANCELLED), claim.fence)
        return None

    async def recovered(
        self, plan_id: str, seen: tuple[Entry, PlanRecord], task: Task, item: QueueItem | None
    ) -> Edit | None:
        """A task that was lost waits for its child again, which is recovered; None where that is gone."""
        place, child_id = self._place, task.record.child
        found = await read_child(place, child_id)
        if found is None or found[1].state is PlanState.REMOVING:
            return None
        entry, child = found
        waits = replace(task.record, state=TaskState.CHILD, attempts=0, why="")
        edit = place.edges.waits_again(plan_id, seen[0], task, waits)
        if child.state in _ENDED_BADLY:
            more = place.edges.recovering(child_id, entry, child)
            return Edit([*edit.checks, *more.checks], [*edit.ops, *more.ops])
        edit.checks.append(At(entry))
        if child.state is PlanState.COMPLETED and item is None:
            edit.ops.extend(place.edges.item(plan_id, seen[1], task.name, task.record))
        return edit


def _failed(why: str) -> Outcome:
    return Outcome.failed(ChildPlanFailed(why), is_final=True)
