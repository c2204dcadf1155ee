"""`latchwork bench`: how fast this machine is."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from latchwork.cli.options import Debug, Json, examples
from latchwork.cli.outcome import reported


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Measure this machine.", no_args_is_help=True, rich_markup_mode=None)
    group.command(
        name="assign",
        epilog=examples(
            "latchwork bench assign",
            "latchwork bench assign --workers 1000 --items 1000000",
            "latchwork bench assign --items 50000 --json",
        ),
    )(assign)
    app.add_typer(group, name="bench")


@reported
def assign(
    *,
    workers: Annotated[int, typer.Option(min=1, help="Workers to share the items out to.")] = 100,
    items: Annotated[int, typer.Option(min=1, help="Work items to place.")] = 100_000,
    repeats: Annotated[int, typer.Option(min=1, help="Times to measure each; the fastest counts.")] = 3,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001 - its callback has done all there is to do
) -> None:
    """Time hashing and balancing: how long it takes to place items on workers.

    Nothing is stored and no server is needed.
    """
    from latchwork.assignment import bench

    figures = bench.run(workers, items, repeats)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    Console(highlight=False).print(_table(workers, items, figures))


def _table(workers: int, items: int, figures: dict[str, object]) -> Table:
    table = Table(title=f"{items:,} items on {workers:,} workers")
    table.add_column("what")
    table.add_column("figure", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.4g}" if isinstance(value, float) else str(value))
    return table
