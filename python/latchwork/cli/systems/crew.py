"""`latchwork workers run`: processes of any program as the workers of a job."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live

from latchwork.cli.options import Json, Url, command, wanted_url
from latchwork.cli.outcome import FAILURE, TERMINATED, Terminated, UsageError, ended_by_sigterm, quiet_logs, report
from latchwork.cli.text import Grid, Line, console, say_json
from latchwork.errors import LatchworkError
from latchwork.store import connect
from latchwork.words import counted
from latchwork.workers import JobStatus
from latchwork.workers.crews import Crew, Order, SlotState

#: How often it is looked whether there is something new to show.
_LOOK_S = 0.25


@command(
    "latchwork workers run train -n 4 -- python train.py",
    "latchwork workers run train -n 8 --per-host 4 --logs logs -- python train.py --steps 1000",
)
def run(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The name of a job: one segment of a key.")],
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
    namespace: Annotated[str, typer.Option("--namespace", metavar="KEY", help="The namespace of the job.")] = "default",
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
        crew = Crew(store, job, order, namespace=namespace)
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


def _show(crew: Crew, *, live: bool) -> None:
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


def _outcome(crew: Crew) -> JobStatus:
    """How the job has ended; with workers of ours out of it, how it is."""
    return crew.handle.status() if crew.errors else crew.outcome()


def _as_json(crew: Crew, status: JobStatus) -> dict[str, object]:
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
        "processes": [asdict(state) for state in slots],
    }


def _code(crew: Crew, status: JobStatus) -> int:
    if status.ended is None:
        for error in crew.errors[:1]:
            report(error)
        return FAILURE
    why = f": {status.why}" if status.why else ""
    print_to = console(err=True)
    print_to.print(Line(f"{status.name}: {status.state}, run {status.run}{why}"))
    sys.stderr.flush()
    return 0 if status.state == "COMPLETED" else FAILURE
