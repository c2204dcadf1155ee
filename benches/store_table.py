"""Prints the figures of a pytest-benchmark run as a table."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

_HEAD = f"{'':15}{'':44}{'raw':>12}{'ours':>12}{'':12}{'median':>9}{'worst':>9}{'best':>9}{'cpu':>9}{'goal':>10}"


class Table:
    """A pytest plugin that prints one line for each figure at the end."""

    def __init__(self):
        self.rows = []

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item):
        info = getattr(item.funcargs.get("benchmark"), "extra_info", None)
        if info:
            self.rows.append(dict(info))

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.write_line(machine())
        terminalreporter.write_line(_HEAD)
        for row in self.rows:
            terminalreporter.write_line(line(row))


def machine():
    """Return the machine and the software for which the figures are valid."""
    cpu = next((one.partition(":")[2].strip() for one in _cpuinfo() if one.startswith("model name")), "unknown")
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores ({cpu}), Python {platform.python_version()}, load average {load:.1f} at the end"


def line(row):
    """Return one row of the table as text."""
    figures = "".join(_figure(row.get(name)) for name in ("raw", "ours"))
    ratios = "".join(f"{row[name]:>{width}.2f}" if name in row else " " * width for name, width in _RATIOS)
    return f"{row['kind']:15}{row['row']:44}{figures} {row['unit']:11}{ratios}{row['goal']:>10}"


_RATIOS = (("median", 9), ("least", 9), ("of_best", 9), ("cpu", 9))


def _figure(value):
    if value is None:
        return f"{'':>12}"
    return f"{value:>12,.0f}" if value >= 100 else f"{value:>12.2f}"


def _cpuinfo():
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
