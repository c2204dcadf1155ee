"""`latchwork workflows limits`: how many tasks of a project run at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from latchwork.spi import Json, UsageError, command, listed, say_json, told
from latchwork_workflows.cli.groups import held_document, say_held
from latchwork_workflows.cli.opening import DatabaseUrl, HomeDir, StoreUrl, client_of, home_of

if TYPE_CHECKING:
    from latchwork_workflows import LimitSeen


@command(
    "latchwork workflows limits",
    "latchwork workflows limits billing --max-running-tasks 20",
    "latchwork workflows limits billing --max-running-tasks 20 --admission precompute",
    "latchwork workflows limits billing --remove",
)
def limits(
    project: Annotated[
        str | None, typer.Argument(metavar="PROJECT", show_default=False, help="Whose limit.  [unless given: all]")
    ] = None,
    *,
    max_running_tasks: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, show_default=False, help="So many of its tasks run at a time, from now on."),
    ] = None,
    admission: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="What a start does while it has as many: suspend (its tasks wait), fail, or precompute (it waits).",
        ),
    ] = "suspend",
    remove: Annotated[bool, typer.Option("--remove", help="Limit it no more.")] = False,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show the limits of projects, or change one; of one project also who holds its slots, and who waits for one."""
    if remove and max_running_tasks is not None:
        raise UsageError("give --max-running-tasks or --remove, and not both")
    if project is None and (remove or max_running_tasks is not None):
        raise UsageError("name the project whose limit is to be changed")
    with client_of(home_of(home, database, store)) as client:
        if project is not None and max_running_tasks is not None:
            client.set_limit(project, max_running_tasks, admission)
            document = {"project": project, "max_running_tasks": max_running_tasks, "admission": admission}
            told(f"project {project}: {max_running_tasks} tasks at a time, {admission}", document, as_json=as_json)
            return
        if project is not None and remove:
            client.remove_limit(project)
            told(f"project {project} has no limit any more", {"project": project, "removed": True}, as_json=as_json)
            return
        found = client.limits(project or "")
        held = client.limit(project)[1] if project is not None and found else None
    if as_json and held is not None:
        say_json({"limits": [{**each._asdict(), **held_document(held)} for each in found]})
        return
    right = ("most", "running", "waiting", "in hands")
    empty = "no limits" if project is None else f"project {project} has no limit"
    listed("limits", found, _row, plain=lambda each: each._asdict(), right=right, empty=empty, as_json=as_json)
    if held is not None:
        say_held(held)


def _row(found: LimitSeen) -> dict[str, str]:
    return {
        "project": found.project,
        "most": str(found.max_running_tasks),
        "admission": found.admission,
        "running": "?" if found.running is None else str(found.running),
        "waiting": str(found.waiting),
        "in hands": str(found.in_hands),
    }
