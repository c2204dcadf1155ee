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
from latchwork_workflows.db.commands import CommandRow, CommandType, send_command
from latchwork_workflows.db.history import record_event as told_people
from latchwork_workflows.db.runs import StoredRun
from latchwork_workflows.errors import NotFound
from latchwork_workflows.master.commands import MalformedCommand, RunRequest, get_error_text
from latchwork_workflows.master.dispatcher import SwitchChoice, load_run_context
from latchwork_workflows.master.state_cache import VersionCache
from latchwork_workflows.model.definition import PRIORITIES
from latchwork_workflows.model.templates import fill_references
from latchwork_workflows.model.validate import MAX_ITEMS, MAX_TASKS
from latchwork_workflows.model.values import compute_items, compute_values, gather_outputs
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
    Outcome,
    Recover,
    Rerun,
    RunState,
    SeenFailed,
    Start,
    TaskRun,
    TaskState,
    WorkflowRun,
    build_element_name,
    get_element_index,
    get_map_name,
)
from latchwork_workflows.state.conditions import Condition, RunSucceeded, evaluate_condition
from latchwork_workflows.state.records import OVER
from latchwork_workflows.state.related_runs import (
    MAX_DEPTH,
    choose_event_for_child,
    choose_event_for_parent,
    combine_span_results,
    is_fulfilled,
    list_time_spans,
)
from latchwork_workflows.types.master_tasks import DependentParams, SubProcessParams

_log = logging.getLogger(__name__)

#: Maximum size of the outputs that a master task collects, in bytes of JSON.
MAX_OUTPUT = 262_144
_OUTCOMES = {
    TaskState.SUCCESS: "success",
    TaskState.FAILURE: "failure",
    TaskState.KILLED: "killed",
    TaskState.PAUSED: "paused",
}
Outputs = Mapping[str, Mapping[str, Any]]


class RunWriter(Protocol):
    """The part of ``TransactionWriter`` that master tasks use to read and change runs."""

    def get_run(self, run_id: int) -> StoredRun | None:
        """Return the current state of a run, or None if the run does not belong to this shard."""
        ...

    def apply_events_to_one_run(self, run_id: int, events: Iterable[Event], outputs: Outputs) -> None:
        """Apply events to a run, without updating the other runs that this affects."""
        ...

    def create_run(self, request: RunRequest, by: str, **columns: Any) -> int:
        """Create a run and return its ID."""
        ...

    def apply_limits_to_child(self, code: int, version: int, *, ancestors: Collection[int], exclude: int = 0) -> bool:
        """Apply the concurrency limits of its workflow to a child run, and return whether the run has to wait."""
        ...

    def call_isolated_without_savepoint(
        self, function: Callable[[], object], on_error: Callable[[Exception], object]
    ) -> None:
        """Call a function like ``call_isolated``, but without a savepoint, so nothing is rolled back after an error.

        Args:
            function: The function. It must write nothing before it can fail.
            on_error: Called with an error that only the function's own run or row can have caused.
        """
        ...

    def call_isolated_for_run(self, run_id: int, function: Callable[[], object]) -> None:
        """Call a function for a run. If the function raises an error that concerns only this run, end the run as
        failed.
        """
        ...


class MasterTasks:
    """Runs the tasks that the master executes itself, and updates related runs, in one transaction.

    Not thread-safe.
    """

    def __init__(
        self, connection: sa.Connection, shard: int, plans: VersionCache, now: float, writer: RunWriter
    ) -> None:
        self._connection = connection
        self._shard = shard
        self._plans = plans
        self._now = now
        self._writer = writer
        self.todo: list[tuple[int, Call | None]] = []
        self._why: dict[tuple[int, str], str] = {}
        self._over: set[int] = set()
        self._ended: dict[int, set[str]] = {}
        self._kinds: dict[str, Callable[[StoredRun, str, TaskRun], None]] = {
            "open": self._start_child,
            "look": self._check_dependencies,
            "expand": self._expand,
            "gather": self._collect_outputs,
        }

    # Written runs

    def process_saved_run(self, before: StoredRun, saved: StoredRun, after: WorkflowRun) -> None:
        """Queue the master's actions that a changed run requests, write the history of its tasks that run on the
        master, and remember which tasks have ended, so that tasks that depend on them are notified.

        Args:
            before: The run before it was saved.
            saved: The run as it is stored now.
            after: The new state, with the requested actions.
        """
        self.todo.extend((saved.id, call) for call in after.calls if call.kind != "choose")
        was = before.known.tasks if before.known.round == after.round else {}
        rows: list[AttemptRow] = []
        for name, task in after.tasks.items():
            old = was.get(name, TaskRun())
            if old == task:
                continue
            if task.state in DONE | FAILED:
                self._ended.setdefault(saved.code, set()).add(name)
            if task.runs_on_master and (not old.runs_on_master or old.n != task.n):
                rows.append(AttemptRow(saved.ids[name], task.n, 0, "", "", self._now))
            elif old.runs_on_master and not task.runs_on_master:
                why = self._why.pop((saved.id, name), "")
                outcome = _OUTCOMES.get(task.state, "failure")
                rows.append(
                    AttemptRow(saved.ids[name], old.n, 0, "", "", self._now, "", self._now, outcome, error=why[:4000])
                )
        attempts.save_attempts(self._connection, rows, self._now)
        if after.state in OVER:
            self._over.add(saved.code)
            if saved.parent is not None:
                self.todo.append((saved.id, None))

    def clean_up_failed_run(self, stored: StoredRun) -> None:
        """Stop the child runs of a run that an error has ended, and delete the run's registered dependencies."""
        related_runs.delete_dependencies_of_run(self._connection, stored.id)
        for name, task in stored.known.tasks.items():
            if task.runs_on_master or task.state is TaskState.PAUSED:
                self.todo.append((stored.id, Call("stop", name)))

    def process_calls(self) -> None:
        """Execute all queued actions of master tasks, and the further actions that these cause."""
        while self.todo:
            run_id, call = self.todo.pop(0)
            self._writer.call_isolated_for_run(run_id, partial(self._process_call, run_id, call))

    def _process_call(self, run_id: int, call: Call | None) -> None:
        stored = self._writer.get_run(run_id)
        if stored is None:
            return
        if call is None:
            self._notify_parent(stored)
        elif call.kind == "forget":
            related_runs.delete_dependencies(self._connection, stored.ids[call.task])
        elif call.kind in self._kinds:
            task = stored.known.tasks[call.task]
            if task.runs_on_master:
                do = partial(self._kinds[call.kind], stored, call.task, task)
                self._writer.call_isolated_without_savepoint(do, partial(self._call_failed, stored, call.task, task))
        else:
            self._command_child(stored, call)

    def wake_dependents(self) -> set[int]:
        """Write a wake-up command for each workflow with tasks that wait for a run or task that has ended.

        Returns:
            The shards of these commands.
        """
        found = related_runs.find_waiting_shards(self._connection, self._over, self._ended)
        for shard, code in found:
            send_command(self._connection, CommandType.WAKE, shard_id=shard, args={"code": code})
        return {shard for shard, _ in found}

    def _call_failed(self, stored: StoredRun, name: str, task: TaskRun, error: Exception) -> None:
        self._fail(stored, name, task, get_error_text(error))

    def _fail(self, stored: StoredRun, name: str, task: TaskRun, why: str) -> None:
        self._why[stored.id, name] = why
        self._writer.apply_events_to_one_run(stored.id, [Ended(name, task.n, Outcome.FATAL, stored.known.round)], {})

    def _succeed(self, stored: StoredRun, name: str, task: TaskRun, outputs: Mapping[str, Any]) -> None:
        size = len(json.dumps(outputs))
        if size > MAX_OUTPUT:
            self._fail(
                stored,
                name,
                task,
                f"its outputs take {size:,} bytes; at most {MAX_OUTPUT:,}; write large ones to files and return "
                "their names",
            )
            return
        ended = Ended(name, task.n, Outcome.SUCCESS, stored.known.round)
        self._writer.apply_events_to_one_run(stored.id, [ended], {name: outputs})

    # Children

    def _start_child(self, stored: StoredRun, name: str, task: TaskRun) -> None:
        """Create the child run of a sub-process task. If a child run exists already, retry its failed tasks instead.

        Args:
            stored: The parent run.
            name: Name of the task.
            task: The task.
        """
        child = related_runs.find_child(self._connection, stored.ids[name])
        if child is None:
            self._create_child(stored, name, task)
            return
        version = self._plans.get(self._connection, stored.code, stored.version)
        given = SubProcessParams.model_validate(version.tasks[get_map_name(name)].params)
        grants.find_granted_workflow(self._connection, version.definition.project, given.workflow, "sub_process")
        self._command_child(stored, Call("open", name))

    def _create_child(self, stored: StoredRun, name: str, task: TaskRun) -> None:
        version = self._plans.get(self._connection, stored.code, stored.version)
        spec = version.tasks[get_map_name(name)]
        given = SubProcessParams.model_validate(spec.params)
        run = load_run_context(self._connection, version, stored)
        values = compute_values(run, spec, task.n, stored.outputs, index=get_element_index(name))
        params = fill_references(given.params, values, run.schedule_datetime)
        code, number, is_online, project = grants.find_granted_workflow(
            self._connection, version.definition.project, given.workflow, spec.type
        )
        if not is_online:
            raise ValueError(f"{given.workflow} is offline; set it online, then recover this run")
        if stored.depth >= MAX_DEPTH:
            raise ValueError(f"{MAX_DEPTH} runs are nested here; does a workflow start itself?")
        takes = self._plans.get(self._connection, code, number).definition.params
        unknown = sorted(params.keys() - takes.keys())
        if unknown:
            raise ValueError(f"{given.workflow} has no parameter {unknown[0]!r}; it has {', '.join(takes) or 'none'}")
        waits = self._writer.apply_limits_to_child(code, number, ancestors=self._run_and_ancestors(stored))
        made = self._writer.create_run(
            RunRequest(code, number, Start(waits=waits), stored.schedule_time, params, PRIORITIES[stored.priority]),
            f"run {stored.id}",
            parent_task=stored.ids[name],
            parent_round=stored.known.round,
            depth=stored.depth + 1,
        )
        self._record_use(stored, name, project=project, kind="start", workflow=given.workflow, run=made)

    def _record_use(self, stored: StoredRun, name: str, *, project: str, kind: str, workflow: str, run: int) -> None:
        """Record in the audit log of another project that its workflow was used, and which user started the run.

        Args:
            stored: The run that uses the workflow.
            name: Name of its task.
            project: The other project.
            kind: Kind of the event.
            workflow: Name of the workflow.
            run: ID of the run that was started or read.
        """
        user = self._plans.get(self._connection, stored.code, stored.version).definition
        if user.project != project:
            by = related_runs.get_starting_user(self._connection, self._run_and_ancestors(stored)[-1])
            details = {"workflow": workflow, "from": user.key, "task": name, "from_run": stored.id}
            told_people(self._connection, kind, by=by, project=project, run_id=run, details=details)

    def _command_child(self, stored: StoredRun, call: Call) -> None:
        number = related_runs.find_child(self._connection, stored.ids[call.task])
        child = self._writer.get_run(number) if number is not None else None
        if child is None:
            return
        event = choose_event_for_child(call.kind, child.known.state)
        if call.kind == "pause" and child.known.state is RunState.SERIAL_WAIT:  # it does not start in the meantime
            task = stored.known.tasks[call.task]
            self._writer.apply_events_to_one_run(stored.id, [ChildPaused(call.task, task.n, stored.known.round)], {})
        elif isinstance(event, (Recover, Rerun)):
            waits = self._writer.apply_limits_to_child(
                child.code, child.version, ancestors=self._run_and_ancestors(stored), exclude=child.id
            )
            self._writer.apply_events_to_one_run(child.id, [replace(event, waits=waits)], {})
        elif event is not None:
            self._writer.apply_events_to_one_run(child.id, [event], {})
        elif child.known.state in OVER:
            self.todo.append((child.id, None))

    def _run_and_ancestors(self, stored: StoredRun) -> list[int]:
        return [stored.id, *related_runs.list_ancestors(self._connection, stored.parent)]

    def _notify_parent(self, child: StoredRun) -> None:
        """Report the state of a child run to the task that started it, in the same transaction."""
        place = related_runs.find_parent(self._connection, child.parent or 0)
        parent = self._writer.get_run(place.run_id) if place is not None else None
        if place is None or parent is None:
            return
        task, run = parent.known.tasks[place.name], parent.known.round
        event = choose_event_for_parent(child.known.state, place.name, task.n, run)
        if not task.runs_on_master:
            if task.state in FAILED and event is not None and getattr(event, "outcome", None) is Outcome.SUCCESS:
                self._writer.apply_events_to_one_run(parent.id, [ChildForced(place.name, run)], {})
        elif isinstance(event, Ended) and event.outcome is Outcome.SUCCESS:
            self._writer.call_isolated_without_savepoint(
                lambda: self._succeed(parent, place.name, task, self._collect_child_outputs(child)),
                partial(self._call_failed, parent, place.name, task),
            )
        elif event is not None:
            if isinstance(event, Ended):
                self._why[parent.id, place.name] = f"run {child.id}, its child, is {child.known.state.value}"
            self._writer.apply_events_to_one_run(parent.id, [event], {})

    def _collect_child_outputs(self, child: StoredRun) -> dict[str, Any]:
        """Combine the outputs of all tasks of a child run. If names are equal, the later task takes precedence."""
        plan = self._plans.get(self._connection, child.code, child.version).plan
        return {name: value for each in plan.rules for name, value in child.outputs.get(each, {}).items()}

    # Dependents

    def _check_dependencies(self, stored: StoredRun, name: str, task: TaskRun) -> None:
        """Check whether a ``dependent`` task may continue, because the workflows that it waits for have succeeded.

        The task is registered before the check, so that a workflow that ends later wakes it. If a registration is
        missed, the next periodic check helps.

        Args:
            stored: The run.
            name: Name of the task.
            task: The task.
        """
        version = self._plans.get(self._connection, stored.code, stored.version)
        condition = DependentParams.model_validate(version.tasks[name].params).on.condition()
        scheduled_at = load_run_context(self._connection, version, stored).schedule_datetime
        without = self._run_and_ancestors(stored)
        outputs: dict[str, Any] = {}
        used: set[tuple[str, str, int]] = set()

        def leaf(each: Condition) -> bool | None:
            if not isinstance(each, RunSucceeded):
                return None
            try:
                code, _, _, project = grants.find_granted_workflow(
                    self._connection, version.definition.project, each.workflow, "dependent"
                )
            except NotFound:
                return None  # it may be created later
            related_runs.register_dependencies(
                self._connection, stored.ids[name], stored.id, self._shard, [(code, each.task)]
            )
            found = [
                related_runs.find_newest_run(self._connection, code, span, without)
                for span in list_time_spans(each.window, scheduled_at)
            ]
            said = combine_span_results(
                None if run is None else is_fulfilled(run.state, each.task, run.tasks) for run in found
            )
            if said:
                used.update((project, each.workflow, run.id) for run in found if run is not None)
                for run in found:
                    for of, values in run.outputs.items() if run is not None else ():
                        outputs.update(values if each.task in {"", "*", of} else {})
            return said

        said = evaluate_condition(condition, leaf)
        if said:
            for project, workflow, number in sorted(used):
                self._record_use(stored, name, project=project, kind="use outputs", workflow=workflow, run=number)
            self._succeed(stored, name, task, outputs)
        elif said is False:
            self._why[stored.id, name] = "a dependency has failed"
            self._writer.apply_events_to_one_run(stored.id, [SeenFailed(name, task.n, stored.known.round)], {})

    # Switches and maps

    def apply_switch_choice(self, stored: StoredRun, name: str, n: int, choice: SwitchChoice) -> None:
        """Store the branch that a ``switch`` task has chosen, or the error of its expressions.

        Args:
            stored: The run.
            name: Name of the task.
            n: Number of the attempt.
            choice: The choice, which was evaluated before this transaction.
        """
        if choice.error:
            self._why[stored.id, name] = choice.error
            event: Event = Ended(name, n, Outcome.FATAL, stored.known.round)
        else:
            event = Chose(name, n, choice.heads, stored.known.round)
        self._writer.apply_events_to_one_run(stored.id, [event], {})

    def _expand(self, stored: StoredRun, name: str, task: TaskRun) -> None:
        version = self._plans.get(self._connection, stored.code, stored.version)
        run = load_run_context(self._connection, version, stored)
        count = len(compute_items(run, version.tasks[name], task.n, stored.outputs))
        others = sum(get_map_name(each) != name for each in stored.known.tasks)
        if count > MAX_ITEMS or count + others > MAX_TASKS:
            raise ValueError(f"it has {count:,} items; a map has at most {MAX_ITEMS:,}, and a run {MAX_TASKS:,} tasks")
        if count:
            self._writer.apply_events_to_one_run(stored.id, [Expanded(name, task.n, count, stored.known.round)], {})
        else:
            self._succeed(stored, name, task, {})

    def _collect_outputs(self, stored: StoredRun, name: str, task: TaskRun) -> None:
        """Collect the outputs of a map task's elements into lists, in the order of the items.

        Args:
            stored: The run.
            name: Name of the map task.
            task: The map task.
        """
        items = (build_element_name(name, index) for index in range(MAX_ITEMS))
        there = [each for each in items if stored.known.tasks.get(each, _NONE).state is not TaskState.SKIPPED]
        self._succeed(stored, name, task, gather_outputs(stored.outputs.get(each, {}) for each in there))


_NONE = TaskRun(TaskState.SKIPPED)


#: Maximum number of runs that are woken for one workflow in one transaction. All shards of a node may do so at the same
#: time.
MAX_WOKEN = 50


class WakeUps:
    """Checks ``dependent`` tasks again when a workflow that they wait for has progressed. Not thread-safe."""

    def __init__(self, connection: sa.Connection, shard: int, now: float, wake: Callable[[int], None]) -> None:
        self._connection = connection
        self._shard = shard
        self._now = now
        self._wake = wake
        self._done: set[int] = set()
        #: There is more to do, and a command was written for it.
        self.goes_on = False

    def is_superseded(self, command: CommandRow) -> bool:
        """Return whether another command in this transaction has already done what this command requests."""
        return command.id in self._done

    def apply_wake_up(self, command: CommandRow) -> None:
        """Check the dependencies of tasks that wait for a workflow, because a run or a task of it has ended.

        One command wakes at most ``MAX_WOKEN`` runs. If there are more, a further command is written to continue.

        Args:
            command: A wake-up command. Its arguments are the workflow and the run ID after which it continues.
        Raises:
            MalformedCommand: The command names no workflow.
        """
        code, after = command.args.get("code"), command.args.get("after", 0)
        if not isinstance(code, int) or not isinstance(after, int):
            raise MalformedCommand(f"command {command.id} names no run to wake")
        if not after and self._mark_duplicates_done(code, command.id):
            self._wake_next(code, 0)  # after the rest of that round
            return
        found = related_runs.list_waiting_runs(self._connection, self._shard, code, after=after, limit=MAX_WOKEN)
        for run_id in found:
            self._wake(run_id)
        if len(found) == MAX_WOKEN:
            self._wake_next(code, found[-1])

    def _mark_duplicates_done(self, code: int, command_id: int) -> bool:
        """Mark other commands for the same wake-up as done, because this command does their work.

        Returns:
            Whether a wake-up for this workflow has already woken some of the runs and must continue first.
        """
        others = commands.find_other_wake_up_commands(self._connection, self._shard, code, exclude=command_id)
        for other, after in others.items():
            if not after:
                self._done.add(other)
                commands.record_command_result(self._connection, other, self._now, run_id=None, error=None)
        return any(others.values())

    def _wake_next(self, code: int, after: int) -> None:
        send_command(self._connection, CommandType.WAKE, shard_id=self._shard, args={"code": code, "after": after})
        self.goes_on = True
