"""Where plays are given: a backend with its clients, the proxies between them, and a raw client beside them.

a   through proxies, one a member, which can be hurt
b   straight to the servers
v   where a fault needs one: in a process of its own
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etcd_versions import ETCD
from latchwork_testbed.proxy import Proxy
from latchwork_testbed.servers import EtcdCluster, EtcdServer, ZooKeeperEnsemble, ZooKeeperServer
from trials.contract.client import Client
from trials.contract.process import RemoteClient
from trials.judges.contract import mirrors_differ, orphans, watches_missed
from trials.raw import (
    RawEtcd,
    RawSqlite,
    RawZooKeeper,
    etcd_members_differ,
    etcd_serves,
    wait_until,
    zookeeper_serves,
)
from trials.record import STRICT, Patience, Record

ROOT = "play"
TTL_S = 2.0
CALL_TIMEOUT_S = 2.0
#: 3.5.0 to 3.5.2: a member that is killed may apply a write twice when it is back, or count it and not apply it.
MAY_DIFFER = {"etcd35"}
SERVERS = ("zookeeper", *ETCD)
BACKENDS = ("sqlite", *SERVERS)
#: Ways to cut a link between servers, the best that is possible here first: namespaces take root.
LINKS = ("namespaces", "proxies") if os.geteuid() == 0 else ("proxies",)


class Stage:
    """One backend with its clients. One thread at a time.

    Args:
        backend: one of ``BACKENDS``.
        members: how many servers.
        links: how those between servers can be cut, one of ``LINKS``; empty if not at all.
        attach: to which members client a connects: all, or only the leader or a follower of before.
        victim: there is a client v.
        patience: of the judge, and of faults.
    """

    def __init__(
        self,
        backend: str,
        directory: Path,
        *,
        members: int = 1,
        attach: str = "all",
        victim: bool = False,
        links: str = "",
        patience: Patience = STRICT,
    ) -> None:
        self.backend = backend
        self.directory = directory
        self.ttl_s = TTL_S
        self.record = Record(CALL_TIMEOUT_S, TTL_S, patience)
        self.server = _launcher(backend, members, links)
        self.proxies: list[Proxy] = []
        self.attached: list[Any] = []
        self.clients: list[Any] = []
        self._attach = attach
        self._victim = victim
        self._open = contextlib.ExitStack()
        self._curtain = False

    def __enter__(self) -> Stage:
        try:
            self._build()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._curtain = True
        self._open.close()

    @property
    def a(self) -> Client:
        return self.clients[0]

    @property
    def victim(self) -> RemoteClient:
        return self.clients[2]

    @property
    def members(self) -> list[Any]:
        return getattr(self.server, "members", [self.server]) if self.server is not None else []

    @property
    def path(self) -> Path:
        """The file of sqlite."""
        return self.directory / "play.db"

    def url(self, *, direct: bool) -> str:
        options = f"call_timeout_s={CALL_TIMEOUT_S:g}&connect_timeout_s=20"
        if self.server is None:
            return f"sqlite:///{self.path}?root={ROOT}&{options}"
        hosts = self.server.endpoint if direct else ",".join(proxy.endpoint for proxy in self.proxies)
        return f"{self.server.SCHEME}://{hosts}/{ROOT}?{options}"

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def settle(self) -> None:
        """Whatever was unknown gets known, and everybody's state comes to rest."""
        for client in self.living():
            self.record.problems += client.settle()
        wait_until(self._is_quiet, 4 * self.ttl_s, every_s=0.1)
        self._curtain = True
        self._compare_members()

    def living(self) -> list[Any]:
        return [client for client in self.clients if client.name not in self.record.gone]

    def await_reachable(self, timeout_s: float = 30.0) -> None:
        """Note from when each client's servers can be reached."""
        ways = {client.name: self.attached if client.name == "a" else self.members for client in self.living()}

        def look() -> bool:
            for name in [name for name in ways if name not in self.record.reachable]:
                if not ways[name] or any(self.serves(member) for member in ways[name]):
                    self.record.reachable[name] = time.monotonic()
            return len(self.record.reachable) == len(ways)

        if not wait_until(look, timeout_s, every_s=0.01):
            self.record.problems.append(f"the servers were not back {timeout_s} s after the trouble")

    def serves(self, member: Any) -> bool:
        """Whether it answers what takes a quorum, by a raw client's word."""
        return (etcd_serves if self.backend in ETCD else zookeeper_serves)(member.endpoint)

    # Private.

    def _compare_members(self) -> None:
        """Members that differ are what no client can make up for; of a version known for it they spoil the play."""
        if self.backend in ETCD and len(self.members) > 1:
            difference = etcd_members_differ([member.endpoint for member in self.members])
            if difference and self.backend in MAY_DIFFER:
                self.record.spoilt = difference
            elif difference:
                self.record.problems.append(difference)

    def _build(self) -> None:
        if self.server is not None:
            self._open.enter_context(self.server)
            self.attached = self._chosen()
            self.proxies = [self._open.enter_context(Proxy(member.endpoint)) for member in self.attached]
        self.clients.append(self._local("a", self.url(direct=False)))
        self.clients.append(self._local("b", self.url(direct=True)))
        self.raw = self._raw()
        self._open.callback(self.raw.close)
        if self._victim:
            remote = RemoteClient("v", self.url(direct=True), self.ttl_s, self.record, self._sink)
            self._open.callback(remote.close)
            self.clients.append(remote)
        for client in self.clients:
            client.ready()

    def _chosen(self) -> list[Any]:
        if self._attach == "leader":
            return [self.server.leader()]
        if self._attach == "follower":
            return [self.server.followers()[0]]
        return list(self.members)

    def _local(self, name: str, url: str) -> Client:
        client = Client(name, url, self.ttl_s, self._sink, lambda call: None)
        self._open.callback(client.close)
        return client

    def _sink(self, fact: Any) -> None:
        if not self._curtain:
            self.record.add(fact)

    def _raw(self) -> Any:
        if self.server is None:
            return RawSqlite(self.path, ROOT)
        endpoints = [member.endpoint for member in self.members]
        return (RawEtcd if self.backend in ETCD else RawZooKeeper)(endpoints, ROOT)

    def _is_quiet(self) -> bool:
        """Note the server's state and the mirrors; whether they agree, as far as the watches have told by now.

        A session may be lost in between on a busy machine: what differs for a moment is read again.
        """
        record = self.record
        record.read_at = time.monotonic()
        record.state = self.raw.state()
        record.mirrors = {client.name: client.mirrored() for client in self.living()}
        return not any(any(rule(record)) for rule in (mirrors_differ, watches_missed, orphans))


def _launcher(backend: str, members: int, links: str) -> Any:
    network: Any = {"": False, "namespaces": True, "proxies": "proxies"}[links]
    if backend == "sqlite":
        return None
    make: Callable[[], Any]
    if backend == "zookeeper":
        make = ZooKeeperServer if members == 1 else lambda: ZooKeeperEnsemble(members, network=network)
    else:
        version = ETCD[backend]
        make = lambda: EtcdServer(version) if members == 1 else EtcdCluster(members, version=version, network=network)  # noqa: E731
    return make()
