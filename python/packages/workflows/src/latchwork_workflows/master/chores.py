"""Chores: what is too old goes, on one master at a time, some hundred rows after the other.

Two at once do no harm: each transaction deletes what is too old by then, and what is not there is not deleted. So no
fence is needed, and whatever is interrupted is done by the next pass.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa

from latchwork.errors import LatchworkError
from latchwork.spi import counted, reason
from latchwork_workflows.db import Database, alerts, result_cache, retention
from latchwork_workflows.installation import installation_of
from latchwork_workflows.logs import LogStore

_log = logging.getLogger(__name__)

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept.

    Attributes:
        runs_days: runs that are over, with their logs.
        keep_runs: the newest of each workflow, which stay however old they are.
        commands_days: commands that are done, so long a repeated key is known; and tests of channels.
        fires_days: fire times that were started.
        audit_days: what people did, and what happened.
    Raises:
        ValueError: less than nothing, or less than one run.
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
class Gone:
    """What a pass has deleted.

    Attributes:
        runs: with their tasks and attempts.
        logs: runs whose logs were deleted.
        commands: that were done.
        fires: fire times.
        events: of timeline and audit.
        outputs: that were kept for others.
        pages: of SQLite, given back to the file system.
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


class Stopped(Exception):
    """The pass was told to end."""


class Chores:
    """A pass of chores: ``Chores(database, logs).run()``. For one thread.

    Args:
        database: of the workflows.
        logs: the log store of the workers; None, or another one: runs stay, since their logs would.
        keep: how long.
        pause: called between transactions, for others to have their turn; True ends the pass.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        database: Database,
        logs: LogStore | None,
        keep: Retention | None = None,
        *,
        pause: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._logs = logs
        self._keep = keep or Retention()
        self._pause = pause
        self._now = now
        self._gone = Gone()
        self._is_stopped = False

    def run(self) -> Gone:
        """Delete what is too old; what was deleted.

        Raises:
            DatabaseUnavailable: it cannot be reached; the next pass goes on.
        """
        self._gone, self._is_stopped = Gone(), False
        try:
            if self._has_logs() and self._logs_left():
                self._runs()
            self._commands()
            self._fires()
            self._events()
            while count := self._do(result_cache.forget, self._now()):
                self._gone.outputs += count
            if self._database.is_sqlite:
                self._pages()
        except Stopped:
            pass
        if str(self._gone):
            _log.info("too old, and deleted: %s", self._gone)
        return self._gone

    def _has_logs(self) -> bool:
        if self._logs is None:
            return False
        try:
            self._logs.check(installation_of(self._database).id)
        except (LatchworkError, OSError) as error:
            _log.warning("old runs stay, since their logs cannot be deleted here: %s", reason(error))
            return False
        return True

    def _do(self, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """One transaction, and a pause before the next one."""
        if self._is_stopped:
            raise Stopped
        with self._database.write() as connection:
            made = step(connection, *args, **options)
        self._is_stopped = self._pause()
        return made

    def _before(self, days: float) -> float:
        return self._now() - days * _DAY_S

    # Runs and their logs

    def _runs(self) -> None:
        before = self._before(self._keep.runs_days)
        with self._database.read() as connection:
            codes = retention.codes(connection)
        for code in codes:
            after: int | None = 0
            while after is not None:
                with self._database.read() as connection:
                    page = retention.old_runs(connection, code, before=before, keep=self._keep.keep_runs, after=after)
                    parts = [(on, part) for on, ids in page.old.items() for part in retention.batches(connection, ids)]
                for on, part in parts:
                    if not self._remove(on, part, before):
                        return
                after = page.next

    def _remove(self, shard: int, ids: list[int], before: float) -> bool:
        while rows := self._do(retention.trim, shard, ids, before):
            self._gone.events += rows
        self._gone.runs += len(self._do(retention.remove, shard, ids, before))
        return self._logs_left()

    def _logs_left(self) -> bool:
        """Delete logs of runs that are gone; False: the log store does not delete now, the next pass tries again."""
        with self._database.read() as connection:
            left = retention.logs_left(connection)
        done: list[int] = []
        failed: OSError | None = None
        for code, run in left:
            try:
                if self._logs is not None:
                    self._logs.remove(code, run)
            except OSError as error:
                failed = error
                _log.warning("logs of run %d, which is gone, are still there: %s", run, reason(error))
                break
            done.append(run)
        if done:
            self._gone.logs += len(done)
            self._do(retention.logs_gone, done)
        return failed is None

    # The rest

    def _commands(self) -> None:
        before, after = self._before(self._keep.commands_days), 0
        while self._do(alerts.remove_tests, before):
            pass
        while True:
            count, more = self._do(retention.remove_commands, before, after)
            self._gone.commands += count
            if more is None:
                return
            after = more

    def _fires(self) -> None:
        before = self._before(self._keep.fires_days)
        with self._database.read() as connection:
            codes = retention.codes(connection, with_fires_before=before)
        for code in codes:
            while count := self._do(retention.remove_fires, code, before):
                self._gone.fires += count

    def _events(self) -> None:
        before = self._before(self._keep.audit_days)
        while count := self._do(retention.remove_events, before):
            self._gone.events += count
        self._do(retention.remove_sessions, self._now())

    def _pages(self) -> None:
        while count := self._do(retention.give_back):
            self._gone.pages += count


#: What a pass passes over; the next one goes on.
PASSING = (LatchworkError, sa.exc.SQLAlchemyError, OSError)
