"""The API in this process, for a client without a server."""

from __future__ import annotations

import getpass
import threading
from collections.abc import Callable
from contextlib import ExitStack

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

from latchwork.errors import LatchworkError
from latchwork.store import Store, connect
from latchwork_workflows.api import make_api
from latchwork_workflows.cluster import StoreCluster
from latchwork_workflows.db import Database
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.home import Home
from latchwork_workflows.installation import load_installation
from latchwork_workflows.keys import Keys
from latchwork_workflows.logs import open_logs
from latchwork_workflows.services import ServiceContext
from latchwork_workflows.web import Identity, Role, wrap_with_identity


def open_context(home: Home) -> tuple[ServiceContext, Callable[[], None]]:
    """Open the database of an installation, and its store and log store if possible.

    Returns:
        The context for services, and a function that closes everything.
    Raises:
        LatchworkError: There is no database, or the database cannot be opened.
    """
    if why := home.explain_missing_database():
        raise LatchworkError(why)
    with ExitStack() as stack:
        database = Database(home.database)
        stack.callback(database.close)
        cluster = _cluster(home, load_installation(database).id, stack)
        logs = open_logs(home.logs) if home.can_read_worker_logs else None
        return ServiceContext(database, DatabaseAccounts(database), logs=logs, cluster=cluster), stack.pop_all().close


def _cluster(home: Home, installation: str, stack: ExitStack) -> StoreCluster | None:
    if not home.store_may_exist:
        return None
    try:
        store = stack.enter_context(connect(home.store))
        if not _is_store_of(store, installation, home):
            return None
        return StoreCluster(store, Keys())
    except LatchworkError:
        return None  # masters find commands by polling, some seconds later


def _is_store_of(store: Store, installation: str, home: Home) -> bool:
    """Return whether a store belongs to the database. The store in the default location may belong to other workflows.

    Args:
        store: The store.
        installation: The ID of the database.
        home: The locations of the installation.
    """
    if home.has_explicit_store or home.is_local:
        return True
    there = store.get(f"@workflows/{Keys().id}")
    return there is not None and there.value == installation.encode()


class InProcessTransport(httpx.BaseTransport):
    """Sends the requests of a client to the API of this process. Thread-safe.

    An event loop runs the app in a separate thread, which the first request starts.

    Args:
        context: The database, store and logs of the app.
        by: The name of the administrator. None: the user of this process.
        close: Called once when it is closed.
    """

    def __init__(self, context: ServiceContext, by: str | None, close: Callable[[], object]) -> None:
        app = make_api(context, hosts=["localhost"])
        identity = Identity(by or _user(), {"": Role.ADMIN})
        self._app = httpx.ASGITransport(wrap_with_identity(app, identity))
        self._stack = ExitStack()
        self._stack.callback(close)
        self._portal: BlockingPortal | None = None
        self._mutex = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Pass a request to the app in this process, and return the response."""
        with self._mutex:
            if self._portal is None:
                self._portal = self._stack.enter_context(start_blocking_portal())
        return self._portal.call(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._app.handle_async_request(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())

    def close(self) -> None:
        """Stop the event loop and release the resources that the transport has opened. Idempotent."""
        self._stack.close()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
