"""Which fire time of a cron schedule an item runs next, and how a share's progress is written down. Pure.

Keys:   fired/<job>/<cell>         JSON; how far the items of one cell are, rewritten at each start and each end
        fired/<job>/<cell>/items   JSON list; the items of the cell, sorted, written once

A cell belongs to one holder of locks, and has the greatest fencing token of its items' locks in it. Who holds an item
later got its lock later, so of two cells with one item the greater token is the newer, whenever either was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from zlib import crc32

from latchwork.errors import LatchworkError
from latchwork.schedules.schedule import Cron

FIRED = "fired"


class BadCell(LatchworkError, ValueError):
    """What is stored as progress is none of ours."""


@dataclass(frozen=True, slots=True)
class Fired:
    """How far one item is.

    Attributes:
        through: every fire time up to this one is settled, in seconds since the epoch.
        running: the fire time whose run was begun and has not ended, None when there is none.
        rule: the schedule that this was counted with, as ``rule_of`` has it; empty when that is not known.
    """

    through: float
    running: float | None = None
    rule: str = ""

    def begin(self, at: float) -> Fired:
        """Its run of this fire time is begun."""
        return replace(self, through=max(self.through, at), running=at)

    def end(self) -> Fired:
        """Its run has ended."""
        return replace(self, running=None)

    def under(self, rule: str, now_s: float, changed_s: float | None) -> Fired:
        """The same under the schedule that is in force: of that one, fire times from before it was are none.

        Args:
            rule: the schedule in force.
            now_s: seconds since the epoch.
            changed_s: when it came into force, if this node saw that; else a change counts from now, when it is found.
        """
        found_s = now_s if self.rule not in {"", rule} else self.through
        return replace(self, rule=rule, through=max(self.through, found_s if changed_s is None else changed_s))


@dataclass(frozen=True, slots=True)
class Jitter:
    """How much later than at its fire times a share starts: always by the same, so none is overtaken by the next.

    Attributes:
        delay_s: by how much this share does.
        most_s: by how much any share of the job may: what is late is counted from there, so that a start which only
            waits is on time, also when it waited in another share before.
    """

    delay_s: float = 0.0
    most_s: float = 0.0

    @classmethod
    def of(cls, most_s: float, share: str) -> Jitter:
        """That of a share, found by its name: the same on every node."""
        return cls(most_s * crc32(share.encode()) / 2**32, most_s)


NO_JITTER = Jitter()


@dataclass(frozen=True, slots=True)
class Step:
    """What a share does next.

    Attributes:
        at: the fire time, in seconds since the epoch.
        items: who runs it: sorted, not empty.
        wait_s: seconds until it starts; 0 or less when that has come.
        is_rerun: it was begun before, and interrupted.
    """

    at: float
    items: tuple[str, ...]
    wait_s: float
    is_rerun: bool = False


def next_step(cron: Cron, progress: Mapping[str, Fired], now_s: float, jitter: Jitter = NO_JITTER) -> Step:
    """The earliest fire time that any of the items owes, or waits for; not for no items."""
    groups: dict[Fired, list[str]] = {}
    for item, fired in progress.items():
        groups.setdefault(fired, []).append(item)
    owed = [(*next_fire(cron, fired, now_s, jitter), items) for fired, items in groups.items()]
    at = min(at for at, _, _ in owed)
    items = sorted(item for fire, _, items in owed if fire == at for item in items)
    is_rerun = any(again for fire, again, _ in owed if fire == at)
    wait_s = at - now_s if is_rerun else at + jitter.delay_s - now_s  # what was begun has waited
    return Step(at, tuple(items), wait_s, is_rerun)


def next_fire(cron: Cron, fired: Fired, now_s: float, jitter: Jitter = NO_JITTER) -> tuple[float, bool]:
    """The fire time that an item runs next, which may be past, and whether that run was begun before.

    A fire time has come for a share when its part of the jitter has passed too.
    """
    oldest = now_s - jitter.most_s - cron.max_lateness_s
    on_time_s = jitter.most_s + cron.on_time_s
    come_s = now_s - jitter.delay_s
    if fired.running is not None and cron.rerun_interrupted and fired.running >= oldest:
        return fired.running, True
    if cron.misfire == "all":
        return cron.fire_after(max(fired.through, oldest)), False
    newest = cron.fire_before(come_s, oldest)
    if newest is not None and newest > fired.through and (cron.misfire == "once" or now_s - newest <= on_time_s):
        return newest, False
    return cron.fire_after(max(fired.through, come_s)), False


def rule_of(cron: Cron) -> str:
    """What decides which fire times are owed, as a text: progress that was counted with another one is another's."""
    return f"{cron.expression}|{cron.tz}|{cron.misfire}|{cron.on_time_s!r}|{cron.max_lateness_s!r}"


@dataclass(frozen=True, slots=True)
class Cell:
    """The progress of some items that one holder has locked.

    Attributes:
        name: names it below the job, never used twice.
        token: the greatest fencing token of its items' locks.
        owner: the owner of those locks.
        items: sorted, unique, not empty.
        fired: of each item, in the same order.
    """

    name: str
    token: int
    owner: str
    items: tuple[str, ...]
    fired: tuple[Fired, ...]

    def state(self, nonce: str) -> bytes:
        """The value of its state key; the nonce tells one write from another."""
        kinds = list(dict.fromkeys(self.fired))
        number = {kind: index for index, kind in enumerate(kinds)}
        body: dict[str, Any] = {
            "token": self.token,
            "owner": self.owner,
            "nonce": nonce,
            "fired": [[kind.through, kind.running] for kind in kinds],
        }
        if any(kind.rule for kind in kinds):
            body["rules"] = [kind.rule for kind in kinds]
        if len(kinds) > 1:
            body["of"] = [[index, len(list(run))] for index, run in groupby(number[each] for each in self.fired)]
        return json.dumps(body, separators=(",", ":")).encode()

    def names(self) -> bytes:
        """The value of its items key."""
        return json.dumps(self.items, ensure_ascii=False, separators=(",", ":")).encode()


def decode_cell(name: str, state: bytes, items: bytes) -> Cell:
    """The cell that these values stand for.

    Raises:
        BadCell: they are none of ours.
    """
    try:
        body, listed = json.loads(state), json.loads(items)
        rules = body.get("rules", [""] * len(body["fired"]))
        kinds = [
            Fired(float(through), None if running is None else float(running), str(rule))
            for (through, running), rule in zip(body["fired"], rules, strict=True)
        ]
        runs = body.get("of", [[0, len(listed)]])
        fired = [kinds[index] for index, count in runs for _ in range(count)]
        cell = Cell(name, int(body["token"]), str(body["owner"]), tuple(map(str, listed)), tuple(fired))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        msg = f"progress cell {name} cannot be read: {type(error).__name__}: {error}"
        raise BadCell(msg) from error
    if len(cell.items) != len(cell.fired) or not cell.items:
        msg = f"progress cell {name} cannot be read: it has {len(cell.items)} items and {len(cell.fired)} states"
        raise BadCell(msg)
    return cell


def newest_by_item(cells: Iterable[Cell]) -> dict[str, tuple[Cell, Fired]]:
    """For each item its newest cell, and how far it is there."""
    found: dict[str, tuple[Cell, Fired]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.token, cell.name)):
        found.update({item: (cell, fired) for item, fired in zip(cell.items, cell.fired, strict=True)})
    return found


def useless(cells: Sequence[Cell], pool: frozenset[str] | None = None) -> list[Cell]:
    """The cells whose every item has a newer one, or is not in the pool any more."""
    newest = newest_by_item(cells)
    return [
        cell
        for cell in cells
        if all(newest[item][0] is not cell or (pool is not None and item not in pool) for item in cell.items)
    ]
