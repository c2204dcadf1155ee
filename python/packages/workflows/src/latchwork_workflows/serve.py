"""Everything in one process, on one store: database, master, worker, API and pages. What a team starts with.

The same parts run one by one on a fleet, with PostgreSQL and etcd or ZooKeeper; nothing here is needed for that.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from latchwork.store import connect
from latchwork_workflows.cluster import StoreCluster
from latchwork_workflows.db import Database
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.home import Home
from latchwork_workflows.installation import initialize, join_store
from latchwork_workflows.keys import Keys, Order
from latchwork_workflows.logs import open_logs
from latchwork_workflows.master import Master, Retention
from latchwork_workflows.site import LOCAL, admin_link, check_reach, is_local, make_site
from latchwork_workflows.web import HttpServer, listening, tls_context
from latchwork_workflows.worker import Secrets, Worker, WorkerOptions

_log = logging.getLogger(__name__)

#: Proxies that are believed when none are named.
LOOPBACK = ("127.0.0.0/8", "::1")
#: Seconds that a worker has to join.
_READY_S = 60.0
_PLAIN = (
    "--host %s serves plain HTTP to other machines: passwords, cookies and tokens can be read on the network. Give "
    "--tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy with HTTPS and give --proxy-headers"
)


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
        tls_cert: PEM file with the certificate chain, for HTTPS. None: plain HTTP.
        tls_key: PEM file with the key of that certificate, without a passphrase.
        proxy_headers: whether trusted proxies are believed about the address and the scheme of their clients.
        trusted_proxies: addresses and networks of these proxies. Default this machine.

    Raises:
        ValueError: one of ``tls_cert`` and ``tls_key`` is missing, or a trusted proxy is no address or network.
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
    tls_cert: Path | None = None
    tls_key: Path | None = None
    proxy_headers: bool = False
    trusted_proxies: tuple[str, ...] = LOOPBACK

    def __post_init__(self) -> None:
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise ValueError("give both --tls-cert and --tls-key for HTTPS, or none of them for plain HTTP")
        for each in self.trusted_proxies:
            try:
                ip_network(each)
            except ValueError:
                raise ValueError(
                    f"--trusted-proxy {each[:100]!r} is no address or network, such as 10.0.0.7 or 10.0.0.0/24"
                ) from None


class Serve:
    """All of it: ``with Serve(Home.of(folder), ServeOptions(worker=WorkerOptions())) as serve: ...``.

    Construction does no I/O. Opened and closed by one thread.

    Attributes:
        url: of the pages, as browsers may ask for them, once it is open; empty without pages.
    """

    def __init__(self, home: Home, options: ServeOptions | None = None) -> None:
        self.home = home
        self.options = options or ServeOptions(worker=WorkerOptions())
        self.url = ""
        self._stack = ExitStack()
        self._hurries: list[Callable[[], object]] = []
        self._link: Callable[[], str] = str
        self._can_sign_in: Callable[[], bool] = bool

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
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
        tls = self._tls()
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
            master = Master(database, store, order=options.order, logs=logs, keep=options.keep, secrets=secrets)
            stack.enter_context(master)
            self._hurries.append(partial(master.close, 0.0))
        if options.worker is not None:
            runs = replace(options.worker, work_dir=options.worker.work_dir or home.folder / "work")
            worker = Worker(store, logs=logs, options=runs, secrets=secrets)
            worker.start()
            stack.callback(worker.close)
            self._hurries.append(partial(worker.close, 0.0))
            worker.wait_ready(_READY_S)
        if options.has_pages:
            cluster = StoreCluster(store, keys)
            stack.callback(cluster.close)
            cookie = f"latchwork-{found.id[:8]}"  # browsers do not tell ports apart
            known = logs if options.makes_database or home.has_logs else None
            app = make_site(database, logs=known, cluster=cluster, hosts=options.names, cookie=cookie)
            check_reach(app, options.host)
            if tls is None and not options.proxy_headers and not is_local(options.host):
                _log.warning(_PLAIN, options.host)
            trusted = options.trusted_proxies if options.proxy_headers else ()
            server = HttpServer(app, taken=taken, trusted_proxies=trusted, tls=tls)
            server.start()
            stack.callback(server.close)
            self.url = self._url_of(server)
            self._link = lambda: admin_link(app, self.url)
            self._can_sign_in = DatabaseAccounts(database).has_password

    def _tls(self) -> ssl.SSLContext | None:
        certificate, key = self.options.tls_cert, self.options.tls_key
        return None if certificate is None or key is None else tls_context(certificate, key)

    def _url_of(self, server: HttpServer) -> str:
        """The address for browsers: by the first name that they may use, unless they may use that of the socket."""
        parts, names = urlsplit(server.url), self.options.names
        own = parts.netloc.rpartition(":")[0]
        if "*" in names or own in names:
            return server.url
        if self.options.proxy_headers and self.options.tls_cert is None:
            return f"https://{names[0]}"
        return f"{parts.scheme}://{names[0]}:{server.port}"

    def admin_link(self) -> str:
        """An address that signs a browser in as an administrator, once, within an hour."""
        return self._link()

    def can_sign_in(self) -> bool:
        """Whether anybody has a password for the pages; without, links alone lead in."""
        return self._can_sign_in()

    def close(self) -> None:
        """Close all of it: pages, then tasks, then masters. Twice is fine."""
        self._stack.close()

    def hurry(self) -> None:
        """Let ``close`` wait neither for tasks nor for turns of the master. From any thread."""
        for hurry in reversed(self._hurries):
            hurry()
