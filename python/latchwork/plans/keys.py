"""The keys of plans. Nothing here does I/O.

Keys, below ``@plans``:

       <name>/plans/<plan>                 a plan: state, options, failures; what claims and control check
       <name>/tasks/<plan>/<task>          a task: a line of JSON, then its arguments if they are small
       <name>/todo/<plan>/<00..3f>/<task>  empty: the task has not ended; in 64 shelves, for plans of 100,000
       <name>/results/<plan>/<task>        how a task ended
       <name>/drafts/<plan>                its builder lives (session-bound)
       <name>/adds/<plan>                  rewritten by each task that is added to a started plan
       <name>/running/<plan>/<number>      a place of a plan of which only so many tasks run at a time (session-bound)
       <name>/workers/<session>            a worker is there, so that each takes its share (session-bound)
       <name>/data/<plan>/...              what is too large for a record
       <name>/queue/...                  what can be taken

One lane has all items, so that a worker waits in one line. Shelves sort: control of plans first, then tasks by
priority, then by the start of their plan, then by their number.
"""

from __future__ import annotations

import re
from zlib import crc32

from latchwork.errors import InvalidKey

#: The name of plans, unless another is given.
NAME = "default"
PARTITION = "plans"
CONTROL_SORT_KEY = "0"
MAX_PLAN_ID, MAX_TASK_NAME = 60, 50
#: Characters of its task's name that the id of a child plan begins with.
MAX_CHILD_PREFIX = 40
#: So many tasks share a shelf of the queue.
TASKS_PER_SORT_KEY = 500
_TODO_BUCKETS = 64
_SEGMENT = re.compile(r"[A-Za-z0-9._+:,%=-]+")


def check_id(text: str, what: str, most: int) -> str:
    """An id that can be a part of a segment of a key: no ``~``, and no ``@`` at all.

    Raises:
        InvalidKey: it is none; the message says why.
    """
    given: object = text
    if not isinstance(given, str) or not 1 <= len(given) <= most or given in (".", ".."):
        raise InvalidKey(f"{what} must be 1 to {most} characters, not {str(given)[:80]!r}")
    if not _SEGMENT.fullmatch(given):
        raise InvalidKey(f"{what} {given!r} has characters that no name has: use letters, digits and . _ - + : , % =")
    return given


class Keys:
    """The keys of the plans below one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.plans = f"{name}/plans"
        self.all_tasks = f"{name}/tasks"
        self.drafts = f"{name}/drafts"
        self.data = f"{name}/data"
        self.permits = f"{name}/running"
        self.workers = f"{name}/workers"
        self.queue = f"{name}/queue"
        #: Below these each plan has a key of its id.
        self.roots = [f"{name}/{each}" for each in ("tasks", "todo", "results", "data", "adds")]

    def plan(self, plan: str) -> str:
        """The record of a plan."""
        return f"{self.plans}/{plan}"

    def draft(self, plan: str) -> str:
        """Who builds it lives."""
        return f"{self.drafts}/{plan}"

    def adds(self, plan: str) -> str:
        """Guards completion against added tasks."""
        return f"{self.name}/adds/{plan}"

    def tasks(self, plan: str) -> str:
        """The prefix of its tasks."""
        return f"{self.all_tasks}/{plan}"

    def task(self, plan: str, task: str) -> str:
        """The record of a task."""
        return f"{self.all_tasks}/{plan}/{task}"

    def todo(self, plan: str, task: str = "") -> str:
        """That a task has not ended; or the prefix of these."""
        prefix = f"{self.name}/todo/{plan}"
        return f"{prefix}/{crc32(task.encode()) % _TODO_BUCKETS:02x}/{task}" if task else prefix

    def results(self, plan: str) -> str:
        """The prefix of its results."""
        return f"{self.name}/results/{plan}"

    def result(self, plan: str, task: str) -> str:
        """How a task ended."""
        return f"{self.name}/results/{plan}/{task}"

    def permit(self, plan: str, number: int) -> str:
        """One of the permits of a limited plan."""
        return f"{self.permits}/{plan}/{number}"

    def blobs(self, plan: str) -> str:
        """The prefix of its large values."""
        return f"{self.data}/{plan}"

    def everything(self, plan: str) -> list[str]:
        """The prefixes of all that a plan has but its record."""
        return [
            self.tasks(plan),
            self.todo(plan),
            self.results(plan),
            self.blobs(plan),
            f"{self.permits}/{plan}",
            self.adds(plan),
            self.draft(plan),
        ]


def sort_key(priority: int, started_ms: int, number: int) -> str:
    """The shelf of a task's item: 9 is taken first."""
    return f"{10 - priority:02}-{started_ms:014}-{number // TASKS_PER_SORT_KEY:06}"


def item_id(plan: str, task: str) -> str:
    """The id of a task's item, or of one of control: ``@start.0``."""
    return f"{plan}~{task}"


def split_id(text: str) -> tuple[str, str]:
    """The plan and the task, or the control, of an item; empty where it is no such id."""
    plan, tilde, task = text.partition("~")
    return (plan, task) if tilde else ("", "")


def task_name(number: int) -> str:
    """The name of a task that was given none."""
    return f"t{number:05}"
