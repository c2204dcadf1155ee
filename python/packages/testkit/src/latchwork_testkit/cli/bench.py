"""`latchwork bench`: how fast this machine, and a cluster on a store, is."""

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
    workers: Annotated[int, typer.Option(min=2, help="Workers to share the items out to.")] = 100,
    items: Annotated[int, typer.Option(min=1, help="Work items to place.")] = 100_000,
    repeats: Annotated[int, typer.Option(min=1, help="Times to measure each; the fastest counts.")] = 3,
    peers: Annotated[
        bool, typer.Option(help="Compare with numpy, xxhash, uhashring and tooz, those that are installed.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Time hashing and balancing: how long it takes to place items on workers.

    Nothing is stored and no server is needed. The least of the repeats counts; slow peers place fewer of the items, and
    the rate is what is compared.
    """
    with Progress(console=console(err=True), transient=True, disable=not sys.stderr.isatty()) as shown:
        others = bench.peers(workers, items) if peers else []
        task = shown.add_task("starting", total=bench.steps(repeats, len(others)))
        figures = bench.run(
            workers, items, repeats, others, progress=lambda what: shown.update(task, advance=1, description=what)
        )
    if as_json:
        say_json(figures)
        return
    about = f"{counted(items, 'item')}, {counted(workers, 'worker')}, the best of {repeats}"
    show(
        f"{about}; {', '.join(figures['machine'].values())}",
        "",
        _table("the owner of each key", figures["hashing"]),
        "",
        _table("kept in Rust, one thread", figures["kept"]),
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
