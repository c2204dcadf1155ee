"""A node that is cut off from its server: goes on while its locks last, stops in time, and comes back by itself."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.testing.servers import EtcdServer, ZooKeeperServer


@pytest.fixture(params=["zookeeper", "etcd35"])
def own_server(request):
    """A server that may be hurt."""
    with ZooKeeperServer() if request.param == "zookeeper" else EtcdServer("3.5") as server:
        yield server


def test_a_short_cut_restarts_nothing_and_a_long_one_stops_runs_in_time_and_recovers(own_server, cluster, eventually):
    margins = []

    def run(context):
        cluster.log.begin(context)
        context.wait_stop()
        margins.append(context.remaining_s())
        cluster.log.end(context)

    with latchwork.connect(own_server.url("test", call_timeout_s=2)) as store:
        node = cluster.node(store, "n1", cluster.endless(run=run), session_ttl_s=3.0, lock_ttl_s=3.0)
        eventually(lambda: len(cluster.log.owners()) == 4)

        own_server.pause()
        store.clock.wait(node._closed, 1.0)
        own_server.resume()
        store.clock.wait(node._closed, 2.0)
        assert set(cluster.log.count().values()) == {1}, "a cut shorter than the TTL must restart nothing"

        own_server.pause()
        try:
            eventually(lambda: len(margins) == 4, 6)
        finally:
            own_server.resume()
        assert min(margins) > 0.2, "the runs were told to stop too late"
        eventually(lambda: len(cluster.log.owners()) == 4, 20, "the return of the runs")
        eventually(lambda: node.is_manager, 20)
        node.close()
