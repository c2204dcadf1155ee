"""`latchwork why` and `latchwork locks`: where an item is and why, who holds which lock, and freeing one by hand."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from latchwork.cli.cluster import open_store, state_of
from latchwork.cli.options import Json, Url, command
from latchwork.cli.outcome import UsageError
from latchwork.cli.text import printable
from latchwork.jobs import Control, LockView, read_audit
from latchwork.jobs import why as explain
from latchwork.jobs.cron import progress_of
from latchwork.jobs.outside import utc_text

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
Item = Annotated[str, typer.Argument(metavar="ITEM", help="The work item.")]


@command("latchwork why report north --url etcd://127.0.0.1:2379/app")
def why(job: JobId, item: Item, *, url: Url = None, as_json: Json = False) -> None:
    """Explain where a work item is, why it is there, and why it runs or does not."""
    with open_store(url) as store:
        found = explain(state_of(store), Control(store).settings(), job, item, progress_of(store, job, item))
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        for sentence in found.sentences:
            typer.echo(f"- {printable(sentence)}")


@command(
    "latchwork locks --job report",
    'latchwork locks --job report --force-release north --reason "n3 hangs in I/O, powered off"',
    "latchwork locks --audit --json",
)
def locks(
    *,
    job: Annotated[str | None, typer.Option(help="Only locks of this job.")] = None,
    force_release: Annotated[
        str | None, typer.Option(metavar="ITEM", help="Free this item's lock; needs --job and --reason.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why; it is written down with who did it.")] = None,
    audit: Annotated[bool, typer.Option("--audit", help="Show what was done by hand instead.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show who holds which item's lock; free one by hand when its holder surely does no harm any more.

    A lock runs out by itself when its holder is dead: freeing one is for a holder that lives and hangs. Its fenced
    writes are refused from then on, and its run is told to stop, but nothing waits for that.
    """
    with open_store(url) as store:
        if audit:
            rows = [{"what": r.what, "job": r.job, "item": r.item, "holder": r.holder, "token": r.token, "by": r.by,
                     "at": r.at, "reason": r.reason} for r in read_audit(store)]  # fmt: skip
        elif force_release is not None:
            if job is None or not reason:
                raise UsageError("--force-release needs --job, and a --reason that others can understand later")
            record = Control(store).force_release(job, force_release, reason=reason)
            typer.echo(f"{job} {printable(record.item)}: freed, it was held by {record.holder}")
            return
        else:
            rows = [_row(lock) for lock in state_of(store).locks if job in {None, lock.job}]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo("  ".join(f"{name}={printable(str(value))}" for name, value in row.items()))


def _row(lock: LockView) -> dict[str, object]:
    return {
        "job": lock.job,
        "item": lock.item,
        "holder": lock.holder.label,
        "host": lock.holder.host,
        "pid": lock.holder.pid,
        "token": lock.token,
        "since": None if lock.since_s is None else utc_text(lock.since_s),
        "ttl_s": lock.holder.ttl_s,
    }
