"""Stored records of plans, tasks and results, and their encoding. Pure, without I/O."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from latchwork._base.decoding import MAX_DURATION_S, Count, Decoder, Positive, Record, Seconds, encode
from latchwork._base.text import short
from latchwork.errors import BadRecord
from latchwork.tasks import ONCE, BlobRef, StoredRetry
from latchwork.types import Entry

#: Number of failures that are kept in a plan's record.
MAX_FAILURES = 20
#: Number of characters that are kept of a reason.
MAX_REASON = 300
#: Maximum size in bytes of arguments and of results that are stored inline.
INLINE_ARGS, INLINE_RESULT = 2_000, 900_000
#: Maximum size in bytes of the names of a task's dependencies and successors.
MAX_NAMES_BYTES = 800_000


class PlanState(StrEnum):
    """State of a plan."""

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
        """Whether the plan has completed, failed or been cancelled."""
        return self in (PlanState.COMPLETED, PlanState.FAILED, PlanState.CANCELLED)


class TaskState(StrEnum):
    """State of a task. Running is not a state but a claim; a task in ``child`` waits for the end of its child plan."""

    WAITING = "waiting"
    READY = "ready"
    CHILD = "child"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"

    @property
    def is_live(self) -> bool:
        """Whether the task has not ended: it is waiting, ready, or waits for a child plan."""
        return self in (TaskState.WAITING, TaskState.READY, TaskState.CHILD)

    @property
    def is_unsuccessful(self) -> bool:
        """Whether the task ended without a result, so that its successors cannot run."""
        return self in (TaskState.FAILED, TaskState.SKIPPED, TaskState.CANCELLED)


class PlanRecord(Record, frozen=True, omit_defaults=True):
    """The stored record of a plan.

    Attributes:
        state: State of the plan.
        generation: Increased by each cancel, recover and remove, so that older control operations have no effect.
        title: Display name.
        on_failure: ``stop`` or ``continue``.
        priority: 0 to 9; 9 first.
        started_ms: Start time in milliseconds since the epoch; orders the plans.
        ended_ms: End time; 0 before the end.
        tasks: Number of tasks at the start.
        failed: The first failed tasks, with reasons.
        outcome: State that the plan gets when cancelling is finished.
        keep_results_s: Seconds after completion for which results of unnamed intermediate tasks are kept; None forever.
        keep_s: Seconds after its end for which the whole plan is kept; None forever.
        are_results_gone: Whether these results were deleted.
        max_parallel: Maximum number of tasks that run at the same time; None for no limit.
        parent: Plan and task that wait for the end of this child plan; None for a top-level plan.
        depth: Nesting depth; 0 for a top-level plan.
        result_task: Task of a child plan whose result becomes the result of the parent's task; empty for none.
        nonce: Random ID of the builder, which recognizes its own start by it after a lost answer.
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
    keep_s: Seconds | None = None
    are_results_gone: bool = field(default=False, name="results_gone")
    max_parallel: Positive | None = None
    parent: tuple[str, str] | None = None
    depth: Count = 0
    result_task: str = ""
    nonce: str = ""

    @classmethod
    def from_bytes(cls, value: bytes) -> PlanRecord:
        """Decode the stored record of a plan.

        Raises:
            BadRecord: The value is not a plan.
        """
        return _PLAN.decode(value)

    def with_failure(self, task: str, reason: str) -> PlanRecord:
        """Return the record with one more failed task. Only the first 20 failed tasks are kept.

        Args:
            task: Name of the task.
            reason: Error of the task; cut after 300 characters.
        """
        return replace(self, failed=(*self.failed, (task, reason[:MAX_REASON]))[:MAX_FAILURES])


class TaskRecord(Struct, frozen=True, omit_defaults=True):
    """The stored record of a task.

    Attributes:
        state: State of the task.
        number: Position in the plan, from 0.
        fn: Name of its function.
        deps: Names of its dependencies, in order of declaration.
        args_from: Dependencies whose results are arguments.
        successors: Names of the tasks that depend on it.
        late: For each successor, the last other dependency of it, or an empty string. A completing task can rely on it
            without reading the successor. Shorter if tasks were added, and empty if there are too many successors.
        retry: Retry policy.
        timeout_s: Seconds after which an execution is stopped; None for no limit.
        attempts: Number of attempts that ended with an exception.
        why: Error of the last failed attempt.
        args: Template of its arguments if it is small; stored after the line of JSON.
        args_at: Location of a large template.
        child: ID of the child plan that it waits for or has waited for; empty for none.
        nonce: Random ID of the call that added the task to a started plan; otherwise empty.
        takes_all: Only in the stored form: `args_from` equals `deps` and is left out.
    """

    state: TaskState
    number: Annotated[int, Meta(ge=0, le=10**9)] = field(name="n")
    fn: str
    deps: tuple[str, ...] = ()
    args_from: tuple[str, ...] = ()
    successors: tuple[str, ...] = ()
    retry: StoredRetry = StoredRetry.from_retry(ONCE)
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
        """Encode the record as a line of JSON, followed by the arguments."""
        takes_all = bool(self.deps) and self.args_from == self.deps
        line = replace(self, args=b"", args_from=() if takes_all else self.args_from, takes_all=takes_all)
        return encode(line) + b"\n" + self.args

    @classmethod
    def from_bytes(cls, value: bytes) -> TaskRecord:
        """Decode the stored record of a task.

        Raises:
            BadRecord: The value is not a task.
        """
        line, _, args = value.partition(b"\n")
        found = _TASK.decode(line)
        return replace(found, args=args, args_from=found.deps if found.takes_all else found.args_from, takes_all=False)

    def with_state(self, state: TaskState) -> TaskRecord:
        """Return a copy of the record with another state."""
        return replace(self, state=state)


class ItemSettings(Struct, frozen=True, omit_defaults=True):
    """The value of a task's queue item: the timeout of the task, and the tasks whose results it needs as arguments.

    Attributes:
        timeout_s: Seconds after which an execution is stopped; None for no limit.
        args_from: Names of the tasks whose results are arguments.
    """

    timeout_s: Annotated[float, Meta(gt=0.0, le=MAX_DURATION_S)] | None = None
    args_from: tuple[str, ...] = field(default=(), name="from")


_PLAN: Decoder[PlanRecord] = Decoder(PlanRecord, "a plan")
_TASK: Decoder[TaskRecord] = Decoder(TaskRecord, "a task of a plan")
_NEEDS: Decoder[ItemSettings] = Decoder(ItemSettings, "an item of a plan")


class Task(Struct, frozen=True):
    """A task as it was read: its name, its record, and its entry, which transactions check."""

    name: str
    record: TaskRecord
    entry: Entry

    @classmethod
    def from_entry(cls, entry: Entry) -> Task:
        """Decode a task from the entry of its key.

        Raises:
            BadRecord: The entry does not hold a task.
        """
        return cls(entry.key.rpartition("/")[2], TaskRecord.from_bytes(entry.value), entry)


def max_result_bytes(task: Task | None) -> int:
    """Return the maximum size of a result that fits into one transaction with the record of its task.

    Args:
        task: The task as it was read; None if it was not read.
    """
    return max(1_000, INLINE_RESULT - (0 if task is None else len(task.entry.value)))


def encode_inline_result(outcome: bytes) -> bytes:
    """Return the stored value of a small result: the encoded outcome itself. A large one is stored as a blob."""
    return b"=" + outcome


def encode_result_ref(ref: BlobRef) -> bytes:
    """Return the value of a result's key that refers to a blob with the encoded outcome."""
    return b"@" + ref.to_bytes()


def decode_result(value: bytes) -> bytes | BlobRef:
    """Decode the value of a result's key.

    Returns:
        The encoded outcome, or a reference to a blob that contains it.
    Raises:
        BadRecord: The value is not a result.
    """
    if value[:1] == b"=":
        return value[1:]
    if value[:1] == b"@":
        return BlobRef.from_bytes(value[1:])
    raise BadRecord(f"value {short(value)} is not a task's result")


def decode_item_settings(value: bytes) -> ItemSettings:
    """Decode the value of a task's queue value: its timeout and the tasks whose results it needs.

    Returns:
        The settings; the defaults if the value is unreadable.
    """
    return _NEEDS.find(value) or ItemSettings()
