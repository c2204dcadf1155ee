"""Storing of drafts: first the record of the plan, then its tasks in several transactions, then the start.

No worker takes a task before the start. Each write of a draft checks a key that is bound to the builder's session. If
the builder dies before the start, this key disappears, and a sweep removes the draft. The record contains a random ID
of the builder (nonce). After a lost answer, the builder recognizes its own writes by it, and continues.
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
from latchwork.plans.removal import delete_plan_now
from latchwork.plans.transitions import TxnPart
from latchwork.store import Session
from latchwork.store.driving.background import Background
from latchwork.store.steps import PendingCall, ask, coroutine_of, undone_if_interrupted
from latchwork.types import At, Check, Committed, Create, Entry, Op, Put

#: Maximum number of concurrent transactions.
_IN_FLIGHT = 16
#: Attempts to create a draft when answers are lost.
_TRIES = 5


async def start_draft(plan_store: PlanStore, draft: PlanDraft) -> None:
    """Store a draft and start it. After an error, repeat the call: it continues with what is already stored.

    Raises:
        WrongState: Another plan with this ID exists.
        Unavailable: The plan was not started.
        OutcomeUnknown: The plan may have been started. No task runs unless all of them are stored.
        Conflict: A sweep removed the draft because our session had ended. Start it again.
    """
    options = draft.options
    plan = PlanRecord(
        PlanState.DRAFT,
        title=options.title,
        on_failure=options.on_failure,
        priority=options.priority,
        keep_results_s=options.keep_results_s,
        keep_s=options.keep_s,
        max_parallel=options.max_parallel,
        tasks=len(draft.calls),
        nonce=draft.nonce,
    )
    with undone_if_interrupted(partial(_delete_in_background, plan_store, draft)):
        session = await ask(plan_store.store.primary_session)
        if await write_draft(plan_store, draft.id, plan, draft.build_records(), session=session) is None:
            return
        try:
            await _start(plan_store, draft.id, draft.nonce)
        except Exception:
            await delete_draft(plan_store, draft.id, draft.nonce)
            raise


def _delete_in_background(plan_store: PlanStore, draft: PlanDraft) -> None:
    """Delete a draft in the background after an interrupt, unless it was started."""
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
    """Store a draft and its tasks.

    Args:
        plan_store: Access to the stored plans.
        plan_id: ID of the plan.
        plan: Record of the plan, with the nonce of its builder.
        tasks: Records of the tasks by name, including their arguments of any size.
        session: Session that the draft is bound to.
        checks: Checks that must hold when the draft is created.
    Returns:
        The entry of the draft; None if an earlier attempt has already started the plan.
    Raises:
        Conflict: The draft was removed while it was being written.
    """
    begun = await _create_draft(plan_store, plan_id, plan, session, checks)
    if begun is None:
        return None
    entry, is_new = begun
    try:
        stored = await _store_large_args(plan_store, plan_id, tasks)
        await _write_tasks(plan_store, plan_store.transitions.build_task_writes(plan_id, stored.items()), is_new=is_new)
    except Exception as error:
        await delete_draft(plan_store, plan_id, plan.nonce)
        if isinstance(error, Conflict):  # the key that is bound to the session is gone
            raise _removed_error(plan_id) from error
        raise
    return entry


async def _create_draft(
    plan_store: PlanStore, plan_id: str, plan: PlanRecord, session: Session, checks: tuple[Check, ...]
) -> tuple[Entry, bool] | None:
    """Create the record of a draft, or find the one that an earlier attempt created.

    Returns:
        The entry of the draft, and whether this call created it. None if the plan is no longer a draft.
    Raises:
        WrongState: Another plan with this ID exists.
        Conflict: One of ``checks`` failed.
        OutcomeUnknown: All attempts failed.
    """
    store, part = plan_store.store, plan_store.transitions.build_draft(plan_id, plan, session)
    trouble: LatchworkError = OutcomeUnknown(f"it is unknown whether plan {plan_id!r} was created; start it again")
    for _ in range(_TRIES):
        try:
            done: Committed = await ask(store.commit, [*part.checks, *checks], part.ops)
        except Conflict as error:
            if any(each in error.failed for each in checks):
                raise
        except OutcomeUnknown as error:
            trouble = error
        else:
            return done.entries[0], True
        entry = await ask(store.get, plan_store.keys.plan_key(plan_id))
        if entry is None:
            continue
        found = _decode_own_plan(plan_id, entry, plan.nonce)
        if found.state is not PlanState.DRAFT:
            return None
        try:  # from an earlier attempt, whose session may have ended
            await ask(store.commit, [At(entry)], [Put(plan_store.keys.draft_key(plan_id), b"", session)])
        except (Conflict, OutcomeUnknown) as error:
            trouble = error
        else:
            return entry, False
    raise trouble


def _decode_own_plan(plan_id: str, entry: Entry, nonce: str) -> PlanRecord:
    """Decode the record of a plan, and check that our builder wrote it.

    Raises:
        WrongState: Another builder wrote it.
        Conflict: The plan is being removed.
    """
    try:
        found = PlanRecord.from_bytes(entry.value)
    except BadRecord:
        found = PlanRecord(PlanState.DRAFT)
    if not nonce or found.nonce != nonce:
        raise WrongState(f"plan {plan_id!r} already exists; get it with plans.get({plan_id!r})")
    if found.state is PlanState.REMOVING:
        raise _removed_error(plan_id)
    return found


async def _store_large_args(
    plan_store: PlanStore, plan_id: str, tasks: Mapping[str, TaskRecord]
) -> dict[str, TaskRecord]:
    """Store large arguments as blobs.

    Returns:
        The records of all tasks by name; those with large arguments refer to the blobs.
    """
    stored: dict[str, TaskRecord] = {}
    for name, task in tasks.items():
        stored[name] = task
        if len(task.args) > INLINE_ARGS:
            at = await coroutine_of(plan_store.blobs.write)(plan_id, task.args)
            stored[name] = replace(task, args=b"", args_at=at)
    return stored


async def _write_tasks(plan_store: PlanStore, parts: list[TxnPart], *, is_new: bool) -> None:
    in_flight: deque[tuple[TxnPart, Future[Committed]]] = deque()
    try:
        for part in parts:
            if len(in_flight) >= _IN_FLIGHT:
                await _finish_write(plan_store, *in_flight.popleft())
            ops = part.ops if is_new else [_as_put(op) for op in part.ops]
            in_flight.append((part, plan_store.store.start_call("commit", part.checks, ops)))
        while in_flight:
            await _finish_write(plan_store, *in_flight.popleft())
    finally:
        for _, future in in_flight:
            with suppress(LatchworkError):
                await PendingCall(future)


async def _finish_write(plan_store: PlanStore, part: TxnPart, future: Future[Committed]) -> None:
    try:
        await PendingCall(future)
    except OutcomeUnknown:  # repeat it in either case: no other client writes these keys
        await ask(plan_store.store.commit, part.checks, [_as_put(op) for op in part.ops])


def _as_put(op: Op) -> Op:
    return Put(op.key, op.value) if isinstance(op, Create) else op


async def _start(plan_store: PlanStore, plan_id: str, nonce: str) -> None:
    while True:
        entry = await ask(plan_store.store.get, plan_store.keys.plan_key(plan_id))
        if entry is None:
            raise _removed_error(plan_id)
        plan = _decode_own_plan(plan_id, entry, nonce)
        if plan.state is not PlanState.DRAFT:
            return
        part = plan_store.transitions.build_start(plan_id, entry, plan, now_ms())
        try:
            await ask(plan_store.store.commit, part.checks, part.ops)
        except OutcomeUnknown:
            continue
        except Conflict as error:
            now = await ask(plan_store.store.get, entry.key)
            if now is None or now.version == entry.version:  # the key that is bound to the session is gone
                raise _removed_error(plan_id) from error
            continue  # an earlier attempt has committed in the meantime
        return


def _removed_error(plan_id: str) -> Conflict:
    return Conflict(
        f"plan {plan_id!r} was removed before it was started, because the session of its builder ended or somebody "
        "removed it; start it again"
    )


async def delete_draft(plan_store: PlanStore, plan_id: str, nonce: str) -> None:
    """Delete a draft now if the store is available. Otherwise a sweep deletes it later.

    The record is first marked for removal, so that a pending start is refused.

    Args:
        plan_store: Access to the stored plans.
        plan_id: ID of the plan.
        nonce: Random ID of the builder; drafts of other builders are kept.
    """
    try:
        entry = await ask(plan_store.store.get, plan_store.keys.plan_key(plan_id))
        plan = None if entry is None else PlanRecord.from_bytes(entry.value)
        if entry is not None and plan is not None and plan.state is PlanState.DRAFT and plan.nonce == nonce:
            await delete_plan_now(plan_store, plan_id, entry, plan)
    except LatchworkError:
        return
