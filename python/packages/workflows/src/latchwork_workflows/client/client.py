"""``WorkflowClient``: workflows of an API, or of a local home without a server.

A client is a transport and one group of methods per resource. A group never opens files or databases: each method is
one request to the API, whose documents are the classes of ``schemas``. To add the group of a resource:

1. Write its schemas in ``schemas/<resources>.py``, its service, and its routes in ``api/<resources>.py``.
2. Write ``client/<resources>.py`` with a class that gets the ``Transport``, one method per route:

       class Pools:
           def __init__(self, api: Transport) -> None:
               self._api = api

           def list(self) -> builtins.list[Pool]:
               return self._api.get("/pools", list[Pool])

           def set(self, name: str, size: int) -> None:
               self._api.put(path("pools", name), PoolChange(size=size), type(None))

3. Add ``self.pools = Pools(api)`` below.

Exceptions need nothing: ``schemas/problems.py`` maps them to problems and back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import httpx

from latchwork_workflows.client.alerts import Alerts, Channels
from latchwork_workflows.client.backfills import Backfills
from latchwork_workflows.client.grants import Grants
from latchwork_workflows.client.pools import Pools
from latchwork_workflows.client.runs import Attempts, Commands, Runs, Tasks
from latchwork_workflows.client.settings import Connections, Environments, Parameters
from latchwork_workflows.client.transport import TIMEOUT_S, Transport
from latchwork_workflows.client.workers import Workers
from latchwork_workflows.client.workflows import Schedules, Workflows
from latchwork_workflows.home import Home

if TYPE_CHECKING:
    from latchwork_workflows.services import Parts

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
        self.workflows = Workflows(api)
        self.schedules = Schedules(api)
        self.runs = Runs(api)
        self.tasks = Tasks(api)
        self.attempts = Attempts(api)
        self.commands = Commands(api)
        self.alerts = Alerts(api)
        self.channels = Channels(api)
        self.backfills = Backfills(api)
        self.grants = Grants(api)
        self.connections = Connections(api)
        self.environments = Environments(api)
        self.parameters = Parameters(api)
        self.pools = Pools(api)
        self.workers = Workers(api)

    @classmethod
    def local(cls, home: Home | Path | str | None = None, *, by: str | None = None) -> Self:
        """Return a client of a local home, without a server: the API runs in this process.

        It may do everything, since it needs access to the database itself. A store that cannot be reached is no error:
        masters then find commands within some seconds, and workers are not shown.

        Args:
            home: Where the database, store and logs are: a ``Home``, or its folder. None: the default home.
            by: The name for the audit log. None: the user of this process.
        Raises:
            LatchworkError: There is no database, or it cannot be opened.
        """
        from latchwork_workflows.client.local import opened

        where = home if isinstance(home, Home) else Home.of(None if home is None else Path(home))
        parts, close = opened(where)
        return cls.in_process(parts, by=by, close=close)

    @classmethod
    def in_process(cls, parts: Parts, *, by: str | None = None, close: Callable[[], object] = lambda: None) -> Self:
        """Return a client of an API in this process, as an administrator whom no network can name.

        Args:
            parts: The database, and the store and logs as far as there are any.
            by: The name for the audit log. None: the user of this process.
            close: Called when the client is closed.
        """
        from latchwork_workflows.client.local import InProcess

        return cls("http://localhost", "", transport=InProcess(parts, by, close))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<WorkflowClient of {self._api.url}>"

    def close(self) -> None:
        """Close the connections, and what ``local`` has opened. Idempotent."""
        self._api.close()
