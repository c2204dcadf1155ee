"""Tasks that the master runs itself: sub-processes, dependents, switches, conditions and maps."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import sqlalchemy as sa

from latchwork_workflows.db import attempts, commands, grants, related_runs
from latchwork_workflows.db.attempts import AttemptRow
from latchwork_workflows.db.commands import CommandRow, CommandType, ask
from latchwork_workflows.db.history import told as told_people
from latchwork_workflows.db.runs import Stored
from latchwork_workflows.errors import UnknownWorkflow
from latchwork_workflows.master.commands import Malformed, Wanted, why_of
from latchwork_workflows.master.dispatcher import Choice, run_of
from latchwork_workflows.master.state_cache import Plans
from latchwork_workflows.model.model import PRIORITIES
from latchwork_workflows.model.templates import fill
from latchwork_workflows.model.validate import MOST_ITEMS, MOST_TASKS
from latchwork_workflows.model.values import gathered, items_of, values_of
from latchwork_workflows.state import (
    DONE,
    FAILED,
    Call,
    ChildForced,
    ChildPaused,
    Chose,
    Ended,
    Event,
    Expanded,
    Instance,
    InstanceState,
    Outcome,
    Recover,
    Rerun,
    SeenFailed,
    Start,
    Task,
    TaskState,
    base_of,
    element,
    index_of,
)
from latchwork_workflows.state.conditions import Condition, Other, verdict
from latchwork_workflows.state.records import OVER
from latchwork_workflows.state.related_runs import MAX_DEPTH, asked, of_run, of_spans, spans, told
from latchwork_workflows.types.logical import DependentParams, SubProcessParams

_log = logging.getLogger(__name__)

#: Maximum size of the outputs that a held task collects, in bytes of JSON.
MOST_OUTPUT = 262_144
_OUTCOMES = {
    TaskState.SUCCESS: "success",
    TaskState.FAILURE: "failure",
    TaskState.KILLED: "killed",
    TaskState.PAUSED: "paused",
}
Outputs = Mapping[str, Mapping[str, Any]]


class RunWriter(Protocol):
    """Writes instances."""

    def stored(self, instance: int) -> Stored | None:
        """Return the current state of an instance. None: it does not belong to this shard."""
        ...

    def step(self, instance: int, events: Iterable[Event], outputs: Outputs) -> None:
        """Advance an instance, without the effects on other instances."""
        ...

    def make(self, wanted: Wanted, by: str, **columns: Any) -> int:
        """Create an instance and return its ID."""
        ...

    def turn(self, code: int, version: int, *, above: Collection[int], but: int = 0) -> bool:
        """Return whether a child run has to wait for the concurrency limit of its workflow."""
        ...

    def prepared(self, do: Callable[[], object], failed: Callable[[Exception], object]) -> None:
        """Run ``do``, and pass an error that it alone caused to ``failed``."""
        ...

    def of_run(self, instance: int, do: Callable[[], object]) -> None:
        """Do something for a run. An error that it causes ends the run."""
        ...


class HeldTasks:
    """Calls of held tasks and their effects, in one transaction. Not thread-safe."""

    def __init__(self, connection: sa.Connection, shard: int, plans: Plans, now: float, writer: RunWriter) -> None:
        self._connection = connection
        self._shard = shard
        self._plans = plans
        self._now = now
        self._writer = writer
        self.todo: list[tuple[int, Call | None]] = []
        self._why: dict[tuple[int, str], str] = {}
        self._over: set[int] = set()
        self._ended: dict[int, set[str]] = {}
        self._kinds: dict[str, Callable[[Stored, str, Task], None]] = {
            "open": self._open,
            "look": self._look,
            "expand": self._expand,
            "gather": self._gather,
        }

    # Written instances

    def saved(self, before: Stored, made: Stored, after: Instance) -> None:
        """Record that an instance was written: queue its calls, and remember which dependents to notify."""
        self.todo.extend((made.id, call) for call in after.calls if call.kind != "choose")
        was = before.known.tasks if before.known.run == after.run else {}
        rows: list[AttemptRow] = []
        for name, task in after.tasks.items():
            old = was.get(name, Task())
            if old == task:
                continue
            if task.state in DONE | FAILED:
                self._ended.setdefault(made.code, set()).add(name)
            if task.held and (not old.held or old.n != task.n):
                rows.append(AttemptRow(made.ids[name], task.n, 0, "", "", self._now))
            elif old.held and not task.held:
                why = self._why.pop((made.id, name), "")
                outcome = _OUTCOMES.get(task.state, "failure")
                rows.append(
                    AttemptRow(made.ids[name], old.n, 0, "", "", self._now, "", self._now, outcome, error=why[:4000])
                )
        attempts.save(self._connection, rows, self._now)
        if after.state in OVER:
            self._over.add(made.code)
            if made.parent is not None:
                self.todo.append((made.id, None))

    def abandoned(self, stored: Stored) -> None:
        """Stop the children of an instance that an error has ended, and delete its registrations as a dependent."""
        related_runs.forget_all(self._connection, stored.id)
        for name, task in stored.known.tasks.items():
            if task.held or task.state is TaskState.PAUSED:
                self.todo.append((stored.id, Call("stop", name)))

    def follow(self) -> None:
        """Process all queued calls, and the calls that they cause."""
        while self.todo:
            instance, call = self.todo.pop(0)
            self._writer.of_run(instance, partial(self._follow_one, instance, call))

    def _follow_one(self, instance: int, call: Call | None) -> None:
        stored = self._writer.stored(instance)
        if stored is None:
            return
        if call is None:
            self._tell_parent(stored)
        elif call.kind == "forget":
            related_runs.forget(self._connection, stored.ids[call.task])
        elif call.kind in self._kinds:
            task = stored.known.tasks[call.task]
            if task.held:
                do = partial(self._kinds[call.kind], stored, call.task, task)
                self._writer.prepared(do, partial(self._cannot, stored, call.task, task))
        else:
            self._ask_child(stored, call)

    def finish(self) -> set[int]:
        """Write a wake-up command for each dependent of what has ended. Return the shards that have one."""
        found = related_runs.who_waits(self._connection, self._over, self._ended)
        for shard, code in found:
            ask(self._connection, CommandType.WAKE, shard_id=shard, args={"code": code})
        return {shard for shard, _ in found}

    def _cannot(self, stored: Stored, name: str, task: Task, error: Exception) -> None:
        self._fail(stored, name, task, why_of(error))

    def _fail(self, stored: Stored, name: str, task: Task, why: str) -> None:
        self._why[stored.id, name] = why
        self._writer.step(stored.id, [Ended(name, task.n, Outcome.FATAL, stored.known.run)], {})

    def _succeed(self, stored: Stored, name: str, task: Task, outputs: Mapping[str, Any]) -> None:
        size = len(json.dumps(outputs))
        if size > MOST_OUTPUT:
            self._fail(stored, name, task, f"its outputs take {size:,} bytes; at most {MOST_OUTPUT:,}: hand on places")
            return
        ended = Ended(name, task.n, Outcome.SUCCESS, stored.known.run)
        self._writer.step(stored.id, [ended], {name: outputs})

    # Children

    def _open(self, stored: Stored, name: str, task: Task) -> None:
        """Create the child of a sub-process, or adopt the existing one and recover its failed tasks."""
        child = related_runs.child_of(self._connection, stored.ids[name])
        if child is None:
            self._new_child(stored, name, task)
            return
        version = self._plans.get(self._connection, stored.code, stored.version)
        given = SubProcessParams.model_validate(version.tasks[base_of(name)].params)
        grants.resolve(self._connection, version.definition.project, given.workflow, "sub_process")
        self._ask_child(stored, Call("open", name))

    def _new_child(self, stored: Stored, name: str, task: Task) -> None:
        version = self._plans.get(self._connection, stored.code, stored.version)
        spec = version.tasks[base_of(name)]
        given = SubProcessParams.model_validate(spec.params)
        run = run_of(self._connection, version, stored)
        values = values_of(run, spec, task.n, stored.outputs, index=index_of(name))
        params = fill(given.params, values, run.moment)
        code, number, is_online, project = grants.resolve(
            self._connection, version.definition.project, given.workflow, spec.type
        )
        if not is_online:
            raise ValueError(f"{given.workflow} is offline; set it online, then recover this run")
        if stored.depth >= MAX_DEPTH:
            raise ValueError(f"{MAX_DEPTH} runs are inside of each other here; does a workflow start itself?")
        takes = self._plans.get(self._connection, code, number).definition.params
        unknown = sorted(params.keys() - takes.keys())
        if unknown:
            raise ValueError(f"{given.workflow} has no parameter {unknown[0]!r}; it has {', '.join(takes) or 'none'}")
        waits = self._writer.turn(code, number, above=self._with_above(stored))
        made = self._writer.make(
            Wanted(code, number, Start(waits=waits), stored.schedule_time, params, PRIORITIES[stored.priority]),
            f"run {stored.id}",
            parent_task=stored.ids[name],
            parent_run=stored.known.run,
            depth=stored.depth + 1,
        )
        self._note_use(stored, name, project=project, kind="start", workflow=given.workflow, run=made)

    def _note_use(self, stored: Stored, name: str, *, project: str, kind: str, workflow: str, run: int) -> None:
        """Record in the audit log of another project that its workflow was used, and who started the outermost run."""
        user = self._plans.get(self._connection, stored.code, stored.version).definition
        if user.project != project:
            by = related_runs.person_of(self._connection, self._with_above(stored)[-1])
            details = {"workflow": workflow, "from": user.key, "task": name, "from_run": stored.id}
            told_people(self._connection, kind, by=by, project=project, instance=run, details=details)

    def _ask_child(self, stored: Stored, call: Call) -> None:
        number = related_runs.child_of(self._connection, stored.ids[call.task])
        child = self._writer.stored(number) if number is not None else None
        if child is None:
            return
        event = asked(call.kind, child.known.state)
        if call.kind == "pause" and child.known.state is InstanceState.SERIAL_WAIT:  # it does not start in the meantime
            task = stored.known.tasks[call.task]
            self._writer.step(stored.id, [ChildPaused(call.task, task.n, stored.known.run)], {})
        elif isinstance(event, (Recover, Rerun)):
            waits = self._writer.turn(child.code, child.version, above=self._with_above(stored), but=child.id)
            self._writer.step(child.id, [replace(event, waits=waits)], {})
        elif event is not None:
            self._writer.step(child.id, [event], {})
        elif child.known.state in OVER:
            self.todo.append((child.id, None))

    def _with_above(self, stored: Stored) -> list[int]:
        return [stored.id, *related_runs.above(self._connection, stored.parent)]

    def _tell_parent(self, child: Stored) -> None:
        """Report the state of a child to its parent, in the same transaction."""
        place = related_runs.parent_of(self._connection, child.parent or 0)
        parent = self._writer.stored(place.instance) if place is not None else None
        if place is None or parent is None:
            return
        task, run = parent.known.tasks[place.name], parent.known.run
        event = told(child.known.state, place.name, task.n, run)
        if not task.held:
            if task.state in FAILED and event is not None and getattr(event, "outcome", None) is Outcome.SUCCESS:
                self._writer.step(parent.id, [ChildForced(place.name, run)], {})
        elif isinstance(event, Ended) and event.outcome is Outcome.SUCCESS:
            self._writer.prepared(
                lambda: self._succeed(parent, place.name, task, self._outputs_of(child)),
                partial(self._cannot, parent, place.name, task),
            )
        elif event is not None:
            if isinstance(event, Ended):
                self._why[parent.id, place.name] = f"run {child.id}, its child, is {child.known.state.value}"
            self._writer.step(parent.id, [event], {})

    def _outputs_of(self, child: Stored) -> dict[str, Any]:
        """Return the outputs of all its tasks. Later tasks override earlier ones."""
        plan = self._plans.get(self._connection, child.code, child.version).plan
        return {name: value for each in plan.rules for name, value in child.outputs.get(each, {}).items()}

    # Dependents

    def _look(self, stored: Stored, name: str, task: Task) -> None:
        """Check whether the dependencies of a task are fulfilled.

        The task is registered before the check, so that almost every later end wakes it. Polling covers the rest.
        """
        version = self._plans.get(self._connection, stored.code, stored.version)
        condition = DependentParams.model_validate(version.tasks[name].params).on.condition()
        moment = run_of(self._connection, version, stored).moment
        without = self._with_above(stored)
        outputs: dict[str, Any] = {}
        used: set[tuple[str, str, int]] = set()

        def leaf(each: Condition) -> bool | None:
            if not isinstance(each, Other):
                return None
            try:
                code, _, _, project = grants.resolve(
                    self._connection, version.definition.project, each.workflow, "dependent"
                )
            except UnknownWorkflow:
                return None  # it may be created later
            related_runs.wait(self._connection, stored.ids[name], stored.id, self._shard, [(code, each.task)])
            found = [related_runs.newest(self._connection, code, span, without) for span in spans(each.window, moment)]
            said = of_spans(None if run is None else of_run(run.state, each.task, run.tasks) for run in found)
            if said:
                used.update((project, each.workflow, run.id) for run in found if run is not None)
                for run in found:
                    for of, values in run.outputs.items() if run is not None else ():
                        outputs.update(values if each.task in {"", "*", of} else {})
            return said

        said = verdict(condition, leaf)
        if said:
            for project, workflow, number in sorted(used):
                self._note_use(stored, name, project=project, kind="use outputs", workflow=workflow, run=number)
            self._succeed(stored, name, task, outputs)
        elif said is False:
            self._why[stored.id, name] = "what it waits for has failed"
            self._writer.step(stored.id, [SeenFailed(name, task.n, stored.known.run)], {})

    # Switches and maps

    def chose(self, stored: Stored, name: str, n: int, choice: Choice) -> None:
        """Apply the decision of a switch, or its error. The expressions were evaluated before this transaction."""
        if choice.why:
            self._why[stored.id, name] = choice.why
            event: Event = Ended(name, n, Outcome.FATAL, stored.known.run)
        else:
            event = Chose(name, n, choice.heads, stored.known.run)
        self._writer.step(stored.id, [event], {})

    def _expand(self, stored: Stored, name: str, task: Task) -> None:
        version = self._plans.get(self._connection, stored.code, stored.version)
        run = run_of(self._connection, version, stored)
        count = len(items_of(run, version.tasks[name], task.n, stored.outputs))
        others = sum(base_of(each) != name for each in stored.known.tasks)
        if count > MOST_ITEMS or count + others > MOST_TASKS:
            raise ValueError(
                f"it has {count:,} items; a map has at most {MOST_ITEMS:,}, and a run {MOST_TASKS:,} tasks"
            )
        if count:
            self._writer.step(stored.id, [Expanded(name, task.n, count, stored.known.run)], {})
        else:
            self._succeed(stored, name, task, {})

    def _gather(self, stored: Stored, name: str, task: Task) -> None:
        """Collect the outputs of its elements in lists, in the order of the items."""
        items = (element(name, index) for index in range(MOST_ITEMS))
        there = [each for each in items if stored.known.tasks.get(each, _NONE).state is not TaskState.SKIPPED]
        self._succeed(stored, name, task, gathered(stored.outputs.get(each, {}) for each in there))


_NONE = Task(TaskState.SKIPPED)


#: Maximum number of runs that are woken for one workflow in one transaction. All shards of a node may do so at the same
#: time.
MOST_WOKEN = 50


class WakeUps:
    """Wakes the dependents of workflows, in one transaction. Not thread-safe.

    Args:
        connection: A transaction that the guard has begun.
        shard: ID of the shard whose runs are woken.
        now: Seconds since the epoch.
        wake: Has a run check its dependencies.
    """

    def __init__(self, connection: sa.Connection, shard: int, now: float, wake: Callable[[int], None]) -> None:
        self._connection = connection
        self._shard = shard
        self._now = now
        self._wake = wake
        self._done: set[int] = set()
        #: There is more to do, and a command was written for it.
        self.goes_on = False

    def is_done(self, row: CommandRow) -> bool:
        """Return whether another command of this transaction has covered this command."""
        return row.id in self._done

    def command(self, row: CommandRow) -> None:
        """Start or continue a round: wake the runs that wait for a workflow of which something has ended.

        Raises:
            Malformed: The command names no workflow.
        """
        code, after = row.args.get("code"), row.args.get("after", 0)
        if not isinstance(code, int) or not isinstance(after, int):
            raise Malformed(f"command {row.id} wakes nobody")
        if not after and self._is_on_its_way(code, row.id):
            self._go_on(code, 0)  # after the rest of that round
            return
        found = related_runs.waiting_for(self._connection, self._shard, code, after=after, most=MOST_WOKEN)
        for instance in found:
            self._wake(instance)
        if len(found) == MOST_WOKEN:
            self._go_on(code, found[-1])

    def _is_on_its_way(self, code: int, number: int) -> bool:
        """Return whether a round of this workflow is unfinished.

        Other commands that request a round are marked as done.
        """
        others = commands.open_wakes(self._connection, self._shard, code, but=number)
        for other, after in others.items():
            if not after:
                self._done.add(other)
                commands.done(self._connection, other, self._now, instance=None, error=None)
        return any(others.values())

    def _go_on(self, code: int, after: int) -> None:
        ask(self._connection, CommandType.WAKE, shard_id=self._shard, args={"code": code, "after": after})
        self.goes_on = True
