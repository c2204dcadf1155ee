"""Judges the log of an executor under faults: what no task may have gone through, and what each must have. Pure.

A task has one result, and it is the right one. What was cancelled while it was queued never runs. Nothing begins for a
submitter that was seen dead. No two runs of a task are there at a time, and of two the earlier writes nothing with its
fence once the later one has begun.

A run that comes too late, or overlaps another, is forgiven in one case only: its process was frozen, or the machine
did not let it run, or a fault stood between it and the store at that time. Its writes are forgiven nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trials.judges.faults import Fault

#: Seconds from the moment at which somebody saw a submitter dead to the last one at which a task of it may begin: a
#: claim may have been on its way.
_LATE_S = 1.0
#: A stall of so many seconds is as good as a freeze.
_STALL_S = 0.25
#: A fault goes on having its effect for so long: connections come back, sessions end.
_AFTER_S = 3.0
_WRONG = ("TaskDied", "NoSuchTask", "BadPayload", "UnknownFunction", "RemoteError", "ValueError", "WrongValue")


@dataclass(slots=True)
class Run:
    """One run of a task."""

    task: str
    pid: int
    token: int
    start: float
    end: float


@dataclass(slots=True)
class Verdict:
    """What the referee found.

    Attributes:
        violations: what must not have happened, each a sentence.
        tasks: how many were submitted.
        runs: how many runs there were.
        results: how many had a result.
        lost: how many ended because their submitter's session had.
        cancelled: how many were cancelled while they were queued.
        again: runs of tasks that had one before.
        forgiven: overlaps, and late beginnings, of processes that a fault had held up.
        refused: fenced writes that were refused.
    """

    violations: list[str] = field(default_factory=list)
    tasks: int = 0
    runs: int = 0
    results: int = 0
    lost: int = 0
    cancelled: int = 0
    again: int = 0
    forgiven: int = 0
    refused: int = 0


def judge(events: Iterable[Mapping[str, Any]], faults: Iterable[Fault], *, ended_at: float) -> Verdict:
    """Judge a log.

    Args:
        events: as the processes and the watcher of submitters logged them, in any order.
        faults: those that landed; a kill has the time the process was gone as both its times.
        ended_at: when the log ends: each task of a submitter that lives is over by then.
    """
    told, struck = sorted(events, key=lambda event: event["time"]), list(faults)
    killed = {fault.pid: fault.until for fault in struck if fault.kind.startswith("kill") and fault.pid}
    held_up = _HeldUp(told, struck)
    verdict = Verdict(refused=sum(event["event"] == "refused" for event in told))
    runs = _runs(told, killed, ended_at)
    verdict.runs = sum(map(len, runs.values()))
    _judge_results(verdict, told, killed)
    _judge_cancelled(verdict, told, runs, held_up)
    _judge_of_the_dead(verdict, told, held_up)
    copied = {event["task"] for event in told if event["event"] == "submitted" and event["copies"] > 1}
    wrote = _writes(told)
    for task, each in runs.items():
        verdict.again += len(each) - 1
        if task not in copied:
            _judge_overlaps(verdict, each, held_up, wrote)
    return verdict


def _runs(told: list[Mapping[str, Any]], killed: Mapping[int, float], ended_at: float) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    going: dict[tuple[int, str, int], Run] = {}
    for event in told:
        key = (event["pid"], event.get("task", ""), event.get("token", 0))
        if event["event"] == "start":
            run = Run(event["task"], event["pid"], event["token"], event["time"], killed.get(event["pid"], ended_at))
            found.setdefault(run.task, []).append(run)
            going[key] = run
        elif event["event"] == "end" and key in going:
            going.pop(key).end = event["time"]
    return found


class _HeldUp:
    """Whether a fault, or the machine, may have kept a process from acting_for in time."""

    def __init__(self, told: list[Mapping[str, Any]], struck: list[Fault]) -> None:
        self._everybodys = [fault for fault in struck if not fault.pid]
        self._by_pid: dict[int, list[tuple[float, float]]] = {}
        for fault in struck:
            self._by_pid.setdefault(fault.pid, []).append((fault.since, fault.until + _AFTER_S))
        for event in told:
            if event["event"] == "stall" and event["time"] - event["since"] >= _STALL_S:
                self._by_pid.setdefault(event["pid"], []).append((event["since"], event["time"] + _STALL_S))

    def __call__(self, pid: int, since: float, until: float) -> bool:
        near = [*self._by_pid.get(pid, ()), *((one.since, one.until + _AFTER_S) for one in self._everybodys)]
        return any(a <= until and b >= since for a, b in near)


def _judge_results(verdict: Verdict, told: list[Mapping[str, Any]], killed: Mapping[int, float]) -> None:
    """Each task of a submitter that was not killed is over once, and as it should be."""
    over: dict[str, list[Mapping[str, Any]]] = {}
    for event in told:
        if event["event"] == "over":
            over.setdefault(event["task"], []).append(event)
    for event in told:
        if event["event"] != "submitted":
            continue
        verdict.tasks += 1
        task, ends = event["task"], over.get(event["task"], [])
        if len(ends) > 1:
            verdict.violations.append(f"task {task} was over {len(ends)} times: {[end['how'] for end in ends]}")
        elif not ends and event["pid"] not in killed:
            verdict.violations.append(f"task {task} of process {event['pid']} is never over")
        for end in ends:
            verdict.results += end["how"] == "value"
            verdict.lost += end["how"] == "SessionLost"
            if end["how"] in _WRONG:
                verdict.violations.append(f"task {task} ended with {end['how']}: {end['what']}")


def _judge_cancelled(
    verdict: Verdict, told: list[Mapping[str, Any]], runs: Mapping[str, list[Run]], held_up: _HeldUp
) -> None:
    """What was cancelled while it was queued does not run: not later, and not while it was cancelled."""
    for event in told:
        if event["event"] != "cancelled" or event["interrupt"]:
            continue
        verdict.cancelled += 1
        for run in runs.get(event["task"], ()):
            ran_then = run.start <= event["time"] and run.end >= event["time"]
            is_excused = any(held_up(pid, run.start, event["time"]) for pid in (run.pid, event["pid"]))
            if run.start > event["time"] or (ran_then and not is_excused):
                verdict.violations.append(f"task {run.task} was cancelled while it was queued, and ran: {run}")


def _judge_of_the_dead(verdict: Verdict, told: list[Mapping[str, Any]], held_up: _HeldUp) -> None:
    """No task of a submitter begins after that was seen dead."""
    gone = {event["sid"]: event["time"] for event in told if event["event"] == "gone"}
    for event in told:
        if event["event"] != "start":
            continue
        since = gone.get(event["sid"])
        if since is None or event["time"] <= since + _LATE_S:
            continue
        if held_up(event["pid"], since - _AFTER_S, event["time"]):
            verdict.forgiven += 1
        else:
            late_s = event["time"] - since
            verdict.violations.append(f"task {event['task']} began {late_s:.2f} s after its submitter was seen dead")


def _writes(told: list[Mapping[str, Any]]) -> dict[tuple[str, int], int]:
    """Task and fencing token to the token of the last write that got through with it."""
    found: dict[tuple[str, int], int] = {}
    for event in told:
        if event["event"] == "wrote":
            key = (event["task"], event["token"])
            found[key] = max(event["commit"], found.get(key, 0))
    return found


def _judge_overlaps(verdict: Verdict, runs: list[Run], held_up: _HeldUp, wrote: Mapping[tuple[str, int], int]) -> None:
    for number, before in enumerate(runs):
        for after in runs[number + 1 :]:
            newer, older = (before, after) if after.token < before.token else (after, before)
            late = wrote.get((older.task, older.token), 0)
            if after.token == before.token:
                verdict.violations.append(f"{after.task} ran twice with one claim: {before} and then {after}")
            elif late > newer.token:
                verdict.violations.append(f"{after.task}: {older} wrote at {late}, after {newer} had it")
            elif after is older and not held_up(after.pid, after.start, after.start):
                verdict.violations.append(f"{after.task} went back to an older token: {before} and then {after}")
            elif after is newer and after.start < before.end and not held_up(before.pid, before.start, before.end):
                verdict.violations.append(f"{after.task} ran twice at a time: {before} and {after}")
            elif after is older or after.start < before.end:
                verdict.forgiven += 1
