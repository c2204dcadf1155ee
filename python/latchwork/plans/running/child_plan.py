"""What a task returns to have a plan run before its value comes: a child plan. Nothing here does I/O.

The task has no worker and no slot while its child runs.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Literal

from latchwork.plans.builder import Draft, Options, PlanBuilder, Ref
from latchwork.plans.errors import ForeignRef, WrongState
from latchwork.plans.records import PlanRecord, PlanState, TaskRecord
from latchwork.tasks import DEFAULT, BadPayload, Codec, Functions, Instead, Payloads

#: Plans are nested so deep at most.
MOST_DEPTH = 50
_WHAT = "a child plan"


class ChildPlan(PlanBuilder[None], Instead):
    """A plan that a task returns: it is started when the task ends, and the task's value is that of one of its tasks.

    Made by ``child_plan``. One thread only.
    """

    def __init__(self, draft: Draft, functions: Functions, payloads: Payloads) -> None:
        super().__init__(draft, functions, payloads, _refuse)
        self._gives = ""

    def __exit__(self, *_: object) -> None:
        """It starts when the task returns it, and not here."""

    def giving(self, task: Ref) -> ChildPlan:
        """Itself, with the task whose result is the value: ``return plan.giving(total)``.

        Raises:
            ForeignRef: the task is of another plan.
        """
        given: object = task
        problem = self._why_not(task) if isinstance(given, Ref) else f"{given!r} is no Ref: give what add() returned"
        if problem:
            raise ForeignRef(f"the value of a child plan: {problem}")
        self._gives = task.name
        return self

    def to_bytes(self) -> bytes:
        """As the worker reads it.

        Raises:
            PayloadTooLarge: all of it together is more than a payload may be.
        """
        options = self._draft.options
        tasks = [[name, task.to_bytes()] for name, task in self._draft.records().items()]
        limits = [options.priority, options.keep_results_s, options.max_parallel]
        return Payloads().encode([options.title, options.on_failure, limits, self._gives, tasks], _WHAT)


def _refuse(draft: Draft) -> None:
    raise WrongState(f"child plan {draft.id!r} starts when its task returns it: return it")


def child_plan(
    name: str = "",
    *,
    on_failure: Literal["stop", "continue"] = "stop",
    priority: int = 5,
    keep_results_s: float | None = None,
    max_parallel: int | None = None,
    functions: Functions = DEFAULT,
    codec: Codec | None = None,
) -> ChildPlan:
    """Begin to build a plan that a task returns instead of a value. Does no I/O.

    Once the task has returned it the plan runs, and the task waits for its end without a worker or a slot. Its value is
    then that of the task named by ``giving``, or None. When the child fails or is cancelled, the task has failed; a
    recover of the outer plan recovers the child, without another call of the task. Cancel and removal go on to the
    child. Such a task is tried again only if it raises before it returns.

    Args:
        name: for people.
        on_failure: as for ``Plans.new``.
        priority: likewise.
        keep_results_s: likewise.
        max_parallel: likewise.
        functions: what may be called.
        codec: as of the outer plan.
    Raises:
        ValueError: of an option.
    """
    options = Options(name, on_failure, priority, keep_results_s, max_parallel)
    return ChildPlan(Draft(uuid.uuid4().hex[:16], options), functions, Payloads(codec))


@dataclass(frozen=True, slots=True)
class Spec:
    """A child plan that was read."""

    plan: PlanRecord
    tasks: dict[str, TaskRecord]


def read_spec(data: bytes, parent: tuple[str, str], depth: int) -> Spec:
    """The child plan in bytes.

    Raises:
        BadPayload, BadRecord, ValueError: there is none, or one that cannot be.
    """
    match Payloads().decode(data, Any, _WHAT):
        case [str(title), on_failure, [priority, keep_s, most], str(gives), list(tasks)]:
            pass
        case _:
            raise BadPayload(f"what a task returned is not {_WHAT}")
    if depth > MOST_DEPTH:
        raise BadPayload(f"plans are nested {MOST_DEPTH} deep at most, and this one would be at {depth}")
    checked: Any = Options(title, on_failure, priority, keep_s, most)
    plan = PlanRecord(
        PlanState.DRAFT,
        title=checked.title,
        on_failure=checked.on_failure,
        priority=checked.priority,
        keep_results_s=checked.keep_results_s,
        max_parallel=checked.max_parallel,
        tasks=len(tasks),
        parent=parent,
        depth=depth,
        gives=gives,
        nonce=uuid.uuid4().hex,
    )
    return Spec(plan, {name: TaskRecord.of(record) for name, record in tasks})
