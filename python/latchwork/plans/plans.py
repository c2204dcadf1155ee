"""Creation, lookup and cleanup of the plans below one name."""

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
from latchwork.plans.removal import sweep_plans
from latchwork.store import Store
from latchwork.store.steps import ask, blocking
from latchwork.tasks import DEFAULT, Codec, Functions, Payloads


class Plans:
    """The plans of one name in a store. Construction does no I/O. Thread-safe.

    Args:
        store: The store, or a namespace of it. It is not closed.
        name: Name that groups plans. Plans of different names are independent.
        functions: Functions that tasks may call; those of ``@task`` by default.
        codec: Codec for arguments; None stores plain values.
        allow_pickle: Whether pickled results are read.
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
        id: str | None = None,  # noqa: A002 - the public name
        on_failure: Literal["stop", "continue"] = "stop",
        priority: int = 5,
        keep_results_s: float | None = None,
        keep_s: float | None = None,
        max_parallel: int | None = None,
    ) -> PlanBuilder[PlanHandle]:
        """Create a builder for a new plan. Does no I/O.

        Args:
            name: Display name; any printable text.
            id: Unique ID; None generates one. A plan with an explicit ID is started once, even if several clients try.
            on_failure: ``stop`` ends the plan when a task has failed permanently. ``continue`` runs all tasks that do
                not depend on it.
            priority: 0 to 9; tasks of plans with 9 are taken first.
            keep_results_s: Seconds after completion for which results of unnamed intermediate tasks are kept. A worker
                or a sweep deletes them afterwards. Results of failed or canceled plans are kept, because ``recover``
                needs them. None keeps all results until ``remove``.
            keep_s: Seconds after its end, however it ended, for which the plan is kept. A worker or a sweep removes it
                afterwards, by the wall clocks of the worker that ended it and its own. None keeps it until ``remove``.
            max_parallel: Maximum number of tasks of this plan that run at the same time on all workers: 1 to 1,000.
                None sets no limit. A task that pauses before a retry does not count.
        Returns:
            A builder; leaving its ``with`` block starts the plan.
        Raises:
            InvalidKey, ValueError: An option is invalid.
        """
        plan_id = uuid.uuid4().hex[:16] if id is None else check_id(id, "the id of a plan", MAX_PLAN_ID)
        draft = PlanDraft(plan_id, PlanOptions(name, on_failure, priority, keep_results_s, max_parallel, keep_s))
        return PlanBuilder(draft, self._functions, self._payloads, self._start)

    @blocking
    async def _start(self, draft: PlanDraft) -> PlanHandle:
        await start_draft(self._plan_store, draft)
        return self.get(draft.id)

    def get(self, plan_id: str) -> PlanHandle:
        """Return a handle of a plan. Does no I/O and does not check that the plan exists."""
        checked = check_id(plan_id, "the id of a plan", MAX_PLAN_ID)
        return PlanHandle(self._plan_store, checked, self._functions, self._payloads)

    @blocking
    async def list(self, *, state: PlanState | None = None) -> list[tuple[str, PlanRecord]]:
        """Return the IDs and records of plans, oldest first.

        Args:
            state: Only plans in this state; None for all plans.
        """
        found = []
        for entry in await ask(self._plan_store.store.list, self._plan_store.keys.plans):
            try:
                record = PlanRecord.from_bytes(entry.value)
            except BadRecord:
                continue
            if state is None or record.state is state:
                found.append((entry.key.rpartition("/")[2], record))
        return sorted(found, key=lambda each: (each[1].started_ms, each[0]))

    @blocking
    async def sweep(self) -> int:
        """Remove drafts of dead builders, leftover keys of removed plans, expired plans and expired results.

        A worker does the same every ten minutes. Any client may call it at any time.

        Returns:
            The number of affected plans.
        """
        return await sweep_plans(self._plan_store, now_ms())


def inspect(store: Store, name: str = NAME) -> list[PlanStatus]:
    """Return the status of each started plan, oldest first. Reads all tasks of all plans.

    Args:
        store: The store, or a namespace of it.
        name: Name of the plans.
    Raises:
        Unavailable: The plans could not be read.
    """
    plans = Plans(store, name)
    found = []
    for plan_id, record in plans.list():
        if record.state is not PlanState.DRAFT:
            try:
                found.append(plans.get(plan_id).status())
            except NoSuchPlan:  # removed in the meantime
                continue
    return found
