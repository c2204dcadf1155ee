"""The commands put together; `entry.py` is what the console script calls."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

import latchwork
from latchwork.cli.environment import hide_settings
from latchwork.cli.options import Debug, add, examples
from latchwork.cli.text import say

#: Where each command and each group is, in the order in which `--help` lists them. What is called is imported alone:
#: all of them together take a second that nobody at a prompt, and no script, has to give.
_PLACES = {
    "demo": "apps.demo:demo",
    "drain": "nodes:drain",
    "elect": "processes.owned:elect",
    "lock": "processes.owned:lock",
    "restart": "nodes:restart",
    "run": "run:run",
    "show": "screens.show:show",
    "status": "screens.status:status",
    "tree": "screens.tree:tree",
    "why": "screens.why:why",
    "locks": "screens.why:locks",
    "bench": "apps.bench:bench_app",
    "jobs": "jobs:jobs_app",
    "once": "screens.show:once_app",
    "plans": "systems.plans:plans_app",
    "settings": "settings:settings_app",
    "executor": "systems.executor:executor_app",
    "workers": "systems.workers:workers_app",
    "workflows": "workflows.app:workflows_app",
}


def application(*names: str) -> typer.Typer:
    """The command line: with these commands and groups alone, or with all."""
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
    app.callback()(root)
    for name in names or _PLACES:
        module, _, attribute = _PLACES[name].partition(":")
        found = getattr(import_module(f"latchwork.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            add(app, **{name: found})
    return app


def _print_version(value: bool) -> None:
    if value:
        say(f"latchwork {latchwork.__version__}")
        raise typer.Exit


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


def called(words: list[str]) -> list[str]:
    """The command or group that these words of a command line call, if they call one: `--help` before it lists all."""
    first = next((word for word in words if word != "--debug"), "")
    return [first] if first in _PLACES else []


def main() -> None:
    """Run the command line on this process's arguments, and exit."""
    hide_settings()
    sys.exit(application(*called(sys.argv[1:]))(prog_name="latchwork"))
