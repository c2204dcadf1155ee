"""A real PostgreSQL server for tests, on loopback and a port of its own; `servers.py` is the door."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlencode

from latchwork_testkit.binaries import ServerMissing
from latchwork_testkit.server import Server

_PROBE_TIMEOUT_S = 1.0
#: The first message of a client, of protocol 3.0. The server answers with an R once it lets sessions in.
_STARTUP = b"\x00\x03\x00\x00user\x00latchwork\x00database\x00postgres\x00\x00"


class PostgresServer(Server):
    """One PostgreSQL server, empty but for the database `postgres`. One thread at a time.

    Its user is `latchwork`, without a password: only this machine reaches it. Root cannot run PostgreSQL, so for root
    it runs as the user `postgres` of Debian's package, or as `nobody`.

    Args:
        data_dir: where its data go and stay; by default a temporary directory that `close` removes.
        settings: more settings, by name.
    """

    SCHEME = "postgresql"
    PORTS = ("client",)
    LABEL = "PostgreSQL"

    def __init__(self, *, data_dir: Path | None = None, settings: dict[str, str] | None = None) -> None:
        super().__init__(data_dir=data_dir)
        self._settings = settings or {}

    def url(self, root: str = "/latchwork", **options: object) -> str:
        """Connection URL of a store with this root, and these query options."""
        return postgres_url(self.endpoint, root, **options)

    def database_url(self, name: str = "postgres") -> str:
        """What SQLAlchemy connects to a database of it by."""
        return f"postgresql+psycopg://latchwork@{self.endpoint}/{name}"

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End it in order and its clients' sessions with it, by kill -9 after `timeout_s`, and keep the data."""
        if self._process is not None:
            self._process.terminate(timeout_s, signal.SIGINT)
            self._process = None

    def kill(self) -> None:
        """End all its processes by kill -9 and keep the data."""
        children = self._children()
        super().kill()
        for child in children:
            _signal(child, signal.SIGKILL)
        while any(_state(child) not in "ZX" for child in children):  # one that is left keeps the next from starting
            time.sleep(0.005)

    def pause(self) -> None:
        """Freeze all its processes (SIGSTOP).

        Raises:
            ServerFailed: it does not run.
        """
        super().pause()  # no new ones from here on
        for child in self._children():
            _signal(child, signal.SIGSTOP)
        while any(_state(child) not in "TtZX" for child in self._children()):
            time.sleep(0.005)

    def resume(self) -> None:
        """Let it go on after `pause`.

        Raises:
            ServerFailed: it does not run.
        """
        for child in self._children():
            _signal(child, signal.SIGCONT)
        super().resume()

    def _children(self) -> list[int]:
        if not self.running:
            return []
        pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        return [pid for pid in pids if _stat(pid)[1:2] == [str(self.pid)]]

    def is_leader(self) -> bool:
        """Whether it runs: it is alone."""
        return self.running

    def _command(self) -> list[str]:
        programs = find_postgres()
        data = self.data_dir / "postgres"
        user = _other_user()
        if not data.exists():
            data.mkdir()
            if user is not None:
                self.data_dir.chmod(0o755)
                shutil.chown(data, user)
            initdb = [str(programs / "initdb"), "-D", str(data), "-U", "latchwork", "-A", "trust", "-E", "UTF8", "-N"]
            made = subprocess.run([*_as(user), *initdb], capture_output=True, text=True, check=False, cwd="/")
            if made.returncode != 0:
                raise ServerMissing(f"initdb could not make a database: {made.stderr.strip()[-500:]}")
        settings = {
            "listen_addresses": self._host,
            "port": str(self._port("client")),
            "unix_socket_directories": "",
            "max_connections": "200",
            **self._settings,
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [*_as(user), str(programs / "postgres"), "-D", str(data), *arguments]

    def _is_ready(self) -> bool:
        with socket.create_connection((self._host, self._port("client")), _PROBE_TIMEOUT_S) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            probe.sendall((len(_STARTUP) + 4).to_bytes(4, "big") + _STARTUP)
            return probe.recv(1) == b"R"


def postgres_url(endpoint: str, root: str, **options: object) -> str:
    """Connection URL of a store on such a server, which may be behind a proxy."""
    query = urlencode({"root": root.lstrip("/"), **options}, safe="/")
    return f"postgresql://latchwork@{endpoint}/postgres?{query}"


def find_postgres() -> Path:
    """The folder of PostgreSQL's programs: $LATCHWORK_POSTGRES, or the newest of Debian's.

    Raises:
        ServerMissing: there is none.
    """
    given = os.environ.get("LATCHWORK_POSTGRES")
    folders = [Path(given)] if given else sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise ServerMissing(
        "PostgreSQL is not installed; install Debian's package postgresql, or set LATCHWORK_POSTGRES to the folder of "
        "its programs"
    )


def _stat(pid: int) -> list[str]:
    """State, parent and more of a process; nothing of one that has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return (_stat(pid) or ["X"])[0]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _version(folder: Path) -> int:
    name = folder.parent.name
    return int(name) if name.isdigit() else 0


def _other_user() -> str | None:
    if os.geteuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _as(user: str | None) -> list[str]:
    return [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={_group(user)}", "--clear-groups"]


def _group(user: str) -> str:
    return str(pwd.getpwnam(user).pw_gid)
