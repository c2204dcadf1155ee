"""A real PgBouncer, the connection pooler of PostgreSQL, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

from latchwork_testkit.binaries import ServerMissing
from latchwork_testkit.postgres import STARTUP, PostgresServer, build_run_as_prefix, postgres_url, unprivileged_user
from latchwork_testkit.server import Server

_PROBE_TIMEOUT_S = 1.0


class PgBouncer(Server):
    """A PgBouncer in front of a PostgreSQL server. All its clients are connected as the superuser of the server. Not
    thread-safe.

    Args:
        target: `host:port` of the PostgreSQL server.
        mode: When a connection to the server is free for another client: after each "transaction", or after each
            "session".
        settings: Additional settings, by name.
    """

    SCHEME = "postgresql"
    PORTS = ("client",)
    LABEL = "PgBouncer"

    def __init__(self, target: str, *, mode: str = "transaction", settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self._target = target
        self._settings = {"pool_mode": mode, **(settings or {})}

    def url(self, root: str = "/latchwork", **options: object) -> str:
        """Return the connection URL of a store with this root and these query options."""
        return postgres_url(self.endpoint, root, **options)

    def change_target(self, target: str) -> None:
        """Forward to another server from now on. Clients stay connected."""
        self._target = target
        self._configure()
        os.kill(self.pid, signal.SIGHUP)

    def is_leader(self) -> bool:
        """Return True while PgBouncer runs, because it has no other members."""
        return self.running

    def _command(self) -> list[str]:
        self.data_dir.chmod(0o755)
        return [*build_run_as_prefix(unprivileged_user()), str(find_pgbouncer()), str(self._configure())]

    def _configure(self) -> Path:
        host, _, port = self._target.rpartition(":")
        settings = {
            "listen_addr": self._host,
            "listen_port": str(self._port("client")),
            "unix_socket_dir": "",
            "auth_type": "any",
            "max_client_conn": "500",
            "default_pool_size": "50",
            "server_login_retry": "0.1",
            **self._settings,
        }
        path = self.data_dir / "pgbouncer.ini"
        lines = ["[databases]", f"* = host={host} port={port} user=latchwork", "[pgbouncer]"]
        path.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in settings.items()), ""]))
        path.chmod(0o644)
        return path

    def _is_ready(self) -> bool:
        with socket.create_connection((self._host, self._port("client")), _PROBE_TIMEOUT_S) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            probe.sendall((len(STARTUP) + 4).to_bytes(4, "big") + STARTUP)
            return probe.recv(1) == b"R"


class PooledPostgresServer(PostgresServer):
    """A PostgreSQL server behind a PgBouncer in transaction mode. `stop`, `kill` and `pause` affect only the PostgreSQL
    server.
    """

    _bouncer: PgBouncer | None = None

    @property
    def endpoint(self) -> str:
        """`host:port` of PgBouncer, for clients."""
        if self._bouncer is None:
            self._bouncer = PgBouncer(self.direct_endpoint)
        return self._bouncer.endpoint

    @property
    def direct_endpoint(self) -> str:
        """`host:port` of the PostgreSQL server."""
        return super().endpoint

    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start PostgreSQL and PgBouncer, and wait until both are ready.

        Args:
            timeout_s: Seconds to wait for each.
        Raises:
            ServerMissing: A program is not installed.
            ServerFailed: A server is already running, ended early, or was not ready within `timeout_s`.
        """
        super().start(timeout_s=timeout_s)
        if self._bouncer is None:
            self._bouncer = PgBouncer(self.direct_endpoint)
        if not self._bouncer.running:
            self._bouncer.start(timeout_s=timeout_s)

    def close(self) -> None:
        """Stop both servers and remove the data. Idempotent."""
        if self._bouncer is not None:
            self._bouncer.close()
        super().close()


def find_pgbouncer() -> Path:
    """Return the path of PgBouncer: $LATCHWORK_PGBOUNCER, or the one of the system.

    Raises:
        ServerMissing: PgBouncer is not installed.
    """
    given = os.environ.get("LATCHWORK_PGBOUNCER")
    found = given or shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise ServerMissing(
            "PgBouncer is not installed; install Debian's package pgbouncer, or set LATCHWORK_PGBOUNCER to the program"
        )
    return Path(found)
