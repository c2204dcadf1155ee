"""The state of a run and its tasks, and the working copy that decisions change. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from latchwork_workflows.state.conditions import Condition


class InstanceState(StrEnum):
    """Where an instance is."""

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
    """Where a task is."""

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
    """What becomes of the others when a task has failed for good."""

    CONTINUE = "continue"
    END = "end"


class OnTimeout(StrEnum):
    """What happens when something takes too long."""

    WARN = "warn"
    FAIL = "fail"
    BOTH = "both"


class Scope(StrEnum):
    """Which tasks a start from chosen tasks runs, besides these."""

    ONLY = "only"
    DOWNSTREAM = "downstream"
    UPSTREAM = "upstream"


#: Whoever depends on a task in one of these states may go on.
DONE = frozenset({TaskState.SUCCESS, TaskState.FORCED_SUCCESS, TaskState.SKIPPED})
#: Nothing more comes of a task in one of these states, unless somebody recovers the instance.
FAILED = frozenset({TaskState.FAILURE, TaskState.KILLED})
#: A worker has such a task, or may take it at any moment.
IN_HANDS = frozenset({TaskState.SUBMITTED, TaskState.RUNNING})
#: Such a task goes on by itself.
MOVING = IN_HANDS | {TaskState.DELAYED, TaskState.READY, TaskState.RETRY_WAIT}
#: What is told of an attempt that no worker took in time, and how it ended.
NOT_TAKEN = "not_taken"
#: The kinds of tasks that the master decides by itself.
LOGICAL = frozenset({"sub_process", "dependent", "conditions", "switch"})
#: An instance that nobody touches any more unless a command comes.
OVER = frozenset({InstanceState.PAUSED, InstanceState.STOPPED, InstanceState.SUCCESS, InstanceState.FAILURE})
#: So many tasks of an instance are with workers, or queued for them, at most; shelves and store stay small.
MOST_IN_HANDS = 500


@dataclass(frozen=True, slots=True)
class Rule:
    """What the definition says of one task, as far as ``advance`` needs it.

    Attributes:
        after: the tasks that it waits for.
        retries: how often a failure is tried again by itself.
        retry_interval_s: seconds from a failure to the next try.
        delay_s: seconds from the moment when it could start.
        timeout_s: seconds that one attempt may take, counted from its claim; None: any.
        on_timeout: what happens then. Killing is the worker's; here is only the warning.
        enabled: else it is skipped, which counts as success.
        kind: ``LOGICAL``: what the master decides by itself, without a worker; empty: a worker does it.
        heads: of conditions and a switch: the tasks that the branches begin with.
        when: of conditions: what has to be true for the first branch.
        branches: of conditions: the heads of the first, and of the other one.
        maps: it is done once for each item of a list, as tasks of their own.
        map_parallel: so many of them at a time; None: as many as an instance may.
        wait_s: of a dependent: seconds for which it goes on waiting once it has seen a failure.
        max_queued_s: seconds in the queue after which an attempt has failed, if no worker took it; None: any.
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


def base_of(name: str) -> str:
    """The task that an element of a map is of; of any other task itself."""
    return name.partition("[")[0]


def index_of(name: str) -> int:
    """Which element it is; -1 of a task that is none."""
    _, bracket, rest = name.partition("[")
    return int(rest[:-1]) if bracket else -1


def element(base: str, index: int) -> str:
    """What an element of a map is called among the tasks of its instance; -1: the task itself."""
    return base if index < 0 else f"{base}[{index}]"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """What people are told of the runs of a workflow.

    Attributes:
        on: which ends of a run: ``none``, ``success``, ``failure``, ``all``.
        timeouts: that something takes longer than it should, where ``on_timeout`` warns.
        failover: that the worker of an attempt died, or the master of a run.
    """

    on: str = "failure"
    timeouts: bool = True
    failover: bool = False


@dataclass(frozen=True)
class Plan:
    """What a version of a definition says; the same for all instances of that version. Safe to share.

    Attributes:
        rules: by the name of the task, each after those that it waits for.
        on_failure: what becomes of the others when a task has failed for good.
        timeout_s: seconds that a run may take; None: any.
        on_timeout: what happens then.
        alerts: what people are told; None: nothing.
    """

    rules: Mapping[str, Rule]
    on_failure: OnFailure = OnFailure.CONTINUE
    timeout_s: float | None = None
    on_timeout: OnTimeout = OnTimeout.WARN
    alerts: AlertRule | None = None

    @cached_property
    def successors(self) -> Mapping[str, tuple[str, ...]]:
        """Who waits for each task, in the order of the definition."""
        found: dict[str, list[str]] = {name: [] for name in self.rules}
        for name, rule in self.rules.items():
            for before in rule.after:
                found[before].append(name)
        return {name: tuple(after) for name, after in found.items()}

    def rule(self, name: str) -> Rule:
        """That of a task, or of the task that an element of a map is of."""
        return self.rules[base_of(name)]

    def kind(self, name: str) -> str:
        """``map`` of a task that is done for each item; what its elements are is that of the rule."""
        rule = self.rule(name)
        return "map" if rule.maps and name in self.rules else rule.kind

    @cached_property
    def handled(self) -> frozenset[str]:
        """Tasks whose failure is no failure of the instance: conditions look at how they ended."""
        return frozenset(each for rule in self.rules.values() if rule.kind == "conditions" for each in rule.after)

    @cached_property
    def forks(self) -> Mapping[str, tuple[str, ...]]:
        """The conditions and switches that have a task as the head of a branch, by that task."""
        found: dict[str, list[str]] = {}
        for name, rule in self.rules.items():
            for head in rule.heads:
                found.setdefault(head, []).append(name)
        return {name: tuple(forks) for name, forks in found.items()}

    def reached(self, names: Iterable[str], *, upstream: bool = False) -> frozenset[str]:
        """These tasks, and all behind them; or all that they wait for."""
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
class Task:
    """One task of one run.

    Attributes:
        state: where it is.
        n: the number of its newest attempt; 0 before the first is submitted.
        failures: attempts of this task that failed, since somebody last started or recovered it.
        wake_at: when it goes on by itself, if it is delayed or waits to be tried again; if it runs: when it has taken
            too long; if it is queued: when it has been for too long, and None from then on.
        forced_after: attempts with higher numbers do not wait for slots; None: all do.
        held: the master has it itself: it is logical, and running.
        until: when it is given up, if it is held and waits for others, or queued and no worker takes it.
        cut: skipped because no branch that leads to it was chosen: what comes after nothing else is skipped too.
        chosen: of conditions and a switch: the heads of the branch that they chose; None: they chose none, so all
            their branches go on once they are done.
    """

    state: TaskState = TaskState.WAITING
    n: int = 0
    failures: int = 0
    wake_at: float | None = None
    forced_after: int | None = None
    held: bool = False
    until: float | None = None
    cut: bool = False
    chosen: tuple[str, ...] | None = None

    def to(self, state: TaskState, *, wake_at: float | None = None) -> Task:
        """The same task in another state, not held."""
        return replace(self, state=state, wake_at=wake_at, held=False, until=None)

    def again(self) -> Task:
        """The same task, waiting for what comes before it as if it had never started."""
        return replace(self.to(TaskState.WAITING), failures=0, forced_after=None, cut=False, chosen=None)

    @property
    def in_hands(self) -> bool:
        """A worker has it, or may take it at any moment."""
        return self.state in IN_HANDS and not self.held

    @property
    def is_overdue(self) -> bool:
        """It is queued, no worker has taken it in time, and it is to be taken back."""
        return self.state is TaskState.SUBMITTED and self.until is not None and self.wake_at is None


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a person may want to be told.

    Attributes:
        kind: ``success``, ``failure``, ``stopped``, ``paused``, ``timeout``, ``failover``, ``retry``, or ``not_taken``:
            no worker took it in time.
        task: of which task; empty for the instance.
        n: which attempt; 0 for the instance.
    """

    kind: str
    task: str = ""
    n: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """What the master does for a task that it holds, in the transaction in which it was asked.

    Attributes:
        kind: of a sub-process: ``open``, ``pause``, ``resume``, ``stop`` its child. Of a dependent: ``look`` whether it
            has what it waits for; ``forget`` that it waits. Of a switch: ``choose``. Of a map: ``expand`` it into its
            items, ``gather`` what these have put out.
        task: of which.
    """

    kind: str
    task: str


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance, as the shard's owner knows it.

    Attributes:
        state: where it is.
        tasks: by name; all of the plan's once it is started.
        run: 1, and one more for each rerun.
        ending: why no task starts any more and those at work are ended: a failure with ``on_failure="end"``, or a
            ``timeout``; empty while they go on.
        warn_at: when the run has taken too long; None when nobody asked, or it was said.
        dry: every task succeeds without running.
        fresh: every task runs, whatever is known of its outputs.
        facts: what happened in the event that led here.
        calls: what follows for the tasks that the master holds.
    """

    state: InstanceState = InstanceState.SUBMITTED
    tasks: Mapping[str, Task] = field(default_factory=dict)
    run: int = 1
    ending: str = ""
    warn_at: float | None = None
    dry: bool = False
    fresh: bool = False
    facts: tuple[Fact, ...] = ()
    calls: tuple[Call, ...] = ()

    def telling(self, *facts: Fact) -> Instance:
        """With more to tell."""
        return replace(self, facts=(*self.facts, *facts))

    @property
    def wake_at(self) -> float | None:
        """When something is to be decided even if nothing happens; None: never."""
        if self.state in OVER:
            return None
        goes_on = self.state is InstanceState.RUNNING and not self.ending  # else only what runs has anything to decide
        moments = [
            each.wake_at
            for each in self.tasks.values()
            if each.wake_at is not None and (goes_on or each.state is TaskState.RUNNING)
        ]
        if self.warn_at is not None:
            moments.append(self.warn_at)
        return min(moments, default=None)

    def changed_since(self, before: Instance) -> Mapping[str, Task]:
        """The tasks that are not as they were."""
        return {name: task for name, task in self.tasks.items() if before.tasks.get(name) != task}

    @property
    def to_remove(self) -> tuple[str, ...]:
        """Tasks whose item is to be taken back from the workers."""
        none_starts = self.state in {InstanceState.READY_PAUSE, InstanceState.READY_STOP} or bool(self.ending)
        return tuple(
            name
            for name, task in self.tasks.items()
            if task.state is TaskState.SUBMITTED and (none_starts or task.forced_after == task.n or task.is_overdue)
        )

    @property
    def to_kill(self) -> tuple[str, ...]:
        """Tasks that run and are to be ended."""
        if self.state is not InstanceState.READY_STOP and not self.ending:
            return ()
        return tuple(name for name, task in self.tasks.items() if task.state is TaskState.RUNNING and not task.held)


class Working:
    """One instance and its plan, at one moment. For one call of ``advance``."""

    def __init__(self, plan: Plan, instance: Instance, now: float) -> None:
        self.plan = plan
        self.now = now
        self.was = instance
        self.state = instance.state
        self.tasks = dict(instance.tasks)
        self.run = instance.run
        self.ending = instance.ending
        self.warn_at = instance.warn_at
        self.dry = instance.dry
        self.fresh = instance.fresh
        self.facts: list[Fact] = []
        self.calls: dict[Call, None] = {}

    def put(self, name: str, state: TaskState, *, wake_at: float | None = None) -> None:
        """A task is in another state."""
        self.tasks[name] = self.tasks[name].to(state, wake_at=wake_at)

    def queue(self, name: str, n: int) -> None:
        """An attempt is for the workers to take, in the time that it has for that."""
        limit_s = self.plan.rule(name).max_queued_s
        until = None if limit_s is None else self.now + limit_s
        self.tasks[name] = replace(self.tasks[name].to(TaskState.SUBMITTED, wake_at=until), n=n, until=until)

    def attempt(self, name: str, n: int, run: int) -> Task | None:
        """The task, if this is its newest attempt in the newest run."""
        task = self.tasks.get(name)
        return task if task is not None and task.n == n and self.run == run else None

    def tell(self, kind: str, task: str = "", n: int = 0) -> None:
        """Something that a person may want to know has happened."""
        self.facts.append(Fact(kind, task, n))

    def call(self, kind: str, task: str) -> None:
        """The master is to do something for a task that it holds; once."""
        self.calls[Call(kind, task)] = None

    def restart(self, state: InstanceState = InstanceState.RUNNING) -> None:
        """The instance goes on, its time counts from now; or it waits for its turn, from which it will."""
        self.state = state
        self.ending = ""
        counts = self.plan.timeout_s is not None and state is InstanceState.RUNNING
        self.warn_at = self.now + (self.plan.timeout_s or 0.0) if counts else None

    def result(self) -> Instance:
        """What is known now."""
        return replace(
            self.was,
            state=self.state,
            tasks=self.tasks,
            run=self.run,
            ending=self.ending,
            warn_at=self.warn_at,
            dry=self.dry,
            fresh=self.fresh,
            facts=tuple(self.facts),
            calls=tuple(self.calls),
        )
