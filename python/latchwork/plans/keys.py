"""Keys of plans. Pure, without I/O.

Keys, below ``@plans``:

       <name>/plans/<plan>                 a plan: state, options, failures; checked by claims and control operations
       <name>/tasks/<plan>/<task>          a task: a line of JSON, followed by its arguments if they are small
       <name>/todo/<plan>/<00..3f>/<task>  exists until the task has ended; in 64 buckets, for plans of 100,000 tasks
       <name>/results/<plan>/<task>        the outcome of a task
       <name>/drafts/<plan>                exists while the builder of a draft is alive (session-bound)
       <name>/adds/<plan>                  rewritten with each task that is added to a started plan
       <name>/running/<plan>/<number>      a permit of a plan with ``max_parallel`` (session-bound)
       <name>/workers/<session>            a running worker, which determines the shares (session-bound)
       <name>/data/<plan>/...              values that are too large for a record
       <name>/queue/...                    the work queue of ready tasks

The work queue has one partition, so that a worker waits at one place. Its sort keys put control operations first, then
tasks by priority, start of the plan, and number.
"""

from __future__ import annotations

import re
from zlib import crc32

from latchwork.errors import InvalidKey

#: Default name of plans.
NAME = "default"
PARTITION = "plans"
CONTROL_SORT_KEY = "0"
MAX_PLAN_ID, MAX_TASK_NAME = 60, 50
#: Number of characters of the task's name with which the ID of a child plan begins.
MAX_CHILD_PREFIX = 40
#: Number of tasks that share a sort key.
TASKS_PER_SORT_KEY = 500
_TODO_BUCKETS = 64
_SEGMENT = re.compile(r"[A-Za-z0-9._+:,%=-]+")


def check_id(text: str, description: str, max_length: int) -> str:
    """Check that a text can be part of a key, and return it. It may contain letters, digits and ``. _ - + : , % =``.

    Args:
        text: The text.
        description: Description of the text for the error message.
        max_length: Maximum number of characters.
    Raises:
        InvalidKey: The text cannot be used. The message says why.
    """
    given: object = text
    if not isinstance(given, str) or not 1 <= len(given) <= max_length or given in (".", ".."):
        raise InvalidKey(f"{description} must be 1 to {max_length} characters, not {str(given)[:80]!r}")
    if not _SEGMENT.fullmatch(given):
        raise InvalidKey(
            f"{description} {given!r} contains invalid characters; use letters, digits and . _ - + : , % ="
        )
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
        #: Prefixes below which each plan has a key with its ID.
        self.roots = [f"{name}/{each}" for each in ("tasks", "todo", "results", "data", "adds")]

    def plan_key(self, plan: str) -> str:
        """Return the key of a plan's record."""
        return f"{self.plans}/{plan}"

    def draft_key(self, plan: str) -> str:
        """Return the key that exists while the builder of a draft is alive."""
        return f"{self.drafts}/{plan}"

    def additions_key(self, plan: str) -> str:
        """Return the key that is rewritten whenever a task is added to a running plan.

        The transaction that ends the plan checks its version, so that it fails if a task was added in the meantime.
        """
        return f"{self.name}/adds/{plan}"

    def tasks_prefix(self, plan: str) -> str:
        """Return the key prefix of a plan's tasks."""
        return f"{self.all_tasks}/{plan}"

    def task_key(self, plan: str, task: str) -> str:
        """Return the key of a task's record."""
        return f"{self.all_tasks}/{plan}/{task}"

    def unfinished_prefix(self, plan: str) -> str:
        """Return the key prefix of a plan's unfinished tasks. Each has a key below it until it ends."""
        return f"{self.name}/todo/{plan}"

    def unfinished_key(self, plan: str, task: str) -> str:
        """Return the key that exists until a task has ended."""
        return f"{self.unfinished_prefix(plan)}/{crc32(task.encode()) % _TODO_BUCKETS:02x}/{task}"

    def results_prefix(self, plan: str) -> str:
        """Return the key prefix of a plan's results."""
        return f"{self.name}/results/{plan}"

    def result_key(self, plan: str, task: str) -> str:
        """Return the key of a task's stored outcome."""
        return f"{self.name}/results/{plan}/{task}"

    def permit_key(self, plan: str, number: int) -> str:
        """Return the key of one of the permits of a plan with ``max_parallel``. Each running task holds a permit.

        Args:
            plan: ID of the plan.
            number: Number of the permit, from 0.
        """
        return f"{self.permits}/{plan}/{number}"

    def blobs_prefix(self, plan: str) -> str:
        """Return the key prefix of a plan's large values."""
        return f"{self.data}/{plan}"

    def list_prefixes(self, plan: str) -> list[str]:
        """Return the prefixes of all keys of a plan except its record."""
        return [
            self.tasks_prefix(plan),
            self.unfinished_prefix(plan),
            self.results_prefix(plan),
            self.blobs_prefix(plan),
            f"{self.permits}/{plan}",
            self.additions_key(plan),
            self.draft_key(plan),
        ]


def sort_key(priority: int, started_ms: int, number: int) -> str:
    """Return the sort key of a task's queue item. Items with smaller sort keys are taken first.

    Args:
        priority: Priority of the plan, 0 to 9; 9 is taken first.
        started_ms: Start of the plan in milliseconds since the epoch.
        number: Position of the task in the plan, from 0.
    """
    return f"{10 - priority:02}-{started_ms:014}-{number // TASKS_PER_SORT_KEY:06}"


def item_id(plan: str, task: str) -> str:
    """Return the ID of the queue item of a task, or of a control operation such as ``@start.0``."""
    return f"{plan}~{task}"


def split_item_id(text: str) -> tuple[str, str]:
    """Split the ID of a queue item into the plan and the task or control operation. Both are empty for an
    invalid ID.
    """
    plan, tilde, task = text.partition("~")
    return (plan, task) if tilde else ("", "")


def format_default_task_name(number: int) -> str:
    """Return the generated name of an unnamed task."""
    return f"t{number:05}"
