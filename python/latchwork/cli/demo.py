"""`latchwork demo`: a cluster that loses a process halfway and finishes."""

from __future__ import annotations

import enum
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Literal

import typer
from rich.console import RenderableType

from latchwork._base.text import counted
from latchwork.cli.commands import format_missing_addon_error, import_object, list_addon_commands
from latchwork.cli.options import Json, Url, command
from latchwork.cli.outcome import FAILURE, exit_on_sigterm, quiet_logs
from latchwork.cli.text import Grid, Line, console, say, say_json, show
from latchwork.demo import DemoOptions, DemoView, LiveView, PlainView, Report, run_demo


class Part(enum.StrEnum):
    """The part of latchwork to demonstrate."""

    jobs = "jobs"
    executor = "executor"
    plans = "plans"
    workers = "workers"
    workflows = "workflows"


#: What to try after each demonstration.
_NEXT = {
    Part.executor: 'latchwork executor run --help, and the tutorial "A pool of machines"',
    Part.plans: "latchwork plans worker --help, and the tutorial about plans",
    Part.workers: "latchwork workers run --help, and the tutorial about worker groups",
    Part.workflows: "latchwork workflows serve, and the tutorial about workflows",
}


@command(
    "latchwork demo",
    "latchwork demo workflows",
    "latchwork demo --kill manager",
    "latchwork demo --url etcd://127.0.0.1:2379",
    "latchwork demo --url zk://127.0.0.1:2181/trials --workers 5 --keep",
)
def demo(
    part: Annotated[Part, typer.Argument(help="The part to demonstrate.")] = Part.jobs,
    *,
    url: Url = None,
    kill: Annotated[
        Literal["worker", "manager"],
        typer.Option(help="The process to kill: one that only works, or the one that also manages the cluster."),
    ] = "worker",
    workers: Annotated[int, typer.Option(min=2, help="The number of worker processes.")] = 3,
    pace_s: Annotated[
        float, typer.Option("--pace-s", min=0.0, help="The minimum number of seconds per item, so that you can watch.")
    ] = 0.1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the keys and the logs.")] = False,
    as_json: Json = False,
) -> None:
    """Run a cluster of worker processes, kill -9 one of them halfway, and prove that nothing was lost.

    The work is real: every top-level module and package of this machine's Python standard library is parsed, and its
    lines, functions and classes are counted. One process is killed while it runs an item, and the others take over its
    items. At the end the totals are compared with a serial count. The exit code is 1 if they differ.

    Without --url the store is a SQLite file in a temporary directory. With --url, everything is stored below a new key
    under the URL's root and removed at the end. It takes about 15 seconds.

    The other parts run on SQLite in a temporary directory, and take no options but --json.
    """
    quiet_logs()
    if part is not Part.jobs:
        _demonstrate(part, as_json=as_json)
        return
    out = console(err=as_json)
    view: DemoView = LiveView(out) if out.is_terminal else PlainView(out)
    with exit_on_sigterm(128 + signal.SIGTERM):
        report = run_demo(DemoOptions(url=url, kill=kill, workers=workers, keep=keep, pace_s=pace_s), view)
    if as_json:
        say_json(report.to_json())
    else:
        show(*_parts(report))
    if not report.ok:
        raise typer.Exit(FAILURE)


def _demonstrate(part: Part, *, as_json: bool) -> None:
    """Run the short demonstration of a part of latchwork. Exit with 1 if its result is wrong.

    Args:
        part: The part to demonstrate.
        as_json: Print the result as a JSON document.
    """
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if not as_json:
            say(line)

    began = time.monotonic()
    with exit_on_sigterm(128 + signal.SIGTERM):
        is_right = _function_of(part)(report)
    seconds = round(time.monotonic() - began, 1)
    verdict = "equals that of one process: nothing lost, nothing counted twice" if is_right else "is WRONG"
    if as_json:
        say_json({"part": part.value, "ok": is_right, "seconds": seconds, "lines": lines})
    else:
        say(f"the result {verdict}; {seconds} s in all")
        say(f"next: {_NEXT[part]}")
    if not is_right:
        raise typer.Exit(FAILURE)


def _function_of(part: Part) -> Callable[[Callable[[str], None]], bool]:
    if part is Part.workflows:
        found = list_addon_commands().get(part.value)
        if found is None:
            sys.exit(format_missing_addon_error(part.value))
        function: Callable[[Callable[[str], None]], bool] = import_object(found.demo)
        return function
    from latchwork.demo import systems  # imports the executor, plans and worker groups

    return {Part.executor: systems.run_executor, Part.plans: systems.run_plans, Part.workers: systems.run_workers}[part]


def _parts(report: Report) -> list[RenderableType]:
    found: list[RenderableType] = [*_story(report), _totals(report)]
    found += [Line(f"FAILED: {problem}", "bold red") for problem in report.problems]
    if report.ok:
        found.append(Line("The cluster's totals equal the serial count: nothing lost or counted twice.", "green"))
    left = "kept" if report.kept else "removed"
    return [*found, f"{report.seconds} s in all; the store was {report.store} ({left})"]


def _story(report: Report) -> list[str]:
    kill, takeover = report.kill, report.takeover
    if kill is None or takeover is None:
        return []
    percent = 100 * kill.done / report.items
    role = "manager and worker" if kill.was_leader else "worker"
    again = ", ".join(f"{rerun.item} ({rerun.first}, then {rerun.again})" for rerun in report.reruns)
    taken = counted(takeover.items, "unfinished item")
    lines = [
        "",
        f"killed:       {kill.node} (pid {kill.pid}, {role}) at {percent:.0f} % of the work, while running {kill.item}",
        f"run again:    {again or 'none'}",
        f"taken over:   {taken} had new owners {_seconds(takeover.owned_s)} after the kill",
        (
            f"started:      {kill.item} after {_seconds(takeover.interrupted_s)}, the last one after "
            f"{_seconds(takeover.last_start_s)}, when its new owner was done with its other items"
        ),
    ]
    if kill.was_leader:
        lines.append(f"new manager:  {_seconds(takeover.leader_s)} after the kill")
    return lines


def _totals(report: Report) -> Grid:
    names = [each.name for each in fields(report.cluster)]
    rows = [
        {"counted by": name, **{each: f"{getattr(counts, each):,}" for each in names}}
        for name, counts in (("the cluster", report.cluster), ("one process", report.serial))
    ]
    done = ", ".join(f"{node} {count:,}" for node, count in report.by_node.items())
    return Grid(rows, right=names, title=f"{counted(report.items, 'item')}, done by {done}")


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"
