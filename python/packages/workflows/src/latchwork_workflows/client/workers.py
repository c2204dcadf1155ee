"""Workers, for clients."""

from __future__ import annotations

import builtins

from latchwork_workflows.client.transport import Transport
from latchwork_workflows.schemas.nodes import Worker


class WorkersClient:
    """The running workers."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(self) -> builtins.list[Worker]:
        """Return the running workers with their tasks, sorted by name.


        Raises:
            Unavailable: The API cannot reach the store.
        """
        return self._api.get("/workers", list[Worker])
