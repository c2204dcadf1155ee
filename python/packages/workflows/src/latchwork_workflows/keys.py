"""The keys of workflows in the store, and the names of items. No I/O.

Keys, below ``@workflows``; see ``get_workflows_store``:

       <name>/id                       the ID of the database that belongs to this store
       <name>/pair                     the name of this store; the database has the same
       <name>/high/<shard>             transactions of the shard's owners when results were last deleted
       <name>/cluster/...              the masters' job manager: shards are items of a job
       <name>/backlog/...              queued tasks for workers; see ``primitives.WorkQueue``
       <name>/shards/<shard>/...       watched by the shard's master:
         .../running/<x>               the worker of an attempt; written by the claim, bound to the worker's session
         .../results/<x>               the result of an attempt; deleted once it is in the database
         .../poke                      signals the master to check for work
       <name>/cancels/<x>              a cancel request: end the attempt, and do not claim it again
       <name>/data/<x>                 the second part of a large spec; deleted with the item
       <name>/slots/<pool>/size        the size of a pool; see ``worker.pools``
       <name>/slots/<pool>/<i>         a slot; written by a claim, bound to the worker's session
       <name>/workers/...              the workers; see ``primitives.Group``

``x`` is ``<task>.<n>``: the ID of the task's row, which is a new one for each rerun, and the number of the attempt. A
partition is a worker group, or ``<worker group>~<pool>``: workers skip the partitions of full pools, not single items.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

from latchwork.errors import InvalidKey
from latchwork.spi import MAX_WHOLE, short
from latchwork.store import Store, system_namespace
from latchwork_workflows.schemas.pools import get_project_of_pool

#: The order in which tasks are taken, after the priority of the run: by run, or by submission.
Order = Literal["run", "submitted"]

_ITEM = re.compile(r"(\d{2})(\d{20})\.(\d{1,9})\.(\d{1,3})", re.ASCII)
_X = re.compile(r"(\d{1,19})\.(\d{1,9})", re.ASCII)
#: The prefix of the name of a project's pool in keys.
PROJECT = "="
#: Longer names of projects are replaced by their hash in keys.
_LONG = 60
_BETWEEN = "~"


@dataclass(frozen=True, slots=True)
class ItemName:
    """The parts of a queue item's ID.

    Attributes:
        task: The ID of the task's row.
        n: The number of the attempt.
        shard: The shard whose master is notified.
        priority: The priority of the task in its run, 0 to 4.
    """

    task: int
    n: int
    shard: int
    priority: int = 2

    @property
    def attempt_key(self) -> str:
        """The attempt as part of store keys: ``<task ID>.<attempt number>``."""
        return format_attempt_key(self.task, self.n)

    @property
    def id(self) -> str:
        """The ID of the queue item. IDs sort lexicographically by priority, then by task."""
        return f"{self.priority:02d}{self.task:020d}.{self.n}.{self.shard}"

    @classmethod
    def parse(cls, item_id: str) -> ItemName:
        """Parse the ID of a queue item.

        Raises:
            InvalidKey: The ID is malformed.
        """
        found = _ITEM.fullmatch(item_id)
        if found is None:
            raise InvalidKey(f"{short(item_id)} is not an item name of workflows")
        priority, task, n, shard = (int(each) for each in found.groups())
        return cls(task, n, shard, priority)


def get_workflows_store(store: Store) -> Store:
    """Return a view of the store that contains only the keys of workflows, below ``@workflows``."""
    return system_namespace(store, "workflows")


class Keys:
    """The keys of one installation."""

    def __init__(self, name: str = "default") -> None:
        self.name = name
        self.id = f"{name}/id"
        self.pair = f"{name}/pair"
        self.high_marks = f"{name}/high"
        self.cluster = f"{name}/cluster"
        self.backlog = f"{name}/backlog"
        self.cancels = f"{name}/cancels"
        self.slots = f"{name}/slots"
        self.workers = f"{name}/workers"
        self.every_data = f"{name}/data"
        self.shards = f"{name}/shards"

    def restore_mark_key(self, shard: int) -> str:
        """Return the key that shows whether the database was restored from an older backup."""
        return f"{self.high_marks}/{format_shard_name(shard)}"

    def shard_prefix(self, shard: int) -> str:
        """Return the prefix of the keys that the master of a shard watches."""
        return f"{self.shards}/{format_shard_name(shard)}"

    def running_prefix(self, shard: int) -> str:
        """Return the prefix of the claim keys of a shard. Each names the worker of a running attempt."""
        return f"{self.shard_prefix(shard)}/running"

    def running_key(self, shard: int, attempt_key: str) -> str:
        """Return the key that names the worker of a running attempt."""
        return f"{self.running_prefix(shard)}/{attempt_key}"

    def results_prefix(self, shard: int) -> str:
        """Return the prefix of the results of a shard."""
        return f"{self.shard_prefix(shard)}/results"

    def result_key(self, shard: int, attempt_key: str) -> str:
        """Return the key of the result of an attempt."""
        return f"{self.results_prefix(shard)}/{attempt_key}"

    def cancel_key(self, attempt_key: str) -> str:
        """Return the key of a cancel request. The worker of the attempt stops it, and no other worker claims it."""
        return f"{self.cancels}/{attempt_key}"

    def data_key(self, attempt_key: str) -> str:
        """Return the key of the second part of a task spec, for specs that are too large for one queue item."""
        return f"{self.every_data}/{attempt_key}"

    def notify_key(self, shard: int) -> str:
        """Return the key that notifies the master of a shard when it is written."""
        return f"{self.shard_prefix(shard)}/poke"

    def pool_size_key(self, pool: str) -> str:
        """Return the key of the size of a pool, which is stored as a number.

        Args:
            pool: The key of the pool, from ``pool_key``.
        """
        return f"{self.slots}/{pool}/size"

    def slot_key(self, pool: str, number: int) -> str:
        """Return the key of a slot of a pool. Slots are numbered from 0."""
        return f"{self.slots}/{pool}/{number}"


def format_shard_name(shard: int) -> str:
    """Return the name of a shard in store keys. It is also the job item that the masters' job manager assigns."""
    return f"{shard:02d}"


def format_attempt_key(task: int, attempt_number: int) -> str:
    """Return an attempt as part of store keys: ``<task ID>.<attempt number>``."""
    return f"{task}.{attempt_number}"


def parse_attempt_key(attempt_key: str) -> tuple[int, int]:
    """Parse the part of a store key that names an attempt. Return the task ID and the attempt number.

    Raises:
        InvalidKey: The text is malformed.
    """
    found = _X.fullmatch(attempt_key)
    if found is None or int(found[1]) > MAX_WHOLE:
        raise InvalidKey(f"{short(attempt_key)} is not an attempt name")
    return int(found[1]), int(found[2])


def is_attempt_key(attempt_key: str) -> bool:
    """Return whether a text names an attempt as in store keys: ``<task ID>.<attempt number>``."""
    try:
        parse_attempt_key(attempt_key)
    except InvalidKey:
        return False
    return True


def build_partition(worker_group: str, *pools: str) -> str:
    """Return the work queue partition for tasks of a worker group that each need a slot of these pools."""
    return _BETWEEN.join([worker_group, *map(build_pool_key, pools)])


def build_pool_key(pool: str) -> str:
    """Return the name of a pool in keys.

    The pool of a project becomes ``=<project>``, or ``=`` and a hash if that is too long.
    """
    project = get_project_of_pool(pool)
    if project is None:
        return pool
    return PROJECT + (project if len(project) <= _LONG else hashlib.sha256(project.encode()).hexdigest()[:32])


def get_worker_group(partition: str) -> str:
    """Return the worker group whose tasks are in a partition."""
    return partition.partition(_BETWEEN)[0]


def list_pool_keys(partition: str) -> tuple[str, ...]:
    """Return the pools of which each task in a partition needs a slot, as named in store keys."""
    return tuple(partition.split(_BETWEEN)[1:])


def build_sort_key(order: Order, run_id: int, run_priority: int, task_priority: int, submitted_at: float) -> str:
    """Return the sort key of a task, which decides when workers claim it within its partition.

    Args:
        order: The order in which tasks are claimed.
        run_id: The ID of the run.
        run_priority: The priority of the run, from 0 (first) to 4.
        task_priority: The priority of the task in its run, from 0 (first) to 4.
        submitted_at: Seconds since the epoch. Tasks of one minute share a sort key.
    """
    if order == "run":
        return f"{run_priority:02d}{run_id:020d}"
    return f"{run_priority:02d}{task_priority:02d}{int(submitted_at) // 60:09d}"


def build_result_file_name(log: str) -> str:
    """Return the name of the file that stores the query result of an attempt until it is mailed.

    Args:
        log: The reference of the attempt's log.
    """
    return f"{log.removesuffix('.log')}.rows"


def build_log_ref(code: int, run_id: int, attempt_key: str, claim: int) -> str:
    """Return the reference of an attempt's log. Each claim of an attempt has a separate log.

    Args:
        code: The ID of the workflow.
        run_id: The ID of the run.
        attempt_key: ``<task ID>.<attempt number>``.
        claim: The fencing token of the claim. Each claim of an attempt has a greater one.
    """
    task, n = parse_attempt_key(attempt_key)
    return f"{code}/{run_id}/{task}/{n}.{claim}.log"
