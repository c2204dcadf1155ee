"""`latchwork workers`: jobs of workers, submitted, listed, scaled and ended; and any program run as their workers."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins
from rich.console import Group
from rich.live import Live

from latchwork.cli.cluster import open_store
from latchwork.cli.options import Json, Url, command, group, wanted_url
from latchwork.cli.outcome import FAILURE, TERMINATED, Terminated, UsageError, ended_by_sigterm, quiet_logs, report
from latchwork.cli.text import Grid, Line, console, say, say_json, show, told
from latchwork.errors import LatchworkError
from latchwork.primitives.barrier import BarrierState
from latchwork.store import Store, connect
from latchwork.store.watch import Watch
from latchwork.words import counted, utc_text
from latchwork.worker_group import (
    Event,
    GroupHead,
    GroupSweeper,
    JobHandle,
    JobState,
    JobStatus,
    WorkerInfo,
    find,
    inspect,
    inspect_job,
    list_events,
)
from latchwork.worker_group import submit as submit_job
from latchwork.worker_group.agent import LocalAgent, Order, SlotState

#: How often it is looked whether there is something new to show.
_LOOK_S = 0.25

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The name of a job: one segment of a key.")]
Namespace = Annotated[str, typer.Option("--namespace", metavar="KEY", help="The namespace of the job.")]
#: Of the ids that are missing so many are named.
_FEW = 8


@command(
    "latchwork workers run train -n 4 -- python train.py",
    "latchwork workers run train -n 8 --per-host 4 --logs logs -- python train.py --steps 1000",
)
def run(
    job: JobName,
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command; no shell reads it.")],
    *,
    workers: Annotated[
        int, typer.Option("-n", "--workers", min=1, max=100_000, help="How many workers the job has, on all hosts.")
    ],
    per_host: Annotated[
        int | None,
        typer.Option(min=1, show_default=False, help="How many of them run here.  [unless given: all]"),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="By what this host is known after a restart.  [unless given: its host name]",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            show_default=False,
            help="MASTER_ADDR if worker 0 runs here.  [unless given: 127.0.0.1 if all run here, else the host name]",
        ),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often the process of one worker is started again before the job fails.")
    ] = 5,
    grace_s: Annotated[float, typer.Option(min=0.0, help="Seconds between SIGTERM and SIGKILL.")] = 5.0,
    ttl_s: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            show_default=False,
            help="Seconds after which the others know that this host is dead. Unless given: that of the URL, else 10.",
        ),
    ] = None,
    join_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for the end of an earlier process of the same worker.")
    ] = 60.0,
    logs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", show_default=False, help="The output of worker I goes to FOLDER/I.log, at its end."
        ),
    ] = None,
    only_run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", show_default=False, help="Refuse any other run of the job.")
    ] = None,
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Run a command N times as the workers of a job, and end as the job does: 0 when all have completed, else 1.

    Each process gets LATCHWORK_WORKER_ID, LATCHWORK_WORKERS, LATCHWORK_RUN, LATCHWORK_EPOCH, RANK, WORLD_SIZE,
    LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. None starts before all of the job are there. When one
    ends with an error, or a host is lost, all are ended and start again, with the same ids and another
    LATCHWORK_EPOCH. They end with this command, also when it is killed. Ctrl-C terminates the job; SIGTERM does if all
    its workers run here, else the others wait for this host to come back. With --json the outcome goes to stdout at
    the end: give --logs too, or what the processes print is there as well.
    """
    where = wanted_url(url)
    quiet_logs()
    name = host or socket.gethostname()
    is_whole = per_host is None or per_host == workers
    try:
        order = Order(
            tuple(words),
            workers,
            name,
            address or ("127.0.0.1" if is_whole else name),
            per_host,
            max_restarts=max_restarts,
            grace_s=grace_s,
            ttl_s=ttl_s,
            join_s=join_s,
            logs=logs,
            run=only_run,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    with ended_by_sigterm(TERMINATED), connect(where) as store:
        crew = LocalAgent(store, job, order, namespace=namespace)
        try:
            with crew:
                _show(crew, live=logs is not None)
                status = _outcome(crew)
        except (KeyboardInterrupt, Terminated) as error:
            if order.is_whole or isinstance(error, KeyboardInterrupt):
                with suppress(LatchworkError):
                    crew.handle.terminate(f"it was interrupted on {name}")
            raise
    if as_json:
        say_json(_as_json(crew, status))
    raise typer.Exit(_code(crew, status))


def _show(crew: LocalAgent, *, live: bool) -> None:
    """Until no process runs: a table on a terminal, if that is ours alone; else a line for each change."""
    out = console(err=True)
    if live and out.is_terminal:
        with Live(console=out, auto_refresh=False) as table:
            while not crew.wait(_LOOK_S):
                table.update(_table(crew.slots), refresh=True)
            table.update(_table(crew.slots), refresh=True)
        return
    told: dict[int, str] = {}
    is_over = False
    while not is_over:
        is_over = crew.wait(_LOOK_S)
        for state in crew.changes():
            out.print(Line(_line(state, told)))


def _table(slots: list[SlotState]) -> Group:
    rows = [
        {
            "slot": str(state.slot),
            "id": str(state.id),
            "state": state.state,
            "pid": "" if state.pid is None else str(state.pid),
            "epoch": str(state.epoch),
            "restarts": str(state.restarts),
            "last end": state.why,
        }
        for state in slots
    ]
    return Group(Grid(rows, right=("slot", "id", "pid", "epoch", "restarts")))


def _line(state: SlotState, told: dict[int, str]) -> str:
    """A change, with how the last process ended when that is new."""
    process = "" if state.pid is None else f" as process {state.pid}"
    again = f", {counted(state.restarts, 'restart')}" if state.restarts else ""
    why = f": {state.why}" if state.pid is None and state.why != told.get(state.slot, "") else ""
    told[state.slot] = state.why if state.pid is None else ""
    return f"worker {state.id} {state.state}{process}, epoch {state.epoch}{again}{why}"


def _outcome(crew: LocalAgent) -> JobStatus:
    """How the job has ended; with workers of ours out of it, how it is."""
    return crew.handle.status() if crew.errors else crew.outcome()


def _as_json(crew: LocalAgent, status: JobStatus) -> dict[str, object]:
    slots = crew.slots
    return {
        "job": status.name,
        "run": status.run,
        "state": status.state,
        "why": status.why,
        "workers": status.n,
        "completed": status.completed,
        "epoch": max((state.epoch for state in slots), default=0),
        "restarts_here": sum(state.restarts for state in slots),
        "processes": [to_builtins(state) for state in slots],
    }


def _code(crew: LocalAgent, status: JobStatus) -> int:
    if status.ended is None:
        for error in crew.errors[:1]:
            report(error)
        return FAILURE
    why = f": {status.why}" if status.why else ""
    print_to = console(err=True)
    print_to.print(Line(f"{status.name}: {status.state}, run {status.run}{why}"))
    sys.stderr.flush()
    return 0 if status.state == "COMPLETED" else FAILURE


@command("latchwork workers submit train -n 4", "latchwork workers submit train -n 4 --label team=vision")
def submit(
    job: JobName,
    *,
    workers: Annotated[int, typer.Option("-n", "--workers", min=1, max=100_000, help="How many workers it has.")],
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often the process of one worker may be started again before the job fails.")
    ] = 5,
    max_executions: Annotated[
        int, typer.Option(min=0, help="How often the function of one worker may be run again before the job fails.")
    ] = 5,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=TEXT", help="Shown with the job; may be repeated.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also take the place of a job that nobody has joined yet.")
    ] = False,
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Create a job, so that workers can join it.

    What is left of an earlier run with no live worker is replaced; a job with live workers is refused, and so is one
    that nobody has joined yet.
    """
    labels = dict(map(_label, label or ()))
    with open_store(url, of_cluster=False) as store:
        handle = submit_job(
            store,
            job,
            workers,
            namespace=namespace,
            max_restarts=max_restarts,
            max_executions=max_executions,
            labels=labels,
            replace=replace,
        )
    line = f"{job}: submitted with {counted(workers, 'worker')}, run {handle.run}"
    told(line, {"job": job, "run": handle.run, "workers": workers}, as_json=as_json)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--label {text!r} is no NAME=TEXT, for example --label team=vision")
    return name, value


@command("latchwork workers list", "latchwork workers list --json")
def list_jobs(*, namespace: Namespace = "default", url: Url = None, as_json: Json = False) -> None:
    """List jobs: those that are on, and how the last runs of the others ended."""
    with open_store(url, of_cluster=False) as store:
        state = inspect(store, namespace=namespace)
    if as_json:
        ended = [{"name": name, **to_builtins(head)} for name, head in state.ended]
        say_json({"jobs": [to_builtins(status) for status in state.jobs], "ended": ended})
        return
    rows = [*map(_job_row, state.jobs), *(_ended_row(name, head) for name, head in state.ended)]
    if not rows:
        say("no jobs of workers; submit one with latchwork workers submit JOB -n N")
        return
    show(Grid(rows, right=("workers", "joined", "running", "completed", "epoch")))


def _job_row(status: JobStatus) -> dict[str, str]:
    return {
        "job": status.name,
        "state": _state(status),
        "workers": str(status.n),
        "joined": str(status.joined),
        "running": str(status.running),
        "completed": str(status.completed),
        "epoch": str(status.epoch),
        "since": utc_text(status.created),
    }


def _ended_row(name: str, head: GroupHead) -> dict[str, str]:
    return {
        "job": name,
        "state": head.state,
        "workers": str(head.n),
        "joined": str(head.next),
        "running": "0",
        "completed": str(head.completed),
        "epoch": "",
        "since": utc_text(head.created),
    }


def _state(status: JobStatus) -> str:
    return f"{status.state} faulty" if status.faulty else status.state


@command("latchwork workers show train", "latchwork workers show train --json")
def show_job(job: JobName, *, namespace: Namespace = "default", url: Url = None, as_json: Json = False) -> None:
    """Show a job: its workers, who lives, and who is missing at which barrier since when."""
    with open_store(url, of_cluster=False) as store:
        state = inspect_job(store, job, namespace=namespace)
        ended = None if state is not None else dict(inspect(store, namespace=namespace).ended).get(job)
    if state is None and ended is None:
        raise UsageError(f"there is no job {job!r}; submit it with latchwork workers submit {job} -n N")
    if as_json:
        say_json(
            {"ended": None if ended is None else to_builtins(ended), **({} if state is None else to_builtins(state))}
        )
        return
    if ended is not None:
        say(f"{job}: {ended.state} at {utc_text(ended.ended or 0.0)}, run {ended.run}{_because(ended.why)}")
    if state is not None:
        _show_state(state)


def _because(why: str) -> str:
    return f": {why}" if why else ""


def _show_state(state: JobState) -> None:
    status = state.status
    say(
        f"{status.name}: {_state(status)}, run {status.run}, epoch {status.epoch}; "
        f"{status.joined} of {counted(status.n, 'worker')} joined, {status.completed} completed{_because(status.why)}"
    )
    if state.master is not None:
        say(f"master: {state.master.address} ({state.master.process})")
    if state.workers:
        show(Grid([_worker_row(info, state.live) for info in state.workers], right=("id", "restarts")))
    for name, barrier in state.barriers:
        if barrier.parties:
            show(Line(f"barrier {name}: {_barrier(state, barrier)}", "yellow"))
    if status.missing and not status.ended:
        show(Line(f"missing ids: {_some(status.missing)}", "yellow"))


def _worker_row(info: WorkerInfo, live: Iterable[int]) -> dict[str, str]:
    return {
        "id": str(info.id),
        "key": info.key,
        "status": info.status,
        "live": "yes" if info.id in live else "no",
        "restarts": str(info.restarts),
        "node": info.node or info.ip,
    }


def _barrier(state: JobState, barrier: BarrierState) -> str:
    done = {info.id for info in state.workers if info.status == "COMPLETED"}
    came = {int(each) for each in barrier.arrived if each.isdecimal()}
    missing = sorted(set(range(state.status.n)) - done - came)
    return (
        f"generation {barrier.generation}, {len(barrier.arrived)} of {barrier.parties} arrived, "
        f"missing {_some(missing)}, since {utc_text(barrier.opened_at or 0.0)}"
    )


def _some(numbers: Iterable[int]) -> str:
    shown = list(numbers)
    more = f" and {len(shown) - _FEW} more" if len(shown) > _FEW else ""
    return (", ".join(map(str, shown[:_FEW])) or "nobody") + more


@command("latchwork workers events train", "latchwork workers events train -f --json")
def events(
    job: JobName,
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with what happens, until the job ends.")
    ] = False,
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")] = False,
) -> None:
    """Print what has happened in a job, in order: joins, losses, faults, barriers begun anew, ends.

    The events go with the job: of what happens in its last moment some may not be printed, see `workers show`.
    """
    with open_store(url, of_cluster=False) as store:
        handle = _found(store, job, namespace)
        with store.watch(f"@workers/{namespace}/jobs/{job}/head") as watch:
            last = 0
            while True:
                found = list_events(store, job, last, namespace=namespace)
                for event in found:
                    _print_event(event, as_json=as_json)
                    last = event.n
                if not follow or not _goes_on(watch, store, handle, namespace):
                    return


def _goes_on(watch: Watch, store: Store, handle: JobHandle, namespace: str) -> bool:
    """Wait for the next change of the job; False once this run of it is no more."""
    watch.next(None)
    found = find(store, handle.name, namespace=namespace)
    return found is not None and found.run == handle.run


def _print_event(event: Event, *, as_json: bool) -> None:
    if as_json:
        say_json(to_builtins(event), one_line=True)
        return
    who = f" worker {event.id}" if event.id >= 0 else ""
    say(f"{utc_text(event.at)} {event.n:5} {event.kind}{who}, epoch {event.epoch}{_because(event.why)}")


@command("latchwork workers scale train 8")
def scale(
    job: JobName,
    workers: Annotated[int, typer.Argument(metavar="N", min=1, max=100_000, help="How many workers it is to have.")],
    *,
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Change how many workers a job has. Fewer: those with the highest ids are removed, and have to stop."""
    with open_store(url, of_cluster=False) as store:
        _found(store, job, namespace).scale(workers)
    told(f"{job}: scaled to {counted(workers, 'worker')}", {"job": job, "workers": workers}, as_json=as_json)


@command("latchwork workers terminate train --why 'wrong data'")
def terminate(
    job: JobName,
    *,
    why: Annotated[str, typer.Option(metavar="TEXT", help="What its workers are told.")] = "it was terminated",
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """End a job: every worker is told to stop, and nothing it writes for the job lands any more."""
    with open_store(url, of_cluster=False) as store:
        handle = _found(store, job, namespace)
        handle.terminate(why)
    told(f"{job}: terminated, run {handle.run}", {"job": job, "run": handle.run}, as_json=as_json)


def _found(store: Store, job: str, namespace: str) -> JobHandle:
    handle = find(store, job, namespace=namespace)
    if handle is None:
        raise UsageError(f"there is no job {job!r} that runs; see latchwork workers list")
    return handle


@command("latchwork workers sweep", "latchwork workers sweep --watch-s 700")
def sweep(
    *,
    watch_s: Annotated[
        float,
        typer.Option(
            min=0.0, help="Go on for so many seconds: a job that is on is removed if nobody was in it for that time."
        ),
    ] = 0.0,
    abandon_s: Annotated[
        float, typer.Option(min=1.0, help="Seconds without anybody after which a job that is on is removed.")
    ] = 600.0,
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Remove what nobody is in any more: jobs that have ended, and what is left of earlier runs.

    A job that is on, and that nobody is in, is removed only after this command has watched it for --abandon-s.
    """
    with open_store(url, of_cluster=False) as store:
        sweeper = GroupSweeper(store, namespace=namespace, abandon_s=abandon_s)
        swept = sweeper.sweep()
        until = store.clock.now() + watch_s
        while (left_s := until - store.clock.now()) > 0.0:
            store.clock.wait(threading.Event(), min(left_s, 5.0))
            more = sweeper.sweep()
            swept.jobs += more.jobs
            swept.runs += more.runs
            swept.ended += more.ended
    line = (
        f"removed {counted(len(swept.jobs), 'job')}, {counted(len(swept.runs), 'old run')}, "
        f"{counted(len(swept.ended), 'record')} of how jobs ended"
    )
    told(line, to_builtins(swept), as_json=as_json)


workers_app = group(
    "Jobs of workers: N processes that number themselves, meet at barriers, and begin again when one is lost.",
    run=run,
    submit=submit,
    list=list_jobs,
    show=show_job,
    events=events,
    scale=scale,
    terminate=terminate,
    sweep=sweep,
)
