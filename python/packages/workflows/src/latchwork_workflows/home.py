"""Where things are: one folder for all of one machine, or the URLs of a fleet. Nothing here opens anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

#: What flags may be given by.
HOME, DATABASE, STORE, LOGS, SECRETS = (
    f"LATCHWORK_WORKFLOWS_{each}" for each in ("HOME", "DATABASE", "STORE", "LOGS", "SECRETS")
)


@dataclass(frozen=True, slots=True)
class Home:
    """Where things are.

    Attributes:
        folder: of what has no URL of its own.
        database: its URL.
        store: its URL.
        logs: the URL, or the folder, of logs and code bundles.
        secrets: the folder of secrets of this machine's workers.
        port: where the pages are, unless said otherwise.
        is_told_logs: whether somebody said where the logs are.
        is_told_store: likewise for the store.
    """

    folder: Path
    database: str
    store: str
    logs: str
    secrets: Path
    port: int = 8770
    is_told_logs: bool = False
    is_told_store: bool = False

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
        """What is given, else what the environment says, else a place in the folder.

        Args:
            folder: default ``$XDG_DATA_HOME/latchwork/workflows``, that is ``~/.local/share/latchwork/workflows``.
            database: URL of the database.
            store: URL of the store.
            logs: URL or folder of the logs.
            secrets: folder of the secrets.
            environ: the environment.
        """
        where = folder or (Path(environ[HOME]) if environ.get(HOME) else _default(environ))
        where = where.expanduser().absolute()
        return cls(
            where,
            database or environ.get(DATABASE) or f"sqlite:///{where}/flows.db",
            store or environ.get(STORE) or f"sqlite:///{quote(str(where))}/store.db",
            logs or environ.get(LOGS) or str(where / "logs"),
            secrets or (Path(environ[SECRETS]) if environ.get(SECRETS) else where / "secrets"),
            is_told_logs=bool(logs or environ.get(LOGS)),
            is_told_store=bool(store or environ.get(STORE)),
        )

    @property
    def is_local(self) -> bool:
        """Whether database and store are files of the folder: of one machine."""
        return str(self.folder) in self.database and str(self.folder) in self.store

    @property
    def may_have_store(self) -> bool:
        """Whether there is a store: of that of a fleet which nobody named nothing is on this machine."""
        return self.is_told_store or self.is_local or (self.folder / "store.db").exists()

    @property
    def has_logs(self) -> bool:
        """Whether the logs are those of the workers: said so, or all is on this machine. Else a folder of this machine
        may be anything.
        """
        return self.is_told_logs or self.is_local

    def missing_database(self) -> str:
        """Return what to do about a database file that does not exist. Empty: it exists, or is on a server."""
        path = self.database.removeprefix("sqlite:///")
        if path == self.database or Path(path).exists():
            return ""
        return (
            f"there is no database {path}; start `latchwork workflows serve` once, or make one with `init`; or give "
            "--home or --database"
        )

    def make(self) -> None:
        """Make the folder, for nobody but its user."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _default(environ: Mapping[str, str]) -> Path:
    data = environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "latchwork" / "workflows"
