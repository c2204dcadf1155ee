"""`latchwork settings`: show and change what is set for the whole cluster, while it runs."""

from __future__ import annotations

import json

import typer

from latchwork.cli.changes import Unset, chosen, described
from latchwork.cli.cluster import open_store
from latchwork.cli.flags import flags, to_set
from latchwork.cli.options import Debug, Json, Url, examples
from latchwork.cli.outcome import reported
from latchwork.jobs import Control
from latchwork.jobs.options import NodeRows, rows
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
@flags(rows(NodeRows), to_set, before="unset")
def set_cluster(
    *,
    unset: Unset = None,
    url: Url = None,
    debug: Debug = False,  # noqa: ARG001
    **given: float | None,
) -> None:
    """Change options of the manager, and of nodes, in the whole cluster, at once.

    What is set here beats the nodes' code, also after their restart, until --unset.
    """
    with open_store(url) as store:
        control = Control(store)
        control.change_cluster(**chosen(given, unset))
        typer.echo(f"cluster: {described(stored.encode(control.settings().cluster))}")
