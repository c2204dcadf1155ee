"""``Worker``: a process that runs the tasks of its worker groups, each in a child process."""

from __future__ import annotations

import logging
import re
import socket

from latchwork.spi import Node, check_store, default_node_id
from latchwork.store import Session, Store, session_ttl_s
from latchwork_workflows.home import Home as WorkflowsHome
from latchwork_workflows.keys import Keys, get_workflows_store
from latchwork_workflows.logs import LogStore
from latchwork_workflows.model.definition import NAME_PATTERN
from latchwork_workflows.secrets import Secrets
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.worker.options import WorkerOptions
from latchwork_workflows.worker.preparation import ATTEMPTS, BUNDLES, create_work_folder, is_unrestricted_root
from latchwork_workflows.worker.session import WorkflowSession

_log = logging.getLogger(__name__)

#: Default TTL of a worker's session, if neither the worker nor the URL sets one.
SESSION_TTL_S = 30.0
#: Seconds for a task to end after SIGKILL and its outcome to be stored.
_KILL_S = 10.0


class Worker(Node[WorkflowSession]):
    """Runs tasks: ``with Worker(store, logs=open_logs(url)) as worker: worker.run_forever()``.

    A claimed task belongs to the worker while its session lasts, and child processes end before the session can. After
    a lost session the worker starts a new one. Construction does no I/O. Thread-safe.

    Args:
        store: Root store of the workflows. The caller closes it.
        logs: Store of logs and code bundles.
        name: Unique among the running workers. Default: the host name and six random characters.
        options: How to run tasks.
        types: Task types that can run. Default: the built-in and installed ones.
        secrets: Secrets of this machine. Default: environment variables and installed packages.
        root: Name of the installation in the store.
    """

    def __init__(
        self,
        store: Store,
        *,
        logs: LogStore,
        name: str | None = None,
        options: WorkerOptions | None = None,
        types: TaskTypes | None = None,
        secrets: Secrets | None = None,
        root: str = "default",
    ) -> None:
        check_store(store, "a worker")
        self.name = default_node_id("worker") if name is None else name
        if re.match(NAME_PATTERN, self.name) is None:
            raise ValueError(f"{self.name!r} is not a valid worker name; use letters, digits, '_', '-' and '.'")
        self.options = options or WorkerOptions()
        self._work_dir = self.options.work_dir or WorkflowsHome.of().folder / "work"
        self._keys = Keys(root)
        self._logs = logs
        self._types = types or TaskTypes()
        self._secrets = secrets or Secrets()
        self._host = socket.gethostname()
        super().__init__(
            get_workflows_store(store),
            self.name,
            what=f"worker {self.name!r} of {', '.join(self.options.groups)}",
            slots=self.options.slots,
            session_ttl_s=session_ttl_s(store, self.options.session_ttl_s, SESSION_TTL_S),
            drain_s=self.options.drain_s,
            close_s=self.options.stop_grace_s + _KILL_S,
        )

    def __repr__(self) -> str:
        return f"<Worker {self.name!r}>"

    def start(self) -> None:
        """Create the work folder and start to claim tasks. See ``Node``.

        Raises:
            Closed: It was closed or drained.
            LatchworkError: Another user can change its work folder, or it cannot be created.
        """
        self._home.check()
        self._work_dir = create_work_folder(self._work_dir)
        for each in (ATTEMPTS, BUNDLES):
            create_work_folder(self._work_dir / each)
        if self._thread is None and is_unrestricted_root(self.options.tenants):
            _log.warning(
                "worker %s: tasks without a tenant run as root; list the users of tasks with --tenants, or run the "
                "worker as another user",
                self.name,
            )
        super().start()

    def _create_worker_session(self, session: Session) -> WorkflowSession:
        return WorkflowSession(
            self._store,
            self._keys,
            self.name,
            self._host,
            self.options,
            work_dir=self._work_dir,
            logs=self._logs,
            types=self._types,
            secrets=self._secrets,
            session=session,
        )
