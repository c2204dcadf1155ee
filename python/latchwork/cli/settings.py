"""`latchwork settings`: show and change what is set for the whole cluster, while it runs."""

from __future__ import annotations

from latchwork.cli.cluster import open_store
from latchwork.cli.flags import Unset, chosen, described, flags, to_set
from latchwork.cli.options import Json, Url, command, group
from latchwork.cli.text import say, say_json, told
from latchwork.jobs import Control
from latchwork.jobs import settings as stored
from latchwork.jobs.options import NodeRows, rows


@command("latchwork settings show --json")
def show_settings(*, url: Url = None, as_json: Json = False) -> None:
    """Show what is set for the cluster and its jobs; what is not set is as the nodes' code says."""
    with open_store(url) as store:
        settings = Control(store).settings()
    found = {
        "cluster": stored.encode(settings.cluster),
        "jobs": {job: stored.encode(each) for job, each in sorted(settings.jobs.items())},
    }
    if as_json:
        say_json(found)
    else:
        say(f"cluster: {described(found['cluster'])}")
        for job, each in found["jobs"].items():
            say(f"job {job}: {described(each)}")


@command("latchwork settings set --debounce-s 2 --cleanup-period-s 600", "latchwork settings set -u debounce-s")
@flags(rows(NodeRows), to_set, before="unset")
def set_cluster(*, unset: Unset = None, url: Url = None, as_json: Json = False, **given: float | None) -> None:
    """Change options of the manager, and of nodes, in the whole cluster, at once.

    What is set here beats the nodes' code, also after their restart, until --unset.
    """
    with open_store(url) as store:
        control = Control(store)
        control.change_cluster(**chosen(given, unset))
        settings = stored.encode(control.settings().cluster)
    told(f"cluster: {described(settings)}", {"cluster": settings}, as_json=as_json)


settings_app = group("Show and change what is set for the whole cluster.", show=show_settings, set=set_cluster)
