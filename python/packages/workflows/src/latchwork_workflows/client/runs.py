"""Runs, tasks, attempts and commands, for clients."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from latchwork.errors import WaitTimeout
from latchwork_workflows.client.transport import (
    PollDeadline,
    Transport,
    build_request,
    build_resource_path,
    check_params,
    split_workflow_name,
)
from latchwork_workflows.errors import WrongState
from latchwork_workflows.logs.store import LogPart
from latchwork_workflows.schemas.commands import Command, CommandSent
from latchwork_workflows.schemas.runs import ChildRun, Explanation, RecoverRequest, Run, RunDetail, StartRequest
from latchwork_workflows.schemas.tasks import Attempt, Task, TaskDetail

_PART = 65_536


class CommandsClient:
    """Requests to masters, such as starting or stopping a run."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def get(self, command: int) -> Command:
        """Return a command with its state: open, executed or refused.

        Raises:
            NotFound: There is no command with this ID.
        """
        return self._api.get(build_resource_path("commands", command), Command)

    def stop(self, command: int) -> None:
        """Withdraw a start command that no master has executed yet, or stop the run that it created.

        Raises:
            WrongState: The command started no run, was refused, or its run has ended.
        """
        self._api.post(build_resource_path("commands", command, action="stop"), None, type(None))

    def wait(self, command: int, timeout_s: float | None = 30.0) -> Command:
        """Wait until a master has executed a command, and return the command.

        Args:
            command: The ID of the command.
            timeout_s: Seconds to wait. None: forever.
        Raises:
            WrongState: The master refused the command. The message has the reason.
            WaitTimeout: No master has executed the command yet. The command stays valid.
        """
        deadline = PollDeadline(timeout_s)
        while True:
            found = self.get(command)
            if found.error:
                raise WrongState(found.error)
            if found.done_at is not None:
                return found
            if not deadline.pause():
                raise WaitTimeout(
                    f"no master has executed command {command} within {timeout_s:g} s; it stays queued; start "
                    "`latchwork workflows serve` or `master`"
                )


class RunRef:
    """A run that was requested and that a master creates. Thread-safe."""

    def __init__(self, runs: RunsClient, command: int) -> None:
        self._runs = runs
        self.command = command

    def __repr__(self) -> str:
        return f"<RunRef of command {self.command}>"

    def id(self, timeout_s: float | None = 30.0) -> int:
        """Wait until a master has created the run, and return the ID of the run.

        Args:
            timeout_s: Seconds to wait. None: forever.
        Raises:
            WrongState: The master refused the run. The message has the reason.
            WaitTimeout: No master has created the run yet. The request stays valid.
        """
        found = self._runs.commands.wait(self.command, timeout_s).run
        assert found is not None
        return found

    def stop(self) -> None:
        """Stop the run, or withdraw the request if no master has created the run yet.

        Raises:
            WrongState: The request was refused, or the run has ended.
        """
        self._runs.commands.stop(self.command)

    def wait(self, timeout_s: float | None = None) -> RunDetail:
        """Wait until the run has ended or paused, and return it. The errors are those of ``id``."""
        return self._runs.wait(self.id(timeout_s), timeout_s)


class RunsClient:
    """Runs of workflows. ``name`` is ``project.name``, or a name in the project ``default``."""

    def __init__(self, api: Transport) -> None:
        self._api = api
        self.commands = CommandsClient(api)

    def start(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        priority: str | None = None,
        start_from: Sequence[str] = (),
        scope: str = "downstream",
        dry_run: bool = False,
        no_cache: bool = False,
        schedule_time: float | None = None,
        unique_key: str | None = None,
    ) -> RunRef:
        """Request a run of a workflow.

        Args:
            name: The workflow.
            params: Values that replace those of the definition.
            priority: Replaces the priority of the definition.
            start_from: The tasks to start with. Empty: all.
            scope: Which tasks run: ``only`` the chosen ones, or also those ``downstream`` or ``upstream`` of them.
            dry_run: Every task succeeds without running.
            no_cache: Every task runs, even if its outputs are cached.
            schedule_time: The time from which parameters count, in seconds since the epoch. None: now.
            unique_key: Idempotency key. Requests with the same key create one run.
        Raises:
            NotFound: There is no such workflow.
            WrongState: The workflow is offline.
            BadRequest: The workflow has no such parameter or task.
        """
        check_params(params or {})
        body = build_request(
            StartRequest,
            params=dict(params or {}),
            priority=priority,
            start_from=list(start_from),
            scope=scope,
            dry=dry_run,
            no_cache=no_cache,
            schedule_time=schedule_time,
        )
        where = build_resource_path("workflows", *split_workflow_name(name), action="start")
        return RunRef(self, self._api.post(where, body, CommandSent, key=unique_key).command)

    def list(
        self, name: str | None = None, *, state: str = "", before: int | None = None, limit: int = 50
    ) -> builtins.list[Run]:
        """Return runs, newest first.

        Args:
            name: Return only runs of this workflow. None: all workflows.
            state: Return only runs in this state. Empty: any state.
            before: Return only runs with lower IDs, for the next page.
            limit: The maximum number of results, up to 500.
        Raises:
            NotFound: There is no such workflow.
            BadRequest: There is no such state.
        """
        project, workflow = ("", "") if name is None else split_workflow_name(name)
        query = {"project": project, "workflow": workflow, "state": state, "before": before, "limit": limit}
        return self._api.get("/runs", list[Run], **query)

    def get(self, run: int) -> RunDetail:
        """Return a run with its current tasks.

        Raises:
            NotFound: There is no run with this ID.
        """
        return self._api.get(build_resource_path("runs", run), RunDetail)

    def wait(self, run: int, timeout_s: float | None = None) -> RunDetail:
        """Wait until a run has ended or paused, and return it.

        Args:
            run: The ID of the run.
            timeout_s: Seconds to wait. None: forever.
        Raises:
            WaitTimeout: The run has not ended in time. It continues.
            NotFound: There is no run with this ID.
        """
        deadline = PollDeadline(timeout_s)
        while True:
            found = self.get(run)
            if found.has_ended:
                return found
            if not deadline.pause():
                raise WaitTimeout(f"run {run} is {found.state.value} after {timeout_s:g} s; it continues")

    def tasks(self, run: int, round: int | None = None) -> builtins.list[Task]:  # noqa: A002 - the name of the resource
        """Return the tasks of a run, in the order of the definition.

        Args:
            run: The ID of the run.
            round: Return the tasks of this start or rerun of the run, counted from 1. None: the current tasks.
        """
        return self._api.get(build_resource_path("runs", run, "tasks"), list[Task], round=round)

    def attempts(self, run: int) -> builtins.list[Attempt]:
        """Return all attempts of a run, including those before a rerun, newest first."""
        return self._api.get(build_resource_path("runs", run, "attempts"), list[Attempt])

    def children(self, run: int, *, before: int | None = None, limit: int = 50) -> builtins.list[ChildRun]:
        """Return the runs that tasks of a run started, newest first.

        Args:
            run: The ID of the run.
            before: Return only runs with lower IDs, for the next page.
            limit: The maximum number of results.
        """
        return self._api.get(build_resource_path("runs", run, "children"), list[ChildRun], before=before, limit=limit)

    def explain(self, run: int) -> Explanation:
        """Return why a run waits or has failed, and why each of its tasks is in its state."""
        return self._api.get(build_resource_path("runs", run, "why"), Explanation)

    def send_action(
        self,
        run: int,
        action: str,
        *,
        start_from: Sequence[str] = (),
        no_cache: bool = False,
        unique_key: str | None = None,
    ) -> int:
        """Send a command that changes a run, and return the ID of the command.

        Args:
            run: The ID of the run.
            action: ``pause``, ``resume``, ``stop``, ``recover`` or ``rerun``.
            start_from: For ``recover``: tasks to run again, with everything downstream of them.
            no_cache: For ``rerun``: run every task, even if its outputs are cached.
            unique_key: Idempotency key. Commands with the same key are carried out once.
        Raises:
            NotFound: There is no such run or action.
            WrongState: The state of the run does not allow the action. The message names the states that do.
            NotAllowed: Only masters send this command.
        """
        body = build_request(RecoverRequest, start_from=list(start_from), no_cache=no_cache)
        return self._api.post(
            build_resource_path("runs", run, action=action), body, CommandSent, key=unique_key
        ).command

    def pause(self, run: int) -> int:
        """Pause a run: start no more tasks, and let running tasks complete. The errors are those of ``send_action``."""
        return self.send_action(run, "pause")

    def resume(self, run: int) -> int:
        """Continue a paused run. The errors are those of ``send_action``."""
        return self.send_action(run, "resume")

    def stop(self, run: int) -> int:
        """Stop a run: end its running tasks and start no more. The errors are those of ``send_action``."""
        return self.send_action(run, "stop")

    def recover(self, run: int, start_from: Sequence[str] = ()) -> int:
        """Retry the failed and stopped tasks of a run, and everything downstream of them.

        The errors are those of ``send_action``.
        """
        return self.send_action(run, "recover", start_from=start_from)

    def rerun(self, run: int, *, no_cache: bool = False) -> int:
        """Run all tasks of a completed run again. The errors are those of ``send_action``."""
        return self.send_action(run, "rerun", no_cache=no_cache)


class TasksClient:
    """Tasks of runs."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def get(self, task: int) -> TaskDetail:
        """Return a task with its attempts and an explanation of its state.

        Raises:
            NotFound: There is no task with this ID.
        """
        return self._api.get(build_resource_path("tasks", task), TaskDetail)

    def elements(
        self, task: int, *, state: str = "", after: int | None = None, limit: int = 100
    ) -> builtins.list[Task]:
        """Return the elements of a map task, sorted by index.

        Args:
            task: The ID of the map task.
            state: Return only elements in this state. Empty: any state.
            after: Return only elements with a higher index, for the next page.
            limit: The maximum number of results.
        """
        return self._api.get(
            build_resource_path("tasks", task, "elements"), list[Task], state=state, after=after, limit=limit
        )

    def force_success(self, task: int) -> int:
        """Mark a failed task as successful, and return the ID of the command.

        Raises:
            NotFound: There is no task with this ID.
            WrongState: The task has not failed.
        """
        return self._api.post(build_resource_path("tasks", task, action="force-success"), None, CommandSent).command

    def force_start(self, task: int) -> int:
        """Start a queued task without waiting for a pool slot, and return the ID of the command.

        Raises:
            NotFound: There is no task with this ID.
            WrongState: The task is not queued.
        """
        return self._api.post(build_resource_path("tasks", task, action="force-start"), None, CommandSent).command


class AttemptsClient:
    """Attempts of tasks, and their logs. The ID of an attempt is ``<task>.<attempt number>.<claim>``."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def log(self, attempt: str, offset: int = 0, limit: int = _PART) -> LogPart:
        """Return a part of the log of an attempt, as bytes. Empty if nothing has been written at this offset yet.

        Args:
            attempt: The attempt.
            offset: The offset of the part, in bytes.
            limit: The maximum number of bytes.
        Raises:
            NotFound: There is no such attempt.
            Unavailable: The API cannot read logs.
        """
        where = build_resource_path("attempts", attempt, "log", "raw")
        answer = self._api.send("GET", where, query={"offset": offset, "limit": limit})
        return LogPart(answer.content, int(answer.headers["X-Log-Next"]), answer.headers["X-Log-Ended"] == "1")

    def follow(self, attempt: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the log of an attempt in chunks while the log grows, until the attempt has ended."""
        deadline = PollDeadline(None)
        while True:
            part = self.log(attempt, offset)
            if part.data:
                yield part.data
            elif not part.ended:
                deadline.pause()
            offset = part.next
            if part.ended:
                return
