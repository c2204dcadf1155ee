"""`latchwork why` and `latchwork locks`: explain where an item is, list locks, and release one by force."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from latchwork._base.text import normalize_utc_text, utc_text
from latchwork.cli.cluster import complete_job_ids, open_store, read_cluster_state
from latchwork.cli.options import Json, Url, command
from latchwork.cli.outcome import FAILURE, UsageError
from latchwork.cli.text import Grid, print_change, say, say_json, show
from latchwork.jobs import ClusterState, Control, LockView, read_audit
from latchwork.jobs import explain_item as explain
from latchwork.jobs.cron_progress import read_item_progress

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The ID of the job.", autocompletion=complete_job_ids)]
Item = Annotated[str, typer.Argument(metavar="ITEM", help="The item of the job.")]


@command("latchwork why report north --url etcd://127.0.0.1:2379/app")
def why(job: JobId, item: Item, *, url: Url = None, as_json: Json = False) -> None:
    """Explain where a work item is, why it is there, and why it does or does not run.

    The exit code is 1 for an item that the job does not have and that no node holds.
    """
    with open_store(url) as store:
        found = explain(
            read_cluster_state(store),
            Control(store).settings(),
            job,
            item,
            read_item_progress(store, job, item),
            now_s=time.time(),
        )
    if as_json:
        say_json(found.to_json())
    else:
        show(*(f"- {sentence}" for sentence in found.sentences))
    if not (found.in_pool or found.assigned or found.locked_by):
        raise typer.Exit(FAILURE)


@command(
    "latchwork locks --job report",
    'latchwork locks --job report --force-release north --reason "n3 hangs in I/O, powered off"',
    "latchwork locks --audit --json",
)
def locks(
    *,
    job: Annotated[str | None, typer.Option(help="Show only locks of this job.")] = None,
    force_release: Annotated[
        str | None,
        typer.Option(metavar="ITEM", help="Release the lock of this item by force. Needs --job and --reason."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="The reason, which is recorded with your user name.")] = None,
    audit: Annotated[bool, typer.Option("--audit", help="Show the record of forced releases instead.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show the holders of item locks, and release a lock by force.

    A lock of a dead holder expires by itself. Force the release of a lock only if its holder is alive and hangs, and
    can surely do no harm: its fenced writes are refused from then on, and its run is asked to stop, but nothing waits
    for that.
    """
    with open_store(url) as store:
        if audit:
            rows = [{**asdict(record), "at": normalize_utc_text(record.at)} for record in read_audit(store)]
        elif force_release is not None:
            if job is None or not (reason and reason.strip()):
                raise UsageError("--force-release needs --job, and a --reason for the audit log")
            record = Control(store).force_release(job, force_release, reason=reason)
            print_change(
                f"{job} {record.item}: released, it was held by {record.holder}", asdict(record), as_json=as_json
            )
            return
        else:
            state = read_cluster_state(store)
            rows = [_row(state, lock) for lock in state.locks if job in {None, lock.job}]
    if as_json:
        say_json(rows)
    elif rows:
        show(Grid(map(_cells, rows), right=("pid", "token", "ttl_s")))
    else:
        say("no lock was released by force" if audit else "no locks are held")


def _row(state: ClusterState, lock: LockView) -> dict[str, object]:
    return {
        "job": lock.job,
        "item": lock.item,
        "holder": lock.holder.label,
        "host": lock.holder.host,
        "pid": lock.holder.pid,
        "token": lock.token,
        "since": None if lock.since_s is None else utc_text(lock.since_s),
        "ttl_s": lock.holder.ttl_s,
        "is_holder_running": state.is_holder_running(lock),
    }


def _cells(row: dict[str, Any]) -> dict[str, str]:
    cells = {name: "" if value is None else str(value) for name, value in row.items()}
    if "is_holder_running" in row:
        del cells["is_holder_running"]
        dead = "is gone, it runs out" if row["holder"] else "is no node"
        cells["the holder"] = "lives" if row["is_holder_running"] else dead
    return cells
