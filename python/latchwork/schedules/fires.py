"""Which fire time of a cron schedule is run next, of those that are owed. Pure: the time comes in as an argument.

An item owes each fire time once. What is known of an item is how far it is (``Fired``); a share of items runs together
what its items owe for the same fire time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from zlib import crc32

from latchwork.schedules.schedule import Cron


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
        """The progress under the schedule in force, whose fire times from before it came into force are not owed.

        Args:
            rule: the schedule in force.
            now_s: seconds since the epoch.
            changed_s: when it came into force, if this node saw that; else a change counts from now, when it is found.
        """
        found_s = now_s if self.rule not in {"", rule} else self.through
        return replace(self, rule=rule, through=max(self.through, found_s if changed_s is None else changed_s))


@dataclass(frozen=True, slots=True)
class Jitter:
    """How much later than its fire times a share starts: always the same, so that no start overtakes another.

    Attributes:
        delay_s: seconds by which this share starts later.
        most_s: the most by which any share of the job may; lateness counts from there, so that a start which only waits
            is on time, also when it waited in another share before.
    """

    delay_s: float = 0.0
    most_s: float = 0.0

    @classmethod
    def of(cls, most_s: float, share: str) -> Jitter:
        """The jitter of a share, computed from its name: the same on every node."""
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
    """The earliest fire time that any of the items owes, or waits for; there must be an item."""
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
    """The settings that decide which fire times are owed, as text: progress counted with others does not count."""
    return f"{cron.expression}|{cron.tz}|{cron.misfire}|{cron.on_time_s!r}|{cron.max_lateness_s!r}"
