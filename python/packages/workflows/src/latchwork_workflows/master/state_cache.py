"""The runs of a shard in memory, and the definitions that they use."""

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
from latchwork_workflows.db.runs import StoredRun
from latchwork_workflows.keys import format_attempt_key
from latchwork_workflows.model.cache_key import compute_cache_key
from latchwork_workflows.model.definition import Definition, TaskSpec, build_plan
from latchwork_workflows.model.settings.usage import list_connections, list_environments
from latchwork_workflows.model.validate import sort_topologically
from latchwork_workflows.model.values import RunContext
from latchwork_workflows.state import RunState, TaskRun, TaskState, WorkflowPlan, WorkflowRun
from latchwork_workflows.state.records import OVER
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.types.registry import UnknownType

_log = logging.getLogger(__name__)

#: A smaller backward clock step is a normal adjustment and is ignored.
_BACK_S = 2.0
#: Maximum number of runs that are woken in one iteration of the shard loop. Thousands may wait for the same time.
MAX_DUE = 200


class SubmittedAttempt(NamedTuple):
    """The newest attempt of a task.

    Attributes:
        run_id: ID of the run.
        name: Name of the task.
        task: ID of the task's row.
        n: Number of the attempt.
    """

    run_id: int
    name: str
    task: int
    n: int

    @property
    def attempt_key(self) -> str:
        """The name of the attempt in keys, ``<task>.<attempt number>``."""
        return format_attempt_key(self.task, self.n)


class StateCache:
    """The active runs of one shard, held in memory."""

    def __init__(self, runs: Iterable[StoredRun] = ()) -> None:
        self.runs: dict[int, StoredRun] = {}
        #: Attempts that must be in the work queue and are not known to be.
        self.to_put: dict[str, SubmittedAttempt] = {}
        #: Attempts that a worker is known to have.
        self.running: dict[str, SubmittedAttempt] = {}
        #: Held tasks that may be switches without a choice, by run and name.
        self.to_choose: dict[tuple[int, str], SubmittedAttempt] = {}
        #: Runs with attempts to withdraw or cancel.
        self.to_settle: set[int] = set()
        #: Runs that wait for their concurrency limit.
        self.waiting: set[int] = set()
        self._of_task: dict[int, tuple[int, str]] = {}
        self._wakes: list[tuple[float, int]] = []
        self._again: set[int] = set()
        self._now = float("inf")  # the node that wrote the initial state may have had another clock
        for each in runs:
            self.update_run(each)

    def update_run(self, stored: StoredRun) -> None:
        """Replace the state of a run after it was stored."""
        before = self.runs.get(stored.id)
        known = stored.known
        if before is not None and (before.known.round != known.round or known.state in OVER):
            self._remove_run(before)
            before = None
        if known.state in OVER:
            return
        self.runs[stored.id] = stored
        old = before.known.tasks if before is not None else {}
        if before is None or len(stored.ids) != len(before.ids):
            self._of_task.update((row, (stored.id, name)) for name, row in stored.ids.items())
        is_going = _may_dispatch(known)
        everything = before is None or _may_dispatch(before.known) != is_going
        for name, task in known.tasks.items():
            if everything or old.get(name) != task:
                self._update_task(stored, name, old.get(name), is_going=is_going)
        (self.waiting.add if known.state is RunState.SERIAL_WAIT else self.waiting.discard)(stored.id)
        (self.to_settle.add if known.tasks_to_withdraw or known.tasks_to_kill else self.to_settle.discard)(stored.id)
        wake_at = known.wake_at
        if wake_at is not None and (before is None or before.known.wake_at != wake_at):
            heapq.heappush(self._wakes, (wake_at, stored.id))

    def _update_task(self, stored: StoredRun, name: str, was: TaskRun | None, *, is_going: bool) -> None:
        row, task = stored.ids[name], stored.known.tasks[name]
        for n in {was.n if was is not None else task.n, task.n}:
            self.to_put.pop(format_attempt_key(row, n), None)
            self.running.pop(format_attempt_key(row, n), None)
        attempt = SubmittedAttempt(stored.id, name, row, task.n)
        self.to_choose.pop((stored.id, name), None)
        if task.runs_on_master:  # the master runs it itself
            if is_going and task.state is TaskState.RUNNING:
                self.to_choose[stored.id, name] = attempt
            return
        if task.state is TaskState.RUNNING:
            self.running[attempt.attempt_key] = attempt
        elif task.state is TaskState.SUBMITTED and is_going and task.forced_after != task.n and not task.is_overdue:
            self.to_put[attempt.attempt_key] = attempt

    def _remove_run(self, stored: StoredRun) -> None:
        self.runs.pop(stored.id, None)
        self.to_settle.discard(stored.id)
        self.waiting.discard(stored.id)
        for name, row in stored.ids.items():
            self._of_task.pop(row, None)
            self.to_choose.pop((stored.id, name), None)
            x = format_attempt_key(row, stored.known.tasks[name].n)
            self.to_put.pop(x, None)
            self.running.pop(x, None)

    def find_attempt(self, task_id: int, attempt_number: int) -> SubmittedAttempt | None:
        """Return the attempt with this task ID and number. None if it is not the newest attempt of a task in an active
        run.
        """
        run_id, name = self._of_task.get(task_id, (0, ""))
        stored = self.runs.get(run_id)
        if stored is None or stored.known.tasks[name].n != attempt_number:
            return None
        return SubmittedAttempt(run_id, name, task_id, attempt_number)

    def get_task_state(self, attempt: SubmittedAttempt) -> TaskState:
        """Return the current state of the task of an attempt."""
        return self.runs[attempt.run_id].known.tasks[attempt.name].state

    def list_due_runs(self, now: float) -> list[int]:
        """Return the IDs of the runs that have a timer due, without duplicates and at most ``MAX_DUE``."""
        found: dict[int, None] = {}
        while self._again and len(found) < MAX_DUE:
            if (each := self._again.pop()) in self.runs:
                found[each] = None
        while self._wakes and self._wakes[0][0] <= now and len(found) < MAX_DUE:
            _, run_id = heapq.heappop(self._wakes)
            stored = self.runs.get(run_id)
            if stored is not None and stored.known.wake_at is not None and stored.known.wake_at <= now:
                found[run_id] = None
        for run_id in found:  # still due if the transaction fails
            heapq.heappush(self._wakes, (now, run_id))
        return list(found)

    def update_time(self, now: float) -> float:
        """Set the current time and return it.

        If the clock was set back, all waiting runs become due once, so that their wake-up times are corrected.
        """
        if now < self._now - _BACK_S:
            if self._now < float("inf"):
                _log.warning("the clock went back by %.0f s: delays are counted again", self._now - now)
            self._again = {each.id for each in self.runs.values() if each.known.wake_at is not None}
        self._now = now
        return now

    @property
    def next_timer_at(self) -> float | None:
        """The earliest time at which a timer of a run is due, in seconds since the epoch. None if there is no timer."""
        if self._again:
            return float("-inf")
        while self._wakes:
            at, run_id = self._wakes[0]
            stored = self.runs.get(run_id)
            if stored is not None and stored.known.wake_at is not None and stored.known.wake_at <= at:
                return at
            heapq.heappop(self._wakes)
        return None


def _may_dispatch(known: WorkflowRun) -> bool:
    return known.state is RunState.RUNNING and not known.ending


def build_stored_run(
    before: StoredRun,
    after: WorkflowRun,
    ids: Mapping[str, int],
    queue_keys: Mapping[str, str],
    outputs: Mapping[str, Mapping[str, Any]],
) -> StoredRun:
    """Return a run as it is stored after a write, without reading it from the database.

    Args:
        before: The run before the write.
        after: The new state.
        ids: IDs of its tasks, by name.
        queue_keys: Queue keys of the tasks that were submitted by this write, by name.
        outputs: Outputs of the tasks that have ended by this write, by name.
    """
    is_new_run = before.known.round != after.round
    return replace(
        before,
        known=replace(after, timeline_events=(), calls=()),
        ids=ids,
        queue_keys={**({} if is_new_run else before.queue_keys), **queue_keys},
        outputs={**({} if is_new_run else before.outputs), **outputs},
    )


_MAX = 500


@dataclass(frozen=True)
class LoadedVersion:
    """One version of a workflow, loaded from the database.

    Attributes:
        code: ID of the workflow.
        number: Number of the version.
        definition: Its definition.
        plan: The part that ``advance`` needs.
    """

    code: int
    number: int
    definition: Definition
    plan: WorkflowPlan

    @cached_property
    def parallelism(self) -> int:
        """An estimate of how many tasks run in parallel: the largest number of worker tasks at the same depth of the
        graph.

        A map task counts as one task.
        """
        depth: dict[str, int] = {}
        count: dict[int, int] = {}
        for name, rule in self.plan.rules.items():
            depth[name] = max((depth[each] + 1 for each in rule.after), default=0)
            if not rule.kind:
                count[depth[name]] = count.get(depth[name], 0) + 1
        return max(count.values(), default=0)

    @cached_property
    def uses_cache(self) -> bool:
        """Whether any task may reuse cached outputs."""
        return any(each.cache_s is not None for each in self.definition.tasks)

    @cached_property
    def tasks(self) -> dict[str, TaskSpec]:
        """The tasks of the definition, by name."""
        return {each.name: each for each in self.definition.tasks}

    @cached_property
    def environments(self) -> frozenset[str]:
        """The names of the environments that the definition refers to."""
        return list_environments(self.definition)

    @cached_property
    def connections(self) -> frozenset[str] | None:
        """The names of the stored connections that the definition refers to.

        None: any name, because it is computed at run time.
        """
        return list_connections(self.definition)


class VersionCache:
    """A cache of workflow versions, by workflow and version number. Thread-safe.

    Args:
        types: Task types that this process knows.
    """

    def __init__(self, types: TaskTypes | None = None) -> None:
        self._mutex = mutex()
        self._types = types or TaskTypes()
        self._known: OrderedDict[tuple[int, int], LoadedVersion] = OrderedDict()

    def get(self, connection: sa.Connection, code: int, number: int) -> LoadedVersion:
        """Return a version of a workflow. It is read from the database if it is not cached.

        Raises:
            NotFound: The version does not exist.
            ValueError: This program cannot read it.
        """
        with self._mutex:
            found = self._known.get((code, number))
            if found is not None:
                self._known.move_to_end((code, number))
                return found
        definition = definitions.load_definition(connection, code, number)
        order = sort_topologically({each.name: each.after for each in definition.tasks})
        made = LoadedVersion(code, number, definition, build_plan(definition, order))
        with self._mutex:
            self._known[code, number] = made
            while len(self._known) > _MAX:
                self._known.popitem(last=False)
        return made

    def compute_cache_key(
        self, run: RunContext, task: TaskSpec, n: int, outputs: Mapping[str, Mapping[str, Any]], *, index: int
    ) -> str | None:
        """Return the key under which the outputs of an attempt are cached.

        Args:
            run: The run with its settings.
            task: The task.
            n: Number of the attempt.
            outputs: Outputs of the tasks that have ended, by name.
            index: Index of the element of a map task. -1 for other tasks.
        Returns:
            None if caching is not enabled for the task, or its parameters cannot be resolved.
        """
        if task.cache_s is None:
            return None
        try:
            quoted = self._types.get(task.type).quoted
        except UnknownType:
            quoted = frozenset(task.params)  # it may read any value
        try:
            return compute_cache_key(run, task, n, outputs, quoted=quoted, index=index)
        except (KeyError, ValueError):
            return None
