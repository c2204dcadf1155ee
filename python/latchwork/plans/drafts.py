"""A draft becomes a plan in the store: its record, its tasks in as many transactions as they take, then its start.

Until the start nobody takes anything of it. When its builder dies before, a sweep removes it: what a builder writes
checks that its own key, which dies with its session, is still there. A draft has a number of its builder's, so that who
has lost an answer finds what is its own, and goes on with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from latchwork.errors import BadRecord, Conflict, LatchworkError, OutcomeUnknown
from latchwork.plans.builder import PlanDraft
from latchwork.plans.errors import WrongState
from latchwork.plans.plan_store import PlanStore, now_ms
from latchwork.plans.records import INLINE_ARGS, PlanRecord, PlanState, TaskRecord
from latchwork.plans.removal import remove_now
from latchwork.plans.states import TxnPart
from latchwork.store import Session
from latchwork.store.driving.background import Background
from latchwork.store.steps import Begun, ask, steps_of, undone_if_interrupted
from latchwork.types import At, Check, Committed, Create, Entry, Op, Put

#: So many of its transactions are on their way at a time.
_IN_FLIGHT = 16
#: So often a draft is begun, when answers are lost.
_TRIES = 5


async def start_draft(plan_store: PlanStore, draft: PlanDraft) -> None:
    """Store a draft and start it. Again after an error: it goes on with what is there.

    Raises:
        WrongState: there is a plan of its id.
        Unavailable: it does not run.
        OutcomeUnknown: it is not known to run; nothing of it runs unless all of it is stored.
        Conflict: it was swept meanwhile, because our session had ended; start it again.
    """
    options = draft.options
    plan = PlanRecord(
        PlanState.DRAFT,
        title=options.title,
        on_failure=options.on_failure,
        priority=options.priority,
        keep_results_s=options.keep_results_s,
        max_parallel=options.max_parallel,
        tasks=len(draft.calls),
        nonce=draft.nonce,
    )
    with undone_if_interrupted(partial(_delete_in_background, plan_store, draft)):
        session = await ask(plan_store.store.primary_session)
        if await write_draft(plan_store, draft.id, plan, draft.records(), session=session) is None:
            return
        try:
            await _start(plan_store, draft.id, draft.nonce)
        except Exception:
            await delete_draft(plan_store, draft.id, draft.nonce)
            raise


def _delete_in_background(plan_store: PlanStore, draft: PlanDraft) -> None:
    """After an interrupt: delete the draft, in the background. One that is started stays, and is found again."""
    Background(partial(delete_draft, plan_store, draft.id, draft.nonce), f"latchwork-drafts-{draft.id}")


async def write_draft(
    plan_store: PlanStore,
    plan_id: str,
    plan: PlanRecord,
    tasks: Mapping[str, TaskRecord],
    *,
    session: Session,
    checks: tuple[Check, ...] = (),
) -> Entry | None:
    """Store a whole draft; its record's entry. None if it is more than a draft already, by an answer that was lost.

    Args:
        plan_store: where to.
        plan_id: its id.
        plan: its record, with a nonce of its builder's.
        tasks: by name, with their arguments in them, whatever their size.
        session: what the draft lives by.
        checks: must hold when it is begun.
    """
    begun = await _create(plan_store, plan_id, plan, session, checks)
    if begun is None:
        return None
    entry, is_new = begun
    try:
        stored = await _store_large_args(plan_store, plan_id, tasks)
        await _write_tasks(plan_store, plan_store.transitions.write_tasks(plan_id, stored.items()), is_new=is_new)
    except Exception:
        await delete_draft(plan_store, plan_id, plan.nonce)
        raise
    return entry


async def _create(
    plan_store: PlanStore, plan_id: str, plan: PlanRecord, session: Session, checks: tuple[Check, ...]
) -> tuple[Entry, bool] | None:
    """Its record as it is stored, and whether nothing else of it can be; None if it is no draft any more."""
    store, edit = plan_store.store, plan_store.transitions.create_draft(plan_id, plan, session)
    trouble: LatchworkError = OutcomeUnknown(f"whether plan {plan_id!r} was begun is not known; start it again")
    for _ in range(_TRIES):
        try:
            done: Committed = await ask(store.commit, [*edit.checks, *checks], edit.ops)
        except Conflict as error:
            if any(each in error.failed for each in checks):
                raise
        except OutcomeUnknown as error:
            trouble = error
        else:
            return done.entries[0], True
        entry = await ask(store.get, plan_store.keys.plan(plan_id))
        if entry is None:
            continue
        found = _check_own(plan_id, entry, plan.nonce)
        if found.state is not PlanState.DRAFT:
            return None
        try:  # of a try before this one: our key may be of a session that has ended
            await ask(store.commit, [At(entry)], [Put(plan_store.keys.draft(plan_id), b"", session)])
        except (Conflict, OutcomeUnknown) as error:
            trouble = error
        else:
            return entry, False
    raise trouble


def _check_own(plan_id: str, entry: Entry, nonce: str) -> PlanRecord:
    try:
        found = PlanRecord.of(entry.value)
    except BadRecord:
        found = PlanRecord(PlanState.DRAFT)
    if not nonce or found.nonce != nonce:
        raise WrongState(f"there is a plan {plan_id!r} already; get it with plans.get({plan_id!r})")
    if found.state is PlanState.REMOVING:
        raise Conflict(f"plan {plan_id!r} was removed while it was write_draft; start it again")
    return found


async def _store_large_args(
    plan_store: PlanStore, plan_id: str, tasks: Mapping[str, TaskRecord]
) -> dict[str, TaskRecord]:
    """With large arguments elsewhere."""
    stored: dict[str, TaskRecord] = {}
    for name, task in tasks.items():
        stored[name] = task
        if len(task.args) > INLINE_ARGS:
            at = await steps_of(plan_store.blobs.write)(plan_id, task.args)
            stored[name] = replace(task, args=b"", args_at=at)
    return stored


async def _write_tasks(plan_store: PlanStore, edits: list[TxnPart], *, is_new: bool) -> None:
    in_flight: deque[tuple[TxnPart, Future[Committed]]] = deque()
    try:
        for edit in edits:
            if len(in_flight) >= _IN_FLIGHT:
                await _finish_write(plan_store, *in_flight.popleft())
            ops = edit.ops if is_new else [_as_put(op) for op in edit.ops]
            in_flight.append((edit, plan_store.store.begin("commit", edit.checks, ops)))
        while in_flight:
            await _finish_write(plan_store, *in_flight.popleft())
    finally:
        for _, future in in_flight:
            with suppress(LatchworkError):
                await Begun(future)


async def _finish_write(plan_store: PlanStore, edit: TxnPart, future: Future[Committed]) -> None:
    try:
        await Begun(future)
    except OutcomeUnknown:  # the same once more, whether it has committed or not: nobody else writes these keys
        await ask(plan_store.store.commit, edit.checks, [_as_put(op) for op in edit.ops])


def _as_put(op: Op) -> Op:
    return Put(op.key, op.value) if isinstance(op, Create) else op


async def _start(plan_store: PlanStore, plan_id: str, nonce: str) -> None:
    while True:
        entry = await ask(plan_store.store.get, plan_store.keys.plan(plan_id))
        if entry is None:
            raise Conflict(f"plan {plan_id!r} was removed while it was write_draft; start it again")
        plan = _check_own(plan_id, entry, nonce)
        if plan.state is not PlanState.DRAFT:
            return
        edit = plan_store.transitions.start(plan_id, entry, plan, now_ms())
        try:
            await ask(plan_store.store.commit, edit.checks, edit.ops)
        except OutcomeUnknown:
            continue
        except Conflict:
            now = await ask(plan_store.store.get, entry.key)
            if now is None or now.version == entry.version:  # our key is ended_deps
                raise
            continue  # the one before, plan_key answer was lost, has committed meanwhile
        return


async def delete_draft(plan_store: PlanStore, plan_id: str, nonce: str) -> None:
    """Delete what was write_draft of a draft, if that is possible now; else it is swept.

    Its record says so first: a start that is on its way yet is refused by that.
    """
    try:
        entry = await ask(plan_store.store.get, plan_store.keys.plan(plan_id))
        plan = None if entry is None else PlanRecord.of(entry.value)
        if entry is not None and plan is not None and plan.state is PlanState.DRAFT and plan.nonce == nonce:
            await remove_now(plan_store, plan_id, entry, plan)
    except LatchworkError:
        return
