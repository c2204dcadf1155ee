"""Plans, tasks and results as they are stored; anybody may have written them. Nothing here does I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from latchwork.errors import BadRecord
from latchwork.records import Record, read_json, short
from latchwork.tasks import BlobRef, Retry
from latchwork.types import Entry

#: So many failures are kept in the record of a plan; further ones leave it alone.
MOST_FAILED = 20
#: So much of a reason is kept.
MOST_WHY = 300
#: With more dependencies than this those whose results are arguments are not written a second time, if they are all.
MANY_DEPS = 100
#: Arguments up to so many bytes stay in the record, and results in theirs.
INLINE_ARGS, INLINE_RESULT = 2_000, 900_000
#: The names of what a task depends on, and of what depends on it, may have so many bytes.
MOST_NAMES = 800_000


class PlanState(StrEnum):
    """What a plan is doing."""

    DRAFT = "draft"
    READY = "ready"
    CANCELLING = "cancelling"
    RECOVERING = "recovering"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REMOVING = "removing"

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens by itself."""
        return self in (PlanState.COMPLETED, PlanState.FAILED, PlanState.CANCELLED)


class TaskState(StrEnum):
    """What a task is doing. That it runs is a claim, and no state; ``child`` waits for the end of its child plan."""

    WAITING = "waiting"
    READY = "ready"
    CHILD = "child"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self in (TaskState.WAITING, TaskState.READY, TaskState.CHILD)

    @property
    def is_lost(self) -> bool:
        """Whether it ended without a result, so that nothing that depends on it can run."""
        return self in (TaskState.FAILED, TaskState.SKIPPED, TaskState.CANCELLED)


@dataclass(frozen=True)
class PlanRecord:
    """A plan.

    Attributes:
        state: what it is doing.
        turn: grows with each cancel, recover and removal: an older item of control does nothing more.
        title: for people.
        on_failure: ``stop`` or ``continue``.
        priority: 0 to 9; 9 first.
        started_ms: when it was started, in milliseconds since the epoch: its place among the plans.
        ended_ms: when it ended; 0 before.
        tasks: how many were built.
        failed: the first of those that failed, with reasons.
        failures: whether any failed since it was started or recovered.
        outcome: what it becomes when cancelling has come to its end.
        keep_results_s: how long results of tasks without a name, in the middle, are kept after it completed; None for
            ever.
        are_results_gone: whether they were deleted.
        max_parallel: so many of its tasks run at a time; None for as many as there are slots.
        parent: the plan and the task that wait for its end; None of a plan of its own.
        depth: how many plans it is below: 0 for one of its own.
        gives: of a child plan, the task whose result its parent's task has; empty for none.
        nonce: of whoever built it: a start whose answer was lost is known by it.
    """

    state: PlanState
    turn: int = 0
    title: str = ""
    on_failure: str = "stop"
    priority: int = 5
    started_ms: int = 0
    ended_ms: int = 0
    tasks: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    outcome: PlanState = PlanState.CANCELLED
    keep_results_s: float | None = None
    are_results_gone: bool = False
    max_parallel: int | None = None
    parent: tuple[str, str] | None = None
    depth: int = 0
    gives: str = ""
    nonce: str = ""

    def to_bytes(self) -> bytes:
        """As it is stored."""
        body = {
            "state": self.state.value,
            "turn": self.turn,
            "title": self.title,
            "on_failure": self.on_failure,
            "priority": self.priority,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "tasks": self.tasks,
            "failed": [{"task": task, "why": why} for task, why in self.failed],
            "outcome": self.outcome.value,
            "keep_results_s": self.keep_results_s,
            "results_gone": int(self.are_results_gone),
            "max_parallel": self.max_parallel,
            "parent": self.parent,
            "depth": self.depth,
            "gives": self.gives,
            "nonce": self.nonce,
        }
        return json.dumps(body).encode()

    @classmethod
    def of(cls, value: bytes) -> PlanRecord:
        """The plan in a value.

        Raises:
            BadRecord: there is none.
        """
        found = Record.of(value)
        return cls(
            state=_state(PlanState, found.text("state")),
            turn=found.whole("turn", 0, least=0),
            title=found.text("title", ""),
            on_failure="continue" if found.text("on_failure", "stop") == "continue" else "stop",
            priority=found.whole("priority", 5, least=0, most=9),
            started_ms=found.whole("started_ms", 0, least=0, most=10**14 - 1),
            ended_ms=found.whole("ended_ms", 0, least=0),
            tasks=found.whole("tasks", 0, least=0),
            failed=tuple((each.text("task", ""), each.text("why", "")) for each in found.parts("failed")),
            outcome=_state(PlanState, found.text("outcome", PlanState.CANCELLED.value)),
            keep_results_s=found.duration_s("keep_results_s") if found.has("keep_results_s") else None,
            are_results_gone=found.whole("results_gone", 0) == 1,
            max_parallel=found.whole("max_parallel", least=1) if found.has("max_parallel") else None,
            parent=_parent(found.texts("parent", ())),
            depth=found.whole("depth", 0, least=0),
            gives=found.text("gives", ""),
            nonce=found.text("nonce", ""),
        )

    def with_failure(self, task: str, why: str) -> PlanRecord:
        """With one more failure."""
        return replace(self, failed=(*self.failed, (task, why[:MOST_WHY]))[:MOST_FAILED])


@dataclass(frozen=True)
class TaskRecord:
    """A task.

    Attributes:
        state: what it is doing.
        number: its place in the plan, from 0.
        fn: the name of its function.
        deps: what it depends on, in order of declaration.
        args_from: those of them whose results are arguments.
        succ: what depends on it.
        late: for each of these in order the last that it depends on besides this task, empty for none: what an end may
            rely on without a look at the successor. Shorter where tasks were added; none of a task with so many
            successors that its end does not ask.
        retry: how often it is tried.
        retry_on: classes of exceptions that are tried again, as ``module:name``: none is looked up by that.
        timeout_s: seconds after which a run is stopped; None for never.
        attempts: tries that ended with an exception.
        why: what the last one raised.
        args: its template of arguments, if it is small.
        args_at: where a large one is.
        child: the plan that it has started, and waits for, or has waited for; empty for none.
        nonce: of whoever added it to a plan that runs; empty of the others.
    """

    state: TaskState
    number: int
    fn: str
    deps: tuple[str, ...] = ()
    args_from: tuple[str, ...] = ()
    succ: tuple[str, ...] = ()
    retry: Retry = field(default_factory=Retry)
    timeout_s: float | None = None
    retry_on: tuple[str, ...] = ("builtins:Exception",)
    attempts: int = 0
    why: str = ""
    args: bytes = b""
    args_at: BlobRef | None = None
    child: str = ""
    nonce: str = ""
    late: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """As it is stored."""
        body: dict[str, Any] = {
            "state": self.state.value,
            "n": self.number,
            "fn": self.fn,
            "deps": self.deps,
            "args_from": self.args_from,
            "succ": self.succ,
            "attempts": self.attempts,
            "why": self.why,
            "timeout_s": self.timeout_s,
            "retry": retry_body(self.retry),
            "retry_on": self.retry_on,
        }
        if len(self.deps) > MANY_DEPS and self.args_from == self.deps:
            del body["args_from"]
        more = (("child", self.child), ("nonce", self.nonce), ("late", self.late))
        body |= {name: value for name, value in more if value}
        if self.args_at is not None:
            body["args_at"] = self.args_at.to_record()
        return json.dumps(body).encode() + b"\n" + self.args

    @classmethod
    def of(cls, value: bytes) -> TaskRecord:
        """The task in a value.

        Raises:
            BadRecord: there is none.
        """
        head, _, args = value.partition(b"\n")
        found = Record.of(head)
        deps = found.texts("deps", ())
        return cls(
            state=_state(TaskState, found.text("state")),
            number=found.whole("n", least=0, most=10**9),
            fn=found.text("fn"),
            deps=deps,
            args_from=found.texts("args_from", deps if len(deps) > MANY_DEPS else ()),
            succ=found.texts("succ", ()),
            retry=retry_of(Record(found.mapping("retry", {}))),
            timeout_s=found.duration_s("timeout_s") if found.has("timeout_s") else None,
            retry_on=found.texts("retry_on", ("builtins:Exception",)),
            attempts=found.whole("attempts", 0, least=0),
            why=found.text("why", ""),
            args=args,
            child=found.text("child", ""),
            nonce=found.text("nonce", ""),
            late=found.texts("late", ()),
            args_at=BlobRef.of_body(found.mapping("args_at")) if found.has("args_at") else None,
        )

    def now(self, state: TaskState) -> TaskRecord:
        """In another state."""
        return replace(self, state=state)


@dataclass(frozen=True, slots=True)
class Task:
    """A task that was read: its name, its record, and the entry for checks."""

    name: str
    record: TaskRecord
    entry: Entry

    @classmethod
    def of(cls, entry: Entry) -> Task:
        """The task of an entry.

        Raises:
            BadRecord: it is none.
        """
        return cls(entry.key.rpartition("/")[2], TaskRecord.of(entry.value), entry)


def room_for_result(task: Task | None) -> int:
    """How large a result may be beside the record of its task: both are written in one transaction."""
    return max(1_000, INLINE_RESULT - (0 if task is None else len(task.entry.value)))


def retry_body(retry: Retry) -> dict[str, Any]:
    """A retry as a part of a record, without its classes of exceptions."""
    return {
        "attempts": retry.attempts,
        "initial_s": retry.initial_s,
        "increase": retry.increase,
        "max_s": retry.max_s,
        "jitter": retry.jitter,
    }


def retry_of(found: Record) -> Retry:
    """The retry in a record; fields that cannot be used have their defaults."""
    return Retry(
        attempts=found.whole("attempts", 1, least=1),
        initial_s=found.number("initial_s", 0.1, least=0.0, most=1e7),
        increase=found.number("increase", 1.5, least=1.0, most=1e6),
        max_s=found.number("max_s", 10.0, least=0.0, most=1e7),
        jitter=found.number("jitter", 0.1, least=0.0, most=1.0),
    )


def result_value(outcome: bytes) -> bytes:
    """A result that is small enough for its key."""
    return b"=" + outcome


def result_at(ref: BlobRef) -> bytes:
    """A result that is elsewhere."""
    return b"@" + json.dumps(ref.to_record()).encode()


def read_result(value: bytes) -> bytes | BlobRef:
    """The outcome in a result's key, or where it is.

    Raises:
        BadRecord: there is none.
    """
    if value[:1] == b"=":
        return value[1:]
    if value[:1] == b"@":
        body = read_json(value[1:])
        if isinstance(body, dict):
            return BlobRef.of_body(body)
    raise BadRecord(f"value {short(value)} is no result of a task")


def _parent(names: tuple[str, ...]) -> tuple[str, str] | None:
    return (names[0], names[1]) if len(names) == 2 else None


def read_wanted(item: bytes) -> tuple[float | None, tuple[str, ...]]:
    """What the item of a task says before the task is read: its timeout, and the tasks whose results are arguments."""
    found = Record.or_empty(item) if item else Record({})
    timeout_s = found.duration_s("timeout_s", -1.0, least=-1.0)
    return timeout_s if timeout_s > 0.0 else None, found.texts("from", ())


def _state(kind: type[Any], text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise BadRecord(f"{short(text)} is no state; there are {known}") from None
