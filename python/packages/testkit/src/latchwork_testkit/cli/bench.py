"""The command `latchwork bench`, which measures this machine and clusters."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.progress import Progress

from latchwork.spi import Grid, Json, command, console, counted, group, say_json, show
from latchwork_testkit.assign_bench import bench
from latchwork_testkit.cli.bench_cluster import cluster


@command(
    "latchwork bench assign",
    "latchwork bench assign --workers 1000 --items 1000000",
    "latchwork bench assign --items 50000 --json",
)
def assign(
    *,
    workers: Annotated[int, typer.Option(min=2, help="Number of workers.")] = 100,
    items: Annotated[int, typer.Option(min=1, help="Number of work items to assign.")] = 100_000,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs of each. The fastest counts.")] = 3,
    peers: Annotated[
        bool, typer.Option(help="Compare with numpy, xxhash, uhashring and tooz, if they are installed.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Measure how long it takes to assign work items to workers.

    Stores nothing and needs no server. The fastest of the repeats counts. Slow libraries assign only some of the items,
    so compare the rates.
    """
    with Progress(console=console(err=True), transient=True, disable=not sys.stderr.isatty()) as display:
        others = bench.build_library_candidates(workers, items) if peers else []
        task = display.add_task("starting", total=bench.count_progress_calls(repeats, len(others)))
        figures = bench.run_benchmark(
            workers, items, repeats, others, progress=lambda name: display.update(task, advance=1, description=name)
        )
    if as_json:
        say_json(figures)
        return
    size = f"{counted(items, 'item')}, {counted(workers, 'worker')}, fastest of {repeats}"
    show(
        f"{size}; {', '.join(figures['machine'].values())}",
        "",
        _table("find the owner of each key", figures["hashing"]),
        "",
        _table("change an Assignment in Rust, one thread", figures["stateful"]),
        "",
        _table("strategies, 10 jobs", figures["strategies"]),
    )


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Grid:
    more = [name for name in ("moves", "ratio") if any(name in row for row in rows)]
    cells = []
    for row in rows:
        others = {name: f"{row[name]:,}" if name == "moves" else f"{row[name]:.4f}" for name in more}
        times = {"seconds": f"{row['seconds']:.4f}", "items/s": f"{row['items'] / row['seconds']:,.0f}"}
        cells.append({"what": row["name"], "items": f"{row['items']:,}", **times, **others})
    return Grid(cells, right=("items", "seconds", "items/s", *more), title=title)


bench_app = group("Measure this machine, and a store.", assign=assign, cluster=cluster)
