"""What is done with a whole plan by the worker that takes its item: start, cancel, recover, remove.

An item of control has the turn of its plan in its name. One of an older turn does nothing; one that is taken again,
because its worker died, begins again: each step looks at what is there.
"""

from __future__ import annotations

from latchwork.errors import BadRecord, LatchworkError
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import LANE, item_id
from latchwork.plans.place import Place, now_ms
from latchwork.plans.progress import Progress, held
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.plans.running.children import Children
from latchwork.plans.running.removing import delete_plan
from latchwork.plans.running.waking import wake
from latchwork.plans.states import Edit, Seen
from latchwork.primitives import QueueClaim, QueueItem
from latchwork.store.steps import ask
from latchwork.types import Absent, Create, Entry

#: So many tasks are looked at in one round of a cancel.
_ROUND = 200


class Control:
    """Handles items of control. Safe to share between threads."""

    def __init__(self, place: Place, progress: Progress, children: Children) -> None:
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
