"""Options of jobs and nodes, and the settings of a cluster, which override them at run time.

Keys:   settings/cluster        JSON; settings for all jobs, and for the manager
        settings/jobs/<job>     JSON; settings for one job

An absent field leaves the option as the code sets it. A field that this version does not know, or whose value is
invalid, is kept and reported, so that two versions may share a cluster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol, TypeVar

from latchwork._base.decoding import Decoder
from latchwork._base.interrupts import mutex
from latchwork.errors import BadRecord
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
    combine_options,
    create_default_options,
    document_options,
    get_option_rows,
    get_option_values,
)
from latchwork.jobs.stored.keys import cluster_store
from latchwork.schedules import Schedule
from latchwork.store import Mirror, Store
from latchwork.store.steps import run
from latchwork.types import Entry

log = logging.getLogger(__name__)

SETTINGS = "settings"
CLUSTER = "settings/cluster"
JOBS = "settings/jobs"
#: Default TTL of a node's session in seconds, unless the node or the URL sets one.
SESSION_TTL_S = 10.0
#: Runs are asked to stop, at the latest, when this fraction of their locks' TTL is left.
STOP_MARGIN = 0.25


@dataclass(frozen=True)
class JobOptions(JobRows[NoReturn, Threads], JobOnly):
    """The effective options of a job: the cluster's settings where they are set, otherwise the values from code.

    ``schedule_since_s`` is the time at which the node saw the schedule take effect, in seconds since the epoch; None if
    it has been in effect since the node started.
    """

    schedule_since_s: float | None = field(default=None, compare=False)


@document_options(JobSwitches, JobRows)
@dataclass(frozen=True)
class JobSettings(JobRows[None, int | None], JobSwitches):
    """Settings of one job; None leaves the option from code. ``threads`` is a number, 0 for one per item."""

    def get_effective_options(self, job: object) -> JobOptions:
        """Return the effective options of a job: these settings where they are set, otherwise the options from its
        code.

        Args:
            job: The job, with its options as attributes.
        """
        return combine_options(JobOptions, self, job)


@document_options(ClusterSwitches, NodeRows)
@dataclass(frozen=True)
class ClusterSettings(NodeRows[None], ClusterSwitches):
    """Settings of the whole cluster; None leaves the option from code."""


@dataclass(frozen=True)
class NodeOptions(NodeRows[NoReturn], NodeOnly):
    """Options of a node: the arguments of ``JobManager``, or the effective options."""

    @property
    def max_disconnect_grace_s(self) -> float:
        """The maximum of ``disconnect_grace_s`` that the node's locks and session allow."""
        return min(self.lock_ttl_s * (1 - STOP_MARGIN), self.effective_session_ttl_s)

    @property
    def effective_session_ttl_s(self) -> float:
        """The TTL that the node requests for its session, in seconds."""
        return self.session_ttl_s or SESSION_TTL_S

    def with_settings(self, settings: ClusterSettings) -> NodeOptions:
        """Return the effective options of a node: the cluster's settings where they are set, otherwise these options.

        Args:
            settings: Settings of the cluster.
        """
        return combine_options(NodeOptions, settings, self)


NODE_DEFAULTS = create_default_options(NodeOptions)


def create_node_options(arguments: Mapping[str, Any]) -> NodeOptions:
    """Create the options of a node from arguments, and check them.

    Args:
        arguments: Arguments by name; other arguments than options are ignored.
    Raises:
        ValueError: An option is invalid; the message names it.
    """
    options = NodeOptions(**{each.name: each.check(arguments[each.name]) for each in get_option_rows(NodeOptions)})
    grace_s, longest_s = options.disconnect_grace_s, options.lock_ttl_s * (1 - STOP_MARGIN)
    if grace_s is None:
        return options
    if grace_s > longest_s:
        locks = f"locks of {options.lock_ttl_s:g} s"
        raise ValueError(f"disconnect_grace_s is {grace_s:g}, but {locks} allow {longest_s:g}; raise lock_ttl_s")
    if grace_s > options.effective_session_ttl_s:
        after = f"other nodes get the items after {options.effective_session_ttl_s:g} s"
        raise ValueError(f"disconnect_grace_s is {grace_s:g}, but {after}; raise session_ttl_s")
    return options


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a cluster at one time.

    Attributes:
        cluster: Settings for all jobs.
        jobs: Settings by job ID; jobs without settings are absent.
    """

    cluster: ClusterSettings = ClusterSettings()
    jobs: Mapping[str, JobSettings] = field(default_factory=dict)

    def job(self, job_id: str) -> JobSettings:
        """Return the settings of one job, which are empty if it has none."""
        return self.jobs.get(job_id, JobSettings())

    def is_enabled(self, job_id: str) -> bool:
        """Return whether a job may run. ``disable_all`` overrides the job's own switch, and that overrides the
        default.
        """
        if self.cluster.all_disabled:
            return False
        switch = self.job(job_id).enabled
        return self.cluster.default_enabled is not False if switch is None else switch


_ROWS: dict[str, OptionRow] = {
    each.name: each for kind in (JobSettings, ClusterSettings) for each in get_option_rows(kind)
}


_Settings = TypeVar("_Settings", JobSettings, ClusterSettings)


def encode_settings(settings: JobSettings | ClusterSettings) -> dict[str, Any]:
    """Return the settings that are set, by name, in a form for JSON."""
    found = get_option_values(type(settings), settings)
    return {name: _ROWS[name].kind.encode(value) for name, value in found.items() if value is not None}


def decode_settings(empty: _Settings, document: Mapping[str, Any]) -> tuple[_Settings, list[str]]:
    """Decode settings from a JSON document. Invalid settings are left out.

    Args:
        empty: Settings without values.
        document: The document: values by name.
    Returns:
        The settings, and a message for each setting that was left out.
    """
    known = {each.name for each in get_option_rows(type(empty))}
    good: dict[str, Any] = {}
    bad = []
    for name, value in document.items():
        if name == "changed" or value is None:
            continue
        if name not in known:
            bad.append(f"setting {name!r} is unknown to this version")
            continue
        try:
            good[name] = check_setting(name, value)
        except InvalidSetting as error:
            bad.append(str(error))
    return replace(empty, **good), bad


def check_setting(name: str, value: Any) -> Any:
    """Check the value of one setting, and return it in its internal form.

    Raises:
        InvalidSetting: The value is invalid; the message names the setting.
    """
    kind = _ROWS[name].kind
    try:
        return (kind.read or kind.check)(name, value)
    except ValueError as error:
        raise InvalidSetting(f"setting {error}") from None


def encode_setting(name: str, value: Any) -> Any:
    """Check the value of one setting, and return it in a form for JSON.

    Raises:
        InvalidSetting: The value is invalid; the message names the setting.
    """
    return _ROWS[name].kind.encode(check_setting(name, value))


#: Fields are checked one by one, so that an invalid setting does not affect the others.
_DOCUMENT: Decoder[dict[str, Any]] = Decoder(dict[str, Any], "settings")


def parse_document(value: bytes) -> dict[str, Any]:
    """Parse a stored document of settings.

    Raises:
        InvalidSetting: The value is not a JSON object.
    """
    try:
        return _DOCUMENT.decode(value)
    except BadRecord as error:
        raise InvalidSetting(str(error)) from None


def read_settings(store: Store) -> Settings:
    """Read a cluster's settings from its store. Invalid settings are logged and treated as not set."""
    return SettingsReader().read(cluster_store(store).list(SETTINGS, recursive=True))


class SettingsReader:
    """Decodes stored settings, and logs each invalid document once. Used by one thread at a time."""

    def __init__(self) -> None:
        self._reported: dict[str, object] = {}

    def read(self, entries: Iterable[Entry]) -> Settings:
        """Decode the settings in these entries. Invalid settings are logged and treated as not set."""
        cluster = ClusterSettings()
        jobs: dict[str, JobSettings] = {}
        for entry in entries:
            try:
                document = parse_document(entry.value)
            except InvalidSetting as error:
                self._report(entry, [str(error)])
                continue
            if entry.key == CLUSTER:
                cluster, bad = decode_settings(ClusterSettings(), document)
            elif entry.key.startswith(f"{JOBS}/"):
                jobs[entry.key[len(JOBS) + 1 :]], bad = decode_settings(JobSettings(), document)
            else:
                continue
            self._report(entry, bad)
        return Settings(cluster, jobs)

    def _report(self, entry: Entry, bad: list[str]) -> None:
        if bad and self._reported.get(entry.key) != entry.version:
            self._reported[entry.key] = entry.version
            log.warning("%s has invalid settings, which are ignored: %s", entry.key, "; ".join(bad))


class ConfigurableJob(Protocol):
    """The part of a job that settings need: its options as attributes, and listeners that are called with ``options``
    after a change.
    """

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]: ...  # noqa: D102


class LiveSettings:
    """The current settings of a cluster, and the effective options of a node's jobs.

    ``watch`` starts to follow the stored settings, ``wait_ready`` waits until they are known, ``close`` stops that.

    Args:
        jobs: Jobs of this node; a change of their options counts as a change of the settings.
        node: Options of this node from code. A ``disconnect_grace_s`` that is longer than its TTLs allow is shortened.
        wall_s: Returns seconds since the epoch.
    Attributes:
        now: Stored settings, as far as this node can apply them.
        node: Effective options of this node.
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
        self._schedules: dict[str, tuple[Schedule, float | None]] = {}  # the last effective schedule, and since when
        self.now = Settings()
        self._reader = SettingsReader()
        self._listeners: list[Callable[[], None]] = []
        self._store: Store | None = None
        self._mirror: Mirror | None = None
        self._unsubscribe = [job.subscribe(self._on_job_change) for job in jobs.values()]

    def options(self, job_id: str) -> JobOptions:
        """Return the effective options of a job.

        The first call after a change of the job's schedule records the time of the change.
        """
        with self._mutex:
            found = self.now.job(job_id).get_effective_options(self._jobs[job_id])
            schedule, since_s = self._schedules.get(job_id, (found.schedule, None))
            if found.schedule != schedule:
                since_s = self._wall_s()
            self._schedules[job_id] = (found.schedule, since_s)
        return replace(found, schedule_since_s=since_s)

    def is_enabled(self, job_id: str) -> bool:
        """Return whether a job may run."""
        return self.now.is_enabled(job_id)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Register a listener that is called after each change of the settings. It must not block."""
        self._listeners.append(listener)

    def watch(self, store: Store) -> None:
        """Start to watch the stored settings, without waiting. They have no effect before ``wait_ready``."""
        self._store = store
        self._mirror = store.mirror(SETTINGS, wait=False)

    def wait_ready(self) -> None:
        """Wait until the stored settings are known, so that no disabled job starts, and follow their changes.

        Raises:
            Unavailable: The store did not answer.
        """
        assert self._store is not None, "watch first"
        assert self._mirror is not None
        run(self._store.ready(self._mirror))
        self._apply_entries(self._mirror.snapshot().values())
        self._schedules.clear()  # nothing has run yet, so the stored settings count from the start
        self._mirror.on_change(lambda _batch: self._reread())

    def close(self) -> None:
        """Stop watching the settings. The last ones stay in effect. Idempotent."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._mirror is not None:
            self._mirror.close()

    def _reread(self) -> None:
        assert self._mirror is not None
        before = self.now
        self._apply_entries(self._mirror.snapshot().values())
        found = self.now
        if found == before:
            return
        for job_id in self._jobs:
            if before.is_enabled(job_id) != found.is_enabled(job_id):
                log.info("job %s is now %s", job_id, "enabled" if found.is_enabled(job_id) else "disabled")
        self._notify_listeners()

    def _apply_entries(self, entries: Iterable[Entry]) -> None:
        self.now = self._limit_grace_period(self._reader.read(entries))
        self.node = self._code.with_settings(self.now.cluster)

    def _limit_grace_period(self, stored: Settings) -> Settings:
        """Return the stored settings, with ``disconnect_grace_s`` reduced to the maximum that this node allows."""
        grace_s, longest_s = stored.cluster.disconnect_grace_s, self._code.max_disconnect_grace_s
        if grace_s is None or grace_s <= longest_s:
            self._too_long_s = None
            return stored
        if grace_s != self._too_long_s:
            self._too_long_s = grace_s
            log.warning(
                "setting disconnect_grace_s is %.3g, but the TTLs of this node allow %.3g, which holds here; "
                "raise session_ttl_s and lock_ttl_s",
                grace_s,
                longest_s,
            )
        return replace(stored, cluster=replace(stored.cluster, disconnect_grace_s=longest_s))

    def _on_job_change(self, what: str) -> None:
        if what == "options":
            self._notify_listeners()

    def _notify_listeners(self) -> None:
        for job_id in self._jobs:
            self.options(job_id)  # records the time of the change now
        for listener in list(self._listeners):
            listener()
