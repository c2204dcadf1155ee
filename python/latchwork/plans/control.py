"""What the worker that takes the item of a whole plan does with it: start, cancel, recover, remove.

An item of control has the turn of its plan in its name. One of an older turn does nothing; one that is taken again,
because its worker died, begins again: each step looks at what is there.

A task may wait for a plan of its own. It is ``child`` meanwhile: it has no item, so no worker has it. Its record names
the plan, and the plan's record it. Whatever ends the plan makes the task's item again, in the same transaction and with
a check of the task; the worker that takes that item finishes the task. docs/design/plans.md has the races.
"""

from __future__ import annotations

import uuid

from msgspec.structs import replace

from latchwork.errors import BadRecord, LatchworkError
from latchwork.plans.builder import read_spec
from latchwork.plans.drafts import drop_draft, write_draft
from latchwork.plans.errors import ChildPlanFailed, NoSuchPlan
from latchwork.plans.keys import LANE, MOST_CHILD_NAME, item_id
from latchwork.plans.plan_store import PlanStore, now_ms
from latchwork.plans.progress import Progress, held
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.plans.removal import delete_plan
from latchwork.plans.states import Edit, Seen
from latchwork.plans.wakeups import read_child, wake
from latchwork.primitives import QueueClaim, QueueItem
from latchwork.store import Session
from latchwork.store.steps import ask
from latchwork.tasks import Outcome, Payloads
from latchwork.types import Absent, At, Create, Entry, Exists, Put

#: Ends that a recover undoes.
_ENDED_BADLY = (PlanState.FAILED, PlanState.CANCELLED)

#: So many tasks are looked at in one round of a cancel.
_ROUND = 200


class Children:
    """The child plans of tasks. Safe to share between threads.

    Args:
        place: where the plans are.
        payloads: writes values.
        session: what drafts live by.
    """

    def __init__(self, place: PlanStore, payloads: Payloads, session: Session) -> None:
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


class PlanControl:
    """Handles items of control. Safe to share between threads."""

    def __init__(self, place: PlanStore, progress: Progress, children: Children) -> None:
        self._place = place
        self._children = children
        self._progress = progress

    async def handle(self, claim: QueueClaim, plan_id: str, what: str) -> None:
        """Do what ``@start.0`` says, to its end.

        Raises:
            OwnershipLost: the claim is over; another goes on with it.
            NotYet: it has to wait for what runs: give the item back for a moment, and begin again.
        """
        name, _, turn = what.removeprefix("@").partition(".")
        try:
            entry, plan = await self._place.plan(plan_id)
        except (NoSuchPlan, BadRecord):
            return
        if not turn.isdecimal() or plan.turn != int(turn):
            return
        if name == "start" and plan.state is PlanState.READY:
            await self._look_at_all(plan_id, (entry, plan))
        elif name == "cancel" and plan.state is PlanState.CANCELLING:
            await self._cancel(claim, plan_id, plan.turn)
        elif name == "recover" and plan.state in (PlanState.RECOVERING, PlanState.READY):
            await self._recover(claim, plan_id, plan.turn)
        elif name == "remove" and plan.state is PlanState.REMOVING:
            await self._remove(claim, plan_id)

    async def _look_at_all(self, plan_id: str, seen: Seen) -> None:
        """Those of which all dependencies are done; of one that is done meanwhile, who ends it looks."""
        tasks = await self._place.all_tasks(plan_id)
        done = {each.name for each in tasks if each.record.state is TaskState.DONE}
        waiting = [each for each in tasks if each.record.state is TaskState.WAITING]
        free = [each.name for each in waiting if done.issuperset(each.record.deps)]
        await self._progress.look(plan_id, seen, free, ended=done)
        await self._progress.complete(plan_id)

    # Cancel

    async def _cancel(self, claim: QueueClaim, plan_id: str, turn: int) -> None:
        """End all that has not ended, until nothing is left; what runs is told to by its own worker."""
        place = self._place
        while True:
            held(claim)
            entry, plan = await place.plan(plan_id)
            if plan.turn != turn or plan.state is not PlanState.CANCELLING:
                return
            names = await place.left(plan_id, _ROUND)
            if not names:
                woken = await wake(place, plan_id, plan)
                if await place.commit(place.edges.all_cancelled(entry, plan, now_ms()).and_also(woken), claim.fence):
                    return
                continue
            ended = 0
            for task in await place.tasks(plan_id, names):
                ended += await self._cancel_task(claim, plan_id, entry, plan, task)
            if not ended:
                raise NotYet(f"plan {plan_id!r} is being cancelled, and tasks of it run")

    async def _cancel_task(self, claim: QueueClaim, plan_id: str, entry: Entry, plan: PlanRecord, task: Task) -> bool:
        """Whether it ended; one that runs does not."""
        edit = self._place.edges.cancelled(plan_id, entry, task)
        if task.record.state is TaskState.CHILD:
            ended = await self._children.cancelled(plan_id, (entry, plan), task, claim)
            if ended is None:
                return False
            edit = ended
        if task.record.state in (TaskState.READY, TaskState.CHILD):
            shelf = self._place.edges.shelf(plan, task.record)
            item = await ask(self._place.backlog.find, LANE, shelf, item_id(plan_id, task.name))
            self._take_along(edit, item, shelf, item_id(plan_id, task.name))
        elif task.record.state is not TaskState.WAITING:
            return False
        return await self._place.commit(edit, claim.fence)

    def _take_along(self, edit: Edit, item: QueueItem | None, shelf: str, name: str) -> None:
        """Remove an item that nobody has in the same transaction; one that is not there must not be there then."""
        if item is None:
            edit.checks.append(Absent(self._place.backlog.key(LANE, shelf, name)))
            return
        checks, ops = self._place.backlog.removal(item)
        edit.checks.extend(checks)
        edit.ops.extend(ops)

    def _as_it_is(self, edit: Edit, item: QueueItem | None, shelf: str, name: str) -> None:
        """An item that nobody has stays; one that is not there is not there then, or is made."""
        if item is not None:
            edit.checks.extend(self._place.backlog.removal(item)[0])
        elif not any(op.key.endswith(f"/{name}") and isinstance(op, Create) for op in edit.ops):
            edit.checks.append(Absent(self._place.backlog.key(LANE, shelf, name)))

    # Recover

    async def _recover(self, claim: QueueClaim, plan_id: str, turn: int) -> None:
        """First all that was lost waits, and then the first of it becomes ready, once the plan is."""
        place = self._place
        while True:
            entry, plan = await place.plan(plan_id)
            if plan.turn != turn:
                return
            if plan.state is PlanState.READY:
                break
            if plan.state is not PlanState.RECOVERING:
                return
            tasks = await place.all_tasks(plan_id)
            for task in tasks:
                if task.record.state.is_lost:
                    await self._reset(claim, plan_id, (entry, plan), task)
            held(claim)
            await place.commit(place.edges.recovered(entry, plan), claim.fence)
        await self._look_at_all(plan_id, (entry, plan))

    async def _reset(self, claim: QueueClaim, plan_id: str, seen: Seen, task: Task) -> None:
        """Make a task wait again, once its last holder has left it. Nothing runs meanwhile: what is done stands."""
        entry, plan = seen
        place = self._place
        shelf, name = place.edges.shelf(plan, task.record), item_id(plan_id, task.name)
        held(claim)
        item = await ask(place.backlog.find, LANE, shelf, name)
        again = await self._children.recovered(plan_id, seen, task, item) if task.record.child else None
        if again is not None:
            edit = again
            self._as_it_is(edit, item, shelf, name)
        else:
            edit = place.edges.reset(plan_id, entry, task)
            self._take_along(edit, item, shelf, name)
        await place.commit(edit, claim.fence)
        found = await place.tasks(plan_id, [task.name])
        now = await ask(place.store.get, entry.key)
        if found and found[0].record.state.is_lost and now is not None and now.version == entry.version:
            raise NotYet(f"plan {plan_id!r} is being recovered, and somebody has task {task.name!r}")

    # Remove

    async def _remove(self, claim: QueueClaim, plan_id: str) -> None:
        """Delete all of it, its record at last. A run that goes on finds its task gone, and is quiet."""
        held(claim)
        await delete_plan(self._place, plan_id, lambda: held(claim))


class NotYet(LatchworkError):
    """What is to be done with a plan has to wait for others."""
