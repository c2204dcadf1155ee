"""`latchwork jobs` and `latchwork settings`: disable jobs and change options while the cluster runs.

`latchwork drain` and `latchwork restart` remove a node from the cluster, permanently or for a while, without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from latchwork._base.text import utc_text
from latchwork.cli import job_outcomes
from latchwork.cli.cluster import complete_job_ids, complete_node_ids, open_store, read_cluster_state
from latchwork.cli.flags import Unset, add_flags, collect_changes, format_settings, format_value, make_setting_flag
from latchwork.cli.options import Json, NoWait, Url, command, group
from latchwork.cli.outcome import NoCluster, UsageError
from latchwork.cli.text import Grid, Line, print_change, say, say_json, show
from latchwork.errors import LatchworkError
from latchwork.jobs import Control, JobState, RunResult, Schedule, Settings, UnknownNode, inspect
from latchwork.jobs import settings as stored
from latchwork.jobs.options import JobRows, NodeRows, OptionRow, create_number_type, get_option_rows
from latchwork.store import Store

JobIds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="JOB...", help="IDs of jobs, even of jobs that no node has yet.", autocompletion=complete_job_ids
    ),
]
JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The ID of a job, even of one that no node has yet.", autocompletion=complete_job_ids
    ),
]
#: The flags of schedules that are no cron; `latchwork run --command` has them too.
PACES = (
    OptionRow(
        create_number_type(0.0), None, "from the end of a run to the start of the next", "60", name="fixed_delay_s"
    ),
    OptionRow(
        create_number_type(0.0),
        None,
        "between two starts; starts during a long run are skipped",
        "no rate",
        name="fixed_rate_s",
    ),
)
Node = Annotated[str, typer.Argument(metavar="NODE", help="The ID of a node.", autocompletion=complete_node_ids)]
Wait = Annotated[float, typer.Option(min=0.0, help="Seconds to wait for its runs to stop.")]


@command("latchwork jobs list --url etcd://127.0.0.1:2379/app", "latchwork jobs list --json")
def list_jobs(*, url: Url = None, as_json: Json = False) -> None:
    """List all jobs that are known or have settings: their switches, the results of their runs, and their settings."""
    with open_store(url) as store:
        settings = Control(store).settings()
        state = inspect(store)
        known = {} if state is None else {job.job_id: job for job in state.jobs()}
        if state is None and not settings.jobs:
            raise NoCluster(f"no cluster and no settings under {store.url}; start a node with latchwork run")
        rows = [_row(job_id, settings, known.get(job_id)) for job_id in sorted({*known, *settings.jobs})]
    if as_json:
        say_json({"cluster": stored.encode_settings(settings.cluster), "jobs": rows})
        return
    show(Grid(map(_cells, rows), right=("items", "locked", "running")))
    for job in known.values():
        if job.consecutive_failures:
            show(Line(f"{job.job_id}: {job_outcomes.describe_failure(job)}", "red"))


@command("latchwork jobs disable report", "latchwork jobs disable --all")
def disable(
    jobs: JobIds = None,
    *,
    all_jobs: Annotated[bool, typer.Option("--all", help="All jobs, regardless of their own switches.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Disable jobs on all nodes: active runs are stopped within about a second, and no new ones start.

    The items stay on their nodes. `--all` overrides the switches of single jobs, which override the default.
    """
    _switch(jobs, url, all_jobs=all_jobs, on=False, as_json=as_json)


@command("latchwork jobs enable report", "latchwork jobs enable --all")
def enable(
    jobs: JobIds = None,
    *,
    all_jobs: Annotated[
        bool, typer.Option("--all", help="Undo `disable --all`. The switches of single jobs stay.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Enable jobs. While all jobs are disabled by `disable --all`, the switch of a single job is stored but has no
    effect.
    """
    _switch(jobs, url, all_jobs=all_jobs, on=True, as_json=as_json)


@command("latchwork jobs default off", "latchwork jobs default unset")
def set_default(
    state: Annotated[
        str,
        typer.Argument(metavar="on|off|unset", help="The state of jobs without one of their own."),
    ],
    *,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Set whether jobs that were never enabled or disabled by name are enabled. Without a default, they are."""
    values = {"on": True, "off": False, "unset": None}
    if state not in values:
        raise UsageError(f"default {state!r} is not known; give one of {', '.join(values)}")
    with open_store(url) as store:
        Control(store).set_default_enabled(values[state])
    print_change(f"default: {state}", {"default_enabled": values[state]}, as_json=as_json)


@command(
    "latchwork jobs set report --fixed-delay-s 5 --threads 4",
    "latchwork jobs set report --cron '0 3 * * *' --tz Europe/Berlin --misfire skip",
    "latchwork jobs set report -u threads -u schedule",
)
@add_flags(PACES, make_setting_flag, before="cron")
@add_flags(get_option_rows(JobRows), make_setting_flag, before="unset")
def set_job(
    job: JobId,
    *,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            show_default=False,
            help="Runs start at these times: `0 3 * * *` is each night "
            "at 3, `*/10 * * * * *` every ten seconds. One of --fixed-delay-s, --fixed-rate-s and --cron at most.",
        ),
    ] = None,
    tz: Annotated[
        str | None,
        typer.Option(
            metavar="ZONE",
            show_default=False,
            help="The time zone of --cron, such as Europe/Berlin, with daylight saving.  [default: UTC]",
        ),
    ] = None,
    misfire: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            show_default=False,
            help="What to do about times of --cron that were missed because no node could run: "
            "once makes up for them with one run, all with one for each, skip not at all.  [default: once]",
        ),
    ] = None,
    unset: Unset = None,
    url: Url = None,
    as_json: Json = False,
    **given: float | None,
) -> None:
    """Change options of a job on all nodes. The new options also apply to a job that is waiting for its next run.

    The values override the nodes' code, also after a restart, until --unset or `latchwork jobs reset`.
    """
    paces = [{row.name: given.pop(row.name)} for row in PACES]
    about = {name: value for name, value in {"tz": tz, "misfire": misfire}.items() if value is not None}
    if about and cron is None:
        raise UsageError(f"--{next(iter(about))} can only be used with --cron")
    schedule = one_schedule(*paces, {"cron": cron, **about})
    with open_store(url) as store:
        control = Control(store)
        control.change_job(job, **collect_changes({"schedule": schedule, **given}, unset))
        settings = stored.encode_settings(control.settings().job(job))
    print_change(f"{job}: {format_settings(settings)}", {"job": job, "settings": settings}, as_json=as_json)


@command("latchwork jobs reset report")
def reset(job: JobId, *, url: Url = None, as_json: Json = False) -> None:
    """Remove all settings of a job, including its switch."""
    with open_store(url) as store:
        Control(store).reset_settings(job)
    print_change(f"{job}: nothing set", {"job": job, "settings": {}}, as_json=as_json)


@command(
    "latchwork jobs run report", "latchwork jobs run report north --wait-s 60", "latchwork jobs run report --no-wait"
)
def run_job(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The ID of the job.", autocompletion=complete_job_ids)],
    items: Annotated[
        list[str] | None, typer.Argument(metavar="ITEM...", help="Items, at most 100. By default all items of the job.")
    ] = None,
    *,
    wait_s: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for the runs to end.")] = 3600.0,
    no_wait: NoWait = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Run a job once now, regardless of its schedule: each item on the node that holds its lock.

    If an item is running, its new run starts after the current one. The command returns when all runs have ended. The
    exit code is 1 if a run failed, or if not all ended in time. Runs that have not started by then, or at Ctrl-C, are
    canceled.
    """
    with open_store(url) as store:
        control, state = Control(store), read_cluster_state(store)
        _require_node_for_items(state.job(job), control.settings(), state.pools.get(job, ()), items)
        request = control.run_now(job, items or None, within_s=wait_s)
        if no_wait:
            print_change(f"{job}: asked for, within {wait_s:g} s", {"id": request.id}, as_json=as_json)
            return
        ends = control.wait_for_runs(request, wait_s)
    if as_json:
        say_json([asdict(end) for end in ends])
    for end in ends if not as_json else ():
        say(f"{end.node}: {_named(end)}: {end.error or 'ended well'}")
    failed = [end for end in ends if end.error is not None]
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(ends)} runs of job {job} failed, on {failed[0].node}: {failed[0].error}"
        )


@command("latchwork jobs reset-progress report")
def reset_progress(job: JobId, *, url: Url = None, as_json: Json = False) -> None:
    """Reset recorded fire times of a job that are in the future, because the clock of a node was ahead.

    Check the clocks of the nodes first. A fire time that a node started early, because of its wrong clock, may start
    again.
    """
    with open_store(url) as store:
        found = Control(store).reset_progress(job)
    lines = [f"{job}: {item}: was done up to {utc_text(at)}" for item, at in sorted(found.items())]
    print_change(
        "\n".join(lines) or f"{job}: no progress lies in the future", {"job": job, "items": found}, as_json=as_json
    )


class RunFailed(LatchworkError):
    """A requested run has failed."""


def _named(end: RunResult) -> str:
    more = end.items - len(end.named)
    return ", ".join(end.named) + (f" and {more} more" if more else "")


def _require_node_for_items(job: JobState, settings: Settings, pool: Sequence[str], items: list[str] | None) -> None:
    """Raise an error if no node would run the requested items, because waiting for them would never end.

    Args:
        job: State of the job.
        settings: Settings of the cluster.
        pool: Items of the job's work pool.
        items: Requested items; None for all.
    """
    unknown = sorted(set(items or ()).difference(pool))
    if unknown:
        raise UsageError(f"job {job.job_id} has no item {unknown[0]!r}; `latchwork status --all` lists its items")
    if not settings.is_enabled(job.job_id):
        raise UsageError(f"job {job.job_id} is disabled; enable it first: latchwork jobs enable {job.job_id}")
    if not job.nodes:
        raise NoCluster(f"no running node has job {job.job_id}; start one that has it")
    if not pool:
        raise UsageError(f"job {job.job_id} has no items; there is nothing to run")


def _switch(jobs: list[str] | None, url: str | None, *, all_jobs: bool, on: bool, as_json: bool) -> None:
    if bool(jobs) == all_jobs:
        raise UsageError("give either job IDs or --all")
    word = "enabled" if on else "disabled"
    with open_store(url) as store:
        control = Control(store)
        if all_jobs:
            (control.enable_all if on else control.disable_all)()
            line = "all jobs: enabled, as far as their own switches say" if on else "all jobs: disabled"
            print_change(line, {"all_disabled": not on}, as_json=as_json)
            return
        state = inspect(store)
        known = set() if state is None else {job.job_id for job in state.jobs()}
        for job in jobs or ():
            (control.enable if on else control.disable)(job)
            unknown = "" if job in known else f" (not known to this cluster now; known are: {', '.join(sorted(known))})"
            if not as_json:
                say(f"{job}: {word}{unknown}")
    if as_json:
        say_json([{"job": job, "enabled": on, "known": job in known} for job in jobs or ()])


def _row(job_id: str, settings: Settings, job: Any) -> dict[str, Any]:
    own = settings.job(job_id)
    if settings.cluster.all_disabled:
        because = "all jobs are disabled"
    elif own.enabled is not None:
        because = "its switch"
    else:
        because = "the default" if settings.cluster.default_enabled is not None else "no switch"
    return {
        "job": job_id,
        "enabled": settings.is_enabled(job_id),
        "because": because,
        "items": None if job is None else job.items,
        "locked": None if job is None else len(job.locked),
        "running": None if job is None else job.active_items,
        "went": job_outcomes.describe_outcome(job),
        **({} if job is None else job_outcomes.to_json(job)),
        "settings": stored.encode_settings(own),
    }


def _cells(row: dict[str, Any]) -> dict[str, str]:
    own = ", ".join(f"{name}={format_value(value)}" for name, value in row["settings"].items() if name != "enabled")
    cells = {**row, "runs": "yes" if row["enabled"] else "no", "set": own}
    columns = ("job", "runs", "because", "items", "locked", "running", "went", "set")
    return {name: "-" if cells[name] is None else str(cells[name]) for name in columns}


def one_schedule(*given: dict[str, Any]) -> Schedule | None:
    """Return the schedule that the flags of a command define; None if they define none.

    Args:
        given: The values that define a schedule, one dictionary per kind of schedule. None in a dictionary means not
            given.
    Raises:
        UsageError: Several schedules were given.
        InvalidSetting: The schedule is invalid.
    """
    found = [each for each in given if next(iter(each.values())) is not None]
    if len(found) > 1:
        raise UsageError("a job has one schedule; give one of --fixed-delay-s, --fixed-rate-s, --cron")
    schedule: Schedule | None = stored.check_setting("schedule", found[0]) if found else None
    return schedule


jobs_app = group(
    "Enable and disable jobs, and change their options, while the cluster runs.",
    list=list_jobs,
    disable=disable,
    enable=enable,
    default=set_default,
    run=run_job,
    set=set_job,
    reset=reset,
    **{"reset-progress": reset_progress},
)


@command("latchwork settings show --json")
def show_settings(*, url: Url = None, as_json: Json = False) -> None:
    """Show the settings of the cluster and its jobs. Options without a setting have the values from the nodes' code."""
    with open_store(url) as store:
        settings = Control(store).settings()
    found = {
        "cluster": stored.encode_settings(settings.cluster),
        "jobs": {job: stored.encode_settings(each) for job, each in sorted(settings.jobs.items())},
    }
    if as_json:
        say_json(found)
    else:
        say(f"cluster: {format_settings(found['cluster'])}")
        for job, each in found["jobs"].items():
            say(f"job {job}: {format_settings(each)}")


@command("latchwork settings set --debounce-s 2 --cleanup-period-s 600", "latchwork settings set -u debounce-s")
@add_flags(get_option_rows(NodeRows), make_setting_flag, before="unset")
def set_cluster(*, unset: Unset = None, url: Url = None, as_json: Json = False, **given: float | None) -> None:
    """Change options of the manager and the nodes in the whole cluster, at once.

    The values override the nodes' code, also after a restart, until --unset.
    """
    with open_store(url) as store:
        control = Control(store)
        control.change_cluster(**collect_changes(given, unset))
        settings = stored.encode_settings(control.settings().cluster)
    print_change(f"cluster: {format_settings(settings)}", {"cluster": settings}, as_json=as_json)


settings_app = group("Show and change the settings of the whole cluster.", show=show_settings, set=set_cluster)


@command("latchwork drain n1 --url etcd://127.0.0.1:2379/app", "latchwork drain n1 --undo")
def drain(
    node: Node,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Assign items to it again.")] = False,
    no_wait: NoWait = False,
    wait_s: Wait = 60.0,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Move a node's items to other nodes, and wait until the node no longer runs any of them.

    The node can then be stopped without a gap. It gets no items, also after a restart, until `--undo`. The exit code is
    1 if it still runs an item after --wait-s.
    """
    with open_store(url) as store:
        control = _get_control_for_node(store, node)
        if undo:
            found = control.undrain(node)
            line = f"{node}: takes items again" if found else f"{node}: was not drained"
            print_change(line, {"node": node, "maintenance": None, "changed": found}, as_json=as_json)
            return
        control.drain(node)
        print_change(
            *_wait_until_moved(control, node, None if no_wait else wait_s, "drained", "is drained"), as_json=as_json
        )


@command("latchwork restart n1 && systemctl restart worker@n1", "latchwork restart n1 --cancel")
def restart(
    node: Node,
    *,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the announcement: the node takes items as usual.")
    ] = False,
    keep_s: Annotated[float, typer.Option(min=0.0, help="Seconds for which its items are reserved.")] = 300.0,
    no_wait: NoWait = False,
    wait_s: Wait = 60.0,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Announce a restart of a node: its items move to other nodes now, and back after the restart. No other items move.

    The command returns when the node no longer runs any item: restart the node then. After --keep-s, its items are
    given to the other nodes permanently.
    """
    with open_store(url) as store:
        control = _get_control_for_node(store, node)
        if cancel:
            found = control.undrain(node)
            line = f"{node}: takes items as usual" if found else f"{node}: nothing was announced"
            print_change(line, {"node": node, "maintenance": None, "changed": found}, as_json=as_json)
            return
        control.announce_restart(node, timeout_s=keep_s)
        done = f"can be restarted; its items are reserved for {keep_s:g} s"
        print_change(
            *_wait_until_moved(control, node, None if no_wait else wait_s, "restarting", done), as_json=as_json
        )


def _wait_until_moved(
    control: Control, node: str, wait_s: float | None, state: str, done: str
) -> tuple[str, dict[str, str | bool]]:
    """Wait until a node no longer runs any items.

    Args:
        control: Control of the cluster.
        node: ID of the node.
        wait_s: Seconds to wait; None does not wait.
        state: Maintenance state of the node, such as ``drained``, for the JSON document.
        done: Text for the printed line after a successful wait.
    Returns:
        The line and the JSON document to print.
    """
    if wait_s is not None:
        control.wait_drained(node, wait_s)
    about: dict[str, str | bool] = {"node": node, "maintenance": state, "is_empty": wait_s is not None}
    return f"{node}: {'its items move away' if wait_s is None else done}", about


def _get_control_for_node(store: Store, node: str) -> Control:
    """Return a ``Control`` to change a node with, after checking that the cluster knows the node.

    Raises:
        UnknownNode: The cluster does not know the node, for example because its ID was mistyped.
    """
    state = read_cluster_state(store)
    if node not in state.nodes and node not in state.maintenance:
        raise UnknownNode(
            f"node {node!r} is not known to this cluster; known nodes are: {', '.join(state.nodes) or 'none'}"
        )
    return Control(store)
