"""The stored form of a task: a line of JSON, then the payload of its call. Performs no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Seconds, encode
from latchwork._base.text import short
from latchwork.errors import BadRecord
from latchwork.executor.keys import ANY, DETACHED, Keys, item_id_of, task_id_of
from latchwork.executor.targets import Label, Member, StoredTarget, Target
from latchwork.tasks import BlobRef, StoredRetry
from latchwork.types import Delete

if TYPE_CHECKING:
    from latchwork.primitives import WorkQueue

_MOST_COPIES = 1000
DEFAULT_PRIORITY = 5


class TaskItem(Struct, frozen=True, omit_defaults=True):
    """A task, as stored in each of its copies.

    Attributes:
        function: Its function's name; empty if the function is pickled in the payload.
        sid: Its submitter's ID; ``DETACHED`` if it has none.
        number: Its number within the submitter; 0 for a detached task.
        lanes: The lane of each copy.
        shelf: The sort key of its copies.
        own_id: The ID of a detached task.
        blob: Reference to a large payload; None if the payload is inline.
        priority: 0 runs before 9.
        stored_target: Members that may run it; None allows all.
        retry: The submitter's retry policy, if any.
        timeout_s: The submitter's limit for a run in seconds, if any.
        result_ttl_s: Seconds for which the result of a detached task is kept; None until it is forgotten.
        is_kept: Whether other members leave it to the member whose lane it is in, while that member is online.
        payload: The arguments, stored after the line of JSON; empty if in a blob.
    """

    function: str = field(name="fn")
    sid: str = field(name="sub")
    number: Count = field(name="n")
    lanes: Annotated[tuple[str, ...], Meta(min_length=1, max_length=_MOST_COPIES)]
    shelf: str
    own_id: str = field(default="", name="id")
    blob: BlobRef | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = DEFAULT_PRIORITY
    stored_target: StoredTarget | None = field(default=None, name="target")
    retry: StoredRetry | None = None
    timeout_s: Seconds | None = None
    result_ttl_s: Seconds | None = field(default=None, name="ttl")
    is_kept: bool = field(default=False, name="kept")
    payload: bytes = b""

    @property
    def id(self) -> str:
        """The task ID."""
        return self.own_id if self.sid == DETACHED else task_id_of(self.sid, self.number)

    @property
    def target(self) -> Target | None:
        """The members that may run it; None for all."""
        return None if self.stored_target is None else self.stored_target.to_target()

    @property
    def is_detached(self) -> bool:
        """Whether the task outlives its submitter."""
        return self.sid == DETACHED

    @property
    def item_ids(self) -> list[str]:
        """The item IDs of its copies in the work queue."""
        task_id = self.id
        return [item_id_of(task_id, copy) for copy in range(len(self.lanes))]

    def result_key(self, keys: Keys) -> str:
        """Return the key of its outcome."""
        return keys.outcome(self.own_id) if self.sid == DETACHED else keys.result(self.sid, self.number)

    def to_bytes(self) -> bytes:
        """Return the stored form: a line of JSON without defaults, then the payload."""
        return encode(replace(self, payload=b"")) + b"\n" + self.payload

    @classmethod
    def from_bytes(cls, value: bytes) -> TaskItem:
        """Parse an item's value, which any client may have written.

        Raises:
            BadRecord: The value is not a task.
        """
        line, newline, payload = value.partition(b"\n")
        item = _ITEM.decode(line)
        if not newline or (item.is_detached and not item.own_id):
            raise BadRecord(f"value {short(value)} is not a task")
        return replace(item, payload=payload)


_ITEM: Decoder[TaskItem] = Decoder(TaskItem, "a task")


@lru_cache(maxsize=512)
def task_of(value: bytes) -> TaskItem:
    """Parse an item's value, with caching.

    Raises:
        BadRecord: The value is not a task.
    """
    return TaskItem.from_bytes(value)


def may_run(item: TaskItem, member_id: str, labels: Mapping[str, object]) -> bool:
    """Return whether a member with these labels may run a task."""
    if item.stored_target is None:
        return True
    match item.target:
        case Member(wanted, otherwise):
            return wanted == member_id or otherwise == "any"
        case Label() as target:
            return all(labels.get(name) == value for name, value in target.labels.items())
    return True


def ref_of(value: bytes) -> BlobRef | None:
    """Return the blob reference in an outcome's value; None if the outcome is inline."""
    try:
        return BlobRef.from_bytes(value) if value[:1] == b"{" else None
    except BadRecord:
        return None


def other_copies(backlog: WorkQueue, item: TaskItem, keep: str) -> list[Delete]:
    """Return the writes that delete all copies of a task but one, including copies moved to the lane of all.

    Args:
        backlog: The work queue.
        item: The task.
        keep: Item ID of the copy to keep.
    """
    if len(item.lanes) == 1:
        return []
    names = zip(item.lanes, item.item_ids, strict=True)
    places = [(place, name) for lane, name in names if name != keep for place in dict.fromkeys((lane, ANY))]
    return [Delete(backlog.key(place, item.shelf, name)) for place, name in places]
