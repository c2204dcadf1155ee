"""What one sees of workflows and their runs, from a program on the database itself. Nothing is changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from latchwork.errors import LatchworkError, Unavailable, WaitTimeout
from latchwork_workflows.db.views import catalog, instances
from latchwork_workflows.errors import BadRequest, NotAllowed, UnknownWorkflow, WrongState
from latchwork_workflows.explain import Cause
from latchwork_workflows.logs import LogMissing, LogPart
from latchwork_workflows.schemas.workers import ActiveTask
from latchwork_workflows.schemas.workflows import WorkflowDetail
from latchwork_workflows.services import Parts, WorkerSeen, schedules, workflows
from latchwork_workflows.services import attempts as attempts_desk
from latchwork_workflows.services import explanations as causes_desk
from latchwork_workflows.services import runs as runs_desk
from latchwork_workflows.services.workers import at_work
from latchwork_workflows.state import InstanceState
from latchwork_workflows.state.records import OVER
from latchwork_workflows.web import Identity, Problem

Row: TypeAlias = Any
#: Seconds between two looks of somebody who waits.
LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class RunSeen:
    """One run of a workflow, as the database has it.

    Attributes:
        id: of the instance.
        workflow: ``project.name``.
        version: of the workflow.
        state: of the instance.
        run: 1, and one more for each rerun.
        schedule_time: that its parameters count from, in seconds since the epoch.
        started_at: None before it was.
        ended_at: None before it is over.
        by: who asked for it.
        tasks: the state of each, by name, in the order of the definition.
    """

    id: int
    workflow: str
    version: int
    state: InstanceState
    run: int
    schedule_time: float
    started_at: float | None
    ended_at: float | None
    by: str
    tasks: Mapping[str, str]

    @property
    def is_over(self) -> bool:
        """Nothing happens any more unless somebody asks."""
        return self.state in OVER


class Looks:
    """What may be looked at. Safe to share between threads."""

    def __init__(self, parts: Parts, who: Identity) -> None:
        self._parts = parts
        self._who = who
        self._never = threading.Event()

    def workflows(self, contains: str = "", *, most: int = 1000) -> list[Row]:
        """The workflows, by project and name, with their schedules."""
        with self._parts.database.read() as connection:
            return catalog.listed(connection, contains=contains, most=most)

    def workflow(self, name: str, version: int | None = None) -> WorkflowDetail:
        """A version of a workflow; None: the newest. ``name`` is ``project.name``, or a name of ``default``."""
        with told():
            return workflows.get(self._parts, self._who, *split(name), version)

    def fires(self, cron: str, tz: str = "UTC", count: int = 5) -> list[float]:
        """The next moments at which a schedule fires, in seconds since the epoch.

        Raises:
            BadRequest: the expression or the time zone is wrong.
        """
        with told():
            return schedules.preview(cron, tz, count)

    def next_fires(self, row: Row, count: int = 5) -> list[float]:
        """The next moments at which a workflow of ``workflows`` is started by its schedule, within its window."""
        return schedules.next_fires(row, time.time(), count)

    def last_fires(self, rows: Sequence[Row]) -> dict[int, Row]:
        """What became of the newest fire time of each of these workflows, by their codes: a run, or an error."""
        with self._parts.database.read() as connection:
            return catalog.last_fires(connection, [each.code for each in rows])

    def instance(self, run_id: int) -> RunSeen:
        """A run.

        Raises:
            UnknownWorkflow: there is none.
        """
        with told():
            row = runs_desk.row_of(self._parts, self._who, run_id)
        return _seen(row, self.tasks(run_id, row.run))

    def instances(
        self, name: str | None = None, *, state: str = "", before: int | None = None, most: int = 50
    ) -> list[Row]:
        """The newest runs: of a workflow, or of all."""
        with self._parts.database.read() as connection:
            codes = None
            if name is not None:
                row = catalog.find(connection, *split(name))
                if row is None:
                    raise UnknownWorkflow(f"there is no workflow {name!r}")
                codes = [row.code]
            return instances.newest(connection, codes=codes, state=state, before=before, most=most)

    def tasks(self, run_id: int, run: int | None = None) -> list[Row]:
        """The tasks of a run, in the order of the definition; of the newest if ``run`` is None."""
        with told():
            number = run or runs_desk.row_of(self._parts, self._who, run_id).run
        with self._parts.database.read() as connection:
            return instances.tasks(connection, run_id, number)

    def attempts(self, run_id: int) -> list[Row]:
        """The attempts of all runs of an instance, the newest first; lost ones too."""
        with self._parts.database.read() as connection:
            return instances.attempts(connection, run_id)

    def why(self, run_id: int) -> dict[str, str]:
        """Why each task of a run is where it is, by name."""
        return self.causes(run_id)[1]

    def causes(self, run_id: int) -> tuple[list[Cause], dict[str, str]]:
        """Why a run does not go on, or why it failed; and why each of its tasks is where it is, by name."""
        with told():
            row = runs_desk.row_of(self._parts, self._who, run_id)
            body = workflows.get(self._parts, self._who, row.project, row.name, row.version).definition
            tasks = self.tasks(run_id, row.run)
            names = [each.name for each in tasks]
            found = causes_desk.reasons(self._parts, self._who, row, body, tasks, names)
            return causes_desk.of_run(self._parts, row, tasks, found), found

    def log(self, attempt: str, offset: int = 0, limit: int = 65_536) -> LogPart:
        """A part of the log of an attempt, ``<task>.<n>.<claim>``; an empty one where there is none yet."""
        with told():
            row = attempts_desk.find(self._parts, self._who, attempt)
        if self._parts.logs is None:
            raise LatchworkError("this client has no log store; give the one of the workers, by --logs in a shell")
        try:
            return self._parts.logs.read(row.log_ref, offset, limit)
        except LogMissing:
            return LogPart(b"", offset, ended=row.attempt.ended_at is not None)
        except OSError as error:
            raise Unavailable(f"the log of attempt {attempt} cannot be read now: {error.strerror or error}") from error

    def follow(self, attempt: str, offset: int = 0) -> Iterator[bytes]:
        """The log of an attempt as it grows, until its end."""
        while True:
            part = self.log(attempt, offset)
            if part.data:
                yield part.data
                offset = part.next
                continue
            if part.ended:
                return
            with told():
                is_over = attempts_desk.find(self._parts, self._who, attempt).attempt.ended_at is not None
            if is_over and not self.log(attempt, offset).data:
                return
            self._never.wait(LOOK_S)

    def done_row(self, command: int, timeout_s: float | None = 30.0) -> Row:
        """Wait until a master has done a command; its row, with ``instance`` or ``backfill`` that it is about.

        Raises:
            WrongState: it was refused; the message says why.
            WaitTimeout: none has in that time; it is done when one comes.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._parts.database.read() as connection:
                row = instances.find_command(connection, command)
            if row is None:
                raise UnknownWorkflow(f"there is no command {command}")
            if row.done_at is not None:
                if row.error:
                    raise WrongState(row.error)
                return row
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout(
                    f"no master has done command {command} in {timeout_s:g} s; it is done as soon as one comes: start "
                    "`latchwork workflows serve` or `master`"
                )
            self._never.wait(LOOK_S)

    def workers(self) -> Sequence[WorkerSeen]:
        """The workers that live, by name.

        Raises:
            LatchworkError: the store cannot be asked.
        """
        if self._parts.cluster is None:
            raise LatchworkError("this client has no store; give its URL to see the workers")
        return self._parts.cluster.workers()

    def at_work(self, workers: Sequence[WorkerSeen]) -> dict[str, tuple[ActiveTask, ...]]:
        """What each of these workers runs, by its name; those that it has for the longest first."""
        with self._parts.database.read() as connection:
            return at_work(connection, self._who, workers)


def split(name: str) -> tuple[str, str]:
    """Project and name of ``project.name``, or of a name of the project ``default``."""
    project, dot, rest = name.partition(".")
    return (project, rest) if dot else ("default", name)


def _seen(row: Row, tasks: Sequence[Row]) -> RunSeen:
    return RunSeen(
        row.id,
        f"{row.project}.{row.name}",
        row.version,
        InstanceState(row.state),
        row.run,
        row.schedule_time,
        row.started_at,
        row.ended_at,
        row.by,
        {each.name: each.state for each in tasks},
    )


@contextmanager
def told() -> Iterator[None]:
    """Problems, as the web has them, as errors of ours."""
    try:
        yield
    except Problem as problem:
        kind: type[LatchworkError] = {403: NotAllowed, 404: UnknownWorkflow, 409: WrongState, 503: Unavailable}.get(
            problem.status, BadRequest
        )
        raise kind(problem.detail) from None
