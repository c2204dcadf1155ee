"""`latchwork bench cluster`: how a cluster of many workers does on a store."""

from __future__ import annotations

import enum
import sys
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from latchwork.spi import (
    FAILURE,
    Grid,
    Json,
    Url,
    UsageError,
    command,
    console,
    counted,
    quiet_logs,
    say_json,
    show,
    wanted_url,
)
from latchwork_testkit.cluster_bench import BenchOptions, Figures, Goal, goals, measure


class Strategy(enum.StrEnum):
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
        say_json(figures.to_json())
    else:
        show(*_parts(figures))
    if check and not all(goal.met for goal in goals(figures)):
        raise typer.Exit(FAILURE)


def _measured(options: BenchOptions) -> Figures:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task("starting", total=None)
        return measure(options, lambda what: shown.update(task, description=what))


def _parts(figures: Figures) -> list[RenderableType]:
    options = figures.options
    size = [counted(options.workers, "worker"), counted(options.items, "item"), counted(options.jobs, "job")]
    strategies = " and ".join(options.strategies)
    found: list[RenderableType] = [
        f"{figures.backend}: {', '.join(size)}, {strategies}; quiet time {options.debounce_s:g} s",
        "",
        _steps(figures),
        "",
    ]
    if figures.takeover_s is not None:
        found.append(f"a new manager had read everything, its quiet time included, after {figures.takeover_s:.3f} s")
    idle = figures.idle
    if idle is not None:
        found.append(
            f"nothing happens for {idle.seconds:g} s: {counted(idle.changes, 'key')} changed beside "
            f"{counted(idle.renewals, 'renewal')} of {counted(idle.lock_owners, 'lock owner')}, who hold "
            f"{counted(idle.locks, 'lock')}; {counted(idle.commits, 'transaction')} "
            "(renewals of sessions are such on ZooKeeper)"
        )
    return [*found, "", _goals(goals(figures))]


def _steps(figures: Figures) -> Grid:
    steps = [("cold start", figures.cold_start)]
    steps += [(f"worker {number} dies", each) for number, each in enumerate(figures.deaths, 1)]
    steps += [(f"item {number} is added", each) for number, each in enumerate(figures.added, 1)]
    rows = [
        {
            "what": what,
            "seconds": f"{step.seconds:.3f}",
            "of it waiting": f"{step.quiet_s:.1f}",
            "deciding, writing": f"{step.rebalance_s:.3f}",
            "shares": f"{step.shares:,}",
            "moves": f"{step.moves:,}",
            "bytes written": f"{step.written_bytes:,}",
            "per moved byte": f"{step.ratio:.1f}",
        }
        for what, step in steps
        if step is not None
    ]
    numbers = ("seconds", "of it waiting", "deciding, writing", "shares", "moves", "bytes written", "per moved byte")
    return Grid(rows, right=numbers, title="until the last worker has decoded its share")


def _goals(found: list[Goal]) -> Grid:
    rows = (
        {
            "what": goal.what,
            "found": f"{goal.found:,.3f} {goal.unit}",
            "at most": f"{goal.goal:,g} {goal.unit}",
            "verdict": "met" if goal.met else "missed",
        }
        for goal in found
    )
    return Grid(rows, right=("found", "at most"), title="goals, for 1,000 workers and 1,000,000 items")
