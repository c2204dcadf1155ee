"""`latchwork workflows groups`: how many tasks of a group run at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from latchwork.cli.options import Json, command, group
from latchwork.cli.text import Grid, say, say_json, show, told
from latchwork.cli.workflows.opening import DatabaseUrl, HomeDir, StoreUrl, client_of, home_of

if TYPE_CHECKING:
    from latchwork.workflows import GroupSeen

Name = Annotated[str, typer.Argument(metavar="GROUP", help="What tasks name as task_group.")]


@command("latchwork workflows groups list", "latchwork workflows groups list --json")
def list_(*, home: HomeDir = None, database: DatabaseUrl = None, store: StoreUrl = None, as_json: Json = False) -> None:
    """List task groups: their sizes, how many of their tasks run, and the workflows that name them."""
    with client_of(home_of(home, database, store)) as client:
        found = client.groups()
    if as_json:
        say_json({"groups": [each._asdict() for each in found]})
    elif found:
        show(Grid(map(_row, found), right=("size", "running")))
    else:
        say("no task groups; a workflow that names one makes it, of size 1")


def _row(found: GroupSeen) -> dict[str, str]:
    names = ", ".join(found.workflows[:5])
    return {
        "group": found.name,
        "size": str(found.size),
        "running": "?" if found.used is None else str(found.used),
        "workflows": f"{names} and {len(found.workflows) - 5} more" if len(found.workflows) > 5 else names or "-",
    }


@command("latchwork workflows groups set warehouse --size 3")
def set_(
    name: Name,
    *,
    size: Annotated[int, typer.Option(min=1, max=10_000, help="So many of its tasks run at a time.")],
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Make a task group, or change its size; what runs beyond a smaller size ends by itself."""
    with client_of(home_of(home, database, store)) as client:
        client.set_group(name, size)
    told(f"task group {name} has size {size}", {"group": name, "size": size}, as_json=as_json)


@command("latchwork workflows groups remove warehouse")
def remove(
    name: Name,
    *,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Remove a task group that no workflow names."""
    with client_of(home_of(home, database, store)) as client:
        client.remove_group(name)
    told(f"task group {name} is gone", {"group": name, "removed": True}, as_json=as_json)


groups_app = group("Task groups: so many of their tasks run at a time.", list=list_, set=set_, remove=remove)
