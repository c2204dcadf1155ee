"""Shared options of the commands, the connections that they open, and the log output of nodes."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latchwork.clock import Signal
from latchwork.errors import LatchworkError
from latchwork.spi import LOG_FORMAT, UsageError, counted, debugging, on_end_signals, quiet_logs
from latchwork.store import Store, StoreObserver, connect

if TYPE_CHECKING:
    from latchwork_workflows import Home, WorkflowClient
    from latchwork_workflows.db import Database
HomeDir = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        envvar="LATCHWORK_WORKFLOWS_HOME",
        show_default=False,
        help="The folder of database, store, logs and secrets.  [default: ~/.local/share/latchwork/workflows]",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="LATCHWORK_WORKFLOWS_DATABASE",
        show_default=False,
        help="The database: sqlite:///file or postgresql://user@host/name.  [default: in --home]",
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="LATCHWORK_WORKFLOWS_STORE",
        show_default=False,
        help="The store: etcd://host:2379/root, zk://host:2181/root or sqlite:///file.  [default: in --database "
        "if that is PostgreSQL, or else in --home]",
    ),
]
LogsUrl = Annotated[
    str | None,
    typer.Option(
        "--logs",
        metavar="URL",
        envvar="LATCHWORK_WORKFLOWS_LOGS",
        show_default=False,
        help="Logs and code bundles: a folder, or a URL such as s3://bucket/path.  [default: in --home]",
    ),
]
ApiUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="LATCHWORK_WORKFLOWS_URL",
        show_default=False,
        help="Use this API, with the token in LATCHWORK_WORKFLOWS_TOKEN.  [default: the database of --home]",
    ),
]

_LIBRARIES = (
    *("sqlalchemy", "alembic", "pydantic", "yaml", "fastapi", "jinja2", "uvicorn", "multipart", "anyio"),
    *("fsspec", "httpx"),
)
_EVERY_S = 60.0
_MAX = 1_000


def resolve_home(
    home: Path | None, database: str | None = None, store: str | None = None, logs: str | None = None
) -> Home:
    """Return the locations of database, store, logs and secrets.


    Raises:
        LatchworkError: The extra is not installed.
    """
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise LatchworkError(f'workflows need {", ".join(missing)}; run: pip install "latchwork[workflows]"')
    from latchwork_workflows import Home

    quiet_logs()
    return Home.of(home, database=database, store=store, logs=logs)


@contextmanager
def open_database(home: Home) -> Iterator[Database]:
    """Open an existing database.


    Raises:
        UsageError: The file does not exist.
    """
    from latchwork_workflows.db import Database

    if why := home.explain_missing_database():
        raise UsageError(why)
    database = Database(home.database)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def open_store(home: Home, observers: Sequence[StoreObserver] = ()) -> Iterator[Store]:
    """Open the store of the workflows.

    Args:
        home: The locations of the installation.
        observers: They observe the calls and sessions of the store.
    """
    with connect(home.store, observers=observers) as store:
        yield store


@contextmanager
def open_client(home: Home, url: str | None = None) -> Iterator[WorkflowClient]:
    """Return a client of the API at a URL, or of a local home.


    Raises:
        UsageError: The URL is not an HTTP address, or there is no database.
    """
    from latchwork_workflows import WorkflowClient

    if url is not None and not url.startswith(("http://", "https://")):
        raise UsageError("--url is the address of an API, http://... or https://...")
    if url is None and (why := home.explain_missing_database()):
        raise UsageError(why)
    with WorkflowClient.local(home) if url is None else WorkflowClient(url) as client:
        yield client


def log_to_stderr() -> None:
    """Log the events of a node to stderr. With debugging enabled, the command line does so already."""
    if debugging():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    handler.addFilter(RepeatFilter())
    logging.getLogger().addHandler(handler)  # `basicConfig` does nothing after `quiet_logs`
    for distribution in ("latchwork", "latchwork_workflows"):
        logging.getLogger(distribution).setLevel(logging.INFO)


@contextmanager
def stop_on_signal(on_second_signal: Callable[[], object]) -> Iterator[Signal]:
    """Return an event that is set by the first SIGTERM or SIGINT.

    Args:
        on_second_signal: Called at the second signal. Further signals have their default effect.
    """
    stop = Signal()
    with on_end_signals(stop.set, on_second_signal):
        yield stop


class RepeatFilter(logging.Filter):
    """A filter that drops log lines that were already logged in the last minute.

    Args:
        now: A monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record. Its message gets the number of dropped repetitions."""
        line, now = (record.name, record.getMessage()), self._now()
        at, missed = self._told.get(line, (float("-inf"), 0))
        if now - at < _EVERY_S:
            self._told[line] = at, missed + 1
            return False
        if len(self._told) >= _MAX:
            self._told.clear()
        self._told[line] = now, 0
        if missed:
            record.msg, record.args = f"{line[1]} (and {counted(missed, 'time')} more since then)", ()
        return True
