"""The keys of workflows in the store, and the names of items. Nothing here does I/O.

Keys, below ``@workflows``; see ``workflows_store``:

       <name>/id                       which database belongs to this store
       <name>/pair                     which of all stores it is; the database has the same
       <name>/high/<shard>             transactions of the shard's owners when results were last deleted
       <name>/cluster/...              the masters' job manager: shards are items of a job
       <name>/backlog/...              tasks that workers take; see ``primitives.WorkQueue``
       <name>/shards/<shard>/...       what the shard's master follows, by one watch:
         .../running/<x>               who runs an attempt; written by the claim, dies with the worker's session
         .../results/<x>               how an attempt ended; written by its end, deleted once it is in the database
         .../poke                      look now
       <name>/cancels/<x>              an attempt that is to be ended, and not taken again
       <name>/data/<x>                 the second part of a large spec; deleted with the item
       <name>/slots/<pool>/size        how many tasks of a pool run at a time; see ``worker.pools``
       <name>/slots/<pool>/<i>         one of them; written by a claim, bound to the worker's session
       <name>/workers/...              the workers; see ``primitives.Group``

``x`` is ``<task>.<n>``: the id of the task's row, which a rerun has another of, and the number of the attempt. A lane
is a worker group, or ``<worker group>~<pool>``: a worker skips the lanes of full pools, not single items.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

from latchwork.errors import InvalidKey
from latchwork.spi import MAX_WHOLE, short
from latchwork.store import Store, system_namespace
from latchwork_workflows.schemas.pools import project_of

#: How tasks are taken: by instance, or as they were submitted; in both by the priority of the instance first.
Order = Literal["instance", "submitted"]

_ITEM = re.compile(r"(\d{2})(\d{20})\.(\d{1,9})\.(\d{1,3})", re.ASCII)
_X = re.compile(r"(\d{1,19})\.(\d{1,9})", re.ASCII)
#: The name of a project's pool in keys begins with this.
PROJECT = "="
#: A longer name of a project is replaced by its hash in keys.
_LONG = 60
_BETWEEN = "~"


@dataclass(frozen=True, slots=True)
class Item:
    """What the name of an item says.

    Attributes:
        task: the id of the task's row.
        n: the number of the attempt.
        shard: whose master is told of it.
        priority: of the task in its instance, 0 to 4.
    """

    task: int
    n: int
    shard: int
    priority: int = 2

    @property
    def x(self) -> str:
        """What the attempt is called in other keys."""
        return x_of(self.task, self.n)

    @property
    def id(self) -> str:
        """The name itself; as text in the order of priority, then of tasks."""
        return f"{self.priority:02d}{self.task:020d}.{self.n}.{self.shard}"

    @classmethod
    def of(cls, item_id: str) -> Item:
        """What a name says.

        Raises:
            InvalidKey: nobody of ours made it.
        """
        found = _ITEM.fullmatch(item_id)
        if found is None:
            raise InvalidKey(f"{short(item_id)} is no name of an item of workflows")
        priority, task, n, shard = (int(each) for each in found.groups())
        return cls(task, n, shard, priority)


def workflows_store(store: Store) -> Store:
    """The store in which workflows have their keys: below ``@workflows``."""
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

    def high(self, shard: int) -> str:
        """The mark that a database from before is known by."""
        return f"{self.high_marks}/{shard_name(shard)}"

    def shard(self, shard: int) -> str:
        """The prefix of all that a shard's master follows."""
        return f"{self.shards}/{shard_name(shard)}"

    def running_of(self, shard: int) -> str:
        """The prefix of the attempts of a shard that run."""
        return f"{self.shard(shard)}/running"

    def running(self, shard: int, x: str) -> str:
        """Who runs an attempt."""
        return f"{self.running_of(shard)}/{x}"

    def results_of(self, shard: int) -> str:
        """The prefix of a shard's results."""
        return f"{self.shard(shard)}/results"

    def result(self, shard: int, x: str) -> str:
        """How an attempt ended."""
        return f"{self.results_of(shard)}/{x}"

    def cancel(self, x: str) -> str:
        """Tells the worker that has it to end an attempt, and the others not to take it."""
        return f"{self.cancels}/{x}"

    def data(self, x: str) -> str:
        """The second part of a large spec."""
        return f"{self.every_data}/{x}"

    def poke(self, shard: int) -> str:
        """Tells the shard's master to look now."""
        return f"{self.shard(shard)}/poke"

    def pool_size(self, pool: str) -> str:
        """The size of a pool, by its name in keys: a number as text."""
        return f"{self.slots}/{pool}/size"

    def slot(self, pool: str, number: int) -> str:
        """One of the slots of a pool, from 0."""
        return f"{self.slots}/{pool}/{number}"


def shard_name(shard: int) -> str:
    """What a shard is called in keys, and as an item of the masters' job."""
    return f"{shard:02d}"


def x_of(task: int, n: int) -> str:
    """What an attempt is called."""
    return f"{task}.{n}"


def attempt_of(x: str) -> tuple[int, int]:
    """The id of the task's row, and the number of the attempt.

    Raises:
        InvalidKey: nobody of ours made this name.
    """
    found = _X.fullmatch(x)
    if found is None or int(found[1]) > MAX_WHOLE:
        raise InvalidKey(f"{short(x)} is no name of an attempt")
    return int(found[1]), int(found[2])


def is_attempt(x: str) -> bool:
    """Return whether this is the name of an attempt."""
    try:
        attempt_of(x)
    except InvalidKey:
        return False
    return True


def lane_of(worker_group: str, *pools: str) -> str:
    """Return the partition for tasks of a worker group that need a slot of each of these pools."""
    return _BETWEEN.join([worker_group, *map(pool_key, pools)])


def pool_key(pool: str) -> str:
    """Return the name of a pool in keys: of a project ``=<project>``, or ``=`` and a hash if that is long."""
    project = project_of(pool)
    if project is None:
        return pool
    return PROJECT + (project if len(project) <= _LONG else hashlib.sha256(project.encode()).hexdigest()[:32])


def worker_group_of(lane: str) -> str:
    """Return the worker group of a partition."""
    return lane.partition(_BETWEEN)[0]


def pools_of(lane: str) -> tuple[str, ...]:
    """Return the pools of which a task of a partition needs a slot each, by their names in keys."""
    return tuple(lane.split(_BETWEEN)[1:])


def shelf_of(order: Order, instance: int, instance_priority: int, task_priority: int, submitted_at: float) -> str:
    """Where in its lane a task is.

    Args:
        order: by what tasks are taken.
        instance: id of the instance.
        instance_priority: 0, the first, to 4.
        task_priority: likewise.
        submitted_at: seconds since the epoch; those of one minute share a shelf.
    """
    if order == "instance":
        return f"{instance_priority:02d}{instance:020d}"
    return f"{instance_priority:02d}{task_priority:02d}{int(submitted_at) // 60:09d}"


def rows_ref(log: str) -> str:
    """Where the rows of an attempt are that are to be mailed, by the place of its log."""
    return f"{log.removesuffix('.log')}.rows"


def log_ref(code: int, instance: int, x: str, claim: int) -> str:
    """Where the log of a run of an attempt is: nobody else ever writes there.

    Args:
        code: of the workflow.
        instance: id of the instance.
        x: the attempt.
        claim: the token of its claim.
    """
    task, n = attempt_of(x)
    return f"{code}/{instance}/{task}/{n}.{claim}.log"
