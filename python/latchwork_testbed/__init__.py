"""Real etcd and ZooKeeper servers, proxies and networks for tests, on this machine alone; Linux only.

The documented doors are ``latchwork.testing.servers``, ``.proxy`` and ``.network``; nothing in ``latchwork`` outside
``latchwork.testing`` imports this package.
"""
