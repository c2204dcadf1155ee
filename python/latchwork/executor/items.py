"""The stored form of a task: a line of JSON, then the payload of its call. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Seconds, encode
from latchwork._base.text import short
from latchwork.errors import BadRecord
from latchwork.executor.keys import ANY, DETACHED, Keys, make_item_ids, make_task_id
from latchwork.executor.targets import Label, Member, StoredTarget, Target
from latchwork.tasks import BlobRef, StoredRetry
from latchwork.types import Delete

if TYPE_CHECKING:
    from latchwork.primitives import WorkQueue

_MOST_COPIES = 1000
DEFAULT_PRIORITY = 5


class TaskItem(Struct, frozen=True, omit_defaults=True):
    """A task as it is stored in the work queue, once per copy.

    Attributes:
        function: Its function's name; empty if the function is pickled in the payload.
        submitter_id: Its submitter's ID; ``DETACHED`` if it has none.
        number: Its number within the submitter; 0 for a detached task.
        partitions: The partition of each copy.
        sort_key: The sort key of its copies.
        own_id: The ID of a detached task.
        blob: Reference to a large payload; None if the payload is inline.
        priority: 0 runs before 9.
        stored_target: Members that may run it; None allows all.
        retry: The submitter's retry policy, if any.
        timeout_s: The submitter's limit for a run in seconds, if any.
        result_ttl_s: Seconds for which the result of a detached task is kept; None until it is forgotten.
        is_kept: Whether other members leave it to the member whose partition it is in, while that member is online.
        payload: The arguments, stored after the line of JSON; empty if in a blob.
    """

    function: str = field(name="fn")
    submitter_id: str = field(name="sub")
    number: Count = field(name="n")
    partitions: Annotated[tuple[str, ...], Meta(min_length=1, max_length=_MOST_COPIES)] = field(name="on")
    sort_key: str = field(name="sort")
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
        """The ID of the task."""
        return self.own_id if self.submitter_id == DETACHED else make_task_id(self.submitter_id, self.number)

    @property
    def target(self) -> Target | None:
        """The members that may run the task; None for all."""
        return None if self.stored_target is None else self.stored_target.to_target()

    @property
    def is_detached(self) -> bool:
        """Whether the task outlives its submitter."""
        return self.submitter_id == DETACHED

    @property
    def item_ids(self) -> list[str]:
        """The item IDs of the task's copies in the work queue."""
        return make_item_ids(self.id, len(self.partitions))

    def result_key(self, keys: Keys) -> str:
        """Return the key of the task's outcome."""
        return (
            keys.outcome_key(self.own_id)
            if self.submitter_id == DETACHED
            else keys.result_key(self.submitter_id, self.number)
        )

    def to_bytes(self) -> bytes:
        """Encode the task as a line of JSON without defaults, followed by the payload."""
        return encode(replace(self, payload=b"")) + b"\n" + self.payload

    @classmethod
    def from_bytes(cls, value: bytes) -> TaskItem:
        """Decode the value of a queue item. Any client may have written it.

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
def parse_task(value: bytes) -> TaskItem:
    """Decode the value of a queue item. Caches the latest results.

    Raises:
        BadRecord: The value is not a task.
    """
    return TaskItem.from_bytes(value)


def may_run(item: TaskItem, member_id: str, labels: Mapping[str, object]) -> bool:
    """Return whether the target of a task allows a member to run it.

    Args:
        item: The task.
        member_id: ID of the member.
        labels: Labels of the member.
    """
    if item.stored_target is None:
        return True
    match item.target:
        case Member(wanted, otherwise):
            return wanted == member_id or otherwise == "any"
        case Label() as target:
            return all(labels.get(name) == value for name, value in target.labels.items())
    return True


def parse_blob_ref(value: bytes) -> BlobRef | None:
    """Return the blob reference in a stored outcome. None if the outcome itself is stored there."""
    try:
        return BlobRef.from_bytes(value) if value[:1] == b"{" else None
    except BadRecord:
        return None


def delete_copies_ops(backlog: WorkQueue, item: TaskItem, keep: str) -> list[Delete]:
    """Return the writes that delete all copies of a task except one, including copies moved to the shared partition.

    Args:
        backlog: The work queue.
        item: The task.
        keep: Item ID of the copy to keep.
    """
    if len(item.partitions) == 1:
        return []
    names = zip(item.partitions, item.item_ids, strict=True)
    locations = [
        (location, name) for partition, name in names if name != keep for location in dict.fromkeys((partition, ANY))
    ]
    return [Delete(backlog.key(location, item.sort_key, name)) for location, name in locations]
