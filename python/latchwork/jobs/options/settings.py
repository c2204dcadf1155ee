"""The options of a job and of a node, and the settings of a cluster: switches, and options that override the code's.

Nothing here touches the network.

Keys:   settings/cluster        JSON; what holds for all jobs, and for the manager
        settings/jobs/<job>     JSON; what holds for one job

An absent field leaves the option as the code sets it. A field that this version does not know, or whose value it cannot
use, is left alone and reported, so that two versions may share a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar

from latchwork.errors import BadRecord
from latchwork.jobs.options import table
from latchwork.jobs.options.kinds import InvalidSetting, Threads
from latchwork.jobs.options.table import documented, rows
from latchwork.records import Record

SETTINGS = "settings"
CLUSTER = "settings/cluster"
JOBS = "settings/jobs"
#: The TTL of a node's session unless it or the URL gives one.
SESSION_TTL_S = 10.0
#: Runs are told to stop when this part of the TTL is left of their locks, if not earlier.
STOP_MARGIN = 0.25


@dataclass(frozen=True)
class JobOptions(table.JobRows[NoReturn, Threads], table.JobOnly):
    """The options of a job that hold now: the cluster's settings where there are any, else what the code says.

    ``schedule_since_s`` is when the node saw the schedule come into force, in seconds since the epoch; None when it has
    held since the node started.
    """

    schedule_since_s: float | None = field(default=None, compare=False)


@documented(table.JobSwitches, table.JobRows)
@dataclass(frozen=True)
class JobSettings(table.JobRows[None, int | None], table.JobSwitches):
    """The settings of one job; None leaves the code's option. ``threads`` is a number, 0 for one per item."""

    def over(self, job: object) -> JobOptions:
        """The options that hold for the job, whose own are its attributes."""
        return table.in_force(JobOptions, self, job)


@documented(table.ClusterSwitches, table.NodeRows)
@dataclass(frozen=True)
class ClusterSettings(table.NodeRows[None], table.ClusterSwitches):
    """The settings of the whole cluster; None leaves the code's option."""


@dataclass(frozen=True)
class NodeOptions(table.NodeRows[NoReturn], table.NodeOnly):
    """The options of a node: what ``JobManager`` was given, or what holds now."""

    @property
    def longest_grace_s(self) -> float:
        """The longest time that runs can go on without the store: as long as the locks allow, and the session lasts."""
        return min(self.lock_ttl_s * (1 - STOP_MARGIN), self.session_s)

    @property
    def session_s(self) -> float:
        """The TTL that the node asks for its session, in seconds."""
        return self.session_ttl_s or SESSION_TTL_S

    def under(self, settings: ClusterSettings) -> NodeOptions:
        """These options, overridden by what is set for the cluster."""
        return table.in_force(NodeOptions, settings, self)


NODE_DEFAULTS = table.defaults(NodeOptions)


def node_options(given: Mapping[str, Any]) -> NodeOptions:
    """Check all options of a node, by name; other names are ignored.

    Raises:
        ValueError: one cannot be used; the message names it.
    """
    options = NodeOptions(**{each.name: each.check(given[each.name]) for each in rows(NodeOptions)})
    grace_s, longest_s = options.disconnect_grace_s, options.lock_ttl_s * (1 - STOP_MARGIN)
    if grace_s is None:
        return options
    if grace_s > longest_s:
        locks = f"locks of {options.lock_ttl_s:g} s"
        raise ValueError(f"disconnect_grace_s is {grace_s:g}, but {locks} allow {longest_s:g}; raise lock_ttl_s")
    if grace_s > options.session_s:
        after = f"others get the items after {options.session_s:g} s"
        raise ValueError(f"disconnect_grace_s is {grace_s:g}, but {after}; raise session_ttl_s")
    return options


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
        """The settings of a job."""
        return self.jobs.get(job_id, JobSettings())

    def is_enabled(self, job_id: str) -> bool:
        """Whether a job may run: "all disabled" beats its switch, its switch beats the default."""
        if self.cluster.all_disabled:
            return False
        switch = self.job(job_id).enabled
        return self.cluster.default_enabled is not False if switch is None else switch


_ROWS: dict[str, table.Row] = {each.name: each for kind in (JobSettings, ClusterSettings) for each in rows(kind)}
_Settings = TypeVar("_Settings", JobSettings, ClusterSettings)


def encode(settings: JobSettings | ClusterSettings) -> dict[str, Any]:
    """The fields that are set, for JSON."""
    found = table.values(type(settings), settings)
    return {name: _ROWS[name].kind.encode(value) for name, value in found.items() if value is not None}


def decode(empty: _Settings, document: Mapping[str, Any]) -> tuple[_Settings, list[str]]:
    """The settings of a document, and what is wrong with the fields that were left out."""
    known = {each.name for each in rows(type(empty))}
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


def check(name: str, value: Any) -> Any:
    """A setting's value as it is kept.

    Raises:
        InvalidSetting: it cannot be used; the message names the setting.
    """
    kind = _ROWS[name].kind
    try:
        return (kind.read or kind.check)(name, value)
    except ValueError as error:
        raise InvalidSetting(f"setting {error}") from None


def encoded(name: str, value: Any) -> Any:
    """A setting's value for JSON.

    Raises:
        InvalidSetting: it cannot be used; the message names the setting.
    """
    return _ROWS[name].kind.encode(check(name, value))


def parse_document(value: bytes) -> dict[str, Any]:
    """A stored document.

    Raises:
        InvalidSetting: it is no JSON object.
    """
    try:
        return dict(Record.of(value).body)
    except BadRecord as error:
        raise InvalidSetting(str(error)) from None
