"""The settings as one node follows them: the stored ones over those of the code, current without a restart.

A watch keeps them current; a read takes no I/O. Safe to share between threads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from latchwork.interrupts import mutex
from latchwork.jobs.options import settings as stored
from latchwork.jobs.options.kinds import InvalidSetting
from latchwork.jobs.options.settings import NODE_DEFAULTS, JobOptions, JobSettings, NodeOptions, Settings
from latchwork.jobs.stored.cluster import cluster_store
from latchwork.schedules import Schedule
from latchwork.store import Mirror, Store
from latchwork.types import Entry

log = logging.getLogger(__name__)


def read_settings(store: Store) -> Settings:
    """Read a cluster's settings; what cannot be used is logged and counts as not set."""
    return SettingsReader().read(cluster_store(store).list(stored.SETTINGS, recursive=True))


class SettingsReader:
    """Decodes stored entries; a document that cannot be used is reported once. One thread at a time."""

    def __init__(self) -> None:
        self._reported: dict[str, object] = {}

    def read(self, entries: Iterable[Entry]) -> Settings:
        """The settings in these entries."""
        cluster = stored.ClusterSettings()
        jobs: dict[str, JobSettings] = {}
        for entry in entries:
            try:
                document = stored.parse_document(entry.value)
            except InvalidSetting as error:
                self._report(entry, [str(error)])
                continue
            if entry.key == stored.CLUSTER:
                cluster, bad = stored.decode(stored.ClusterSettings(), document)
            elif entry.key.startswith(f"{stored.JOBS}/"):
                jobs[entry.key[len(stored.JOBS) + 1 :]], bad = stored.decode(JobSettings(), document)
            else:
                continue
            self._report(entry, bad)
        return Settings(cluster, jobs)

    def _report(self, entry: Entry, bad: list[str]) -> None:
        if bad and self._reported.get(entry.key) != entry.version:
            self._reported[entry.key] = entry.version
            log.warning("%s holds what cannot be used, and counts as not set: %s", entry.key, "; ".join(bad))


class HasOptions(Protocol):
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
        jobs: Mapping[str, HasOptions],
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
        self._unsubscribe = [job.subscribe(self._job_said) for job in jobs.values()]

    def options(self, job_id: str) -> JobOptions:
        """The options in force for a job of this node; the first call after a change of its schedule notes when."""
        with self._mutex:
            found = self.now.job(job_id).over(self._jobs[job_id])
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
        self._adopt(store.list(stored.SETTINGS, recursive=True))
        self._schedules.clear()  # until now nothing ran, so what the settings say has held since the start
        self._mirror = store.mirror(stored.SETTINGS)
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
        self.node = self._code.under(self.now.cluster)

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

    def _job_said(self, what: str) -> None:
        if what == "options":
            self._tell()

    def _tell(self) -> None:
        for job_id in self._jobs:
            self.options(job_id)  # the moment of a change is now, not when a run asks
        for listener in list(self._listeners):
            listener()
