"""The options that commands about workflows share, what they open by them, and what nodes tell on stderr."""

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
        help="The folder of database, store, logs and secrets.  [unless given: ~/.local/share/latchwork/workflows]",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="LATCHWORK_WORKFLOWS_DATABASE",
        show_default=False,
        help="The database: sqlite:///file or postgresql://user@host/name.  [unless given: in --home]",
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="LATCHWORK_WORKFLOWS_STORE",
        show_default=False,
        help="The store: etcd://host:2379/root, zk://host:2181/root or sqlite:///file.  [unless given: in --database "
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
        help="Logs and code bundles: a folder, or s3://bucket/path and its like.  [unless given: in --home]",
    ),
]
ApiUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="LATCHWORK_WORKFLOWS_URL",
        show_default=False,
        help="Ask this API, with the token of LATCHWORK_WORKFLOWS_TOKEN.  [unless given: the database of --home]",
    ),
]

_LIBRARIES = (
    *("sqlalchemy", "alembic", "pydantic", "yaml", "fastapi", "jinja2", "uvicorn", "multipart", "anyio"),
    *("fsspec", "httpx"),
)
_EVERY_S = 60.0
_MOST = 1_000


def home_of(home: Path | None, database: str | None = None, store: str | None = None, logs: str | None = None) -> Home:
    """Where things are, by what was given.

    Raises:
        LatchworkError: the extra is not installed.
    """
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise LatchworkError(f'workflows need {", ".join(missing)}; run: pip install "latchwork[workflows]"')
    from latchwork_workflows import Home

    quiet_logs()
    return Home.of(home, database=database, store=store, logs=logs)


@contextmanager
def opened_database(home: Home) -> Iterator[Database]:
    """The database, which has to be there.

    Raises:
        UsageError: there is no such file.
    """
    from latchwork_workflows.db import Database

    if why := home.missing_database():
        raise UsageError(why)
    database = Database(home.database)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def opened_store(home: Home, observers: Sequence[StoreObserver] = ()) -> Iterator[Store]:
    """The store of the workflows, whose calls and sessions these observers see."""
    with connect(home.store, observers=observers) as store:
        yield store


@contextmanager
def client_of(home: Home, url: str | None = None) -> Iterator[WorkflowClient]:
    """A client of the API at a URL, or of a local home.

    Raises:
        UsageError: The URL is not an HTTP address, or there is no database.
    """
    from latchwork_workflows import WorkflowClient

    if url is not None and not url.startswith(("http://", "https://")):
        raise UsageError("--url is the address of an API, http://... or https://...")
    if url is None and (why := home.missing_database()):
        raise UsageError(why)
    with WorkflowClient.local(home) if url is None else WorkflowClient(url) as client:
        yield client


def log_to_stderr() -> None:
    """Log events of a node to stderr. With debugging on, the command line does this already."""
    if debugging():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    handler.addFilter(Repeats())
    logging.getLogger().addHandler(handler)  # `basicConfig` does nothing after `quiet_logs`
    for distribution in ("latchwork", "latchwork_workflows"):
        logging.getLogger(distribution).setLevel(logging.INFO)


@contextmanager
def until_signal(hurry: Callable[[], object]) -> Iterator[Signal]:
    """Set an event at the first signal of SIGTERM and SIGINT, and call ``hurry`` at the second one.

    The third signal acts as before.
    """
    stop = Signal()
    with on_end_signals(stop.set, hurry):
        yield stop


class Repeats(logging.Filter):
    """Lets a line pass that was not told in the last minute: who tries again twice a second says so twice a second.

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is told; with how often it was not."""
        line, now = (record.name, record.getMessage()), self._now()
        at, missed = self._told.get(line, (float("-inf"), 0))
        if now - at < _EVERY_S:
            self._told[line] = at, missed + 1
            return False
        if len(self._told) >= _MOST:
            self._told.clear()
        self._told[line] = now, 0
        if missed:
            record.msg, record.args = f"{line[1]} (and {counted(missed, 'time')} more since then)", ()
        return True
