"""The locations of the database, store, logs and secrets: a folder for one machine, or the URLs of a fleet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

#: Environment variables that replace flags.
HOME, DATABASE, STORE, LOGS, SECRETS = (
    f"LATCHWORK_WORKFLOWS_{each}" for each in ("HOME", "DATABASE", "STORE", "LOGS", "SECRETS")
)


#: Options of a database URL that the store in the same database needs as well, and their names there.
_STORE_OPTIONS = {"sslmode": "sslmode", "sslrootcert": "tls_ca", "sslcert": "tls_cert", "sslkey": "tls_key"}


@dataclass(frozen=True, slots=True)
class Home:
    """The locations of an installation.

    Attributes:
        folder: The folder for everything without a URL.
        database: The URL of the database.
        store: The URL of the store.
        logs: The URL or folder of logs and code bundles.
        secrets: The folder of secrets for the workers of this machine.
        port: The default port of the pages.
        has_explicit_logs: Whether the location of the logs was given explicitly.
        has_explicit_store: Whether the location of the store was given, by a URL of its own or of PostgreSQL.
    """

    folder: Path
    database: str
    store: str
    logs: str
    secrets: Path
    port: int = 8770
    has_explicit_logs: bool = False
    has_explicit_store: bool = False

    @classmethod
    def of(
        cls,
        folder: Path | None = None,
        *,
        database: str | None = None,
        store: str | None = None,
        logs: str | None = None,
        secrets: Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Home:
        """Return the locations of an installation.

        Each location is the given value, the environment variable, or a default in the folder. The default store of a
        PostgreSQL database is in that database.

        Args:
            folder: Default ``$XDG_DATA_HOME/latchwork/workflows``, usually ``~/.local/share/latchwork/workflows``.
            database: The URL of the database.
            store: The URL of the store.
            logs: The URL or folder of the logs.
            secrets: The folder of the secrets.
            environ: The environment variables.
        """
        where = folder or (Path(environ[HOME]) if environ.get(HOME) else _default(environ))
        where = where.expanduser().absolute()
        database = database or environ.get(DATABASE) or f"sqlite:///{where}/flows.db"
        store = store or environ.get(STORE) or build_store_url(database)
        return cls(
            where,
            database,
            store or f"sqlite:///{quote(str(where))}/store.db",
            logs or environ.get(LOGS) or str(where / "logs"),
            secrets or (Path(environ[SECRETS]) if environ.get(SECRETS) else where / "secrets"),
            has_explicit_logs=bool(logs or environ.get(LOGS)),
            has_explicit_store=bool(store),
        )

    @property
    def is_local(self) -> bool:
        """Whether the database and the store are files in the folder."""
        return str(self.folder) in self.database and str(self.folder) in self.store

    @property
    def store_may_exist(self) -> bool:
        """Whether a store may exist: it was given, everything is local, or the folder contains one.

        Otherwise the database is on a server, and only its nodes know the store.
        """
        return self.has_explicit_store or self.is_local or (self.folder / "store.db").exists()

    @property
    def can_read_worker_logs(self) -> bool:
        """Whether this process reads logs from where the workers write them.

        True if the location of logs was given, or if everything is local.
        """
        return self.has_explicit_logs or self.is_local

    def explain_missing_database(self) -> str:
        """Return what a user must do if the database file is missing. Empty if it exists or the database is on a
        server.
        """
        path = self.database.removeprefix("sqlite:///")
        if path == self.database or Path(path).exists():
            return ""
        return (
            f"there is no database {path}; start `latchwork workflows serve` once, create one with `init`, or give "
            "--home or --database"
        )

    def create_folder(self) -> None:
        """Create the folder. Only its owner gets access."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def build_store_url(database: str) -> str:
    """Return the URL of the store inside a PostgreSQL database. Empty for other databases and for URLs without a
    host.
    """
    scheme, _, rest = database.partition("://")
    place, _, query = rest.partition("?")
    if scheme.partition("+")[0] != "postgresql" or place.startswith("/"):
        return ""
    given = [each.partition("=") for each in query.split("&")]
    options = [f"{_STORE_OPTIONS[name]}={value}" for name, _, value in given if name in _STORE_OPTIONS]
    return f"postgresql://{place}?{'&'.join(['root=workflows', *options])}"


def _default(environ: Mapping[str, str]) -> Path:
    data = environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "latchwork" / "workflows"
