"""The commands put together; `entry.py` is what the console script calls."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import latchwork
from latchwork.cli import jobs, nodes, run, settings
from latchwork.cli.apps import bench, demo
from latchwork.cli.options import Debug, add, examples
from latchwork.cli.processes import owned
from latchwork.cli.screens import show, status, tree, why
from latchwork.cli.systems import executor, plans, workers
from latchwork.cli.text import say
from latchwork.cli.workflows.app import workflows_app

app = typer.Typer(
    name="latchwork",
    no_args_is_help=True,
    rich_markup_mode=None,  # one line per error, whatever the terminal's width
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "latchwork demo",
        "latchwork run jobs:report --url sqlite:///jobs.db --node-id n1",
        "latchwork status --url sqlite:///jobs.db",
    ),
)


def _print_version(value: bool) -> None:
    if value:
        say(f"latchwork {latchwork.__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Coordination for Python over etcd, ZooKeeper or SQLite: run job clusters, and look into them.

    Exit codes: 0 ok, 1 failure, 2 usage (fix the call), 3 no cluster under that root, 130 interrupted.
    """


add(
    app,
    demo=demo.demo,
    drain=nodes.drain,
    elect=owned.elect,
    lock=owned.lock,
    restart=nodes.restart,
    run=run.run,
    show=show.show,
    status=status.status,
    tree=tree.tree,
    why=why.why,
    locks=why.locks,
)
app.add_typer(bench.bench_app, name="bench")
app.add_typer(jobs.jobs_app, name="jobs")
app.add_typer(show.once_app, name="once")
app.add_typer(plans.plans_app, name="plans")
app.add_typer(settings.settings_app, name="settings")
app.add_typer(executor.executor_app, name="executor")
app.add_typer(workers.workers_app, name="workers")
app.add_typer(workflows_app, name="workflows")


def main() -> None:
    """Run the command line on this process's arguments, and exit."""
    sys.exit(app(prog_name="latchwork"))
