"""What every server launcher shares: ports, a data directory, the process, waiting until it answers.

`etcd.py` and `zookeeper.py` have the launchers themselves.
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
    """A server did not come up or ended early; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Tls:
    """Certificates that a server shows its clients, and whether it asks them for theirs.

    All files are PEM; ZooKeeper wants the key as PKCS #8.
    """

    ca_file: Path
    cert_file: Path
    key_file: Path
    client_cert_auth: bool = False


class Launcher(ABC):
    """Starts and stops one server or a group of them. One thread at a time.

    As a context manager it starts on entry and closes at the end.
    """

    SCHEME: str

    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start and wait until every part of it answers; ports and data stay the same from the first start on.

        Raises:
            ServerMissing: the program is not installed.
            ServerFailed: it runs already, ended early, or gave no answer within `timeout_s`.
        """
        if self.running:
            raise ServerFailed(f"{self!r} runs already; stop it before starting it again")
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
        """Stop if it runs, then start again on the same ports and data.

        Raises:
            ServerFailed: as `start`.
        """
        self.stop()
        self.start(timeout_s=timeout_s)

    def url(self, root: str = "/latchwork", **options: object) -> str:
        """Connection URL with this root and these query options."""
        query = f"?{urlencode({name: str(value) for name, value in options.items()})}" if options else ""
        return f"{self.SCHEME}://{self.endpoint}/{root.lstrip('/')}{query}"

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """`host:port` for clients, several joined by commas for a group; reserved when first asked for."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether every process of it exists; paused ones do."""

    @abstractmethod
    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End it in order and keep the data; nothing happens when it does not run."""

    @abstractmethod
    def kill(self) -> None:
        """End it by kill -9 and keep the data; nothing happens when it does not run."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and silent."""

    @abstractmethod
    def resume(self) -> None:
        """Let it go on after `pause`."""

    @abstractmethod
    def close(self) -> None:
        """End it, remove the data unless the directory was given, free the ports; twice is fine."""

    @abstractmethod
    def _spawn(self) -> None: ...

    @abstractmethod
    def _await_ready(self, deadline: float) -> None: ...

    @abstractmethod
    def _renew_ports(self) -> bool:
        """Choose other ports for the next attempt; False when the present ones are known outside."""

    @abstractmethod
    def _pin_ports(self) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Server(Launcher):
    """One server process. Subclasses say which ports and command it takes and how it shows that it is ready."""

    PORTS: tuple[str, ...]
    LABEL: str

    def __init__(self, *, data_dir: Path | None = None, tls: Tls | None = None) -> None:
        self._tls = tls
        self._host = HOST
        self._enter: list[str] = []  # what to put in front of the command: it runs on another host of a test network
        self._given_data_dir = data_dir
        self._own_data_dir: Path | None = None
        self._ports: dict[str, PortReservation] = {}
        self._ports_pinned = False
        self._process: SupervisedProcess | None = None

    @property
    def endpoint(self) -> str:
        """`host:port` for clients; the host is 127.0.0.1 unless it lives in a test network."""
        self._ports_pinned = True
        return f"{self._host}:{self._port(self.PORTS[0])}"

    def url(self, root: str = "/latchwork", **options: object) -> str:
        """Connection URL with this root and these query options; with TLS, `tls_ca` is set unless given."""
        if self._tls is not None:
            options.setdefault("tls_ca", self._tls.ca_file)
        return super().url(root, **options)

    @property
    def pid(self) -> int:
        """Process id of the server itself.

        Raises:
            ServerFailed: it does not run.
        """
        return self._running_process().pid

    @property
    def running(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self._process is not None and self._process.running

    @property
    def data_dir(self) -> Path:
        """Directory of its data, configuration and log; made when first asked for."""
        if self._given_data_dir is not None:
            self._given_data_dir.mkdir(parents=True, exist_ok=True)
            return self._given_data_dir
        if self._own_data_dir is None:
            self._own_data_dir = Path(tempfile.mkdtemp(prefix=f"latchwork-{self.SCHEME}-"))
            self._discard_data = weakref.finalize(self, _remove_unless_forked, self._own_data_dir, os.getpid())
        return self._own_data_dir

    @property
    def log_path(self) -> Path:
        """File with the output of every start so far."""
        return self.data_dir / "server.log"

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End it in order, by kill -9 after `timeout_s`, and keep the data."""
        if self._process is not None:
            self._process.terminate(timeout_s)
            self._process = None

    def kill(self) -> None:
        """End it by kill -9 and keep the data."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def pause(self) -> None:
        """Freeze it (SIGSTOP); returns once every thread of it stands still.

        Raises:
            ServerFailed: it does not run.
        """
        self._running_process().pause()

    def resume(self) -> None:
        """Let it go on after `pause`.

        Raises:
            ServerFailed: it does not run.
        """
        self._running_process().resume()

    def close(self) -> None:
        """End it (by kill -9 where the data goes with it), remove the data unless the directory was given."""
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
        """Whether it leads the group it belongs to, by its own word; False when it gives none."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Write what configuration it needs into `data_dir`; returns the command line."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Ask it over the network; OSError and False both mean not yet."""

    def _port(self, name: str) -> int:
        if name not in self._ports:
            self._ports[name] = reserve_port()
        return self._ports[name].port

    def _running_process(self) -> SupervisedProcess:
        if self._process is None or not self._process.running:
            raise ServerFailed(f"{self.LABEL} does not run; start it first")
        return self._process

    def _spawn(self) -> None:
        self._process = SupervisedProcess(
            [*self._enter, *self._command()],
            log_path=self.log_path,
            environment=_environment(),
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
                raise self._failure("gave no answer in time")

    def _failure(self, what: str) -> ServerFailed:
        lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        tail = "\n  ".join(lines) or "(empty)"
        return ServerFailed(f"{self.LABEL} on port {self._port(self.PORTS[0])} {what}; its log ends:\n  {tail}")

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


def _remove_unless_forked(directory: Path, owner_pid: int) -> None:
    """Also runs when a server was never closed; not in forked copies of its owner."""
    if os.getpid() == owner_pid:
        shutil.rmtree(directory, ignore_errors=True)


def _environment() -> Mapping[str, str]:
    """Ours without ETCD_*: etcd reads its flags from there, and refuses one given twice."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
