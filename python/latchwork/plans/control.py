"""What is done with a whole plan by the worker that takes its item: start, cancel, recover, remove.

An item of control has the turn of its plan in its name. One of an older turn does nothing; one that is taken again,
because its worker died, begins again: each step looks at what is there.
"""

from __future__ import annotations

from latchwork.errors import BadRecord
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import LANE, item_id
from latchwork.plans.place import Place, now_ms
from latchwork.plans.progress import Progress, held
from latchwork.plans.records import PlanRecord, PlanState, Task, TaskState
from latchwork.primitives import BacklogClaim
from latchwork.store import Backoff
from latchwork.store.steps import Pause, Signal, ask
from latchwork.types import Absent, Entry

#: So many tasks are looked at in one round of a cancel.
_ROUND = 200


class Control:
    """Handles items of control. Safe to share between threads."""

    def __init__(self, place: Place, progress: Progress, stop: Signal) -> None:
        self._place = place
        self._progress = progress
        self._stop = stop

    async def handle(self, claim: BacklogClaim, plan_id: str, what: str) -> None:
        """Do what ``@start.0`` says, to its end.

        Raises:
            OwnershipLost: the claim is over; another goes on with it.
        """
        name, _, turn = what.removeprefix("@").partition(".")
        try:
            _, plan = await self._place.plan(plan_id)
        except (NoSuchPlan, BadRecord):
            return
        if not turn.isdecimal() or plan.turn != int(turn):
            return
        if name == "start" and plan.state is PlanState.READY:
            await self._look_at_all(plan_id, plan)
        elif name == "cancel" and plan.state is PlanState.CANCELLING:
            await self._cancel(claim, plan_id, plan.turn)
        elif name == "recover" and plan.state in (PlanState.RECOVERING, PlanState.READY):
            await self._recover(claim, plan_id, plan.turn)
        elif name == "remove" and plan.state is PlanState.REMOVING:
            await self._remove(claim, plan_id)

    async def _look_at_all(self, plan_id: str, plan: PlanRecord) -> None:
        """Those of which all dependencies are done; of one that is done meanwhile, who ends it looks."""
        tasks = await self._place.all_tasks(plan_id)
        done = {each.name for each in tasks if each.record.state is TaskState.DONE}
        waiting = [each for each in tasks if each.record.state is TaskState.WAITING]
        await self._progress.look(plan_id, plan, [each.name for each in waiting if done.issuperset(each.record.deps)])
        await self._progress.complete(plan_id)

    # Cancel

    async def _cancel(self, claim: BacklogClaim, plan_id: str, turn: int) -> None:
        """End all that has not ended, until nothing is left; what runs is told to by its own worker."""
        place, backoff = self._place, Backoff()
        while True:
            held(claim)
            entry, plan = await place.plan(plan_id)
            if plan.turn != turn or plan.state is not PlanState.CANCELLING:
                return
            names = await place.left(plan_id, _ROUND)
            if not names:
                if await place.commit(place.edges.all_cancelled(entry, plan, now_ms()), claim.fence):
                    return
                continue
            ended = 0
            for task in await place.tasks(plan_id, names):
                ended += await self._cancel_task(claim, plan_id, entry, plan, task)
            if ended:
                backoff = Backoff()
            else:
                await Pause(place.store.clock, self._stop, backoff.next_s())

    async def _cancel_task(self, claim: BacklogClaim, plan_id: str, entry: Entry, plan: PlanRecord, task: Task) -> bool:
        """Whether it ended; one that runs does not."""
        edit = self._place.edges.cancelled(plan_id, entry, task)
        if task.record.state is TaskState.READY:
            shelf = self._place.edges.shelf(plan, task.record)
            item = await ask(self._place.backlog.find, LANE, shelf, item_id(plan_id, task.name))
            if item is None:
                return False
            checks, ops = self._place.backlog.removal(item)
            edit.checks.extend(checks)
            edit.ops.extend(ops)
        elif task.record.state is not TaskState.WAITING:
            return False
        return await self._place.commit(edit, claim.fence)

    # Recover

    async def _recover(self, claim: BacklogClaim, plan_id: str, turn: int) -> None:
        """First all that was lost waits, and then the first of it becomes ready: no edge appears behind an end."""
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
            not_done = {each.name for each in tasks if each.record.state is not TaskState.DONE}
            for task in tasks:
                if task.record.state.is_lost:
                    await self._reset(claim, plan_id, (entry, plan), task, not_done)
            held(claim)
            await place.commit(place.edges.recovered(entry, plan), claim.fence)
        await self._look_at_all(plan_id, plan)

    async def _reset(
        self,
        claim: BacklogClaim,
        plan_id: str,
        seen: tuple[Entry, PlanRecord],
        task: Task,
        not_done: set[str],
    ) -> None:
        """Make a task wait again, once its last holder has left it. Nothing runs meanwhile: what is done stands."""
        entry, plan = seen
        place, backoff = self._place, Backoff()
        while True:
            held(claim)
            shelf = place.edges.shelf(plan, task.record)
            key = place.backlog.key(LANE, shelf, item_id(plan_id, task.name))
            item = await ask(place.backlog.find, LANE, shelf, item_id(plan_id, task.name))
            edits = place.edges.reset(plan_id, entry, task, [dep for dep in task.record.deps if dep in not_done])
            last = edits[-1]
            if item is None:
                last.checks.append(Absent(key))
            else:
                checks, ops = place.backlog.removal(item)
                last.checks.extend(checks)
                last.ops.extend(ops)
            if all([await place.commit(each, claim.fence) for each in edits]):
                return
            found = await place.tasks(plan_id, [task.name])
            now = await ask(place.store.get, entry.key)
            if not found or not found[0].record.state.is_lost or now is None or now.version != entry.version:
                return
            task = found[0]
            await Pause(place.store.clock, self._stop, backoff.next_s())

    # Remove

    async def _remove(self, claim: BacklogClaim, plan_id: str) -> None:
        """Delete all of it, its record at last. A run that goes on finds its task gone, and is quiet."""
        place = self._place
        entry, plan = await place.plan(plan_id)
        for task in await place.all_tasks(plan_id):
            held(claim)
            shelf = place.edges.shelf(plan, task.record)
            item = await ask(place.backlog.find, LANE, shelf, item_id(plan_id, task.name))
            if item is not None:
                checks, ops = place.backlog.removal(item, if_taken=True)
                await ask(place.store.commit, [*checks, claim.fence], ops)
        for prefix in place.keys.everything(plan_id):
            held(claim)
            await ask(place.store.delete_tree, prefix)
        await ask(place.store.delete, entry.key, version=entry.version)
