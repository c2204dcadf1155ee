"""`latchwork status`: the state of a job cluster, read without joining it."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

import typer
from rich.console import RenderableType

from latchwork._base.text import counted, utc_text
from latchwork.backends.url import parse_url
from latchwork.cli import job_outcomes
from latchwork.cli.cluster import open_store
from latchwork.cli.options import Json, Url, command, require_url
from latchwork.cli.outcome import NoCluster
from latchwork.cli.text import Grid, Line, join_first, say_json, show
from latchwork.cli.watch import IntervalS, watch_state
from latchwork.jobs import ActiveRuns, ClusterState, JobState, inspect

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
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval_s: IntervalS = 2.0,
    everything: Annotated[bool, typer.Option("--all", help=f"Name every item, not only the first {_FEW}.")] = False,
) -> None:
    """Show a job cluster: the leader, the nodes, which items run where, and which locks are held.

    The command only reads. The parts are read one after the other, so an item that is moving may appear on two nodes.
    The exit code is 3 if there is no cluster under the URL's root.
    """
    most = None if everything else _FEW
    with open_store(url) as store:
        if watch:
            watch_state(
                lambda: inspect(store),
                lambda state: _screen_parts(state, most),
                lambda state: None if state is None else to_json(state),
                clock=store.clock,
                interval_s=interval_s,
                as_json=as_json,
            )
        state = inspect(store)
        if state is None:
            raise NoCluster(
                f"no cluster under /{parse_url(require_url(url)).root} of {store.url}; start a node with latchwork run"
            )
        if as_json:
            say_json(to_json(state))
        else:
            show(*_screen_parts(state, most))


def to_json(state: ClusterState) -> dict[str, object]:
    """Return the state of a cluster as a JSON document with sorted lists."""
    return {
        "manager": state.manager,
        "candidates": list(state.candidates),
        "nodes": {
            node.node_id: {
                "state": node.member.state,
                "host": node.member.host,
                "pid": node.member.pid,
                "since": utc_text(node.member.since),
                "session_ttl_s": node.member.ttl_s,
                "weight": node.member.weight,
                "version": node.member.version,
                "labels": dict(node.member.labels),
                "is_manager": node.is_manager,
                "maintenance": state.maintenance[node.node_id].state if node.node_id in state.maintenance else None,
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
                "locked": dict(sorted(job.locked.items())),
                "running": job.active_items,
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
                **job_outcomes.to_json(job),
            }
            for job in state.jobs()
        },
        "leftovers": list(state.leftovers),
        "locks": [
            {
                "job": lock.job,
                "item": lock.item,
                "holder": lock.holder.label,
                "is_holder_running": state.is_holder_running(lock),
                "host": lock.holder.host,
                "pid": lock.holder.pid,
                "ttl_s": lock.holder.ttl_s,
                "token": lock.token,
            }
            for lock in state.locks
        ],
    }


def _screen_parts(state: ClusterState | None, most: int | None) -> list[RenderableType]:
    """Return the parts of the screen, from top to bottom.

    Args:
        state: State of the cluster; None if there is none.
        most: Maximum number of items to name; None names all.
    """
    if state is None:
        return [Line("no cluster", "yellow")]
    waiting = ", ".join(state.candidates[1:])
    found: list[RenderableType] = [
        Line(f"manager: {state.manager or 'none'}" + (f"; next: {waiting}" if waiting else "")),
        _build_node_table(state) if state.nodes else Line("no running nodes", "yellow"),
    ]
    for job in state.jobs():
        found += ["", *_describe_job(job, most)]
    gone = [
        f"{record.node} ({record.state})" for record in state.maintenance.values() if record.node not in state.nodes
    ]
    if gone:
        found.append(Line(f"not running, but drained or to be restarted: {', '.join(gone)}", "yellow"))
    if state.leftovers:
        found.append(Line(f"gone, items not yet reassigned: {', '.join(state.leftovers)}", "yellow"))
    return [*found, "", *_describe_locks(state)]


def _describe_job(job: JobState, most: int | None) -> list[Line]:
    active = f"{job.active_items:,} running" if job.is_running else "none running for longer than a second"
    found = [
        Line(f"job {job.job_id}: {counted(job.items, 'item')}, {len(job.locked):,} locked to run, {active}", "bold")
    ]
    style = "red" if job.consecutive_failures else ""
    found += [Line(f"  {line}", style) for line in job_outcomes.format_outcomes(job, time.time())]
    by_node: dict[str, list[str]] = {}
    for item, node in job.assigned.items():
        by_node.setdefault(node, []).append(item)
    for node, items in sorted(by_node.items()):
        found.append(Line(f"  {node}: {counted(len(items), 'item')}: {join_first(items, most)}"))
    found += [Line(f"  running at {each.node}: {_describe_runs(each, most)}", "green") for each in job.active]
    if unassigned := job.items - len(job.assigned):
        found.append(Line(f"  {counted(unassigned, 'item')} not assigned", "yellow"))
    moving = [f"{item} ({holder})" for item, holder in job.locked.items() if job.assigned.get(item) != holder]
    if moving:
        found.append(Line(f"  still locked elsewhere: {len(moving):,}: {join_first(moving, most)}", "yellow"))
    return found


def _describe_locks(state: ClusterState) -> list[Line]:
    """Return a line for each owner of locks with the number of its locks. Locks of dead nodes and of other programs are
    counted separately.
    """
    held, left, others = Counter[str](), Counter[str](), Counter[str]()
    for lock in state.locks:
        holder = lock.holder
        if holder.label:
            (held if state.is_holder_running(lock) else left)[holder.label] += 1
        else:
            others[f"{holder.host}:{holder.pid}"] += 1
    found = [Line(f"locks held: {held.total():,}{_describe_owners(held)}")]
    if others:
        found.append(Line(f"locks of processes that are no nodes: {others.total():,}{_describe_owners(others)}"))
    if left:
        when = "they run out by themselves"
        found.append(
            Line(f"locks left by holders that are gone: {left.total():,}{_describe_owners(left)}; {when}", "yellow")
        )
    return found


def _describe_owners(count: Counter[str]) -> str:
    owners = ", ".join(f"{label} {number:,}" for label, number in sorted(count.items()))
    return f" ({owners})" if owners else ""


def _describe_runs(each: ActiveRuns, most: int | None) -> str:
    rest = f", {each.items - len(each.named):,} not named" if len(each.named) < each.items else ""
    return f"{counted(each.items, 'item')} since {utc_text(each.since_s)}: {join_first(each.named, most)}{rest}"


def _build_node_table(state: ClusterState) -> Grid:
    rows = []
    for node in state.nodes.values():
        member = node.member
        record = state.maintenance.get(node.node_id)
        role = [member.state, *([record.state] if record else []), *(["manager"] if node.is_manager else [])]
        rows.append(
            {
                "node": node.node_id,
                "state": ", ".join(role),
                "host": member.host,
                "pid": str(member.pid),
                "since": utc_text(member.since),
                "items": f"{sum(len(items) for items in node.assigned.values()):,}",
                "jobs": ", ".join(node.jobs),
            }
        )
    return Grid(rows, right=("pid", "items"))
