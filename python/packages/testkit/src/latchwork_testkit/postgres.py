"""Real PostgreSQL servers for tests, on 127.0.0.1 and their own ports. Import them from `servers.py`."""

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
from latchwork_testkit.server import Server, ServerFailed

_PROBE_TIMEOUT_S = 1.0
#: The first message of a client, of protocol 3.0. The server answers with an R once it lets sessions in.
STARTUP = b"\x00\x03\x00\x00user\x00latchwork\x00database\x00postgres\x00\x00"


class PostgresServer(Server):
    """A PostgreSQL server with one empty database, `postgres`. Not thread-safe.

    Clients sign in as `latchwork` without a password, because only this machine can connect. PostgreSQL refuses to run
    as root. If root starts it, it runs as the user `postgres` of Debian's package, or as `nobody`.

    Args:
        data_dir: Directory of its data, which is kept. None uses a temporary directory that `close` removes.
        settings: Additional server settings, by name.
        standby_of: A running server. The new server is a standby that copies it at the first start and then follows it.
        fake_clock: Whether tests can call `set_clock`.
    """

    SCHEME = "postgresql"
    PORTS = ("client",)
    LABEL = "PostgreSQL"

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        settings: dict[str, str] | None = None,
        standby_of: PostgresServer | None = None,
        fake_clock: bool = False,
    ) -> None:
        super().__init__(data_dir=data_dir)
        self._settings = settings or {}
        self._primary = standby_of
        self._fake_clock = fake_clock

    def url(self, root: str = "/latchwork", **options: object) -> str:
        """Return the connection URL of a store with this root and these query options."""
        return postgres_url(self.endpoint, root, **options)

    def database_url(self, name: str = "postgres") -> str:
        """Return the URL with which SQLAlchemy connects to a database of this server."""
        return f"postgresql+psycopg://latchwork@{self.endpoint}/{name}"

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End the sessions of all clients and stop the server, or kill it after `timeout_s` seconds. Keeps the data."""
        if self._process is not None:
            self._process.terminate(timeout_s, signal.SIGINT)
            self._process = None

    def kill(self) -> None:
        """Kill all processes of the server (SIGKILL) and keep the data."""
        children = self._children()
        super().kill()
        for child in children:
            _send_signal(child, signal.SIGKILL)
        while any(
            _process_state(child) not in "ZX" for child in children
        ):  # a remaining child would stop the next start
            time.sleep(0.005)

    def pause(self) -> None:
        """Freeze all processes of the server (SIGSTOP).

        Raises:
            ServerFailed: The server is not running.
        """
        super().pause()  # no child is started from now on
        for child in self._children():
            _send_signal(child, signal.SIGSTOP)
        while any(_process_state(child) not in "TtZX" for child in self._children()):
            time.sleep(0.005)

    def resume(self) -> None:
        """Continue all processes of the server after `pause`.

        Raises:
            ServerFailed: The server is not running.
        """
        for child in self._children():
            _send_signal(child, signal.SIGCONT)
        super().resume()

    def _children(self) -> list[int]:
        if not self.running:
            return []
        pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        return [pid for pid in pids if _read_process_stat(pid)[1:2] == [str(self.pid)]]

    def is_leader(self) -> bool:
        """Return whether the server is running and accepts writes, which a standby does not."""
        return self.running and not (self._data / "standby.signal").exists()

    def promote(self) -> None:
        """Turn a standby into a primary, and wait until it accepts writes.

        Raises:
            ServerFailed: The standby was not promoted within 30 seconds.
        """
        command = [str(find_postgres() / "pg_ctl"), "promote", "-D", str(self._data), "-w", "-t", "30"]
        done = subprocess.run(
            [*build_run_as_prefix(unprivileged_user()), *command], capture_output=True, text=True, check=False, cwd="/"
        )
        if done.returncode != 0:
            raise ServerFailed(f"{self!r} was not promoted: {done.stderr.strip() or done.stdout.strip()}")

    def set_clock(self, ahead_s: float) -> None:
        """Set the wall clock of the server relative to that of the machine.

        Args:
            ahead_s: Seconds by which the clock is ahead. A negative number sets it back.
        """
        new = self._clock_file.with_suffix(".new")
        new.write_text(f"{ahead_s:+.0f}s\n")
        new.chmod(0o644)
        new.replace(self._clock_file)

    @property
    def _data(self) -> Path:
        return self.data_dir / "postgres"

    @property
    def _clock_file(self) -> Path:
        return self.data_dir / "clock"

    def _command(self) -> list[str]:
        program_dir = find_postgres()
        user = unprivileged_user()
        if not self._data.exists():
            self._data.mkdir(mode=0o700)
            if user is not None:
                self.data_dir.chmod(0o755)
                shutil.chown(self._data, user)
            result = subprocess.run(
                [*build_run_as_prefix(user), *self._data_command(program_dir)],
                capture_output=True,
                text=True,
                check=False,
                cwd="/",
            )
            if result.returncode != 0:
                raise ServerMissing(f"the database could not be result: {result.stderr.strip()[-500:]}")
        settings = {
            "listen_addresses": self._host,
            "port": str(self._port("client")),
            "unix_socket_directories": "",
            "max_connections": "200",
            **self._settings,
        }
        environment: list[str] = []
        if self._fake_clock:
            if not self._clock_file.exists():
                self.set_clock(0)
            environment = [
                "env",
                f"LD_PRELOAD={find_faketime()}",
                f"FAKETIME_TIMESTAMP_FILE={self._clock_file}",
                "FAKETIME_NO_CACHE=1",
                "FAKETIME_DONT_FAKE_MONOTONIC=1",
            ]
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [
            *build_run_as_prefix(user),
            *environment,
            str(program_dir / "postgres"),
            "-D",
            str(self._data),
            *arguments,
        ]

    def _data_command(self, program_dir: Path) -> list[str]:
        """Return the command that creates the data directory."""
        data = str(self._data)
        if self._primary is None:
            return [str(program_dir / "initdb"), "-D", data, "-U", "latchwork", "-A", "trust", "-E", "UTF8", "-N"]
        host, _, port = self._primary.endpoint.rpartition(":")
        connection = ["-h", host, "-p", port, "-U", "latchwork"]
        return [
            str(program_dir / "pg_basebackup"),
            "-D",
            data,
            "-R",
            "-X",
            "stream",
            "--checkpoint=fast",
            "-N",
            *connection,
        ]

    def _is_ready(self) -> bool:
        with socket.create_connection((self._host, self._port("client")), _PROBE_TIMEOUT_S) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            probe.sendall((len(STARTUP) + 4).to_bytes(4, "big") + STARTUP)
            return probe.recv(1) == b"R"


def postgres_url(endpoint: str, root: str, **options: object) -> str:
    """Return the connection URL of a store on a PostgreSQL server of this module.

    Args:
        endpoint: `host:port` of the server, or of a proxy in front of it.
        root: Root of the store.
        options: Query options of the URL.
    """
    query = urlencode({"root": root.lstrip("/"), **options}, safe="/")
    return f"postgresql://latchwork@{endpoint}/postgres?{query}"


def find_postgres() -> Path:
    """Return the directory with PostgreSQL's programs: $LATCHWORK_POSTGRES, or the newest one of Debian's packages.

    Raises:
        ServerMissing: PostgreSQL is not installed.
    """
    given = os.environ.get("LATCHWORK_POSTGRES")
    folders = (
        [Path(given)] if given else sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_major_version, reverse=True)
    )
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise ServerMissing(
        "PostgreSQL is not installed; install Debian's package postgresql, or set LATCHWORK_POSTGRES to the folder of "
        "its program_dir"
    )


def find_faketime() -> Path:
    """Return the path of libfaketime, which gives a program another wall clock: $LATCHWORK_FAKETIME, or the one of
    Debian.

    Raises:
        ServerMissing: The library is not installed.
    """
    given = os.environ.get("LATCHWORK_FAKETIME")
    found = [Path(given)] if given else sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise ServerMissing(
            "libfaketime is not installed; install Debian's package faketime, or set LATCHWORK_FAKETIME"
        )
    return found[0]


def _read_process_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat, starting with the process state. Empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _process_state(pid: int) -> str:
    return (_read_process_stat(pid) or ["X"])[0]


def _send_signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _major_version(folder: Path) -> int:
    name = folder.parent.name
    return int(name) if name.isdigit() else 0


def unprivileged_user() -> str | None:
    """Return the user for servers that refuse to run as root, or None if this process does not run as root."""
    if os.geteuid() != 0:
        return None
    user_names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in user_names else "nobody"


def build_run_as_prefix(user: str | None) -> list[str]:
    """Build the arguments that, put before a command, run it as a user.

    Args:
        user: The user. None: the current user.
    """
    return [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={_group_id(user)}", "--clear-groups"]


def _group_id(user: str) -> str:
    return str(pwd.getpwnam(user).pw_gid)
