"""The plans below one name: new ones, existing ones, and what builders left; all of them seen without any change."""

from __future__ import annotations

import uuid
from typing import Literal

from latchwork.errors import BadRecord
from latchwork.plans.builder import PlanBuilder, PlanDraft, PlanOptions
from latchwork.plans.drafts import start_draft
from latchwork.plans.errors import NoSuchPlan
from latchwork.plans.handle import PlanHandle, PlanStatus
from latchwork.plans.keys import MAX_PLAN_ID, NAME, check_id
from latchwork.plans.plan_store import PlanStore, now_ms
from latchwork.plans.records import PlanRecord, PlanState
from latchwork.plans.removal import ResultRetention, remove_now
from latchwork.store import Store
from latchwork.store.steps import ask, driven
from latchwork.tasks import DEFAULT, Codec, Functions, Payloads


class Plans:
    """Plans of one name in a store. Construction does no I/O. Safe to share between threads.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: groups plans: those of different names know nothing of each other.
        functions: what may be called; those of ``@task`` by default.
        codec: how arguments are stored; None: plain values.
        allow_pickle: whether pickled results are read.
    """

    def __init__(
        self,
        store: Store,
        name: str = NAME,
        *,
        functions: Functions = DEFAULT,
        codec: Codec | None = None,
        allow_pickle: bool = False,
    ) -> None:
        self._plan_store = PlanStore(store, name)
        self._functions = functions
        self._payloads = Payloads(codec, allow_pickle=allow_pickle)

    def new(
        self,
        name: str = "",
        *,
        id: str | None = None,  # noqa: A002 - what it is
        on_failure: Literal["stop", "continue"] = "stop",
        priority: int = 5,
        keep_results_s: float | None = None,
        max_parallel: int | None = None,
    ) -> PlanBuilder[PlanHandle]:
        """Begin to build a plan. Does no I/O.

        Args:
            name: for people; any printable text.
            id: unique; None makes one. With an id of yours a plan is started once, whoever tries to.
            on_failure: ``stop`` ends the plan when a task has failed for good; ``continue`` runs all that does not
                depend on it.
            priority: 0 to 9; tasks of plans with 9 are taken first.
            keep_results_s: seconds for which results of tasks without a name that others depend on are kept after the
                plan has completed; a worker or a sweep deletes them then. Those of a plan that failed or was cancelled
                are kept: ``recover`` goes on from them. None keeps all until ``remove``.
            max_parallel: so many of its tasks run at a time, whichever workers have them: 1 to 1,000; None for as many
                as there are slots. A task that pauses before its next try does not count.
        Raises:
            InvalidKey, ValueError: of an option.
        """
        plan_id = uuid.uuid4().hex[:16] if id is None else check_id(id, "the id of a plan", MAX_PLAN_ID)
        draft = PlanDraft(plan_id, PlanOptions(name, on_failure, priority, keep_results_s, max_parallel))
        return PlanBuilder(draft, self._functions, self._payloads, self._start)

    @driven
    async def _start(self, draft: PlanDraft) -> PlanHandle:
        await start_draft(self._plan_store, draft)
        return self.get(draft.id)

    def get(self, plan_id: str) -> PlanHandle:
        """A plan by its id. Does no I/O: whether it is there shows when it is asked."""
        checked = check_id(plan_id, "the id of a plan", MAX_PLAN_ID)
        return PlanHandle(self._plan_store, checked, self._functions, self._payloads)

    @driven
    async def list(self, *, state: PlanState | None = None) -> list[tuple[str, PlanRecord]]:
        """Ids and records of all plans, or of those in a state, the oldest first."""
        found = []
        for entry in await ask(self._plan_store.store.list, self._plan_store.keys.plans):
            try:
                record = PlanRecord.of(entry.value)
            except BadRecord:
                continue
            if state is None or record.state is state:
                found.append((entry.key.rpartition("/")[2], record))
        return sorted(found, key=lambda each: (each[1].started_ms, each[0]))

    @driven
    async def sweep(self) -> int:
        """Remove drafts plan_key builder is ended_deps, what is left of plans that are, and results plan_key time is over.

        By anybody. How many plans that concerned.
        """
        plan_store = self._plan_store
        seen = {each for prefix in plan_store.keys.roots for each in await ask(plan_store.store.children, prefix)}
        plans = {
            entry.key.rpartition("/")[2]: entry for entry in await ask(plan_store.store.list, plan_store.keys.plans)
        }
        count = 0
        for plan_id, entry in plans.items():
            try:
                record = PlanRecord.of(entry.value)
            except BadRecord:
                continue
            if (
                record.state is PlanState.DRAFT
                and await ask(plan_store.store.get, plan_store.keys.draft(plan_id)) is None
            ):
                count += await remove_now(plan_store, plan_id, entry, record)
        count += await ResultRetention(plan_store).delete_expired(plans.values(), now_ms())
        for plan_id in sorted(seen - plans.keys()):  # of builders and workers that went on after it was removed
            count += await remove_now(plan_store, plan_id, None, PlanRecord(PlanState.REMOVING))
        return count


def inspect(store: Store, name: str = NAME) -> list[PlanStatus]:
    """How each plan is, the oldest first; drafts are none yet. Reads the tasks of all of them.

    Args:
        store: the store, or a namespace of it.
        name: of the plans.
    Raises:
        Unavailable: the plans could not be read.
    """
    plans = Plans(store, name)
    found = []
    for plan_id, record in plans.list():
        if record.state is not PlanState.DRAFT:
            try:
                found.append(plans.get(plan_id).status())
            except NoSuchPlan:  # removed meanwhile
                continue
    return found
