"""One set of servers for a whole run, however many processes it has.

The process that pytest was started in starts each server when a test of any process first asks for it, and ends them
all with the run; however it ends, they end with it. The processes of xdist ask it through a socket.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from backends_table import BY_NAME
from latchwork_testkit.postgres import PostgresServer, postgres_url

#: What the processes of xdist are told: the path of the socket, and the key that opens it.
Way = tuple[str, str]


@dataclass(frozen=True)
class SharedServer:
    """A server of the run. Leave it running and unhurt."""

    scheme: str
    endpoint: str

    def url(self, root: str = "/latchwork", **options: object) -> str:
        """Connection URL with this root and these query options."""
        if self.scheme == PostgresServer.SCHEME:
            return postgres_url(self.endpoint, root, **options)
        query = f"?{urlencode(options)}" if options else ""
        return f"{self.scheme}://{self.endpoint}/{root.lstrip('/')}{query}"


class Starter:
    """Starts servers on request, of this process or of others. Safe to share."""

    def __init__(self) -> None:
        self._locks = {name: threading.Lock() for name in BY_NAME}
        self._running: dict[str, Any] = {}
        self._listener: Listener | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.way: Way | None = None

    def get(self, name: str) -> SharedServer:
        """The server of a backend, which is started if it does not run yet."""
        with self._locks[name]:
            if name not in self._running:
                server = BY_NAME[name].launch()
                server.start()
                self._running[name] = server
            return SharedServer(self._running[name].SCHEME, self._running[name].endpoint)

    def listen(self) -> Way:
        """Answer other processes from now on; what they have to be told."""
        if self.way is None:
            self._folder = tempfile.TemporaryDirectory(prefix="latchwork-run-")
            key = secrets.token_hex()
            self._listener = Listener(str(Path(self._folder.name) / "servers"), authkey=key.encode())
            self.way = (str(self._listener.address), key)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return self.way

    def close(self) -> None:
        """End every server."""
        if self._listener is not None:
            self._listener.close()
        if self._folder is not None:
            self._folder.cleanup()
        for name, server in self._running.items():
            with self._locks[name]:
                server.close()
        self._running.clear()

    def _accept(self, listener: Listener) -> None:
        with suppress(OSError):  # closed
            while True:
                with suppress(EOFError, ConnectionError):
                    threading.Thread(target=self._answer, args=(listener.accept(),), daemon=True).start()

    def _answer(self, asking: Connection) -> None:
        with asking, suppress(EOFError, ConnectionError):
            name = asking.recv()
            try:
                asking.send(self.get(name))
            except Exception as error:
                asking.send(f"{type(error).__name__}: {error}")


#: Of the process that pytest was started in.
STARTER = pytest.StashKey[Starter]()


def shared_server(config: pytest.Config, name: str) -> SharedServer:
    """The run's server of a backend, started by the first who wants it."""
    way: Way | None = getattr(config, "workerinput", {}).get("servers")
    return _ask(way, name) if way else config.stash[STARTER].get(name)


def _ask(way: Way, name: str) -> SharedServer:
    """The server of a backend, from the process that the run was started in.

    Raises:
        RuntimeError: it could not be started.
    """
    path, key = way
    with Client(path, authkey=key.encode()) as starter:
        starter.send(name)
        answer = starter.recv()
    if isinstance(answer, SharedServer):
        return answer
    raise RuntimeError(answer)
