"""Real etcd and ZooKeeper servers for tests: started as ordinary processes on free ports of 127.0.0.1.

    with EtcdServer(version="3.5") as server:
        store = latchwork.connect(server.url("/test"))

Each server has its own data directory, keeps ports and data over `kill()` and `restart()`, and dies with the process
that started it. Elections are fast (50 ms heartbeats, 100 ms ticks), so that sessions of one second are granted;
everything that bears on durability is as in production. Linux only.
"""

from __future__ import annotations

from latchwork_testkit.binaries import ETCD_VERSIONS, ServerMissing
from latchwork_testkit.etcd import EtcdCluster, EtcdServer
from latchwork_testkit.postgres import PostgresServer
from latchwork_testkit.server import Launcher, Server, ServerFailed, Tls
from latchwork_testkit.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "ETCD_VERSIONS",
    "EtcdCluster",
    "EtcdServer",
    "EtcdTls",
    "Launcher",
    "PostgresServer",
    "Server",
    "ServerFailed",
    "ServerMissing",
    "Tls",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]

#: The same by its first name.
EtcdTls = Tls
