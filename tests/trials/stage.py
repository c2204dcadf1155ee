"""Where trials are given: a backend with its servers, ways to them that can be hurt, and raw clients beside them."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from backends_table import BY_NAME, ETCD, POSTGRES, SERVERS
from trials.raw import (
    RawEtcd,
    RawPostgres,
    RawSqlite,
    RawZooKeeper,
    etcd_serves,
    postgres_serves,
    zookeeper_serves,
)
from trials.ways import Ways

#: Ways to cut a link between servers, the best that is possible here first: namespaces take root.
LINKS = ("namespaces", "proxies") if os.geteuid() == 0 else ("proxies",)


class Stage:
    """One backend for any number of trials, one at a time. One thread at a time.

    Args:
        backend: one of ``SHARED``, or memory.
        directory: for the files of sqlite.
        members: how many servers.
        links: how those between servers can be cut, one of ``LINKS``; empty if not at all.

    Attributes:
        server: their launcher; None without servers.
        ways: what clients may be given instead of the servers' own endpoints; None until ``lay_ways``.
    """

    def __init__(self, backend: str, directory: Path, *, members: int = 1, links: str = "") -> None:
        self.backend = backend
        self.directory = directory
        self.server = _launcher(backend, members, links)
        self.ways: Ways | None = None
        self._name = f"trial-{uuid.uuid4().hex[:12]}"
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self.server is not None:
            self._open.enter_context(self.server)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def members(self) -> list[Any]:
        return getattr(self.server, "members", [self.server]) if self.server is not None else []

    def lay_ways(self, count: int, members: list[Any] | None = None) -> None:
        """Have so many ways to these members, or to all."""
        if self.server is not None:
            chosen = self.members if members is None else members
            self.ways = Ways([member.endpoint for member in chosen], count)
            self._open.callback(self.ways.close)

    def path(self, root: str) -> Path:
        """The file of sqlite."""
        return self.directory / f"{root}.db"

    def url(self, root: str, way: int | None = None, **options: object) -> str:
        """How a client reaches the store: by one of the ways, or straight."""
        if self.server is not None:
            url = self.server.url(root, **options)
            return (
                url if way is None or self.ways is None else url.replace(self.server.endpoint, self.ways.endpoint(way))
            )
        if self.backend == "memory":
            return f"memory://{self._name}/{root}?{urlencode(options)}"
        return f"sqlite:///{self.path(root)}?{urlencode({'root': root, **options})}"

    def raw(self, root: str) -> Any:
        """A client of the server, or of the file, that knows nothing of latchwork but how it stores things."""
        if self.server is None:
            return RawSqlite(self.path(root), root)
        return raw_client(self.backend, [direct_endpoint(member) for member in self.members], root)

    def serves(self, member: Any) -> bool:
        """Whether it answers what takes a quorum, by a raw client's word."""
        if self.backend in POSTGRES:
            return postgres_serves(direct_endpoint(member))
        return (etcd_serves if self.backend in ETCD else zookeeper_serves)(member.endpoint)

    def mend(self) -> None:
        """Have all servers run and be reached, whatever was done to them."""
        if self.ways is not None:
            self.ways.release()
            self.ways.accept()
        if self.server is not None:
            if not self.server.running:
                self.server.start()
            self.server.resume()


def direct_endpoint(member: Any) -> str:
    """Return the endpoint of a server itself, not of a pooler before it."""
    return str(getattr(member, "direct_endpoint", member.endpoint))


def raw_client(backend: str, endpoints: list[str], root: str) -> Any:
    """A client of servers that knows nothing of latchwork but how it stores things."""
    if backend in POSTGRES:
        return RawPostgres(f"postgresql://latchwork@{endpoints[0]}/postgres", root)
    return (RawEtcd if backend in ETCD else RawZooKeeper)(endpoints, root)


def _launcher(backend: str, members: int, links: str) -> Any:
    if backend not in SERVERS:
        return None
    network: Any = {"": False, "namespaces": True, "proxies": "proxies"}[links]
    return BY_NAME[backend].launch(members, **({"network": network} if members > 1 else {}))
