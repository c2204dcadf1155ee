"""An instance while events are applied to it: a copy that may be changed. Only this wing uses it."""

from __future__ import annotations

from dataclasses import replace

from latchwork_workflows.state.records import Call, Fact, Instance, InstanceState, Plan, Task, TaskState


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
