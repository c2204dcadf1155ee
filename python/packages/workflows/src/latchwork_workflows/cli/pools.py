"""`latchwork workflows pools`: how many tasks of a pool, or of a project, run at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from latchwork.spi import (
    Grid,
    Json,
    Line,
    command,
    counted,
    group,
    listed,
    say,
    say_json,
    show,
    told,
    utc_text,
)
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, StoreUrl, client_of, home_of

if TYPE_CHECKING:
    from latchwork_workflows import ActiveTask, Pool

Name = Annotated[str, typer.Argument(metavar="POOL", help="What tasks name as pool, or @PROJECT.")]
Waiting = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many waiting tasks at most.")]


@command("latchwork workflows pools list", "latchwork workflows pools list --json")
def list_(
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List pools: their sizes, how many of their tasks run and wait, and the workflows that name them."""
    with client_of(home_of(home, database, store), url) as client:
        found = client.pools.list()
    empty = "no pools; a workflow that names one creates it, with a size of 1"
    right = ("size", "running", "waiting")
    listed("pools", found, _row, plain=lambda each: each.model_dump(), right=right, empty=empty, as_json=as_json)


def _row(found: Pool) -> dict[str, str]:
    names = ", ".join(found.workflows[:5])
    more = f" and {len(found.workflows) - 5} more" if len(found.workflows) > 5 else ""
    return {
        "pool": found.name,
        "size": str(found.size),
        "running": "?" if found.used is None else str(found.used),
        "waiting": str(found.waiting),
        "used by": names + more if found.active is None else f"the project ({found.admission})",
    }


@command("latchwork workflows pools show warehouse", "latchwork workflows pools show @billing --json")
def show_(
    name: Name,
    *,
    limit: Waiting = 20,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show the tasks that hold the slots of a pool, and the tasks that wait for one, the next one first."""
    with client_of(home_of(home, database, store), url) as client:
        found = client.pools.get(name, most=limit)
    if as_json:
        say_json(found.model_dump())
        return
    used = "?" if found.used is None else found.used
    show(Line(f"pool {name}: {used} of {counted(found.size, 'slot')} taken, {found.waiting} waiting", "bold"))
    if found.holders is None:
        say("the store cannot be reached: the holders are not known")
    elif found.holders:
        say("held by")
        show(Grid([{**_task(each), "worker": each.worker} for each in found.holders], right=("run",)))
    if found.queue:
        left = found.waiting - len(found.queue)
        say("next" if not left else f"next, and {left} more")
        show(Grid(map(_task, found.queue), right=("run",)))


def _task(each: ActiveTask) -> dict[str, str]:
    return {
        "task": each.name or "(another project's)",
        "workflow": each.workflow,
        "run": str(each.run or ""),
        "since": "" if each.since is None else utc_text(each.since),
    }


@command(
    "latchwork workflows pools set warehouse --size 3",
    "latchwork workflows pools set @billing --size 20 --admission precompute",
)
def set_(
    name: Name,
    *,
    size: Annotated[int, typer.Option(min=1, max=10_000, help="How many of its tasks run at a time.")],
    admission: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="What a start does while a project's pool is full: suspend (its tasks wait), fail, or precompute "
            "(it waits until its tasks fit).",
        ),
    ] = "suspend",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Create or change a pool. Tasks that run beyond a smaller size are not stopped."""
    with client_of(home_of(home, database, store), url) as client:
        made = client.pools.set(name, size, admission)
    told(f"pool {name} has a size of {size}", made.model_dump(), as_json=as_json)


@command("latchwork workflows pools rm warehouse")
def rm(
    name: Name,
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Remove a pool that no workflow names."""
    with client_of(home_of(home, database, store), url) as client:
        client.pools.remove(name)
    told(f"pool {name} is removed", {"name": name, "removed": True}, as_json=as_json)


pools_app = group("Pools: how many of their tasks run at a time.", list=list_, show=show_, set=set_, rm=rm)
