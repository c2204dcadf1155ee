"""The options of a job and of a node, and the settings of a cluster, which override them while the cluster runs.

Keys:   settings/cluster        JSON; what holds for all jobs, and for the manager
        settings/jobs/<job>     JSON; what holds for one job

An absent field leaves the option as the code sets it. A field that this version does not know, or whose value it cannot
use, is left alone and reported, so that two versions may share a cluster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol, TypeVar

from latchwork._base.decoding import Decoder
from latchwork.errors import BadRecord
from latchwork.interrupts import mutex
from latchwork.jobs.options import (
    ClusterSwitches,
    InvalidSetting,
    JobOnly,
    JobRows,
    JobSwitches,
    NodeOnly,
    NodeRows,
    OptionRow,
    Threads,
    defaults,
    documented,
    effective_options,
    rows,
    values,
)
from latchwork.jobs.stored.keys import cluster_store
from latchwork.schedules import Schedule
from latchwork.store import Mirror, Store
from latchwork.types import Entry

log = logging.getLogger(__name__)

SETTINGS = "settings"
CLUSTER = "settings/cluster"
JOBS = "settings/jobs"
#: The TTL of a node's session unless it or the URL gives one.
SESSION_TTL_S = 10.0
#: Runs are told to stop when this part of the TTL is left of their locks, if not earlier.
STOP_MARGIN = 0.25


@dataclass(frozen=True)
class JobOptions(JobRows[NoReturn, Threads], JobOnly):
    """The options of a job that hold now: the cluster's settings where there are any, else what the code says.

    ``schedule_since_s`` is when the node saw the schedule come into force, in seconds since the epoch; None when it has
    held since the node started.
    """

    schedule_since_s: float | None = field(default=None, compare=False)


@documented(JobSwitches, JobRows)
@dataclass(frozen=True)
class JobSettings(JobRows[None, int | None], JobSwitches):
    """The settings of one job; None leaves the code's option. ``threads`` is a number, 0 for one per item."""

    def applied_to(self, job: object) -> JobOptions:
        """The options that hold for the job, whose own are its attributes."""
        return effective_options(JobOptions, self, job)


@documented(ClusterSwitches, NodeRows)
@dataclass(frozen=True)
class ClusterSettings(NodeRows[None], ClusterSwitches):
    """The settings of the whole cluster; None leaves the code's option."""


@dataclass(frozen=True)
class NodeOptions(NodeRows[NoReturn], NodeOnly):
    """The options of a node: what ``JobManager`` was given, or what holds now."""

    @property
    def longest_grace_s(self) -> float:
        """The longest time that runs can go on without the store: as long as the locks allow, and the session lasts."""
        return min(self.lock_ttl_s * (1 - STOP_MARGIN), self.session_s)

    @property
    def session_s(self) -> float:
        """The TTL that the node asks for its session, in seconds."""
        return self.session_ttl_s or SESSION_TTL_S

    def overridden_by(self, settings: ClusterSettings) -> NodeOptions:
        """These options, overridden by what is set for the cluster."""
        return effective_options(NodeOptions, settings, self)


NODE_DEFAULTS = defaults(NodeOptions)


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


_ROWS: dict[str, OptionRow] = {each.name: each for kind in (JobSettings, ClusterSettings) for each in rows(kind)}


_Settings = TypeVar("_Settings", JobSettings, ClusterSettings)


def encode(settings: JobSettings | ClusterSettings) -> dict[str, Any]:
    """The fields that are set, for JSON."""
    found = values(type(settings), settings)
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


#: A setting that cannot be used counts as not set, and leaves the others alone: they are checked one by one.
_DOCUMENT: Decoder[dict[str, Any]] = Decoder(dict[str, Any], "settings")


def parse_document(value: bytes) -> dict[str, Any]:
    """A stored document.

    Raises:
        InvalidSetting: it is no JSON object.
    """
    try:
        return _DOCUMENT.decode(value)
    except BadRecord as error:
        raise InvalidSetting(str(error)) from None


def read_settings(store: Store) -> Settings:
    """Read a cluster's settings; what cannot be used is logged and counts as not set."""
    return SettingsReader().read(cluster_store(store).list(SETTINGS, recursive=True))


class SettingsReader:
    """Decodes stored entries; a document that cannot be used is reported once. One thread at a time."""

    def __init__(self) -> None:
        self._reported: dict[str, object] = {}

    def read(self, entries: Iterable[Entry]) -> Settings:
        """The settings in these entries."""
        cluster = ClusterSettings()
        jobs: dict[str, JobSettings] = {}
        for entry in entries:
            try:
                document = parse_document(entry.value)
            except InvalidSetting as error:
                self._report(entry, [str(error)])
                continue
            if entry.key == CLUSTER:
                cluster, bad = decode(ClusterSettings(), document)
            elif entry.key.startswith(f"{JOBS}/"):
                jobs[entry.key[len(JOBS) + 1 :]], bad = decode(JobSettings(), document)
            else:
                continue
            self._report(entry, bad)
        return Settings(cluster, jobs)

    def _report(self, entry: Entry, bad: list[str]) -> None:
        if bad and self._reported.get(entry.key) != entry.version:
            self._reported[entry.key] = entry.version
            log.warning("%s holds what cannot be used, and counts as not set: %s", entry.key, "; ".join(bad))


class ConfigurableJob(Protocol):
    """A job, as far as its options go: they are its attributes, and it says ``options`` when they changed."""

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]: ...  # noqa: D102


class LiveSettings:
    """Owned by the job manager. ``start`` reads them and follows them, ``close`` ends that.

    Args:
        jobs: this node's jobs; a change of their options counts as a change of the settings.
        node: the options of this node, as its code says; a ``disconnect_grace_s`` that is longer than its TTLs allow is
            cut to that.
        wall_s: seconds since the epoch.
    Attributes:
        now: what is stored, as far as this node can follow it.
        node: the options of this node in force.
    """

    def __init__(
        self,
        jobs: Mapping[str, ConfigurableJob],
        node: NodeOptions = NODE_DEFAULTS,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._jobs = jobs
        self._code = self.node = node
        self._too_long_s: float | None = None
        self._wall_s = wall_s
        self._mutex = mutex()
        self._schedules: dict[str, tuple[Schedule, float | None]] = {}  # what was last seen in force, and since when
        self.now = Settings()
        self._reader = SettingsReader()
        self._listeners: list[Callable[[], None]] = []
        self._mirror: Mirror | None = None
        self._unsubscribe = [job.subscribe(self._on_job_change) for job in jobs.values()]

    def options(self, job_id: str) -> JobOptions:
        """The options in force for a job of this node; the first call after a change of its schedule notes when."""
        with self._mutex:
            found = self.now.job(job_id).applied_to(self._jobs[job_id])
            schedule, since_s = self._schedules.get(job_id, (found.schedule, None))
            if found.schedule != schedule:
                since_s = self._wall_s()
            self._schedules[job_id] = (found.schedule, since_s)
        return replace(found, schedule_since_s=since_s)

    def is_enabled(self, job_id: str) -> bool:
        """Whether a job may run."""
        return self.now.is_enabled(job_id)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this after each change; it must not block."""
        self._listeners.append(listener)

    def start(self, store: Store) -> None:
        """Read them, so that nothing disabled runs for a moment, and follow them.

        Raises:
            Unavailable: the store did not answer.
        """
        self._adopt(store.list(SETTINGS, recursive=True))
        self._schedules.clear()  # until now nothing ran, so what the settings say has held since the start
        self._mirror = store.mirror(SETTINGS)
        self._mirror.on_change(lambda _batch: self._reread())

    def close(self) -> None:
        """Follow them no more; the last ones stay. Twice is fine."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._mirror is not None:
            self._mirror.close()

    def _reread(self) -> None:
        assert self._mirror is not None
        before = self.now
        self._adopt(self._mirror.snapshot().values())
        found = self.now
        if found == before:
            return
        for job_id in self._jobs:
            if before.is_enabled(job_id) != found.is_enabled(job_id):
                log.info("job %s is %s from now on", job_id, "enabled" if found.is_enabled(job_id) else "disabled")
        self._tell()

    def _adopt(self, entries: Iterable[Entry]) -> None:
        self.now = self._usable(self._reader.read(entries))
        self.node = self._code.overridden_by(self.now.cluster)

    def _usable(self, found: Settings) -> Settings:
        """The settings, with a grace that is too long for this node cut to what its TTLs allow."""
        grace_s, longest_s = found.cluster.disconnect_grace_s, self._code.longest_grace_s
        if grace_s is None or grace_s <= longest_s:
            self._too_long_s = None
            return found
        if grace_s != self._too_long_s:
            self._too_long_s = grace_s
            log.warning(
                "setting disconnect_grace_s is %.3g, but the TTLs of this node allow %.3g, which holds here; "
                "raise session_ttl_s and lock_ttl_s",
                grace_s,
                longest_s,
            )
        return replace(found, cluster=replace(found.cluster, disconnect_grace_s=longest_s))

    def _on_job_change(self, what: str) -> None:
        if what == "options":
            self._tell()

    def _tell(self) -> None:
        for job_id in self._jobs:
            self.options(job_id)  # the moment of a change is now, not when a run asks
        for listener in list(self._listeners):
            listener()
