"""Finds inconsistencies between database and store in two checks. The masters of the shards repair them.

Only commands are written here: a master has the fence and the guard that a repair needs, reads its whole shard again,
and drops orphans. A running system has temporary states. So a finding is reported only if it has lasted for a minute,
or was present in both checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from latchwork.errors import InvalidKey, LatchworkError
from latchwork.jobs import inspect
from latchwork.schedules import Cron
from latchwork.spi import reason
from latchwork.store import Store
from latchwork.types import Entry
from latchwork_workflows.db import Database, alerts, pools, schedules
from latchwork_workflows.db.alerts import STUCK_S
from latchwork_workflows.db.commands import CommandType, ask
from latchwork_workflows.db.lineage import missing
from latchwork_workflows.db.schedules import ahead_text
from latchwork_workflows.db.tables import command, definition, instance, task
from latchwork_workflows.db.tables import shard as shard_
from latchwork_workflows.errors import StoreMismatch
from latchwork_workflows.installation import check_pair, installation_of
from latchwork_workflows.keys import PROJECT, Item, Keys, is_attempt, pool_key, pools_of, workflows_store, x_of
from latchwork_workflows.messages import Result
from latchwork_workflows.state import InstanceState, TaskState

#: Seconds for which a temporary state may last.
PASSES_S = 60.0
#: Seconds between two checks.
BETWEEN_S = 2.0
#: Maximum number of open rows that are checked.
_MOST = 100_000


class Finding(NamedTuple):
    """An inconsistency.

    Attributes:
        kind: Short name of the kind.
        subject: The task, command, schedule or key.
        shard: Shard whose master can repair it. None: all shards, or not repairable.
        why: The meaning, and what to do if it cannot be repaired.
        can_mend: Whether a master can repair it.
    """

    kind: str
    subject: str
    shard: int | None
    why: str
    can_mend: bool = True


class Held(NamedTuple):
    """An attempt that is queued or running according to the database.

    Attributes:
        instance: ID of the run.
        name: Name of the task.
        shard: Shard of the run.
        state: State of the task.
        since: When that state was written, in seconds since the epoch.
        goes: Whether its run is active, so that a queued task must be in the work queue.
        pools: Pools of which it needs a slot, by their names in keys.
    """

    instance: int
    name: str
    shard: int
    state: TaskState
    since: float
    goes: bool
    pools: tuple[str, ...] = ()


@dataclass(slots=True)
class Facts:
    """Result of one read of database and store.

    Attributes:
        items: By attempt: shard of its item in the work queue.
        running: Attempts that a worker has claimed.
        results: By attempt: shard and end time of its result.
        cancels: Attempts that are cancelled.
        data: Attempts with a second part of their spec.
        strange: Keys that were not written by Latchwork.
        held: Queued and running attempts of the database.
        commands: The oldest open commands: ID, description, shard, time.
        owners: The newest master of each shard.
        broken: Schedules whose fire times cannot be computed: name, reason.
        late: Schedules that missed a fire time: name, shard, time.
        ahead: Schedules whose fire times are settled into the future: name, shard, seconds.
        masters: Masters that are online.
        unnamed: Missing channels that workflows name, each with these workflows.
        undelivered: Overdue open deliveries: ID, channel, state, due time.
        pools: Sizes of pools in the database, by their names in keys.
        named: Pools that workflows name, each with these workflows.
        told: Sizes of pools in the store.
    """

    items: dict[str, int] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    results: dict[str, tuple[int, float]] = field(default_factory=dict)
    cancels: set[str] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    strange: list[str] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)
    commands: list[tuple[int, str, int, float]] = field(default_factory=list)
    owners: Mapping[int, str] = field(default_factory=dict)
    broken: list[tuple[str, str]] = field(default_factory=list)
    late: list[tuple[str, int, float]] = field(default_factory=list)
    ahead: list[tuple[str, int, float]] = field(default_factory=list)
    masters: Sequence[str] = ()
    unnamed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    undelivered: list[tuple[int, str, str, float]] = field(default_factory=list)
    pools: Mapping[str, int] = field(default_factory=dict)
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)
    told: Mapping[str, int] = field(default_factory=dict)


def judge(facts: Facts, now: float) -> list[Finding]:
    """Return the findings. Pure."""
    found = [*_of_masters(facts), *_of_items(facts), *_of_held(facts, now), *_of_pools(facts), *_of_left(facts)]
    for x, (shard, ended_at) in facts.results.items():
        if ended_at < now - PASSES_S:
            found.append(Finding("old result", x, shard, f"it ended {now - ended_at:.0f} s ago, and no master took it"))
    for number, what, shard, at in facts.commands:
        if at < now - PASSES_S:
            owner = facts.owners.get(shard)
            who = f"{owner} has not done it: read its log for shard {shard}, and start it again"
            why = f"asked {now - at:.0f} s ago, and {who if owner else f'no master has shard {shard}: start one'}"
            found.append(Finding("open command", f"{number} ({what})", shard, why, can_mend=False))
    for name, wrong in facts.broken:
        why = f"it has no fire time, and its master leaves it out: {wrong}; apply the workflow with another schedule"
        found.append(Finding("broken schedule", name, None, why, can_mend=False))
    for name, shard, ahead_s in facts.ahead:
        found.append(Finding("schedule ahead", name, shard, ahead_text(ahead_s), can_mend=False))
    for name, shard, at in facts.late:
        if at < now - PASSES_S:
            found.append(Finding("late schedule", name, shard, f"its fire time was {now - at:.0f} s ago"))
    return [*found, *_of_alerts(facts, now)]


def _of_alerts(facts: Facts, now: float) -> Iterator[Finding]:
    for name, workflows in sorted(facts.unnamed.items()):
        why = f"{', '.join(sorted(workflows)[:5])} tells by it: make it with `latchwork workflows channels set {name}`"
        yield Finding("no channel", name, None, why, can_mend=False)
    for number, name, state, at in facts.undelivered:
        why = f"it is {state} since {now - at:.0f} s, and no master sends it: look at the logs of masters"
        yield Finding("stuck alert", f"delivery {number} by {name}", None, why, can_mend=False)


def _of_masters(facts: Facts) -> Iterator[Finding]:
    if not facts.masters:
        why = "nothing goes on without one: start `latchwork workflows serve`, or `master`"
        yield Finding("no master", "cluster", None, why, can_mend=False)


def _of_items(facts: Facts) -> Iterator[Finding]:
    for x, shard in facts.items.items():
        if x not in facts.held:
            yield Finding("item without task", x, shard, "a worker would run it, and nobody waits for it")
    for key in facts.strange:
        why = "no version of latchwork writes such a key; look at it with `latchwork tree`"
        yield Finding("unknown key", key, None, why, can_mend=False)


def _of_held(facts: Facts, now: float) -> Iterator[Finding]:
    for x, held in facts.held.items():
        is_somewhere = x in facts.running or x in facts.results
        if is_somewhere or held.since >= now - PASSES_S:
            continue
        subject = f"{held.name} of run {held.instance} ({x})"
        if held.state is TaskState.RUNNING:
            yield Finding("run without worker", subject, held.shard, "no worker has it, and no master has noticed")
        elif held.goes and x not in facts.items:
            yield Finding("task without item", subject, held.shard, "it is queued, but no worker can find it")


def _of_pools(facts: Facts) -> Iterator[Finding]:
    queued = [each for each in facts.held.values() if each.state is TaskState.SUBMITTED]
    needed = {name for each in queued for name in each.pools} | facts.named.keys()
    for name in sorted(each for each in needed - facts.pools.keys() if not each.startswith(PROJECT)):
        why = f"its tasks wait for a slot forever: `latchwork workflows pools set {name} --size N`"
        yield Finding("missing pool", name, None, why, can_mend=False)
    for name in sorted(facts.pools.keys() | {each for each in facts.told if not each.startswith(PROJECT)}):
        if facts.pools.get(name) != facts.told.get(name):
            why = f"size {facts.pools.get(name, 'none')} in the database, {facts.told.get(name, 'none')} in the store"
            yield Finding("size of a pool", name, 0, why)


def _of_left(facts: Facts) -> Iterator[Finding]:
    for kind, attempts in (("cancel without item", facts.cancels), ("data without item", facts.data)):
        for x in sorted(attempts - facts.items.keys() - facts.results.keys() - facts.held.keys()):
            yield Finding(kind, x, None, "nothing but room is lost")


class Doctor:
    """Checks a database and its store: ``Doctor(database, store).look()``. Thread-safe.

    Args:
        database: Database of the workflows.
        store: The store that belongs to it.
        keys: Keys of the installation.
        now: Returns seconds since the epoch.
        wait: Called with the seconds to wait between two checks.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        keys: Keys | None = None,
        *,
        now: Callable[[], float] = time.time,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._database = database
        self._store = workflows_store(store)
        self._keys = keys or Keys()
        self._now = now
        self._wait = wait

    def look(self) -> list[Finding]:
        """Return the findings of two checks. Empty: everything is consistent.

        Raises:
            Unavailable: Database or store is out of reach.
        """
        installation = installation_of(self._database)
        there = self._store.get(self._keys.id)
        if there is not None and there.value != installation.id.encode():
            why = "give the right pair, or join these two with `latchwork workflows adopt-store`"
            return [Finding("wrong store", self._store.url, None, why, can_mend=False)]
        pair = self._store.get(self._keys.pair)
        try:
            with self._database.read() as connection:
                check_pair(connection, None if pair is None else pair.value, self._store.url)
        except StoreMismatch as error:
            return [Finding("wrong store", self._store.url, None, str(error), can_mend=False)]
        first = judge(self._facts(), self._now())
        if not any(each.can_mend or each.kind == "unknown key" for each in first):
            return [*first, *self._missing()]
        self._wait(BETWEEN_S)
        second = judge(self._facts(), self._now())
        before = {(each.kind, each.subject) for each in first}
        both = [each for each in second if (each.kind, each.subject) in before]
        return [*both, *self._missing()]

    def _missing(self) -> list[Finding]:
        """Return the missing settings that workflows name: their tasks will fail."""
        with self._database.read() as connection:
            found = missing(connection)
        return [
            Finding("missing setting", f"{each.workflow} {each.path}", None, each.message, can_mend=False)
            for each in found
        ]

    def ask_to_mend(self, findings: Sequence[Finding], *, by: str) -> list[int]:
        """Request a repair from the masters of these shards, and return the command IDs.

        A repair reads everything again and drops orphans.
        """
        every = range(installation_of(self._database).shards)
        with self._database.write() as connection:
            shards = {each.shard for each in findings if each.can_mend and each.shard is not None}
            if any(each.can_mend and each.shard is None for each in findings):
                shards |= set(every)
            asked = [ask(connection, CommandType.MEND, shard_id=each, by=by) for each in sorted(shards)]
        for each in asked:
            self._store.put(self._keys.poke(each.shard), b"")
        return [each.id for each in asked]

    def wait_done(self, commands: Sequence[int], timeout_s: float) -> bool:
        """Wait until masters have carried out these commands. Return whether they have."""
        until = self._now() + timeout_s
        open_ = sa.select(command.c.id).where(command.c.id.in_(commands), command.c.done_at.is_(None)).limit(1)
        while True:
            with self._database.read() as connection:
                if connection.execute(open_).first() is None:
                    return True
            if self._now() >= until:
                return False
            self._wait(0.2)

    # Read

    def _facts(self) -> Facts:
        """Read the database first, then items, running keys and results.

        The order matters, because the end of an attempt replaces its running key by a result.
        """
        facts = Facts()
        self._of_database(facts)
        keys = self._keys
        facts.cancels = self._attempts(self._store.list(keys.cancels), keys.cancels, facts)
        data = self._store.list(keys.every_data, recursive=True)
        facts.data = self._attempts(data, keys.every_data, facts)
        for entry in self._store.list(f"{keys.backlog}/partitions", recursive=True):
            if "/items/" in entry.key:
                _note_item(entry, facts)
        self._of_shards(facts)
        cluster = inspect(self._store, namespace=keys.cluster)
        facts.masters = sorted(cluster.nodes) if cluster is not None else ()
        for entry in self._store.list(keys.slots, recursive=True):
            name, _, kind = entry.key[len(keys.slots) + 1 :].partition("/")
            if kind == "size":
                facts.told = {**facts.told, name: int(entry.value) if entry.value.isdigit() else -1}
        return facts

    def _of_shards(self, facts: Facts) -> None:
        for kind in ("running", "results"):  # in this order
            for entry in self._store.list(self._keys.shards, recursive=True):
                shard, _, rest = entry.key[len(self._keys.shards) + 1 :].partition("/")
                found, _, x = rest.partition("/")
                if found != kind:
                    continue
                if not shard.isdecimal() or not is_attempt(x):
                    facts.strange.append(entry.key)
                elif kind == "running":
                    facts.running.add(x)
                else:
                    facts.results[x] = (int(shard), _ended_at(entry, self._now()))

    @staticmethod
    def _attempts(entries: Sequence[Entry], prefix: str, facts: Facts) -> set[str]:
        found = set()
        for entry in entries:
            x = entry.key[len(prefix) + 1 :].partition("/")[0]
            if is_attempt(x):
                found.add(x)
            else:
                facts.strange.append(entry.key)
        return found

    def _of_database(self, facts: Facts) -> None:
        now = self._now()
        with self._database.read() as connection:
            facts.held = _held(connection)
            facts.commands = _commands(connection)
            facts.owners = dict(connection.execute(sa.select(shard_.c.id, shard_.c.owner)).all())
            rows = schedules.rows(connection)
            there = {each.name for each in alerts.channels(connection)}
            facts.unnamed = {name: of for name, of in alerts.named(connection).items() if name not in there}
            late = alerts.stuck(connection, now - STUCK_S)
            facts.undelivered = [(each.id, each.channel, each.state, each.next_at) for each in late]
            facts.pools = {pool_key(each.name): each.size for each in pools.every(connection)}
            facts.named = pools.users(connection)
        for each in rows:
            name = f"{each.project}.{each.name}"
            try:
                is_on = each.online and each.enabled
                if is_on and (ahead_s := each.ahead_s(now)):
                    facts.ahead.append((name, each.shard, ahead_s))
                owed = each.next_fire(now) if is_on else None
                if owed is not None and owed < now:
                    since = Cron(each.cron, tz=each.tz).fire_after(max(each.cursor, each.starts_at or 0.0))
                    facts.late.append((name, each.shard, since))
            except Exception as error:
                facts.broken.append((name, reason(error)))


def _commands(connection: sa.Connection) -> list[tuple[int, str, int, float]]:
    columns = (command.c.id, command.c.type, command.c.instance, command.c.args, command.c.shard, command.c.created_at)
    asked = sa.select(*columns).where(command.c.done_at.is_(None)).order_by(command.c.id).limit(1000)
    names = {
        row.code: f"{row.project}.{row.name}"
        for row in connection.execute(sa.select(definition.c.code, definition.c.project, definition.c.name))
    }
    found = []
    for row in connection.execute(asked):
        of = f"run {row.instance}" if row.instance is not None else names.get((row.args or {}).get("code"), "")
        found.append((row.id, f"{row.type} of {of}" if of else row.type, row.shard, row.created_at))
    return found


def _held(connection: sa.Connection) -> dict[str, Held]:
    now = sa.and_(instance.c.id == task.c.instance, instance.c.run == task.c.run)
    of_instance = (instance.c.shard, instance.c.state.label("goes"))
    of_task = (task.c.id, task.c.instance, task.c.name, task.c.n, task.c.state, task.c.changed_at, task.c.queue_key)
    chosen = sa.select(*of_task, *of_instance)
    in_hands = task.c.state.in_([TaskState.SUBMITTED.value, TaskState.RUNNING.value])
    # Tasks that the master runs itself are not in the work queue.
    chosen = chosen.join(instance, now).where(instance.c.active, in_hands, task.c.queue_key.is_not(None))
    return {
        x_of(row.id, row.n): Held(
            row.instance,
            row.name,
            row.shard,
            TaskState(row.state),
            row.changed_at,
            row.goes == InstanceState.RUNNING.value,
            pools_of(row.queue_key.partition("/")[0]),
        )
        for row in connection.execute(chosen.limit(_MOST))
    }


def _note_item(entry: Entry, facts: Facts) -> None:
    try:
        item = Item.of(entry.key.rpartition("/")[2])
    except InvalidKey:
        facts.strange.append(entry.key)
        return
    facts.items[item.x] = item.shard


def _ended_at(entry: Entry, now: float) -> float:
    try:
        return Result.of(entry.value).ended_at
    except LatchworkError:
        return now  # its master reports the error


def plain(finding: Finding) -> Mapping[str, Any]:
    """Return a finding as a mapping, for programs."""
    return finding._asdict()
