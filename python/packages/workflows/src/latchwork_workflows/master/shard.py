"""The loop of a master over one of its shards: read the store and the database, write one transaction, dispatch tasks.

Only the thread of this loop writes the rows of the shard. Memory holds what the last transaction wrote. After an error,
or a commit of unknown outcome, the state is read again under the shard guard.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa

from latchwork.clock import Clock, Signal
from latchwork.errors import LockLost, OwnershipLost
from latchwork.spi import TroubleLog, reason
from latchwork.store import Mirror, Store
from latchwork.types import Fence
from latchwork_workflows.db import Database, ShardGuard, attempts, commands, runs, schedules
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.db.runs import StoredRun
from latchwork_workflows.errors import NotOwner, StoreMismatch
from latchwork_workflows.keys import Keys, Order
from latchwork_workflows.master.commands import RunErrorSuspected, get_error_text, may_concern_one_run
from latchwork_workflows.master.concurrency import select_runs_to_check
from latchwork_workflows.master.dispatcher import PASSING, Dispatcher, ItemPosition, TaskItem, TaskItemBuilder
from latchwork_workflows.master.pools import PoolSizes
from latchwork_workflows.master.state_cache import StateCache, SubmittedAttempt, VersionCache
from latchwork_workflows.master.store_reader import (
    ClaimWriteDelay,
    StoreReader,
    StoreSnapshot,
    collect_events,
    drop_orphans,
    find_missing_attempts,
    find_reclaimed_attempts,
)
from latchwork_workflows.master.writer import TransactionResult, TransactionWriter
from latchwork_workflows.shard_ownership import ShardTakeover
from latchwork_workflows.state import Ended, Event, Outcome, Removed

_log = logging.getLogger(__name__)

#: Seconds between two polls for commands without a notification.
POLL_S = 5.0
#: Maximum number of items that are queued in one iteration.
MAX_PUTS = 200
#: Seconds between two records in the database of the transaction number that the store contains.
_NOTE_S = 5.0
#: Seconds until a failed iteration is retried.
_AGAIN_S = 0.5
#: After one of these errors the iteration is repeated with a savepoint for each run, to find the run that caused it.
_MAY_BE_OF_A_RUN = (RunErrorSuspected, sa.exc.SQLAlchemyError)


@dataclass(frozen=True, slots=True)
class ShardTools:
    """What the shards of a node have in common.

    Attributes:
        database: Database with their rows.
        store: Store of the process.
        keys: Keys of the installation.
        node: Name of the node.
        order: Order in which tasks are claimed.
        plans: Cache of versions.
        poll_s: Seconds between two polls for commands without a notification.
        on_database_answer: Called after each iteration with whether the database answered.
        now: Returns seconds since the epoch.
        trouble: Logs failed iterations of all shards.
    """

    database: Database
    store: Store
    keys: Keys
    node: str
    order: Order = "run"
    plans: VersionCache = field(default_factory=VersionCache)
    poll_s: float = POLL_S
    on_database_answer: Callable[[bool], None] = lambda _answers: None
    now: Callable[[], float] = time.time
    trouble: TroubleLog = field(default_factory=lambda: TroubleLog(_log))


class ShardLoop:
    """Ownership of one shard. ``run`` returns when it is stopped, and raises when the shard has another owner.

    Args:
        tools: Tools of the node.
        shard: ID of the shard.
        fence: Proof of ownership.
        remaining_s: Returns the seconds for which the ownership is certain.
    """

    def __init__(self, tools: ShardTools, shard: int, fence: Fence, remaining_s: Callable[[], float]) -> None:
        self._tools = tools
        self._id = shard
        self._guard = ShardGuard(shard, fence.token)
        self._dispatcher = Dispatcher(tools.store.within(remaining_s), tools.keys, shard, fence)
        self._owning = ShardTakeover(self._guard, tools.store, tools.keys, self._dispatcher.check_owner)
        self._prefix = tools.keys.shard_prefix(shard)
        self._clock: Clock = tools.store.clock
        self._news = Signal()
        self._stopping = False
        self._cache = StateCache()
        self._claims: dict[str, int] = {}
        self._cancelled: set[str] = set()
        self._removed: dict[str, SubmittedAttempt] = {}
        self._tidy: tuple[list[str], list[str], int] = ([], [], 0)
        self._marked = 0
        self._noted_at = -1e18
        self._abandoned: dict[str, ItemPosition] = {}
        self._shards_to_notify: set[int] = set()
        self._task_specs = TaskItemBuilder(tools.database, tools.plans, shard)
        self._pools = PoolSizes(shard, self._dispatcher)
        self._looking, self._claim_delay = StoreReader(self._prefix), ClaimWriteDelay()
        self._fires: list[tuple[schedules.ScheduleRow, float]] = []
        self._broken: set[schedules.ScheduleRow] = set()
        self._ahead: set[int] = set()
        self._next_fire: float | None = None
        self._concurrency: list[int] = []
        self._polled_at = -1e18
        self._poke = -1
        self._is_known = self._isolates_runs = False
        self._is_busy = self._needs_repair = False
        self.iterations = 0

    def stop(self) -> None:
        """Request to stop after the current iteration. Thread-safe."""
        self._stopping = True
        self._news.set()

    def run(self) -> None:
        """Take over the shard and advance its runs until ``stop`` is called.

        Raises:
            NotOwner, LockLost: The shard has another owner.
            StoreMismatch: Store and database are not from the same point in time.
        """
        try:
            with self._tools.store.mirror(self._prefix, wait=False) as mirror:
                mirror.on_change(lambda _changes: self._news.set())
                self._run_loop(mirror)
            self._release()
        finally:
            self._tools.trouble.forget(self._id)
            self._dispatcher.close()

    def _release(self) -> None:
        with suppress(*PASSING, sa.exc.SQLAlchemyError), self._transaction() as connection:
            self._guard.release(connection)

    def _run_loop(self, mirror: Mirror) -> None:
        while not self._stopping:
            self._news.clear()
            try:
                wait_s = self._run_iteration(mirror)
            except (NotOwner, StoreMismatch, OwnershipLost, LockLost):
                raise
            except PASSING as error:
                self._discard_state(error)
                wait_s = _AGAIN_S
            except Exception as error:
                if self._isolates_runs or not (isinstance(error, _MAY_BE_OF_A_RUN) or may_concern_one_run(error)):
                    raise
                self._discard_state(error)
                self._isolates_runs = True  # repeat, with a savepoint for each run
                wait_s = 0.0
            if wait_s > 0.0 and not self._stopping:
                self._clock.wait(self._news, wait_s)

    def _discard_state(self, error: Exception) -> None:
        """Discard the state in memory after an error, so that the next iteration reads everything again."""
        if isinstance(error, DatabaseUnavailable):
            self._tools.on_database_answer(False)
        self._tools.trouble.record_failure(error, "shard %d reloads its state", self._id, item=self._id)
        self._is_known = False

    def _run_iteration(self, mirror: Mirror) -> float:
        """Read the store and the database once, write the changes, and send tasks to workers.

        Returns:
            The seconds to wait until the next iteration.
        """
        if not self._is_known:
            self._take_over(mirror)
        now = self._cache.update_time(self._tools.now())
        found = self._looking.read(mirror.snapshot().values())
        query_commands = self._must_poll(found, now)
        written = self._write_changes(found, now, query_commands=query_commands)
        if written is not None:
            self._apply_committed(written)
        self._write_to_store()
        if self._needs_repair and self._is_known:
            self._drop_orphans()
        self._isolates_runs = False
        self._record_iteration()
        if written is not None and (written.fired or written.more):
            self._polled_at = -1e18
        self.iterations += 1
        is_more = found.is_full or (written is not None and written.more)
        return 0.0 if is_more or self._is_busy or self._needs_repair else self._compute_wait_s(now)

    def _record_iteration(self) -> None:
        """Record that an iteration has ended, and whether its items could be put into the work queue."""
        trouble, error = self._tools.trouble, self._dispatcher.put_error
        if error is not None and self._cache.to_put:
            trouble.record_failure(error, "shard %d queues its items in the next iteration", self._id, item=self._id)
        else:
            trouble.record_success("all shards of master %s work again", self._tools.node, item=self._id)

    # Read

    def _take_over(self, mirror: Mirror) -> None:
        """Become the owner of the shard in the database, and read its active runs."""
        mirror.ready(10.0)
        found = self._owning.read_store_state()
        with self._transaction() as connection:
            former = self._guard.get_former_owner(connection)
            self._owning.take_over(connection, self._tools.node, *found)
            writing = self._writer(connection, StateCache())
            known = self._load_runs(connection, writing)
            owners = former, self._tools.node
            writing.create_takeover_alerts(known, token=self._guard.token, owners=owners)
            writing.finish()
        self._cache = StateCache(known)
        self._apply_committed(writing.written)
        self._claims, self._cancelled, self._removed = {}, set(), {}
        self._pools.reset()
        self._looking.reset()
        self._is_known = True
        self._polled_at = -1e18

    def _load_runs(self, connection: sa.Connection, writing: TransactionWriter) -> list[StoredRun]:
        """Load the active runs of the shard.

        If this iteration isolates runs, mark each run that cannot be loaded as failed. Otherwise such a run raises.

        Args:
            connection: A transaction.
            writing: The writer of the transaction.
        """
        ids = runs.list_active_runs(connection, self._id)
        if not self._isolates_runs:
            return list(runs.load_runs(connection, ids).values())
        return [stored for each in ids if (stored := writing.fail_if_invalid(each)) is not None]

    def _transaction(self) -> Any:
        return self._tools.database.write()

    def _writer(
        self, connection: sa.Connection, cache: StateCache, *, now: float | None = None, isolates_runs: bool = False
    ) -> TransactionWriter:
        tools = self._tools
        return TransactionWriter(
            connection,
            self._id,
            cache,
            plans=tools.plans,
            order=tools.order,
            now=tools.now() if now is None else now,
            isolates_runs=isolates_runs or self._isolates_runs,
        )

    def _must_poll(self, found: StoreSnapshot, now: float) -> bool:
        """Return whether it is time to query the database for commands and schedules.

        Args:
            found: Content of the store.
            now: Seconds since the epoch.
        """
        elapsed = self._clock.now() - self._polled_at
        if found.poke == self._poke and elapsed < self._tools.poll_s and not self._is_due(now):
            return False
        self._poke = found.poke
        self._polled_at = self._clock.now()
        return True

    def _is_due(self, now: float) -> bool:
        return self._next_fire is not None and self._next_fire <= now

    # Write

    def _write_changes(self, snapshot: StoreSnapshot, now: float, *, query_commands: bool) -> TransactionResult | None:
        """Run one database transaction if there is anything to write.

        Args:
            snapshot: Content of the store.
            now: Seconds since the epoch.
            query_commands: Whether to query the database for commands and schedules.
        Returns:
            What was written, or None if nothing was.
        """
        lost = self._find_lost_attempts(snapshot)
        what = collect_events(self._cache, snapshot, lost, self._claims)
        due = self._cache.list_due_runs(now)
        has_commands = query_commands and self._has_work(now)
        removed, self._removed = self._removed, {}
        if not (what.events or what.ended or what.claimed or due or has_commands or removed):
            if snapshot.unknown_keys:
                self._tidy[1].extend(snapshot.unknown_keys)
            return None
        if not (due or has_commands or removed) and self._claim_delay.may_delay_write(what, self._clock.now()):
            return None
        for attempt in removed.values():
            stored = self._cache.runs.get(attempt.run_id)
            if stored is not None:
                what.add(attempt, Removed(attempt.name, attempt.n, stored.known.round))
        with self._transaction() as connection:
            seq = self._guard.begin_owned_transaction(connection)
            self._record_confirmed_transaction(connection)
            writing = self._writer(connection, self._cache, now=now)
            writing.apply_worker_events(what)
            writing.advance_due_runs(each for each in due if each not in what.events)
            if has_commands:
                writing.start_due_schedules((row, at) for row, at in self._fires if at <= now)
                writing.apply_commands()
                writing.start_waiting_runs(self._concurrency)
            writing.finish()
            if not self._isolates_runs:
                self._task_specs.preload(connection, writing.written.runs.values())
        for attempt, each in what.claimed:
            self._claims[attempt.attempt_key] = each.claim
        for x in writing.written.ended:
            self._claims.pop(x, None)
        self._claim_delay.reset()
        self._looking.mark_processed(writing.written.ended)
        # After a doubt, the same results are seen again.
        ended = list(dict.fromkeys([*self._tidy[0], *writing.written.ended]))
        self._tidy = (ended, list(dict.fromkeys([*self._tidy[1], *snapshot.unknown_keys])), seq)
        return writing.written

    def _record_confirmed_transaction(self, connection: sa.Connection) -> None:
        """Record in the database which transaction number the store contains.

        A store with a lower number was restored from an older backup, and the next takeover of the shard refuses it.
        """
        if self._marked and self._clock.now() - self._noted_at > _NOTE_S:
            self._guard.record_confirmed_transaction(connection, self._marked)
            self._noted_at = self._clock.now()

    def _find_lost_attempts(self, snapshot: StoreSnapshot) -> dict[SubmittedAttempt, bool]:
        """Return the running attempts whose claims were lost. The value is True if the worker died."""
        result: dict[SubmittedAttempt, bool] = {}

        def look(attempt: SubmittedAttempt) -> None:
            died = self._dispatcher.did_worker_die(self._queue_place(attempt))
            if died is not None:
                result[attempt] = died

        def heard(attempt: SubmittedAttempt) -> None:
            result[attempt] = not snapshot.running[attempt.attempt_key].worker_record.release_reason

        asks = [(each, look) for each in find_missing_attempts(self._cache, snapshot)]
        asks += [(each, heard) for each in find_reclaimed_attempts(self._cache, snapshot, self._claims)]
        self._call_per_run((each.run_id, partial(ask, each)) for each, ask in asks)
        return {each: died for each, died in result.items() if each.run_id in self._cache.runs}

    def _call_per_run(self, todo: Iterable[tuple[int, Callable[[], object]]]) -> None:
        """Call one function per run. If the function of a run raises an error that only this run can have caused, mark
        the run as failed and continue with the others.

        Args:
            todo: The run ID and the function of each run.
        """
        errors: dict[int, Exception] = {}
        for run_id, do in todo:
            try:
                do()
            except Exception as error:
                if not may_concern_one_run(error):
                    raise
                errors[run_id] = error
        if errors:
            self._write_run_by_run(lambda writing: writing.end_runs_as_failed(errors))

    def _write_run_by_run(self, do: Callable[[TransactionWriter], object]) -> None:
        """Run a transaction that processes each run separately, so that an error of one run does not affect the others.

        Args:
            do: Does the work. Its argument is the writer of the transaction.
        """
        with self._transaction() as connection:
            self._guard.begin_owned_transaction(connection)
            writing = self._writer(connection, self._cache, isolates_runs=True)
            do(writing)
            writing.finish()
        self._apply_committed(writing.written)

    def _has_work(self, now: float) -> bool:
        """Return whether the database has commands, runs that may start, or schedules that are due."""
        with self._tools.database.read() as connection:
            rows = schedules.load_schedules(connection, self._id)
            has_commands = commands.has_unfinished_commands(connection, self._id)
            self._pools.read_from_database(connection)
            waiting = [self._cache.runs[each] for each in sorted(self._cache.waiting)]
            self._concurrency = select_runs_to_check(connection, self._tools.plans, waiting)
        self._fires = [fire for each in rows if each.online and each.enabled for fire in self._next_fires(each, now)]
        self._next_fire = min((at for _, at in self._fires), default=None)
        self._tools.on_database_answer(True)
        return has_commands or bool(self._concurrency) or self._is_due(now)

    def _next_fires(self, schedule: schedules.ScheduleRow, now: float) -> list[tuple[schedules.ScheduleRow, float]]:
        """Return a schedule with its next fire time, as a list of one item.

        The list is empty if the schedule is invalid or never fires again.
        """
        if schedule in self._broken:
            return []
        if not (ahead_s := schedule.get_seconds_ahead(now)):
            self._ahead.discard(schedule.code)
        elif schedule.code not in self._ahead:
            self._ahead.add(schedule.code)
            _log.warning(
                "the schedule of %s.%s: %s", schedule.project, schedule.name, schedules.describe_clock_ahead(ahead_s)
            )
        try:
            at = schedule.get_next_fire(now)
        except Exception as error:
            _log.error("the schedule of %s.%s has no fire time: %s", schedule.project, schedule.name, reason(error))
            self._broken.add(schedule)
            return []
        return [] if at is None else [(schedule, at)]

    def _apply_committed(self, written: TransactionResult) -> None:
        """Update the state in memory after a transaction was committed."""
        self._tools.on_database_answer(True)
        for each in written.runs.values():
            self._cache.update_run(each)
        if len(self._claims) > 2 * len(self._cache.running) + 1000:
            self._claims = {x: claim for x, claim in self._claims.items() if x in self._cache.running}
        self._cancelled &= self._cache.running.keys()
        self._abandoned.update(written.abandoned)
        if written.needs_repair:
            self._needs_repair, self._is_known = True, False
        self._shards_to_notify |= written.shards_to_notify
        self._broken |= {row for row, _ in self._fires if row.code in written.broken}

    # Dispatch

    def _write_to_store(self) -> None:
        """Write what the last transaction requires in the store: queue, withdraw and cancel tasks, and delete results.

        Writes that fail are retried in the next iteration.
        """
        self._is_busy = False
        shards_to_notify, self._shards_to_notify = self._shards_to_notify, set()
        self._dispatcher.notify_masters(shards_to_notify)
        self._pools.write_to_store()
        self._put_items()  # first: workers wait for these items
        ended, strange, seq = self._tidy
        if ended or strange:
            self._dispatcher.delete_results(ended, strange, seq)
            self._marked = seq
            self._tidy = ([], [], seq)
        self._call_per_run((each, partial(self._end_attempts, each)) for each in list(self._cache.to_settle))
        while self._abandoned:
            self._abandon_attempt(*next(iter(self._abandoned.items())))
        self._decide_switches()

    def _abandon_attempt(self, attempt_key: str, place: ItemPosition) -> None:
        """Withdraw an attempt of an ended run from the queue. If a worker has claimed it, request the worker to cancel
        it.

        Args:
            attempt_key: The key of the attempt.
            place: The position of its queue item.
        """
        try:
            if not self._dispatcher.withdraw_items({attempt_key: place}):
                self._dispatcher.request_cancels({attempt_key: place})
        except Exception as error:
            if not may_concern_one_run(error):
                raise
            _log.error("attempt %s of an ended run is left to its worker: %s", attempt_key, reason(error))
        del self._abandoned[attempt_key]

    def _put_items(self) -> None:
        waiting = list(self._cache.to_put.values())[:MAX_PUTS]
        if not waiting:
            return
        self._is_busy = len(self._cache.to_put) > MAX_PUTS
        made, failed = self._task_specs.build_items(self._cache, waiting)
        done, refused = self._send_items(made)
        for x in done:
            self._cache.to_put.pop(x, None)
        failed += [(each, refused[each.attempt_key]) for each in waiting if each.attempt_key in refused]
        if failed:
            self._write_run_by_run(partial(self._fail_attempts, failed))
            self._is_busy = True

    def _decide_switches(self) -> None:
        """Evaluate the ``switch`` tasks of the shard and store their choices.

        A choice that cannot be stored now is evaluated again in a later iteration.
        """
        waiting = list(self._cache.to_choose.values())
        if not waiting:
            return
        choices = self._task_specs.decide_switches(self._cache, waiting)
        for attempt in choices:
            self._cache.to_choose.pop((attempt.run_id, attempt.name), None)
        made = {attempt: choice for attempt, choice in choices.items() if choice is not None}
        self._is_busy |= bool(made or self._cache.to_choose)
        if made:
            with self._transaction() as connection:
                self._guard.begin_owned_transaction(connection)
                writing = self._writer(connection, self._cache)
                writing.apply_switch_choices(made)
                writing.finish()
            self._apply_committed(writing.written)

    def _send_items(self, items: list[TaskItem]) -> tuple[list[str], dict[str, str]]:
        """Add items to the work queue.

        Returns:
            The attempts that are done, and the attempts that can never be queued, each with the reason.
        """
        try:
            return self._dispatcher.put_items(items), {}
        except Exception as error:
            if not may_concern_one_run(error):
                raise
        done: list[str] = []
        refused: dict[str, str] = {}
        for each in items:
            try:
                done += self._dispatcher.put_items([each])
            except Exception as error:
                if not may_concern_one_run(error):
                    raise
                refused[each.place.item.attempt_key] = get_error_text(error)
        return done, refused

    def _fail_attempts(self, failed: Iterable[tuple[SubmittedAttempt, str]], writing: TransactionWriter) -> None:
        for attempt, why in failed:
            run = self._cache.runs[attempt.run_id].known.round
            event: Event = Ended(attempt.name, attempt.n, Outcome.FATAL, run)
            writing.fail_attempt(attempt.run_id, attempt.name, attempt.n, why, event)

    def _drop_orphans(self) -> None:
        """Delete the store entries that no run of this shard needs.

        The master of the first shard also deletes those of deleted tasks.
        """

        def is_ours(tasks: Iterable[int]) -> set[int]:
            with self._tools.database.read() as connection:
                gone = attempts.find_missing_tasks(connection, tasks) if self._id == 0 else set()
                return gone | attempts.find_tasks_of_shard(connection, self._id, tasks).keys()

        drop_orphans(self._dispatcher, self._cache, self._id, is_ours)
        self._needs_repair = False

    def _end_attempts(self, run_id: int) -> None:
        """Withdraw or cancel those attempts of a run that its state requires to end."""
        stored = self._cache.runs[run_id]
        known = stored.known
        names = {name: self._attempt(run_id, name) for name in (*known.tasks_to_withdraw, *known.tasks_to_kill)}
        back = {names[name].attempt_key: self._queue_place(names[name]) for name in known.tasks_to_withdraw}
        for x in self._dispatcher.withdraw_items(back):
            self._removed[x] = next(each for each in names.values() if each.attempt_key == x)
            self._is_busy = True
        ends = {names[name].attempt_key: self._queue_place(names[name]) for name in known.tasks_to_kill}
        new = {x: place for x, place in ends.items() if x not in self._cancelled}
        self._cancelled.update(self._dispatcher.request_cancels(new))

    def _attempt(self, run_id: int, name: str) -> SubmittedAttempt:
        stored = self._cache.runs[run_id]
        return SubmittedAttempt(run_id, name, stored.ids[name], stored.known.tasks[name].n)

    def _queue_place(self, attempt: SubmittedAttempt) -> ItemPosition:
        stored = self._cache.runs[attempt.run_id]
        return ItemPosition.from_queue_key(stored.queue_keys[attempt.name], attempt.task, attempt.n, self._id)

    def _compute_wait_s(self, now: float) -> float:
        """Return the seconds until the next iteration is needed."""
        until = [
            self._tools.poll_s - (self._clock.now() - self._polled_at),
            self._claim_delay.remaining_s(self._clock.now()),
        ]
        if self._cache.next_timer_at is not None:
            until.append(self._cache.next_timer_at - now)
        if self._next_fire is not None:
            until.append(self._next_fire - now)
        if self._cache.to_settle or self._cache.to_put:
            until.append(1.0)
        return max(0.001, min(until))
