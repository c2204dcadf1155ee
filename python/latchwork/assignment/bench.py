"""Times assignment and its peers: a door to ``latchwork.apps.assign_bench``; nothing of ours imports it here."""

from latchwork.apps.assign_bench.bench import run

__all__ = ["run"]
