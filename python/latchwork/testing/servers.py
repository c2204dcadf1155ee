"""Real etcd and ZooKeeper servers for tests; they stand in ``latchwork_testbed.servers``."""

from latchwork_testbed.servers import *  # noqa: F403 - a door: its names are those of the module behind it
