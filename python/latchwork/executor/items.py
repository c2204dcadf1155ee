"""What is stored of a task: a line of JSON, then the payload of its call. Pure records, no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from latchwork.errors import BadRecord
from latchwork.executor.keys import ANY, DETACHED, Keys, item_id_of, task_id_of
from latchwork.executor.placing.targets import Label, Member, Target, of_body, to_body
from latchwork.records import Record, short
from latchwork.tasks import BlobRef, Retry
from latchwork.types import Delete

if TYPE_CHECKING:
    from latchwork.primitives import WorkQueue

_MOST_COPIES = 1000
_MOST_HEAD = 3000
_MOST_NUMBER = 10**15
_BUILTINS = "builtins"


@dataclass(frozen=True, slots=True)
class TaskItem:
    """One task, as every copy of it is stored.

    Attributes:
        id: of the task.
        function: the name of its function; empty when the function itself is in the payload, pickled.
        payload: the arguments; empty when they are elsewhere.
        sid: of its submitter; ``DETACHED`` when it has none.
        number: counts the tasks of its submitter; 0 of a detached one.
        blob: where a large payload is; empty when it is here.
        priority: 0 runs before 9.
        target: who may run it; None for all.
        retry: how often it is tried, as far as the submitter says.
        retry_on: the classes of exceptions that are tried again, as ``module:qualname``.
        timeout_s: seconds after which a run is stopped, as far as the submitter says.
        lanes: where its copies were put; one for each.
        shelf: where they are there.
        is_kept: whether others leave it to the member in whose lane it is, as long as that lives.
    """

    id: str
    function: str
    payload: bytes = field(default=b"", repr=False)
    sid: str = DETACHED
    number: int = 0
    blob: Mapping[str, Any] = field(default_factory=dict, hash=False)
    priority: int = 5
    target: Target | None = None
    retry: Retry | None = None
    retry_on: tuple[str, ...] = ()
    timeout_s: float | None = None
    lanes: tuple[str, ...] = ()
    shelf: str = ""
    is_kept: bool = False

    @property
    def is_detached(self) -> bool:
        """Whether it outlives its submitter."""
        return self.sid == DETACHED

    @property
    def item_ids(self) -> list[str]:
        """The names of its copies in the backlog."""
        return [item_id_of(self.id, copy) for copy in range(len(self.lanes))]

    def result_key(self, keys: Keys) -> str:
        """Where its outcome goes."""
        return keys.outcome(self.id) if self.is_detached else keys.result(self.sid, self.number)

    def to_bytes(self) -> bytes:
        """As it is stored; what has its default is left out."""
        return json.dumps(self._head(), separators=(",", ":")).encode() + b"\n" + self.payload

    def _head(self) -> dict[str, object]:
        whole: dict[str, object] = {
            "fn": self.function,
            "sub": self.sid,
            "n": self.number,
            "lanes": list(self.lanes),
            "shelf": self.shelf,
        }
        more: dict[str, object] = {
            "id": self.id if self.is_detached else "",
            "blob": dict(self.blob),
            "priority": self.priority if self.priority != DEFAULT_PRIORITY else None,
            "target": to_body(self.target),
            "retry": _retry_body(self.retry, self.retry_on),
            "timeout_s": self.timeout_s or None,
            "kept": self.is_kept,
        }
        return {**whole, **{name: each for name, each in more.items() if each or type(each) is int}}

    @classmethod
    def of(cls, value: bytes) -> TaskItem:
        """The task in the value of an item that anybody may have written.

        Raises:
            BadRecord: it is no task.
        """
        line, newline, payload = value.partition(b"\n")
        if not newline:
            raise BadRecord(f"value {short(value)} is no task")
        record = Record.of(line)
        usual = _usual(record.body, payload)
        if usual is not None:
            return usual
        sid, number = record.text("sub"), record.whole("n", least=0)
        task_id = record.text("id") if sid == DETACHED else task_id_of(sid, number)
        lanes = record.texts("lanes")
        if not 1 <= len(lanes) <= _MOST_COPIES:
            raise BadRecord(f"a task has {len(lanes)} copies")
        retry, on = _retry_of(record)
        return cls(
            task_id,
            record.text("fn"),
            payload,
            sid,
            number,
            record.mapping("blob", {}),
            record.whole("priority", least=0, most=9) if record.has("priority") else DEFAULT_PRIORITY,
            of_body(record.mapping("target", {})),
            retry,
            on,
            record.duration_s("timeout_s") if record.has("timeout_s") else None,
            lanes,
            record.text("shelf"),
            record.body.get("kept") is True,
        )

    def without_payload(self) -> TaskItem:
        """The same for people who look."""
        return replace(self, payload=b"")


DEFAULT_PRIORITY = 5
_USUAL = {"fn", "sub", "n", "lanes", "shelf"}


def _usual(body: Mapping[str, Any], payload: bytes) -> TaskItem | None:
    """The task of a record without options, as nearly all are: the same, in a fifth of the time."""
    if body.keys() != _USUAL:
        return None
    fn, sid, number, lanes, shelf = (body[name] for name in ("fn", "sub", "n", "lanes", "shelf"))
    are_texts = type(fn) is str and type(sid) is str and type(shelf) is str
    is_number = type(number) is int and 0 <= number <= _MOST_NUMBER
    if not (are_texts and is_number and type(lanes) is list and len(lanes) == 1 and type(lanes[0]) is str):
        return None
    if sid == DETACHED:
        return None
    return TaskItem(task_id_of(sid, number), fn, payload, sid, number, lanes=(lanes[0],), shelf=shelf)


@lru_cache(maxsize=512)
def task_of(value: bytes) -> TaskItem:
    """The task in the value of an item; read once for all that ask.

    Raises:
        BadRecord: it is none.
    """
    return TaskItem.of(value)


def may_run(item: TaskItem, member_id: str, labels: Mapping[str, object]) -> bool:
    """Whether a member that has these labels may run a task."""
    match item.target:
        case Member(wanted, otherwise):
            return wanted == member_id or otherwise == "any"
        case Label():
            return all(labels.get(name) == value for name, value in item.target.labels.items())
    return True


def type_name(kind: type[BaseException]) -> str:
    """How a class of exceptions is stored."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _retry_body(retry: Retry | None, on: tuple[str, ...]) -> dict[str, object]:
    if retry is None:
        return {}
    numbers = {name: getattr(retry, name) for name in ("attempts", "initial_s", "increase", "max_s", "jitter")}
    return {**numbers, "on": list(on or map(type_name, retry.on))}


def _retry_of(record: Record) -> tuple[Retry | None, tuple[str, ...]]:
    if not record.has("retry"):
        return None, ()
    body = Record(record.mapping("retry"))
    initial_s, increase, max_s, jitter = (body.number(name) for name in ("initial_s", "increase", "max_s", "jitter"))
    try:
        return Retry(body.whole("attempts", least=1), initial_s, increase, max_s, jitter), body.texts("on")
    except (ValueError, TypeError) as error:
        raise BadRecord(f"a retry cannot be used: {error}") from None


def ref_of(value: bytes) -> BlobRef | None:
    """Where an outcome is that is kept beside its key; None of one that is here."""
    try:
        return BlobRef.of(Record.of(value)) if value[:1] == b"{" else None
    except BadRecord:
        return None


def other_copies(backlog: WorkQueue, item: TaskItem, keep: str) -> list[Delete]:
    """The writes that delete all copies of a task but one, wherever they are by now: a copy may go to the lane of all.

    Args:
        backlog: where they are.
        item: the task.
        keep: the name of the copy that stays.
    """
    names = [(lane, item_id_of(item.id, copy)) for copy, lane in enumerate(item.lanes)]
    places = [(place, name) for lane, name in names if name != keep for place in dict.fromkeys((lane, ANY))]
    return [Delete(backlog.key(place, item.shelf, name)) for place, name in places]
