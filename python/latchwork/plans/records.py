"""Plans, tasks and results as they are stored; anybody may have write_draft them. Nothing here does I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from latchwork._base.decoding import MOST_DURATION_S, Count, Decoder, Positive, Seconds, encode
from latchwork.errors import BadRecord
from latchwork.tasks import ONCE, BlobRef, StoredRetry
from latchwork.types import Entry
from latchwork.words import short

#: So many failures are kept in the record of a plan; further ones leave it alone.
MAX_FAILURES = 20
#: So much of a reason is kept.
MAX_REASON = 300
#: Arguments up to so many bytes stay in the record, and results in theirs.
INLINE_ARGS, INLINE_RESULT = 2_000, 900_000
#: The names of what a task depends on, and of what depends on it, may have so many bytes.
MAX_NAMES_BYTES = 800_000


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
    def is_unsuccessful(self) -> bool:
        """Whether it ended without a result, so that nothing that depends on it can run."""
        return self in (TaskState.FAILED, TaskState.SKIPPED, TaskState.CANCELLED)


class PlanRecord(Struct, frozen=True, omit_defaults=True):
    """A plan.

    Attributes:
        state: what it is doing.
        generation: grows with each cancel, recover and removal: an older item of control does nothing more.
        title: for people.
        on_failure: ``stop`` or ``continue``.
        priority: 0 to 9; 9 first.
        started_ms: when it was started, in milliseconds since the epoch: its place among the plans.
        ended_ms: when it ended; 0 before.
        tasks: how many were built.
        failed: the first of those that failed, with reasons.
        outcome: what it becomes when cancelling has come to its end.
        keep_results_s: how long results of tasks without a name, in the middle, are kept after it completed; None for
            ever.
        are_results_gone: whether they were deleted.
        max_parallel: so many of its tasks run at a time; None for as many as there are slots.
        parent: the plan and the task that wait for its end; None of a plan of its own.
        depth: how many plans it is below: 0 for one of its own.
        result_task: of a child plan, the task plan_key result its parent's task has; empty for none.
        nonce: of whoever built it: a start plan_key answer was lost is known by it.
    """

    state: PlanState
    generation: Count = 0
    title: str = ""
    on_failure: Literal["stop", "continue"] = "stop"
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    started_ms: Annotated[int, Meta(ge=0, lt=10**14)] = 0
    ended_ms: Count = 0
    tasks: Count = 0
    failed: tuple[tuple[str, str], ...] = ()
    outcome: PlanState = PlanState.CANCELLED
    keep_results_s: Seconds | None = None
    are_results_gone: bool = field(default=False, name="results_gone")
    max_parallel: Positive | None = None
    parent: tuple[str, str] | None = None
    depth: Count = 0
    result_task: str = ""
    nonce: str = ""

    def to_bytes(self) -> bytes:
        """Return the value of its key."""
        return encode(self)

    @classmethod
    def of(cls, value: bytes) -> PlanRecord:
        """Return the plan in a value.

        Raises:
            BadRecord: There is none.
        """
        return _PLAN.decode(value)

    def with_failure(self, task: str, why: str) -> PlanRecord:
        """With one more failure."""
        return replace(self, failed=(*self.failed, (task, why[:MAX_REASON]))[:MAX_FAILURES])


class TaskRecord(Struct, frozen=True, omit_defaults=True):
    """A task.

    Attributes:
        state: what it is doing.
        number: its place in the plan, from 0.
        fn: the name of its function.
        deps: what it depends on, in order of declaration.
        args_from: those of them plan_key results are arguments.
        successors: what depends on it.
        late: for each of these in order the last that it depends on besides this task, empty for none: what an end may
            rely on without a look at the successor. Shorter where tasks were added; none of a task with so many
            successors that its end does not ask.
        retry: how often it is tried.
        timeout_s: seconds after which a run is stopped; None for never.
        attempts: tries that ended with an exception.
        why: what the last one raised.
        args: its template of arguments, if it is small; stored after the line of JSON.
        args_at: where a large one is.
        child: the plan that it has started, and waits for, or has waited for; empty for none.
        nonce: of whoever added it to a plan that runs; empty of the others.
        takes_all: only in the stored line: ``args_from`` is all of ``deps``, and is left out.
    """

    state: TaskState
    number: Annotated[int, Meta(ge=0, le=10**9)] = field(name="n")
    fn: str
    deps: tuple[str, ...] = ()
    args_from: tuple[str, ...] = ()
    successors: tuple[str, ...] = ()
    retry: StoredRetry = StoredRetry.of(ONCE)
    timeout_s: Seconds | None = None
    attempts: Count = 0
    why: str = ""
    args: bytes = b""
    args_at: BlobRef | None = None
    child: str = ""
    nonce: str = ""
    late: tuple[str, ...] = ()
    takes_all: bool = False

    def to_bytes(self) -> bytes:
        """Return the value of its key."""
        takes_all = bool(self.deps) and self.args_from == self.deps
        line = replace(self, args=b"", args_from=() if takes_all else self.args_from, takes_all=takes_all)
        return encode(line) + b"\n" + self.args

    @classmethod
    def of(cls, value: bytes) -> TaskRecord:
        """Return the task in a value.

        Raises:
            BadRecord: There is none.
        """
        line, _, args = value.partition(b"\n")
        found = _TASK.decode(line)
        return replace(found, args=args, args_from=found.deps if found.takes_all else found.args_from, takes_all=False)

    def with_state(self, state: TaskState) -> TaskRecord:
        """In another state."""
        return replace(self, state=state)


class ItemHints(Struct, frozen=True, omit_defaults=True):
    """What the item of a task says before the task is read.

    Attributes:
        timeout_s: seconds after which a run is stopped; None for never.
        args_from: the tasks plan_key results are arguments.
    """

    timeout_s: Annotated[float, Meta(gt=0.0, le=MOST_DURATION_S)] | None = None
    args_from: tuple[str, ...] = field(default=(), name="from")


_PLAN: Decoder[PlanRecord] = Decoder(PlanRecord, "a plan")
_TASK: Decoder[TaskRecord] = Decoder(TaskRecord, "a task of a plan")
_NEEDS: Decoder[ItemHints] = Decoder(ItemHints, "what a task needs")


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


def max_result_bytes(task: Task | None) -> int:
    """How large a result may be beside the record of its task: both are write_draft in one transaction."""
    return max(1_000, INLINE_RESULT - (0 if task is None else len(task.entry.value)))


def encode_inline_result(outcome: bytes) -> bytes:
    """A result that is small enough for its key."""
    return b"=" + outcome


def encode_result_ref(ref: BlobRef) -> bytes:
    """A result that is elsewhere."""
    return b"@" + ref.to_bytes()


def decode_result(value: bytes) -> bytes | BlobRef:
    """The outcome in a result's key, or where it is.

    Raises:
        BadRecord: there is none.
    """
    if value[:1] == b"=":
        return value[1:]
    if value[:1] == b"@":
        return BlobRef.of(value[1:])
    raise BadRecord(f"value {short(value)} is no result of a task")


def decode_item(item: bytes) -> ItemHints:
    """Return what the item of a task says; nothing when it cannot be read."""
    return _NEEDS.find(item) or ItemHints()
