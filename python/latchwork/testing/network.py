"""A network of hosts on this machine, in namespaces of its own; it stands in ``latchwork_testbed.network``."""

from latchwork_testbed.network import Network, NetworkUnavailable

__all__ = ["Network", "NetworkUnavailable"]
