"""Judges the log of a chaos run: what must never have happened, and what must have. Pure.

An overlap of two runs of an item is forgiven in one case only: the process of the earlier one was frozen, and nothing
that it wrote with its fence after the later one had the lock got through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(slots=True)
class Run:
    """One run of one item."""

    job: str
    item: str
    node: str
    pid: int
    token: int
    start: float
    end: float | None = None
    fire: float | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that landed, with the time it began and the time it was over."""

    kind: str
    since: float
    until: float
    pid: int = 0


@dataclass(slots=True)
class Verdict:
    """What the referee found.

    Attributes:
        violations: what must not have happened, each a sentence.
        runs: how many runs there were.
        forgiven: overlaps of frozen processes whose later writes were all refused.
        refused: fenced writes that were refused.
    """

    violations: list[str] = field(default_factory=list)
    runs: int = 0
    forgiven: int = 0
    refused: int = 0


def judge(
    events: Iterable[Mapping[str, Any]],
    faults: Iterable[Fault],
    *,
    items: Iterable[tuple[str, str]],
    ended_at: float,
    bound_s: float,
    once_per_fire: frozenset[str] = frozenset(),
) -> Verdict:
    """Judge a log.

    Args:
        events: as the nodes logged them, in any order.
        faults: those that landed; a kill has the time the process was gone as both its times.
        items: job and item of everything that has to run.
        ended_at: when the nodes were told to close.
        bound_s: seconds after the last fault within which each item must have run again.
        once_per_fire: jobs on a cron schedule: no two runs of an item for one fire time, but of interrupted ones.
    """
    told, struck = list(events), list(faults)
    verdict = Verdict(refused=sum(event["event"] == "refused" for event in told))
    killed = {fault.pid: fault.until for fault in struck if fault.kind.startswith("kill")}
    frozen = _frozen(told, struck)
    wrote = _writes(told)
    by_item = _runs(told)
    verdict.runs = sum(map(len, by_item.values()))
    for (job, _), runs in sorted(by_item.items()):
        runs.sort(key=lambda run: run.start)
        for run in runs:
            run.end = run.end if run.end is not None else killed.get(run.pid, ended_at)
        _judge_order(verdict, runs)
        _judge_overlaps(verdict, runs, frozen, wrote)
        if job in once_per_fire:
            _judge_fires(verdict, runs)
    last = max((fault.until for fault in struck), default=0.0)
    if last + bound_s <= ended_at:
        _judge_liveness(verdict, by_item, items, last, bound_s)
    return verdict


def _runs(events: list[Mapping[str, Any]]) -> dict[tuple[str, str], list[Run]]:
    found: dict[tuple[str, str], list[Run]] = {}
    going: dict[tuple[int, str, int], Run] = {}
    for event in sorted(events, key=lambda event: event["time"]):
        key = (event["pid"], event.get("item", ""), event.get("token", 0))
        if event["event"] == "start":
            run = Run(event["job"], event["item"], event["node"], event["pid"], event["token"], event["time"])
            run.fire = event.get("fire")
            found.setdefault((run.job, run.item), []).append(run)
            going[key] = run
        elif event["event"] == "end" and key in going:
            going.pop(key).end = event["time"]
    return found


def _frozen(events: list[Mapping[str, Any]], faults: list[Fault]) -> dict[int, list[tuple[float, float]]]:
    """Process to the times in which it did not get to run: stopped by us, or starved by the machine."""
    found: dict[int, list[tuple[float, float]]] = {}
    for fault in faults:
        if fault.kind.startswith("freeze"):
            found.setdefault(fault.pid, []).append((fault.since, fault.until))
    for event in events:
        if event["event"] == "stall":
            found.setdefault(event["pid"], []).append((event["since"], event["time"]))
    return found


def _writes(events: list[Mapping[str, Any]]) -> dict[tuple[str, int], int]:
    """Item and fencing token to the token of the last write that got through with it."""
    found: dict[tuple[str, int], int] = {}
    for event in events:
        if event["event"] == "wrote":
            key = (event["item"], event["token"])
            found[key] = max(event["commit"], found.get(key, 0))
    return found


def _judge_order(verdict: Verdict, runs: list[Run]) -> None:
    for before, after in pairwise(runs):
        if after.token < before.token:
            verdict.violations.append(f"{after.item} went back to an older token: {before} and then {after}")


def _judge_overlaps(
    verdict: Verdict, runs: list[Run], frozen: Mapping[int, list[tuple[float, float]]], wrote: Mapping[Any, int]
) -> None:
    for number, before in enumerate(runs):
        for after in runs[number + 1 :]:
            assert before.end is not None
            if after.start >= before.end:
                continue
            was_frozen = any(a < before.end and b > before.start for a, b in frozen.get(before.pid, ()))
            late = wrote.get((before.item, before.token), 0)
            if before.pid == after.pid or not was_frozen:
                verdict.violations.append(f"{after.item} ran twice at a time: {before} and {after}")
            elif late > after.token:
                verdict.violations.append(f"{after.item}: {before} wrote at {late}, after {after} had the lock")
            else:
                verdict.forgiven += 1


def _judge_fires(verdict: Verdict, runs: list[Run]) -> None:
    for before, after in pairwise(runs):
        if before.fire is not None and after.fire is not None and after.fire < before.fire:
            verdict.violations.append(f"{after.item} went back to an older fire time: {before} and then {after}")


def _judge_liveness(
    verdict: Verdict,
    by_item: Mapping[tuple[str, str], list[Run]],
    items: Iterable[tuple[str, str]],
    last: float,
    bound_s: float,
) -> None:
    for key in sorted(items):
        after = [run.start for run in by_item.get(key, ()) if run.start > last]
        if not after or min(after) > last + bound_s:
            came = f"after {min(after) - last:.1f} s" if after else "not at all"
            verdict.violations.append(f"{key[1]} ran again {came}, {bound_s:.1f} s were allowed after the last fault")
