"""Judges what workflows under faults have left: rows of the database, and lines that the attempts wrote. Pure.

Each fire time, and each key of a start, has exactly one run, and each run ends. Attempts of a task of a run never
overlap, nor do runs of a serial workflow. A success is one that a process wrote down itself, under the claim that the
history has; after it nothing of that task begins. What waits for a task begins after it. A run that is over has
nothing that writes any more. In the store nothing is left.

Lines are in the order in which they were appended, which is the one order that all processes share. What a process
finds itself (its lock is somebody else's) is a line, too: ``overlap`` for a task, ``clash`` for a serial workflow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_SETTLED = frozenset({"success", "failure", "stopped", "paused"})
#: Commands that a state may refuse.
_REFUSABLE = frozenset({"pause", "resume", "stop", "recover", "rerun", "force_start", "force_success"})
#: A clock that is read by ``date`` and by Python, in seconds.
_CLOCK_S = 0.01


class Line(NamedTuple):
    """What an attempt wrote: ``begin``, ``end``, ``fail``, ``overlap``, ``clash``.

    Attributes:
        word: which.
        run_id: of which run.
        task: its name.
        n: the number of the attempt.
        claim: the token of its claim.
        at: seconds since the epoch.
    """

    word: str
    run_id: int
    task: str
    n: int
    claim: int
    at: float


class Fire(NamedTuple):
    """A fire time that was started, and by which command."""

    workflow: str
    time: float
    command: int


class Command(NamedTuple):
    """A command, as it was left."""

    id: int
    type: str
    run_id: int | None
    key: str | None
    is_done: bool
    error: str | None


class Run(NamedTuple):
    """A run, as it was left."""

    id: int
    workflow: str
    state: str
    round: int
    schedule_time: float
    ended_at: float | None


class Task(NamedTuple):
    """A row of a task: of one round of a run."""

    id: int
    run_id: int
    name: str
    round: int
    state: str
    n: int


class Attempt(NamedTuple):
    """A row of the history."""

    task: int
    n: int
    claim: int
    outcome: str | None
    ended_at: float | None


@dataclass
class Facts:
    """What there was at the end.

    Attributes:
        owed: the fire times that each schedule had to start, none of which may be missing.
        after: what each task of a workflow waits for, of those that write lines.
        keys: those that starts were asked with, and the commands that the asker was told of.
        left: what was found in the store.
    """

    lines: Sequence[Line] = ()
    fires: Sequence[Fire] = ()
    commands: Sequence[Command] = ()
    runs: Sequence[Run] = ()
    tasks: Sequence[Task] = ()
    attempts: Sequence[Attempt] = ()
    owed: Mapping[str, Sequence[float]] = field(default_factory=dict)
    after: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    keys: Mapping[str, set[int]] = field(default_factory=dict)
    left: Sequence[str] = ()


def judge(facts: Facts) -> list[str]:
    """What must not have been, each a sentence; empty if all is well."""
    return [
        *_of_fires(facts),
        *_of_commands(facts),
        *_of_runs(facts),
        *_of_overlaps(facts),
        *_of_states(facts),
        *_of_order(facts),
        *(f"{each} is left in the store" for each in facts.left),
    ]


def _of_fires(facts: Facts) -> Iterator[str]:
    by_id = {each.id: each for each in facts.commands}
    started = Counter((each.workflow, each.schedule_time) for each in facts.runs)
    for fire in facts.fires:
        count = started[fire.workflow, fire.time]
        if count != 1:
            yield f"fire time {fire.time:.0f} of {fire.workflow} has {count} runs"
        found = by_id.get(fire.command)
        if found is None or not found.is_done or found.run_id is None:
            yield f"fire time {fire.time:.0f} of {fire.workflow} has the command {found}"
    for workflow, times in facts.owed.items():
        there = {each.time for each in facts.fires if each.workflow == workflow}
        for missing in sorted(set(times) - there):
            yield f"fire time {missing:.0f} of {workflow} was never started"


def _of_commands(facts: Facts) -> Iterator[str]:
    known = {each.id for each in facts.runs}
    by_key: dict[str, list[Command]] = {}
    for each in facts.commands:
        if not each.is_done:
            yield f"command {each.id} ({each.type}) was never done"
        elif each.error is not None and each.type not in _REFUSABLE:
            yield f"command {each.id} ({each.type}) failed: {each.error}"
        if each.key is not None:
            by_key.setdefault(each.key, []).append(each)
    for key, told in facts.keys.items():
        found = by_key.get(key, [])
        if len(found) != 1 or not told <= {found[0].id}:
            yield f"key {key} has the commands {[each.id for each in found]}, and its asker was told of {sorted(told)}"
        elif found[0].type == "start" and found[0].run_id not in known:
            yield f"key {key} has no run"
    taken = Counter(each.run_id for each in facts.commands if each.type in {"start", "timer"} and each.run_id)
    yield from (f"run {run} is that of {count} starts" for run, count in taken.items() if count > 1)


def _of_runs(facts: Facts) -> Iterator[str]:
    last: dict[int, Line] = {}
    for line in facts.lines:
        if line.run_id not in last or last[line.run_id].at < line.at:
            last[line.run_id] = line
    for run in facts.runs:
        if run.state not in _SETTLED:
            yield f"run {run.id} of {run.workflow} never ended: it is {run.state}"
            continue
        line = last.get(run.id)
        if line is not None and run.ended_at is not None and line.at > run.ended_at + _CLOCK_S:
            yield (
                f"run {run.id} of {run.workflow} was over ({run.state}), and {line.at - run.ended_at:.3f} s later its "
                f"{line.task} wrote {line.word!r}"
            )
    known = {run.id for run in facts.runs}
    yield from (f"run {each} wrote lines, and is not there" for each in sorted(last.keys() - known))


def _of_overlaps(facts: Facts) -> Iterator[str]:
    latest: dict[tuple[int, str], int] = {}
    for line in facts.lines:
        of = (line.run_id, line.task)
        if line.word in {"overlap", "clash"}:
            other = "another attempt of it" if line.word == "overlap" else "another run of its workflow"
            yield f"{line.task} of run {line.run_id} (claim {line.claim}) began while {other} was there"
        elif line.word == "begin":
            latest[of] = line.claim
        elif latest.get(of) != line.claim:
            yield (
                f"{line.task} of run {line.run_id}: claim {line.claim} wrote {line.word!r} after claim "
                f"{latest.get(of)} had begun"
            )


def _of_states(facts: Facts) -> Iterator[str]:
    by_id = {each.id: each for each in facts.tasks}
    wrote: dict[tuple[int, str, int], list[str]] = {}
    for line in facts.lines:
        wrote.setdefault((line.run_id, line.task, line.claim), []).append(line.word)
    writers = {(each.run_id, each.name) for each in facts.tasks} & {of[:2] for of in wrote}
    succeeded: dict[int, list[Attempt]] = {}
    for each in facts.attempts:
        task = by_id[each.task]
        words = wrote.get((task.run_id, task.name, each.claim), [])
        where = f"{task.name} of run {task.run_id} (attempt {each.n}, claim {each.claim})"
        if each.outcome is None:
            yield f"{where} never ended"
        elif each.outcome == "success":
            succeeded.setdefault(each.task, []).append(each)
            if words != ["begin", "end"] and (task.run_id, task.name) in writers:
                yield f"{where} has succeeded, and wrote {words}"
        elif each.outcome == "failure" and words != ["begin", "fail"]:
            yield f"{where} has failed, and wrote {words}"
    for task in facts.tasks:
        if task.state == "success" and (task.run_id, task.name) in writers:
            found = succeeded.get(task.id, [])
            if len(found) != 1 or found[0].n != task.n:
                yield f"{task.name} of run {task.run_id} has succeeded, by the attempts {found}"
    yield from _of_what_began(facts, by_id)


def _of_what_began(facts: Facts, by_id: Mapping[int, Task]) -> Iterator[str]:
    """Nothing begins after the success of its row; what the history does not know was followed by what it knows."""
    rows = {(by_id[each.task].run_id, by_id[each.task].name, each.claim): each.task for each in facts.attempts}
    done: dict[int, int] = {}
    open_: dict[tuple[int, str], int] = {}
    ended = {each.task: each.claim for each in facts.attempts if each.outcome == "success"}
    for line in facts.lines:
        row = rows.get((line.run_id, line.task, line.claim))
        if line.word == "begin":
            if row is None:
                open_[line.run_id, line.task] = line.claim
                continue
            open_.pop((line.run_id, line.task), None)
            if row in done:
                yield f"{line.task} of run {line.run_id} began (claim {line.claim}) after its success ({done[row]})"
        elif line.word == "end" and row is not None and ended.get(row) == line.claim:
            done[row] = line.claim
    settled = {each.id: each.state for each in facts.runs}
    for (run_id, task), claim in open_.items():
        if settled.get(run_id) == "success":
            yield f"{task} of run {run_id} ran last under claim {claim}, which is not in the history"


def _of_order(facts: Facts) -> Iterator[str]:
    """Each first line of a task comes after the successes that it waits for, of the same run."""
    workflow = {each.id: each.workflow for each in facts.runs}
    by_id = {each.id: each for each in facts.tasks}
    rows = {(by_id[a.task].run_id, by_id[a.task].name, a.claim): by_id[a.task] for a in facts.attempts}
    ended = {(each.task, each.claim) for each in facts.attempts if each.outcome == "success"}
    done: set[tuple[int, int, str]] = set()
    for line in facts.lines:
        row = rows.get((line.run_id, line.task, line.claim))
        if row is None:
            continue
        if line.word == "end" and (row.id, line.claim) in ended:
            done.add((line.run_id, row.round, line.task))
        elif line.word == "begin":
            for needed in _needed(facts, workflow.get(line.run_id, ""), line.task):
                if (line.run_id, row.round, needed) not in done:
                    yield f"{line.task} of run {line.run_id} began before {needed} had succeeded"


def _needed(facts: Facts, workflow: str, task: str) -> Iterable[str]:
    return facts.after.get(workflow, {}).get(task.partition("[")[0], ())


def line_of(text: str) -> Line:
    """A line as it was written; ValueError for half of one."""
    word, run_id, task, n, claim, at = text.split()
    return Line(word, int(run_id), task, int(n), int(claim), float(at))
