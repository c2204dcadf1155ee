"""`latchwork status`: a job cluster seen from outside, without joining it."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from latchwork.backends.url import parse_url
from latchwork.cli import went
from latchwork.cli.cluster import open_store
from latchwork.cli.options import Json, Url, command, wanted_url
from latchwork.cli.outcome import NoCluster, attempted
from latchwork.cli.text import printable
from latchwork.jobs import Activity, ClusterState, NodeView, inspect
from latchwork.jobs.outside import utc_text
from latchwork.store import Store

_FEW = 8


@command(
    "latchwork status --url sqlite:///jobs.db",
    "latchwork status --url etcd://127.0.0.1:2379/app --all",
    "latchwork status --json | jq .manager",
)
def status(
    *,
    url: Url = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again until Ctrl-C.")] = False,
    interval_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks of --watch.")] = 2.0,
    everything: Annotated[bool, typer.Option("--all", help=f"Name every item, not only the first {_FEW}.")] = False,
) -> None:
    """Show a job cluster: who leads, who lives, which items run where, which locks are held.

    Reads only, and may be called at any time. The parts are read one after the other: while items move, an item may
    show up at its old node and its new one. Exit code 3 when there is no cluster under the URL's root.
    """
    most = None if everything else _FEW
    with open_store(url) as store:
        if watch:
            _watch(store, interval_s, as_json=as_json, most=most)
        state = inspect(store)
        if state is None:
            raise NoCluster(
                f"no cluster under /{parse_url(wanted_url(url)).root} of {store.url}; start a node with latchwork run"
            )
        if as_json:
            typer.echo(json.dumps(to_json(state), indent=2))
        else:
            Console(highlight=False, soft_wrap=True).print(*_parts(state, most), sep="\n")


def _watch(store: Store, interval_s: float, *, as_json: bool, most: int | None) -> None:
    """Until interrupted: a live view on a terminal, else one look after the other, JSON as one line each.

    A look that fails is shown in its place: what is watched may be the very trouble.
    """
    console, never = Console(highlight=False), threading.Event()
    with Live(console=console, auto_refresh=False, screen=console.is_terminal and not as_json) as live:
        while True:
            state, failure = attempted(lambda: inspect(store))
            if as_json:
                found = None if state is None else to_json(state)
                typer.echo(json.dumps(found if failure is None else {"error": failure}))
            else:
                head = Text(datetime.now(timezone.utc).strftime("%H:%M:%S UTC"), style="dim")
                body = [Text("no cluster", style="yellow")] if state is None else _parts(state, most)
                if failure is not None:
                    body = [Text(f"error: {failure}", style="red")]
                if console.is_terminal:
                    live.update(Group(head, *body), refresh=True)
                else:
                    console.print(head, *body, sep="\n")
            store.clock.wait(never, interval_s)


def to_json(state: ClusterState) -> dict[str, object]:
    """The state for programs; lists are sorted."""
    return {
        "manager": state.manager,
        "candidates": list(state.candidates),
        "nodes": {
            node.node_id: {
                "state": node.member.state,
                "host": node.member.host,
                "pid": node.member.pid,
                "since": _since(node),
                "session_ttl_s": node.member.ttl_s,
                "weight": node.member.weight,
                "version": node.member.version,
                "labels": dict(node.member.labels),
                "is_manager": node.is_manager,
                "mark": state.marks[node.node_id].state if node.node_id in state.marks else None,
                "jobs": list(node.jobs),
                "assigned": {job: list(items) for job, items in sorted(node.assigned.items())},
            }
            for node in state.nodes.values()
        },
        "jobs": {
            job.job_id: {
                "items": job.items,
                "nodes": list(job.nodes),
                "assigned": dict(sorted(job.assigned.items())),
                "running": dict(sorted(job.running.items())),
                "active": [
                    {
                        "node": each.node,
                        "runs": each.runs,
                        "items": each.items,
                        "since": utc_text(each.since_s),
                        "named": {item: utc_text(since_s) for item, since_s in sorted(each.named.items())},
                    }
                    for each in job.active
                ],
                **went.to_json(job),
            }
            for job in state.jobs()
        },
        "leftovers": list(state.leftovers),
        "locks": [
            {
                "job": lock.job,
                "item": lock.item,
                "holder": lock.holder.label,
                "host": lock.holder.host,
                "pid": lock.holder.pid,
                "ttl_s": lock.holder.ttl_s,
                "token": lock.token,
            }
            for lock in state.locks
        ],
    }


def _parts(state: ClusterState, most: int | None) -> list[RenderableType]:
    """What is shown, from top to bottom."""
    waiting = ", ".join(state.candidates[1:])
    found: list[RenderableType] = [
        Text(f"manager: {state.manager or 'none at this moment'}" + (f"; next: {waiting}" if waiting else "")),
        _nodes(state) if state.nodes else Text("no living nodes", style="yellow"),
    ]
    for job in state.jobs():
        active = f"{job.active_items} running" if job.is_running else "none running for longer than a second"
        line = f"\njob {job.job_id}: {job.items} items, {len(job.running)} locked to run, {active}"
        found.append(Text(line, style="bold"))
        style = "red" if job.in_a_row else ""
        found += [Text(f"  {told}", style=style) for told in went.told(job, time.time())]
        by_node: dict[str, list[str]] = {}
        for item, node in job.assigned.items():
            by_node.setdefault(node, []).append(item)
        for node, items in sorted(by_node.items()):
            found.append(Text(f"  {node}: {len(items)} items: {_few(items, most)}"))
        found += [Text(f"  running at {each.node}: {_run(each, most)}", style="green") for each in job.active]
        if unassigned := job.items - len(job.assigned):
            found.append(Text(f"  nobody: {unassigned} items are not assigned", style="yellow"))
        moving = [f"{item} ({holder})" for item, holder in job.running.items() if job.assigned.get(item) != holder]
        if moving:
            found.append(Text(f"  still locked elsewhere: {len(moving)}: {_few(moving, most)}", style="yellow"))
    gone = [f"{mark.node} ({mark.state})" for mark in state.marks.values() if mark.node not in state.nodes]
    if gone:
        found.append(Text(f"not living, but drained or to be restarted: {', '.join(gone)}", style="yellow"))
    if state.leftovers:
        found.append(Text(f"gone, share not yet given to others: {', '.join(state.leftovers)}", style="yellow"))
    held = Counter(lock.holder.label for lock in state.locks)
    owners = ", ".join(f"{printable(label)} {count}" for label, count in sorted(held.items()))
    found.append(Text(f"\nlocks held: {len(state.locks)}" + (f" ({owners})" if owners else "")))
    return found


def _run(each: Activity, most: int | None) -> str:
    rest = f", {each.items - len(each.named)} not named" if len(each.named) < each.items else ""
    return f"{each.items} items since {utc_text(each.since_s)}: {_few(each.named, most)}{rest}"


def _nodes(state: ClusterState) -> Table:
    table = Table()
    for name in ("node", "state", "host", "pid", "since", "jobs"):
        table.add_column(name, overflow="fold")
    table.add_column("items", justify="right")
    for node in state.nodes.values():
        items = sum(len(share) for share in node.assigned.values())
        member = node.member
        mark = state.marks.get(node.node_id)
        role = ", ".join([member.state, *([mark.state] if mark else []), *(["manager"] if node.is_manager else [])])
        cells = (node.node_id, role, member.host, str(member.pid), _since(node), ", ".join(node.jobs), str(items))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _since(node: NodeView) -> str:
    return datetime.fromtimestamp(node.member.since, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _few(items: Iterable[str], most: int | None) -> str:
    ordered: Sequence[str] = sorted(items)
    shown = ordered if most is None else ordered[:most]
    rest = f" and {len(ordered) - len(shown)} more" if len(shown) < len(ordered) else ""
    return ", ".join(printable(item) for item in shown) + rest
