"""Builders of plans: function calls and their dependencies, collected before the plan is started. No I/O.

A task may return a child plan instead of a value. The child plan then runs, and one of its results becomes the value of
the task. Meanwhile the task occupies no worker and no slot.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from msgspec.structs import replace

from latchwork._base.validation import is_number
from latchwork.errors import ValueTooLarge
from latchwork.plans.errors import DuplicateTask, ForeignRef, WrongState
from latchwork.plans.keys import MAX_TASK_NAME, check_id, format_default_task_name
from latchwork.plans.records import MAX_NAMES_BYTES, PlanRecord, PlanState, TaskRecord, TaskState
from latchwork.plans.transitions import MAX_LINKED
from latchwork.tasks import (
    DEFAULT,
    BadPayload,
    Codec,
    DeferredResult,
    Functions,
    Payloads,
    Placeholder,
    RegisteredFunction,
    Retry,
    StoredRetry,
    encode_template,
    find_placeholders,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

H = TypeVar("H")
#: Highest allowed `max_parallel`.
MAX_PARALLEL = 1_000

#: Maximum nesting depth of plans.
MAX_DEPTH = 50
_WHAT = "a child plan"


@dataclass(frozen=True, slots=True)
class Ref(Placeholder):
    """A reference to a task of a plan. Passed as an argument of another task, it is replaced by the result of its task.

    Attributes:
        name: Name of the task.
        plan: ID of its plan.
    """

    plan: str = ""


@dataclass(frozen=True)
class PlanCall:
    """A validated call of a function that is not yet part of a plan.

    Attributes:
        registered: The function.
        template: Its encoded arguments.
        args_from: Names of the tasks whose results are arguments, in order of declaration.
        deps: Names of all tasks that it depends on, including those without a used result.
        retry: Retry policy of the task.
        timeout_s: Seconds after which an execution is stopped; None for no limit.
    """

    registered: RegisteredFunction
    template: bytes
    args_from: tuple[str, ...]
    deps: tuple[str, ...]
    retry: Retry
    timeout_s: float | None

    def to_record(self, number: int) -> TaskRecord:
        """Return the stored record of the task, without its arguments.

        Args:
            number: Position of the task in the plan, from 0.
        """
        return TaskRecord(
            TaskState.WAITING,
            number,
            self.registered.name,
            self.deps,
            self.args_from,
            retry=StoredRetry.from_retry(self.retry),
            timeout_s=self.timeout_s,
        )


@dataclass(frozen=True)
class PlanOptions:
    """Options of a whole plan; see ``Plans.new``."""

    title: str = ""
    on_failure: Literal["stop", "continue"] = "stop"
    priority: int = 5
    keep_results_s: float | None = None
    max_parallel: int | None = None
    keep_s: float | None = None

    def __post_init__(self) -> None:
        given: object = self.priority
        if self.on_failure not in ("stop", "continue"):
            raise ValueError(f"on_failure must be 'stop' or 'continue', not {self.on_failure!r}")
        if type(given) is not int or not 0 <= given <= 9:
            raise ValueError(f"priority must be a whole number from 0 to 9, not {given!r}")
        for name, seconds in (("keep_results_s", self.keep_results_s), ("keep_s", self.keep_s)):
            if seconds is not None and not is_number(seconds, 0.0):
                raise ValueError(f"{name} must be None or a number of seconds, not {seconds!r}")
        most: object = self.max_parallel
        if most is not None and (type(most) is not int or not 1 <= most <= MAX_PARALLEL):
            raise ValueError(f"max_parallel must be None or a whole number from 1 to {MAX_PARALLEL:,}, not {most!r}")
        title: object = self.title
        if not isinstance(title, str) or len(title) > 200 or not title.isprintable():
            raise ValueError(f"the name of a plan must be up to 200 printable characters, not {str(title)[:80]!r}")


def build_call(
    functions: Functions,
    payloads: Payloads,
    fn: Callable[..., Any] | str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    explain_invalid: Callable[[Ref], str],
    after: Iterable[Ref] = (),
    retry: Retry | None = None,
    timeout_s: float | None = None,
) -> PlanCall:
    """Validate a call and return it in the form in which a plan stores it.

    Checks the function, the arguments and the dependencies.

    Args:
        functions: Registry of functions.
        payloads: Encodes the arguments.
        fn: Function or its name.
        args: Positional arguments; a ``Ref`` stands for a result.
        kwargs: Keyword arguments.
        explain_invalid: Returns why a ``Ref`` cannot be used in this plan, or an empty string if it can.
        after: Tasks that must be done first, without using their results.
        retry: Retry policy; None uses that of the function.
        timeout_s: Timeout in seconds; None uses that of the function.
    Returns:
        The validated call with its encoded arguments.
    Raises:
        UnknownFunction, TypeError, NotSerializable, PayloadTooLarge: The call is invalid.
        ForeignRef: References are invalid in this plan; the message names all of them.
        ValueError: An option is invalid.
    """
    registered = functions.resolve(fn)
    if timeout_s is not None and not (is_number(timeout_s, 0.0) and timeout_s > 0.0):
        raise ValueError(f"timeout_s of {registered.name!r} must be None or seconds above 0, not {timeout_s!r}")
    used = [*find_placeholders(list(args)), *find_placeholders(kwargs)]
    ordered_after = [after] if isinstance(after, Placeholder) else list(after)
    problems = [_explain_invalid_ref(ref, explain_invalid) for ref in (*used, *ordered_after)]
    if any(problems):
        raise ForeignRef(f"call of {registered.name!r}: " + "; ".join(dict.fromkeys(filter(None, problems))))
    results = tuple(dict.fromkeys(ref.name for ref in used))
    deps = tuple(dict.fromkeys((*results, *(ref.name for ref in ordered_after))))
    template = encode_template(payloads, registered, args, kwargs)
    return PlanCall(
        registered,
        template,
        results,
        deps,
        retry if retry is not None else registered.retry,
        timeout_s if timeout_s is not None else registered.timeout_s,
    )


def _explain_invalid_ref(ref: object, explain_invalid: Callable[[Ref], str]) -> str:
    if not isinstance(ref, Ref):
        return f"{ref!r} is not a Ref; pass the return value of add()"
    return explain_invalid(ref)


@dataclass
class PlanDraft:
    """A plan under construction: its options, and its calls by task name, in the order in which they were added.

    A task can depend only on earlier tasks, so there are no cycles.
    """

    id: str
    options: PlanOptions
    calls: dict[str, PlanCall] = field(default_factory=dict)
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)

    def build_records(self) -> dict[str, TaskRecord]:
        """Return the initial record of each task by name, including its arguments of any size.

        Raises:
            ValueTooLarge: A task has more dependencies and successors than its record holds.
        """
        after: dict[str, list[tuple[str, str]]] = {name: [] for name in self.calls}
        numbers = {name: number for number, name in enumerate(self.calls)}
        for name, call in self.calls.items():
            last = sorted(call.deps, key=numbers.__getitem__)[-2:]
            for dep in call.deps:
                late = next((each for each in reversed(last) if each != dep), "")
                after[dep].append((name, late))
        for name, call in self.calls.items():
            _check_names_fit(name, call.deps, [each for each, _ in after[name]])
        return {
            name: replace(
                call.to_record(numbers[name]),
                successors=tuple(each for each, _ in after[name]),
                late=tuple(late for _, late in after[name]) if len(after[name]) <= MAX_LINKED else (),
                args=call.template,
            )
            for name, call in self.calls.items()
        }


def _check_names_fit(task: str, deps: Sequence[str], successors: Sequence[str]) -> None:
    """Check that the names of a task's dependencies and successors fit into its record.

    Raises:
        ValueTooLarge: They do not fit.
    """
    size = sum(map(len, deps)) + sum(map(len, successors)) + 4 * (len(deps) + len(successors))
    if size > MAX_NAMES_BYTES:
        raise ValueTooLarge(
            f"task {task!r} has {len(deps):,} dependencies and {len(successors):,} successors. Their names take "
            f"{size:,} bytes, but its record holds {MAX_NAMES_BYTES:,}; add intermediate tasks, or use shorter names"
        )


class PlanBuilder(Generic[H]):
    """Builds a plan: ``with plans.new("week 47") as plan: plan.add(load, "mon")``.

    The end of the ``with`` block starts the plan. After an exception nothing is stored. Not thread-safe.

    Attributes:
        id: ID of the plan.
        handle: Handle of the started plan.
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
        """The handle of the started plan.

        Raises:
            WrongState: The plan was not started.
        """
        if self._handle is None:
            raise WrongState(f"plan {self.id!r} was not started; call start() or leave its with block")
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
        """Add a task that calls a function. Does no I/O.

        A ``Ref`` among the arguments, also inside lists and dictionaries, is a dependency, and is replaced by that
        task's result. There are no cycles, because a task can only depend on tasks that were added before it.

        Args:
            fn: Registered function or its name.
            args: Positional arguments.
            name: Name of the task, unique in the plan: up to 50 letters, digits and ``. _ - + : , % =``. None generates
                one.
            after: Tasks that must be done before, without using their results.
            retry: Retry policy; None uses that of the function.
            timeout_s: Seconds after which an execution is stopped; None uses the timeout of the function.
            kwargs: Keyword arguments. Arguments named ``name``, ``after``, ``retry`` or ``timeout_s`` must be
                positional.
        Returns:
            A reference to the task.
        Raises:
            UnknownFunction: The function is not registered.
            TypeError: The function does not accept these arguments.
            NotSerializable: An argument cannot be stored; the message names it.
            ForeignRef: A ``Ref`` belongs to another plan.
            DuplicateTask: The plan has a task with this name.
            InvalidKey: The name is invalid.
            WrongState: The plan was started; add tasks with its handle.
        """
        self._check_open()
        call = build_call(
            self._functions,
            self._payloads,
            fn,
            args,
            kwargs,
            explain_invalid=self._explain_foreign,
            after=after,
            retry=retry,
            timeout_s=timeout_s,
        )
        return self._insert(name, call)

    def map(self, fn: Callable[..., Any] | str, items: Iterable[Any], **options: Any) -> list[Ref]:
        """Add one task for each item, which is the only argument of its call. Adds all or none.

        Args:
            fn: Registered function or its name.
            items: The arguments, one per task.
            options: Options for each ``add``.
        Returns:
            One reference per item, in order.
        """
        self._check_open()
        kept = dict(self._draft.calls)
        try:
            return [self.add(fn, each, **options) for each in items]
        except BaseException:
            self._draft.calls = kept
            raise

    def start(self) -> H:
        """Store and start the plan. Idempotent.

        Raises:
            Unavailable, OutcomeUnknown: Either no task runs or the whole plan is stored. Call it again.
            ValueTooLarge: A task has more dependencies and successors than its record holds: 10,000 of the longest
                names, and several times as many short ones.
            WrongState: Another plan has its ID.
        """
        if self._handle is None:
            self._handle = self._start(self._draft)
        return self._handle

    def _check_open(self) -> None:
        if self._handle is not None:
            raise WrongState(f"plan {self.id!r} was already started; add more tasks with its handle")

    def _explain_foreign(self, ref: Ref) -> str:
        if ref.plan != self.id:
            return f"task {ref.name!r} belongs to plan {ref.plan!r}, not to {self.id!r}"
        return "" if ref.name in self._draft.calls else f"this plan has no task {ref.name!r}"

    def _insert(self, name: str | None, call: PlanCall) -> Ref:
        number = len(self._draft.calls)
        given = generate_task_name(number, self._draft.calls.__contains__) if name is None else check_task_name(name)
        if given in self._draft.calls:
            raise DuplicateTask(f"plan {self.id!r} already has a task {given!r}; use another name")
        self._draft.calls[given] = call
        return Ref(given, self.id)


def check_task_name(name: str) -> str:
    """Return the name of a task after validating it.

    Raises:
        InvalidKey: The name is invalid. The message says why.
    """
    return check_id(name, "the name of a task", MAX_TASK_NAME)


def generate_task_name(number: int, is_taken: Callable[[str], bool]) -> str:
    """Generate a task name that is not taken.

    Args:
        number: Position of the task in the plan; the first name that is tried contains it.
        is_taken: Returns whether a name is in use.
    """
    while is_taken(format_default_task_name(number)):
        number += 1
    return format_default_task_name(number)


class ChildPlan(PlanBuilder[None], DeferredResult):
    """A plan that a task returns. It starts when the task ends, and one of its results becomes the task's result.

    Created by ``child_plan``. Not thread-safe.
    """

    def __init__(self, draft: PlanDraft, functions: Functions, payloads: Payloads) -> None:
        super().__init__(draft, functions, payloads, _refuse)
        self._result_task = ""

    def __exit__(self, *_: object) -> None:
        """Do nothing: the plan starts when the task returns it."""

    def with_result(self, task: Ref) -> ChildPlan:
        """Choose the task whose result becomes the value of this plan.

        Returns:
            This plan, so that a task can end with ``return plan.with_result(total)``.
        Raises:
            ForeignRef: The task belongs to another plan.
        """
        given: object = task
        problem = (
            self._explain_foreign(task)
            if isinstance(given, Ref)
            else f"{given!r} is not a Ref; pass the return value of add()"
        )
        if problem:
            raise ForeignRef(f"the value of a child plan: {problem}")
        self._result_task = task.name
        return self

    def to_bytes(self) -> bytes:
        """Encode the plan for the worker that will start it.

        Raises:
            PayloadTooLarge: The plan is larger than a payload may be.
        """
        options = self._draft.options
        tasks = [[name, task.to_bytes()] for name, task in self._draft.build_records().items()]
        limits = [options.priority, options.keep_results_s, options.max_parallel]
        return Payloads().encode([options.title, options.on_failure, limits, self._result_task, tasks], _WHAT)


def _refuse(draft: PlanDraft) -> None:
    raise WrongState(f"child plan {draft.id!r} cannot be started here; return it from the task")


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
    """Create a builder for a plan that a task returns instead of a value. Does no I/O.

    The plan starts when the task returns it. While it runs, the task occupies no worker and no slot. The value of the
    task is then the result chosen by ``with_result``, or None. If the child plan fails or is canceled, the task fails.
    Recovering the outer plan also recovers the child plan, without calling the task again. Canceling or removing the
    outer plan also applies to the child plan. The task is retried only if it raises an exception before it returns the
    plan.

    Args:
        name: Display name.
        on_failure: As for ``Plans.new``.
        priority: As for ``Plans.new``.
        keep_results_s: As for ``Plans.new``.
        max_parallel: As for ``Plans.new``.
        functions: Functions that tasks may call.
        codec: Codec of the outer plan.
    Raises:
        ValueError: An option is invalid.
    """
    options = PlanOptions(name, on_failure, priority, keep_results_s, max_parallel)
    return ChildPlan(PlanDraft(uuid.uuid4().hex[:16], options), functions, Payloads(codec))


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A decoded child plan: its record, and the records of its tasks by name."""

    plan: PlanRecord
    tasks: dict[str, TaskRecord]


def decode_child_plan(data: bytes, parent: tuple[str, str], depth: int) -> ChildSpec:
    """Decode a child plan that a task has returned.

    Args:
        data: The encoded child plan.
        parent: ID of the plan and name of the task that returned it.
        depth: Nesting depth of the child plan.
    Raises:
        BadPayload, BadRecord, ValueError: The data is not a valid child plan.
    """
    match Payloads().decode(data, Any, _WHAT):
        case [str(title), on_failure, [priority, keep_s, most], str(result_task), list(tasks)]:
            pass
        case _:
            raise BadPayload(f"the result of a task is not {_WHAT}")
    if depth > MAX_DEPTH:
        raise BadPayload(f"plans can be nested {MAX_DEPTH} levels deep, but this one is at level {depth}")
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
    return ChildSpec(plan, {name: TaskRecord.from_bytes(record) for name, record in tasks})
