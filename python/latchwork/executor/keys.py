"""The keys of an executor, and the names of its tasks. Nothing here does I/O.

Keys, below ``@executor``; see ``executor_store``:

       <name>/group/...                   who runs tasks; see ``primitives.Group``
       <name>/backlog/...                 the tasks; see ``primitives.WorkQueue``: lane ``any``, and ``m.<member>``
       <name>/subs/<sid>                  a submitter is there; dies with its session
       <name>/results/<sid>/<k>/<number>  how a task of a submitter ended, a thousand in one folder
       <name>/detached/<hh>/<id>          a task that outlives its submitter: where it was put
       <name>/outcomes/<hh>/<id>          how it ended
       <name>/cancels/<member>/<item>     a running task that is not wanted any more; dies with who wrote it
       <name>/load/<member>               tasks queued and running there; dies with the member
       <name>/functions/<member>          what a member can run; dies with the member
       <name>/data/<owner>/...            values that are too large for an item or a result

A submitter's id ``sid`` is never used again. A task of a submitter is ``<sid>.<number>``, a detached one ``d.<id>``;
its items have the number of their copy behind that.
"""

from __future__ import annotations

import uuid
import zlib

from latchwork.errors import InvalidKey
from latchwork.store import Store, system_namespace
from latchwork.store.keys import validate_key
from latchwork.words import short

#: An executor's name, unless another is given.
NAME = "default"
#: The lane that every member takes from.
ANY = "any"
#: The ``sid`` of detached tasks.
DETACHED = "d"
#: A member's id is at most so long: it is a part of a lane's name.
MOST_MEMBER = 100
#: A detached task's id is at most so long: it is a part of an item's name.
MOST_ID = 100
PRIORITIES = range(10)

_LANE = "m."
_FOLDER = 1000


class Keys:
    """The keys of one executor."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.group = f"{name}/group"
        self.backlog = f"{name}/backlog"
        self.subs = f"{name}/subs"
        self.results = f"{name}/results"
        self.detached = f"{name}/detached"
        self.outcomes = f"{name}/outcomes"
        self.cancels = f"{name}/cancels"
        self.load = f"{name}/load"
        self.functions = f"{name}/functions"
        self.data = f"{name}/data"

    def sub(self, sid: str) -> str:
        """Says that a submitter is there."""
        return f"{self.subs}/{sid}"

    def results_of(self, sid: str) -> str:
        """The prefix of a submitter's results."""
        return f"{self.results}/{sid}"

    def result(self, sid: str, number: int) -> str:
        """How a task of a submitter ended."""
        return f"{self.results}/{sid}/{number // _FOLDER}/{number % _FOLDER:03d}"

    def record(self, task_id: str) -> str:
        """Where a detached task was put."""
        return f"{self.detached}/{_spread(task_id)}/{task_id}"

    def outcome(self, task_id: str) -> str:
        """How a detached task ended."""
        return f"{self.outcomes}/{_spread(task_id)}/{task_id}"

    def cancels_at(self, member: str) -> str:
        """The prefix of the marks for tasks that run on a member."""
        return f"{self.cancels}/{member}"

    def cancel(self, member: str, item_id: str) -> str:
        """Tells a member that what it runs is not wanted any more."""
        return f"{self.cancels}/{member}/{item_id}"

    def load_of(self, member: str) -> str:
        """What is queued and running on a member."""
        return f"{self.load}/{member}"

    def functions_of(self, member: str) -> str:
        """What a member can run."""
        return f"{self.functions}/{member}"


def number_of(key: str) -> int | None:
    """The number of the task whose result has this key; None when no task has."""
    folder, name = key.split("/")[-2:]
    plain = (folder + name).isascii() and folder.isdecimal() and name.isdecimal() and len(folder) <= MOST_ID
    return int(folder) * _FOLDER + int(name) if plain and len(name) == len(str(_FOLDER - 1)) else None


def new_sid() -> str:
    """The id of a submitter: short, and no other ever has it."""
    return uuid.uuid4().hex[:16]


def lane_of(member: str) -> str:
    """The lane that one member takes from first."""
    return _LANE + member


def member_of(lane: str) -> str | None:
    """The member whose lane this is; None of the lane ``any``, and of a lane that nobody of ours made."""
    return lane[len(_LANE) :] if lane.startswith(_LANE) else None


def shelf_of(priority: int, at_ms: int, sid: str) -> str:
    """The shelf of tasks put within a quarter of a second: by priority, then in order of time, then by submitter.

    In a shelf they are in the order of their numbers. Shelves are few, so takers look into few.
    """
    return f"{priority}-{at_ms & ~0xFF:012x}-{sid}"


def queued_at_s(shelf: str) -> float:
    """When the tasks of a shelf were put, in Unix seconds by the clock of who put them; 0 when it does not say."""
    parts = shelf.split("-")
    try:
        return int(parts[1], 16) / 1000 if len(parts) > 1 and len(parts[1]) == len("0" * 12) else 0.0
    except ValueError:
        return 0.0


def task_id_of(sid: str, number: int) -> str:
    """The id of a submitter's task; as text in the order of the numbers."""
    return f"{sid}.{number:09d}"


def task_number(task_id: str) -> tuple[str, int]:
    """The submitter, and the number that it gave a task; ``DETACHED`` and 0 of a detached one.

    Raises:
        InvalidKey: it is no id of a task.
    """
    sid, dot, rest = task_id.partition(".")
    if sid == DETACHED and dot:
        check_task_id(rest)
        return DETACHED, 0
    if not (rest.isascii() and rest.isdecimal() and len(rest) <= MOST_ID and task_id == task_id_of(sid, int(rest))):
        raise InvalidKey(f"{short(task_id)} is no id of a task, such as 3f0c2a9d81b74e55.000000007 or d.nightly")
    check_task_id(sid)
    return sid, int(rest)


def detached_id(given: str) -> str:
    """The id of a detached task."""
    return f"{DETACHED}.{given}"


def item_id_of(task_id: str, copy: int) -> str:
    """The name of one copy of a task in the backlog."""
    return f"{task_id}.{copy}"


def executor_store(store: Store, what: str) -> Store:
    """The store in which executors have their keys: below ``@executor``.

    Raises:
        TypeError: it is no store, such as the text of a URL: it is not shown, it may have a password.
    """
    given: object = store
    if not isinstance(given, Store):
        raise TypeError(f"{what} needs a store, not a URL; open one first: latchwork.connect(url)")
    return system_namespace(store, "executor")


def check_member_id(member: str) -> str:
    """The id itself; ``InvalidKey`` if it cannot be a part of a lane's name."""
    return _check_segment(member, "member id", MOST_MEMBER)


def check_task_id(given: str) -> str:
    """The id itself; ``InvalidKey`` if it cannot be a part of an item's name."""
    return _check_segment(given, "task id", MOST_ID)


def _spread(task_id: str) -> str:
    """One of 256 folders, so that none gets longer than a server lists."""
    return f"{zlib.crc32(task_id.encode()) & 0xFF:02x}"


def _check_segment(text: str, what: str, most: int) -> str:
    given: object = text
    if not isinstance(given, str) or "/" in given or not 0 < len(given) <= most:
        raise InvalidKey(
            f"{what} {short(text)} cannot be used: it has to be text of 1 to {most} characters without '/'"
        )
    try:
        return validate_key(f"x/{text}")[2:]
    except InvalidKey as error:
        raise InvalidKey(f"{what} {short(text)} cannot be used: {error}") from None
