"""The command `latchwork bench cluster`, which measures a cluster of many workers on a store."""

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
    require_url,
    say_json,
    show,
)
from latchwork_testkit.cluster_bench import BenchOptions, Figures, Goal, compare_with_goals, measure


class Strategy(enum.StrEnum):
    """A built-in assignment strategy, by its name."""

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
    workers: Annotated[int, typer.Option(min=2, help="Number of workers.")] = 100,
    items: Annotated[int, typer.Option(min=1, help="Number of work items of all jobs together.")] = 10_000,
    jobs: Annotated[int, typer.Option(min=1, help="Number of jobs. Every worker can run every job.")] = 10,
    deaths: Annotated[int, typer.Option(min=0, help="Number of workers that die, one after another.")] = 3,
    processes: Annotated[int, typer.Option(min=1, help="Number of processes that run the workers.")] = 2,
    strategy: Annotated[
        list[Strategy] | None,
        typer.Option(
            help="Strategy that assigns the items. Repeat it to use several in turn over the jobs.  [default: balanced]"
        ),
    ] = None,
    lock_owners: Annotated[
        int, typer.Option(min=0, help="Number of workers that hold the locks of their items while the cluster is idle.")
    ] = 20,
    debounce_s: Annotated[
        float,
        typer.Option(
            "--debounce-s", min=0.0, help="Seconds that the manager waits for further changes before it reassigns."
        ),
    ] = 0.3,
    idle_s: Annotated[
        float, typer.Option("--idle-s", min=0.0, help="Seconds for which writes are counted while the cluster is idle.")
    ] = 10.0,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=1.0, help="Maximum seconds of each step.")] = 300.0,
    check: Annotated[bool, typer.Option("--check", help="Exit with status 1 if a goal is missed.")] = False,
    as_json: Json = False,
) -> None:
    """Measure how fast the job manager assigns work items in a cluster of this size, and how much it writes for that.

    The job manager and the store are real. The workers register, watch and decode their assignments with the code of
    real workers, but run no jobs, so that a few processes can run a thousand of them. A worker that dies has its own
    session. The steps are: the workers register, all items are assigned at once (cold start), the cluster is idle while
    some workers hold the locks of their items, some workers die, and some items are added. The command fails unless,
    after each step, every item is assigned to exactly one worker.

    The goals are for 1000 workers, 1,000,000 items and 100 jobs. All keys are below a new key under the URL's root, and
    are removed at the end. Several processes must be able to share the store, so memory:// cannot be used. The default
    size takes about half a minute. The full size takes some minutes and, on etcd, more than 100 MB of the server's
    quota.
    """
    quiet_logs()
    url = require_url(url)
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
    figures = _measure_with_progress(options)
    if as_json:
        say_json(figures.to_json())
    else:
        show(*_report(figures))
    if check and not all(goal.is_met for goal in compare_with_goals(figures)):
        raise typer.Exit(FAILURE)


def _measure_with_progress(options: BenchOptions) -> Figures:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task("starting", total=None)
        return measure(options, lambda what: shown.update(task, description=what))


def _report(figures: Figures) -> list[RenderableType]:
    options = figures.options
    size = [counted(options.workers, "worker"), counted(options.items, "item"), counted(options.jobs, "job")]
    strategies = " and ".join(options.strategies)
    report: list[RenderableType] = [
        f"{figures.backend}: {', '.join(size)}, {strategies}; debounce time {options.debounce_s:g} s",
        "",
        _step_table(figures),
        "",
    ]
    if figures.takeover_s is not None:
        report.append(f"a new manager took over in {figures.takeover_s:.3f} s, debounce time included")
    idle = figures.idle
    if idle is not None:
        report.append(
            f"idle for {idle.seconds:g} s: {counted(idle.changes, 'key')} changed, "
            f"{counted(idle.renewals, 'renewal')} of {counted(idle.lock_owners, 'lock owner')} with "
            f"{counted(idle.locks, 'lock')}, {counted(idle.commits, 'transaction')} "
            "(on ZooKeeper, renewals of sessions are transactions)"
        )
    return [*report, "", _goal_table(compare_with_goals(figures))]


def _step_table(figures: Figures) -> Grid:
    steps = [("cold start", figures.cold_start)]
    steps += [(f"worker {number} dies", each) for number, each in enumerate(figures.deaths, 1)]
    steps += [(f"item {number} is added", each) for number, each in enumerate(figures.added, 1)]
    rows = [
        {
            "what": what,
            "seconds": f"{step.seconds:.3f}",
            "debounce": f"{step.quiet_s:.1f}",
            "rebalance": f"{step.rebalance_s:.3f}",
            "assignments": f"{step.assignments:,}",
            "moves": f"{step.moves:,}",
            "bytes written": f"{step.written_bytes:,}",
            "per moved byte": f"{step.write_amplification:.1f}",
        }
        for what, step in steps
        if step is not None
    ]
    numbers = ("seconds", "debounce", "rebalance", "assignments", "moves", "bytes written", "per moved byte")
    return Grid(rows, right=numbers, title="seconds until the last worker has decoded its assignment")


def _goal_table(measured: list[Goal]) -> Grid:
    rows = (
        {
            "what": goal.what,
            "measured": f"{goal.found:,.3f} {goal.unit}",
            "goal": f"{goal.goal:,g} {goal.unit}",
            "result": "met" if goal.is_met else "missed",
        }
        for goal in measured
    )
    return Grid(rows, right=("measured", "goal"), title="goals (upper limits) for 1,000 workers and 1,000,000 items")
