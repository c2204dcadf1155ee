"""`latchwork workers`: worker groups, created, listed, scaled and ended; and any program run as a worker group."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins
from rich.console import Group
from rich.live import Live

from latchwork._base.event import Signal
from latchwork._base.text import counted, utc_text
from latchwork.cli.cluster import open_store
from latchwork.cli.options import Json, Url, command, group, parse_label, require_url
from latchwork.cli.outcome import FAILURE, TERMINATED, Terminated, UsageError, exit_on_sigterm, quiet_logs, report
from latchwork.cli.probe import (
    METRICS_TYPE,
    UNKNOWN_PATH,
    ProbeHost,
    ProbePort,
    create_store_observers,
    format_health,
    format_metric,
    format_process_metrics,
    serve_probes,
)
from latchwork.cli.text import Grid, Line, console, print_change, say, say_json, show
from latchwork.errors import LatchworkError
from latchwork.primitives.barrier import BarrierState
from latchwork.store import Store, connect
from latchwork.store.watch import Watch
from latchwork.worker_group import (
    GroupDetails,
    GroupEvent,
    GroupHandle,
    GroupRecord,
    GroupStatus,
    GroupSweeper,
    WorkerInfo,
    find,
    inspect,
    inspect_group,
    list_events,
)
from latchwork.worker_group import submit as submit_group
from latchwork.worker_group.agent import AgentSpec, LocalAgent, SlotState

#: Seconds between updates of the display.
_LOOK_S = 0.25

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The name of a group: one segment of a key.")]
Namespace = Annotated[str, typer.Option("--namespace", metavar="KEY", help="The namespace of the group.")]
#: Number of missing ranks that are named.
_FEW = 8


@command(
    "latchwork workers run train -n 4 -- python train.py",
    "latchwork workers run train -n 8 --per-host 4 --logs logs -- python train.py --steps 1000",
)
def run(
    group_name: GroupName,
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command, run without a shell.")],
    *,
    workers: Annotated[
        int, typer.Option("-n", "--workers", min=1, max=100_000, help="Number of workers on all hosts.")
    ],
    per_host: Annotated[
        int | None,
        typer.Option(min=1, show_default=False, help="Number of workers that run here.  [default: all]"),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Name that identifies this host across restarts.  [default: the host name]",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            show_default=False,
            help="MASTER_ADDR if worker 0 runs here.  [default: 127.0.0.1 if all run here, else the host name]",
        ),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Restarts of one worker's process before the group fails.")
    ] = 5,
    grace_s: Annotated[float, typer.Option(min=0.0, help="Seconds between SIGTERM and SIGKILL.")] = 5.0,
    ttl_s: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            show_default=False,
            help="Seconds without a renewal after which this host counts as lost.  [default: that of the URL, else 10]",
        ),
    ] = None,
    join_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for the end of an earlier process of the same worker.")
    ] = 60.0,
    logs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", show_default=False, help="Append the output of worker I to FOLDER/I.log."),
    ] = None,
    only_run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", show_default=False, help="Join only this run of the group.")
    ] = None,
    probe_port: ProbePort = None,
    probe_host: ProbeHost = "127.0.0.1",
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Run a command N times as the workers of a group, and exit with 0 when all have completed, else 1.

    Each process gets LATCHWORK_WORKER_ID, LATCHWORK_WORKERS, LATCHWORK_RUN, LATCHWORK_EPOCH, RANK, WORLD_SIZE,
    LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The processes start once all workers of the group have
    joined. When one exits with an error, or a host is lost, all are stopped and restarted with the same ranks and
    another LATCHWORK_EPOCH. They end with this command, even if it is killed. Ctrl-C terminates the group. SIGTERM
    does so if all its workers run here, else the others wait for this host to return. With --json the outcome is
    printed to stdout at the end: also pass --logs, or the output of the processes is mixed in.
    """
    where = require_url(url)
    quiet_logs()
    name = host or socket.gethostname()
    is_whole = per_host is None or per_host == workers
    try:
        order = AgentSpec(
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
    with exit_on_sigterm(TERMINATED), connect(where, observers=create_store_observers(probe_port)) as store:
        agent = LocalAgent(store, group_name, order, namespace=namespace)
        try:
            with (
                agent,
                serve_probes(f"group {group_name}", probe_host, probe_port, lambda path: _answer_probe(agent, path)),
            ):
                _show(agent, live=logs is not None)
                status = _get_final_status(agent)
        except (KeyboardInterrupt, Terminated) as error:
            if order.is_single_host or isinstance(error, KeyboardInterrupt):
                with suppress(LatchworkError):
                    agent.handle.terminate(f"interrupted on {name}")
            raise
    if as_json:
        say_json(_as_json(agent, status))
    raise typer.Exit(_code(agent, status))


def _answer_probe(agent: LocalAgent, path: str) -> tuple[int, str, bytes]:
    """Return an agent's HTTP response to a request for its health or metrics: status, content type and body."""
    slots, errors = agent.slots, agent.errors
    if path in {"/healthz", "/readyz"}:
        body = {"ok": not errors, "reasons": [str(error) for error in errors], "slots": to_builtins(slots)}
        return format_health(body)
    if path == "/metrics":
        restarts = sum(state.restarts for state in slots)
        running = sum(state.pid is not None for state in slots)
        text = format_metric("latchwork_workers_slots", "gauge", "Workers of this host.", len(slots))
        text += format_metric("latchwork_workers_running", "gauge", "Workers of this host with a process.", running)
        text += format_metric(
            "latchwork_workers_restarts_total", "counter", "Restarts of the workers of this host.", restarts
        )
        text += format_metric("latchwork_workers_errors", "gauge", "Workers that are out of the group.", len(errors))
        return HTTPStatus.OK, METRICS_TYPE, (text + format_process_metrics()).encode()
    return UNKNOWN_PATH


def _show(agent: LocalAgent, *, live: bool) -> None:
    """Show the processes of an agent until none of them is running.

    Args:
        agent: The agent.
        live: Show a live table; otherwise print one line per change.
    """
    out = console(err=True)
    if live and out.is_terminal:
        with Live(console=out, auto_refresh=False) as table:
            while not agent.wait(_LOOK_S):
                table.update(_table(agent.slots), refresh=True)
            table.update(_table(agent.slots), refresh=True)
        return
    told: dict[int, str] = {}
    is_over = False
    while not is_over:
        is_over = agent.wait(_LOOK_S)
        for state in agent.take_changes():
            out.print(Line(_format_change(state, told)))


def _table(slots: list[SlotState]) -> Group:
    rows = [
        {
            "slot": str(state.slot),
            "rank": str(state.rank),
            "state": state.state,
            "pid": "" if state.pid is None else str(state.pid),
            "epoch": str(state.epoch),
            "restarts": str(state.restarts),
            "last end": state.why,
        }
        for state in slots
    ]
    return Group(Grid(rows, right=("slot", "rank", "pid", "epoch", "restarts")))


def _format_change(state: SlotState, reported: dict[int, str]) -> str:
    """Format a change of a process as one line of text, including the reason for the end of its last process if that is
    new.

    Args:
        state: State of the process.
        reported: The reason that was reported last for each worker, which is updated.
    """
    process = "" if state.pid is None else f" as process {state.pid}"
    again = f", {counted(state.restarts, 'restart')}" if state.restarts else ""
    why = f": {state.why}" if state.pid is None and state.why != reported.get(state.slot, "") else ""
    reported[state.slot] = state.why if state.pid is None else ""
    return f"worker {state.rank} {state.state}{process}, epoch {state.epoch}{again}{why}"


def _get_final_status(agent: LocalAgent) -> GroupStatus:
    """Wait until the group has ended, and return its final status.

    If workers of this host were excluded from the group, return its current status at once.
    """
    return agent.handle.status() if agent.errors else agent.wait_for_group()


def _as_json(agent: LocalAgent, status: GroupStatus) -> dict[str, object]:
    slots = agent.slots
    return {
        "group": status.name,
        "run": status.run,
        "state": status.state,
        "why": status.why,
        "workers": status.workers,
        "completed": status.completed,
        "epoch": max((state.epoch for state in slots), default=0),
        "restarts_here": sum(state.restarts for state in slots),
        "processes": [to_builtins(state) for state in slots],
    }


def _code(agent: LocalAgent, status: GroupStatus) -> int:
    if status.ended is None:
        for error in agent.errors[:1]:
            report(error)
        return FAILURE
    why = f": {status.why}" if status.why else ""
    print_to = console(err=True)
    print_to.print(Line(f"{status.name}: {status.state}, run {status.run}{why}"))
    sys.stderr.flush()
    return 0 if status.state == "COMPLETED" else FAILURE


@command("latchwork workers submit train -n 4", "latchwork workers submit train -n 4 --label team=vision")
def submit(
    group_name: GroupName,
    *,
    workers: Annotated[int, typer.Option("-n", "--workers", min=1, max=100_000, help="Number of workers.")],
    max_restarts: Annotated[
        int,
        typer.Option(min=0, help="Restarts of one worker's process before the group fails."),
    ] = 5,
    max_executions: Annotated[
        int, typer.Option(min=0, help="Repeated executions of one worker's function before the group fails.")
    ] = 5,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=TEXT", help="Label to show with the group; repeatable.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also replace a group that no worker has joined yet.")
    ] = False,
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Create a group, so that workers can join it.

    The remains of an earlier run without running workers are replaced. A group with running workers is refused, and
    so is one that no worker has joined yet.
    """
    labels = dict(map(parse_label, label or ()))
    with open_store(url, of_cluster=False) as store:
        handle = submit_group(
            store,
            group_name,
            workers,
            namespace=namespace,
            max_restarts=max_restarts,
            max_executions=max_executions,
            labels=labels,
            replace=replace,
        )
    line = f"{group_name}: submitted with {counted(workers, 'worker')}, run {handle.run}"
    print_change(line, {"group": group_name, "run": handle.run, "workers": workers}, as_json=as_json)


@command("latchwork workers list", "latchwork workers list --json")
def list_groups(*, namespace: Namespace = "default", url: Url = None, as_json: Json = False) -> None:
    """List the running groups, and how the last runs of the others ended."""
    with open_store(url, of_cluster=False) as store:
        state = inspect(store, namespace=namespace)
    if as_json:
        ended = [{"name": name, **to_builtins(head)} for name, head in state.ended]
        say_json({"groups": [to_builtins(status) for status in state.groups], "ended": ended})
        return
    rows = [*map(_group_row, state.groups), *(_ended_row(name, head) for name, head in state.ended)]
    if not rows:
        say("no worker groups; submit one with latchwork workers submit GROUP -n N")
        return
    show(Grid(rows, right=("workers", "joined", "running", "completed", "epoch")))


def _group_row(status: GroupStatus) -> dict[str, str]:
    return {
        "group": status.name,
        "state": _state(status),
        "workers": str(status.workers),
        "joined": str(status.joined),
        "running": str(status.running),
        "completed": str(status.completed),
        "epoch": str(status.epoch),
        "since": utc_text(status.created),
    }


def _ended_row(name: str, head: GroupRecord) -> dict[str, str]:
    return {
        "group": name,
        "state": head.state,
        "workers": str(head.workers),
        "joined": str(head.next_rank),
        "running": "0",
        "completed": str(head.completed),
        "epoch": "",
        "since": utc_text(head.created),
    }


def _state(status: GroupStatus) -> str:
    return f"{status.state} restarting" if status.is_restarting else status.state


@command("latchwork workers show train", "latchwork workers show train --json")
def show_group(
    group_name: GroupName, *, namespace: Namespace = "default", url: Url = None, as_json: Json = False
) -> None:
    """Show a group: its workers, which of them are running, and which are missing at a barrier."""
    with open_store(url, of_cluster=False) as store:
        state = inspect_group(store, group_name, namespace=namespace)
        ended = None if state is not None else dict(inspect(store, namespace=namespace).ended).get(group_name)
    if state is None and ended is None:
        raise UsageError(f"there is no group {group_name!r}; submit it with latchwork workers submit {group_name} -n N")
    if as_json:
        say_json(
            {"ended": None if ended is None else to_builtins(ended), **({} if state is None else to_builtins(state))}
        )
        return
    if ended is not None:
        say(f"{group_name}: {ended.state} at {utc_text(ended.ended or 0.0)}, run {ended.run}{_because(ended.why)}")
    if state is not None:
        _show_state(state)


def _because(why: str) -> str:
    return f": {why}" if why else ""


def _show_state(state: GroupDetails) -> None:
    status = state.status
    say(
        f"{status.name}: {_state(status)}, run {status.run}, epoch {status.epoch}; "
        f"{status.joined} of {counted(status.workers, 'worker')} joined, "
        f"{status.completed} completed{_because(status.why)}"
    )
    if state.master is not None:
        say(f"master: {state.master.address} ({state.master.process})")
    if state.workers:
        show(Grid([_worker_row(info, state.running_ranks) for info in state.workers], right=("rank", "restarts")))
    for name, barrier in state.barriers:
        if barrier.parties:
            show(Line(f"barrier {name}: {_barrier(state, barrier)}", "yellow"))
    if status.missing and not status.ended:
        show(Line(f"missing ranks: {_some(status.missing)}", "yellow"))


def _worker_row(info: WorkerInfo, running_ranks: Iterable[int]) -> dict[str, str]:
    return {
        "rank": str(info.rank),
        "key": info.key,
        "status": info.status,
        "running": "yes" if info.rank in running_ranks else "no",
        "restarts": str(info.restarts),
        "node": info.node or info.ip,
    }


def _barrier(state: GroupDetails, barrier: BarrierState) -> str:
    done = {info.rank for info in state.workers if info.status == "COMPLETED"}
    came = {int(each) for each in barrier.arrived if each.isdecimal()}
    missing = sorted(set(range(state.status.workers)) - done - came)
    return (
        f"generation {barrier.generation}, {len(barrier.arrived)} of {barrier.parties} arrived, "
        f"missing {_some(missing)}, since {utc_text(barrier.opened_at or 0.0)}"
    )


def _some(numbers: Iterable[int]) -> str:
    shown = list(numbers)
    more = f" and {len(shown) - _FEW} more" if len(shown) > _FEW else ""
    return (", ".join(map(str, shown[:_FEW])) or "none") + more


@command("latchwork workers events train", "latchwork workers events train -f --json")
def events(
    group_name: GroupName,
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Keep printing new events until the group ends.")
    ] = False,
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")] = False,
) -> None:
    """Print the events of a group in order: joins, losses, new epochs and the end.

    The events are removed with the group, so the very last ones may not be printed. See `workers show`.
    """
    with open_store(url, of_cluster=False) as store:
        handle = _found(store, group_name, namespace)
        with store.watch(f"@workers/{namespace}/groups/{group_name}/record") as watch:
            last = 0
            while True:
                found = list_events(store, group_name, last, namespace=namespace)
                for event in found:
                    _print_event(event, as_json=as_json)
                    last = event.number
                if not follow or not _await_change(watch, store, handle, namespace):
                    return


def _await_change(watch: Watch, store: Store, handle: GroupHandle, namespace: str) -> bool:
    """Wait for the next change of a group.

    Args:
        watch: Watch of the group's keys.
        store: The store.
        handle: Handle of the group.
        namespace: Namespace of the group.
    Returns:
        False if the run of the group no longer exists.
    """
    watch.next(None)
    found = find(store, handle.name, namespace=namespace)
    return found is not None and found.run == handle.run


def _print_event(event: GroupEvent, *, as_json: bool) -> None:
    if as_json:
        say_json(to_builtins(event), one_line=True)
        return
    who = f" worker {event.rank}" if event.rank >= 0 else ""
    say(f"{utc_text(event.at)} {event.number:5} {event.kind}{who}, epoch {event.epoch}{_because(event.why)}")


@command("latchwork workers scale train 8")
def scale(
    group_name: GroupName,
    workers: Annotated[int, typer.Argument(metavar="N", min=1, max=100_000, help="New number of workers.")],
    *,
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Change the number of workers of a group. Workers with the highest ranks are removed first and must stop."""
    with open_store(url, of_cluster=False) as store:
        _found(store, group_name, namespace).scale(workers)
    print_change(
        f"{group_name}: scaled to {counted(workers, 'worker')}",
        {"group": group_name, "workers": workers},
        as_json=as_json,
    )


@command("latchwork workers terminate train --why 'wrong data'")
def terminate(
    group_name: GroupName,
    *,
    why: Annotated[
        str, typer.Option(metavar="TEXT", help="The reason to report to its workers.")
    ] = "it was terminated",
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """End a group: its workers are signaled to stop, and their fenced writes are refused."""
    with open_store(url, of_cluster=False) as store:
        handle = _found(store, group_name, namespace)
        handle.terminate(why)
    print_change(
        f"{group_name}: terminated, run {handle.run}", {"group": group_name, "run": handle.run}, as_json=as_json
    )


def _found(store: Store, group_name: str, namespace: str) -> GroupHandle:
    handle = find(store, group_name, namespace=namespace)
    if handle is None:
        raise UsageError(f"there is no running group {group_name!r}; see latchwork workers list")
    return handle


@command("latchwork workers sweep", "latchwork workers sweep --watch-s 700")
def sweep(
    *,
    watch_s: Annotated[
        float,
        typer.Option(min=0.0, help="Keep sweeping for this many seconds, to remove running groups without workers."),
    ] = 0.0,
    abandon_s: Annotated[
        float, typer.Option(min=1.0, help="Seconds without workers after which a running group is removed.")
    ] = 600.0,
    namespace: Namespace = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Remove ended groups without workers, and the remains of earlier runs.

    A running group without workers is removed only after this command has watched it for --abandon-s.
    """
    with open_store(url, of_cluster=False) as store:
        sweeper = GroupSweeper(store, namespace=namespace, abandon_s=abandon_s)
        swept = sweeper.sweep()
        until = store.clock.now() + watch_s
        while (left_s := until - store.clock.now()) > 0.0:
            store.clock.wait(Signal(), min(left_s, 5.0))
            more = sweeper.sweep()
            swept.groups += more.groups
            swept.runs += more.runs
            swept.ended += more.ended
    line = (
        f"removed {counted(len(swept.groups), 'group')}, {counted(len(swept.runs), 'old run')}, "
        f"{counted(len(swept.ended), 'final record')}"
    )
    print_change(line, to_builtins(swept), as_json=as_json)


workers_app = group(
    "Worker groups: N processes with a rank each that meet at barriers and restart together when one is lost.",
    run=run,
    submit=submit,
    list=list_groups,
    show=show_group,
    events=events,
    scale=scale,
    terminate=terminate,
    sweep=sweep,
)
