"""The command `latchwork bench`. latchwork finds it through the entry point group ``latchwork.commands``."""

from latchwork.spi import CommandSpec

__all__ = ["BENCH"]

BENCH = CommandSpec("latchwork_testkit.cli.bench:bench_app", "Measure this machine, and a store")
