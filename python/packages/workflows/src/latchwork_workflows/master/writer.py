"""Writes one database transaction of a shard: commands, results of workers, and their effects on runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from latchwork.spi import reason
from latchwork_workflows.db import attempts, commands, definitions, related_runs, result_cache, runs, schedules
from latchwork_workflows.db.attempts import AttemptRow
from latchwork_workflows.db.commands import CommandRow, CommandType
from latchwork_workflows.db.runs import StoredRun
from latchwork_workflows.db.tables import event
from latchwork_workflows.errors import NotFound, WrongState
from latchwork_workflows.keys import Order, build_log_ref, parse_attempt_key
from latchwork_workflows.master.backfills import BackfillAdvancer
from latchwork_workflows.master.commands import (
    BACKFILLS,
    STARTS,
    MalformedCommand,
    RunErrorSuspected,
    RunRequest,
    get_error_text,
    may_concern_one_run,
    parse_run_event,
    parse_run_request,
)
from latchwork_workflows.master.concurrency import ConcurrencyControl
from latchwork_workflows.master.dispatcher import ItemPosition, SwitchChoice, build_dispatch_timeout_rows
from latchwork_workflows.master.master_tasks import MasterTasks, WakeUps
from latchwork_workflows.master.notifications import Notifications, create_takeover_alerts
from latchwork_workflows.master.result_cache import ResultCache
from latchwork_workflows.master.state_cache import (
    LoadedVersion,
    StateCache,
    SubmittedAttempt,
    VersionCache,
    build_stored_run,
)
from latchwork_workflows.master.store_reader import ReportedEvents, RunningClaim, build_attempt_row, find_reported_tasks
from latchwork_workflows.messages import AttemptResult
from latchwork_workflows.model.definition import PRIORITIES
from latchwork_workflows.model.specs import build_queue_key
from latchwork_workflows.state import (
    Begin,
    Event,
    RunState,
    TaskState,
    TimelineEvent,
    Wake,
    WorkflowRun,
    advance,
    get_map_name,
)
from latchwork_workflows.state.records import DONE, FAILED, OVER

_log = logging.getLogger(__name__)

#: Maximum number of commands in one transaction.
MAX_COMMANDS = 50


@dataclass(slots=True)
class TransactionResult:
    """What a transaction has written. Valid once it is committed.

    Attributes:
        runs: The new state of each written run.
        ended: Attempts whose results are in the database.
        abandoned: Attempts of runs that an error has ended. They may be queued or claimed.
        more: Whether there may be more commands.
        fired: Whether schedules were written.
        needs_repair: Whether a repair was requested: read everything again and delete orphaned store entries.
        shards_to_notify: Shards for which this transaction has written a command.
        broken: Workflows whose schedules cannot start anything.
    """

    runs: dict[int, StoredRun] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    abandoned: dict[str, ItemPosition] = field(default_factory=dict)
    more: bool = False
    fired: bool = False
    needs_repair: bool = False
    shards_to_notify: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)


class TransactionWriter:
    """Applies commands, schedules and results of workers to the runs of a shard, in one transaction. Not thread-safe.

    The shard guard has begun the transaction. An error that one run can have caused rolls it back. It is then repeated
    with ``isolates_runs``: each run, command and row gets a savepoint, and the one that fails again gets the error.
    """

    def __init__(
        self,
        connection: sa.Connection,
        shard: int,
        cache: StateCache,
        *,
        plans: VersionCache,
        order: Order,
        now: float,
        isolates_runs: bool = False,
    ) -> None:
        self._connection = connection
        self._shard = shard
        self._cache = cache
        self._plans = plans
        self._order = order
        self._now = now
        self._isolates_runs = isolates_runs  # the last transaction was rolled back: find the run that caused it
        self.written = TransactionResult()
        self._held = MasterTasks(connection, shard, plans, now, self)
        self._backfills = BackfillAdvancer(connection, shard, plans, now, self)
        self._concurrency = ConcurrencyControl(connection)
        self._wake_ups = WakeUps(connection, shard, now, lambda each: self.apply_events(each, [Wake()]))
        self._result_cache = ResultCache(connection, plans, now)
        self._notifications = Notifications(connection, plans, now)

    def finish(self) -> None:
        """Write the effects that depend on all changes of the transaction. Call this last.

        They are further runs of backfills, cached outputs, and notifications of tasks and runs that wait for others.
        """
        self._held.process_calls()
        self.written.more |= self._backfills.advance_changed_backfills(self.written.runs, self._cache.runs)
        self.written.shards_to_notify |= self._held.wake_dependents()
        made = self._result_cache.made
        for batch in [{key: known} for key, known in made.items()] if self._isolates_runs else [made]:
            self.call_isolated(partial(result_cache.save_cache_entries, self._connection, batch), _log_skipped)
        self.written.shards_to_notify |= self._concurrency.find_shards_to_notify(
            self.written.runs.values(), self._cache.runs
        )

    # Errors of one run

    def call_isolated(self, function: Callable[[], object], on_error: Callable[[Exception], object]) -> None:
        """Call a function. If it raises an error that only its own run, command or row can have caused, call
        ``on_error`` instead, so that the others are still processed.

        Args:
            function: The function.
            on_error: Called with the error, after the writes of the function were rolled back.
        Raises:
            RunErrorSuspected: There was such an error, and this transaction does not isolate runs. Roll it back and
                repeat it with ``isolates_runs``.
        """
        if not self._isolates_runs:
            with _suspect_run_error():
                function()
            return
        written, todo = self.written, list(self._held.todo)
        before = dict(written.runs), list(written.ended), dict(written.abandoned)
        try:
            with self._connection.begin_nested():
                function()
        except Exception as error:
            if not may_concern_one_run(error):
                raise
            written.runs, written.ended, written.abandoned = before
            self._held.todo = todo
            on_error(error)

    def call_isolated_without_savepoint(
        self, function: Callable[[], object], on_error: Callable[[Exception], object]
    ) -> None:
        """Call a function like ``call_isolated``, but without a savepoint, so nothing is rolled back after an error.

        A database error is raised unless this transaction isolates runs.

        Args:
            function: The function. It must write nothing before it can fail.
            on_error: Called with an error that only the function's own run or row can have caused.
        """
        if self._isolates_runs:
            self.call_isolated(function, on_error)
            return
        try:
            function()
        except sa.exc.SQLAlchemyError:
            raise
        except Exception as error:
            if not may_concern_one_run(error):
                raise
            on_error(error)

    def call_isolated_for_run(self, run_id: int, function: Callable[[], object]) -> None:
        """Call a function for a run. If the function raises an error that only this run can have caused, mark the run
        as failed.
        """
        self.call_isolated(function, partial(self._end_run_of, run_id))

    def _end_run_of(self, run_id: int, error: Exception) -> None:
        stored = self.get_run(run_id)
        if stored is None or stored.known.state in OVER:
            _log.error("a consequence of the ended run %d is skipped: %s", run_id, reason(error), exc_info=error)
        else:
            self.end_run_as_failed(stored, error)

    def end_run_as_failed(self, stored: StoredRun, error: Exception) -> None:
        """Mark a run as failed because of an error, which its timeline and its alerts show.

        Call this only in transactions that isolate runs.
        """
        why = f"run {stored.id} cannot continue: {get_error_text(error)}"
        _log.error("shard %d: %s", self._shard, why, exc_info=error)
        done = DONE | FAILED | {TaskState.WAITING}
        tasks = {
            name: task if task.state in done else task.with_state(TaskState.KILLED)
            for name, task in stored.known.tasks.items()
        }
        known = replace(
            stored.known, state=RunState.FAILURE, tasks=tasks, warn_at=None, timeline_events=(TimelineEvent("failure"),)
        )
        runs.end_run_as_failure(self._connection, stored.id, self._now)
        made = self.written.runs[stored.id] = build_stored_run(stored, known, stored.ids, {}, {})
        for tell in (
            partial(self._abandon_run, stored),
            partial(self._held.process_saved_run, stored, made, known),
            partial(self._held.clean_up_failed_run, stored),
            partial(self._notifications.create_run_alerts, stored, made, known, why=why),
            partial(self.record_event, stored.id, "error", details={"error": why}),
        ):
            self.call_isolated(tell, _log_skipped)

    def _abandon_run(self, stored: StoredRun) -> None:
        """Record that the queued attempts of a run must be withdrawn and its claimed attempts canceled."""
        for name, task in stored.known.tasks.items():
            if task.is_at_worker:
                place = ItemPosition.from_queue_key(stored.queue_keys[name], stored.ids[name], task.n, self._shard)
                self.written.abandoned[place.item.attempt_key] = place

    def end_runs_as_failed(self, errors: Mapping[int, Exception]) -> None:
        """End runs as failed, and update the other runs that this affects.

        Args:
            errors: The error of each run, by run ID.
        """
        for run_id, error in errors.items():
            self._end_run_of(run_id, error)

    def create_takeover_alerts(self, known: Iterable[StoredRun], *, token: int, owners: tuple[str, str]) -> None:
        """Write failover alerts about the runs that this master has taken over.

        Args:
            known: The active runs of the shard.
            token: The fencing token of this master.
            owners: The former owner and the new owner.
        """
        tell = partial(create_takeover_alerts, shard=self._shard, token=token, owners=owners, now=self._now)
        self.call_isolated(partial(tell, self._connection, self._plans, known), _log_skipped)

    def fail_if_invalid(self, run_id: int) -> StoredRun | None:
        """Load a run, and mark it as failed if its stored state is invalid.

        Returns:
            The run if it is valid and active, otherwise None.
        """
        stored = self.get_run(run_id)
        if stored is not None:
            self.call_isolated_for_run(run_id, partial(StateCache, [stored]))
        found = self.written.runs.get(run_id, stored)
        return None if found is None or found.known.state in OVER else found

    # Events from the store

    def apply_worker_events(self, reported: ReportedEvents) -> None:
        """Apply the claims, losses and results that workers have reported, and write the history of the attempts."""
        outputs = self._history(reported)
        for run_id, events in reported.events.items():
            self.apply_events(run_id, events, outputs=outputs)

    def _history(self, reported: ReportedEvents) -> dict[int, dict[str, Mapping[str, Any]]]:
        known, rest = find_reported_tasks(self._cache, reported)
        known |= attempts.find_tasks_of_shard(self._connection, self._shard, rest)
        rows: list[tuple[int, AttemptRow]] = []
        outputs: dict[int, dict[str, Mapping[str, Any]]] = {}

        def claimed(attempt: SubmittedAttempt, runs_: RunningClaim) -> None:
            run_id, code = known[attempt.task]
            ref = build_log_ref(code, run_id, attempt.attempt_key, runs_.claim)
            who = runs_.worker_record
            row = AttemptRow(attempt.task, attempt.n, runs_.claim, who.worker, who.host, who.claimed_at, ref)
            rows.append((run_id, row))

        def ended(row: int, n: int, result: AttemptResult) -> None:
            found = self._cache.find_attempt(row, n)
            if found is not None:
                outputs.setdefault(found.run_id, {})[found.name] = result.outputs
                self._result_cache.save_result(self._cache.runs[found.run_id], found.name, result)
            rows.append((known[row][0], build_attempt_row(row, n, result)))

        for attempt, runs_ in reported.claimed:
            if attempt.task in known:
                self.call_isolated_for_run(attempt.run_id, partial(claimed, attempt, runs_))
        for x, result in reported.ended:
            row, n = parse_attempt_key(x)
            self.written.ended.append(x)
            if row in known:
                self.call_isolated_for_run(known[row][0], partial(ended, row, n, result))
            else:
                _log.warning(
                    "attempt %s of shard %d has a result, but belongs to no task; it is dropped", x, self._shard
                )
        for attempt in reported.lost:
            mark_lost = partial(attempts.mark_open_attempts_lost, self._connection, attempt.task, attempt.n, self._now)
            self.call_isolated_for_run(attempt.run_id, mark_lost)
        self._save_history(rows)
        return outputs

    def _save_history(self, rows: Iterable[tuple[int, AttemptRow]]) -> None:
        if not self._isolates_runs:
            with _suspect_run_error():
                attempts.save_attempts(self._connection, [row for _, row in rows], self._now)
            return
        for run_id, row in rows:
            self.call_isolated_for_run(run_id, partial(attempts.save_attempts, self._connection, [row], self._now))

    def advance_due_runs(self, run_ids: Iterable[int]) -> None:
        """Advance the runs whose timers are due."""
        for run_id in run_ids:
            self.apply_events(run_id, [])

    # One run

    def apply_events(
        self,
        run_id: int,
        events: Iterable[Event],
        *,
        outputs: Mapping[int, Mapping[str, Mapping[str, Any]]] | None = None,
    ) -> None:
        """Apply events to a run, save the run, and update the other runs that this affects, such as its parent.

        Args:
            run_id: ID of the run. Nothing happens if the run does not exist or cannot be read.
            events: The events. They must not be commands, which some states of a run refuse.
            outputs: Outputs of tasks that have ended, by run ID and task name.
        """
        self.apply_events_to_one_run(run_id, events, (outputs or {}).get(run_id, {}))
        self._held.process_calls()

    def apply_events_to_one_run(
        self, run_id: int, events: Iterable[Event], outputs: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Apply events to one run and save it, without updating the other runs that this affects."""
        stored = self.get_run(run_id)
        if stored is None:
            return

        def do() -> None:
            version = self._plans.get(self._connection, stored.code, stored.version)
            self._save(stored, version, advance(version.plan, stored.known, events, self._now), outputs)

        self.call_isolated(do, partial(self.end_run_as_failed, stored))

    def get_run(self, run_id: int) -> StoredRun | None:
        """Return the current state of a run of this shard. None if it does not exist, or has ended and cannot be
        read.
        """
        known = self.written.runs.get(run_id) or self._cache.runs.get(run_id)
        if known is not None:
            return known
        found: dict[int, StoredRun] = {}

        def load() -> None:
            found.update(runs.load_runs(self._connection, [run_id], shard=self._shard))

        self.call_isolated(load, partial(self._end_unreadable, run_id))
        return found.get(run_id) or self.written.runs.get(run_id)

    def _end_unreadable(self, run_id: int, error: Exception) -> None:
        outline = runs.load_readable_part(self._connection, run_id, shard=self._shard)
        if outline is not None and outline.known.state not in OVER:
            self.end_run_as_failed(outline, error)

    def _save(
        self, stored: StoredRun, version: LoadedVersion, after: WorkflowRun, outputs: Mapping[str, Mapping[str, Any]]
    ) -> StoredRun:
        if after == stored.known:
            return stored
        is_same_run = stored.known.round == after.round
        ended = {
            name: dict(each)
            for name, each in outputs.items()
            if is_same_run
            and after.tasks[name].state is TaskState.SUCCESS
            and stored.known.tasks[name] != after.tasks[name]
        }
        known = self._result_cache.complete_cached_tasks(
            stored, version, after, {**(stored.outputs if is_same_run else {}), **ended}
        )
        after, ended = known.after, {**ended, **{name: dict(each) for name, each in known.outputs.items()}}
        keys = self._assign_queue_keys(stored, version, after)
        ids = runs.save_run(self._connection, stored, after, self._now, queue_keys=keys, outputs=ended)
        history = [
            *build_dispatch_timeout_rows(stored, version.plan, after, self._now),
            *known.build_attempt_rows(ids, self._now),
        ]
        attempts.save_attempts(self._connection, history, self._now)
        known.record_hits(self._connection, stored.id, self._now)
        made = build_stored_run(stored, after, ids, keys, ended)
        self.written.runs[stored.id] = made
        self._held.process_saved_run(stored, made, after)
        self._notifications.create_run_alerts(stored, made, after)
        return made

    def _assign_queue_keys(self, stored: StoredRun, version: LoadedVersion, after: WorkflowRun) -> dict[str, str]:
        """Return the queue keys of the attempts that are queued now, by task name.

        An attempt that is queued again keeps its queue key.

        Args:
            stored: The run before.
            version: The workflow version of the run.
            after: The run now.
        """
        found = {}
        is_same_run = stored.known.round == after.round
        for name, task in after.tasks.items():
            was = stored.known.tasks.get(name) if is_same_run else None
            if task.state is TaskState.SUBMITTED and (was is None or was.n != task.n):
                forced = task.forced_after is not None and task.n > task.forced_after
                found[name] = build_queue_key(
                    version.definition,
                    version.tasks[get_map_name(name)],
                    stored.id,
                    stored.priority,
                    now=self._now,
                    order=self._order,
                    forced=forced,
                    has_project_pool=self._concurrency.has_project_pool(version.definition.project),
                )
        return found

    def fail_attempt(self, run_id: int, name: str, n: int, reason: str, event: Event) -> None:
        """End an attempt that cannot be sent to workers.

        Args:
            run_id: ID of the run.
            name: Name of the task.
            n: Number of the attempt.
            reason: Why it cannot be sent.
            event: The event that ends it.
        """
        stored = self.get_run(run_id)
        if stored is None:
            return

        def save() -> None:
            row = AttemptRow(stored.ids[name], n, 0, "", "", self._now, "", self._now, "fatal", error=reason[:4000])
            attempts.save_attempts(self._connection, [row], self._now)

        self.call_isolated_for_run(run_id, save)
        self.apply_events(run_id, [event])

    def apply_switch_choices(self, choices: Mapping[SubmittedAttempt, SwitchChoice]) -> None:
        """Store the branches that switches have chosen."""
        for attempt, choice in choices.items():
            stored = self.get_run(attempt.run_id)
            if stored is not None:
                self._held.apply_switch_choice(stored, attempt.name, attempt.n, choice)
                self._held.process_calls()

    def record_event(self, run_id: int, kind: str, *, details: Mapping[str, Any]) -> None:
        """Add an event to the timeline of a run."""
        row = {"at": self._now, "run_id": run_id, "kind": kind, "details": dict(details)}
        self._connection.execute(sa.insert(event).values(**row))

    # Commands and schedules

    def start_due_schedules(self, due: Iterable[tuple[schedules.ScheduleRow, float]]) -> None:
        """Write a start command for each schedule that is due."""
        for row, at in due:
            self.call_isolated(
                partial(schedules.start_scheduled_run, self._connection, row, at), partial(self._mark_broken, row)
            )
            self.written.fired = True

    def _mark_broken(self, row: schedules.ScheduleRow, error: Exception) -> None:
        _log.error("the schedule of %s.%s cannot start anything: %s", row.project, row.name, reason(error))
        self.written.broken.add(row.code)

    def apply_commands(self) -> None:
        """Execute or refuse the unfinished commands of the shard, in their order."""
        rows = commands.list_unfinished_commands(self._connection, self._shard, MAX_COMMANDS)
        self.written.more = len(rows) == MAX_COMMANDS
        for row in rows:
            if not self._wake_ups.is_superseded(row):
                self.call_isolated(partial(self._apply_command, row), partial(self._refuse_command, row))
        self.written.more |= self._wake_ups.goes_on

    def _apply_command(self, row: CommandRow) -> None:
        run_id, error, backfill = None, None, None
        try:
            if row.type == CommandType.REPAIR.value:
                self.written.needs_repair = True
            elif row.type in BACKFILLS or "backfill" in row.args:
                backfill = self._backfills.apply_command(row)
            else:
                run_id = self._start(row) if row.type in STARTS else self._command_run(row)
                self._held.process_calls()
        except (WrongState, NotFound, MalformedCommand) as refusal:
            error = str(refusal)
        commands.record_command_result(
            self._connection, row.id, self._now, run_id=run_id, error=error, backfill=backfill
        )

    def _refuse_command(self, row: CommandRow, error: Exception) -> None:
        _log.error("command %d of shard %d cannot be executed", row.id, self._shard, exc_info=error)
        commands.record_command_result(self._connection, row.id, self._now, run_id=None, error=get_error_text(error))

    def _start(self, row: CommandRow) -> int:
        wanted = parse_run_request(row)
        definitions.check_online(self._connection, wanted.code)
        version = self._plans.get(self._connection, wanted.code, wanted.version)
        waits = self._concurrency.apply_limits(version, dry=wanted.event.dry)
        made = self.create_run(replace(wanted, event=replace(wanted.event, waits=waits)), row.by)
        self.record_event(made, "begin", details={"command": row.id, "by": row.by})
        return made

    def create_run(self, request: RunRequest, by: str, **columns: Any) -> int:
        """Create a run and return its ID. A database error rolls the transaction back.

        Args:
            request: What to create.
            by: The account that requested it.
            columns: Further columns of the run, such as the parent task.
        """
        version = self._plans.get(self._connection, request.code, request.version)
        after = advance(version.plan, WorkflowRun(), [request.event], self._now)
        priority = request.priority or version.definition.priority
        with _suspect_run_error() if not self._isolates_runs else nullcontext():
            made = runs.create_run(
                self._connection,
                self._shard,
                request.code,
                request.version,
                params=dict(request.params),
                schedule_time=request.schedule_time,
                created_at=self._now,
                priority=priority,
                by=by,
                **columns,
            )
            stored = StoredRun(
                made,
                request.code,
                request.version,
                PRIORITIES.index(priority),
                request.schedule_time,
                request.params,
                WorkflowRun(),
                parent=columns.get("parent_task"),
                depth=columns.get("depth", 0),
            )
            self._save(stored, version, after, {})
        return made

    def _command_run(self, row: CommandRow) -> int | None:
        if row.type == "wake" and row.run_id is None:
            self._wake_ups.apply_wake_up(row)
            return None
        wanted = parse_run_event(row)
        run_id = row.run_id or 0
        stored = self.get_run(run_id)
        if stored is None:
            raise NotFound(f"there is no run {run_id} here that can be read")
        related_runs.check_command_to_child(self._connection, run_id, stored.parent, row.type)
        version = self._plans.get(self._connection, stored.code, stored.version)
        after = advance(version.plan, stored.known, [wanted], self._now)
        self._concurrency.check_restart(stored, version, row.type)
        self._save(stored, version, after, {})
        return run_id

    def start_waiting_runs(self, run_ids: Iterable[int]) -> None:
        """Start runs that waited for the concurrency limits of their workflows."""
        for run_id in run_ids:
            self.call_isolated_for_run(run_id, partial(self._start_waiting_run, run_id))
            self._held.process_calls()

    def _start_waiting_run(self, run_id: int) -> None:
        stored = self.get_run(run_id)
        if stored is None or stored.known.state is not RunState.SERIAL_WAIT:
            return
        try:
            may_start_now = self._concurrency.may_start_now(
                stored, self._plans.get(self._connection, stored.code, stored.version)
            )
        except (ValueError, NotFound):
            may_start_now = True  # no version can start it: the run fails, not its shard
        if may_start_now:
            self.apply_events_to_one_run(run_id, [Begin()], {})

    def apply_limits_to_child(self, code: int, version: int, *, ancestors: Collection[int], exclude: int = 0) -> bool:
        """Apply the concurrency limits of its workflow to a child run, and return whether the run has to wait.

        The policy of the workflow may stop other runs.

        Args:
            code: ID of the workflow.
            version: Version of the workflow.
            ancestors: IDs of the ancestors of the run.
            exclude: ID of the run itself, if it exists already.
        Raises:
            WrongState: The policy of the workflow refuses the run.
        """
        made = self._plans.get(self._connection, code, version)
        return self._concurrency.apply_limits(made, dry=False, ancestors=ancestors, exclude=exclude)

    def must_backfill_run_wait(self, stored: StoredRun) -> bool:
        """Return whether a run of a backfill has to wait for the concurrency limits of its workflow.

        A run whose version cannot be read does not wait, because it will fail.
        """
        try:
            version = self._plans.get(self._connection, stored.code, stored.version)
        except (ValueError, NotFound):
            return False
        return self._concurrency.apply_limits(version, dry=stored.known.dry, must_run=True)


@contextmanager
def _suspect_run_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not may_concern_one_run(error):
            raise
        raise RunErrorSuspected(reason(error)) from error


def _log_skipped(error: Exception) -> None:
    _log.error("a consequence is skipped: %s", reason(error), exc_info=error)
