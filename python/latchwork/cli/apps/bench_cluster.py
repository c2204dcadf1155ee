"""`latchwork bench cluster`: how a cluster of many workers does on a store."""

from __future__ import annotations

import enum
import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from latchwork.apps.cluster_bench import BenchOptions, Figures, Goal, goals, measure
from latchwork.cli.options import Json, Url, command, wanted_url
from latchwork.cli.outcome import FAILURE, UsageError, quiet_logs


class Strategy(str, enum.Enum):
    """Who decides where items go."""

    balanced = "balanced"
    evenly_spread = "evenly-spread"
    evenly_rendezvous = "evenly-rendezvous"
    rendezvous = "rendezvous"


@command(
    "latchwork bench cluster --url sqlite:///bench.db",
    "latchwork bench cluster --url etcd://127.0.0.1:2379/bench",
    "latchwork bench cluster --url zk://127.0.0.1:2181/bench --workers 1000 --items 1000000 --jobs 100 --check",
    "latchwork bench cluster --url etcd://127.0.0.1:2379/bench --json",
)
def cluster(
    *,
    url: Url = None,
    workers: Annotated[int, typer.Option(min=2, help="Workers that share the items.")] = 100,
    items: Annotated[int, typer.Option(min=1, help="Work items over all jobs.")] = 10_000,
    jobs: Annotated[int, typer.Option(min=1, help="Jobs; every worker can run each.")] = 10,
    deaths: Annotated[int, typer.Option(min=0, help="Workers that die, one after the other.")] = 3,
    processes: Annotated[int, typer.Option(min=1, help="Processes that the workers are spread over.")] = 2,
    strategy: Annotated[
        list[Strategy] | None,
        typer.Option(
            help="Who decides where items go; given several times, jobs get them in turn.  [default: balanced]"
        ),
    ] = None,
    lock_owners: Annotated[
        int, typer.Option(min=0, help="Workers that hold the locks of all their items while nothing happens.")
    ] = 20,
    debounce_s: Annotated[
        float, typer.Option("--debounce-s", min=0.0, help="Seconds that the manager waits for a burst to end.")
    ] = 0.3,
    idle_s: Annotated[
        float, typer.Option("--idle-s", min=0.0, help="Seconds for which writes are counted while nothing happens.")
    ] = 10.0,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=1.0, help="Seconds for any one step.")] = 300.0,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a goal is missed.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the job manager: how fast items find a worker, and what is written for it, in a cluster of this size.

    The manager and the store are real. The workers register, follow and decode their shares with the code of real ones
    but run nothing, so that a thousand of them fit into few processes; those that die have a session of their own. In
    turn: the workers register, all items find a worker at once (cold start), nothing happens for a while, during which
    some workers hold the locks of their items, some workers die, some items are added. After each step every item is
    with exactly one worker, or the command fails.

    The goals are those for 1000 workers, 1,000,000 items and 100 jobs. Everything is below a fresh key under the URL's
    root, and removed at the end. It needs a store that several processes can use, so not memory://. The default size
    takes about half a minute, the full size some minutes and, on etcd, more than 100 MB of the server's quota.
    """
    quiet_logs()
    url = wanted_url(url)
    if deaths >= workers:
        raise UsageError(f"--deaths is {deaths} and --workers {workers}; at least one worker has to stay")
    options = BenchOptions(
        url=url,
        workers=workers,
        items=items,
        jobs=jobs,
        deaths=deaths,
        processes=processes,
        strategies=tuple(each.value for each in strategy or [Strategy.balanced]),
        lock_owners=lock_owners,
        debounce_s=debounce_s,
        idle_s=idle_s,
        timeout_s=timeout_s,
    )
    figures = _measured(options)
    if as_json:
        typer.echo(json.dumps(figures.to_json(), indent=2))
    else:
        _print(Console(highlight=False), figures)
    if check and not all(goal.met for goal in goals(figures)):
        raise typer.Exit(FAILURE)


def _measured(options: BenchOptions) -> Figures:
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task("starting", total=None)
        return measure(options, lambda what: shown.update(task, description=what))


def _print(console: Console, figures: Figures) -> None:
    options = figures.options
    console.print(
        f"{figures.backend}: {options.workers:,} workers, {options.items:,} items, {options.jobs:,} jobs, "
        f"{' and '.join(options.strategies)}; quiet time {options.debounce_s:g} s",
        soft_wrap=True,
    )
    console.print(_steps(figures))
    if figures.takeover_s is not None:
        console.print(f"a new manager had read everything, its quiet time included, after {figures.takeover_s:.3f} s")
    idle = figures.idle
    if idle is not None:
        console.print(
            f"nothing happens for {idle.seconds:g} s: {idle.changes} keys changed beside {idle.renewals} renewals of "
            f"{idle.lock_owners} lock owners, who hold {idle.locks:,} locks; {idle.commits} transactions "
            "(renewals of sessions are such on ZooKeeper)",
            soft_wrap=True,
        )
    console.print(_goals(goals(figures)))


def _steps(figures: Figures) -> Table:
    table = Table(title="until the last worker has decoded its share", title_justify="left")
    table.add_column("what")
    for name in ("seconds", "of it waiting", "deciding, writing", "shares", "moves", "bytes written", "per moved byte"):
        table.add_column(name, justify="right")
    steps = [("cold start", figures.cold_start)]
    steps += [(f"worker {number} dies", each) for number, each in enumerate(figures.deaths, 1)]
    steps += [(f"item {number} is added", each) for number, each in enumerate(figures.added, 1)]
    for what, step in steps:
        if step is not None:
            table.add_row(
                what,
                f"{step.seconds:.3f}",
                f"{step.quiet_s:.1f}",
                f"{step.rebalance_s:.3f}",
                f"{step.shares:,}",
                f"{step.moves:,}",
                f"{step.written_bytes:,}",
                f"{step.ratio:.1f}",
            )
    return table


def _goals(found: list[Goal]) -> Table:
    table = Table(title="goals, for 1000 workers and 1,000,000 items", title_justify="left")
    table.add_column("what")
    for name in ("found", "at most", ""):
        table.add_column(name, justify="right")
    for goal in found:
        verdict = Text("met", style="green") if goal.met else Text("missed", style="red")
        table.add_row(goal.what, f"{goal.found:,.3f} {goal.unit}", f"{goal.goal:,g} {goal.unit}", verdict)
    return table
