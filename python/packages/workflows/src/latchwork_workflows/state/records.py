"""State of a run and its tasks, and the mutable copy that ``advance`` works on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from latchwork_workflows.state.conditions import Condition


class RunState(StrEnum):
    """State of a run."""

    SUBMITTED = "submitted"
    SERIAL_WAIT = "serial_wait"
    RUNNING = "running"
    READY_PAUSE = "ready_pause"
    PAUSED = "paused"
    READY_STOP = "ready_stop"
    STOPPED = "stopped"
    SUCCESS = "success"
    FAILURE = "failure"


class TaskState(StrEnum):
    """State of a task."""

    WAITING = "waiting"
    DELAYED = "delayed"
    READY = "ready"
    SUBMITTED = "submitted"
    RUNNING = "running"
    RETRY_WAIT = "retry_wait"
    PAUSED = "paused"
    SUCCESS = "success"
    FORCED_SUCCESS = "forced_success"
    SKIPPED = "skipped"
    FAILURE = "failure"
    KILLED = "killed"


class OnFailure(StrEnum):
    """How the other tasks continue after a task has finally failed."""

    CONTINUE = "continue"
    END = "end"


class OnTimeout(StrEnum):
    """Action when a time limit is exceeded."""

    WARN = "warn"
    FAIL = "fail"
    BOTH = "both"


class Scope(StrEnum):
    """Which other tasks run when a run starts from chosen tasks."""

    ONLY = "only"
    DOWNSTREAM = "downstream"
    UPSTREAM = "upstream"


#: Successors of a task in one of these states may start.
DONE = frozenset({TaskState.SUCCESS, TaskState.FORCED_SUCCESS, TaskState.SKIPPED})
#: A task in one of these states stays in it unless the run is recovered.
FAILED = frozenset({TaskState.FAILURE, TaskState.KILLED})
#: A worker has claimed such a task, or may claim it at any time.
AT_WORKERS = frozenset({TaskState.SUBMITTED, TaskState.RUNNING})
#: Such a task changes its state without a command.
UNFINISHED = AT_WORKERS | {TaskState.DELAYED, TaskState.READY, TaskState.RETRY_WAIT}
#: Kind of timeline event, and reason of failure for an attempt that no worker claimed in time.
NOT_TAKEN = "not_taken"
#: Kinds of tasks that the master runs itself.
LOGICAL = frozenset({"sub_process", "dependent", "conditions", "switch"})
#: A run in one of these states changes only by a command.
OVER = frozenset({RunState.PAUSED, RunState.STOPPED, RunState.SUCCESS, RunState.FAILURE})
#: Maximum number of queued and running tasks of a run. Keeps the work queue and the store small.
MAX_IN_HANDS = 500


@dataclass(frozen=True, slots=True)
class TaskRule:
    """The part of a task's definition that ``advance`` needs.

    Attributes:
        after: Tasks that it waits for.
        retries: Maximum number of automatic retries.
        retry_interval_s: Seconds from a failure to the next try.
        delay_s: Seconds to wait once the task could start.
        timeout_s: Maximum seconds of one attempt, counted from its claim. None: unlimited.
        on_timeout: Action on timeout. The worker kills the attempt. The master only warns.
        enabled: If False, the task is skipped, which counts as success.
        kind: One of ``LOGICAL`` if the master runs the task itself. Empty: a worker runs it.
        heads: Of conditions and a switch: the first tasks of the branches.
        when: Of conditions: the condition for the first branch.
        branches: Of conditions: the heads of the first branch and of the other branch.
        maps: The task runs once for each item of a list, as a separate task for each item.
        map_parallel: Maximum number of elements at a time. None: the limit of a run.
        wait_s: Of a dependent: seconds to continue waiting after it has seen a failure.
        max_queued_s: Seconds in the queue after which an attempt fails if no worker claimed it. None: unlimited.
    """

    after: tuple[str, ...] = ()
    retries: int = 0
    retry_interval_s: float = 60.0
    delay_s: float = 0.0
    timeout_s: float | None = None
    on_timeout: OnTimeout = OnTimeout.FAIL
    enabled: bool = True
    kind: str = ""
    heads: tuple[str, ...] = ()
    when: Condition | None = None
    branches: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    maps: bool = False
    map_parallel: int | None = None
    wait_s: float = 0.0
    max_queued_s: float | None = None


def get_map_name(name: str) -> str:
    """Return the name of the map task to which an element belongs. Names of other tasks are returned unchanged."""
    return name.partition("[")[0]


def get_element_index(name: str) -> int:
    """Return the index of a map task's element, or -1 for any other task."""
    _, bracket, rest = name.partition("[")
    return int(rest[:-1]) if bracket else -1


def build_element_name(base: str, index: int) -> str:
    """Return the task name of an element of a map task, such as ``load[2]``.

    Args:
        base: Name of the map task.
        index: Index of the element. -1 stands for the map task itself.
    """
    return base if index < 0 else f"{base}[{index}]"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """Selects the timeline events of a workflow's runs that cause alerts.

    Attributes:
        on: Ends of a run that cause an alert: ``none``, ``success``, ``failure``, ``all``.
        timeouts: Alert when a time limit is exceeded and ``on_timeout`` warns.
        failover: Alert when the worker of an attempt or the master of a run died.
    """

    on: str = "failure"
    timeouts: bool = True
    failover: bool = False


@dataclass(frozen=True)
class WorkflowPlan:
    """Content of a version of a definition, shared by all runs of that version. Thread-safe.

    Attributes:
        rules: By task name. Each task comes after its predecessors.
        on_failure: How the other tasks continue after a task has finally failed.
        timeout_s: Maximum seconds of a run. None: unlimited.
        on_timeout: Action when a run exceeds ``timeout_s``.
        alerts: Which timeline events cause alerts. None: no alerts.
    """

    rules: Mapping[str, TaskRule]
    on_failure: OnFailure = OnFailure.CONTINUE
    timeout_s: float | None = None
    on_timeout: OnTimeout = OnTimeout.WARN
    alerts: AlertRule | None = None

    @cached_property
    def successors(self) -> Mapping[str, tuple[str, ...]]:
        """The direct successors of each task, in the order of the definition."""
        found: dict[str, list[str]] = {name: [] for name in self.rules}
        for name, rule in self.rules.items():
            for before in rule.after:
                found[before].append(name)
        return {name: tuple(after) for name, after in found.items()}

    def get_rule(self, name: str) -> TaskRule:
        """Return the rule of a task: what its definition says about order, retries, timeouts and branches.

        An element of a map has the rule of the map.
        """
        return self.rules[get_map_name(name)]

    def get_kind(self, name: str) -> str:
        """Return what runs a task: empty for a worker, ``map`` for a map task, or the type of another master task.

        An element of a map has the kind of the task that the map repeats.
        """
        rule = self.get_rule(name)
        return "map" if rule.maps and name in self.rules else rule.kind

    @cached_property
    def handled_failures(self) -> frozenset[str]:
        """The tasks whose failure does not fail the run, because a ``conditions`` task evaluates it."""
        return frozenset(each for rule in self.rules.values() if rule.kind == "conditions" for each in rule.after)

    @cached_property
    def deciding_tasks(self) -> Mapping[str, tuple[str, ...]]:
        """The ``conditions`` and ``switch`` tasks that decide whether a branch runs, by the branch's first task."""
        found: dict[str, list[str]] = {}
        for name, rule in self.rules.items():
            for head in rule.heads:
                found.setdefault(head, []).append(name)
        return {name: tuple(forks) for name, forks in found.items()}

    def find_connected_tasks(self, names: Iterable[str], *, upstream: bool = False) -> frozenset[str]:
        """Return the given tasks with all tasks downstream of them.

        Args:
            names: Names of tasks.
            upstream: Include all tasks upstream of them instead.
        """
        seen = set(names)
        open_ = list(seen)
        while open_:
            name = open_.pop()
            for each in self.rules[name].after if upstream else self.successors[name]:
                if each not in seen:
                    seen.add(each)
                    open_.append(each)
        return frozenset(seen)


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One task of one run.

    Attributes:
        state: Current state.
        n: Number of its newest attempt. 0 before the first is submitted.
        failures: Failed attempts since the task was last started or recovered.
        wake_at: Time of its next transition. Delayed or waiting for a retry: when it becomes ready. Running: when it
            exceeds its time limit. Queued: when it exceeds its queue limit, and None from then on.
        forced_after: Attempts with higher numbers do not wait for slots. None: all do.
        runs_on_master: Whether the task is running on the master instead of on a worker.
        fails_at: Time at which it fails if the master runs it and it still waits, or queued and not claimed.
        is_cut: Skipped because no branch that leads to it was chosen. Tasks that only follow cut tasks are skipped too.
        chosen: Of conditions and a switch: the heads of the chosen branch. None: no choice was made, so all branches
            continue once the task is done.
    """

    state: TaskState = TaskState.WAITING
    n: int = 0
    failures: int = 0
    wake_at: float | None = None
    forced_after: int | None = None
    runs_on_master: bool = False
    fails_at: float | None = None
    is_cut: bool = False
    chosen: tuple[str, ...] | None = None

    def with_state(self, state: TaskState, *, wake_at: float | None = None) -> TaskRun:
        """Return a copy of the task in another state. It no longer counts as run by the master."""
        return replace(self, state=state, wake_at=wake_at, runs_on_master=False, fails_at=None)

    def reset(self) -> TaskRun:
        """Return a copy of the task in state WAITING, as if it had never been started."""
        return replace(self.with_state(TaskState.WAITING), failures=0, forced_after=None, is_cut=False, chosen=None)

    @property
    def is_at_worker(self) -> bool:
        """Whether a worker has claimed the task or may claim it at any time."""
        return self.state in AT_WORKERS and not self.runs_on_master

    @property
    def is_overdue(self) -> bool:
        """Whether the task must be withdrawn because no worker has claimed it in time."""
        return self.state is TaskState.SUBMITTED and self.fails_at is not None and self.wake_at is None


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An event that the timeline of a run shows and that may cause an alert, such as a failure or a retry.

    Attributes:
        kind: ``success``, ``failure``, ``stopped``, ``paused``, ``timeout``, ``failover``, ``retry``, or ``not_taken``:
            no worker claimed it in time.
        task: Name of the task. Empty for the run.
        n: Number of the attempt. 0 for the run.
    """

    kind: str
    task: str = ""
    n: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """An action of the master for a task that it runs itself, in the transaction that requested it.

    Attributes:
        kind: Sub-process: ``open``, ``pause``, ``resume``, ``stop`` its child. Dependent: ``look`` checks its
            dependencies, ``forget`` deletes its registration. Switch: ``choose``. Map: ``expand`` it into its items,
            ``gather`` their outputs.
        task: Name of the task.
    """

    kind: str
    task: str


@dataclass(frozen=True, slots=True)
class WorkflowRun:
    """State of one run, as the owner of its shard knows it.

    Attributes:
        state: Current state.
        tasks: By name. Contains all tasks of the plan once the run is started.
        round: Starts at 1 and increases with each rerun.
        ending: Why no more tasks start and the running ones are killed: ``failure`` with ``on_failure="end"``, or
            ``timeout``. Empty otherwise.
        warn_at: When the run exceeds its time limit. None: no limit, or already reported.
        dry: Every task succeeds without running.
        fresh: Every task runs, even if a cached result exists.
        timeline_events: What happened in the change that led to this state.
        calls: Actions requested for the tasks that the master runs itself.
    """

    state: RunState = RunState.SUBMITTED
    tasks: Mapping[str, TaskRun] = field(default_factory=dict)
    round: int = 1
    ending: str = ""
    warn_at: float | None = None
    dry: bool = False
    fresh: bool = False
    timeline_events: tuple[TimelineEvent, ...] = ()
    calls: tuple[Call, ...] = ()

    @property
    def wake_at(self) -> float | None:
        """The time of the next decision that needs no event, such as a timeout. None: there is none."""
        if self.state in OVER:
            return None
        goes_on = self.state is RunState.RUNNING and not self.ending  # else only running tasks count
        times = [
            each.wake_at
            for each in self.tasks.values()
            if each.wake_at is not None and (goes_on or each.state is TaskState.RUNNING)
        ]
        if self.warn_at is not None:
            times.append(self.warn_at)
        return min(times, default=None)

    def get_changed_tasks(self, earlier: WorkflowRun) -> Mapping[str, TaskRun]:
        """Return the tasks that have changed since an earlier state of the run, by name."""
        return {name: task for name, task in self.tasks.items() if earlier.tasks.get(name) != task}

    @property
    def tasks_to_withdraw(self) -> tuple[str, ...]:
        """The tasks whose items must be withdrawn from the work queue."""
        none_starts = self.state in {RunState.READY_PAUSE, RunState.READY_STOP} or bool(self.ending)
        return tuple(
            name
            for name, task in self.tasks.items()
            if task.state is TaskState.SUBMITTED and (none_starts or task.forced_after == task.n or task.is_overdue)
        )

    @property
    def tasks_to_kill(self) -> tuple[str, ...]:
        """The running tasks that must be killed."""
        if self.state is not RunState.READY_STOP and not self.ending:
            return ()
        return tuple(
            name for name, task in self.tasks.items() if task.state is TaskState.RUNNING and not task.runs_on_master
        )


class RunEditor:
    """Mutable copy of one run with its plan, for one call of ``advance``."""

    def __init__(self, plan: WorkflowPlan, run: WorkflowRun, now: float) -> None:
        self.plan = plan
        self.now = now
        self.was = run
        self.state = run.state
        self.tasks = dict(run.tasks)
        self.round = run.round
        self.ending = run.ending
        self.warn_at = run.warn_at
        self.dry = run.dry
        self.fresh = run.fresh
        self.timeline_events: list[TimelineEvent] = []
        self.calls: dict[Call, None] = {}

    def set_task_state(self, name: str, state: TaskState, *, wake_at: float | None = None) -> None:
        """Set the state of a task."""
        self.tasks[name] = self.tasks[name].with_state(state, wake_at=wake_at)

    def queue_task(self, name: str, n: int) -> None:
        """Queue an attempt of a task for the workers. The maximum queuing time of the task starts now.

        Args:
            name: Name of the task.
            n: Number of the attempt.
        """
        limit_s = self.plan.get_rule(name).max_queued_s
        until = None if limit_s is None else self.now + limit_s
        self.tasks[name] = replace(self.tasks[name].with_state(TaskState.SUBMITTED, wake_at=until), n=n, fails_at=until)

    def find_task_if_current(self, name: str, n: int, round_number: int) -> TaskRun | None:
        """Return the state of a task if this is its current attempt, otherwise None.

        An event of an older attempt, or of an attempt before the last rerun, is outdated.

        Args:
            name: Name of the task.
            n: Number of the attempt.
            round_number: Number of the rerun that the attempt belongs to. Starts at 1.
        """
        task = self.tasks.get(name)
        return task if task is not None and task.n == n and self.round == round_number else None

    def record_timeline_event(self, kind: str, task: str = "", n: int = 0) -> None:
        """Record something that happened and may cause an alert.

        Args:
            kind: As in ``TimelineEvent``.
            task: Name of the task. Empty for the run itself.
            n: Number of the attempt. 0 for the run itself.
        """
        self.timeline_events.append(TimelineEvent(kind, task, n))

    def request_call(self, kind: str, task: str) -> None:
        """Request an action that the master does itself for a task, such as starting a child run.

        The master does it after it has saved the run. Duplicate requests are ignored.

        Args:
            kind: The action, as in ``Call.kind``.
            task: Name of the task.
        """
        self.calls[Call(kind, task)] = None

    def set_run_state(self, state: RunState = RunState.RUNNING) -> None:
        """Set the state of the run. If this is RUNNING, the time limit of the run starts now."""
        self.state = state
        self.ending = ""
        counts = self.plan.timeout_s is not None and state is RunState.RUNNING
        self.warn_at = self.now + (self.plan.timeout_s or 0.0) if counts else None

    def build_run(self) -> WorkflowRun:
        """Return the changed run as an immutable record."""
        return replace(
            self.was,
            state=self.state,
            tasks=self.tasks,
            round=self.round,
            ending=self.ending,
            warn_at=self.warn_at,
            dry=self.dry,
            fresh=self.fresh,
            timeline_events=tuple(self.timeline_events),
            calls=tuple(self.calls),
        )
