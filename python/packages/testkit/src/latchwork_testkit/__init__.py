"""Test servers, proxies, networks and pytest fixtures for tests of code that uses latchwork. Linux only.

- ``latchwork_testkit.servers``: real etcd, ZooKeeper and PostgreSQL servers, alone or as clusters.
- ``latchwork_testkit.proxy``: a TCP proxy between clients and a server, which cuts, delays and drops data.
- ``latchwork_testkit.network``: a network of hosts on this machine, in network namespaces.
- ``latchwork_testkit.pytest_plugin``: the pytest fixtures.

latchwork never imports this package. Tests that need no servers use ``latchwork.testing``.
"""
