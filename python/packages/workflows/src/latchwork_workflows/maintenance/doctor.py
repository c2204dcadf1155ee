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
from latchwork_workflows.db.commands import CommandType, send_command
from latchwork_workflows.db.lineage import find_missing_references
from latchwork_workflows.db.schedules import describe_clock_ahead
from latchwork_workflows.db.tables import command, definition, task, workflow_run
from latchwork_workflows.db.tables import shard as shard_
from latchwork_workflows.errors import StoreMismatch
from latchwork_workflows.installation import check_store_of_database, load_installation
from latchwork_workflows.keys import (
    PROJECT,
    ItemName,
    Keys,
    build_pool_key,
    format_attempt_key,
    get_workflows_store,
    is_attempt_key,
    list_pool_keys,
)
from latchwork_workflows.messages import AttemptResult
from latchwork_workflows.state import RunState, TaskState

#: Seconds for which a temporary state may last.
PASSES_S = 60.0
#: Seconds between two checks.
BETWEEN_S = 2.0
#: Maximum number of open rows that are checked.
_MAX = 100_000


class Finding(NamedTuple):
    """An inconsistency.

    Attributes:
        kind: Short name of the kind.
        subject: The task, command, schedule or key.
        shard: Shard whose master can repair it. None: all shards, or not repairable.
        why: The meaning, and what to do if it cannot be repaired.
        can_repair: Whether a master can repair it.
    """

    kind: str
    subject: str
    shard: int | None
    why: str
    can_repair: bool = True


class ActiveAttempt(NamedTuple):
    """An attempt that is queued or running according to the database.

    Attributes:
        run_id: ID of the run.
        name: Name of the task.
        shard: Shard of the run.
        state: State of the task.
        since: When that state was written, in seconds since the epoch.
        is_run_active: Whether its run is active, so that a queued task must be in the work queue.
        pools: Pools of which it needs a slot, keyed by their names in the store.
    """

    run_id: int
    name: str
    shard: int
    state: TaskState
    since: float
    is_run_active: bool
    pools: tuple[str, ...] = ()


@dataclass(slots=True)
class DoctorFacts:
    """Result of one read of database and store.

    Attributes:
        items: By attempt: shard of its item in the work queue.
        running: Attempts that a worker has claimed.
        results: By attempt: shard and end time of its result.
        cancels: Attempts that are canceled.
        data: Attempts with a second part of their spec.
        unknown_keys: Keys that were not written by Latchwork.
        active_attempts: Queued and running attempts of the database.
        commands: The oldest open commands: ID, description, shard, time.
        owners: The newest master of each shard.
        broken_schedules: Schedules whose fire times cannot be computed: name, reason.
        late_schedules: Schedules that missed a fire time: name, shard, time.
        ahead_schedules: Schedules whose fire times are settled into the future: name, shard, seconds.
        masters: Masters that are online.
        missing_channels: Missing channels that workflows name, each with these workflows.
        undelivered: Overdue open deliveries: ID, channel, state, due time.
        pools: Sizes of pools in the database, keyed by their names in the store.
        pool_users: Pools that workflows name, each with these workflows.
        store_pools: Sizes of pools in the store.
    """

    items: dict[str, int] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    results: dict[str, tuple[int, float]] = field(default_factory=dict)
    cancels: set[str] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    unknown_keys: list[str] = field(default_factory=list)
    active_attempts: dict[str, ActiveAttempt] = field(default_factory=dict)
    commands: list[tuple[int, str, int, float]] = field(default_factory=list)
    owners: Mapping[int, str] = field(default_factory=dict)
    broken_schedules: list[tuple[str, str]] = field(default_factory=list)
    late_schedules: list[tuple[str, int, float]] = field(default_factory=list)
    ahead_schedules: list[tuple[str, int, float]] = field(default_factory=list)
    masters: Sequence[str] = ()
    missing_channels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    undelivered: list[tuple[int, str, str, float]] = field(default_factory=list)
    pools: Mapping[str, int] = field(default_factory=dict)
    pool_users: Mapping[str, Sequence[str]] = field(default_factory=dict)
    store_pools: Mapping[str, int] = field(default_factory=dict)


def find_problems(facts: DoctorFacts, now: float) -> list[Finding]:
    """Return the inconsistencies between the database and the store. Pure.

    Args:
        facts: The contents of both.
        now: Seconds since the epoch.
    """
    found = [
        *_master_findings(facts),
        *_item_findings(facts),
        *_attempt_findings(facts, now),
        *_pool_findings(facts),
        *_leftover_findings(facts),
    ]
    for x, (shard, ended_at) in facts.results.items():
        if ended_at < now - PASSES_S:
            found.append(
                Finding("old result", x, shard, f"it ended {now - ended_at:.0f} s ago, and no master has read it")
            )
    for number, what, shard, at in facts.commands:
        if at < now - PASSES_S:
            owner = facts.owners.get(shard)
            who = f"{owner} has not executed it: check its log for shard {shard}, and start it again"
            why = f"asked {now - at:.0f} s ago, and {who if owner else f'no master owns shard {shard}: start one'}"
            found.append(Finding("open command", f"{number} ({what})", shard, why, can_repair=False))
    for name, wrong in facts.broken_schedules:
        why = f"it has no fire time, so its master skips it: {wrong}; apply the workflow with another schedule"
        found.append(Finding("broken schedule", name, None, why, can_repair=False))
    for name, shard, ahead_s in facts.ahead_schedules:
        found.append(Finding("schedule ahead", name, shard, describe_clock_ahead(ahead_s), can_repair=False))
    for name, shard, at in facts.late_schedules:
        if at < now - PASSES_S:
            found.append(Finding("late schedule", name, shard, f"its fire time was {now - at:.0f} s ago"))
    return [*found, *_alert_findings(facts, now)]


def _alert_findings(facts: DoctorFacts, now: float) -> Iterator[Finding]:
    for name, workflows in sorted(facts.missing_channels.items()):
        why = f"{', '.join(sorted(workflows)[:5])} uses it: create it with `latchwork workflows channels set {name}`"
        yield Finding("no channel", name, None, why, can_repair=False)
    for number, name, state, at in facts.undelivered:
        why = f"it is {state} since {now - at:.0f} s, and no master sends it: look at the logs of masters"
        yield Finding("stuck alert", f"delivery {number} by {name}", None, why, can_repair=False)


def _master_findings(facts: DoctorFacts) -> Iterator[Finding]:
    if not facts.masters:
        why = "runs do not continue without one: start `latchwork workflows serve`, or `master`"
        yield Finding("no master", "cluster", None, why, can_repair=False)


def _item_findings(facts: DoctorFacts) -> Iterator[Finding]:
    for x, shard in facts.items.items():
        if x not in facts.active_attempts:
            yield Finding("item without task", x, shard, "a worker would run it, although no run needs it")
    for key in facts.unknown_keys:
        why = "no version of latchwork writes such a key; look at it with `latchwork tree`"
        yield Finding("unknown key", key, None, why, can_repair=False)


def _attempt_findings(facts: DoctorFacts, now: float) -> Iterator[Finding]:
    for x, held in facts.active_attempts.items():
        is_somewhere = x in facts.running or x in facts.results
        if is_somewhere or held.since >= now - PASSES_S:
            continue
        subject = f"{held.name} of run {held.run_id} ({x})"
        if held.state is TaskState.RUNNING:
            yield Finding("run without worker", subject, held.shard, "no worker runs it, and no master has noticed")
        elif held.is_run_active and x not in facts.items:
            yield Finding("task without item", subject, held.shard, "it is queued, but no worker can find it")


def _pool_findings(facts: DoctorFacts) -> Iterator[Finding]:
    queued = [each for each in facts.active_attempts.values() if each.state is TaskState.SUBMITTED]
    needed = {name for each in queued for name in each.pools} | facts.pool_users.keys()
    for name in sorted(each for each in needed - facts.pools.keys() if not each.startswith(PROJECT)):
        why = f"its tasks wait for a slot forever: `latchwork workflows pools set {name} --size N`"
        yield Finding("missing pool", name, None, why, can_repair=False)
    for name in sorted(facts.pools.keys() | {each for each in facts.store_pools if not each.startswith(PROJECT)}):
        if facts.pools.get(name) != facts.store_pools.get(name):
            sizes = facts.pools.get(name, "none"), facts.store_pools.get(name, "none")
            why = f"size {sizes[0]} in the database, {sizes[1]} in the store"
            yield Finding("size of a pool", name, 0, why)


def _leftover_findings(facts: DoctorFacts) -> Iterator[Finding]:
    for kind, attempts in (("cancel without item", facts.cancels), ("data without item", facts.data)):
        for x in sorted(attempts - facts.items.keys() - facts.results.keys() - facts.active_attempts.keys()):
            yield Finding(kind, x, None, "it only takes space")


class Doctor:
    """Checks a database and its store: ``Doctor(database, store).check()``. Thread-safe.

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
        self._store = get_workflows_store(store)
        self._keys = keys or Keys()
        self._now = now
        self._wait = wait

    def check(self) -> list[Finding]:
        """Check twice, and return the inconsistencies that both checks have found. Empty if everything is consistent.

        Raises:
            Unavailable: Database or store cannot be reached.
        """
        installation = load_installation(self._database)
        there = self._store.get(self._keys.id)
        if there is not None and there.value != installation.id.encode():
            why = "give the right pair, or join these two with `latchwork workflows adopt-store`"
            return [Finding("wrong store", self._store.url, None, why, can_repair=False)]
        pair = self._store.get(self._keys.pair)
        try:
            with self._database.read() as connection:
                check_store_of_database(connection, None if pair is None else pair.value, self._store.url)
        except StoreMismatch as error:
            return [Finding("wrong store", self._store.url, None, str(error), can_repair=False)]
        first = find_problems(self._read_facts(), self._now())
        if not any(each.can_repair or each.kind == "unknown key" for each in first):
            return [*first, *self._find_missing_settings()]
        self._wait(BETWEEN_S)
        second = find_problems(self._read_facts(), self._now())
        before = {(each.kind, each.subject) for each in first}
        both = [each for each in second if (each.kind, each.subject) in before]
        return [*both, *self._find_missing_settings()]

    def _find_missing_settings(self) -> list[Finding]:
        """Return the references of workflows to settings that do not exist. Tasks with such a reference will fail."""
        with self._database.read() as connection:
            found = find_missing_references(connection)
        return [
            Finding("missing setting", f"{each.workflow} {each.path}", None, each.message, can_repair=False)
            for each in found
        ]

    def request_repair(self, findings: Sequence[Finding], *, by: str) -> list[int]:
        """Request the masters of the affected shards to repair inconsistencies, and return the IDs of the commands.

        A repair reads everything again and deletes store entries that nothing needs.

        Args:
            findings: The inconsistencies.
            by: The user, for the audit log.
        """
        every = range(load_installation(self._database).shards)
        with self._database.write() as connection:
            shards = {each.shard for each in findings if each.can_repair and each.shard is not None}
            if any(each.can_repair and each.shard is None for each in findings):
                shards |= set(every)
            asked = [send_command(connection, CommandType.REPAIR, shard_id=each, by=by) for each in sorted(shards)]
        for each in asked:
            self._store.put(self._keys.notify_key(each.shard), b"")
        return [each.id for each in asked]

    def wait_until_executed(self, commands: Sequence[int], timeout_s: float) -> bool:
        """Wait until masters have executed these commands.

        Args:
            commands: IDs of the commands.
            timeout_s: Seconds to wait.
        Returns:
            False if the time has elapsed.
        """
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

    def _read_facts(self) -> DoctorFacts:
        """Read everything that is compared: first the database, then queue items, claims and results.

        The order matters, because the end of an attempt replaces its claim with a result.
        """
        facts = DoctorFacts()
        self._read_database(facts)
        keys = self._keys
        facts.cancels = self._attempts(self._store.list(keys.cancels), keys.cancels, facts)
        data = self._store.list(keys.every_data, recursive=True)
        facts.data = self._attempts(data, keys.every_data, facts)
        for entry in self._store.list(f"{keys.backlog}/partitions", recursive=True):
            if "/items/" in entry.key:
                _note_item(entry, facts)
        self._read_shards(facts)
        cluster = inspect(self._store, namespace=keys.cluster)
        facts.masters = sorted(cluster.nodes) if cluster is not None else ()
        for entry in self._store.list(keys.slots, recursive=True):
            name, _, kind = entry.key[len(keys.slots) + 1 :].partition("/")
            if kind == "size":
                facts.store_pools = {**facts.store_pools, name: int(entry.value) if entry.value.isdigit() else -1}
        return facts

    def _read_shards(self, facts: DoctorFacts) -> None:
        for kind in ("running", "results"):  # in this order
            for entry in self._store.list(self._keys.shards, recursive=True):
                shard, _, rest = entry.key[len(self._keys.shards) + 1 :].partition("/")
                found, _, x = rest.partition("/")
                if found != kind:
                    continue
                if not shard.isdecimal() or not is_attempt_key(x):
                    facts.unknown_keys.append(entry.key)
                elif kind == "running":
                    facts.running.add(x)
                else:
                    facts.results[x] = (int(shard), _ended_at(entry, self._now()))

    @staticmethod
    def _attempts(entries: Sequence[Entry], prefix: str, facts: DoctorFacts) -> set[str]:
        found = set()
        for entry in entries:
            x = entry.key[len(prefix) + 1 :].partition("/")[0]
            if is_attempt_key(x):
                found.add(x)
            else:
                facts.unknown_keys.append(entry.key)
        return found

    def _read_database(self, facts: DoctorFacts) -> None:
        now = self._now()
        with self._database.read() as connection:
            facts.active_attempts = _held(connection)
            facts.commands = _commands(connection)
            facts.owners = dict(connection.execute(sa.select(shard_.c.id, shard_.c.owner)).all())
            rows = schedules.load_schedules(connection)
            there = {each.name for each in alerts.list_channels(connection)}
            facts.missing_channels = {
                name: of for name, of in alerts.list_workflows_by_channel(connection).items() if name not in there
            }
            late = alerts.list_overdue_deliveries(connection, now - STUCK_S)
            facts.undelivered = [(each.id, each.channel, each.state, each.next_at) for each in late]
            facts.pools = {build_pool_key(each.name): each.size for each in pools.list_pools(connection)}
            facts.pool_users = pools.list_workflows_by_pool(connection)
        for each in rows:
            name = f"{each.project}.{each.name}"
            try:
                is_on = each.online and each.enabled
                if is_on and (ahead_s := each.get_seconds_ahead(now)):
                    facts.ahead_schedules.append((name, each.shard, ahead_s))
                owed = each.get_next_fire(now) if is_on else None
                if owed is not None and owed < now:
                    since = Cron(each.cron, tz=each.tz).fire_after(max(each.cursor, each.starts_at or 0.0))
                    facts.late_schedules.append((name, each.shard, since))
            except Exception as error:
                facts.broken_schedules.append((name, reason(error)))


def _commands(connection: sa.Connection) -> list[tuple[int, str, int, float]]:
    columns = (command.c.id, command.c.type, command.c.run_id, command.c.args, command.c.shard, command.c.created_at)
    asked = sa.select(*columns).where(command.c.done_at.is_(None)).order_by(command.c.id).limit(1000)
    names = {
        row.code: f"{row.project}.{row.name}"
        for row in connection.execute(sa.select(definition.c.code, definition.c.project, definition.c.name))
    }
    found = []
    for row in connection.execute(asked):
        of = f"run {row.run_id}" if row.run_id is not None else names.get((row.args or {}).get("code"), "")
        found.append((row.id, f"{row.type} of {of}" if of else row.type, row.shard, row.created_at))
    return found


def _held(connection: sa.Connection) -> dict[str, ActiveAttempt]:
    now = sa.and_(workflow_run.c.id == task.c.run_id, workflow_run.c.round == task.c.round)
    of_run = (workflow_run.c.shard, workflow_run.c.state.label("goes"))
    of_task = (task.c.id, task.c.run_id, task.c.name, task.c.n, task.c.state, task.c.changed_at, task.c.queue_key)
    chosen = sa.select(*of_task, *of_run)
    in_hands = task.c.state.in_([TaskState.SUBMITTED.value, TaskState.RUNNING.value])
    # Tasks that the master runs itself are not in the work queue.
    chosen = chosen.join(workflow_run, now).where(workflow_run.c.active, in_hands, task.c.queue_key.is_not(None))
    return {
        format_attempt_key(row.id, row.n): ActiveAttempt(
            row.run_id,
            row.name,
            row.shard,
            TaskState(row.state),
            row.changed_at,
            row.goes == RunState.RUNNING.value,
            list_pool_keys(row.queue_key.partition("/")[0]),
        )
        for row in connection.execute(chosen.limit(_MAX))
    }


def _note_item(entry: Entry, facts: DoctorFacts) -> None:
    try:
        item = ItemName.parse(entry.key.rpartition("/")[2])
    except InvalidKey:
        facts.unknown_keys.append(entry.key)
        return
    facts.items[item.attempt_key] = item.shard


def _ended_at(entry: Entry, now: float) -> float:
    try:
        return AttemptResult.from_bytes(entry.value).ended_at
    except LatchworkError:
        return now  # its master reports the error


def to_mapping(finding: Finding) -> Mapping[str, Any]:
    """Convert an inconsistency to a mapping for JSON output."""
    return finding._asdict()
