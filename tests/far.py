"""How many answers a call waits for one after the other, measured through a proxy that delays each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import latchwork
from latchwork import Store
from latchwork_testkit.proxy import Proxy

DELAY_S = 0.25
#: Servers whose round trips are counted.
FAR_SERVERS = ("etcd35", "zookeeper")


class Far:
    """A store whose answers can be delayed.

    Attributes:
        url: Leads through the proxy.
        store: Connected to it, with an open session.
        is_etcd: Whether the server is etcd; otherwise it is ZooKeeper.
    """

    def __init__(self, url: str, store: Store, proxy: Proxy) -> None:
        self.url, self.store, self._proxy = url, store, proxy
        self.is_etcd = url.startswith("etcd")

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Every answer takes ``DELAY_S``."""
        self._proxy.delay(DELAY_S, "answers")
        try:
            yield
        finally:
            self._proxy.delay(0.0, "answers")

    def trips(self, call: Callable[[], object], tries: int = 3) -> int:
        """The fewest round trips of several tries: on a busy machine some take longer."""
        found = []
        for _ in range(tries):
            with self.delayed():
                began = time.monotonic()
                call()
                found.append((time.monotonic() - began) / DELAY_S)
        return round(min(found))


@contextmanager
def far_store(server: Any) -> Iterator[Far]:
    """Open a store on a server through a proxy."""
    with Proxy(server.endpoint) as proxy:
        url = server.url(f"trips-{time.time_ns()}").replace(server.endpoint, proxy.endpoint)
        with latchwork.connect(url) as store:
            assert store.session.remaining_s() > 0.0
            yield Far(url, store, proxy)
