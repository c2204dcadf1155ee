"""The commands: where each one is, and how it is loaded when it is called.

`--help` lists them without loading any. Other distributions add commands by the entry point group
``latchwork.commands``: each entry point is a ``CommandSpec`` in a module that is quick to import. The metadata of
distributions is read only for `--help` and for unknown names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from latchwork.cli.options import add_commands

ENTRY_POINTS = "latchwork.commands"
#: What to install for the commands of our add-ons.
ADD_ONS = {"bench": "latchwork-testkit", "workflows": "latchwork[workflows]"}


class CommandSpec(NamedTuple):
    """A command that is not loaded yet.

    Attributes:
        place: Its module and the name in it, as ``module:name``: a function decorated with ``command``, or a group.
        summary: Its line in the list of commands: the first sentence of its docstring.
        demo: Its part of `latchwork demo`, as ``module:name``; "" if it has none.
    """

    place: str
    summary: str
    demo: str = ""

    def load(self, name: str) -> Any:
        """Import the command and return it, so that the parser can call it.

        Args:
            name: Name by which the command is called.
        """
        found = import_object(self.place)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            add_commands(app, **{name: found})
        return typer.main.get_group(app).commands[name]


def import_object(path: str) -> Any:
    """Import a module, and return an object from it.

    Args:
        path: Path of the object, as ``module:name``.
    """
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def format_missing_addon_error(name: str) -> str:
    """Return the error message for a command whose add-on is not installed."""
    return f'error: the command {name} is not installed; run: pip install "{ADD_ONS[name]}"'


#: Latchwork's own, in the order in which `--help` lists them.
OWN: dict[str, CommandSpec] = {
    "backends": CommandSpec(
        "latchwork.cli.screens.backends:backends",
        "Show the installed backends, with the capabilities and limits that they declare",
    ),
    "demo": CommandSpec(
        "latchwork.cli.demo:demo",
        "Run a cluster of worker processes, kill -9 one of them halfway, and prove that nothing was lost",
    ),
    "doctor": CommandSpec(
        "latchwork.cli.screens.doctor:doctor",
        "Check this installation, and with --url a store: versions, extras, limits, reachability and permissions",
    ),
    "drain": CommandSpec(
        "latchwork.cli.jobs:drain",
        "Move a node's items to other nodes, and wait until the node no longer runs any of them",
    ),
    "elect": CommandSpec(
        "latchwork.cli.processes:elect",
        "Run a command while this process leads, and exit with its exit code",
    ),
    "forget": CommandSpec(
        "latchwork.cli.screens.show:forget",
        "Remove the records of an unused primitive",
    ),
    "lock": CommandSpec(
        "latchwork.cli.processes:lock",
        "Run a command while a lock is held, and exit with its exit code",
    ),
    "new": CommandSpec(
        "latchwork.cli.new:new",
        "Create a small starter project with tests and deployment files",
    ),
    "restart": CommandSpec(
        "latchwork.cli.jobs:restart",
        "Announce a restart of a node: its items move to other nodes now, and back after the restart",
    ),
    "run": CommandSpec(
        "latchwork.cli.run:run",
        "Run one node of a job cluster until SIGTERM or Ctrl-C, then hand over its items and exit with 0",
    ),
    "show": CommandSpec(
        "latchwork.cli.screens.show:show",
        "Show a primitive: its holders, its waiters and its contents",
    ),
    "status": CommandSpec(
        "latchwork.cli.screens.status:status",
        "Show a job cluster: the leader, the nodes, which items run where, and which locks are held",
    ),
    "tree": CommandSpec(
        "latchwork.cli.screens.tree:tree",
        "Show all keys under the root, with their sizes and the sessions that they are bound to",
    ),
    "why": CommandSpec(
        "latchwork.cli.screens.why:why",
        "Explain where a work item is, why it is there, and why it does or does not run",
    ),
    "locks": CommandSpec(
        "latchwork.cli.screens.why:locks",
        "Show the holders of item locks, and release a lock by force",
    ),
    "jobs": CommandSpec(
        "latchwork.cli.jobs:jobs_app",
        "Enable and disable jobs, and change their options, while the cluster runs",
    ),
    "once": CommandSpec(
        "latchwork.cli.screens.show:once_app",
        "Actions that run once in a cluster",
    ),
    "plans": CommandSpec(
        "latchwork.cli.systems.plans:plans_app",
        "Plans: durable graphs of calls, which workers on any machine run",
    ),
    "settings": CommandSpec(
        "latchwork.cli.jobs:settings_app",
        "Show and change the settings of the whole cluster",
    ),
    "executor": CommandSpec(
        "latchwork.cli.systems.executor:executor_app",
        "Calls that one process submits and another one runs: workers, tasks, results, dead letters",
    ),
    "workers": CommandSpec(
        "latchwork.cli.systems.workers:workers_app",
        "Worker groups: N processes with a rank each that meet at barriers and restart together when one is lost",
    ),
}


def list_addon_commands() -> dict[str, CommandSpec]:
    """Return the commands that other distributions add, by name, sorted."""
    from importlib.metadata import entry_points  # reads every distribution's metadata

    found = sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name)
    return {each.name: each.load() for each in found}


def list_commands() -> dict[str, CommandSpec]:
    """Return all commands by name, in the order in which `--help` lists them. No command is imported."""
    return {**OWN, **list_addon_commands(), **OWN}  # no other distribution replaces one of ours


class Commands(MutableMapping[str, Any]):
    """The commands by name, each loaded on first use. Only iteration includes those of other distributions."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            spec = OWN.get(name) or list_addon_commands()[name]
            self._loaded[name] = spec.load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list_commands())

    def __len__(self) -> int:
        return len(list_commands())


class LazyGroup(TyperGroup):
    """The group of all commands. Its `--help` loads none of them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name, or None if there is none.

        If the command belongs to an add-on that is not installed, print how to install it, and exit with 1.
        """
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in ADD_ONS:
            sys.exit(format_missing_addon_error(cmd_name))
        return found

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the parser calls it with one
        """Return the names of the commands, without importing them."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - likewise
        """Write the list of commands for `--help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, spec.summary) for name, spec in list_commands().items()])
