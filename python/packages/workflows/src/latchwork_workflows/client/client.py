"""``WorkflowClient``: a client of the API, or of a local home without a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import httpx

from latchwork_workflows.client.alerts import AlertsClient, ChannelsClient
from latchwork_workflows.client.backfills import BackfillsClient
from latchwork_workflows.client.grants import GrantsClient
from latchwork_workflows.client.pools import PoolsClient
from latchwork_workflows.client.runs import AttemptsClient, CommandsClient, RunsClient, TasksClient
from latchwork_workflows.client.settings import ConnectionsClient, EnvironmentsClient, ParametersClient
from latchwork_workflows.client.transport import TIMEOUT_S, Transport
from latchwork_workflows.client.workers import WorkersClient
from latchwork_workflows.client.workflows import SchedulesClient, WorkflowsClient
from latchwork_workflows.home import Home

if TYPE_CHECKING:
    from latchwork_workflows.services import ServiceContext

#: The environment variable of the token for ``url``. A command line would show it to other users of the machine.
TOKEN = "LATCHWORK_WORKFLOWS_TOKEN"  # noqa: S105 - a name


class WorkflowClient:
    """A client of workflows. Thread-safe. A context manager, which closes it.

    Args:
        url: The address of the API, such as ``https://flows.example.org``.
        token: A token of an account. None: the environment variable ``LATCHWORK_WORKFLOWS_TOKEN``.
        timeout_s: Seconds that one request may take. Default 60.
        transport: Sends the requests. None: over the network.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        token = os.environ.get(TOKEN, "") if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, transport=transport)
        self._api = api = Transport(http)
        self.workflows = WorkflowsClient(api)
        self.schedules = SchedulesClient(api)
        self.runs = RunsClient(api)
        self.tasks = TasksClient(api)
        self.attempts = AttemptsClient(api)
        self.commands = CommandsClient(api)
        self.alerts = AlertsClient(api)
        self.channels = ChannelsClient(api)
        self.backfills = BackfillsClient(api)
        self.grants = GrantsClient(api)
        self.connections = ConnectionsClient(api)
        self.environments = EnvironmentsClient(api)
        self.parameters = ParametersClient(api)
        self.pools = PoolsClient(api)
        self.workers = WorkersClient(api)

    @classmethod
    def local(cls, home: Home | Path | str | None = None, *, by: str | None = None) -> Self:
        """Return a client for a database on this machine, without a server.

        The API runs in this process with the rights of an administrator. If the store cannot be reached, masters
        execute the commands of the client some seconds later, and the list of workers is empty.

        Args:
            home: The locations of database, store and logs: a ``Home`` or a folder. None: the default home.
            by: The name for the audit log. None: the user of this process.
        Raises:
            LatchworkError: There is no database, or the database cannot be opened.
        """
        from latchwork_workflows.client.local import open_context

        where = home if isinstance(home, Home) else Home.of(None if home is None else Path(home))
        context, close = open_context(where)
        return cls.in_process(context, by=by, close=close)

    @classmethod
    def in_process(
        cls, context: ServiceContext, *, by: str | None = None, close: Callable[[], object] = lambda: None
    ) -> Self:
        """Return a client of an API in this process. It has the rights of an administrator.

        Args:
            context: The database, and the store and the log store if they are available.
            by: The name for the audit log. None: the user of this process.
            close: Called when the client is closed.
        """
        from latchwork_workflows.client.local import InProcessTransport

        return cls("http://localhost", "", transport=InProcessTransport(context, by, close))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<WorkflowClient of {self._api.url}>"

    def close(self) -> None:
        """Close the connections of the client, and everything that ``local`` has opened. Idempotent."""
        self._api.close()
