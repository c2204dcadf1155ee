"""`latchwork workflows backfill`, `backfills` and `stop-backfill`: run one workflow for many dates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latchwork.spi import (
    FAILURE,
    MAX_WHOLE,
    Json,
    Line,
    UsageError,
    command,
    counted,
    print_change,
    print_list,
    say,
    say_json,
    show,
    utc_text,
)
from latchwork_workflows.cli.actions import DryRun, NoCache, Params, PriorityWord, parse_params
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, StoreUrl, open_client, resolve_home

if TYPE_CHECKING:
    from latchwork_workflows import Backfill, DateRange

_STYLES = {"success": "green", "failure": "red", "held": "red", "running": "cyan"}


@command(
    "latchwork workflows backfill nightly --from 2026-11-01 --to 2026-11-30",
    "latchwork workflows backfill nightly --from 2026-11-01 --to 2026-11-30 --parallel 4 --order desc --wait",
    "latchwork workflows backfill nightly --from 2026-11-01 --to 2026-11-30 --dependents",
    "latchwork workflows backfill nightly --dates 2026-11-01,2026-11-05 -p region=eu --stop-on-failure",
)
def start_backfill(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="project.name, or the name of a workflow in the project default.")
    ],
    *,
    first: Annotated[
        str | None, typer.Option("--from", metavar="DATE", show_default=False, help="The first date.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DATE", show_default=False, help="The last date.")] = None,
    dates: Annotated[
        str | None,
        typer.Option(metavar="DATE,...", show_default=False, help="Single dates, instead of --from and --to."),
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of runs at a time.")] = 1,
    order: Annotated[str, typer.Option(metavar="ORDER", help="asc (oldest date first) or desc.")] = "asc",
    stop_on_failure: Annotated[
        bool, typer.Option("--stop-on-failure", help="Start no more dates once one has failed.")
    ] = False,
    param: Params = None,
    priority: PriorityWord = None,
    dry_run: DryRun = False,
    no_cache: NoCache = False,
    dependents: Annotated[
        bool, typer.Option("--dependents", help="Also backfill the workflows that wait for runs of this one.")
    ] = False,
    all_dependents: Annotated[
        bool, typer.Option("--all-dependents", help="Like --dependents, including indirect dependents.")
    ] = False,
    unique_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            show_default=False,
            help="Idempotency key: repeating the same request with the same key starts one backfill.",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has ended. Exit code 1 unless all runs succeeded.")
    ] = False,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Run a workflow for each of these dates: at each fire time of its schedule, or once per date if it has none."""
    params = parse_params(param or [])
    level = "all" if all_dependents else "direct" if dependents else "none"
    chosen = _dates(first, last, dates)
    with open_client(resolve_home(home, database, store), url) as client:
        asked = client.backfills.start(
            name,
            chosen,
            parallel=parallel,
            order=order,
            stop_on_failure=stop_on_failure,
            params=params,
            priority=priority,
            dry_run=dry_run,
            no_cache=no_cache,
            dependents=level,
            unique_key=unique_key,
        )
        found = client.backfills.get(asked.id())
        line = f"backfill {found.id} of {found.workflow} started: {counted(found.dates, 'run')}"
        behind = client.backfills.dependents(name, level)
        if behind:
            line += f"; backfills of {', '.join(behind)} follow"
        if not wait:
            print_change(line, _backfill_json(found), as_json=as_json)
            return
        if not as_json:
            say(line)
        found = client.backfills.wait(found.id)
    if as_json:
        say_json(_backfill_json(found))
    else:
        text = f"backfill {found.id}: {found.state.value}, {_counts(found)}"
        show(Line(text, _STYLES.get(found.state.value, "")))
    if found.state.value != "success":
        raise typer.Exit(FAILURE)


@command("latchwork workflows backfills", "latchwork workflows backfills nightly --json")
def list_backfills(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", show_default=False, help="Only runs of this workflow.  [default: all]"),
    ] = None,
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of entries, newest first.")] = 20,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """List backfills with their progress, newest first."""
    with open_client(resolve_home(home, database), url) as client:
        found = client.backfills.list(name, limit=limit)
    right = ("backfill", "version", "runs", "parallel")
    print_list(
        "backfills", found, _backfill_row, plain=_backfill_json, right=right, empty="no backfills", as_json=as_json
    )


@command("latchwork workflows stop-backfill 3")
def stop_backfill(
    number: Annotated[
        int,
        typer.Argument(metavar="BACKFILL", min=1, max=MAX_WHOLE, help="The ID of a backfill, as printed by backfills."),
    ],
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all of its runs have ended.")] = False,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Stop a backfill: start no more dates and stop its active runs."""
    with open_client(resolve_home(home, database, store), url) as client:
        client.commands.wait(client.backfills.stop(number))
        found = client.backfills.wait(number) if wait else client.backfills.get(number)
    print_change(f"backfill {number}: {found.state.value}, {_counts(found)}", _backfill_json(found), as_json=as_json)


def _dates(first: str | None, last: str | None, dates: str | None) -> DateRange | Sequence[date]:
    from latchwork_workflows import DateRange

    if dates is not None and first is None and last is None:
        return [_date(each.strip()) for each in dates.split(",") if each.strip()]
    if dates is not None or first is None or last is None:
        raise UsageError("give --from and --to, or --dates, and not both")
    try:
        return DateRange(_date(first), _date(last))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r:.40} is not a date; write it as 2026-11-22") from None


def _counts(found: Backfill) -> str:
    words = {"submitted": "not started"}
    return ", ".join(f"{count} {words.get(state, state)}" for state, count in sorted(found.counts.items()))


def _backfill_row(found: Backfill) -> dict[str, str]:
    return {
        "backfill": str(found.id),
        "workflow": found.workflow,
        "version": str(found.version),
        "state": found.state.value,
        "runs": str(found.dates),
        "parallel": str(found.parallel),
        "started": utc_text(found.created_at),
        "progress": _counts(found),
        "by": found.by,
    }


def _backfill_json(found: Backfill) -> dict[str, Any]:
    rest = found.model_dump(mode="json", exclude={"id", "project", "name", "dates"})
    return {"backfill": found.id, "workflow": found.workflow, "runs": found.dates, **rest}
