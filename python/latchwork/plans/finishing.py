"""What a worker does with a taken item: which call it is, and how its claim ends. One object for each worker.

A task's item stays, claimed, until what follows from its end is done. So a worker that dies between the result and the
look at the successors leaves a free item of a task that is done, and who takes it next only looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from latchwork.errors import BadRecord, LatchworkError
from latchwork.plans.control import Control
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import LANE, split_id
from latchwork.plans.place import Place
from latchwork.plans.progress import Progress, held
from latchwork.plans.records import INLINE_RESULT, PlanRecord, PlanState, Task, TaskState
from latchwork.plans.running.ends import End, Ends
from latchwork.plans.states import MOST_TOGETHER, Edit
from latchwork.primitives import BacklogClaim, BacklogItem
from latchwork.records import Record
from latchwork.store import Mirror
from latchwork.store.steps import driven, steps_of
from latchwork.tasks import (
    BadPayload,
    Call,
    Done,
    Ending,
    Failure,
    FeederHooks,
    Outcome,
    Payloads,
    Release,
    Run,
    TaskProcessDied,
    fill_template,
)
from latchwork.types import At, Check, Entry, Op

#: A task that so many workers died of has failed.
MOST_DEATHS = 5
_CONTROL = "@"
#: Of so many plans the records are kept as they were parsed.
_MOST_PLANS = 1_000
_GONE = frozenset({PlanState.REMOVING, PlanState.DRAFT})


class NothingToRun(LatchworkError):
    """The item needs no call: it is one of control, or of a task that has ended."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """How the call of a claim was made.

    Attributes:
        is_call: whether it was one.
        trouble: what trouble of the store there was.
        is_together: whether its end is decided with those of others: it has few successors.
        plan, task: as they were read; None once its first end was tried.
    """

    is_call: bool = False
    trouble: str = ""
    is_together: bool = False
    plan: PlanRecord | None = None
    task: Task | None = None


class PlanHooks(FeederHooks):
    """Tells a feeder what items of plans are. Safe to share between threads.

    Args:
        place: where the plans are.
        plans: a mirror of their records.
        payloads: reads arguments and results.
        progress, control: what follows.
        failed: told of each try that raised: plan, task, and what.
    """

    def __init__(
        self,
        place: Place,
        plans: Mirror,
        *,
        payloads: Payloads,
        progress: Progress,
        control: Control,
        failed: Callable[[str, str, Failure], object],
        label: str = "",
    ) -> None:
        self._place = place
        self._plans = plans
        self._payloads = payloads
        self._progress = progress
        self._control = control
        self._failed = failed
        self._begun: WeakKeyDictionary[BacklogClaim, _Begun] = WeakKeyDictionary()
        self._read: WeakKeyDictionary[BacklogClaim, tuple[Entry | None, list[Entry | None]]] = WeakKeyDictionary()
        self._records: dict[str, tuple[Entry, PlanRecord]] = {}
        self._ends = Ends(place, progress, self._end_task, place.store.clock, label)

    def close(self) -> None:
        """Decide on no further ends. Twice is fine."""
        self._ends.close()

    # Taking

    def lanes(self) -> Sequence[str]:
        """All items are in one lane."""
        return (LANE,)

    def accept(self, item: BacklogItem) -> bool:
        """Items of control; those of tasks of a plan that is ready, and of one that has ended, to remove them."""
        plan_id, task = split_id(item.id)
        known = self._known(plan_id)
        if not task or task.startswith(_CONTROL):
            return bool(task)
        return known is not None and (known[1].state is PlanState.READY or known[1].state.has_ended)

    def extra(self, item: BacklogItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """A task is claimed while its plan is as we know it: not after a cancel that we have not heard of."""
        plan_id, task = split_id(item.id)
        known = self._known(plan_id)
        if task.startswith(_CONTROL) or known is None:
            return (), ()
        return (At(known[0]),), ()

    def _known(self, plan_id: str) -> tuple[Entry, PlanRecord] | None:
        try:
            entry = self._plans[self._place.keys.plan(plan_id)]
            found = self._records.get(plan_id)
            if found is None or found[0] is not entry:
                if len(self._records) >= _MOST_PLANS:
                    self._records.clear()
                found = self._records[plan_id] = (entry, PlanRecord.of(entry.value))
        except (KeyError, BadRecord):
            return None
        return found

    # Beginning

    @driven
    async def taken(self, claims: Sequence[BacklogClaim]) -> None:
        """Read all their tasks, and the results that these need, together."""
        tasks = [each for each in claims if not split_id(each.item.id)[1].startswith(_CONTROL)]
        if tasks:
            wanted = [(*split_id(each.item.id), _from(each)) for each in tasks]
            for claim, read in zip(tasks, await self._place.tasks_and_entries(wanted), strict=True):
                self._read[claim] = read

    def begin(self, claim: BacklogClaim) -> Run | Ending:
        """The call is made in the slot, where the store may be asked."""
        plan_id, task = split_id(claim.item.id)
        timeout_s = Record.or_empty(claim.value).duration_s("timeout_s", -1.0, least=-1.0) if claim.value else -1.0
        return Run(
            lambda: self._call(claim, plan_id, task),
            claim.item.id,
            timeout_s if timeout_s > 0.0 else None,
            claim.attempts,
        )

    @driven
    async def _call(self, claim: BacklogClaim, plan_id: str, name: str) -> Call:
        if name.startswith(_CONTROL):
            raise NothingToRun("control")
        try:
            call = await self._made(claim, plan_id, name)
        except (NothingToRun, BadPayload, BadRecord):
            raise
        except TaskProcessDied:
            self._begun[claim] = _Begun(is_call=True)
            raise
        except LatchworkError as error:
            self._begun[claim] = _Begun(trouble=str(error))
            raise
        return call

    async def _made(self, claim: BacklogClaim, plan_id: str, name: str) -> Call:
        known = self._known(plan_id)
        names, read = _from(claim), self._read.pop(claim, None)
        if read is None:
            found, stored = await self._place.task_and_outcomes(plan_id, name, names)
        else:
            found, stored = await self._place.read_outcomes(names, *read)
        if found is None or found.record.state is not TaskState.READY:
            raise NothingToRun("it has ended")
        if known is None or known[1].state is not PlanState.READY:
            raise NothingToRun("its plan has ended")
        task = found.record
        if claim.attempts - 1 - task.attempts >= MOST_DEATHS:
            raise TaskProcessDied(f"task {name!r} of plan {plan_id!r} ended with {MOST_DEATHS} workers that ran it")
        template = task.args if task.args_at is None else await steps_of(self._place.blobs.read)(task.args_at)
        stored |= await self._place.outcomes(plan_id, [each for each in task.args_from if each not in stored])
        results = {each: Outcome.of(data).payload for each, data in stored.items()}
        call = Call(task.fn, fill_template(self._payloads, template, results, task.fn))
        self._begun[claim] = _Begun(True, "", len(task.succ) <= MOST_TOGETHER, known[1], found)
        return call

    # Ending

    @driven
    async def finish(self, claim: BacklogClaim, outcome: Outcome) -> Ending | Future[Ending]:
        """What follows from a run, all of it written before the item goes, or together with it."""
        plan_id, name = split_id(claim.item.id)
        if name.startswith(_CONTROL):
            await self._control.handle(claim, plan_id, name)
            return Done()
        begun = self._begun.get(claim, _Begun())
        if begun.trouble:
            return Release(begun.trouble[:200], after_s=1.0, count=False)
        if outcome.is_success and begun.is_call and begun.is_together:
            result = await self._place.stored_result(plan_id, outcome.to_bytes(), INLINE_RESULT)
            end = End(claim, plan_id, name, outcome, result, begun.plan, begun.task)
            self._begun[claim] = replace(begun, plan=None, task=None)  # if it is refused, it is ended the other way
            return self._ends.add(end)
        return await self._end_task(claim, plan_id, name, outcome)

    async def _end_task(self, claim: BacklogClaim, plan_id: str, name: str, outcome: Outcome) -> Ending:
        try:
            return await self._end_found(claim, plan_id, name, outcome)
        except NoSuchPlan:  # removed meanwhile
            return Done()

    async def _end_found(self, claim: BacklogClaim, plan_id: str, name: str, outcome: Outcome) -> Ending:
        while True:
            entry, plan = await self._place.plan(plan_id)
            found = await self._place.tasks(plan_id, [name])
            if not found or plan.state in _GONE:
                return Done()
            task = found[0]
            if task.record.state is TaskState.DONE:
                await self._progress.propagate(plan_id, plan, task)
                await self._progress.complete(plan_id)
                return Done()
            if task.record.state is TaskState.FAILED:
                await self._progress.skip_behind(claim, plan_id, task, plan.turn)
                await self._progress.complete(plan_id)
                return Done()
            if task.record.state is not TaskState.READY or plan.state.has_ended:
                return Done()
            if not self._begun.get(claim, _Begun()).is_call and not _is_wrong(outcome):
                return Release("it was made ready meanwhile", count=False)
            if outcome.is_success:
                ending = await self._succeed(claim, plan_id, plan, task, outcome)
            else:
                ending = await self._fail(claim, plan_id, (entry, plan), task, outcome)
            if ending is not None:
                return ending

    async def _succeed(
        self, claim: BacklogClaim, plan_id: str, plan: PlanRecord, task: Task, outcome: Outcome
    ) -> Ending | None:
        """None: look again; it is done, or something was written meanwhile."""
        result = await self._place.stored_result(plan_id, outcome.to_bytes(), INLINE_RESULT)
        edit = self._place.edges.finished(plan_id, plan, task, result, ())
        if not await self._commit(edit.checks, edit.ops, claim):
            return None
        await self._progress.propagate(plan_id, plan, task)
        await self._progress.complete(plan_id)
        return Done()

    async def _fail(
        self, claim: BacklogClaim, plan_id: str, seen: tuple[Entry, PlanRecord], task: Task, outcome: Outcome
    ) -> Ending | None:
        entry, plan = seen
        failure = outcome.failure
        assert failure is not None
        self._failed(plan_id, task.name, failure)
        if plan.state is PlanState.CANCELLING:
            edit = self._place.edges.cancelled(plan_id, entry, task)
            return Done(tuple(edit.checks), tuple(edit.ops))
        attempt = task.record.attempts + 1
        if attempt < task.record.retry.attempts and not failure.is_final and _is_retried(task, failure):
            edit = self._place.edges.tried(task, failure.summary)
            if await self._commit(edit.checks, edit.ops, claim):
                return Release(failure.summary[:200], after_s=task.record.retry.pause_s(attempt))
            return None
        result = await self._place.stored_result(plan_id, outcome.to_bytes(), INLINE_RESULT)
        edit = self._place.edges.failed(plan_id, entry, plan, task, why=failure.summary, result=result)
        await self._commit(edit.checks, edit.ops, claim)
        return None

    async def _commit(self, checks: Sequence[Check], ops: Sequence[Op], claim: BacklogClaim) -> bool:
        """Whether it was written, as far as is known.

        Raises:
            OwnershipLost: the claim is over.
        """
        held(claim)
        return await self._place.commit(Edit(list(checks), list(ops)), claim.fence)


def _from(claim: BacklogClaim) -> Sequence[str]:
    """The tasks whose results are arguments, as far as the item says."""
    return Record.or_empty(claim.value).texts("from", ()) if claim.value else ()


def _is_wrong(outcome: Outcome) -> bool:
    """Whether the call could not be made from what is stored: no worker can."""
    failure = outcome.failure
    return failure is not None and failure.name in (BadPayload.__name__, BadRecord.__name__)


def _is_retried(task: Task, failure: Failure) -> bool:
    """Whether an exception is of a class that the task is tried again for; one that is not known here is."""
    kind = failure.loaded_class
    names = task.record.retry_on
    return kind is None or any(f"{each.__module__}:{each.__qualname__}" in names for each in kind.__mro__)
