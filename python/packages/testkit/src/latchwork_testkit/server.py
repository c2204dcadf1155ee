"""The base classes of all server launchers: ports, data directory, process, and waiting until the server is ready.

The launchers are in `etcd.py`, `zookeeper.py` and `postgres.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from latchwork.errors import LatchworkError
from latchwork_testkit.ports import HOST, PortReservation, reserve_port
from latchwork_testkit.process import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

_PROBE_INTERVAL_S = 0.02
_START_ATTEMPTS = 3
_LOG_TAIL_LINES = 25
_PORT_TAKEN = "address already in use"


class ServerFailed(LatchworkError):
    """A server did not start, ended early, or is in the wrong state. The message may end with the last lines of its
    log.
    """


@dataclass(frozen=True)
class Tls:
    """The TLS certificates of a server, and whether clients must have a certificate as well.

    All files are PEM. ZooKeeper needs the key as PKCS #8.
    """

    ca_file: Path
    cert_file: Path
    key_file: Path
    client_cert_auth: bool = False


class Launcher(ABC):
    """Starts and stops a server or a group of servers. Not thread-safe.

    As a context manager, it starts the servers at the beginning and closes them at the end.
    """

    SCHEME: str

    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start the servers and wait until they are ready. Later starts use the same ports and data.

        Args:
            timeout_s: Seconds to wait for each attempt.
        Raises:
            ServerMissing: The program is not installed.
            ServerFailed: The server is already running, ended early, or was not ready within `timeout_s`.
        """
        if self.running:
            raise ServerFailed(f"{self!r} is already running; stop it before you start it again")
        for attempts_left in reversed(range(_START_ATTEMPTS)):
            try:
                self._spawn()
                self._await_ready(time.monotonic() + timeout_s)
            except BaseException as error:
                self.kill()
                taken = isinstance(error, ServerFailed) and _PORT_TAKEN in str(error).lower()
                if not (taken and attempts_left and self._renew_ports()):
                    raise
            else:
                self._pin_ports()
                return

    def restart(self, *, timeout_s: float = 30.0) -> None:
        """Stop the servers if they are running, and start them again with the same ports and data.

        Args:
            timeout_s: Seconds to wait until they are ready.
        Raises:
            ServerFailed: A server ended early, or was not ready within `timeout_s`.
        """
        self.stop()
        self.start(timeout_s=timeout_s)

    def url(self, root: str = "/latchwork", **options: object) -> str:
        """Return a connection URL with this root and these query options."""
        query = f"?{urlencode({name: str(value) for name, value in options.items()})}" if options else ""
        return f"{self.SCHEME}://{self.endpoint}/{root.lstrip('/')}{query}"

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """`host:port` for clients. A group has one for each member, joined by commas. The first use reserves the
        ports.
        """

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether all processes exist, even if they are paused."""

    @abstractmethod
    def stop(self, *, timeout_s: float = 10.0) -> None:
        """Stop the servers, or kill them after `timeout_s` seconds. Keeps the data. Does nothing if they are not
        running.
        """

    @abstractmethod
    def kill(self) -> None:
        """Kill the servers (SIGKILL) and keep the data. Does nothing if they are not running."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze the servers (SIGSTOP). Their connections stay open and silent."""

    @abstractmethod
    def resume(self) -> None:
        """Continue the servers after `pause`."""

    @abstractmethod
    def close(self) -> None:
        """Stop the servers, release the ports, and remove the data unless a data directory was given. Idempotent."""

    @abstractmethod
    def _spawn(self) -> None: ...

    @abstractmethod
    def _await_ready(self, deadline: float) -> None: ...

    @abstractmethod
    def _renew_ports(self) -> bool:
        """Choose other ports for the next attempt. Return False if clients may already know the ports."""

    @abstractmethod
    def _pin_ports(self) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Server(Launcher):
    """A server of one process. Subclasses define its ports, its command, and how to check that it is ready.

    Args:
        data_dir: Directory of its data, which is kept. None uses a temporary directory that `close` removes.
        tls: Certificates, if clients connect over TLS.
    """

    PORTS: tuple[str, ...]
    LABEL: str

    def __init__(self, *, data_dir: Path | None = None, tls: Tls | None = None) -> None:
        self._tls = tls
        self._host = HOST
        self._command_prefix: list[str] = []  # runs the command on a host of a test network
        self._given_data_dir = data_dir
        self._own_data_dir: Path | None = None
        self._ports: dict[str, PortReservation] = {}
        self._ports_pinned = False
        self._process: SupervisedProcess | None = None

    @property
    def endpoint(self) -> str:
        """`host:port` for clients. The host is 127.0.0.1 unless the server runs in a test network."""
        self._ports_pinned = True
        return f"{self._host}:{self._port(self.PORTS[0])}"

    def url(self, root: str = "/latchwork", **options: object) -> str:
        """Return a connection URL with this root and these query options.

        With TLS, the option `tls_ca` is added unless it is given.
        """
        if self._tls is not None:
            options.setdefault("tls_ca", self._tls.ca_file)
        return super().url(root, **options)

    @property
    def pid(self) -> int:
        """The process ID of the server.

        Raises:
            ServerFailed: The server is not running.
        """
        return self._running_process().pid

    @property
    def running(self) -> bool:
        """Whether the process exists, even if it is paused."""
        return self._process is not None and self._process.running

    @property
    def data_dir(self) -> Path:
        """The directory of the data, the configuration and the log. The first use creates it."""
        if self._given_data_dir is not None:
            self._given_data_dir.mkdir(parents=True, exist_ok=True)
            return self._given_data_dir
        if self._own_data_dir is None:
            self._own_data_dir = Path(tempfile.mkdtemp(prefix=f"latchwork-{self.SCHEME}-"))
            self._discard_data = weakref.finalize(self, _remove_data, self._own_data_dir, os.getpid())
        return self._own_data_dir

    @property
    def log_path(self) -> Path:
        """The log file, with the output of all starts."""
        return self.data_dir / "server.log"

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """Stop the server, or kill it after `timeout_s` seconds. Keeps the data."""
        if self._process is not None:
            self._process.terminate(timeout_s)
            self._process = None

    def kill(self) -> None:
        """Kill the server (SIGKILL) and keep the data."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def pause(self) -> None:
        """Freeze the server (SIGSTOP). Returns after all of its threads have stopped.

        Raises:
            ServerFailed: The server is not running.
        """
        self._running_process().pause()

    def resume(self) -> None:
        """Continue the server after `pause`.

        Raises:
            ServerFailed: The server is not running.
        """
        self._running_process().resume()

    def close(self) -> None:
        """Stop the server, release its ports, and remove the data unless a data directory was given. Idempotent."""
        if self._given_data_dir is None:
            self.kill()
        self.stop()
        for reservation in self._ports.values():
            reservation.release()
        self._ports = {}
        if self._own_data_dir is not None:
            self._discard_data()
            self._own_data_dir = None

    @abstractmethod
    def is_leader(self) -> bool:
        """Return whether the server reports that it leads its group. Return False if it does not answer."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Write the configuration into `data_dir`, and return the command line that starts the server."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return whether the server answers that it is ready. An OSError means that it is not ready yet."""

    def _port(self, name: str) -> int:
        if name not in self._ports:
            self._ports[name] = reserve_port()
        return self._ports[name].port

    def _running_process(self) -> SupervisedProcess:
        if self._process is None or not self._process.running:
            raise ServerFailed(f"{self.LABEL} is not running; start it first")
        return self._process

    def _spawn(self) -> None:
        self._process = SupervisedProcess(
            [*self._command_prefix, *self._command()],
            log_path=self.log_path,
            environment=_get_environment(),
            remove_directory=self._own_data_dir,
        )

    def _await_ready(self, deadline: float) -> None:
        process = self._process
        assert process is not None
        while True:
            status = process.wait(_PROBE_INTERVAL_S)
            if status is not None:
                raise self._failure(f"ended with status {status} before it was ready")
            with contextlib.suppress(OSError):
                if self._is_ready():
                    return
            if time.monotonic() > deadline:
                raise self._failure("did not answer in time")

    def _failure(self, reason: str) -> ServerFailed:
        lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        tail = "\n  ".join(lines) or "(empty)"
        return ServerFailed(f"{self.LABEL} on port {self._port(self.PORTS[0])} {reason}; its log ends:\n  {tail}")

    def _renew_ports(self) -> bool:
        if self._ports_pinned:
            return False
        for reservation in self._ports.values():
            reservation.release()
        self._ports = {}
        return True

    def _pin_ports(self) -> None:
        self._ports_pinned = True

    def __repr__(self) -> str:
        port = self._ports.get(self.PORTS[0])
        where = f" on {self._host}:{port.port}" if port else ""
        return f"<{self.LABEL}{where}, {'running' if self.running else 'stopped'}>"


def _remove_data(directory: Path, owner_pid: int) -> None:
    """Remove the data of a server that was not closed.

    Does nothing in a forked child, because the parent process still uses the data.

    Args:
        directory: The data directory.
        owner_pid: ID of the process that created it.
    """
    if os.getpid() == owner_pid:
        shutil.rmtree(directory, ignore_errors=True)


def _get_environment() -> Mapping[str, str]:
    """Return the environment variables without those of etcd (ETCD_*).

    etcd reads flags from them, and refuses a flag that is also given on the command line.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
