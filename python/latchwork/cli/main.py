"""The application. `entry.py` is the console script that calls it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import latchwork
from latchwork.cli.commands import LazyGroup
from latchwork.cli.environment import hide_environment
from latchwork.cli.options import Debug, format_examples


def application() -> typer.Typer:
    """Create the command-line application with all its commands."""
    app = typer.Typer(
        name="latchwork",
        cls=LazyGroup,
        no_args_is_help=True,
        rich_markup_mode=None,  # one line per error, whatever the terminal's width
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=format_examples(
            "latchwork demo",
            "latchwork run jobs:report --url sqlite:///jobs.db --node-id n1",
            "latchwork status --url sqlite:///jobs.db",
        ),
    )
    app.callback()(root)
    return app


def _print_version(value: bool) -> None:
    if value:
        print(f"latchwork {latchwork.__version__}")  # noqa: T201 - nothing of a store
        raise typer.Exit


def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Coordination for Python over etcd, ZooKeeper, PostgreSQL or SQLite: run job clusters, and inspect them.

    Exit codes: 0 ok, 1 failure, 2 usage (fix the call), 3 no cluster under that root, 130 interrupted.
    """


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    hide_environment()
    sys.exit(application()(prog_name="latchwork"))
