"""`latchwork jobs` and `latchwork settings`: switch jobs off and on, and change options, while the cluster runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from latchwork.cli.cluster import open_store
from latchwork.cli.options import Debug, Json, Url, examples
from latchwork.cli.outcome import NoCluster, UsageError, reported
from latchwork.jobs import Control, Schedule, Settings, inspect
from latchwork.jobs import settings as stored

_HELP: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None}
jobs_app = typer.Typer(help="Switch jobs off and on, and change their options, while the cluster runs.", **_HELP)
settings_app = typer.Typer(help="Show and change what is set for the whole cluster.", **_HELP)

JobIds = Annotated[list[str] | None, typer.Argument(metavar="JOB...", help="Ids of jobs; they need not be known yet.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The id of a job; it need not be known yet.")]
Seconds = Annotated[float | None, typer.Option(min=0.0, show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the command groups."""
    on_jobs: dict[str, tuple[Callable[..., None], list[str]]] = {
        "list": (list_jobs, ["latchwork jobs list --url etcd://127.0.0.1:2379/app", "latchwork jobs list --json"]),
        "disable": (disable, ["latchwork jobs disable report", "latchwork jobs disable --all"]),
        "enable": (enable, ["latchwork jobs enable report", "latchwork jobs enable --all"]),
        "default": (default, ["latchwork jobs default off", "latchwork jobs default unset"]),
        "set": (
            set_job,
            ["latchwork jobs set report --fixed-delay-s 5 --threads 4", "latchwork jobs set report -u threads"],
        ),
        "reset": (reset, ["latchwork jobs reset report"]),
    }
    for name, (command, lines) in on_jobs.items():
        jobs_app.command(name, epilog=examples(*lines))(command)
    settings_app.command("show", epilog=examples("latchwork settings show --json"))(show)
    settings_app.command("set", epilog=examples("latchwork settings set --debounce-s 2 --cleanup-period-s 600"))(
        set_cluster
    )
    app.add_typer(jobs_app, name="jobs")
    app.add_typer(settings_app, name="settings")


@reported
def list_jobs(*, url: Url = None, as_json: Json = False, debug: Debug = False) -> None:  # noqa: ARG001
    """List every job the cluster knows or has settings for: whether it may run, why, and what is set for it."""
    with open_store(url) as store:
        settings = Control(store).settings()
        state = inspect(store)
        known = {} if state is None else {job.job_id: job for job in state.jobs()}
        if state is None and not settings.jobs:
            raise NoCluster(f"no cluster and no settings under {store.url}; start a node with latchwork run")
        rows = [_row(job_id, settings, known.get(job_id)) for job_id in sorted({*known, *settings.jobs})]
    if as_json:
        typer.echo(json.dumps({"cluster": stored.encode(settings.cluster), "jobs": rows}, indent=2))
        return
    table = Table()
    for name in ("job", "runs", "because", "items", "running", "set"):
        table.add_column(name, overflow="fold")
    for row in rows:
        chosen = ", ".join(f"{name}={_short(value)}" for name, value in row["settings"].items() if name != "enabled")
        cells = (row["job"], "yes" if row["enabled"] else "no", row["because"], row["items"], row["running"], chosen)
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in cells))
    Console(highlight=False).print(table)


@reported
def disable(
    jobs: JobIds = None,
    *,
    all_jobs: Annotated[bool, typer.Option("--all", help="Every job, whatever its own switch says.")] = False,
    url: Url = None,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Stop jobs on all nodes: live runs are told to stop within about a second, and no new ones start.

    The items keep their nodes. `--all` beats the switches of single jobs, and those beat the default.
    """
    _switch(jobs, url, all_jobs=all_jobs, on=False)


@reported
def enable(
    jobs: JobIds = None,
    *,
    all_jobs: Annotated[bool, typer.Option("--all", help="End `disable --all`; single switches stay.")] = False,
    url: Url = None,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Let jobs run again. While all jobs are disabled a job's own switch is kept, but does not count."""
    _switch(jobs, url, all_jobs=all_jobs, on=True)


@reported
def default(
    state: Annotated[str, typer.Argument(metavar="on|off|unset", help="For jobs without a switch of their own.")],
    *,
    url: Url = None,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Say whether jobs without a switch of their own run; without a default they do."""
    values = {"on": True, "off": False, "unset": None}
    if state not in values:
        raise UsageError(f"default {state!r} is not known; give one of {', '.join(values)}")
    with open_store(url) as store:
        Control(store).set_default(values[state])
    typer.echo(f"default: {state}")


@reported
def set_job(
    job: JobId,
    *,
    fixed_delay_s: Seconds = None,
    fixed_rate_s: Seconds = None,
    cron: Annotated[str | None, typer.Option(help="A cron expression.")] = None,
    tz: Annotated[str, typer.Option(help="Time zone of --cron.")] = "UTC",
    misfire: Annotated[str, typer.Option(help="What becomes of missed times of --cron: once, all or skip.")] = "once",
    initial_delay_s: Seconds = None,
    jitter_s: Seconds = None,
    pool_check_period_s: Seconds = None,
    threads: Annotated[int | None, typer.Option(min=0, help="Runs at a time on a node; 0 is one per item.")] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", "-u", help="An option that goes back to what the code says.")
    ] = None,
    url: Url = None,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Change options of a job on all nodes, at once: a wait under way is cut short."""
    fires = {"cron": cron, "tz": tz, "misfire": misfire}
    given: dict[str, Any] = {
        "schedule": _schedule({"fixed_delay_s": fixed_delay_s}, {"fixed_rate_s": fixed_rate_s}, fires),
        "initial_delay_s": initial_delay_s,
        "jitter_s": jitter_s,
        "pool_check_period_s": pool_check_period_s,
        "threads": threads,
    }
    with open_store(url) as store:
        control = Control(store)
        control.change_job(job, **_chosen(given, unset))
        typer.echo(f"{job}: {_described(stored.encode(control.settings().job(job)))}")


@reported
def reset(job: JobId, *, url: Url = None, debug: Debug = False) -> None:  # noqa: ARG001
    """Forget all that was set for a job, its switch included."""
    with open_store(url) as store:
        Control(store).reset(job)
    typer.echo(f"{job}: nothing set")


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
    typer.echo(f"cluster: {_described(found['cluster'])}")
    for job, each in found["jobs"].items():
        typer.echo(f"job {job}: {_described(each)}")


@reported
def set_cluster(
    *,
    debounce_s: Seconds = None,
    debounce_max_s: Seconds = None,
    cleanup_period_s: Seconds = None,
    sweep_period_s: Seconds = None,
    stop_timeout_s: Seconds = None,
    close_timeout_s: Seconds = None,
    disconnect_grace_s: Seconds = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", "-u", help="An option that goes back to what the code says.")
    ] = None,
    url: Url = None,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Change options of the manager, and of nodes, in the whole cluster, at once."""
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
        control.change_cluster(**_chosen(given, unset))
        typer.echo(f"cluster: {_described(stored.encode(control.settings().cluster))}")


def _switch(jobs: list[str] | None, url: str | None, *, all_jobs: bool, on: bool) -> None:
    if bool(jobs) == all_jobs:
        raise UsageError("which jobs? give the ids of some, or --all, and not both")
    word = "enabled" if on else "disabled"
    with open_store(url) as store:
        control = Control(store)
        if all_jobs:
            (control.enable_all if on else control.disable_all)()
            typer.echo("all jobs: enabled, as far as their own switches say" if on else "all jobs: disabled")
            return
        state = inspect(store)
        known = set() if state is None else {job.job_id for job in state.jobs()}
        for job in jobs or ():
            (control.enable if on else control.disable)(job)
            unknown = "" if job in known else f" (not known to this cluster now; known are: {', '.join(sorted(known))})"
            typer.echo(f"{job}: {word}{unknown}")


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
        "running": None if job is None else len(job.running),
        "settings": stored.encode(own),
    }


def _schedule(*given: dict[str, Any]) -> Schedule | None:
    """The one that was given: the one whose first value is."""
    chosen = [each for each in given if next(iter(each.values())) is not None]
    if len(chosen) > 1:
        raise UsageError("a job has one schedule; give one of --fixed-delay-s, --fixed-rate-s, --cron")
    schedule: Schedule | None = stored.check("schedule", chosen[0]) if chosen else None
    return schedule


def _chosen(given: dict[str, Any], unset: list[str] | None) -> dict[str, Any]:
    chosen = {name: value for name, value in given.items() if value is not None}
    for each in unset or ():
        name = each.lstrip("-").replace("-", "_")
        if name not in given or name in chosen:
            raise UsageError(f"--unset {each} cannot be done; give one of {', '.join(given)} that is not set as well")
        chosen[name] = None
    if not chosen:
        raise UsageError(f"nothing to change; give a value for one of {', '.join(given)}, or --unset it")
    return chosen


def _described(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in settings.items()) or "nothing set"


def _short(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, dict) else " ".join(f"{k}:{v}" for k, v in value.items())
