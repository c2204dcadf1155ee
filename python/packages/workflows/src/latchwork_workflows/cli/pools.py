"""`latchwork workflows pools`: the limits for running tasks of a pool or a project."""

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
    print_change,
    print_list,
    say,
    say_json,
    show,
    utc_text,
)
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, StoreUrl, open_client, resolve_home

if TYPE_CHECKING:
    from latchwork_workflows import ActiveTask, Pool

Name = Annotated[str, typer.Argument(metavar="POOL", help="The name of a pool, or @PROJECT for the pool of a project.")]
Waiting = Annotated[int, typer.Option("--limit", min=1, max=1000, help="The maximum number of waiting tasks to show.")]


@command("latchwork workflows pools list", "latchwork workflows pools list --json")
def list_pools(
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List pools with their sizes, their numbers of running and waiting tasks, and the workflows that name them."""
    with open_client(resolve_home(home, database, store), url) as client:
        found = client.pools.list()
    empty = "no pools; applying a workflow that names a pool creates it with a size of 1"
    right = ("size", "running", "waiting")
    print_list("pools", found, _row, plain=lambda each: each.model_dump(), right=right, empty=empty, as_json=as_json)


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
def show_pool(
    name: Name,
    *,
    limit: Waiting = 20,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show the tasks that hold the slots of a pool, and the next tasks that wait for one."""
    with open_client(resolve_home(home, database, store), url) as client:
        found = client.pools.get(name, limit=limit)
    if as_json:
        say_json(found.model_dump())
        return
    used = "?" if found.used is None else found.used
    show(Line(f"pool {name}: {used} of {counted(found.size, 'slot')} in use, {found.waiting} waiting", "bold"))
    if found.holders is None:
        say("the store cannot be reached, so the slot holders are not known")
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
def set_pool(
    name: Name,
    *,
    size: Annotated[int, typer.Option(min=1, max=10_000, help="The maximum number of its tasks that run at a time.")],
    admission: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="How a run starts while the pool of its project is full: suspend (its tasks wait), fail, "
            "or precompute (it waits until its tasks fit).",
        ),
    ] = "suspend",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Create or change a pool. Tasks that run beyond a smaller size are not stopped."""
    with open_client(resolve_home(home, database, store), url) as client:
        made = client.pools.set(name, size, admission)
    print_change(f"pool {name} has a size of {size}", made.model_dump(), as_json=as_json)


@command("latchwork workflows pools rm warehouse")
def remove_pool(
    name: Name,
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Remove a pool that no workflow names."""
    with open_client(resolve_home(home, database, store), url) as client:
        client.pools.remove(name)
    print_change(f"pool {name} deleted", {"name": name, "removed": True}, as_json=as_json)


pools_app = group(
    "Pools, which limit how many tasks run at a time.", list=list_pools, show=show_pool, set=set_pool, rm=remove_pool
)
