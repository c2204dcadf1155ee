"""The state of a shard's runs in memory, and the definitions that they have."""

from __future__ import annotations

import heapq
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa

from latchwork.spi import mutex
from latchwork_workflows.db import definitions
from latchwork_workflows.db.runs import Stored
from latchwork_workflows.keys import x_of
from latchwork_workflows.model.caching import cache_key_of
from latchwork_workflows.model.model import Definition, TaskSpec, plan_of
from latchwork_workflows.model.settings.naming import connections_of, environments_of
from latchwork_workflows.model.validate import in_order
from latchwork_workflows.model.values import Run
from latchwork_workflows.state import Instance, InstanceState, Plan, Task, TaskState
from latchwork_workflows.state.records import OVER
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.types.registry import UnknownType

_log = logging.getLogger(__name__)

#: A clock that goes back by less is one that is set right as it goes.
_BACK_S = 2.0
#: So many instances are asked in one turn what time has brought: thousands may wait for the same moment.
MOST_DUE = 200


class SubmittedAttempt(NamedTuple):
    """The newest attempt of a task.

    Attributes:
        instance: id of the instance.
        name: of the task.
        task: the id of its row.
        n: its number.
    """

    instance: int
    name: str
    task: int
    n: int

    @property
    def x(self) -> str:
        """What it is called in keys."""
        return x_of(self.task, self.n)


class StateCache:
    """The instances of one shard that are not over."""

    def __init__(self, instances: Iterable[Stored] = ()) -> None:
        self.instances: dict[int, Stored] = {}
        #: What has to be in the backlog, and is not known to be.
        self.to_put: dict[str, SubmittedAttempt] = {}
        #: What a worker is known to have.
        self.running: dict[str, SubmittedAttempt] = {}
        #: Held tasks that may be switches without a choice, by instance and name.
        self.to_choose: dict[tuple[int, str], SubmittedAttempt] = {}
        #: Instances with something to take back or to end.
        self.to_settle: set[int] = set()
        #: Instances that wait for their turn.
        self.waiting: set[int] = set()
        self._of_task: dict[int, tuple[int, str]] = {}
        self._wakes: list[tuple[float, int]] = []
        self._again: set[int] = set()
        self._now = float("inf")  # whoever wrote what we begin with may have had another clock
        for each in instances:
            self.put(each)

    def put(self, stored: Stored) -> None:
        """An instance is this now."""
        before = self.instances.get(stored.id)
        known = stored.known
        if before is not None and (before.known.run != known.run or known.state in OVER):
            self._forget(before)
            before = None
        if known.state in OVER:
            return
        self.instances[stored.id] = stored
        old = before.known.tasks if before is not None else {}
        if before is None or len(stored.ids) != len(before.ids):
            self._of_task.update((row, (stored.id, name)) for name, row in stored.ids.items())
        is_going = _dispatches(known)
        everything = before is None or _dispatches(before.known) != is_going
        for name, task in known.tasks.items():
            if everything or old.get(name) != task:
                self._changed(stored, name, old.get(name), is_going=is_going)
        (self.waiting.add if known.state is InstanceState.SERIAL_WAIT else self.waiting.discard)(stored.id)
        (self.to_settle.add if known.to_remove or known.to_kill else self.to_settle.discard)(stored.id)
        wake_at = known.wake_at
        if wake_at is not None and (before is None or before.known.wake_at != wake_at):
            heapq.heappush(self._wakes, (wake_at, stored.id))

    def _changed(self, stored: Stored, name: str, was: Task | None, *, is_going: bool) -> None:
        row, task = stored.ids[name], stored.known.tasks[name]
        for n in {was.n if was is not None else task.n, task.n}:
            self.to_put.pop(x_of(row, n), None)
            self.running.pop(x_of(row, n), None)
        attempt = SubmittedAttempt(stored.id, name, row, task.n)
        self.to_choose.pop((stored.id, name), None)
        if task.held:  # the master has it itself
            if is_going and task.state is TaskState.RUNNING:
                self.to_choose[stored.id, name] = attempt
            return
        if task.state is TaskState.RUNNING:
            self.running[attempt.x] = attempt
        elif task.state is TaskState.SUBMITTED and is_going and task.forced_after != task.n and not task.is_overdue:
            self.to_put[attempt.x] = attempt

    def _forget(self, stored: Stored) -> None:
        self.instances.pop(stored.id, None)
        self.to_settle.discard(stored.id)
        self.waiting.discard(stored.id)
        for name, row in stored.ids.items():
            self._of_task.pop(row, None)
            self.to_choose.pop((stored.id, name), None)
            x = x_of(row, stored.known.tasks[name].n)
            self.to_put.pop(x, None)
            self.running.pop(x, None)

    def find(self, task: int, n: int) -> SubmittedAttempt | None:
        """The attempt, if it is the newest of a task of an instance that is not over."""
        instance, name = self._of_task.get(task, (0, ""))
        stored = self.instances.get(instance)
        if stored is None or stored.known.tasks[name].n != n:
            return None
        return SubmittedAttempt(instance, name, task, n)

    def state_of(self, attempt: SubmittedAttempt) -> TaskState:
        """Where the task is."""
        return self.instances[attempt.instance].known.tasks[attempt.name].state

    def due(self, now: float) -> list[int]:
        """The instances in which something is to be decided by now; each once, and no more than fit into a turn."""
        found: dict[int, None] = {}
        while self._again and len(found) < MOST_DUE:
            if (each := self._again.pop()) in self.instances:
                found[each] = None
        while self._wakes and self._wakes[0][0] <= now and len(found) < MOST_DUE:
            _, instance = heapq.heappop(self._wakes)
            stored = self.instances.get(instance)
            if stored is not None and stored.known.wake_at is not None and stored.known.wake_at <= now:
                found[instance] = None
        for instance in found:  # should the transaction fail, it is due still
            heapq.heappush(self._wakes, (now, instance))
        return list(found)

    def at(self, now: float) -> float:
        """It is so late now. After a step back all that wait for a moment are due once: theirs may be nearer."""
        if now < self._now - _BACK_S:
            if self._now < float("inf"):
                _log.warning("the clock went back by %.0f s: delays are counted anew", self._now - now)
            self._again = {each.id for each in self.instances.values() if each.known.wake_at is not None}
        self._now = now
        return now

    @property
    def next_wake(self) -> float | None:
        """When something is to be decided next; it may have been decided by then."""
        if self._again:
            return float("-inf")
        while self._wakes:
            at, instance = self._wakes[0]
            stored = self.instances.get(instance)
            if stored is not None and stored.known.wake_at is not None and stored.known.wake_at <= at:
                return at
            heapq.heappop(self._wakes)
        return None


def _dispatches(known: Instance) -> bool:
    return known.state is InstanceState.RUNNING and not known.ending


def stored_after(
    before: Stored,
    after: Instance,
    ids: Mapping[str, int],
    queue_keys: Mapping[str, str],
    outputs: Mapping[str, Mapping[str, Any]],
) -> Stored:
    """The instance as it was written: what ``load`` would read."""
    is_new_run = before.known.run != after.run
    return replace(
        before,
        known=replace(after, facts=(), calls=()),
        ids=ids,
        queue_keys={**({} if is_new_run else before.queue_keys), **queue_keys},
        outputs={**({} if is_new_run else before.outputs), **outputs},
    )


_MOST = 500


@dataclass(frozen=True)
class Version:
    """One version of a workflow.

    Attributes:
        code: of the workflow.
        number: of the version.
        definition: what it says.
        plan: what ``advance`` has to know of it.
    """

    code: int
    number: int
    definition: Definition
    plan: Plan

    @cached_property
    def width(self) -> int:
        """How many of its tasks may be with workers side by side: the most that are equally deep; a map is one."""
        depth: dict[str, int] = {}
        count: dict[int, int] = {}
        for name, rule in self.plan.rules.items():
            depth[name] = max((depth[each] + 1 for each in rule.after), default=0)
            if not rule.kind:
                count[depth[name]] = count.get(depth[name], 0) + 1
        return max(count.values(), default=0)

    @cached_property
    def may_recall(self) -> bool:
        """Whether any of its tasks may have outputs that are known."""
        return any(each.cache_s is not None for each in self.definition.tasks)

    @cached_property
    def tasks(self) -> dict[str, TaskSpec]:
        """By name."""
        return {each.name: each for each in self.definition.tasks}

    @cached_property
    def environments(self) -> frozenset[str]:
        """The environments that it names."""
        return environments_of(self.definition)

    @cached_property
    def connections(self) -> frozenset[str] | None:
        """The stored connections that it names; None: any, as a value says it."""
        return connections_of(self.definition)


class Plans:
    """Versions by workflow and number.

    Args:
        types: the task types that this process knows.
    """

    def __init__(self, types: TaskTypes | None = None) -> None:
        self._mutex = mutex()
        self._types = types or TaskTypes()
        self._known: OrderedDict[tuple[int, int], Version] = OrderedDict()

    def get(self, connection: sa.Connection, code: int, number: int) -> Version:
        """A version.

        Raises:
            UnknownWorkflow: there is none.
            ValueError: this program cannot read it.
        """
        with self._mutex:
            found = self._known.get((code, number))
            if found is not None:
                self._known.move_to_end((code, number))
                return found
        definition = definitions.load(connection, code, number)
        order = in_order({each.name: each.after for each in definition.tasks})
        made = Version(code, number, definition, plan_of(definition, order))
        with self._mutex:
            self._known[code, number] = made
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
        return made

    def cache_key(
        self, run: Run, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]], *, index: int
    ) -> str | None:
        """By what the outputs of an attempt are kept; None: they are not, also where its values cannot be filled in."""
        if task.cache_s is None:
            return None
        try:
            quoted = self._types.get(task.type).quoted
        except UnknownType:
            quoted = frozenset(task.params)  # it may look at any value
        try:
            return cache_key_of(run, task, n, outputs, quoted=quoted, index=index)
        except (KeyError, ValueError):
            return None
