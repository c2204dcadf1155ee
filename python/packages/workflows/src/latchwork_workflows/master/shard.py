"""Runs a shard while a node owns it: repeated turns of read, write, dispatch. Only this thread writes the shard's rows.

Memory holds what the last transaction wrote. After any doubt it is read again, under the guard.
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
from latchwork.spi import reason
from latchwork.store import Mirror, Store
from latchwork.types import Fence
from latchwork_workflows.db import Database, Shard, attempts, commands, runs, schedules
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.db.runs import Stored
from latchwork_workflows.errors import NotOwner, StoreMismatch
from latchwork_workflows.keys import Keys, Order
from latchwork_workflows.master.commands import NeedsCare, is_of_run, why_of
from latchwork_workflows.master.concurrency import next_turns
from latchwork_workflows.master.dispatcher import PASSING, Dispatcher, Place, TaskItem, TaskSpecs
from latchwork_workflows.master.inputs import Debounce, Looking, Seen, missing, repair, replaced, told
from latchwork_workflows.master.pools import PoolSizes
from latchwork_workflows.master.state_cache import Plans, StateCache, SubmittedAttempt
from latchwork_workflows.master.writer import TurnWriter, Written
from latchwork_workflows.shard_ownership import Owning
from latchwork_workflows.state import Ended, Event, Outcome, Removed

_log = logging.getLogger(__name__)

#: Seconds between two polls for commands without a notification.
POLL_S = 5.0
#: Maximum number of items that are put in one turn.
MOST_PUTS = 200
#: Seconds between two records of what the store has.
_NOTE_S = 5.0
#: Seconds until a failed turn is retried.
_AGAIN_S = 0.5
#: After one of these errors a turn is repeated carefully, run by run, to find the run that the database refuses.
_MAY_BE_OF_A_RUN = (NeedsCare, sa.exc.SQLAlchemyError)


@dataclass(frozen=True, slots=True)
class Tools:
    """Shared by all shards of a node.

    Attributes:
        database: Database with their rows.
        store: Store of the process.
        keys: Keys of the installation.
        node: Name of the node.
        order: Order in which tasks are claimed.
        plans: Cache of versions.
        poll_s: Seconds between two polls for commands without a notification.
        told: Called after each turn with whether the database answered.
        now: Returns seconds since the epoch.
    """

    database: Database
    store: Store
    keys: Keys
    node: str
    order: Order = "instance"
    plans: Plans = field(default_factory=Plans)
    poll_s: float = POLL_S
    told: Callable[[bool], None] = lambda _answers: None
    now: Callable[[], float] = time.time


class ShardRun:
    """Ownership of one shard. ``run`` returns when it is stopped, and raises when the shard has another owner.

    Args:
        tools: Tools of the node.
        shard: ID of the shard.
        fence: Proof of ownership.
        remaining_s: Returns the seconds for which the ownership is certain.
    """

    def __init__(self, tools: Tools, shard: int, fence: Fence, remaining_s: Callable[[], float]) -> None:
        self._tools = tools
        self._id = shard
        self._guard = Shard(shard, fence.token)
        self._dispatcher = Dispatcher(tools.store.within(remaining_s), tools.keys, shard, fence)
        self._owning = Owning(self._guard, tools.store, tools.keys, self._dispatcher.check_owner)
        self._prefix = tools.keys.shard(shard)
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
        self._abandoned: dict[str, Place] = {}
        self._pokes: set[int] = set()
        self._task_specs = TaskSpecs(tools.database, tools.plans, shard)
        self._pools = PoolSizes(shard, self._dispatcher)
        self._looking, self._debounce = Looking(self._prefix), Debounce()
        self._fires: list[tuple[schedules.ScheduleRow, float]] = []
        self._broken: set[schedules.ScheduleRow] = set()
        self._ahead: set[int] = set()
        self._next_fire: float | None = None
        self._concurrency: list[int] = []
        self._polled_at = -1e18
        self._poke = -1
        self._is_known = self._is_careful = False
        self._is_busy = self._mends = False
        self.turns = 0

    def stop(self) -> None:
        """Stop after the current turn. Thread-safe."""
        self._stopping = True
        self._news.set()

    def run(self) -> None:
        """Own the shard and advance its instances until stopped.

        Raises:
            NotOwner, LockLost: The shard has another owner.
            StoreMismatch: Store and database are not from the same point in time.
        """
        try:
            with self._tools.store.mirror(self._prefix, wait=False) as mirror:
                mirror.on_change(lambda _changes: self._news.set())
                self._live(mirror)
            self._give_up()
        finally:
            self._dispatcher.close()

    def _give_up(self) -> None:
        with suppress(*PASSING, sa.exc.SQLAlchemyError), self._transaction() as connection:
            self._guard.give_up(connection)

    def _live(self, mirror: Mirror) -> None:
        while not self._stopping:
            self._news.clear()
            try:
                wait_s = self._turn(mirror)
            except (NotOwner, StoreMismatch, OwnershipLost, LockLost):
                raise
            except PASSING as error:
                self._doubt(error)
                wait_s = _AGAIN_S
            except Exception as error:
                if self._is_careful or not (isinstance(error, _MAY_BE_OF_A_RUN) or is_of_run(error)):
                    raise
                self._doubt(error)
                self._is_careful = True  # repeat, one run after the other
                wait_s = 0.0
            if wait_s > 0.0 and not self._stopping:
                self._clock.wait(self._news, wait_s)

    def _doubt(self, error: Exception) -> None:
        """Discard the state in memory."""
        if isinstance(error, DatabaseUnavailable):
            self._tools.told(False)
        _log.warning("shard %d reads all again: %s", self._id, error)
        self._is_known = False

    def _turn(self, mirror: Mirror) -> float:
        """Run one turn and return the seconds until the next one."""
        if not self._is_known:
            self._own(mirror)
        now = self._cache.at(self._tools.now())
        found = self._looking.look(mirror.snapshot().values())
        is_asked = self._is_polled(found, now)
        written = self._write(found, now, is_asked=is_asked)
        if written is not None:
            self._took(written)
        self._do()
        if self._mends and self._is_known:
            self._mend()
        self._is_careful = False
        if written is not None and (written.fired or written.more):
            self._polled_at = -1e18
        self.turns += 1
        is_more = found.is_full or (written is not None and written.more)
        return 0.0 if is_more or self._is_busy or self._mends else self._wait_s(now)

    # Read

    def _own(self, mirror: Mirror) -> None:
        """Become the owner in the database, and read the active runs."""
        mirror.ready(10.0)
        found = self._owning.look()
        with self._transaction() as connection:
            former = self._guard.former(connection)
            self._owning.take(connection, self._tools.node, *found)
            writing = self._writing(connection, StateCache())
            known = self._read(connection, writing)
            owners = former, self._tools.node
            writing.tell_takeover(known, token=self._guard.token, owners=owners)
            writing.finish()
        self._cache = StateCache(known)
        self._took(writing.written)
        self._claims, self._cancelled, self._removed = {}, set(), {}
        self._pools.forget()
        self._looking.forget()
        self._is_known = True
        self._polled_at = -1e18

    def _read(self, connection: sa.Connection, writing: TurnWriter) -> list[Stored]:
        """Return the active runs. In a careful turn, end the unreadable ones."""
        ids = runs.active(connection, self._id)
        if not self._is_careful:
            return list(runs.load(connection, ids).values())
        return [stored for each in ids if (stored := writing.check(each)) is not None]

    def _transaction(self) -> Any:
        return self._tools.database.write()

    def _writing(
        self, connection: sa.Connection, cache: StateCache, *, now: float | None = None, is_careful: bool = False
    ) -> TurnWriter:
        tools = self._tools
        return TurnWriter(
            connection,
            self._id,
            cache,
            plans=tools.plans,
            order=tools.order,
            now=tools.now() if now is None else now,
            is_careful=is_careful or self._is_careful,
        )

    def _is_polled(self, found: Seen, now: float) -> bool:
        """Return whether to query the database for commands and schedules."""
        elapsed = self._clock.now() - self._polled_at
        if found.poke == self._poke and elapsed < self._tools.poll_s and not self._is_due(now):
            return False
        self._poke = found.poke
        self._polled_at = self._clock.now()
        return True

    def _is_due(self, now: float) -> bool:
        return self._next_fire is not None and self._next_fire <= now

    # Write

    def _write(self, found: Seen, now: float, *, is_asked: bool) -> Written | None:
        """Run one transaction if there is anything to write."""
        lost = self._lost(found)
        what = told(self._cache, found, lost, self._claims)
        due = self._cache.due(now)
        has_commands = is_asked and self._ask(now)
        removed, self._removed = self._removed, {}
        if not (what.events or what.ended or what.claimed or due or has_commands or removed):
            if found.strange:
                self._tidy[1].extend(found.strange)
            return None
        if not (due or has_commands or removed) and self._debounce.lasts(what, self._clock.now()):
            return None
        for attempt in removed.values():
            stored = self._cache.instances.get(attempt.instance)
            if stored is not None:
                what.tell(attempt, Removed(attempt.name, attempt.n, stored.known.run))
        with self._transaction() as connection:
            seq = self._guard.guard(connection)
            self._note(connection)
            writing = self._writing(connection, self._cache, now=now)
            writing.take_in(what)
            writing.wake(each for each in due if each not in what.events)
            if has_commands:
                writing.fire((row, at) for row, at in self._fires if at <= now)
                writing.do_commands()
                writing.begin(self._concurrency)
            writing.finish()
            if not self._is_careful:
                self._task_specs.read(connection, writing.written.instances.values())
        for attempt, each in what.claimed:
            self._claims[attempt.x] = each.claim
        for x in writing.written.ended:
            self._claims.pop(x, None)
        self._debounce.end()
        self._looking.took(writing.written.ended)
        # After a doubt, the same results are seen again.
        ended = list(dict.fromkeys([*self._tidy[0], *writing.written.ended]))
        self._tidy = (ended, list(dict.fromkeys([*self._tidy[1], *found.strange])), seq)
        return writing.written

    def _note(self, connection: sa.Connection) -> None:
        """Record what the store has for certain, so that a restored older store is recognized."""
        if self._marked and self._clock.now() - self._noted_at > _NOTE_S:
            self._guard.note(connection, self._marked)
            self._noted_at = self._clock.now()

    def _lost(self, found: Seen) -> dict[SubmittedAttempt, bool]:
        """Return the running attempts that were lost, and whether their workers died."""
        result: dict[SubmittedAttempt, bool] = {}

        def look(attempt: SubmittedAttempt) -> None:
            died = self._dispatcher.has_died(self._place(attempt))
            if died is not None:
                result[attempt] = died

        def heard(attempt: SubmittedAttempt) -> None:
            result[attempt] = not found.running[attempt.x].running.given_back

        asks = [(each, look) for each in missing(self._cache, found)]
        asks += [(each, heard) for each in replaced(self._cache, found, self._claims)]
        self._each_run((each.instance, partial(ask, each)) for each, ask in asks)
        return {each: died for each, died in result.items() if each.instance in self._cache.instances}

    def _each_run(self, todo: Iterable[tuple[int, Callable[[], object]]]) -> None:
        """Call a function for each of these runs. An error that a run causes ends that run."""
        errors: dict[int, Exception] = {}
        for instance, do in todo:
            try:
                do()
            except Exception as error:
                if not is_of_run(error):
                    raise
                errors[instance] = error
        if errors:
            self._write_carefully(lambda writing: writing.end_all(errors))

    def _write_carefully(self, do: Callable[[TurnWriter], object]) -> None:
        """Run a transaction for runs that have an error."""
        with self._transaction() as connection:
            self._guard.guard(connection)
            writing = self._writing(connection, self._cache, is_careful=True)
            do(writing)
            writing.finish()
        self._took(writing.written)

    def _ask(self, now: float) -> bool:
        """Return whether there are commands, runs that may start, or due schedules."""
        with self._tools.database.read() as connection:
            rows = schedules.rows(connection, self._id)
            has_commands = commands.is_any_open(connection, self._id)
            self._pools.look(connection)
            waiting = [self._cache.instances[each] for each in sorted(self._cache.waiting)]
            self._concurrency = next_turns(connection, self._tools.plans, waiting)
        self._fires = [fire for each in rows if each.online and each.enabled for fire in self._next_of(each, now)]
        self._next_fire = min((at for _, at in self._fires), default=None)
        self._tools.told(True)
        return has_commands or bool(self._concurrency) or self._is_due(now)

    def _next_of(self, row: schedules.ScheduleRow, now: float) -> list[tuple[schedules.ScheduleRow, float]]:
        """Return the next fire time of a schedule, unless it cannot be computed or the schedule is broken."""
        if row in self._broken:
            return []
        if not (ahead_s := row.ahead_s(now)):
            self._ahead.discard(row.code)
        elif row.code not in self._ahead:
            self._ahead.add(row.code)
            _log.warning("the schedule of %s.%s: %s", row.project, row.name, schedules.ahead_text(ahead_s))
        try:
            at = row.next_fire(now)
        except Exception as error:
            _log.error("the schedule of %s.%s has no fire time: %s", row.project, row.name, reason(error))
            self._broken.add(row)
            return []
        return [] if at is None else [(row, at)]

    def _took(self, written: Written) -> None:
        """Update the state in memory after a commit."""
        self._tools.told(True)
        for each in written.instances.values():
            self._cache.put(each)
        if len(self._claims) > 2 * len(self._cache.running) + 1000:
            self._claims = {x: claim for x, claim in self._claims.items() if x in self._cache.running}
        self._cancelled &= self._cache.running.keys()
        self._abandoned.update(written.abandoned)
        if written.mends:
            self._mends, self._is_known = True, False
        self._pokes |= written.pokes
        self._broken |= {row for row, _ in self._fires if row.code in written.broken}

    # Dispatch

    def _do(self) -> None:
        """Apply the effects in the store. The next turn retries what fails."""
        self._is_busy = False
        pokes, self._pokes = self._pokes, set()
        self._dispatcher.poke(pokes)
        self._pools.tell()
        self._put()  # first: workers wait for these items
        ended, strange, seq = self._tidy
        if ended or strange:
            self._dispatcher.tidy(ended, strange, seq)
            self._marked = seq
            self._tidy = ([], [], seq)
        self._each_run((each, partial(self._settle, each)) for each in list(self._cache.to_settle))
        while self._abandoned:
            self._abandon(*next(iter(self._abandoned.items())))
        self._choose()

    def _abandon(self, x: str, place: Place) -> None:
        """Withdraw the queued attempt of an ended run, or have its worker cancel it."""
        try:
            if not self._dispatcher.take_back({x: place}):
                self._dispatcher.cancel({x: place})
        except Exception as error:
            if not is_of_run(error):
                raise
            _log.error("attempt %s of a run that has ended is left to its worker: %s", x, reason(error))
        del self._abandoned[x]

    def _put(self) -> None:
        waiting = list(self._cache.to_put.values())[:MOST_PUTS]
        if not waiting:
            return
        self._is_busy = len(self._cache.to_put) > MOST_PUTS
        made, failed = self._task_specs.make(self._cache, waiting)
        done, refused = self._sent(made)
        for x in done:
            self._cache.to_put.pop(x, None)
        failed += [(each, refused[each.x]) for each in waiting if each.x in refused]
        if failed:
            self._write_carefully(partial(self._fail, failed))
            self._is_busy = True

    def _choose(self) -> None:
        """Decide switches and write their choices. Choices that are not written are decided again later."""
        waiting = list(self._cache.to_choose.values())
        if not waiting:
            return
        choices = self._task_specs.choose(self._cache, waiting)
        for attempt in choices:
            self._cache.to_choose.pop((attempt.instance, attempt.name), None)
        made = {attempt: choice for attempt, choice in choices.items() if choice is not None}
        self._is_busy |= bool(made or self._cache.to_choose)
        if made:
            with self._transaction() as connection:
                self._guard.guard(connection)
                writing = self._writing(connection, self._cache)
                writing.choose(made)
                writing.finish()
            self._took(writing.written)

    def _sent(self, made: list[TaskItem]) -> tuple[list[str], dict[str, str]]:
        """Put items. Return the attempts that are done, and the reasons why others can never be put."""
        try:
            return self._dispatcher.put(made), {}
        except Exception as error:
            if not is_of_run(error):
                raise
        done: list[str] = []
        refused: dict[str, str] = {}
        for each in made:
            try:
                done += self._dispatcher.put([each])
            except Exception as error:
                if not is_of_run(error):
                    raise
                refused[each.place.item.x] = why_of(error)
        return done, refused

    def _fail(self, failed: Iterable[tuple[SubmittedAttempt, str]], writing: TurnWriter) -> None:
        for attempt, why in failed:
            run = self._cache.instances[attempt.instance].known.run
            event: Event = Ended(attempt.name, attempt.n, Outcome.FATAL, run)
            writing.fail(attempt.instance, attempt.name, attempt.n, why, event)

    def _mend(self) -> None:
        """Drop orphans. The first shard also drops those of deleted tasks."""

        def is_ours(tasks: Iterable[int]) -> set[int]:
            with self._tools.database.read() as connection:
                gone = attempts.gone_tasks(connection, tasks) if self._id == 0 else set()
                return gone | attempts.known_tasks(connection, self._id, tasks).keys()

        repair(self._dispatcher, self._cache, self._id, is_ours)
        self._mends = False

    def _settle(self, instance: int) -> None:
        """Withdraw and cancel the attempts that an instance has to end."""
        stored = self._cache.instances[instance]
        known = stored.known
        names = {name: self._attempt(instance, name) for name in (*known.to_remove, *known.to_kill)}
        back = {names[name].x: self._place(names[name]) for name in known.to_remove}
        for x in self._dispatcher.take_back(back):
            self._removed[x] = next(each for each in names.values() if each.x == x)
            self._is_busy = True
        ends = {names[name].x: self._place(names[name]) for name in known.to_kill}
        new = {x: place for x, place in ends.items() if x not in self._cancelled}
        self._cancelled.update(self._dispatcher.cancel(new))

    def _attempt(self, instance: int, name: str) -> SubmittedAttempt:
        stored = self._cache.instances[instance]
        return SubmittedAttempt(instance, name, stored.ids[name], stored.known.tasks[name].n)

    def _place(self, attempt: SubmittedAttempt) -> Place:
        stored = self._cache.instances[attempt.instance]
        return Place.of(stored.queue_keys[attempt.name], attempt.task, attempt.n, self._id)

    def _wait_s(self, now: float) -> float:
        """Return the seconds until the next turn is needed."""
        until = [self._tools.poll_s - (self._clock.now() - self._polled_at), self._debounce.left_s(self._clock.now())]
        if self._cache.next_wake is not None:
            until.append(self._cache.next_wake - now)
        if self._next_fire is not None:
            until.append(self._next_fire - now)
        if self._cache.to_settle or self._cache.to_put:
            until.append(1.0)
        return max(0.001, min(until))
