"""Real etcd, ZooKeeper and PostgreSQL servers for tests, as ordinary processes on free ports of 127.0.0.1.

    with EtcdServer(version="3.5") as server:
        store = latchwork.connect(server.url("/test"))

Each server has its own data directory, keeps its ports and data across `kill()` and `restart()`, and ends with the
process that started it. Elections are fast (heartbeats of 50 ms, ticks of 100 ms), so that the servers grant sessions
of one second. All settings that affect durability are as in production. Linux only.
"""

from __future__ import annotations

from latchwork_testkit.binaries import ETCD_VERSIONS, ServerMissing
from latchwork_testkit.etcd import EtcdCluster, EtcdServer
from latchwork_testkit.pgbouncer import PgBouncer, PooledPostgresServer
from latchwork_testkit.postgres import PostgresServer
from latchwork_testkit.server import Launcher, Server, ServerFailed, Tls
from latchwork_testkit.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "ETCD_VERSIONS",
    "EtcdCluster",
    "EtcdServer",
    "Launcher",
    "PgBouncer",
    "PooledPostgresServer",
    "PostgresServer",
    "Server",
    "ServerFailed",
    "ServerMissing",
    "Tls",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]
