"""What is stored of a task: a line of JSON, then the payload of its call. Pure records, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Seconds, encode
from latchwork.errors import BadRecord
from latchwork.executor.keys import ANY, DETACHED, Keys, item_id_of, task_id_of
from latchwork.executor.targets import Label, Member, StoredTarget, Target
from latchwork.tasks import BlobRef, StoredRetry
from latchwork.types import Delete
from latchwork.words import short

if TYPE_CHECKING:
    from latchwork.primitives import WorkQueue

_MOST_COPIES = 1000
DEFAULT_PRIORITY = 5


class TaskItem(Struct, frozen=True, omit_defaults=True):
    """One task, as every copy of it is stored.

    Attributes:
        function: the name of its function; empty when the function itself is in the payload, pickled.
        sid: of its submitter; ``DETACHED`` when it has none.
        number: counts the tasks of its submitter; 0 of a detached one.
        lanes: where its copies were put; one for each.
        shelf: where they are there.
        own_id: the id of a detached task.
        blob: where a large payload is; None when it is here.
        priority: 0 runs before 9.
        stored_target: who may run it, as it is stored; None for all.
        retry: how often it is tried, as far as the submitter says.
        timeout_s: seconds after which a run is stopped, as far as the submitter says.
        is_kept: whether others leave it to the member in whose lane it is, as long as that lives.
        payload: the arguments, after the line of JSON; empty when they are elsewhere.
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
    is_kept: bool = field(default=False, name="kept")
    payload: bytes = b""

    @property
    def id(self) -> str:
        """The id of the task."""
        return self.own_id if self.sid == DETACHED else task_id_of(self.sid, self.number)

    @property
    def target(self) -> Target | None:
        """The members that may run it; None for all."""
        return None if self.stored_target is None else self.stored_target.to_target()

    @property
    def is_detached(self) -> bool:
        """Whether it outlives its submitter."""
        return self.sid == DETACHED

    @property
    def item_ids(self) -> list[str]:
        """The names of its copies in the backlog."""
        task_id = self.id
        return [item_id_of(task_id, copy) for copy in range(len(self.lanes))]

    def result_key(self, keys: Keys) -> str:
        """Where its outcome goes."""
        return keys.outcome(self.own_id) if self.sid == DETACHED else keys.result(self.sid, self.number)

    def to_bytes(self) -> bytes:
        """Return the value of an item: a line of JSON without defaults, then the payload."""
        return encode(replace(self, payload=b"")) + b"\n" + self.payload

    @classmethod
    def of(cls, value: bytes) -> TaskItem:
        """Return the task in the value of an item that any client may have written.

        Raises:
            BadRecord: It is no task.
        """
        line, newline, payload = value.partition(b"\n")
        item = _ITEM.decode(line)
        if not newline or (item.is_detached and not item.own_id):
            raise BadRecord(f"value {short(value)} is not a task")
        return replace(item, payload=payload)


_ITEM: Decoder[TaskItem] = Decoder(TaskItem, "a task")


@lru_cache(maxsize=512)
def task_of(value: bytes) -> TaskItem:
    """The task in the value of an item; read once for all that ask.

    Raises:
        BadRecord: it is none.
    """
    return TaskItem.of(value)


def may_run(item: TaskItem, member_id: str, labels: Mapping[str, object]) -> bool:
    """Whether a member that has these labels may run a task."""
    if item.stored_target is None:
        return True
    match item.target:
        case Member(wanted, otherwise):
            return wanted == member_id or otherwise == "any"
        case Label() as target:
            return all(labels.get(name) == value for name, value in target.labels.items())
    return True


def ref_of(value: bytes) -> BlobRef | None:
    """Where an outcome is that is kept beside its key; None of one that is here."""
    try:
        return BlobRef.of(value) if value[:1] == b"{" else None
    except BadRecord:
        return None


def other_copies(backlog: WorkQueue, item: TaskItem, keep: str) -> list[Delete]:
    """The writes that delete all copies of a task but one, wherever they are by now: a copy may go to the lane of all.

    Args:
        backlog: where they are.
        item: the task.
        keep: the name of the copy that stays.
    """
    if len(item.lanes) == 1:
        return []
    names = zip(item.lanes, item.item_ids, strict=True)
    places = [(place, name) for lane, name in names if name != keep for place in dict.fromkeys((lane, ANY))]
    return [Delete(backlog.key(place, item.shelf, name)) for place, name in places]
