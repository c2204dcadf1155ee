"""A plan before it is started: calls of functions, and what depends on what. Nothing here does I/O.

A task returns a child plan to have it run before its own value comes. The task has no worker and no slot while its
child runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from msgspec.structs import replace

from latchwork.checks import is_number
from latchwork.errors import ValueTooLarge
from latchwork.plans.errors import DuplicateTask, ForeignRef, WrongState
from latchwork.plans.keys import MAX_TASK_NAME, check_id, task_name
from latchwork.plans.records import MAX_NAMES_BYTES, PlanRecord, PlanState, TaskRecord, TaskState
from latchwork.plans.states import MAX_LINKED
from latchwork.tasks import (
    DEFAULT,
    BadPayload,
    Codec,
    Functions,
    Instead,
    Later,
    Payloads,
    Registered,
    Retry,
    StoredRetry,
    encode_template,
    laters,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

H = TypeVar("H")
#: A limit beyond this is none.
MAX_PARALLEL = 1_000

#: Plans are nested so deep at most.
MAX_DEPTH = 50
_WHAT = "a child plan"


@dataclass(frozen=True, slots=True)
class Ref(Later):
    """A task of a plan: as an argument of another one it stands for the result.

    Attributes:
        name: of the task.
        plan: its plan's id.
    """

    plan: str = ""


@dataclass(frozen=True)
class PlanCall:
    """A call that was checked, before it has a place in a plan.

    Attributes:
        registered: the function.
        template: its arguments.
        args_from: the tasks plan_key results are arguments, in order of declaration.
        deps: these, and those that it only comes after.
    """

    registered: Registered
    template: bytes
    args_from: tuple[str, ...]
    deps: tuple[str, ...]
    retry: Retry
    timeout_s: float | None

    def record(self, number: int, state: TaskState = TaskState.WAITING) -> TaskRecord:
        """The task, without its arguments."""
        return TaskRecord(
            state,
            number,
            self.registered.name,
            self.deps,
            self.args_from,
            retry=StoredRetry.of(self.retry),
            timeout_s=self.timeout_s,
        )


@dataclass(frozen=True)
class PlanOptions:
    """What is set for a whole plan."""

    title: str = ""
    on_failure: Literal["stop", "continue"] = "stop"
    priority: int = 5
    keep_results_s: float | None = None
    max_parallel: int | None = None

    def __post_init__(self) -> None:
        given: object = self.priority
        if self.on_failure not in ("stop", "continue"):
            raise ValueError(f"on_failure must be 'stop' or 'continue', not {self.on_failure!r}")
        if type(given) is not int or not 0 <= given <= 9:
            raise ValueError(f"priority must be a whole number from 0 to 9, not {given!r}")
        if self.keep_results_s is not None and not is_number(self.keep_results_s, 0.0):
            raise ValueError(f"keep_results_s must be None or a number of seconds, not {self.keep_results_s!r}")
        most: object = self.max_parallel
        if most is not None and (type(most) is not int or not 1 <= most <= MAX_PARALLEL):
            raise ValueError(f"max_parallel must be None or a whole number from 1 to {MAX_PARALLEL:,}, not {most!r}")
        title: object = self.title
        if not isinstance(title, str) or len(title) > 200 or not title.isprintable():
            raise ValueError(f"the name of a plan must be up to 200 printable characters, not {str(title)[:80]!r}")


def check_call(
    functions: Functions,
    payloads: Payloads,
    fn: Callable[..., Any] | str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    known: Callable[[Ref], str],
    after: Iterable[Ref] = (),
    retry: Retry | None = None,
    timeout_s: float | None = None,
) -> PlanCall:
    """A call plan_key function, arguments and dependencies can be stored.

    Args:
        functions: where the function is registered.
        payloads: stores the arguments.
        fn: the function, or its name.
        args: positional arguments; a ``Ref`` stands for a result.
        kwargs: the others.
        known: why a ``Ref`` cannot be one of this plan; empty when it can.
        after: what it comes after, without their results.
        retry: None takes that of the function.
        timeout_s: likewise.
    Raises:
        UnknownFunction, TypeError, NotSerializable, PayloadTooLarge: of the call.
        ForeignRef: all those that are not of this plan are named.
        ValueError: of an option.
    """
    registered = functions.of(fn)
    if timeout_s is not None and not (is_number(timeout_s, 0.0) and timeout_s > 0.0):
        raise ValueError(f"timeout_s of {registered.name!r} must be None or seconds above 0, not {timeout_s!r}")
    wanted = [*laters(list(args)), *laters(kwargs)]
    behind = [after] if isinstance(after, Later) else list(after)
    problems = [_problem(ref, known) for ref in (*wanted, *behind)]
    if any(problems):
        raise ForeignRef(f"call of {registered.name!r}: " + "; ".join(dict.fromkeys(filter(None, problems))))
    results = tuple(dict.fromkeys(ref.name for ref in wanted))
    deps = tuple(dict.fromkeys((*results, *(ref.name for ref in behind))))
    template = encode_template(payloads, registered, args, kwargs)
    return PlanCall(
        registered,
        template,
        results,
        deps,
        retry if retry is not None else registered.retry,
        timeout_s if timeout_s is not None else registered.timeout_s,
    )


def _problem(ref: object, known: Callable[[Ref], str]) -> str:
    if not isinstance(ref, Ref):
        return f"{ref!r} is no Ref: give what add() returned"
    return known(ref)


@dataclass
class PlanDraft:
    """What is built: tasks by name, in order; each depends on some before it, so that no cycle can be write_draft."""

    id: str
    options: PlanOptions
    calls: dict[str, PlanCall] = field(default_factory=dict)
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)

    def records(self) -> dict[str, TaskRecord]:
        """The tasks as they are stored at first, with their arguments in them, whatever their size."""
        after: dict[str, list[tuple[str, str]]] = {name: [] for name in self.calls}
        numbers = {name: number for number, name in enumerate(self.calls)}
        for name, call in self.calls.items():
            last = sorted(call.deps, key=numbers.__getitem__)[-2:]
            for dep in call.deps:
                late = next((each for each in reversed(last) if each != dep), "")
                after[dep].append((name, late))
        for name, call in self.calls.items():
            _check_names(name, call.deps, [each for each, _ in after[name]])
        return {
            name: replace(
                call.record(numbers[name]),
                successors=tuple(each for each, _ in after[name]),
                late=tuple(late for _, late in after[name]) if len(after[name]) <= MAX_LINKED else (),
                args=call.template,
            )
            for name, call in self.calls.items()
        }


def _check_names(task: str, deps: Sequence[str], successors: Sequence[str]) -> None:
    """Refuse a task plan_key neighbours' names do not fit into its record."""
    size = sum(map(len, deps)) + sum(map(len, successors)) + 4 * (len(deps) + len(successors))
    if size > MAX_NAMES_BYTES:
        raise ValueTooLarge(
            f"task {task!r} depends on {len(deps):,} tasks, and {len(successors):,} depend on it: their names have {size:,} "
            f"bytes, and {MAX_NAMES_BYTES:,} fit into its record; put tasks in between, or give them shorter names"
        )


class PlanBuilder(Generic[H]):
    """Builds a plan: ``with plans.new("week 47") as plan: plan.add(load, "mon")``.

    The end of the ``with`` starts it; an exception drops it, and nothing was stored. One thread only.

    Attributes:
        id: of the plan.
        handle: the started plan.
    """

    def __init__(
        self, draft: PlanDraft, functions: Functions, payloads: Payloads, start: Callable[[PlanDraft], H]
    ) -> None:
        self.id = draft.id
        self._draft = draft
        self._functions = functions
        self._payloads = payloads
        self._start = start
        self._handle: H | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self.start()

    def __len__(self) -> int:
        return len(self._draft.calls)

    def __repr__(self) -> str:
        return f"<PlanBuilder {self.id!r}, {len(self)} tasks>"

    @property
    def handle(self) -> H:
        """The started plan.

        Raises:
            WrongState: it was not started.
        """
        if self._handle is None:
            raise WrongState(f"plan {self.id!r} was not started; call start(), or leave its with block")
        return self._handle

    def add(
        self,
        fn: Callable[..., Any] | str,
        /,
        *args: Any,
        name: str | None = None,
        after: Iterable[Ref] = (),
        retry: Retry | None = None,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> Ref:
        """Add a call of a function. Does no I/O.

        A ``Ref`` among the arguments, also inside lists and dictionaries, is a dependency, and is replaced by that
        task's result. Cycles cannot be write_draft: a task depends on such as were added before it.

        Args:
            fn: a registered function, or its name.
            args: its arguments, in this order.
            name: of the task, unique in the plan: up to 50 letters, digits and ``. _ - + : , % =``; None makes one.
            after: tasks that have to be done before, without their results.
            retry: how often it is tried; None as the function says.
            timeout_s: seconds after which a run is stopped; None as the function says.
            kwargs: further arguments. Those of these names go by position: ``name``, ``after``, ``retry``,
                ``timeout_s``.
        Returns:
            What stands for the task.
        Raises:
            UnknownFunction: it is not registered.
            TypeError: it does not take these arguments.
            NotSerializable: one of them cannot be stored; the message names it.
            ForeignRef: a ``Ref`` is of another plan.
            DuplicateTask: there is a task of that name.
            InvalidKey: the name cannot be one.
            WrongState: the plan was started; its handle adds tasks then.
        """
        self._check_open()
        call = check_call(
            self._functions,
            self._payloads,
            fn,
            args,
            kwargs,
            known=self._why_not,
            after=after,
            retry=retry,
            timeout_s=timeout_s,
        )
        return self._insert(name, call)

    def map(self, fn: Callable[..., Any] | str, items: Iterable[Any], **options: Any) -> list[Ref]:
        """``add`` for each item as the only argument; one ``Ref`` for each, in order. All of them, or none."""
        self._check_open()
        kept = dict(self._draft.calls)
        try:
            return [self.add(fn, each, **options) for each in items]
        except BaseException:
            self._draft.calls = kept
            raise

    def start(self) -> H:
        """Store the plan and start it; from here on it needs nobody here. Twice is fine.

        Raises:
            Unavailable, OutcomeUnknown: it may not be stored whole; nothing runs, or all is there. Call it again.
            ValueTooLarge: a task has more neighbours than its record holds: 10,000 of the longest names, and several
                times as many of short ones.
            WrongState: another plan has its id.
        """
        if self._handle is None:
            self._handle = self._start(self._draft)
        return self._handle

    def _check_open(self) -> None:
        if self._handle is not None:
            raise WrongState(f"plan {self.id!r} was started; add further tasks with its handle")

    def _why_not(self, ref: Ref) -> str:
        if ref.plan != self.id:
            return f"task {ref.name!r} is of plan {ref.plan!r}, and this is {self.id!r}"
        return "" if ref.name in self._draft.calls else f"this plan has no task {ref.name!r}"

    def _insert(self, name: str | None, call: PlanCall) -> Ref:
        number = len(self._draft.calls)
        given = unused_name(number, self._draft.calls.__contains__) if name is None else check_task(name)
        if given in self._draft.calls:
            raise DuplicateTask(f"plan {self.id!r} has a task {given!r} already; give this one another name")
        self._draft.calls[given] = call
        return Ref(given, self.id)


def check_task(name: str) -> str:
    """A name that a task can have.

    Raises:
        InvalidKey: it cannot; the message says why.
    """
    return check_id(name, "the name of a task", MAX_TASK_NAME)


def unused_name(number: int, is_taken: Callable[[str], bool]) -> str:
    """A name for the task of this number that no task was given."""
    while is_taken(task_name(number)):
        number += 1
    return task_name(number)


class ChildPlan(PlanBuilder[None], Instead):
    """A plan that a task returns: it is started when the task ends, and the task's value is that of one of its tasks.

    Made by ``child_plan``. One thread only.
    """

    def __init__(self, draft: PlanDraft, functions: Functions, payloads: Payloads) -> None:
        super().__init__(draft, functions, payloads, _refuse)
        self._gives = ""

    def __exit__(self, *_: object) -> None:
        """It starts when the task returns it, and not here."""

    def with_result(self, task: Ref) -> ChildPlan:
        """Itself, with the task plan_key result is the value: ``return plan.with_result(total)``.

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


def _refuse(draft: PlanDraft) -> None:
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
    then that of the task named by ``with_result``, or None. When the child fails or is cancelled, the task has failed; a
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
    options = PlanOptions(name, on_failure, priority, keep_results_s, max_parallel)
    return ChildPlan(PlanDraft(uuid.uuid4().hex[:16], options), functions, Payloads(codec))


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A child plan that was read."""

    plan: PlanRecord
    tasks: dict[str, TaskRecord]


def read_spec(data: bytes, parent: tuple[str, str], depth: int) -> ChildSpec:
    """The child plan in bytes.

    Raises:
        BadPayload, BadRecord, ValueError: there is none, or one that cannot be.
    """
    match Payloads().decode(data, Any, _WHAT):
        case [str(title), on_failure, [priority, keep_s, most], str(result_task), list(tasks)]:
            pass
        case _:
            raise BadPayload(f"what a task returned is not {_WHAT}")
    if depth > MAX_DEPTH:
        raise BadPayload(f"plans are nested {MAX_DEPTH} deep at most, and this one would be at {depth}")
    checked: Any = PlanOptions(title, on_failure, priority, keep_s, most)
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
        result_task=result_task,
        nonce=uuid.uuid4().hex,
    )
    return ChildSpec(plan, {name: TaskRecord.of(record) for name, record in tasks})
