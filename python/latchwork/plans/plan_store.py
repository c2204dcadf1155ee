"""Access to the stored plans below one name, shared by builders, handles and workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import time

from latchwork.errors import BadRecord, Conflict, OutcomeUnknown, OwnershipLost
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.keys import PARTITION, Keys
from latchwork.plans.records import PlanRecord, Task, TaskState, decode_result, encode_inline_result, encode_result_ref
from latchwork.plans.transitions import Transitions, TxnPart
from latchwork.primitives import WorkQueue
from latchwork.store.steps import ask, coroutine_of
from latchwork.store.store import Store, system_namespace
from latchwork.tasks import BlobRef, Blobs
from latchwork.types import Check, Entry, Op

#: Number of keys per request.
_TOGETHER = 500
#: Maximum number of results that are read together with a task.
_FEW_RESULTS = 400
#: Number of last dependencies that are checked first, and the factor for each further step.
_FIRST_LOOK, _LONGER = 32, 8


class PlanStore:
    """Reads and writes the plans below one name. Construction does no I/O. Thread-safe."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store = system_namespace(store, "plans")
        self.keys = Keys(name)
        self.queue = WorkQueue(store, self.keys.queue)
        self.blobs = Blobs(store, self.keys.data)
        self.transitions = Transitions(self.keys, self._put_item)

    def _put_item(self, sort_key: str, item: str, value: bytes) -> list[Op]:
        return self.queue.put_ops(PARTITION, sort_key, {item: value})

    async def read_plan(self, plan_id: str) -> tuple[Entry, PlanRecord]:
        """Read a plan.

        Returns:
            The entry of its key, for checks, and its decoded record.
        Raises:
            NoSuchPlan: There is no plan with this ID.
            BadRecord: Its record is damaged.
        """
        entry = await ask(self.store.get, self.keys.plan_key(plan_id))
        if entry is None:
            raise NoSuchPlan(f"there is no plan {plan_id!r} of name {self.keys.name!r}; list them with plans.list()")
        try:
            return entry, PlanRecord.from_bytes(entry.value)
        except BadRecord as error:
            raise BadRecord(f"the record of plan {plan_id!r} is damaged; remove the plan ({error})") from None

    def get_item_prefix(self, sort_key: str) -> str:
        """Return the key prefix of the queue items with this sort key."""
        return self.queue.key(PARTITION, sort_key, "x")[:-2]

    async def count_added_tasks(self, plan_id: str) -> int:
        """Return the number of tasks that were added to a plan after its start. It may grow at any time."""
        entry = await ask(self.store.get, self.keys.additions_key(plan_id))
        return int(entry.value) if entry is not None and entry.value.isdigit() else 0

    async def read_tasks(self, plan_id: str, names: Iterable[str]) -> list[Task]:
        """Read tasks of a plan by name, in the given order. Missing and unreadable tasks are left out."""
        wanted = [self.keys.task_key(plan_id, name) for name in names]
        found: list[Task] = []
        for at in range(0, len(wanted), _TOGETHER):
            for entry in await ask(self.store.get_many, wanted[at : at + _TOGETHER]):
                if entry is not None:
                    with suppress(BadRecord):
                        found.append(Task.from_entry(entry))
        return found

    async def read_all_tasks(self, plan_id: str) -> list[Task]:
        """Read all tasks of a plan, sorted by name. Unreadable tasks are left out."""
        found: list[Task] = []
        after: str | None = None
        while True:
            page = await ask(self.store.list, self.keys.tasks_prefix(plan_id), limit=_TOGETHER, start_after=after)
            for entry in page:
                with suppress(BadRecord):
                    found.append(Task.from_entry(entry))
            if len(page) < _TOGETHER:
                return found
            after = page[-1].key

    async def pending_deps(self, plan_id: str, name: str) -> list[str]:
        """Return the names of a task's dependencies that are not done, sorted."""
        found = await self.read_tasks(plan_id, [name])
        deps = [dep for each in found for dep in each.record.deps]
        done = await self.find_done_tasks(plan_id, deps)
        return sorted(dep for dep in deps if dep not in done)

    async def find_done_tasks(self, plan_id: str, names: Sequence[str]) -> set[str]:
        """Return the names of the tasks that are done, out of the given names. A done task stays done."""
        found: set[str] = set()
        for at in range(0, len(names), _TOGETHER):
            tasks = await self.read_tasks(plan_id, names[at : at + _TOGETHER])
            found.update(each.name for each in tasks if each.record.state is TaskState.DONE)
        return found

    async def find_unfinished_tasks(self, plan_id: str, names: Sequence[str]) -> set[str]:
        """Return the names of the tasks that have not ended, out of the given names."""
        found: set[str] = set()
        for at in range(0, len(names), _TOGETHER):
            some = names[at : at + _TOGETHER]
            entries = await ask(self.store.get_many, [self.keys.unfinished_key(plan_id, name) for name in some])
            found.update(name for name, entry in zip(some, entries, strict=True) if entry is not None)
        return found

    async def find_ready_tasks(
        self, plan_id: str, plan: PlanRecord, tasks: Sequence[Task], ended: set[str]
    ) -> list[Task]:
        """Return the waiting tasks whose dependencies are all done. The answer is valid while the plan is unchanged.

        Args:
            plan_id: ID of the plan.
            plan: Record of the plan, read before; it is checked when the tasks become ready.
            tasks: Waiting tasks.
            ended: Names of tasks known to have ended since the plan was started or recovered; this call adds the ones
                that it finds.
        """
        left = {each.name: [dep for dep in each.record.deps if dep not in ended] for each in tasks}
        most, live = _FIRST_LOOK, set[str]()
        while any(left.values()):
            wanted = dict.fromkeys(dep for deps in left.values() for dep in deps[-most:])
            asked = [dep for dep in wanted if dep not in live and dep not in ended]
            live |= await self.find_unfinished_tasks(plan_id, asked)
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
        done = await self.find_done_tasks(
            plan_id, list(dict.fromkeys(dep for each in free for dep in each.record.deps))
        )
        return [each for each in free if done.issuperset(each.record.deps)]

    async def has_unfinished_tasks(self, plan_id: str) -> bool:
        """Return whether any task of the plan has not ended."""
        return bool(await ask(self.store.list, self.keys.unfinished_prefix(plan_id), recursive=True, limit=1))

    async def list_unfinished_tasks(self, plan_id: str, limit: int) -> list[str]:
        """Return the names of up to ``limit`` tasks that have not ended."""
        entries = await ask(self.store.list, self.keys.unfinished_prefix(plan_id), recursive=True, limit=limit)
        return [entry.key.rpartition("/")[2] for entry in entries]

    async def commit(self, part: TxnPart, *fences: Check) -> bool:
        """Commit checks and writes together with fences that the caller holds.

        Args:
            part: The checks and writes.
            fences: Checks that the caller still owns its claims.
        Returns:
            Whether they were committed. After False, a check failed or the answer was lost: read and decide again.
        Raises:
            OwnershipLost: One of the fences no longer holds, so nothing was written, and a retry would be refused too.
        """
        try:
            await ask(self.store.commit, [*fences, *part.checks], part.ops)
        except Conflict as error:
            if any(fence in error.failed for fence in fences):
                raise OwnershipLost(f"a claim has ended; nothing was written: {error}") from error
            return False
        except OutcomeUnknown:
            return False
        return True

    # Large values

    async def encode_result_value(self, plan_id: str, outcome: bytes, max_inline_bytes: int) -> bytes:
        """Return the value of a result's key for an encoded outcome. A large outcome is written as a blob first.

        Args:
            plan_id: ID of the plan.
            outcome: The encoded outcome.
            max_inline_bytes: Size up to which the outcome is part of the value.
        """
        if len(outcome) <= max_inline_bytes:
            return encode_inline_result(outcome)
        return encode_result_ref(await coroutine_of(self.blobs.write)(plan_id, outcome))

    async def read_entries(
        self, requests: Sequence[tuple[str, str, Sequence[str]]]
    ) -> list[tuple[Entry | None, list[Entry | None]]]:
        """Read the entries of tasks, and of the results that their calls need, in few requests.

        Args:
            requests: For each task the ID of its plan, its name, and the names of the tasks whose results it needs.
        Returns:
            For each task its entry and the entries of the results; at most the first 400 results.
        """
        asked = [
            [self.keys.task_key(plan_id, name), *(self.keys.result_key(plan_id, each) for each in names[:_FEW_RESULTS])]
            for plan_id, name, names in requests
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
        """Decode the entries of a task and of results. Large results are read from their blobs.

        Args:
            names: Names of the tasks of ``results``.
            task: Entry of the task; None if it does not exist.
            results: Entries of the results.
        Returns:
            The task, or None; and the encoded outcomes by task name.
        Raises:
            BadRecord: An entry is unreadable.
        """
        found = await self._decode_results(names[: len(results)], results)
        return (None if task is None else Task.from_entry(task)), found

    async def _decode_results(self, names: Sequence[str], entries: Sequence[Entry | None]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, entry in zip(names, entries, strict=True):
            if entry is not None:
                where = decode_result(entry.value)
                found[name] = await coroutine_of(self.blobs.read)(where) if isinstance(where, BlobRef) else where
        return found

    async def read_outcomes(self, plan_id: str, names: Sequence[str]) -> dict[str, bytes]:
        """Read the encoded outcomes of tasks, by name. Tasks without a result are left out.

        Raises:
            BadRecord: An outcome is unreadable.
        """
        wanted = [self.keys.result_key(plan_id, name) for name in names]
        found: dict[str, bytes] = {}
        for at in range(0, len(wanted), _TOGETHER):
            entries = await ask(self.store.get_many, wanted[at : at + _TOGETHER])
            found.update(await self._decode_results(names[at : at + _TOGETHER], entries))
        return found


def now_ms() -> int:
    """Return the wall-clock time in milliseconds since the epoch, for sorting plans and for display."""
    return int(time() * 1000)
