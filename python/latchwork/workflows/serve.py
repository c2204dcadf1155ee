"""Everything in one process, on one store: database, master, worker, API and pages. What a team starts with.

The same parts run one by one on a fleet, with PostgreSQL and etcd or ZooKeeper; nothing here is needed for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from latchwork.store import connect
from latchwork.web import HttpServer, listening
from latchwork.workflows.cluster import StoreCluster
from latchwork.workflows.database import Database
from latchwork.workflows.database.accounts import DatabaseAccounts
from latchwork.workflows.home import Home
from latchwork.workflows.installation import initialize, join_store
from latchwork.workflows.keys import Keys, Order
from latchwork.workflows.logs import open_logs
from latchwork.workflows.master import Master, Retention
from latchwork.workflows.site import LOCAL, admin_link, check_reach, make_site
from latchwork.workflows.worker import Secrets, Worker, WorkerOptions

_log = logging.getLogger(__name__)

#: Seconds that a worker has to join.
_READY_S = 60.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to serve.

    Attributes:
        host: that the pages are bound to.
        port: of the pages; 0 takes a free one.
        order: by what workers take tasks.
        names: by which browsers may ask for the pages, without port; ``*``: any.
        worker: how tasks run; None: no worker here.
        has_pages: whether the API and the pages are served.
        has_master: whether instances are advanced here.
        keep: how long runs and what belongs to them are kept.
        makes_database: whether a database is made, or brought to this version, where it is not; else it is refused.
    """

    host: str = "127.0.0.1"
    port: int = 8770
    order: Order = "instance"
    names: tuple[str, ...] = LOCAL
    worker: WorkerOptions | None = None
    has_pages: bool = True
    has_master: bool = True
    keep: Retention = field(default_factory=Retention)
    makes_database: bool = True


class Serve:
    """All of it: ``with Serve(Home.of(folder), ServeOptions(worker=WorkerOptions())) as serve: ...``.

    Construction does no I/O. Opened and closed by one thread.

    Attributes:
        url: of the pages, once it is open; empty without pages.
    """

    def __init__(self, home: Home, options: ServeOptions | None = None) -> None:
        self.home = home
        self.options = options or ServeOptions(worker=WorkerOptions())
        self.url = ""
        self._stack = ExitStack()
        self._link: Callable[[], str] = str
        self._can_sign_in: Callable[[], bool] = bool

    def __enter__(self) -> Serve:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Serve:
        """Open all of it; nothing is left open when that fails.

        Raises:
            StoreMismatch: store and database do not belong together.
            LogStoreMismatch: the logs are those of other workflows; or of none yet, and the database is not to be made.
            SchemaTooNew: a later version has changed the database.
            LatchworkError: a part cannot be opened; the message says which.
        """
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def _open(self, stack: ExitStack) -> None:
        home, options = self.home, self.options
        # First: a second server of one address would take tasks from the other for a moment, and end them.
        taken = stack.enter_context(listening(options.host, options.port)) if options.has_pages else None
        home.make()
        database = Database(home.database)
        stack.callback(database.close)
        if options.makes_database:
            initialize(database)
        store = stack.enter_context(connect(home.store))
        keys = Keys()
        found = join_store(database, store, keys)
        logs = open_logs(home.logs)
        if options.makes_database:
            logs.mark(found.id)
        elif home.has_logs:
            logs.check(found.id)
        secrets = Secrets(home.secrets)
        if options.has_master:
            stack.enter_context(
                Master(database, store, order=options.order, logs=logs, keep=options.keep, secrets=secrets)
            )
        if options.worker is not None:
            runs = replace(options.worker, work_dir=options.worker.work_dir or home.folder / "work")
            worker = Worker(store, logs=logs, options=runs, secrets=secrets)
            worker.start()
            stack.callback(worker.close)
            worker.wait_ready(_READY_S)
        if options.has_pages:
            cluster = StoreCluster(store, keys)
            stack.callback(cluster.close)
            cookie = f"latchwork-{found.id[:8]}"  # browsers do not tell ports apart
            known = logs if options.makes_database or home.has_logs else None
            app = make_site(database, logs=known, cluster=cluster, hosts=options.names, cookie=cookie)
            check_reach(app, options.host)
            server = HttpServer(app, taken=taken)
            server.start()
            stack.callback(server.close)
            self.url = server.url
            self._link = lambda: admin_link(app, server.url)
            self._can_sign_in = DatabaseAccounts(database).has_password

    def admin_link(self) -> str:
        """An address that signs a browser in as an administrator, once, within an hour."""
        return self._link()

    def can_sign_in(self) -> bool:
        """Whether anybody has a password for the pages; without, links alone lead in."""
        return self._can_sign_in()

    def close(self) -> None:
        """Close all of it: pages, then tasks, then masters. Twice is fine."""
        self._stack.close()
