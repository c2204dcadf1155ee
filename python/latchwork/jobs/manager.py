"""The manager: one node's, elected. Follows who lives and what is to be done, and writes who shall do it.

Thread ``latchwork-manager-<node>``, one per session of the node: it stands for election as long as the session lasts.
Whatever it writes carries the leadership's fence, so that a manager that was frozen writes nothing after it wakes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from latchwork.errors import Conflict, LatchworkError, OwnershipLost
from latchwork.jobs import keys
from latchwork.jobs.audit import trim_audit
from latchwork.jobs.ledger import Ledger, strategies_note
from latchwork.jobs.marks import NODES
from latchwork.jobs.members import Member
from latchwork.jobs.observer import NOBODY, Observers, RebalanceInfo
from latchwork.jobs.packed import BadHead, MissingChunk
from latchwork.jobs.packed_store import commit_all, from_entries, orphans, read
from latchwork.jobs.progress import sweep_cells
from latchwork.jobs.rebalance import ClusterView, QuietTime, Rebalance, Strategies, WorkerView
from latchwork.jobs.restarts import Restarts
from latchwork.jobs.standing import Planner
from latchwork.primitives import LeaderLatch
from latchwork.types import Absent, At, Delete, Op, Put

if TYPE_CHECKING:
    from latchwork.jobs.settings import ClusterSettings
    from latchwork.store import Mirror, Session, Store
    from latchwork.types import Entry, Fence

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 10.0
_CHORE_RETRY_S = 30.0
_JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """How the manager behaves.

    Attributes:
        strategies: who decides which job.
        debounce_s: seconds without a change before a rebalance, so that a burst becomes one.
        debounce_max_s: seconds after the first change when it comes at the latest.
        cleanup_period_s: seconds between two cleanings of jobs no living worker can run; 0 for never.
        sweep_period_s: seconds between two sweeps of what dead nodes left locked; 0 for never.
        sweep: removes what dead owners of locks left.
    """

    strategies: Strategies
    debounce_s: float
    debounce_max_s: float
    cleanup_period_s: float
    sweep_period_s: float
    sweep: Callable[[], object]

    def under(self, settings: ClusterSettings) -> ManagerOptions:
        """These options, but for what is set for the cluster."""
        names = ("debounce_s", "debounce_max_s", "cleanup_period_s", "sweep_period_s")
        given = {name: getattr(settings, name) for name in names}
        return replace(self, **{name: value for name, value in given.items() if value is not None})


@dataclass(slots=True)
class ManagerCounters:
    """What the manager of this node did, over all its sessions. One writer."""

    rebalances: int = 0
    moves: int = 0
    failures: int = 0


class Manager:
    """Stands for election on one session, and manages while it leads. ``close`` resigns and joins the thread."""

    def __init__(
        self,
        store: Store,
        session: Session,
        me: Member,
        options: Callable[[], ManagerOptions],
        counters: ManagerCounters,
        *,
        observers: Observers = NOBODY,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._me = me
        self._options = options  # asked again and again: they may change at any time
        self._counters = counters
        self._observers = observers
        self._wake = threading.Event()
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._latch = LeaderLatch(store, keys.LEADER, node_id=me.worker, session=session)
        self._latch.on_elected(self._wake.set)
        self._latch.on_revoked(self._wake.set)
        self._thread = threading.Thread(target=self._run, name=f"latchwork-manager-{me.worker}", daemon=True)

    @property
    def is_leader(self) -> bool:
        """True while this node manages the cluster."""
        return self._latch.is_leader

    def start(self) -> None:
        """Stand for election."""
        self._latch.start()
        self._thread.start()

    def look(self) -> None:
        """The options may have changed. Never blocks."""
        self._wake.set()

    def close(self) -> None:
        """Resign. From any thread but its own; twice is fine."""
        self._closing.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        self._latch.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            if self._latch.is_leader:
                try:
                    self._lead()
                except LatchworkError as error:
                    log.warning("manager on node %s has to start over: %s", self._me.worker, error)
                    self._clock.wait(self._closing, _FIRST_RETRY_S)
                except Exception:
                    log.exception("manager on node %s failed and starts over", self._me.worker)
                    self._clock.wait(self._closing, _FIRST_RETRY_S)
            elif not self._closing.is_set():
                self._clock.wait(self._wake)

    def _lead(self) -> None:
        fence = self._latch.fence
        log.info("node %s manages the cluster from now on, fence token %d", self._me.worker, fence.token)
        with (
            self._store.mirror(keys.ALIVE) as alive,
            self._store.mirror(keys.WORK_POOL) as pools,
            self._store.mirror(NODES) as nodes,
        ):
            for mirror in (alive, pools, nodes):
                mirror.on_change(lambda _batch: self._note())
            restarts = Restarts(self._store, nodes, fence, self._me.incarnation)
            term = Term(
                self._store, self._me, fence, alive=alive, pools=pools, restarts=restarts, options=self._options()
            )
            self._manage(term)
        log.info("node %s does not manage the cluster any more", self._me.worker)

    def _note(self) -> None:
        self._changed.set()
        self._wake.set()

    def _manage(self, term: Term) -> None:
        options = self._options()
        quiet = QuietTime(options.debounce_s, options.debounce_max_s)
        chores = _Chores(options, self._clock.now())
        retry_s = _FIRST_RETRY_S
        quiet.note(self._clock.now())
        while self._latch.is_leader and not self._closing.is_set():
            self._wake.clear()
            now = self._clock.now()
            options = self._options()
            quiet.change(options.debounce_s, options.debounce_max_s)
            chores.change(options)
            if self._changed.is_set():
                self._changed.clear()
                quiet.note(now)
            due_s = quiet.due_in_s(now)
            if due_s is not None and due_s <= 0:
                quiet.take()
                if self._rebalance(term):
                    retry_s = _FIRST_RETRY_S
                else:
                    quiet.retry(self._clock.now(), retry_s)
                    retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
                continue
            chores.run_due(now, term)
            if term.restarts.has_expired(now):
                quiet.note(now)
                continue
            others = (due_s, chores.due_in_s(self._clock.now()), term.restarts.due_in_s(self._clock.now()))
            waits = [wait for wait in others if wait is not None]
            self._clock.wait(self._wake, min(waits, default=None))

    def _rebalance(self, term: Term) -> bool:
        """One rebalance; False when it has to be tried again."""
        began, written = self._clock.now(), term.written_bytes
        try:
            result = term.rebalance()
        except OwnershipLost:
            raise
        except LatchworkError as error:
            self._counters.failures += 1
            log.warning("rebalance failed and is tried again: %s", error)
            self._tell(began, Rebalance(), error, term.written_bytes - written)
            term.reload()
            return False
        self._counters.rebalances += bool(result.changes)
        self._counters.moves += result.moves
        self._tell(began, result, next(iter(result.failed.values()), None), term.written_bytes - written)
        if result.deferred and result.changes:
            self._note()  # the next step of what the budget holds back
        return not result.failed

    def _tell(self, began: float, result: Rebalance, error: BaseException | None, written_bytes: int) -> None:
        took_s = self._clock.now() - began
        self._observers.tell(
            "rebalanced",
            RebalanceInfo(self._me.worker, took_s, len(result.changes), result.moves, error, written_bytes),
        )


class Term:
    """One term of leadership: what the leader knows, and the steps it takes. One thread only."""

    def __init__(
        self,
        store: Store,
        me: Member,
        fence: Fence,
        *,
        alive: Mirror,
        pools: Mirror,
        restarts: Restarts,
        options: ManagerOptions,
    ) -> None:
        self.restarts = restarts
        self._store = store
        self._fence = fence
        self._alive = alive
        self._pools = pools
        self._options = options
        self._ledger = Ledger(store, f"{me.incarnation}.{fence.token}", strategies_note(options.strategies.described()))
        self._planner = Planner(options.strategies)
        self._loaded = False
        self._known: dict[str, tuple[object, Member]] = {}
        self._jobs: dict[str, tuple[str, frozenset[str]]] = {}
        self._decoded: dict[str, tuple[object, tuple[str, ...]]] = {}
        self._unplaced: Mapping[str, int] = {}
        self._versions: frozenset[str] = frozenset()

    @property
    def written_bytes(self) -> int:
        """Keys and values of the assignment that were written in this term."""
        return self._ledger.written_bytes

    def reload(self) -> None:
        """Trust nothing of what is known: something went wrong."""
        self._loaded = False
        self._planner.forget()
        self._jobs.clear()

    def rebalance(self) -> Rebalance:
        """Read what changed, decide, and write.

        Raises:
            Conflict: leadership is lost, or something changed underneath: reload and try again.
        """
        if not self._loaded:
            registered = [member for member in self._members().values() if member.state == "ready"]
            self._ledger.load(self._fence)  # after the look at who is ready: what those registered is in it
            self._jobs = {
                member.worker: (member.incarnation, self._ledger.available(member.worker)) for member in registered
            }
            self._loaded = True
        members = self._members()
        self._compare_versions(members)
        ready = self._ready_workers(members)
        shares = self._ledger.shares()
        self.restarts.reserve(ready, shares)
        marks = self.restarts.marks()
        workers = {name: each for name, each in ready.items() if self.restarts.may_have_items(marks.get(name), members)}
        view = ClusterView(workers, self._read_pools(), shares, self.restarts.reserved(marks, workers))
        result = self._planner.rebalance(view)
        self._ledger.use_texts(self._planner.take_whole())
        self._report(result)
        if result.changes:
            started = self._store.clock.now()
            self._ledger.write(result.changes, self._fence)
            log.info(
                "rebalanced: %d items move, %d shares of %d workers written in %.3f s",
                result.moves,
                len(result.changes),
                len(workers),
                self._store.clock.now() - started,
            )
        if not result.failed:
            self.restarts.finish(marks, workers)
        self._forget_dead(members)
        return result

    def cleanup(self) -> None:
        """Delete the pools of jobs that no living worker can run, and chunks that nobody will ever name.

        A worker that registers meanwhile bumps ``versions/worker`` before it looks at the pools: either this deletion
        is a Conflict, or the worker finds no pool and writes it.
        """
        guard = self._store.get(keys.GUARD_WORKER)
        unchanged = Absent(keys.GUARD_WORKER) if guard is None else At(guard)
        members = [Member.decode(entry.key.partition("/")[2], entry.value) for entry in self._store.list(keys.ALIVE)]
        able = {job for member in members for job in self._store.children(keys.available(member.worker))}
        living = {member.incarnation for member in members}
        below: dict[str, dict[str, Entry]] = {}
        for key, entry in self._pools.snapshot().items():
            below.setdefault(key.split("/")[1], {})[key] = entry
        for job, entries in sorted(below.items()):
            head = keys.pool(job)
            if head in entries and job not in able:
                log.info("job %s is deleted from the work pool: no living worker can run it", job)
                ops: list[Op] = [Delete(head), Put(keys.GUARD_POOL, b"{}")]
                self._store.commit([self._fence, unchanged, At(entries[head])], ops)
                del entries[head]
            lost = orphans(head, entries, living)
            same = At(entries[head]) if head in entries else Absent(head)
            # ``unchanged`` here too: chunks of a worker that registers at this moment have no head yet
            commit_all(self._store, [self._fence, unchanged, same], [Delete(key) for key in lost])

    def sweep(self) -> None:
        """Remove what dead owners of locks left, and progress that nobody needs any more."""
        self._options.sweep()
        sweep_cells(self._store, self._read_pools(), [self._fence])
        trim_audit(self._store, [self._fence])

    def _members(self) -> dict[str, Member]:
        found = {}
        for key, entry in self._alive.snapshot().items():
            worker = key.partition("/")[2]
            known = self._known.get(worker)
            if known is None or known[0] != entry.version:
                known = (entry.version, Member.decode(worker, entry.value))
            found[worker] = known
        self._known = found
        return {worker: member for worker, (_, member) in found.items()}

    def _ready_workers(self, members: Mapping[str, Member]) -> dict[str, WorkerView]:
        workers = {}
        for member in members.values():
            if member.state == "ready":
                known = self._jobs.get(member.worker)
                if known is None or known[0] != member.incarnation:
                    known = (member.incarnation, self._ledger.load_available(member.worker))
                    self._jobs[member.worker] = known
                workers[member.worker] = WorkerView(member.weight, known[1])
        return workers

    def _read_pools(self) -> dict[str, tuple[str, ...]]:
        pools = {}
        for job in _heads(self._pools):
            key = keys.pool(job)
            head = self._pools.get(key)
            if head is None:
                continue
            known = self._decoded.get(job)
            if known is None or known[0] != head.version:
                known = self._decoded[job] = self._decode(key, head, () if known is None else known[1])
            pools[job] = known[1]
        for job in [job for job in self._decoded if job not in pools]:
            del self._decoded[job]
        return pools

    def _decode(self, key: str, head: Entry, before: tuple[str, ...]) -> tuple[object, tuple[str, ...]]:
        """The pool's version and its items; those that it had before are the same strings as before."""
        try:
            stored = from_entries(key, self._pools)
        except (MissingChunk, BadHead):  # the mirror shows keys one by one, and may be behind: ask the store
            stored = read(self._store, key)
        same = dict(zip(before, before, strict=True))
        items = tuple(same.get(item, item) for item in stored.packed.items)
        return (stored.head.version if stored.head is not None else head.version, items)

    def _forget_dead(self, living: Collection[str]) -> None:
        """Delete what dead workers registered; one that comes back meanwhile keeps it."""
        for worker in sorted(self._ledger.known_workers().difference(living)):
            try:
                self._ledger.forget_worker(worker, self._fence)
            except Conflict:
                if not self._store.get(keys.alive(worker)):
                    raise
                log.debug("worker %s came back while its leftovers were to be deleted", worker)

    def _compare_versions(self, members: Mapping[str, Member]) -> None:
        """Say so, once, when nodes of different versions share the cluster: they may not understand each other."""
        versions = frozenset(member.version for member in members.values())
        if len(versions) > 1 and versions != self._versions:
            running = {each: sorted(m.worker for m in members.values() if m.version == each) for each in versions}
            told = "; ".join(
                f"{version or 'unknown'}: {', '.join(nodes)}" for version, nodes in sorted(running.items())
            )
            log.warning("nodes of different latchwork versions share this cluster: %s; finish the upgrade soon", told)
        self._versions = versions

    def _report(self, result: Rebalance) -> None:
        for job, error in result.failed.items():
            log.error(
                "strategy of job %s failed, its assignment stays as it is: %s: %s", job, type(error).__name__, error
            )
        for job, items in result.unplaced.items():
            if job not in self._unplaced:
                log.warning("job %s: no ready worker can run its %d items", job, items)
        self._unplaced = result.unplaced


@dataclass(slots=True)
class _Chore:
    """What the leader does now and then; a period of 0 is never."""

    name: str
    do: Callable[[Term], None]
    period_s: float
    since: float
    retry_at: float | None = None

    @property
    def next_at(self) -> float:
        return self.since + self.period_s if self.retry_at is None else self.retry_at


class _Chores:
    """All chores of one term. One thread only."""

    def __init__(self, options: ManagerOptions, now: float) -> None:
        self._cleanup = _Chore("cleanup", Term.cleanup, options.cleanup_period_s, now)
        self._sweep = _Chore("sweep", Term.sweep, options.sweep_period_s, now)

    def change(self, options: ManagerOptions) -> None:
        """Other periods hold from now on, counted from when each chore was last done."""
        self._cleanup.period_s = options.cleanup_period_s
        self._sweep.period_s = options.sweep_period_s

    def due_in_s(self, now: float) -> float | None:
        """Seconds until the next one; None when there is none."""
        return min((max(0.0, chore.next_at - now) for chore in self._active()), default=None)

    def run_due(self, now: float, term: Term) -> None:
        """Do what is due; a failure is reported, and it is tried again soon."""
        for chore in self._active():
            if chore.next_at <= now:
                chore.since, chore.retry_at = now, None
                try:
                    chore.do(term)
                except LatchworkError as error:
                    chore.retry_at = now + min(chore.period_s, _CHORE_RETRY_S)
                    log.warning("%s is tried again in %.3g s: %s", chore.name, chore.retry_at - now, error)

    def _active(self) -> list[_Chore]:
        return [chore for chore in (self._cleanup, self._sweep) if chore.period_s > 0]


def _heads(entries: Mapping[str, Entry]) -> set[str]:
    return {key.split("/", 2)[1] for key in entries if key.count("/") == 1}
