"""Writes a turn of a shard: commands, results and their effects, in one database transaction."""

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
from latchwork_workflows.db.runs import Stored
from latchwork_workflows.db.tables import event
from latchwork_workflows.errors import UnknownWorkflow, WrongState
from latchwork_workflows.keys import Order, attempt_of, log_ref
from latchwork_workflows.master.backfills import Backfills
from latchwork_workflows.master.commands import (
    BACKFILLS,
    STARTS,
    Malformed,
    NeedsCare,
    Wanted,
    event_of,
    is_of_run,
    start_of,
    why_of,
)
from latchwork_workflows.master.concurrency import Concurrency
from latchwork_workflows.master.dispatcher import Choice, Place, untaken
from latchwork_workflows.master.held_tasks import HeldTasks, WakeUps
from latchwork_workflows.master.inputs import Runs, Told, in_mind, row_of
from latchwork_workflows.master.notifications import Notifications, tell_takeover
from latchwork_workflows.master.result_cache import ResultCache
from latchwork_workflows.master.state_cache import Plans, StateCache, SubmittedAttempt, Version, stored_after
from latchwork_workflows.messages import Result
from latchwork_workflows.model.model import PRIORITIES
from latchwork_workflows.model.specs import queue_key_of
from latchwork_workflows.state import Begin, Event, Fact, Instance, InstanceState, TaskState, Wake, advance, base_of
from latchwork_workflows.state.records import DONE, FAILED, OVER

_log = logging.getLogger(__name__)

#: Maximum number of commands in one transaction.
MOST_COMMANDS = 50


@dataclass(slots=True)
class Written:
    """What a transaction has written. Valid once it is committed.

    Attributes:
        instances: Their new state.
        ended: Attempts whose results are in the database.
        abandoned: Attempts of instances that an error has ended. They may be queued or claimed.
        more: There may be more commands.
        fired: Schedules were written.
        mends: A repair was requested: read everything again and drop orphans.
        pokes: Shards that got a command from this transaction.
        broken: Workflows whose schedules cannot start anything.
    """

    instances: dict[int, Stored] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    abandoned: dict[str, Place] = field(default_factory=dict)
    more: bool = False
    fired: bool = False
    mends: bool = False
    pokes: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)


class TurnWriter:
    """The writes of one turn, in a transaction that the guard has begun. Not thread-safe."""

    def __init__(
        self,
        connection: sa.Connection,
        shard: int,
        cache: StateCache,
        *,
        plans: Plans,
        order: Order,
        now: float,
        is_careful: bool = False,
    ) -> None:
        self._connection = connection
        self._shard = shard
        self._cache = cache
        self._plans = plans
        self._order = order
        self._now = now
        self._is_careful = is_careful  # the last turn was rolled back: find the run that caused it
        self.written = Written()
        self._held = HeldTasks(connection, shard, plans, now, self)
        self._backfills = Backfills(connection, shard, plans, now, self)
        self._concurrency = Concurrency(connection)
        self._wake_ups = WakeUps(connection, shard, now, lambda each: self.advance(each, [Wake()]))
        self._result_cache = ResultCache(connection, plans, now)
        self._notifications = Notifications(connection, plans, now)

    def finish(self) -> None:
        """Complete the turn: start the next dates of backfills, and notify dependents and waiting runs."""
        self._held.follow()
        self.written.more |= self._backfills.lead(self.written.instances, self._cache.instances)
        self.written.pokes |= self._held.finish()
        made = self._result_cache.made
        for batch in [{key: known} for key, known in made.items()] if self._is_careful else [made]:
            self.alone(partial(result_cache.keep, self._connection, batch), _log_left_out)
        self.written.pokes |= self._concurrency.left(self.written.instances.values(), self._cache.instances)

    # Errors of one run

    def alone(self, do: Callable[[], object], failed: Callable[[Exception], object]) -> None:
        """Do something for one run, command or row. An error that it alone caused is passed to ``failed``.

        Raises:
            NeedsCare: This turn is not careful, and must be rolled back.
        """
        if not self._is_careful:
            with _needs_care():
                do()
            return
        written, todo = self.written, list(self._held.todo)
        before = dict(written.instances), list(written.ended), dict(written.abandoned)
        try:
            with self._connection.begin_nested():
                do()
        except Exception as error:
            if not is_of_run(error):
                raise
            written.instances, written.ended, written.abandoned = before
            self._held.todo = todo
            failed(error)

    def prepared(self, do: Callable[[], object], failed: Callable[[Exception], object]) -> None:
        """Like ``alone``, for functions that write nothing before they fail.

        Only a database error rolls the turn back.
        """
        if self._is_careful:
            self.alone(do, failed)
            return
        try:
            do()
        except sa.exc.SQLAlchemyError:
            raise
        except Exception as error:
            if not is_of_run(error):
                raise
            failed(error)

    def of_run(self, instance: int, do: Callable[[], object]) -> None:
        """Do something for a run. An error that it causes ends the run."""
        self.alone(do, partial(self._end_this, instance))

    def _end_this(self, instance: int, error: Exception) -> None:
        stored = self.stored(instance)
        if stored is None or stored.known.state in OVER:
            _log.error("of run %d, which has ended, something is left out: %s", instance, reason(error), exc_info=error)
        else:
            self.end(stored, error)

    def end(self, stored: Stored, error: Exception) -> None:
        """Mark a run as failed because of an error, which its timeline and alerts name. For careful turns."""
        why = f"run {stored.id} cannot go on: {why_of(error)}"
        _log.error("shard %d: %s", self._shard, why, exc_info=error)
        done = DONE | FAILED | {TaskState.WAITING}
        tasks = {
            name: task if task.state in done else task.to(TaskState.KILLED) for name, task in stored.known.tasks.items()
        }
        known = replace(stored.known, state=InstanceState.FAILURE, tasks=tasks, warn_at=None, facts=(Fact("failure"),))
        runs.end(self._connection, stored.id, self._now)
        made = self.written.instances[stored.id] = stored_after(stored, known, stored.ids, {}, {})
        for tell in (
            partial(self._abandon, stored),
            partial(self._held.saved, stored, made, known),
            partial(self._held.abandoned, stored),
            partial(self._notifications.saved, stored, made, known, why=why),
            partial(self.tell, stored.id, "error", details={"error": why}),
        ):
            self.alone(tell, _log_left_out)

    def _abandon(self, stored: Stored) -> None:
        """Mark its queued and claimed attempts to be withdrawn or cancelled."""
        for name, task in stored.known.tasks.items():
            if task.in_hands:
                place = Place.of(stored.queue_keys[name], stored.ids[name], task.n, self._shard)
                self.written.abandoned[place.item.x] = place

    def end_all(self, errors: Mapping[int, Exception]) -> None:
        """End these runs, and apply the effects on others."""
        for instance, error in errors.items():
            self._end_this(instance, error)

    def tell_takeover(self, known: Iterable[Stored], *, token: int, owners: tuple[str, str]) -> None:
        """Write failover alerts about these runs."""
        tell = partial(tell_takeover, shard=self._shard, token=token, owners=owners, now=self._now)
        self.alone(partial(tell, self._connection, self._plans, known), _log_left_out)

    def check(self, instance: int) -> Stored | None:
        """Return a run that was just read, or end it and return None if it cannot continue."""
        stored = self.stored(instance)
        if stored is not None:
            self.of_run(instance, partial(StateCache, [stored]))
        found = self.written.instances.get(instance, stored)
        return None if found is None or found.known.state in OVER else found

    # Events from the store

    def take_in(self, told: Told) -> None:
        """Write events and the history of attempts."""
        outputs = self._history(told)
        for instance, events in told.events.items():
            self.advance(instance, events, outputs=outputs)

    def _history(self, told: Told) -> dict[int, dict[str, Mapping[str, Any]]]:
        known, rest = in_mind(self._cache, told)
        known |= attempts.known_tasks(self._connection, self._shard, rest)
        rows: list[tuple[int, AttemptRow]] = []
        outputs: dict[int, dict[str, Mapping[str, Any]]] = {}

        def claimed(attempt: SubmittedAttempt, runs_: Runs) -> None:
            instance, code = known[attempt.task]
            ref = log_ref(code, instance, attempt.x, runs_.claim)
            who = runs_.running
            row = AttemptRow(attempt.task, attempt.n, runs_.claim, who.worker, who.host, who.since, ref)
            rows.append((instance, row))

        def ended(row: int, n: int, result: Result) -> None:
            found = self._cache.find(row, n)
            if found is not None:
                outputs.setdefault(found.instance, {})[found.name] = result.outputs
                self._result_cache.note(self._cache.instances[found.instance], found.name, result)
            rows.append((known[row][0], row_of(row, n, result)))

        for attempt, runs_ in told.claimed:
            if attempt.task in known:
                self.of_run(attempt.instance, partial(claimed, attempt, runs_))
        for x, result in told.ended:
            row, n = attempt_of(x)
            self.written.ended.append(x)
            if row in known:
                self.of_run(known[row][0], partial(ended, row, n, result))
            else:
                _log.warning(
                    "attempt %s of shard %d has a result, but is of no task here; it is dropped", x, self._shard
                )
        for attempt in told.lost:
            end_open = partial(attempts.end_open, self._connection, attempt.task, attempt.n, self._now)
            self.of_run(attempt.instance, end_open)
        self._save_history(rows)
        return outputs

    def _save_history(self, rows: Iterable[tuple[int, AttemptRow]]) -> None:
        if not self._is_careful:
            with _needs_care():
                attempts.save(self._connection, [row for _, row in rows], self._now)
            return
        for instance, row in rows:
            self.of_run(instance, partial(attempts.save, self._connection, [row], self._now))

    def wake(self, instances: Iterable[int]) -> None:
        """Advance instances for which time has passed."""
        for instance in instances:
            self.advance(instance, [])

    # One instance

    def advance(
        self,
        instance: int,
        events: Iterable[Event],
        *,
        outputs: Mapping[int, Mapping[str, Mapping[str, Any]]] | None = None,
    ) -> None:
        """Apply events that every state accepts to an instance, and the effects on other instances."""
        self.step(instance, events, (outputs or {}).get(instance, {}))
        self._held.follow()

    def step(self, instance: int, events: Iterable[Event], outputs: Mapping[str, Mapping[str, Any]]) -> None:
        """Apply events to this instance only."""
        stored = self.stored(instance)
        if stored is None:
            return

        def do() -> None:
            version = self._plans.get(self._connection, stored.code, stored.version)
            self._save(stored, version, advance(version.plan, stored.known, events, self._now), outputs)

        self.alone(do, partial(self.end, stored))

    def stored(self, instance: int) -> Stored | None:
        """Return the current state of an instance of this shard.

        None: it does not exist, or has ended and cannot be read.
        """
        known = self.written.instances.get(instance) or self._cache.instances.get(instance)
        if known is not None:
            return known
        found: dict[int, Stored] = {}

        def load() -> None:
            found.update(runs.load(self._connection, [instance], shard=self._shard))

        self.alone(load, partial(self._end_unread, instance))
        return found.get(instance) or self.written.instances.get(instance)

    def _end_unread(self, instance: int, error: Exception) -> None:
        outline = runs.outline(self._connection, instance, shard=self._shard)
        if outline is not None and outline.known.state not in OVER:
            self.end(outline, error)

    def _save(
        self, stored: Stored, version: Version, after: Instance, outputs: Mapping[str, Mapping[str, Any]]
    ) -> Stored:
        if after == stored.known:
            return stored
        is_same_run = stored.known.run == after.run
        ended = {
            name: dict(each)
            for name, each in outputs.items()
            if is_same_run
            and after.tasks[name].state is TaskState.SUCCESS
            and stored.known.tasks[name] != after.tasks[name]
        }
        known = self._result_cache.recall(stored, version, after, {**(stored.outputs if is_same_run else {}), **ended})
        after, ended = known.after, {**ended, **{name: dict(each) for name, each in known.outputs.items()}}
        keys = self._queue_keys(stored, version, after)
        ids = runs.save(self._connection, stored, after, self._now, queue_keys=keys, outputs=ended)
        history = [*untaken(stored, version.plan, after, self._now), *known.rows(ids, self._now)]
        attempts.save(self._connection, history, self._now)
        known.tell(self._connection, stored.id, self._now)
        made = stored_after(stored, after, ids, keys, ended)
        self.written.instances[stored.id] = made
        self._held.saved(stored, made, after)
        self._notifications.saved(stored, made, after)
        return made

    def _queue_keys(self, stored: Stored, version: Version, after: Instance) -> dict[str, str]:
        """Return the queue keys of newly submitted attempts.

        Released attempts and those of dead workers keep theirs.
        """
        found = {}
        is_same_run = stored.known.run == after.run
        for name, task in after.tasks.items():
            was = stored.known.tasks.get(name) if is_same_run else None
            if task.state is TaskState.SUBMITTED and (was is None or was.n != task.n):
                forced = task.forced_after is not None and task.n > task.forced_after
                found[name] = queue_key_of(
                    version.definition,
                    version.tasks[base_of(name)],
                    stored.id,
                    stored.priority,
                    now=self._now,
                    order=self._order,
                    forced=forced,
                    is_limited=self._concurrency.is_limited(version.definition.project),
                )
        return found

    def fail(self, instance: int, name: str, n: int, why: str, ended: Event) -> None:
        """Record that an attempt could not be dispatched, with the reason, and apply its end."""
        stored = self.stored(instance)
        if stored is None:
            return

        def save() -> None:
            row = AttemptRow(stored.ids[name], n, 0, "", "", self._now, "", self._now, "fatal", error=why[:4000])
            attempts.save(self._connection, [row], self._now)

        self.of_run(instance, save)
        self.advance(instance, [ended])

    def choose(self, choices: Mapping[SubmittedAttempt, Choice]) -> None:
        """Apply the decisions of switches."""
        for attempt, choice in choices.items():
            stored = self.stored(attempt.instance)
            if stored is not None:
                self._held.chose(stored, attempt.name, attempt.n, choice)
                self._held.follow()

    def tell(self, instance: int, kind: str, *, details: Mapping[str, Any]) -> None:
        """Add an event to the timeline of an instance."""
        row = {"at": self._now, "instance": instance, "kind": kind, "details": dict(details)}
        self._connection.execute(sa.insert(event).values(**row))

    # Commands and schedules

    def fire(self, due: Iterable[tuple[schedules.ScheduleRow, float]]) -> None:
        """Write a command for each schedule whose fire time has come."""
        for row, at in due:
            self.alone(partial(schedules.start, self._connection, row, at), partial(self._break, row))
            self.written.fired = True

    def _break(self, row: schedules.ScheduleRow, error: Exception) -> None:
        _log.error("the schedule of %s.%s cannot start anything: %s", row.project, row.name, reason(error))
        self.written.broken.add(row.code)

    def do_commands(self) -> None:
        """Apply or refuse the open commands of the shard, in their order."""
        rows = commands.open_of(self._connection, self._shard, MOST_COMMANDS)
        self.written.more = len(rows) == MOST_COMMANDS
        for row in rows:
            if not self._wake_ups.is_done(row):
                self.alone(partial(self._do_command, row), partial(self._cannot_do, row))
        self.written.more |= self._wake_ups.goes_on

    def _do_command(self, row: CommandRow) -> None:
        instance, error, backfill = None, None, None
        try:
            if row.type == CommandType.MEND.value:
                self.written.mends = True
            elif row.type in BACKFILLS or "backfill" in row.args:
                backfill = self._backfills.command(row)
            else:
                instance = self._start(row) if row.type in STARTS else self._change(row)
                self._held.follow()
        except (WrongState, UnknownWorkflow, Malformed) as refusal:
            error = str(refusal)
        commands.done(self._connection, row.id, self._now, instance=instance, error=error, backfill=backfill)

    def _cannot_do(self, row: CommandRow, error: Exception) -> None:
        _log.error("command %d of shard %d cannot be done", row.id, self._shard, exc_info=error)
        commands.done(self._connection, row.id, self._now, instance=None, error=why_of(error))

    def _start(self, row: CommandRow) -> int:
        wanted = start_of(row)
        definitions.check_online(self._connection, wanted.code)
        version = self._plans.get(self._connection, wanted.code, wanted.version)
        waits = self._concurrency.has_to_wait(version, dry=wanted.event.dry)
        made = self.make(replace(wanted, event=replace(wanted.event, waits=waits)), row.by)
        self.tell(made, "begin", details={"command": row.id, "by": row.by})
        return made

    def make(self, wanted: Wanted, by: str, **columns: Any) -> int:
        """Create an instance. ``columns`` name its parent. An error while writing rolls the turn back."""
        version = self._plans.get(self._connection, wanted.code, wanted.version)
        after = advance(version.plan, Instance(), [wanted.event], self._now)
        priority = wanted.priority or version.definition.priority
        with _needs_care() if not self._is_careful else nullcontext():
            made = runs.create(
                self._connection,
                self._shard,
                wanted.code,
                wanted.version,
                params=dict(wanted.params),
                schedule_time=wanted.schedule_time,
                created_at=self._now,
                priority=priority,
                by=by,
                **columns,
            )
            stored = Stored(
                made,
                wanted.code,
                wanted.version,
                PRIORITIES.index(priority),
                wanted.schedule_time,
                wanted.params,
                Instance(),
                parent=columns.get("parent_task"),
                depth=columns.get("depth", 0),
            )
            self._save(stored, version, after, {})
        return made

    def _change(self, row: CommandRow) -> int | None:
        if row.type == "wake" and row.instance is None:
            self._wake_ups.command(row)
            return None
        wanted = event_of(row)
        instance = row.instance or 0
        stored = self.stored(instance)
        if stored is None:
            raise UnknownWorkflow(f"there is no run {instance} here that can be read")
        related_runs.check_alone(self._connection, instance, stored.parent, row.type)
        version = self._plans.get(self._connection, stored.code, stored.version)
        after = advance(version.plan, stored.known, [wanted], self._now)
        self._concurrency.check_again(stored, version, row.type)
        self._save(stored, version, after, {})
        return instance

    def begin(self, instances: Iterable[int]) -> None:
        """Start the runs that were found to be next."""
        for instance in instances:
            self.of_run(instance, partial(self._begin, instance))
            self._held.follow()

    def _begin(self, instance: int) -> None:
        stored = self.stored(instance)
        if stored is None or stored.known.state is not InstanceState.SERIAL_WAIT:
            return
        try:
            is_next = self._concurrency.is_next(stored, self._plans.get(self._connection, stored.code, stored.version))
        except (ValueError, UnknownWorkflow):
            is_next = True  # no version can start it: the run fails, not its shard
        if is_next:
            self.step(instance, [Begin()], {})

    def turn(self, code: int, version: int, *, above: Collection[int], but: int = 0) -> bool:
        """Return whether a child run has to wait. Raises like ``Concurrency.has_to_wait``."""
        made = self._plans.get(self._connection, code, version)
        return self._concurrency.has_to_wait(made, dry=False, above=above, but=but)

    def has_to_wait(self, stored: Stored) -> bool:
        """Return whether a date of a backfill has to wait. One without a readable version does not wait: it fails."""
        try:
            version = self._plans.get(self._connection, stored.code, stored.version)
        except (ValueError, UnknownWorkflow):
            return False
        return self._concurrency.has_to_wait(version, dry=stored.known.dry, is_wanted=True)


@contextmanager
def _needs_care() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_of_run(error):
            raise
        raise NeedsCare(reason(error)) from error


def _log_left_out(error: Exception) -> None:
    _log.error("something that follows is left out: %s", reason(error), exc_info=error)
