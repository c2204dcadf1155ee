"""`latchwork workflows groups`: how many tasks of a group run at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latchwork.spi import (
    Grid,
    Json,
    Line,
    command,
    counted,
    group,
    listed,
    renamed,
    say,
    say_json,
    show,
    told,
    utc_text,
)
from latchwork_workflows.cli.opening import DatabaseUrl, HomeDir, StoreUrl, client_of, home_of

if TYPE_CHECKING:
    from latchwork_workflows import GroupSeen, Held, SlotTask

Name = Annotated[str, typer.Argument(metavar="GROUP", help="What tasks name as task_group.")]
#: How many of those that wait are shown.
Waiting = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many of those that wait at most.")]


@command("latchwork workflows groups list", "latchwork workflows groups list --json")
def list_(*, home: HomeDir = None, database: DatabaseUrl = None, store: StoreUrl = None, as_json: Json = False) -> None:
    """List task groups: their sizes, how many of their tasks run and wait, and the workflows that name them."""
    with client_of(home_of(home, database, store)) as client:
        found = client.groups()
    empty = "no task groups; a workflow that names one makes it, of size 1"
    right = ("size", "running", "waiting")
    listed("groups", found, _row, plain=lambda each: each._asdict(), right=right, empty=empty, as_json=as_json)


def _row(found: GroupSeen) -> dict[str, str]:
    names = ", ".join(found.workflows[:5])
    more = f" and {len(found.workflows) - 5} more" if len(found.workflows) > 5 else ""
    return {
        "group": found.name,
        "size": str(found.size),
        "running": "?" if found.used is None else str(found.used),
        "waiting": str(found.waiting),
        "workflows": names + more,
    }


@command("latchwork workflows groups show warehouse", "latchwork workflows groups show warehouse --json")
def show_(
    name: Name,
    *,
    limit: Waiting = 20,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show who holds the slots of a task group, and who waits for one, the next one first."""
    with client_of(home_of(home, database, store)) as client:
        seen, held = client.group(name, most=limit)
    if as_json:
        say_json({**seen._asdict(), **held_document(held)})
        return
    used = "?" if seen.used is None else seen.used
    show(Line(f"task group {name}: {used} of {counted(seen.size, 'slot')} taken, {seen.waiting} waiting", "bold"))
    say_held(held)


def held_document(held: Held) -> Mapping[str, Any]:
    """Who holds and who waits, for programs."""
    holders = None if held.holders is None else [each._asdict() for each in held.holders]
    return {"holders": holders, "queue": [each._asdict() for each in held.waiting]}


def say_held(held: Held) -> None:
    """Who holds and who waits, for people."""
    if held.holders is None:
        say("the store cannot be asked: who holds them is not known")
    elif held.holders:
        say("held by")
        show(Grid([{**_slot(each), "worker": each.worker} for each in held.holders], right=("run",)))
    if held.waiting:
        left = held.waiting_count - len(held.waiting)
        say("next" if not left else f"next, and {left} more")
        show(Grid(map(_slot, held.waiting), right=("run",)))


def _slot(each: SlotTask) -> dict[str, str]:
    return {
        "task": each.name or "(another project's)",
        "workflow": each.workflow,
        "run": str(each.run or ""),
        "since": "" if each.since is None else utc_text(each.since),
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


@command("latchwork workflows groups rm warehouse")
def rm(
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


groups_app = group("Task groups: so many of their tasks run at a time.", list=list_, show=show_, set=set_, rm=rm)
renamed(groups_app, remove=rm)
