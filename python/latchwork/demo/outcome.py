"""The report of the demo: a pure function from records to whether all promises were kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from latchwork.demo.corpus import Counts
from latchwork.demo.processes import Kill
from latchwork.demo.records import AssignmentRecord, Result, Start

#: The kill has to come in the middle of the work: after this and before that part of it.
EARLIEST, LATEST = 0.30, 0.70


@dataclass(frozen=True, slots=True)
class Rerun:
    """An item that a killed process had started, and the process that ran it again."""

    item: str
    first: str
    again: str


@dataclass(frozen=True, slots=True)
class Takeover:
    """The seconds from the kill until the items of the killed process were elsewhere.

    Attributes:
        items: The number of items.
        interrupted_s: Until the interrupted item was started again.
        owned_s: Until the last of the items had a new owner with its lock; None if that never happened.
        last_start_s: Until the last of the items was started; they queue behind the other items of their new nodes.
        leader_s: Until another process was the manager; None if the manager was not killed.
    """

    items: int
    interrupted_s: float | None
    owned_s: float | None
    last_start_s: float | None
    leader_s: float | None


@dataclass(frozen=True, slots=True)
class Facts:
    """The records on which the report is based, as read at the end."""

    items: int
    kill: Kill | None
    results: Mapping[str, Result]
    starts: Mapping[str, Sequence[Start]]
    assignments: Sequence[AssignmentRecord]
    serial: Counts
    leader_s: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of the demo. `problems` is empty if all promises were kept."""

    problems: tuple[str, ...]
    items: int
    kill: Kill | None
    reruns: tuple[Rerun, ...]
    takeover: Takeover | None
    cluster: Counts
    serial: Counts
    by_node: Mapping[str, int]
    seconds: float
    store: str
    kept: bool

    @property
    def ok(self) -> bool:
        """Whether all guarantees were kept."""
        return not self.problems

    def to_json(self) -> dict[str, object]:
        """Return the report as a JSON document."""
        return {"ok": self.ok, **asdict(self)}


def judge(facts: Facts, *, seconds: float, store: str, kept: bool) -> Report:
    """Compare the records of the demo with the expected ones.

    Args:
        facts: What was recorded.
        seconds: Duration of the demo.
        store: URL of the store.
        kept: Whether the records are kept.
    Returns:
        The report, with all problems.
    """
    cluster = sum((result.counts for result in facts.results.values()), Counts())
    by_node = Counter(result.node for result in facts.results.values())
    kill = facts.kill
    return Report(
        problems=tuple(_problems(facts, cluster)),
        items=facts.items,
        kill=kill,
        reruns=_find_reruns(facts, kill) if kill else (),
        takeover=_takeover(facts, kill) if kill else None,
        cluster=cluster,
        serial=facts.serial,
        by_node=dict(sorted(by_node.items())),
        seconds=round(seconds, 1),
        store=store,
        kept=kept,
    )


def _problems(facts: Facts, cluster: Counts) -> list[str]:
    found = []
    if len(facts.results) != facts.items:
        found.append(f"{facts.items - len(facts.results)} items have no result")
    for each in fields(Counts):
        ours, theirs = getattr(cluster, each.name), getattr(facts.serial, each.name)
        if ours != theirs:
            found.append(f"the cluster counted {ours:,} {each.name}, the serial count is {theirs:,}")
    kill = facts.kill
    if kill is None:
        found.append("no process was killed while it ran an item")
        return found
    if not EARLIEST <= kill.done / facts.items <= LATEST:
        found.append(f"{kill.node} was killed after {kill.done} of {facts.items} items, which is not halfway")
    by_victim = [item for item in kill.owned if item in facts.results and facts.results[item].pid == kill.pid]
    if by_victim:
        found.append(f"{kill.node} had finished {', '.join(by_victim)} when it was killed")
    if not any(rerun.item == kill.item for rerun in _find_reruns(facts, kill)):
        found.append(f"the interrupted item {kill.item} was not run again")
    return found


def _find_reruns(facts: Facts, kill: Kill) -> tuple[Rerun, ...]:
    """Return the items that the killed process had started and that another process started again after the kill."""
    found = []
    for item in kill.owned:
        starts = facts.starts.get(item, ())
        again = [start.node for start in starts if start.pid != kill.pid and start.at_s > kill.at_s]
        if again and any(start.pid == kill.pid for start in starts):
            found.append(Rerun(item, kill.node, again[-1]))
    return tuple(found)


def _takeover(facts: Facts, kill: Kill) -> Takeover:
    started = {item: _first_start(facts.starts.get(item, ()), kill) for item in kill.owned}
    owned = [_compute_takeover_s(facts.assignments, item, kill) for item in kill.owned]
    return Takeover(
        items=len(kill.owned),
        interrupted_s=started.get(kill.item),
        owned_s=_greatest(owned),
        last_start_s=_greatest(list(started.values())),
        leader_s=facts.leader_s,
    )


def _first_start(starts: Sequence[Start], kill: Kill) -> float | None:
    return _least([start.at_s - kill.at_s for start in starts if start.at_s > kill.at_s])


def _compute_takeover_s(assignments: Sequence[AssignmentRecord], item: str, kill: Kill) -> float | None:
    """Return the seconds from the kill until an item was assigned to another node. None if it never was.

    Args:
        assignments: The items that were assigned to each node when one of its runs began.
        item: The item.
        kill: The kill.
    """
    later = [
        assignment
        for assignment in assignments
        if assignment.at_s > kill.at_s and assignment.node != kill.node and item in assignment.items
    ]
    return _least([assignment.at_s - kill.at_s for assignment in later])


def _least(seconds: list[float]) -> float | None:
    return round(min(seconds), 2) if seconds else None


def _greatest(seconds: list[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return max(known) if known and len(known) == len(seconds) else None
