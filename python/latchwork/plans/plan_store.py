"""The plans below one name in one store: what all that look at them and change them share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import time

from latchwork.errors import BadRecord, Conflict, OutcomeUnknown, OwnershipLost
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import PARTITION, Keys
from latchwork.plans.records import PlanRecord, Task, TaskState, decode_result, encode_inline_result, encode_result_ref
from latchwork.plans.states import Transitions, TxnPart
from latchwork.primitives import WorkQueue
from latchwork.store.steps import ask, steps_of
from latchwork.store.store import Store, system_namespace
from latchwork.tasks import BlobRef, Blobs
from latchwork.types import Check, Entry, Op

#: Of so many keys each request asks.
_TOGETHER = 500
#: Of so many results a task is read together with.
_FEW_RESULTS = 400
#: So many of what a task waits for are asked for at first, the last of them; then so many times as many.
_FIRST_LOOK, _LONGER = 32, 8


class PlanStore:
    """Reads and writes of plans. Safe to share between threads. Construction does no I/O."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store = system_namespace(store, "plans")
        self.keys = Keys(name)
        self.queue = WorkQueue(store, self.keys.queue)
        self.blobs = Blobs(store, self.keys.data)
        self.transitions = Transitions(self.keys, self._put_item)

    def _put_item(self, shelf: str, item: str, value: bytes) -> list[Op]:
        return self.queue.put_ops(PARTITION, shelf, {item: value})

    async def read_plan(self, plan_id: str) -> tuple[Entry, PlanRecord]:
        """A plan.

        Raises:
            NoSuchPlan: there is none.
            BadRecord: its record is damaged.
        """
        entry = await ask(self.store.get, self.keys.plan(plan_id))
        if entry is None:
            raise NoSuchPlan(f"there is no plan {plan_id!r} below {self.keys.name!r}; list them with plans.list()")
        try:
            return entry, PlanRecord.of(entry.value)
        except BadRecord as error:
            raise BadRecord(f"the record of plan {plan_id!r} is damaged; remove the plan ({error})") from None

    def item_prefix(self, shelf: str) -> str:
        """The prefix of the items of a shelf."""
        return self.queue.key(PARTITION, shelf, "x")[:-2]

    def claim_key(self, lane: str, rest: str) -> str:
        """The key of the claim of an item: ``<shelf>/<id>`` in a lane."""
        return f"{self.keys.queue}/partitions/{lane}/claims/{rest}"

    async def count_added(self, plan_id: str) -> int:
        """How many tasks were added since the start, at least."""
        entry = await ask(self.store.get, self.keys.adds(plan_id))
        return int(entry.value) if entry is not None and entry.value.isdigit() else 0

    async def read_tasks(self, plan_id: str, names: Iterable[str]) -> list[Task]:
        """Tasks of a plan, in this order; without those that are ended_deps, or are none."""
        wanted = [self.keys.task(plan_id, name) for name in names]
        found: list[Task] = []
        for at in range(0, len(wanted), _TOGETHER):
            for entry in await ask(self.store.get_many, wanted[at : at + _TOGETHER]):
                if entry is not None:
                    with suppress(BadRecord):
                        found.append(Task.of(entry))
        return found

    async def read_all_tasks(self, plan_id: str) -> list[Task]:
        """All tasks of a plan, by name."""
        found: list[Task] = []
        after: str | None = None
        while True:
            page = await ask(self.store.list, self.keys.tasks(plan_id), limit=_TOGETHER, start_after=after)
            for entry in page:
                with suppress(BadRecord):
                    found.append(Task.of(entry))
            if len(page) < _TOGETHER:
                return found
            after = page[-1].key

    async def pending_deps(self, plan_id: str, name: str) -> list[str]:
        """What a task depends on that is not done, by name."""
        found = await self.read_tasks(plan_id, [name])
        deps = [dep for each in found for dep in each.record.deps]
        done = await self.filter_done(plan_id, deps)
        return sorted(dep for dep in deps if dep not in done)

    async def filter_done(self, plan_id: str, names: Sequence[str]) -> set[str]:
        """Those of these tasks that are done: they stay so."""
        found: set[str] = set()
        for at in range(0, len(names), _TOGETHER):
            tasks = await self.read_tasks(plan_id, names[at : at + _TOGETHER])
            found.update(each.name for each in tasks if each.record.state is TaskState.DONE)
        return found

    async def filter_pending(self, plan_id: str, names: Sequence[str]) -> set[str]:
        """Those of these tasks that have not ended."""
        found: set[str] = set()
        for at in range(0, len(names), _TOGETHER):
            some = names[at : at + _TOGETHER]
            entries = await ask(self.store.get_many, [self.keys.todo(plan_id, name) for name in some])
            found.update(name for name, entry in zip(some, entries, strict=True) if entry is not None)
        return found

    async def filter_ready(self, plan_id: str, plan: PlanRecord, tasks: Sequence[Task], ended: set[str]) -> list[Task]:
        """Those of these tasks plan_key dependencies are done, as long as the plan is as it was read before.

        Args:
            plan_id: of which plan.
            plan: as it was read, and is checked when they become ready.
            tasks: those that wait.
            ended: tasks that have ended since the plan was started or recovered; what is found is added.
        """
        left = {each.name: [dep for dep in each.record.deps if dep not in ended] for each in tasks}
        most, live = _FIRST_LOOK, set[str]()
        while any(left.values()):
            wanted = dict.fromkeys(dep for deps in left.values() for dep in deps[-most:])
            asked = [dep for dep in wanted if dep not in live and dep not in ended]
            live |= await self.filter_pending(plan_id, asked)
            ended.update(dep for dep in asked if dep not in live)
            left = {
                name: [dep for dep in deps if dep not in ended]
                for name, deps in left.items()
                if live.isdisjoint(deps[-most:])
            }
            most *= _LONGER
        free = [each for each in tasks if each.name in left]
        if not plan.failed:
            return free
        done = await self.filter_done(plan_id, list(dict.fromkeys(dep for each in free for dep in each.record.deps)))
        return [each for each in free if done.issuperset(each.record.deps)]

    async def has_pending(self, plan_id: str) -> bool:
        """Whether a task of the plan has not ended."""
        return bool(await ask(self.store.list, self.keys.todo(plan_id), recursive=True, limit=1))

    async def list_pending(self, plan_id: str, limit: int) -> list[str]:
        """The first so many tasks that have not ended."""
        entries = await ask(self.store.list, self.keys.todo(plan_id), recursive=True, limit=limit)
        return [entry.key.rpartition("/")[2] for entry in entries]

    async def commit(self, edit: TxnPart, *fences: Check) -> bool:
        """Commit an edit plan_key caller holds these fences, and return whether it is known to be committed.

        After False the caller reads again and decides again: a check failed, or the answer was lost.

        Raises:
            OwnershipLost: One of the fences is broken. A caller that read again would be refused again.
        """
        try:
            await ask(self.store.commit, [*fences, *edit.checks], edit.ops)
        except Conflict as error:
            if any(fence in error.failed for fence in fences):
                raise OwnershipLost(f"a claim has ended; nothing was write_draft: {error}") from error
            return False
        except OutcomeUnknown:
            return False
        return True

    # Large values

    async def store_result(self, plan_id: str, outcome: bytes, most: int) -> bytes:
        """An outcome as the value of a result's key; a large one is write_draft elsewhere before."""
        if len(outcome) <= most:
            return encode_inline_result(outcome)
        return encode_result_ref(await steps_of(self.blobs.write)(plan_id, outcome))

    async def read_entries(
        self, wanted: Sequence[tuple[str, str, Sequence[str]]]
    ) -> list[tuple[Entry | None, list[Entry | None]]]:
        """Entries of tasks, each with its plan, and of results of others of it, of few of them, in few requests."""
        asked = [
            [self.keys.task(plan_id, name), *(self.keys.result(plan_id, each) for each in names[:_FEW_RESULTS])]
            for plan_id, name, names in wanted
        ]
        keys = list(dict.fromkeys(key for each in asked for key in each))
        found: dict[str, Entry | None] = {}
        for at in range(0, len(keys), _TOGETHER):
            some = keys[at : at + _TOGETHER]
            found.update(zip(some, await ask(self.store.get_many, some), strict=True))
        return [(found[first], [found[key] for key in rest]) for first, *rest in asked]

    async def decode_entries(
        self, names: Sequence[str], task: Entry | None, results: Sequence[Entry | None]
    ) -> tuple[Task | None, dict[str, bytes]]:
        """What is in the entries of a task and of the first results of others; large ones are read.

        Raises:
            BadRecord: one cannot be used.
        """
        found = await self._read(names[: len(results)], results)
        return (None if task is None else Task.of(task)), found

    async def _read(self, names: Sequence[str], entries: Sequence[Entry | None]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, entry in zip(names, entries, strict=True):
            if entry is not None:
                where = decode_result(entry.value)
                found[name] = await steps_of(self.blobs.read)(where) if isinstance(where, BlobRef) else where
        return found

    async def read_outcomes(self, plan_id: str, names: Sequence[str]) -> dict[str, bytes]:
        """How tasks ended, by name; without those that have no result.

        Raises:
            BadRecord: one cannot be used.
        """
        wanted = [self.keys.result(plan_id, name) for name in names]
        found: dict[str, bytes] = {}
        for at in range(0, len(wanted), _TOGETHER):
            entries = await ask(self.store.get_many, wanted[at : at + _TOGETHER])
            found.update(await self._read(names[at : at + _TOGETHER], entries))
        return found


def now_ms() -> int:
    """The machine's clock: for the order of plans, and for people."""
    return int(time() * 1000)
