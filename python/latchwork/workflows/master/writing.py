"""One transaction of a shard's master: the guard, then what happened, then what follows from it.

An instance is advanced once in a turn, with all that was seen of it; commands come after that, each by itself, since a
state may refuse one. What raises for another reason ends its instance, and not the turn.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from latchwork.errors import Unavailable
from latchwork.workflows.database import attempts, consuming, families, runs, schedules
from latchwork.workflows.database.attempts import AttemptRow
from latchwork.workflows.database.commands import CommandType
from latchwork.workflows.database.consuming import CommandRow
from latchwork.workflows.database.runs import Stored
from latchwork.workflows.database.tables import event
from latchwork.workflows.definitions.model import PRIORITIES
from latchwork.workflows.definitions.specs import queue_key_of
from latchwork.workflows.errors import UnknownWorkflow, WrongState
from latchwork.workflows.keys import Order, attempt_of, log_ref
from latchwork.workflows.master import orders
from latchwork.workflows.master.backfilling import Backfills
from latchwork.workflows.master.book import Attempt, Book, stored_after
from latchwork.workflows.master.holding import Holding
from latchwork.workflows.master.inputs import Told, in_mind, row_of
from latchwork.workflows.master.parcels import Choice
from latchwork.workflows.master.plans import Plans, Version
from latchwork.workflows.master.policies.recalling import Recalling
from latchwork.workflows.master.policies.untaken import untaken
from latchwork.workflows.master.policies.waking import Waking
from latchwork.workflows.master.taking_turns import Turns
from latchwork.workflows.master.telling import Telling
from latchwork.workflows.state import Begin, Event, Fact, Instance, InstanceState, TaskState, Wake, advance, base_of

_log = logging.getLogger(__name__)

#: So many commands are done in one transaction.
MOST_COMMANDS = 50


@dataclass(slots=True)
class Written:
    """What a transaction has written; worth something once it is committed.

    Attributes:
        instances: as they are now.
        ended: attempts whose results are in the database.
        abandoned: attempts of instances that a defect has ended, which somebody may have or take.
        more: there may be more commands.
        fired: schedules were written.
        mends: somebody asks to have all read again, and what nobody waits for dropped.
        pokes: shards that have a command of ours.
    """

    instances: dict[int, Stored] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    more: bool = False
    fired: bool = False
    mends: bool = False
    pokes: set[int] = field(default_factory=set)


class Writing:
    """One turn's writes, in a transaction that the guard has begun. For one thread."""

    def __init__(
        self,
        connection: sa.Connection,
        shard: int,
        book: Book,
        *,
        plans: Plans,
        order: Order,
        now: float,
        is_careful: bool = False,
    ) -> None:
        self._connection = connection
        self._shard = shard
        self._book = book
        self._plans = plans
        self._order = order
        self._now = now
        self._is_careful = is_careful  # the last turn was refused by the database: whose rows it was is found out
        self.written = Written()
        self._holding = Holding(connection, shard, plans, now, self)
        self._backfills = Backfills(connection, shard, plans, now, self)
        self._turns = Turns(connection)
        self._waking = Waking(connection, shard, now, lambda each: self.advance(each, [Wake()]))
        self._recalling = Recalling(connection, plans, now)
        self._telling = Telling(connection, plans, now)

    def finish(self) -> None:
        """The last of it: the next dates of backfills; then who waits for what has ended gets to know."""
        self.written.more |= self._backfills.lead(self.written.instances, self._book.instances)
        self.written.pokes |= self._holding.finish()
        self._recalling.finish()
        self.written.pokes |= self._turns.left(self.written.instances.values(), self._book.instances)

    # What was seen

    def take_in(self, told: Told) -> None:
        """Events, and the history of attempts."""
        outputs = self._history(told)
        for instance, events in told.events.items():
            self.advance(instance, events, outputs=outputs)

    def _history(self, told: Told) -> dict[int, dict[str, Mapping[str, Any]]]:
        known, rest = in_mind(self._book, told)
        known |= attempts.known_tasks(self._connection, self._shard, rest)
        rows: list[AttemptRow] = []
        outputs: dict[int, dict[str, Mapping[str, Any]]] = {}
        for attempt, runs_ in told.claimed:
            if attempt.task in known:
                instance, code = known[attempt.task]
                ref = log_ref(code, instance, attempt.x, runs_.claim)
                who = runs_.running
                rows.append(AttemptRow(attempt.task, attempt.n, runs_.claim, who.worker, who.host, who.since, ref))
        for x, result in told.ended:
            row, n = attempt_of(x)
            self.written.ended.append(x)
            found = self._book.find(row, n)
            if found is not None:
                outputs.setdefault(found.instance, {})[found.name] = result.outputs
                self._recalling.note(self._book.instances[found.instance], found.name, result)
            if row in known:
                rows.append(row_of(row, n, result))
            else:
                _log.warning(
                    "attempt %s of shard %d has a result, but is of no task here; it is dropped", x, self._shard
                )
        for attempt in told.lost:
            attempts.end_open(self._connection, attempt.task, attempt.n, self._now)
        attempts.save(self._connection, rows, self._now)
        return outputs

    def wake(self, instances: Iterable[int]) -> None:
        """Time has passed for these."""
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
        """An instance with events that no state refuses, and what follows for others."""
        self.step(instance, events, (outputs or {}).get(instance, {}))
        self._holding.follow()

    def step(self, instance: int, events: Iterable[Event], outputs: Mapping[str, Mapping[str, Any]]) -> None:
        """The same for this instance alone."""
        stored = self.stored(instance)
        if stored is None:
            return
        given = outputs
        try:
            version = self._plans.get(self._connection, stored.code, stored.version)
            after = advance(version.plan, stored.known, events, self._now)
            if self._is_careful:
                with self._connection.begin_nested():
                    self._save(stored, version, after, given)
                return
        except Unavailable:
            raise
        except Exception as error:
            if isinstance(error, sa.exc.SQLAlchemyError) and not self._is_careful:
                raise
            self._poisoned(stored, error)
            return
        self._save(stored, version, after, given)

    def stored(self, instance: int) -> Stored | None:
        """An instance of this shard, as it is now; None: it is not there."""
        known = self.written.instances.get(instance) or self._book.instances.get(instance)
        return known or runs.load(self._connection, [instance], shard=self._shard).get(instance)

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
        known = self._recalling.recall(stored, version, after, {**(stored.outputs if is_same_run else {}), **ended})
        after, ended = known.after, {**ended, **{name: dict(each) for name, each in known.outputs.items()}}
        keys = self._queue_keys(stored, version, after)
        ids = runs.save(self._connection, stored, after, self._now, queue_keys=keys, outputs=ended)
        history = [*untaken(stored, version.plan, after, self._now), *known.rows(ids, self._now)]
        attempts.save(self._connection, history, self._now)
        known.tell(self._connection, stored.id, self._now)
        made = stored_after(stored, after, ids, keys, ended)
        self.written.instances[stored.id] = made
        self._holding.saved(stored, made, after)
        self._telling.saved(stored, made, after)
        return made

    def _queue_keys(self, stored: Stored, version: Version, after: Instance) -> dict[str, str]:
        """Of those that are submitted now. Those given back, or whose workers died, stay where they are."""
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
                    is_limited=self._turns.is_limited(version.definition.project),
                )
        return found

    def _poisoned(self, stored: Stored, error: Exception) -> None:
        """A defect of ours, or a definition from another time: the instance ends, with the reason."""
        why = f"{type(error).__name__}: {error}"[:1000]
        _log.exception("instance %d of shard %d cannot go on, and has failed", stored.id, self._shard)
        tasks = {
            name: task if task.state not in _OPEN else task.to(TaskState.KILLED)
            for name, task in stored.known.tasks.items()
        }
        self.written.abandoned += [
            f"{stored.ids[name]}.{task.n}" for name, task in stored.known.tasks.items() if task.in_hands
        ]
        known = replace(stored.known, state=InstanceState.FAILURE, tasks=tasks, warn_at=None, facts=(Fact("failure"),))
        ids = runs.save(self._connection, stored, known, self._now)
        made = self.written.instances[stored.id] = stored_after(stored, known, ids, {}, {})
        self._holding.saved(stored, made, known)
        self._holding.abandoned(stored)
        self._telling.saved(stored, made, known, why=why)
        self.tell(stored.id, "error", details={"error": why})

    def fail(self, instance: int, name: str, n: int, why: str, ended: Event) -> None:
        """An attempt that could not be given to any worker has ended, with the reason."""
        stored = self.stored(instance)
        if stored is None:
            return
        row = AttemptRow(stored.ids[name], n, 0, "", "", self._now, "", self._now, "fatal", error=why[:4000])
        attempts.save(self._connection, [row], self._now)
        self.advance(instance, [ended])

    def choose(self, choices: Mapping[Attempt, Choice]) -> None:
        """Switches were decided."""
        for attempt, choice in choices.items():
            stored = self.stored(attempt.instance)
            if stored is not None:
                self._holding.chose(stored, attempt.name, attempt.n, choice)
                self._holding.follow()

    def tell(self, instance: int, kind: str, *, details: Mapping[str, Any]) -> None:
        """An event more, for people."""
        row = {"at": self._now, "instance": instance, "kind": kind, "details": dict(details)}
        self._connection.execute(sa.insert(event).values(**row))

    # Commands and schedules

    def fire(self, rows: Iterable[schedules.ScheduleRow]) -> None:
        """Schedules whose fire times have come: a command for each."""
        for row in rows:
            at = row.next_fire(self._now) if row.online and row.enabled else None
            if at is not None and at <= self._now:
                schedules.start(self._connection, row, at)
                self.written.fired = True

    def do_commands(self) -> None:
        """The open commands of the shard, in their order, each done or refused."""
        rows = consuming.open_of(self._connection, self._shard, MOST_COMMANDS)
        self.written.more = len(rows) == MOST_COMMANDS
        for row in rows:
            if self._waking.is_done(row):
                continue
            instance, error, backfill = None, None, None
            try:
                if row.type == CommandType.MEND.value:
                    self.written.mends = True
                elif row.type in orders.BACKFILLS or "backfill" in row.args:
                    backfill = self._backfills.command(row)
                else:
                    instance = self._start(row) if row.type in orders.STARTS else self._change(row)
                    self._holding.follow()
            except (WrongState, UnknownWorkflow, orders.Malformed) as refusal:
                error = str(refusal)
            except (Unavailable, sa.exc.SQLAlchemyError):
                raise
            except Exception as defect:
                _log.exception("command %d of shard %d cannot be done", row.id, self._shard)
                error = f"{type(defect).__name__}: {defect}"[:1000]
            consuming.done(self._connection, row.id, self._now, instance=instance, error=error, backfill=backfill)
        self.written.more |= self._waking.goes_on

    def _start(self, row: CommandRow) -> int:
        wanted = orders.start_of(row)
        version = self._plans.get(self._connection, wanted.code, wanted.version)
        waits = self._turns.has_to_wait(version, dry=wanted.event.dry)
        made = self.make(replace(wanted, event=replace(wanted.event, waits=waits)), row.by)
        self.tell(made, "begin", details={"command": row.id, "by": row.by})
        return made

    def make(self, wanted: orders.Wanted, by: str, **columns: Any) -> int:
        """A new instance; ``columns`` say whose child it is."""
        version = self._plans.get(self._connection, wanted.code, wanted.version)
        after = advance(version.plan, Instance(), [wanted.event], self._now)
        priority = wanted.priority or version.definition.priority
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
            self._waking.command(row)
            return None
        wanted = orders.event_of(row)
        instance = row.instance or 0
        stored = self.stored(instance)
        if stored is None:
            raise UnknownWorkflow(f"there is no instance {instance} here")
        families.check_alone(self._connection, instance, stored.parent, row.type)
        version = self._plans.get(self._connection, stored.code, stored.version)
        after = advance(version.plan, stored.known, [wanted], self._now)
        self._turns.check_again(stored, version, row.type)
        self._save(stored, version, after, {})
        return instance

    def begin(self, instances: Iterable[int]) -> None:
        """Runs whose turn it was when somebody looked."""
        for instance in instances:
            stored = self.stored(instance)
            if stored is None or stored.known.state is not InstanceState.SERIAL_WAIT:
                continue
            try:
                is_next = self._turns.is_next(stored, self._plans.get(self._connection, stored.code, stored.version))
            except (ValueError, UnknownWorkflow):
                is_next = True  # no version can start it: it fails, and not its shard
            if is_next:
                self.advance(instance, [Begin()])

    def turn(self, code: int, version: int, *, above: Collection[int], but: int = 0) -> bool:
        """Whether a run that is a part of others waits for its turn; errors as for ``Turns.has_to_wait``."""
        made = self._plans.get(self._connection, code, version)
        return self._turns.has_to_wait(made, dry=False, above=above, but=but)

    def has_to_wait(self, stored: Stored) -> bool:
        """Whether a date of a backfill waits for its turn. One that no version can start does not: it fails."""
        try:
            version = self._plans.get(self._connection, stored.code, stored.version)
        except (ValueError, UnknownWorkflow):
            return False
        return self._turns.has_to_wait(version, dry=stored.known.dry, is_wanted=True)


_OPEN = frozenset(TaskState) - {
    TaskState.SUCCESS,
    TaskState.FORCED_SUCCESS,
    TaskState.SKIPPED,
    TaskState.FAILURE,
    TaskState.KILLED,
    TaskState.WAITING,
}
