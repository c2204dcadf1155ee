"""Settings of a cluster that change while it runs: switches, and options that override those of the code.

Nothing here touches the network.

Keys:   settings/cluster        JSON; what holds for all jobs, and for the manager
        settings/jobs/<job>     JSON; what holds for one job

A field that is absent means: as the code says. A field that this version does not know, or whose value it cannot use,
is left alone and reported, so that two versions may share a cluster.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from latchwork.errors import LatchworkError
from latchwork.jobs.job.job import Job, Threads
from latchwork.jobs.worker.guard import LEAST_GRACE_S
from latchwork.schedules.schedule import Cron, FixedDelay, FixedRate, Schedule

SETTINGS = "settings"
CLUSTER = "settings/cluster"
JOBS = "settings/jobs"

T = TypeVar("T")


class InvalidSetting(LatchworkError, ValueError):
    """A setting cannot be used; the message names it."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of a job that hold now: the cluster's settings where there are any, else what the code says.

    ``schedule_since_s`` is when the node saw the schedule come into force, in seconds since the epoch; None when it has
    held since the node started.
    """

    schedule: Schedule
    initial_delay_s: float | None
    pool_check_period_s: float
    threads: Threads
    jitter_s: float = 0.0
    schedule_since_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What is set for one job; None is what the code says.

    Attributes:
        enabled: its switch; None leaves it to the default.
        threads: runs at a time on a node, 0 for one per item.
        schedule: when it runs.
        initial_delay_s: seconds before the first run on a node.
        pool_check_period_s: seconds between two reads of its work pool; 0 for never.
        jitter_s: runs start up to so many seconds later, at random.
    """

    enabled: bool | None = None
    threads: int | None = None
    schedule: Schedule | None = None
    initial_delay_s: float | None = None
    pool_check_period_s: float | None = None
    jitter_s: float | None = None

    def over(self, job: Job) -> JobOptions:
        """The options that hold for the job."""
        return JobOptions(
            schedule=_either(self.schedule, job.schedule),
            initial_delay_s=_either(self.initial_delay_s, job.initial_delay_s),
            pool_check_period_s=_either(self.pool_check_period_s, job.pool_check_period_s),
            threads=job.threads if self.threads is None else Threads(self.threads),
            jitter_s=_either(self.jitter_s, job.jitter_s),
        )


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What is set for the whole cluster; None is what the code says.

    Attributes:
        all_disabled: no job runs anywhere, whatever its switch says.
        default_enabled: whether jobs without a switch run; None is yes.
        debounce_s: seconds without a change before a rebalance.
        debounce_max_s: seconds after the first change when it comes at the latest.
        cleanup_period_s: seconds between two cleanings of jobs that no living node can run; 0 for never.
        sweep_period_s: seconds between two sweeps of what dead nodes left locked; 0 for never.
        stop_timeout_s: seconds after which a run that was told to stop and did not is reported.
        close_timeout_s: seconds that a closing node waits for its runs.
        disconnect_grace_s: seconds that a node out of reach of the store lets its runs go on, at least 0.3; cut
            by each node to what its own TTLs allow.
    """

    all_disabled: bool | None = None
    default_enabled: bool | None = None
    debounce_s: float | None = None
    debounce_max_s: float | None = None
    cleanup_period_s: float | None = None
    sweep_period_s: float | None = None
    stop_timeout_s: float | None = None
    close_timeout_s: float | None = None
    disconnect_grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a cluster at one moment.

    Attributes:
        cluster: what holds for all jobs.
        jobs: what holds for one job, by job id; jobs without settings are absent.
    """

    cluster: ClusterSettings = ClusterSettings()
    jobs: Mapping[str, JobSettings] = field(default_factory=dict)

    def job(self, job_id: str) -> JobSettings:
        """What is set for a job."""
        return self.jobs.get(job_id, JobSettings())

    def is_enabled(self, job_id: str) -> bool:
        """Whether a job may run: "all disabled" beats its switch, its switch beats the default."""
        if self.cluster.all_disabled:
            return False
        switch = self.job(job_id).enabled
        return self.cluster.default_enabled is not False if switch is None else switch


def encode(settings: JobSettings | ClusterSettings) -> dict[str, Any]:
    """The fields that are set, for JSON."""
    found = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return {
        name: encode_schedule(value) if name == "schedule" else value
        for name, value in found.items()
        if value is not None
    }


def decode_job(document: Mapping[str, Any]) -> tuple[JobSettings, list[str]]:
    """A job's settings, and what is wrong with the fields that were left out."""
    return _decode(JobSettings(), document)


def decode_cluster(document: Mapping[str, Any]) -> tuple[ClusterSettings, list[str]]:
    """The cluster's settings, and what is wrong with the fields that were left out."""
    return _decode(ClusterSettings(), document)


def check(name: str, value: Any) -> Any:
    """A setting's value as it is kept.

    Raises:
        InvalidSetting: it cannot be used; the message names the setting.
    """
    reader = _READERS.get(name)
    if reader is None:
        raise InvalidSetting(f"setting {name!r} is not known; known are {', '.join(sorted(_READERS))}")
    return reader(name, value)


def encode_schedule(schedule: Schedule) -> dict[str, Any]:
    """A schedule for JSON.

    Raises:
        InvalidSetting: it is one of the user's own, which other nodes may not know.
    """
    if isinstance(schedule, FixedDelay):
        return {"fixed_delay_s": schedule.delay_s}
    if isinstance(schedule, FixedRate):
        return {"fixed_rate_s": schedule.period_s}
    if isinstance(schedule, Cron):
        given = {each.name: getattr(schedule, each.name) for each in fields(schedule) if each.name != "expression"}
        return {"cron": schedule.expression, **given}
    raise InvalidSetting(f"schedule {schedule!r} cannot be stored; give a FixedDelay, a FixedRate or a Cron")


def parse_document(value: bytes) -> dict[str, Any]:
    """A stored document.

    Raises:
        InvalidSetting: it is no JSON object.
    """
    try:
        document = json.loads(value)
    except ValueError as error:
        raise InvalidSetting(f"it is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidSetting("it is no JSON object")
    return document


def _either(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


_Settings = TypeVar("_Settings", JobSettings, ClusterSettings)


def _decode(empty: _Settings, document: Mapping[str, Any]) -> tuple[_Settings, list[str]]:
    known = {each.name for each in fields(empty)}
    good: dict[str, Any] = {}
    bad = []
    for name, value in document.items():
        if name == "changed" or value is None:
            continue
        if name not in known:
            bad.append(f"setting {name!r} is not known to this version")
            continue
        try:
            good[name] = check(name, value)
        except InvalidSetting as error:
            bad.append(str(error))
    return replace(empty, **good), bad


def _bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidSetting(f"setting {name} is {value!r}; give true or false")
    return value


def _count(name: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise InvalidSetting(f"setting {name} is {value!r}; give a whole number, 0 for one thread per item")
    return value


def _seconds(name: str, value: object) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    if not good or not isinstance(value, (int, float)):
        raise InvalidSetting(f"setting {name} is {value!r}; give a finite number of seconds, 0 or more")
    return float(value)


def _grace(name: str, value: object) -> float:
    seconds = _seconds(name, value)
    if seconds < LEAST_GRACE_S:
        raise InvalidSetting(f"setting {name} is {seconds:g}; give at least {LEAST_GRACE_S:g} seconds")
    return seconds


def _schedule(name: str, value: object) -> Schedule:
    if isinstance(value, (FixedDelay, FixedRate, Cron)):
        return value
    makers: dict[str, Callable[[dict[str, Any]], Schedule]] = {
        "fixed_delay_s": lambda given: FixedDelay(given["fixed_delay_s"]),
        "fixed_rate_s": lambda given: FixedRate(given["fixed_rate_s"]),
        "cron": lambda given: Cron(given.pop("cron"), **given),
    }
    kind = next((kind for kind in makers if isinstance(value, dict) and kind in value), None)
    if kind is None:
        raise InvalidSetting(f"setting {name} is {value!r}; give one of {', '.join(makers)}")
    try:
        return makers[kind](dict(value))  # type: ignore[call-overload]
    except (ValueError, TypeError) as error:
        raise InvalidSetting(f"setting {name}: {error}") from None


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "enabled": _bool,
    "threads": _count,
    "schedule": _schedule,
    "initial_delay_s": _seconds,
    "pool_check_period_s": _seconds,
    "jitter_s": _seconds,
    "all_disabled": _bool,
    "default_enabled": _bool,
    "debounce_s": _seconds,
    "debounce_max_s": _seconds,
    "cleanup_period_s": _seconds,
    "sweep_period_s": _seconds,
    "stop_timeout_s": _seconds,
    "close_timeout_s": _seconds,
    "disconnect_grace_s": _grace,
}
