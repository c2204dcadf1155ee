"""A proxy that hurts what passes between clients and one server; it stands in ``latchwork_testbed.proxy``."""

from latchwork_testbed.proxy import Proxy, Way

__all__ = ["Proxy", "Way"]
