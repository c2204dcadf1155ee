"""Real PostgreSQL servers for tests, on loopback and ports of their own: alone, with a standby, behind PgBouncer."""

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
    """One PostgreSQL server, empty but for the database `postgres`. One thread at a time.

    Its user is `latchwork`, without a password: only this machine reaches it. Root cannot run PostgreSQL, so for root
    it runs as the user `postgres` of Debian's package, or as `nobody`.

    Args:
        data_dir: where its data go and stay; by default a temporary directory that `close` removes.
        settings: more settings, by name.
        standby_of: a running server that this one copies when it is first started, and follows from then on.
        fake_clock: whether `set_clock` can be used.
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
        """Whether it runs and takes writes."""
        return self.running and not (self._data / "standby.signal").exists()

    def promote(self) -> None:
        """Let a standby take writes, and wait until it does.

        Raises:
            ServerFailed: It did not within 30 seconds.
        """
        command = [str(find_postgres() / "pg_ctl"), "promote", "-D", str(self._data), "-w", "-t", "30"]
        done = subprocess.run([*run_as(other_user()), *command], capture_output=True, text=True, check=False, cwd="/")
        if done.returncode != 0:
            raise ServerFailed(f"{self!r} was not promoted: {done.stderr.strip() or done.stdout.strip()}")

    def set_clock(self, ahead_s: float) -> None:
        """Set the wall clock of the server so far ahead of the machine's, or behind it if negative."""
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
        programs = find_postgres()
        user = other_user()
        if not self._data.exists():
            self._data.mkdir(mode=0o700)
            if user is not None:
                self.data_dir.chmod(0o755)
                shutil.chown(self._data, user)
            made = subprocess.run(
                [*run_as(user), *self._make_data(programs)], capture_output=True, text=True, check=False, cwd="/"
            )
            if made.returncode != 0:
                raise ServerMissing(f"the database could not be made: {made.stderr.strip()[-500:]}")
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
        return [*run_as(user), *environment, str(programs / "postgres"), "-D", str(self._data), *arguments]

    def _make_data(self, programs: Path) -> list[str]:
        """Return the command that makes the data directory."""
        data = str(self._data)
        if self._primary is None:
            return [str(programs / "initdb"), "-D", data, "-U", "latchwork", "-A", "trust", "-E", "UTF8", "-N"]
        host, _, port = self._primary.endpoint.rpartition(":")
        where = ["-h", host, "-p", port, "-U", "latchwork"]
        return [str(programs / "pg_basebackup"), "-D", data, "-R", "-X", "stream", "--checkpoint=fast", "-N", *where]

    def _is_ready(self) -> bool:
        with socket.create_connection((self._host, self._port("client")), _PROBE_TIMEOUT_S) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            probe.sendall((len(STARTUP) + 4).to_bytes(4, "big") + STARTUP)
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


def find_faketime() -> Path:
    """The library with which a program sees another wall clock: $LATCHWORK_FAKETIME, or Debian's.

    Raises:
        ServerMissing: there is none.
    """
    given = os.environ.get("LATCHWORK_FAKETIME")
    found = [Path(given)] if given else sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise ServerMissing(
            "libfaketime is not installed; install Debian's package faketime, or set LATCHWORK_FAKETIME"
        )
    return found[0]


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


def other_user() -> str | None:
    """Return the account that servers run as which refuse to run as root; None for other users."""
    if os.geteuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def run_as(user: str | None) -> list[str]:
    """Return what to put in front of a command to run it as this user."""
    return [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={_group(user)}", "--clear-groups"]


def _group(user: str) -> str:
    return str(pwd.getpwnam(user).pw_gid)
