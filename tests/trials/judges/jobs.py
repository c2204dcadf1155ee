"""Judges the log of a chaos run: what must never have happened, and what must have. Pure.

An overlap of two runs of an item is forgiven in one case only: the process of the earlier one was frozen, or did not
get to run for as long as the locks leave to stop in, and nothing that it wrote with its fence after the later one had
the lock got through.

A fire time may be run again in one case only: the earlier run was cut short (told to stop, or its process died), or a
fault stood between it and the store when its end was to be written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from trials.judges.faults import Fault

#: A fault over at most so long before a run ended, or begun so soon after, may have kept the end from being written
#: down: connections come back, and calls go on, for as long as that.
_BEFORE_S, _AFTER_S = 2.0, 1.0
#: A run told to stop so soon after it logged its end may not have been over yet; so soon before its start, likewise.
_ENDING_S = 0.2


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
    died: bool = False


@dataclass(slots=True)
class Verdict:
    """What the referee found.

    Attributes:
        violations: what must not have happened, each a sentence.
        runs: how many runs there were.
        forgiven: overlaps of frozen processes whose later writes were all refused.
        starved: those of them that no fault of ours froze, but the machine.
        again: runs for a fire time that was run before, and cut short.
        refused: fenced writes that were refused.
    """

    violations: list[str] = field(default_factory=list)
    runs: int = 0
    forgiven: int = 0
    starved: int = 0
    again: int = 0
    refused: int = 0


def judge(
    events: Iterable[Mapping[str, Any]],
    faults: Iterable[Fault],
    *,
    items: Iterable[tuple[str, str]],
    ended_at: float,
    bound_s: float,
    once_per_fire: frozenset[str] = frozenset(),
    every_fire_s: Mapping[str, float] | None = None,
    lock_ttl_s: float = 2.0,
    one_file: bool = False,
) -> Verdict:
    """Judge a log.

    Args:
        events: as the nodes logged them, in any order.
        faults: those that landed; a kill has the time the process was gone as both its times.
        items: job and item of everything that has to run.
        ended_at: when the nodes were told to close.
        bound_s: seconds after the last fault within which each item must have run again.
        once_per_fire: jobs on a cron schedule: no two runs of an item for one fire time, but of interrupted ones.
        every_fire_s: those of them that make up for every fire time, and the seconds between two: none is left out.
        lock_ttl_s: the TTL of the items' locks.
        one_file: the nodes share a file, which any frozen process may have locked.
    """
    told, struck = list(events), list(faults)
    verdict = Verdict(refused=sum(event["event"] == "refused" for event in told))
    killed = {fault.pid: fault.until for fault in struck if fault.kind.startswith("kill")}
    frozen = _Frozen(told, struck, lock_ttl_s)
    cut_short = _CutShort(told, struck, frozen, one_file=one_file)
    wrote = _writes(told)
    by_item = _runs(told)
    verdict.runs = sum(map(len, by_item.values()))
    for (job, _), runs in sorted(by_item.items()):
        runs.sort(key=lambda run: run.start)
        for run in runs:
            run.died = run.end is None
            run.end = run.end if run.end is not None else killed.get(run.pid, ended_at)
        _judge_order(verdict, runs)
        _judge_overlaps(verdict, runs, frozen, wrote)
        if job in once_per_fire:
            _judge_fires(verdict, runs, cut_short)
        if every_fire_s is not None and job in every_fire_s:
            _judge_gaps(verdict, runs, every_fire_s[job])
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


class _Frozen:
    """In which times processes did not get to run: stopped by us, or starved by the machine."""

    def __init__(self, events: list[Mapping[str, Any]], faults: list[Fault], lock_ttl_s: float) -> None:
        self._ttl_s = lock_ttl_s
        self._ours: dict[int, list[tuple[float, float]]] = {}
        self._stalls: dict[int, list[tuple[float, float]]] = {}
        for fault in faults:
            if fault.kind.startswith("freeze"):
                self._ours.setdefault(fault.pid, []).append((fault.since, fault.until))
        for event in events:
            if event["event"] == "stall":
                self._stalls.setdefault(event["pid"], []).append((event["since"], event["time"]))

    def by_us(self, before: Run, after: Run) -> bool:
        """Whether a fault froze the earlier run so that it may have missed the moment to stop."""
        assert before.end is not None
        since = max(before.start, after.start - 2 * self._ttl_s)
        return any(a < before.end and b > since for a, b in self._ours.get(before.pid, ()))

    def starved(self, pid: int, since: float, until: float) -> bool:
        """Whether the machine kept a process from running for as long as the locks leave to stop in, a quarter."""
        stalls = self._stalls.get(pid, ())
        return sum(max(0.0, min(b, until) - max(a, since)) for a, b in stalls) >= self._ttl_s / 4

    def by_the_machine(self, before: Run, after: Run) -> bool:
        """Whether the earlier run was starved when it should have been told to stop, or looked."""
        assert before.end is not None
        return self.starved(before.pid, after.start - self._ttl_s, before.end)


class _CutShort:
    """Whether a run may be made again for its fire time."""

    def __init__(
        self, events: list[Mapping[str, Any]], faults: list[Fault], frozen: _Frozen, *, one_file: bool
    ) -> None:
        self._frozen = frozen
        self._told: dict[tuple[int, str], list[float]] = {}
        for event in events:
            if event["event"] == "told":
                self._told.setdefault((event["pid"], event["item"]), []).append(event["time"])
        self._everybodys = [
            fault for fault in faults if fault.kind.endswith("server") or (one_file and fault.kind.startswith("freeze"))
        ]
        self._by_pid: dict[int, list[Fault]] = {}
        for fault in faults:
            self._by_pid.setdefault(fault.pid, []).append(fault)

    def __call__(self, run: Run) -> bool:
        assert run.end is not None
        told = self._told.get((run.pid, run.item), ())
        if run.died or any(run.start - _ENDING_S <= time <= run.end + _ENDING_S for time in told):
            return True
        since, until = run.end - _BEFORE_S, run.end + _AFTER_S
        near = (*self._everybodys, *self._by_pid.get(run.pid, ()))
        return any(fault.since <= until and fault.until >= since for fault in near) or self._frozen.starved(
            run.pid, since, until
        )


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


def _judge_overlaps(verdict: Verdict, runs: list[Run], frozen: _Frozen, wrote: Mapping[Any, int]) -> None:
    for number, before in enumerate(runs):
        for after in runs[number + 1 :]:
            assert before.end is not None
            if after.start >= before.end:
                continue
            by_us = frozen.by_us(before, after)
            was_frozen = by_us or frozen.by_the_machine(before, after)
            late = wrote.get((before.item, before.token), 0)
            if before.pid == after.pid or not was_frozen:
                verdict.violations.append(f"{after.item} ran twice at a time: {before} and {after}")
            elif late > after.token:
                verdict.violations.append(f"{after.item}: {before} wrote at {late}, after {after} had the lock")
            else:
                verdict.forgiven += 1
                verdict.starved += not by_us


def _judge_fires(verdict: Verdict, runs: list[Run], cut_short: _CutShort) -> None:
    for before, after in pairwise(runs):
        if before.fire is not None and after.fire is not None and after.fire < before.fire:
            verdict.violations.append(f"{after.item} went back to an older fire time: {before} and then {after}")
    fired = sorted((run for run in runs if run.fire is not None), key=lambda run: (run.fire, run.start))
    for _, group in groupby(fired, key=lambda run: run.fire):
        for before, after in pairwise(group):
            verdict.again += 1
            if not cut_short(before):
                verdict.violations.append(f"{after.item} started twice for one fire time: {before} and then {after}")


def _judge_gaps(verdict: Verdict, runs: list[Run], period_s: float) -> None:
    fires = sorted({run.fire for run in runs if run.fire is not None})
    for before, after in pairwise(fires):
        if after - before > 1.5 * period_s:
            verdict.violations.append(f"{runs[0].item} left out the fire times between {before:.0f} and {after:.0f}")


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
