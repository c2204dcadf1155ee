"""The keys of an executor, and the names of its tasks. Does no I/O.

Keys, below ``@executor``; see ``executor_store``:

       <name>/group/...                   the workers; see ``primitives.Group``
       <name>/backlog/...                 the tasks; see ``primitives.WorkQueue``: partition ``any``, and ``m.<member>``
       <name>/subs/<sid>                  a submitter is online; removed with its session
       <name>/fences/<sid>.<n>            its submits check this key; replaced after a lost answer; removed with it
       <name>/results/<sid>/<k>/<number>  outcome of a submitter's task, a thousand per folder
       <name>/detached/<hh>/<id>          record of a detached task: where it was put
       <name>/outcomes/<hh>/<id>          outcome of a detached task
       <name>/finished/<bucket>/<id>      when and how a detached task ended; see ``finished``
       <name>/cancels/<member>/<item>     cancels a running task; removed with the session that wrote it
       <name>/load/<member>               number of tasks queued and running there; removed with the member
       <name>/functions/<member>          functions a member can run; removed with the member
       <name>/data/<owner>/...            values too large for an item or a result

A submitter's ID ``sid`` is never reused. A submitter's task has the ID ``<sid>.<number>``, a detached task ``d.<id>``.
An item ID is a task ID followed by the number of the copy: 0 for the only one, otherwise from 1.
"""

from __future__ import annotations

import uuid
import zlib

from latchwork._base.text import short
from latchwork.errors import InvalidKey
from latchwork.store import Store, system_namespace
from latchwork.store.keys import validate_key

#: Default name of an executor.
NAME = "default"
#: The shared partition, from which every member takes.
ANY = "any"
#: The number of a copy that is the only one of its task.
ONLY_COPY = "0"
#: The ``sid`` of detached tasks.
DETACHED = "d"
#: Maximum length of a member ID, which is part of a partition name.
MOST_MEMBER = 100
#: Maximum length of a detached task's ID, which is part of an item ID.
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
        self.submitters = f"{name}/subs"
        self.fences = f"{name}/fences"
        self.results = f"{name}/results"
        self.detached = f"{name}/detached"
        self.outcomes = f"{name}/outcomes"
        self.finished = f"{name}/finished"
        self.cancels = f"{name}/cancels"
        self.load = f"{name}/load"
        self.functions = f"{name}/functions"
        self.data = f"{name}/data"

    def submitter_key(self, submitter_id: str) -> str:
        """Return the key that exists while a submitter is online."""
        return f"{self.submitters}/{submitter_id}"

    def fence_key(self, submitter_id: str, number: int) -> str:
        """Return the key that the submits of a submitter check.

        Args:
            submitter_id: ID of the submitter.
            number: Number of earlier fences of the submitter.
        """
        return f"{self.fences}/{submitter_id}.{number}"

    def results_prefix(self, submitter_id: str) -> str:
        """Return the prefix of a submitter's results."""
        return f"{self.results}/{submitter_id}"

    def result_key(self, submitter_id: str, number: int) -> str:
        """Return the key of the outcome of a submitter's task.

        Args:
            submitter_id: ID of the submitter.
            number: Number of the task within the submitter.
        """
        return f"{self.results}/{submitter_id}/{number // _FOLDER}/{number % _FOLDER:03d}"

    def record_key(self, task_id: str) -> str:
        """Return the key of a detached task's record."""
        return f"{self.detached}/{_get_bucket(task_id)}/{task_id}"

    def outcome_key(self, task_id: str) -> str:
        """Return the key of a detached task's outcome."""
        return f"{self.outcomes}/{_get_bucket(task_id)}/{task_id}"

    def cancel_prefix(self, member: str) -> str:
        """Return the prefix of the keys that ask a member to stop tasks."""
        return f"{self.cancels}/{member}"

    def cancel_key(self, member: str, item_id: str) -> str:
        """Return the key that asks a member to stop a task.

        Args:
            member: ID of the member.
            item_id: ID of the task's queue item.
        """
        return f"{self.cancels}/{member}/{item_id}"

    def member_load_key(self, member: str) -> str:
        """Return the key under which a member reports its load."""
        return f"{self.load}/{member}"

    def functions_key(self, member: str) -> str:
        """Return the key of the list of functions that a member can run."""
        return f"{self.functions}/{member}"


def parse_result_number(key: str) -> int | None:
    """Return the task number in the key of a result. None if it is not the key of a result."""
    folder, name = key.split("/")[-2:]
    plain = (folder + name).isascii() and folder.isdecimal() and name.isdecimal() and len(folder) <= MOST_ID
    return int(folder) * _FOLDER + int(name) if plain and len(name) == len(str(_FOLDER - 1)) else None


def generate_submitter_id() -> str:
    """Generate a short, unique submitter ID."""
    return uuid.uuid4().hex[:16]


def member_partition(member: str) -> str:
    """Return the name of the queue partition for the tasks of one member."""
    return _LANE + member


def partition_member(partition: str) -> str | None:
    """Return the ID of the member to which a partition belongs. None for the shared partition and for an
    invalid name.
    """
    return partition[len(_LANE) :] if partition.startswith(_LANE) else None


def task_sort_key(priority: int, at_ms: int, submitter_id: str) -> str:
    """Return the sort key of a task's queue items: by priority, then time in steps of 256 ms, then submitter.

    Tasks with the same sort key are ordered by number. There are few sort keys, so a claim lists few of them.

    Args:
        priority: 0 runs before 9.
        at_ms: Time of submission in milliseconds since the epoch.
        submitter_id: ID of the submitter.
    """
    return f"{priority}-{at_ms & ~0xFF:012x}-{submitter_id}"


def queued_at_s(sort_key: str) -> float:
    """Return when tasks with a sort key were queued, in Unix seconds by the submitter's clock. 0 for an invalid sort
    key.
    """
    parts = sort_key.split("-")
    try:
        return int(parts[1], 16) / 1000 if len(parts) > 1 and len(parts[1]) == len("0" * 12) else 0.0
    except ValueError:
        return 0.0


def make_task_id(submitter_id: str, number: int) -> str:
    """Return the ID of a submitter's task. Sorting these IDs sorts the tasks by number.

    Args:
        submitter_id: ID of the submitter.
        number: Number of the task within the submitter.
    """
    return f"{submitter_id}.{number:09d}"


def parse_task_id(task_id: str) -> tuple[str, int]:
    """Split the ID of a task into the ID of its submitter and its number. ``DETACHED`` and 0 for a detached task.

    Raises:
        InvalidKey: The text is not a task ID.
    """
    submitter_id, dot, rest = task_id.partition(".")
    if submitter_id == DETACHED and dot:
        check_task_id(rest)
        return DETACHED, 0
    if not (
        rest.isascii()
        and rest.isdecimal()
        and len(rest) <= MOST_ID
        and task_id == make_task_id(submitter_id, int(rest))
    ):
        raise InvalidKey(f"{short(task_id)} is not a task ID, such as 3f0c2a9d81b74e55.000000007 or d.nightly")
    check_task_id(submitter_id)
    return submitter_id, int(rest)


def make_detached_id(given: str) -> str:
    """Return the ID of a detached task, given the ID that its submitter chose."""
    return f"{DETACHED}.{given}"


def make_item_id(task_id: str, copy: int) -> str:
    """Return the ID of the queue item of one copy of a task.

    Args:
        task_id: ID of the task.
        copy: Number of the copy.
    """
    return f"{task_id}.{copy}"


def make_item_ids(task_id: str, copies: int) -> list[str]:
    """Return the IDs of the queue items of a task. They end with ``ONLY_COPY``, or with numbers from 1.

    Args:
        task_id: ID of the task.
        copies: Number of its copies.
    """
    return [make_item_id(task_id, copy) for copy in ([int(ONLY_COPY)] if copies == 1 else range(1, copies + 1))]


def executor_store(store: Store, what: str) -> Store:
    """Return the namespace of executors in a store: ``@executor``.

    Args:
        store: The store.
        what: Description of the caller for error messages.
    Raises:
        TypeError: The argument is not a store. The message omits it, since a URL may contain a password.
    """
    given: object = store
    if not isinstance(given, Store):
        raise TypeError(f"{what} needs a store, not a URL; open one first: latchwork.connect(url)")
    return system_namespace(store, "executor")


def check_member_id(member: str) -> str:
    """Check that a member ID can be part of the name of a partition, and return it.

    Raises:
        InvalidKey: The ID is too long or contains invalid characters.
    """
    return _check_segment(member, "member id", MOST_MEMBER)


def check_task_id(given: str) -> str:
    """Check that a task ID can be part of the ID of a queue item, and return it.

    Raises:
        InvalidKey: The ID is too long or contains invalid characters.
    """
    return _check_segment(given, "task id", MOST_ID)


def _get_bucket(task_id: str) -> str:
    """Return one of 256 key segments for a task ID. They limit the number of children of each key."""
    return f"{zlib.crc32(task_id.encode()) & 0xFF:02x}"


def _check_segment(text: str, description: str, max_length: int) -> str:
    given: object = text
    if not isinstance(given, str) or "/" in given or not 0 < len(given) <= max_length:
        raise InvalidKey(
            f"{description} {short(text)} cannot be used: it must be text of 1 to {max_length} characters without '/'"
        )
    try:
        return validate_key(f"x/{text}")[2:]
    except InvalidKey as error:
        raise InvalidKey(f"{description} {short(text)} cannot be used: {error}") from None
