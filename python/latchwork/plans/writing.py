"""A draft becomes a plan in the store: its record, its tasks in as many transactions as they take, then its start.

Until the start nobody takes anything of it. When its builder dies before, a sweep removes it: what a builder writes
checks that its own key, which dies with its session, is still there.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

from latchwork.errors import Conflict, KeyExists, LatchworkError, OutcomeUnknown
from latchwork.plans.builder import Draft
from latchwork.plans.errors import WrongState
from latchwork.plans.place import Place, now_ms
from latchwork.plans.records import INLINE_ARGS, PlanRecord, PlanState, TaskRecord
from latchwork.plans.states import Edit
from latchwork.types import Committed, Create, Op, Put

#: So many of its transactions are on their way at a time.
_IN_FLIGHT = 16


def start_draft(place: Place, draft: Draft) -> None:
    """Store a draft and start it.

    Raises:
        WrongState: there is a plan of its id.
        Unavailable, OutcomeUnknown: it is not known to run; nothing of it runs unless all of it is stored.
        Conflict: it was swept meanwhile, because our session had ended; start it again.
    """
    record = PlanRecord(
        PlanState.DRAFT,
        title=draft.options.title,
        on_failure=draft.options.on_failure,
        priority=draft.options.priority,
        keep_results_s=draft.options.keep_results_s,
        tasks=len(draft.calls),
    )
    store, session = place.store, place.store.session
    first = place.edges.drafted(draft.id, record, session)
    try:
        store.commit(first.checks, first.ops)
    except (Conflict, KeyExists):
        raise WrongState(f"there is a plan {draft.id!r} already; get it with plans.get({draft.id!r})") from None
    try:
        _write(place, place.edges.built(draft.id, _tasks(place, draft).items()))
        _start(place, draft.id)
    except LatchworkError:
        _drop(place, draft.id)
        raise


def _tasks(place: Place, draft: Draft) -> dict[str, TaskRecord]:
    records = draft.records()
    for name, call in draft.calls.items():
        if len(call.template) <= INLINE_ARGS:
            records[name] = replace(records[name], args=call.template)
        else:
            records[name] = replace(records[name], args_at=place.blobs.write(draft.id, call.template))
    return records


def _write(place: Place, edits: list[Edit]) -> None:
    flying: list[tuple[Edit, Future[Committed]]] = []
    with place.store.pipeline() as pipeline:
        for edit in edits:
            if len(flying) >= _IN_FLIGHT:
                _settle(place, *flying.pop(0))
            flying.append((edit, pipeline.commit(edit.checks, edit.ops)))
        while flying:
            _settle(place, *flying.pop(0))


def _settle(place: Place, edit: Edit, future: Future[Committed]) -> None:
    try:
        future.result()
    except OutcomeUnknown:  # the same once more, whether it has landed or not: nobody else writes these keys
        place.store.commit(edit.checks, [_overwriting(op) for op in edit.ops])


def _overwriting(op: Op) -> Op:
    return Put(op.key, op.value) if isinstance(op, Create) else op


def _start(place: Place, plan_id: str) -> None:
    while True:
        entry = place.store.get(place.keys.plan(plan_id))
        if entry is None:
            raise Conflict(f"plan {plan_id!r} was removed while it was written; start it again")
        plan = PlanRecord.of(entry.value)
        if plan.state is not PlanState.DRAFT:
            return
        edit = place.edges.started(plan_id, entry, plan, now_ms())
        try:
            place.store.commit(edit.checks, edit.ops)
        except OutcomeUnknown:
            continue
        return


def _drop(place: Place, plan_id: str) -> None:
    """Delete what was written of a draft, if that is possible now; else it is swept."""
    try:
        entry = place.store.get(place.keys.plan(plan_id))
        if entry is None or PlanRecord.of(entry.value).state is not PlanState.DRAFT:
            return
        for prefix in place.keys.everything(plan_id):
            place.store.delete_tree(prefix)
        place.store.delete(entry.key, version=entry.version)
    except LatchworkError:
        return
