"""Cleanup: deletes old data on one master at a time, some hundred rows per transaction.

Concurrent passes are harmless: each transaction deletes data that is too old by then, and deleting a missing row does
nothing. So no fence is needed. The next pass completes an interrupted one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa

from latchwork.errors import LatchworkError
from latchwork.spi import TroubleLog, counted
from latchwork_workflows.db import Database, alerts, result_cache, retention
from latchwork_workflows.installation import load_installation
from latchwork_workflows.logs import LogStore

_log = logging.getLogger(__name__)

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long data is kept.

    Attributes:
        runs_days: Days to keep ended runs and their logs.
        keep_runs: Number of newest runs of each workflow that are kept regardless of age.
        commands_days: Days to keep completed commands and tests of channels. A repeated idempotency key is recognized
            for as long.
        fires_days: Days to keep fire times that were started.
        audit_days: Days to keep the audit log and the timeline.
    Raises:
        ValueError: A value is negative, or ``keep_runs`` is less than 1.
    """

    runs_days: float = 180.0
    keep_runs: int = 32
    commands_days: float = 7.0
    fires_days: float = 30.0
    audit_days: float = 365.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), 1 if each.name == "keep_runs" else 0
            if not value >= least:
                raise ValueError(f"{each.name} must be at least {least}, not {value!r}")


@dataclass(slots=True)
class DeletedCounts:
    """The number of items that a cleanup pass has deleted.

    Attributes:
        runs: Runs with their tasks and attempts.
        logs: Runs whose logs were deleted.
        commands: Finished commands.
        fires: Fire times.
        events: Events of timeline and audit log.
        outputs: Cached outputs.
        pages: SQLite pages returned to the file system.
    """

    runs: int = 0
    logs: int = 0
    commands: int = 0
    fires: int = 0
    events: int = 0
    outputs: int = 0
    pages: int = 0

    def __str__(self) -> str:
        words = {"runs": "run", "commands": "command", "fires": "fire time", "events": "event"}
        return ", ".join(counted(getattr(self, name), word) for name, word in words.items() if getattr(self, name))


class CleanupStopped(Exception):
    """The pass was stopped."""


class Cleanup:
    """One cleanup pass: ``Cleanup(database, logs).run()``. Not thread-safe.

    Args:
        database: Database of the workflows.
        logs: Log store of the workers. If None or of another installation, runs are kept because their logs would
            remain.
        keep: Retention times.
        pause: Called between transactions, so that other writers can proceed. Returning True ends the pass.
        now: Returns seconds since the epoch.
        trouble: Logs why logs cannot be deleted, for all passes of a node. Default: a new one.
    """

    def __init__(
        self,
        database: Database,
        logs: LogStore | None,
        keep: Retention | None = None,
        *,
        pause: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.time,
        trouble: TroubleLog | None = None,
    ) -> None:
        self._database = database
        self._logs = logs
        self._keep = keep or Retention()
        self._pause = pause
        self._now = now
        self._trouble = trouble or TroubleLog(_log)
        self._gone = DeletedCounts()
        self._is_stopped = False

    def run(self) -> DeletedCounts:
        """Delete old data, and return how many items of each kind were deleted.

        Raises:
            DatabaseUnavailable: The database cannot be reached. The next pass continues.
        """
        self._gone, self._is_stopped = DeletedCounts(), False
        try:
            if self._has_logs() and self._delete_pending_logs():
                self._runs()
            self._commands()
            self._fires()
            self._events()
            while count := self._run_in_transaction(result_cache.delete_expired_cache_entries, self._now()):
                self._gone.outputs += count
            if self._database.is_sqlite:
                self._shrink_database()
        except CleanupStopped:
            pass
        if str(self._gone):
            _log.info("deleted because of its age: %s", self._gone)
        return self._gone

    def _has_logs(self) -> bool:
        if self._logs is None:
            return False
        try:
            self._logs.check_owner(load_installation(self._database).id)
        except (LatchworkError, OSError) as error:
            text = "old runs are kept, because their logs cannot be deleted here"
            self._trouble.record_failure(error, text, item="logs")
            return False
        return True

    def _run_in_transaction(self, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run one deletion in its own transaction and return its result. Then pause, so that other writers can proceed.

        Args:
            step: The function that deletes. Its first argument is the transaction.
            args: Further arguments.
            options: Further keyword arguments.
        Raises:
            CleanupStopped: The pass was stopped.
        """
        if self._is_stopped:
            raise CleanupStopped
        with self._database.write() as connection:
            made = step(connection, *args, **options)
        self._is_stopped = self._pause()
        return made

    def _cutoff(self, days: float) -> float:
        return self._now() - days * _DAY_S

    # Runs and their logs

    def _runs(self) -> None:
        before = self._cutoff(self._keep.runs_days)
        with self._database.read() as connection:
            codes = retention.list_workflow_codes(connection)
        for code in codes:
            after: int | None = 0
            while after is not None:
                with self._database.read() as connection:
                    page = retention.find_old_runs(
                        connection, code, before=before, keep=self._keep.keep_runs, after=after
                    )
                    parts = [
                        (on, part)
                        for on, ids in page.old.items()
                        for part in retention.split_into_batches(connection, ids)
                    ]
                for on, part in parts:
                    if not self._delete_runs(on, part, before):
                        return
                after = page.next

    def _delete_runs(self, shard: int, ids: list[int], before: float) -> bool:
        while rows := self._run_in_transaction(retention.trim_history, shard, ids, before):
            self._gone.events += rows
        self._gone.runs += len(self._run_in_transaction(retention.delete_runs, shard, ids, before))
        return self._delete_pending_logs()

    def _delete_pending_logs(self) -> bool:
        """Delete the logs of deleted runs.

        Returns:
            False if the log store cannot delete them now. The next pass then retries.
        """
        with self._database.read() as connection:
            left = retention.list_pending_log_deletions(connection)
        done: list[int] = []
        failed: OSError | None = None
        for code, run in left:
            try:
                if self._logs is not None:
                    self._logs.remove(code, run)
            except OSError as error:
                failed = error
                text = "the logs of the deleted run %d cannot be deleted"
                self._trouble.record_failure(error, text, run, item="logs")
                break
            done.append(run)
        if done:
            self._gone.logs += len(done)
            self._run_in_transaction(retention.record_logs_deleted, done)
        if failed is None:
            self._trouble.record_success("the logs of old runs can be deleted again", item="logs")
        return failed is None

    # The rest

    def _commands(self) -> None:
        before, after = self._cutoff(self._keep.commands_days), 0
        while self._run_in_transaction(alerts.delete_test_alerts, before):
            pass
        while True:
            count, more = self._run_in_transaction(retention.delete_commands, before, after)
            self._gone.commands += count
            if more is None:
                return
            after = more

    def _fires(self) -> None:
        before = self._cutoff(self._keep.fires_days)
        with self._database.read() as connection:
            codes = retention.list_workflow_codes(connection, with_fires_before=before)
        for code in codes:
            while count := self._run_in_transaction(retention.delete_fires, code, before):
                self._gone.fires += count

    def _events(self) -> None:
        before = self._cutoff(self._keep.audit_days)
        while count := self._run_in_transaction(retention.delete_events, before):
            self._gone.events += count
        self._run_in_transaction(retention.delete_sessions, self._now())

    def _shrink_database(self) -> None:
        while count := self._run_in_transaction(retention.shrink_database):
            self._gone.pages += count


#: Errors that end a pass. The next pass continues.
PASSING = (LatchworkError, sa.exc.SQLAlchemyError, OSError)
