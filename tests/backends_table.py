"""Every backend that the tests know, one row each: whoever adds a backend to the tests adds its row here.

The lists of backends that fixtures, plays, histories and storms have are made from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from latchwork_testkit.binaries import ZOOKEEPER_VERSION, find_etcd, find_zookeeper_classpath
from latchwork_testkit.pgbouncer import find_pgbouncer
from latchwork_testkit.postgres import find_postgres
from latchwork_testkit.servers import (
    EtcdCluster,
    EtcdServer,
    PooledPostgresServer,
    PostgresServer,
    ServerMissing,
    ZooKeeperEnsemble,
    ZooKeeperServer,
)


class When(Enum):
    """When `make test` runs the tests of a backend; `make check` runs them all. `levels.py` has the rule."""

    ALWAYS = "every day"
    IN_TURN = "on the days on which it is the turn of this backend for the test's file"
    OWN = "every day in the backend's own folder, on some days in each file of the conformance suite, nowhere else"
    ON_REQUEST = "only where SERVERS names it, or is all and the server is on this machine"


@dataclass(frozen=True)
class Backend:
    """One backend.

    Attributes:
        name: in the ids of tests, in ``SERVERS``, and in the arguments of checks.
        url: makes the URL of a store from a name that no other test uses and the test's directory; of a backend that
            is embedded.
        server: the launcher of one server; of a backend that has servers.
        cluster: the launcher of several servers that elect a leader.
        version: what both launchers are given as their ``version``; empty if they have none.
        when: when `make test` runs its tests.
        shared: whether several processes can share its data.
    """

    name: str
    url: Callable[[str, Path], str] | None = None
    server: Callable[..., Any] | None = None
    cluster: Callable[..., Any] | None = None
    version: str = ""
    when: When = When.IN_TURN
    shared: bool = True

    def launch(self, members: int = 1, **options: Any) -> Any:
        """A server, or a cluster of so many members, with these options of its launcher; not started yet."""
        if self.version:
            options["version"] = self.version
        if members == 1:
            assert self.server is not None, f"{self.name} has no servers"
            return self.server(**options)
        assert self.cluster is not None, f"{self.name} has no clusters"
        return self.cluster(members, **options)


BACKENDS = (
    Backend("memory", url=lambda name, _: f"memory://{name}/test", when=When.ALWAYS, shared=False),
    Backend("sqlite", url=lambda _, folder: f"sqlite:///{folder / 'store.db'}?root=test"),
    Backend("zookeeper", server=ZooKeeperServer, cluster=ZooKeeperEnsemble),
    Backend("zookeeper39", server=ZooKeeperServer, cluster=ZooKeeperEnsemble, version="3.9", when=When.ON_REQUEST),
    Backend("etcd34", server=EtcdServer, cluster=EtcdCluster, version="3.4", when=When.OWN),
    Backend("etcd35", server=EtcdServer, cluster=EtcdCluster, version="3.5"),
    Backend("etcd36", server=EtcdServer, cluster=EtcdCluster, version="3.6", when=When.ON_REQUEST),
    Backend("postgresql", server=PostgresServer),
    Backend("pgbouncer", server=PooledPostgresServer, when=When.OWN),
)
BY_NAME = {backend.name: backend for backend in BACKENDS}
#: Names of those that have servers.
SERVERS = tuple(backend.name for backend in BACKENDS if backend.server is not None)
#: Names of those whose data several processes can share: what plays and storms hurt.
SHARED = tuple(backend.name for backend in BACKENDS if backend.shared)
#: Names of those that differ by more than the version of a server, and are shared: for what takes long.
ONE_OF_EACH_KIND = tuple(b.name for b in BACKENDS if b.shared and b.when in {When.ALWAYS, When.IN_TURN})
#: Names of those that have clusters of servers.
CLUSTERED = tuple(backend.name for backend in BACKENDS if backend.cluster is not None)
#: Names of those that are PostgreSQL: straight, and behind a pooler.
POSTGRES = ("postgresql", "pgbouncer")
#: Name to version.
ETCD = {backend.name: backend.version for backend in BACKENDS if backend.server is EtcdServer}


def is_there(name: str) -> bool:
    """Whether the server of a backend is on this machine; where it is not, this says so loudly."""
    try:
        if name in ETCD:
            find_etcd(ETCD[name])
        elif BY_NAME[name].server is ZooKeeperServer:
            find_zookeeper_classpath(BY_NAME[name].version or ZOOKEEPER_VERSION)
        elif name in POSTGRES:
            find_postgres()
            if BY_NAME[name].server is PooledPostgresServer:
                find_pgbouncer()
    except ServerMissing as error:
        print(f"!!\n!! {name} is NOT checked: {error}\n!!", flush=True)
        return False
    return True
