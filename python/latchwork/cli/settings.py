"""`latchwork settings`: show and change what is set for the whole cluster, while it runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from latchwork.cli.changes import Unset, chosen, described, of_manager
from latchwork.cli.cluster import open_store
from latchwork.cli.options import Debug, Json, Url, examples
from latchwork.cli.outcome import reported
from latchwork.jobs import Control
from latchwork.jobs.options import settings as stored

settings_app = typer.Typer(
    help="Show and change what is set for the whole cluster.", no_args_is_help=True, rich_markup_mode=None
)


def register(app: typer.Typer) -> None:
    """Add the command group."""
    settings_app.command("show", epilog=examples("latchwork settings show --json"))(show)
    lines = ["latchwork settings set --debounce-s 2 --cleanup-period-s 600", "latchwork settings set -u debounce-s"]
    settings_app.command("set", epilog=examples(*lines))(set_cluster)
    app.add_typer(settings_app, name="settings")


@reported
def show(*, url: Url = None, as_json: Json = False, debug: Debug = False) -> None:  # noqa: ARG001
    """Show what is set for the cluster and its jobs; what is not set is as the nodes' code says."""
    with open_store(url) as store:
        settings = Control(store).settings()
    found = {
        "cluster": stored.encode(settings.cluster),
        "jobs": {job: stored.encode(each) for job, each in sorted(settings.jobs.items())},
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(f"cluster: {described(found['cluster'])}")
    for job, each in found["jobs"].items():
        typer.echo(f"job {job}: {described(each)}")


@reported
def set_cluster(
    *,
    debounce_s: Annotated[
        float | None,
        of_manager(
            "debounce_s",
            "Seconds without a change before a rebalance, so that a burst becomes one: 2 where nodes start one by one.",
        ),
    ] = None,
    debounce_max_s: Annotated[
        float | None,
        of_manager(
            "debounce_max_s", "Seconds from the first change to the rebalance at the latest, however long the burst."
        ),
    ] = None,
    cleanup_period_s: Annotated[
        float | None,
        of_manager(
            "cleanup_period_s", "Seconds between two cleanings of jobs that no living node can run; 0 for never."
        ),
    ] = None,
    sweep_period_s: Annotated[
        float | None,
        of_manager("sweep_period_s", "Seconds between two sweeps of what dead nodes left locked; 0 for never."),
    ] = None,
    stop_timeout_s: Annotated[
        float | None,
        of_manager(
            "stop_timeout_s",
            "Seconds after which a run that was told to stop and did not is reported, in the log and by "
            "the health probe; its items stay locked.",
        ),
    ] = None,
    close_timeout_s: Annotated[
        float | None,
        of_manager(
            "close_timeout_s", "Seconds that a closing node waits for its runs; then it leaves their locks to run out."
        ),
    ] = None,
    disconnect_grace_s: Annotated[
        float | None,
        of_manager(
            "disconnect_grace_s",
            "Seconds that runs go on after the last answer of a store that is out of reach, at least "
            "0.3; never longer than the locks last.",
        ),
    ] = None,
    unset: Unset = None,
    url: Url = None,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Change options of the manager, and of nodes, in the whole cluster, at once.

    What is set here beats the nodes' code, also after their restart, until --unset.
    """
    given = {
        "debounce_s": debounce_s,
        "debounce_max_s": debounce_max_s,
        "cleanup_period_s": cleanup_period_s,
        "sweep_period_s": sweep_period_s,
        "stop_timeout_s": stop_timeout_s,
        "close_timeout_s": close_timeout_s,
        "disconnect_grace_s": disconnect_grace_s,
    }
    with open_store(url) as store:
        control = Control(store)
        control.change_cluster(**chosen(given, unset))
        typer.echo(f"cluster: {described(stored.encode(control.settings().cluster))}")
