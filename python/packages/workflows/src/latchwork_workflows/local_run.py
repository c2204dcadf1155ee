"""Runs a whole workflow in this process, for tests and first steps: ``flow.test(day="2026-11-22")``.

Needs no database, no store and no waiting. It uses the same rules as a master (``advance``), fills in values like a
worker, and moves the clock to the next event. Python tasks are called directly, so debuggers can stop in them and tests
can replace what they use. Other tasks are started as by a worker, without supervision. Sub-processes must be workflows
defined in this process. Dependents succeed at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from latchwork.errors import LatchworkError
from latchwork.spi import call_user, reason
from latchwork_workflows.bundles import BundleCache
from latchwork_workflows.logs import open_logs
from latchwork_workflows.messages import TaskMessage
from latchwork_workflows.model.defined import DEFINED
from latchwork_workflows.model.definition import Definition, TaskSpec, build_plan
from latchwork_workflows.model.master_tasks import choose_branch, qualify_name
from latchwork_workflows.model.settings.usage import list_connections
from latchwork_workflows.model.specs import build_message
from latchwork_workflows.model.templates import fill_references
from latchwork_workflows.model.values import RunContext, compute_items, compute_values, gather_outputs
from latchwork_workflows.state import (
    Call,
    Chose,
    Claimed,
    Ended,
    Event,
    Expanded,
    Outcome,
    RunState,
    Start,
    TaskState,
    WorkflowRun,
    advance,
    build_element_name,
    get_element_index,
    get_map_name,
)
from latchwork_workflows.state.records import OVER
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.types.master_tasks import SubProcessParams
from latchwork_workflows.worker import Secrets, WorkerOptions
from latchwork_workflows.worker.attempt import ActiveAttempt, BadOutput, parse_outputs
from latchwork_workflows.worker.preparation import AttemptPreparer, CannotRun

if TYPE_CHECKING:
    from latchwork.primitives import QueueClaim

#: The maximum number of rounds of a run. Chains of 5,000 tasks with 1,000 retries need fewer, so more are a defect.
_MAX_ROUNDS = 100_000
#: The prefix of variables with the URL of a stored connection.
_CONNECTION = "LATCHWORK_CONNECTION_"
#: The requests of tasks that a master would run itself.
_ANSWERED = frozenset({"open", "look", "choose", "expand", "gather"})


@dataclass(slots=True)
class LocalTaskResult:
    """The result of a task.

    Attributes:
        state: The state, such as ``success``.
        attempts: The number of attempts.
        outputs: The outputs.
        log: The output of all attempts.
        error: The error of the last failed attempt.
    """

    state: str = "waiting"
    attempts: int = 0
    outputs: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""
    error: str = ""


@dataclass(slots=True)
class LocalRunResult:
    """The result of a run.

    Attributes:
        state: ``success`` or ``failure``.
        tasks: The results of its tasks by name, in the order of the definition.
        took_s: Seconds on the virtual clock of the run.
    """

    __test__ = False  # pytest collects names that begin with Test

    state: str
    tasks: Mapping[str, LocalTaskResult]
    took_s: float

    @property
    def outputs(self) -> dict[str, Mapping[str, Any]]:
        """The outputs of succeeded tasks, by name."""
        return {name: each.outputs for name, each in self.tasks.items() if each.state == "success"}

    def check(self) -> LocalRunResult:
        """Return this result if the run succeeded.

        Raises:
            LatchworkError: The run failed. The message names the first failed task and has the end of its log.
        """
        if self.state != "success":
            name, task = next(((n, t) for n, t in self.tasks.items() if t.error), ("?", LocalTaskResult()))
            end = "\n".join(task.log.splitlines()[-20:])
            raise LatchworkError(f"the run ended as {self.state}: task {name!r}: {task.error}\n{end}")
        return self


class _NoVariables(dict[str, Mapping[str, str]]):
    """Environments that all exist and are empty. Tests set the variables of their process instead."""

    def __missing__(self, name: str) -> Mapping[str, str]:
        return {}


def _load_connections(definition: Definition) -> dict[str, Mapping[str, str]]:
    """Return the stored connections of a test run, which are given as environment variables.

    The variable ``LATCHWORK_CONNECTION_SHOP`` is the connection ``shop``.
    """
    named = {name: _CONNECTION + re.sub(r"[.-]", "_", name).upper() for name in list_connections(definition) or ()}
    return {name: {"url": os.environ[each], "secret": ""} for name, each in named.items() if each in os.environ}


class LocalRun:
    """A test run. Not thread-safe."""

    def __init__(
        self, definition: Definition, order: tuple[str, ...], params: Mapping[str, Any], folder: Path, now: float
    ) -> None:
        connections = _load_connections(definition)
        self._run = RunContext(definition, 1, now, params, environments=_NoVariables(), connections=connections)
        self._plan = build_plan(definition, order)
        self._types = TaskTypes()
        self._rows: dict[str, int] = {}
        self._tried = {each.name: LocalTaskResult() for each in definition.tasks}
        self._outputs: dict[str, Mapping[str, Any]] = {}
        self._folder = folder
        self._secrets = Secrets()
        bundles = BundleCache(folder / "bundles")
        self._preparing = AttemptPreparer(
            WorkerOptions(work_dir=folder), self._types, self._secrets, bundles, open_logs(folder / "logs")
        )
        self._now = self._began = now

    def run(self) -> LocalRunResult:
        """Run the workflow from start to end, and return the result."""
        known = advance(self._plan, WorkflowRun(), [Start()], self._now)
        for _ in range(_MAX_ROUNDS):
            known = self._execute_calls(known)
            if known.state in OVER:
                break
            known = self._run_ready_tasks(known)
        for name, task in known.tasks.items():
            self._result_of(name).state = task.state.value
        return LocalRunResult(known.state.value, self._tried, self._now - self._began)

    def _result_of(self, name: str) -> LocalTaskResult:
        return self._tried.setdefault(name, LocalTaskResult())

    def _execute_calls(self, run: WorkflowRun) -> WorkflowRun:
        """Execute the actions that a master would execute for tasks that it runs itself."""
        while run.calls:
            calls, run = run.calls, replace(run, calls=(), timeline_events=())
            for call in calls:
                task = run.tasks[call.task]
                if task.runs_on_master and call.kind in _ANSWERED:
                    earlier, run = run.calls, replace(run, calls=())
                    run = advance(self._plan, run, [self._event_for_call(call, task.n)], self._now)
                    run = replace(run, calls=(*earlier, *run.calls))
        return run

    def _event_for_call(self, call: Call, n: int) -> Event:
        name = call.task
        tried = self._result_of(name)
        tried.attempts += call.kind != "gather"
        try:
            event, outputs = self._run_held_task(call.kind, name, n)
        except KeyError as error:
            tried.error = f"nothing has the name {error.args[0]!r}"
            return Ended(name, n, Outcome.FATAL)
        except (LatchworkError, ValueError) as error:
            tried.error = str(error)
            return Ended(name, n, Outcome.FATAL)
        if isinstance(event, Ended):
            self._outputs[name] = tried.outputs = outputs
        return event

    def _run_held_task(self, kind: str, name: str, n: int) -> tuple[Event, Mapping[str, Any]]:
        spec = self._run.tasks[get_map_name(name)]
        if kind == "choose":
            values = compute_values(self._run, spec, n, self._outputs)
            return Chose(name, n, tuple(choose_branch(spec, values, self._outputs))), {}
        if kind == "expand":
            count = len(compute_items(self._run, spec, n, self._outputs))
            return (Expanded(name, n, count) if count else Ended(name, n, Outcome.SUCCESS)), {}
        outputs: Mapping[str, Any] = {}  # a dependent succeeds at once, since no other runs exist here
        if kind == "gather":
            outputs = self._gather_outputs(name)
        elif kind == "open":
            outputs = self._run_child(spec, name, n)
        return Ended(name, n, Outcome.SUCCESS), outputs

    def _gather_outputs(self, name: str) -> Mapping[str, Any]:
        count = sum(get_map_name(each) == name for each in self._tried) - 1
        return gather_outputs(self._outputs.get(build_element_name(name, index), {}) for index in range(count))

    def _run_child(self, spec: TaskSpec, name: str, n: int) -> Mapping[str, Any]:
        """Run the workflow of a sub-process task, and return its outputs. This process must have defined it.

        Args:
            spec: The task.
            name: Name of the task.
            n: Number of the attempt.
        """
        given = SubProcessParams.model_validate(spec.params)
        flow = DEFINED.get(qualify_name(given.workflow))
        if flow is None:
            raise LatchworkError(f"no imported workflow is named {given.workflow!r}; import its module in the test")
        values = compute_values(self._run, spec, n, self._outputs, index=get_element_index(name))
        params = fill_references(given.params, values, self._run.schedule_datetime)
        done = run_locally(flow.definition, flow.order, params, self._run.schedule_time)
        self._now += done.took_s
        self._result_of(name).log += "".join(each.log for each in done.tasks.values())
        done.check()
        return {key: value for each in flow.order for key, value in done.tasks[each].outputs.items()}

    def _run_ready_tasks(self, known: WorkflowRun) -> WorkflowRun:
        submitted = [name for name, task in known.tasks.items() if task.state is TaskState.SUBMITTED]
        for name in submitted:
            n = known.tasks[name].n
            known = advance(self._plan, known, [Claimed(name, n)], self._now)
            outcome = self._run_attempt(name, n)
            known = self._execute_calls(advance(self._plan, known, [Ended(name, n, outcome)], self._now))
            if known.state is not RunState.RUNNING or known.ending:
                break
        if not submitted or known.ending:
            self._now = max(self._now, known.wake_at or self._now)
            left = [name for name, task in known.tasks.items() if task.state is TaskState.SUBMITTED]
            events = [Ended(name, known.tasks[name].n, Outcome.KILLED) for name in left if known.ending]
            known = advance(self._plan, known, events, self._now)
        return known

    def _run_attempt(self, name: str, n: int) -> Outcome:
        tried = self._result_of(name)
        tried.attempts += 1
        began = time.monotonic()
        try:
            row = self._rows.setdefault(name, len(self._rows) + 1)
            of, index = self._run.tasks[get_map_name(name)], get_element_index(name)
            spec = build_message(self._run, of, row, n, self._outputs, place=(0, 1, 1), index=index)
            outcome, outputs = (
                self._call_function(spec, tried)
                if self._runs_in_process(spec)
                else self._run_in_subprocess(spec, tried)
            )
        except KeyError as error:
            outcome, outputs = Outcome.FATAL, {}
            tried.error = f"nothing has the name {error.args[0]!r}"
        except (CannotRun, BadOutput, LatchworkError, ValueError) as error:
            is_final = getattr(error, "is_final", False)
            outcome, outputs = Outcome.FATAL if is_final else Outcome.FAILURE, {}
            tried.error = str(error)
        self._now += time.monotonic() - began
        if outcome is Outcome.SUCCESS:
            self._outputs[name] = tried.outputs = outputs
        return outcome

    def _runs_in_process(self, spec: TaskMessage) -> bool:
        return spec.head.type == "python" and "bundle" not in spec.params

    def _call_function(self, spec: TaskMessage, tried: LocalTaskResult) -> tuple[Outcome, dict[str, Any]]:
        """Call the function of a Python task in this process. Its printed output becomes the log.

        Args:
            spec: The task.
            tried: The result of the task, which gets the log.
        Returns:
            The outcome and the outputs.
        """
        args = fill_references(spec.params.get("args", {}), spec.values, self._run.schedule_datetime)
        module, _, path = spec.params["function"].partition(":")
        function: Any = import_module(module)
        for part in path.split("."):
            function = getattr(function, part)
        function = getattr(function, "__wrapped__", function)
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                result = call_user(function, **args)
        except Exception as error:
            tried.log += out.getvalue() + traceback.format_exc()
            tried.error = reason(error)
            return Outcome.FAILURE, {}
        tried.log += out.getvalue()
        return Outcome.SUCCESS, result if isinstance(result, dict) else {} if result is None else {"result": result}

    def _run_in_subprocess(self, spec: TaskMessage, result: LocalTaskResult) -> tuple[Outcome, dict[str, Any]]:
        """Run a task that is not a Python function, such as a shell script, in a separate process.

        Args:
            spec: The task.
            result: The result of the task, which gets the log.
        Returns:
            The outcome and the outputs.
        """
        folder = self._folder / f"{spec.head.task}.{spec.head.n}"
        attempt = ActiveAttempt(cast("QueueClaim", None), spec.head, spec.head.n)
        made = self._preparing.prepare(attempt, spec, folder)
        try:
            done = subprocess.run(  # noqa: S603 - the command is that of the definition
                made.command.argv,
                input=made.command.stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(made.env),
                cwd=made.folder,
                timeout=spec.head.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            result.log += (error.stdout or b"").decode("utf-8", "replace")
            result.error = f"it took longer than {spec.head.timeout_s:g} s"
            return Outcome.FAILURE, {}
        result.log += done.stdout.decode("utf-8", "replace")
        if done.returncode:
            result.error = f"exit code {done.returncode}"
            return Outcome.FAILURE, {}
        return Outcome.SUCCESS, parse_outputs(made.output.read_bytes())


def run_locally(
    definition: Definition, order: tuple[str, ...], params: Mapping[str, Any], schedule_time: float | None = None
) -> LocalRunResult:
    """Run a workflow in this process from start to end.

    Args:
        definition: The workflow.
        order: The names of its tasks in topological order.
        params: Values that replace the parameters of the workflow.
        schedule_time: The schedule time, in seconds since the epoch. None: now.
    Raises:
        LatchworkError: The workflow has no such parameter.
    """
    unknown = sorted(params.keys() - definition.params.keys())
    if unknown:
        has = ", ".join(definition.params) or "none"
        raise LatchworkError(f"{definition.key} has no parameter {unknown[0]!r}; it has {has}")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="latchwork-try-") as folder:
        now = time.time() if schedule_time is None else schedule_time
        return LocalRun(definition, order, params, Path(folder), now).run()
