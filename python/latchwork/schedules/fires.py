"""Selection of the next fire time of a cron schedule, including missed ones. Pure: the time is an argument.

Each item runs once for each fire time. The progress of an item is a ``Fired``. The items of a node that run for the
same fire time run together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from zlib import crc32

from latchwork.schedules.schedule import Cron

#: Progress that lies more seconds in the future comes from a clock that was ahead.
AHEAD_S = 60.0


@dataclass(frozen=True, slots=True)
class FireProgress:
    """Which fire times of an item's cron schedule have been handled.

    Attributes:
        through: Nothing is left to do for fire times up to this one, in seconds since the epoch.
        running: Fire time whose run has started and not ended; None if there is none.
        rule: Schedule that the progress belongs to, see ``describe_rule``; empty if unknown.
    """

    through: float
    running: float | None = None
    rule: str = ""

    def after_start(self, at: float) -> FireProgress:
        """Return the progress after the run for a fire time has started.

        Args:
            at: The fire time in seconds since the epoch.
        """
        return replace(self, through=max(self.through, at), running=at)

    def after_end(self) -> FireProgress:
        """Return the progress after the active run has ended."""
        return replace(self, running=None)

    def ahead_s(self, now_s: float) -> float:
        """Return the seconds by which the progress lies in the future. Differences that clocks usually have count
        as 0.
        """
        return self.through - now_s if self.through > now_s + AHEAD_S else 0.0

    def without_future(self, now_s: float) -> FireProgress:
        """Return the progress reset to now if it lies in the future, because a clock was ahead. Otherwise return it
        unchanged.
        """
        return replace(self, through=now_s) if self.ahead_s(now_s) else self

    def with_rule(self, rule: str, now_s: float, changed_s: float | None) -> FireProgress:
        """Return the progress for the current schedule. If the schedule has changed, earlier fire times are skipped.

        Args:
            rule: The current schedule, as ``describe_rule`` returns it.
            now_s: Current time in seconds since the epoch.
            changed_s: Time at which this node saw the schedule change; None if it did not see a change. Then a change
                counts from now.
        """
        found_s = now_s if self.rule not in {"", rule} else self.through
        return replace(self, rule=rule, through=max(self.through, found_s if changed_s is None else changed_s))


@dataclass(frozen=True, slots=True)
class Jitter:
    """The delay between the fire times and the starts of a run. It is constant, so that no start overtakes another.

    Attributes:
        delay_s: Delay of this run in seconds.
        most_s: Greatest delay of any run of the job. Lateness counts from there, so that a delayed start is on time,
            even if its items waited in another run before.
    """

    delay_s: float = 0.0
    most_s: float = 0.0

    @classmethod
    def from_name(cls, most_s: float, name: str) -> Jitter:
        """Compute the jitter of a run from a name, which gives the same result on every node.

        Args:
            most_s: Maximum delay in seconds.
            name: Text that all nodes derive from the run in the same way.
        """
        return cls(most_s * crc32(name.encode()) / 2**32, most_s)


NO_JITTER = Jitter()


@dataclass(frozen=True, slots=True)
class CronStep:
    """The next start of a run on a cron schedule.

    Attributes:
        at: Fire time in seconds since the epoch.
        items: Sorted items to run (at least one).
        wait_s: Seconds until it starts; 0 or less if it is due.
        is_rerun: Whether it was started before and interrupted.
    """

    at: float
    items: tuple[str, ...]
    wait_s: float
    is_rerun: bool = False


def find_next_step(
    cron: Cron, progress: Mapping[str, FireProgress], now_s: float, jitter: Jitter = NO_JITTER
) -> CronStep:
    """Return the next start: the earliest fire time that any of the items needs, with all items that need it.

    Args:
        cron: The schedule.
        progress: Progress of each item (at least one).
        now_s: Current time in seconds since the epoch.
        jitter: Delay of starts after their fire times.
    """
    groups: dict[FireProgress, list[str]] = {}
    for item, fired in progress.items():
        groups.setdefault(fired, []).append(item)
    candidates = [(*find_next_fire(cron, fired, now_s, jitter), items) for fired, items in groups.items()]
    at = min(at for at, _, _ in candidates)
    items = sorted(item for fire, _, items in candidates if fire == at for item in items)
    is_rerun = any(again for fire, again, _ in candidates if fire == at)
    wait_s = at - now_s if is_rerun else at + jitter.delay_s - now_s  # an interrupted run has waited already
    return CronStep(at, tuple(items), wait_s, is_rerun)


def find_next_fire(cron: Cron, fired: FireProgress, now_s: float, jitter: Jitter = NO_JITTER) -> tuple[float, bool]:
    """Return the next fire time of an item, which may be in the past, and whether it repeats an interrupted run.

    Args:
        cron: The schedule.
        fired: Progress of the item.
        now_s: Current time in seconds since the epoch.
        jitter: Delay of starts after their fire times.
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


def describe_rule(cron: Cron) -> str:
    """Return a text with the settings of a schedule that determine its fire times.

    Progress that was stored with other settings is not comparable.
    """
    return f"{cron.expression}|{cron.tz}|{cron.misfire}|{cron.on_time_s!r}|{cron.max_lateness_s!r}"
