"""Runs `latchwork bench cluster` at full size on a new etcd server and on a new ZooKeeper server.

Prints a table. With --write, also puts it into docs/performance.md between its two marks. The exit status is 1 if a
goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
from pathlib import Path

from latchwork_testkit.cluster_bench import BenchOptions, compare_with_goals, measure
from latchwork_testkit.servers import EtcdServer, ZooKeeperServer

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- bench-cluster: begin -->", "<!-- bench-cluster: end -->"
#: It serves for minutes and keeps 300,000 nodes: with memory, and all that its compiler can do.
JVM_ARGS = ("-Xmx1g", "-XX:TieredStopAtLevel=4")
SERVERS = {"etcd": lambda: EtcdServer("3.5"), "zookeeper": lambda: ZooKeeperServer(jvm_args=JVM_ARGS)}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--backends", nargs="+", choices=sorted(SERVERS), default=sorted(SERVERS))
    made.add_argument("--workers", type=int, default=1000)
    made.add_argument("--items", type=int, default=1_000_000)
    made.add_argument("--jobs", type=int, default=100)
    made.add_argument("--deaths", type=int, default=3)
    made.add_argument("--idle-s", type=float, default=10.0)
    made.add_argument("--strategies", nargs="+", default=["balanced"], help="by name; jobs get them in turn")
    made.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    made.add_argument("--json", type=Path, help="write all figures to this file")
    return made


def run(backend, options):
    """Measure a cluster on a new server of this backend, and return the figures and the name of the server."""
    with SERVERS[backend]() as server:
        size = BenchOptions(
            url=server.url("/bench"),
            workers=options.workers,
            items=options.items,
            jobs=options.jobs,
            deaths=options.deaths,
            idle_s=options.idle_s,
            strategies=tuple(options.strategies),
        )
        return measure(size, lambda what: print(f"{server.LABEL}: {what}", file=sys.stderr, flush=True)), server.LABEL


def table(found):
    """Return a Markdown table with a row for each goal and a column for each server."""
    options = found[0][0].options
    placed_by = " and ".join(f"`{name}`" for name in options.strategies)
    size = f"{options.workers:,} workers, {options.items:,} items, {options.jobs:,} jobs"
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores for everything"
    load = f"load average {os.getloadavg()[1]:.1f}"
    lines = [
        f"{size}, strategy {placed_by}, debounce time {options.debounce_s:g} s; {machine}, {load}.",
        "",
        "| measure | goal | " + " | ".join(label for _, label in found) + " |",
        "|---|---|" + "---|" * len(found),
    ]
    columns = [compare_with_goals(figures) for figures, _ in found]
    for row in zip(*columns, strict=True):
        cells = " | ".join(f"{number(goal.found)}{'' if goal.is_met else ' (missed)'}" for goal in row)
        lines.append(f"| {row[0].what} | {row[0].goal:,g} {row[0].unit} | {cells} |".replace("  |", " |"))
    return "\n".join(lines)


def number(value):
    """Return a figure with three significant digits, or all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write(text):
    """Replace the text between the two marks of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main():
    """Measure all servers, one after another."""
    options = parser().parse_args()
    found = [run(backend, options) for backend in options.backends]
    text = table(found)
    print(text)
    if options.write:
        write(text)
    with contextlib.ExitStack() as stack:
        if options.json:
            out = stack.enter_context(options.json.open("w", encoding="utf-8"))
            json.dump([figures.to_json() for figures, _ in found], out, indent=2)
    sys.exit(0 if all(goal.is_met for figures, _ in found for goal in compare_with_goals(figures)) else 1)


if __name__ == "__main__":
    main()
