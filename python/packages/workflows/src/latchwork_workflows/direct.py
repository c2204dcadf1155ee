"""``WorkflowClient``: workflows applied, started, watched and mended, from a program or a shell on the database itself.

What is asked becomes a command for the master that has the run; what is shown is read from the database. It is the same
desk that the API and the pages stand on, asked as an administrator: who has the database may do everything.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping, Sequence
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from latchwork.errors import LatchworkError, WaitTimeout
from latchwork.store import Store
from latchwork_workflows.client.transport import request_of
from latchwork_workflows.cluster import StoreCluster
from latchwork_workflows.db import Database
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.deploying import bundled, packed, workflows_of
from latchwork_workflows.errors import DefinitionInvalid, UnknownWorkflow
from latchwork_workflows.errors import Problem as Wrong
from latchwork_workflows.keys import Keys
from latchwork_workflows.logs import LogStore
from latchwork_workflows.looking import LOOK_S, RunSeen, split, told
from latchwork_workflows.model.builder import Workflow
from latchwork_workflows.model.model import Definition
from latchwork_workflows.schemas.runs import StartRequest
from latchwork_workflows.schemas.workflows import AppliedVersion
from latchwork_workflows.services import Parts, commands, schedules, tasks, workflows
from latchwork_workflows.services import runs as runs_desk
from latchwork_workflows.services.stored import StoredSettings
from latchwork_workflows.state import Scope
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.web import Identity, Role

if TYPE_CHECKING:
    from typing import Self

Row: TypeAlias = Any
Given: TypeAlias = "Workflow | Definition | str | Mapping[str, Any]"


class RunRef:
    """A run that was asked for. Safe to share between threads.

    Attributes:
        command: the number of the command that asks for it.
    """

    def __init__(self, client: DirectClient, command: int) -> None:
        self._client = client
        self.command = command

    def __repr__(self) -> str:
        return f"<RunRef of command {self.command}>"

    def id(self, timeout_s: float | None = 30.0) -> int:
        """The id of its instance, once a master has made it.

        Raises:
            WrongState: it was refused; the message says why.
            WaitTimeout: no master has done it in that time; it is done when one comes.
        """
        return self._client.done(self.command, timeout_s)

    def stop(self) -> None:
        """Stop the run, or, before a master has made it, see to it that none does.

        Raises:
            WrongState: it was refused, or has ended.
        """
        with told():
            commands.stop(self._client._parts, self._client._who, self.command)  # noqa: SLF001 - its own

    def wait(self, timeout_s: float | None = None) -> RunSeen:
        """The run, once it is over. Errors as for ``id``."""
        return self._client.wait(self.id(timeout_s), timeout_s)


class DirectClient(StoredSettings):
    """Workflows, for programs: ``WorkflowClient.local("sqlite:///flows.db", store)``. Safe to share between threads.

    Args:
        parts: database, task types, and as far as they are there, logs and store.
        who: asks; checked as by the API.
    """

    def __init__(self, parts: Parts, who: Identity) -> None:
        super().__init__(parts, who)
        self._owned: list[Any] = []

    @classmethod
    def local(
        cls,
        database: Database | str,
        store: Store | None = None,
        *,
        logs: LogStore | None = None,
        types: TaskTypes | None = None,
        by: str | None = None,
        name: str = "default",
    ) -> DirectClient:
        """A client on the database itself, without a server: who can open that may do everything.

        Args:
            database: or its URL.
            store: None: masters find what is asked within some seconds, and workers are not seen.
            logs: None: logs cannot be read.
            types: the task types that may be applied; None: all that are installed.
            by: who is told to have asked; the user of this process by default.
            name: of the installation in the store.
        """
        opened = database if isinstance(database, Database) else Database(database)
        cluster = None if store is None else StoreCluster(store, Keys(name))
        parts = Parts(opened, DatabaseAccounts(opened), types or TaskTypes(), logs, cluster)
        made = cls(parts, Identity(by or _user(), {"": Role.ADMIN}))
        made._owned = [each for each in (cluster, opened if opened is not database else None) if each is not None]
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what it opened. Twice is fine."""
        for each in self._owned:
            each.close()

    # Workflows

    def validate(self, given: Given) -> list[Wrong]:
        """Every problem of a definition, in its order; empty if it can be run."""
        try:
            workflows.check(self._parts, self._who, _plain(given))
        except DefinitionInvalid as error:
            return error.problems
        return []

    def apply(self, given: Given, *, online: bool | None = None) -> AppliedVersion:
        """Write a definition: a new version if it differs from the newest of its name.

        Args:
            given: what ``@workflow`` made, YAML or JSON text, or plain values.
            online: whether it may be started. None: a new workflow may, and one that is there stays as it is.
        Raises:
            DefinitionInvalid: with every problem.
        """
        with told():
            return workflows.apply(self._parts, self._who, _plain(given), online=online)

    def deploy(
        self, module: ModuleType, *, bundle: bool = True, online: bool | None = None
    ) -> list[tuple[Workflow, AppliedVersion]]:
        """Write all workflows of a module, with its code; none is written unless all can be run.

        Args:
            module: with functions of ``@workflow``.
            bundle: pack its code, the file or the package that it is in, for the workers; else it is installed there.
            online: whether they may be started. None: new workflows may, and those that are there stay as they are.
        Raises:
            UnknownWorkflow: the module has none.
            DefinitionInvalid: with every problem of the first that has any.
            BadBundle: its code cannot be packed.
        """
        found = workflows_of(module)
        if not found:
            raise UnknownWorkflow(f"module {module.__name__} has no workflows; put @workflow before a function")
        if bundle and self._parts.logs is None:
            raise LatchworkError("this client has no log store to keep the code in; give the one of the workers")
        sha256 = packed(module, self._parts.logs) if bundle and self._parts.logs is not None else None
        made = [each.definition if sha256 is None else bundled(each.definition, module, sha256) for each in found]
        for each in made:
            workflows.check(self._parts, self._who, _plain(each))
        return [(of, self.apply(each, online=online)) for of, each in zip(found, made, strict=True)]

    def set_online(self, name: str, *, online: bool) -> None:
        """Whether a workflow may be started; runs that are there go on."""
        with told():
            workflows.set_online(self._parts, self._who, *split(name), online=online)

    def set_schedule(self, name: str, *, enabled: bool) -> None:
        """Whether its schedule starts it. Switched on again, it owes nothing of the time in between."""
        with told():
            schedules.set_enabled(self._parts, self._who, *split(name), enabled=enabled)

    # Runs

    def start(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        priority: str | None = None,
        start_from: Sequence[str] = (),
        scope: Scope | str = Scope.DOWNSTREAM,
        dry_run: bool = False,
        no_cache: bool = False,
        schedule_time: float | None = None,
        unique_key: str | None = None,
    ) -> RunRef:
        """Ask for a run of a workflow.

        Args:
            name: ``project.name``, or a name of the project ``default``.
            params: values instead of the definition's.
            priority: instead of the definition's.
            start_from: tasks to begin with; empty: all.
            scope: what else runs: ``only``, ``downstream`` or ``upstream``.
            dry_run: every task succeeds without running.
            no_cache: every task runs, whatever is known of its outputs.
            schedule_time: that times count from, in seconds since the epoch; None: now.
            unique_key: the same key and the same start again are one run.
        Raises:
            UnknownWorkflow: there is none of this name.
            WrongState: it is offline.
            BadRequest: it has no such parameter or task.
        """
        given = request_of(
            StartRequest,
            params=dict(params or {}),
            priority=priority,
            start_from=list(start_from),
            scope=scope,
            dry=dry_run,
            no_cache=no_cache,
            schedule_time=schedule_time,
        )
        with told():
            asked = runs_desk.start(self._parts, self._who, *split(name), given, unique_key=unique_key)
        return RunRef(self, asked.command)

    def act(
        self,
        run_id: int,
        action: str,
        *,
        start_from: Sequence[str] = (),
        no_cache: bool = False,
        unique_key: str | None = None,
    ) -> int:
        """Ask something of a run; the number of the command.

        Args:
            run_id: of the run.
            action: ``pause``, ``resume``, ``stop``, ``recover`` or ``rerun``.
            start_from: for a recovery: tasks that run again with all behind them.
            no_cache: for a rerun: every task runs, whatever is known of its outputs.
            unique_key: the same key and the same command again change nothing.
        Raises:
            UnknownWorkflow: there is no such run.
            WrongState: its state does not take that; the message says which would.
            NotAllowed: it is for masters to say.
        """
        with told():
            return runs_desk.act(
                self._parts,
                self._who,
                run_id,
                action,
                start_from=start_from,
                no_cache=no_cache,
                unique_key=unique_key,
            ).command

    def pause(self, run_id: int) -> int:
        """Let running tasks end, and start none; errors as for ``act``."""
        return self.act(run_id, "pause")

    def resume(self, run_id: int) -> int:
        """Go on after a pause; errors as for ``act``."""
        return self.act(run_id, "resume")

    def stop(self, run_id: int) -> int:
        """End everything; errors as for ``act``."""
        return self.act(run_id, "stop")

    def recover(self, run_id: int, start_from: Sequence[str] = ()) -> int:
        """Run what failed or was ended once more, and what follows; errors as for ``act``."""
        return self.act(run_id, "recover", start_from=start_from)

    def rerun(self, run_id: int, *, no_cache: bool = False) -> int:
        """Everything from the start, as another run of the same instance; errors as for ``act``."""
        return self.act(run_id, "rerun", no_cache=no_cache)

    def force_success(self, task_id: int) -> int:
        """A task that failed counts as success; errors as for ``act``."""
        with told():
            return tasks.force(self._parts, self._who, task_id, "force-success").command

    def force_start(self, task_id: int) -> int:
        """A queued task is taken without waiting for a slot of its pool; errors as for ``act``."""
        with told():
            return tasks.force(self._parts, self._who, task_id, "force-start").command

    def done(self, command: int, timeout_s: float | None = 30.0) -> int:
        """Wait until a master has done a command; the instance that it is about.

        Raises:
            WrongState: it was refused; the message says why.
            WaitTimeout: none has in that time; it is done when one comes.
        """
        return int(self.done_row(command, timeout_s).instance)

    def wait(self, run_id: int, timeout_s: float | None = None) -> RunSeen:
        """The run, once it is over.

        Raises:
            WaitTimeout: it is not, in that time.
            UnknownWorkflow: there is none.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.instance(run_id)
            if found.is_over:
                return found
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout(f"run {run_id} is {found.state.value} after {timeout_s:g} s; it goes on")
            self._never.wait(LOOK_S)


def _plain(given: Given) -> str | Mapping[str, Any]:
    if isinstance(given, Workflow):
        given = given.definition
    if isinstance(given, Definition):
        return given.model_dump(mode="json", exclude_defaults=True)
    return given


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"
