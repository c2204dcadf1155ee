"""Runs everything in one process with one store: database, master, worker, API and pages. A simple way to start.

On a fleet, the same parts run separately, with PostgreSQL and etcd or ZooKeeper, without this module.
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
from latchwork_workflows.app import LOCAL, create_admin_link, is_local, make_web_app, require_password_if_public
from latchwork_workflows.cluster import StoreCluster
from latchwork_workflows.db import Database
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.home import Home
from latchwork_workflows.installation import initialize, join_store
from latchwork_workflows.keys import Keys, Order
from latchwork_workflows.logs import open_logs
from latchwork_workflows.master import Master, Retention
from latchwork_workflows.web import HttpServer, bind_socket, load_tls_context
from latchwork_workflows.worker import Secrets, Worker, WorkerOptions

_log = logging.getLogger(__name__)

#: The default trusted proxies.
LOOPBACK = ("127.0.0.0/8", "::1")
#: Seconds to wait for a worker to join.
_READY_S = 60.0
_PLAIN = (
    "--host %s serves plain HTTP to other machines: passwords, cookies and tokens can be read on the network. Give "
    "--tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy with HTTPS and give --proxy-headers"
)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of a server.

    Attributes:
        host: The address to bind for the pages.
        port: The port of the pages. 0 selects a free one.
        order: The order in which workers take tasks.
        names: The host names that browsers may use, without port. ``*``: any.
        worker: Options of the worker. None: no worker in this process.
        has_pages: Whether to serve the API and the pages.
        has_master: Whether to run a master.
        keep: How long runs and their data are kept.
        makes_database: Whether to create or upgrade the database if needed. Otherwise it is refused.
        tls_cert: PEM file with the certificate chain, for HTTPS. None: plain HTTP.
        tls_key: PEM file with the key of that certificate, without a passphrase.
        proxy_headers: Whether to trust proxies about the address and the scheme of their clients.
        trusted_proxies: Addresses and networks of trusted proxies. Default this machine.

    Raises:
        ValueError: ``tls_cert`` or ``tls_key`` is missing, or a trusted proxy is not an address or network.
    """

    host: str = "127.0.0.1"
    port: int = 8770
    order: Order = "run"
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
                    f"--trusted-proxy {each[:100]!r} is not an address or network such as 10.0.0.7 or 10.0.0.0/24"
                ) from None


class Serve:
    """All parts in one process: ``with Serve(Home.of(folder), ServeOptions(worker=WorkerOptions())) as serve: ...``.

    Construction does no I/O. Open and close it in one thread.

    Attributes:
        url: The URL of the pages for browsers, while it is open. Empty without pages.
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
        """Start all parts. If one fails, the others are closed again.

        Raises:
            StoreMismatch: The store and the database do not belong together.
            LogStoreMismatch: The logs belong to another installation, or to none and ``makes_database`` is not set.
            SchemaTooNew: A later version has changed the database.
            LatchworkError: A part cannot be started. The message names it.
        """
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def _open(self, stack: ExitStack) -> None:
        home, options = self.home, self.options
        tls = self._tls()
        # Bind first: a second server on the same address would otherwise claim tasks of the first one and end them.
        taken = stack.enter_context(bind_socket(options.host, options.port)) if options.has_pages else None
        home.create_folder()
        database = Database(home.database)
        stack.callback(database.close)
        if options.makes_database:
            initialize(database)
        store = stack.enter_context(connect(home.store))
        keys = Keys()
        found = join_store(database, store, keys)
        logs = open_logs(home.logs)
        if options.makes_database:
            logs.set_owner(found.id)
        elif home.can_read_worker_logs:
            logs.check_owner(found.id)
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
            cookie = f"latchwork-{found.id[:8]}"  # browsers share cookies between ports
            known = logs if options.makes_database or home.can_read_worker_logs else None
            app = make_web_app(database, logs=known, cluster=cluster, hosts=options.names, cookie=cookie)
            require_password_if_public(app, options.host)
            if tls is None and not options.proxy_headers and not is_local(options.host):
                _log.warning(_PLAIN, options.host)
            trusted = options.trusted_proxies if options.proxy_headers else ()
            server = HttpServer(app, bound_socket=taken, trusted_proxies=trusted, tls=tls)
            server.start()
            stack.callback(server.close)
            self.url = self._get_server_url(server)
            self._link = lambda: create_admin_link(app, self.url)
            self._can_sign_in = DatabaseAccounts(database).has_password

    def _tls(self) -> ssl.SSLContext | None:
        certificate, key = self.options.tls_cert, self.options.tls_key
        return None if certificate is None or key is None else load_tls_context(certificate, key)

    def _get_server_url(self, server: HttpServer) -> str:
        """Return the URL of a server for browsers. Its host name is one that the server accepts."""
        parts, names = urlsplit(server.url), self.options.names
        own = parts.netloc.rpartition(":")[0]
        if "*" in names or own in names:
            return server.url
        if self.options.proxy_headers and self.options.tls_cert is None:
            return f"https://{names[0]}"
        return f"{parts.scheme}://{names[0]}:{server.port}"

    def admin_link(self) -> str:
        """Return a one-time link that signs a browser in as administrator. It expires after an hour."""
        return self._link()

    def can_sign_in(self) -> bool:
        """Return whether any account has a password. Otherwise users can only sign in by one-time links."""
        return self._can_sign_in()

    def close(self) -> None:
        """Close all parts: pages, then tasks, then masters. Idempotent."""
        self._stack.close()

    def skip_waiting(self) -> None:
        """Let ``close`` return without waiting for tasks or for the master. Thread-safe."""
        for hurry in reversed(self._hurries):
            hurry()
