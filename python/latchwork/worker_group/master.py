"""The optional master of a worker group: one process at a time whose address all workers can look up.

Keys:  <group>/master/t<n>   an ``Election``: the leader's value is the master's address

Workers can join, meet at barriers and recover without a master. A master detects lost workers before any worker does.
When it replaces an earlier master, it writes an event.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from latchwork._base.event import Signal
from latchwork.errors import Closed, Conflict, LatchworkError, WaitTimeout
from latchwork.primitives import Election, Leader, Term
from latchwork.primitives.waiting import Closable, Deadline, Identity, check_text
from latchwork.store.backoff import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking, coroutine_of, shielded
from latchwork.store.store import Store
from latchwork.worker_group import transactions
from latchwork.worker_group.keys import GroupKeys
from latchwork.worker_group.observation import GroupMirror, LossDetector, report_loss
from latchwork.worker_group.submission import NAMESPACE, resolve_group
from latchwork.worker_group.transactions import GroupSnapshot, decode_record_or_none

_log = logging.getLogger(__name__)

#: Longest pause in seconds before the master reads its group again.
_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class MasterInfo:
    """The current master of a group.

    Attributes:
        address: Address that it published.
        process: Its host and process ID.
        token: Fencing token, greater for each new master.
    """

    address: str
    process: str
    token: int

    @classmethod
    def from_leader(cls, leader: Leader) -> MasterInfo:
        """Build the information from the leader of the election."""
        return cls(leader.value.decode("utf-8", "replace"), leader.node_id, leader.token)


class GroupMaster(Closable):
    """A candidate for the master of a group: ``with GroupMaster(store, "train", "10.0.0.7:80") as master:
    master.wait()``.

    Construction does no I/O. Thread-safe.

    Args:
        store: The store, or a namespace of it. It is not closed.
        group: Name of the group. It need not exist yet.
        address: Address at which workers reach this process.
        namespace: Namespace of the group; groups of different namespaces may have the same name.
        session: Session that the candidate uses; it is not closed. None uses the store's primary session.
    """

    def __init__(
        self, store: Store, group: str, address: str, *, namespace: str = NAMESPACE, session: Session | None = None
    ) -> None:
        store, self._keys = resolve_group(store, group, namespace)
        self._store = store
        self._value = check_text(address, "the address of a master").encode()
        identity = Identity()
        self._election = Election(store, self._keys.master, node_id=f"{identity.host}:{identity.pid}", session=session)
        self._term: Term | None = None
        self._closed = Signal()
        self._loss_reporter: Background | None = None
        self._notifier = Notifier()

    def __repr__(self) -> str:
        return f"<GroupMaster {self._keys.group!r}>"

    @blocking
    async def wait(self, timeout_s: float | None = None) -> Term:
        """Wait until this process is the master.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Returns:
            The term of the master. Pass its fence to the master's own writes.
        Raises:
            WaitTimeout: Another process is still the master.
            Closed: This object or its store was closed.
        """
        if self._term is not None and self._term.is_leader:
            return self._term
        term = await coroutine_of(self._election.campaign)(self._value, timeout_s=timeout_s)
        self._term = term
        await self._record_restart(term)
        if self._loss_reporter is not None:  # of an earlier term
            self._wake_thread()
            await self._loss_reporter
        self._loss_reporter = Background(self._run, f"latchwork-master-{self._keys.group}")
        return term

    @shielded
    async def close(self) -> None:
        """Stop being the master, or a candidate. Idempotent; callable from any thread."""
        self._closed.set()
        self._wake_thread()
        await coroutine_of(self._election.close)()
        if self._loss_reporter is not None and not self._loss_reporter.is_running_here:
            await self._loss_reporter

    def _wake_thread(self) -> None:
        with self._notifier.mutex:
            self._notifier.notify_all()

    async def _record_restart(self, term: Term) -> None:
        """Store the event ``master_restarted`` if the run had a master before.

        Args:
            term: The master's term of leadership.
        """
        last_run_key = self._keys.last_master_run
        while True:
            entry, last_run = await ask(self._store.get_many, [self._keys.record, last_run_key])
            record = decode_record_or_none(entry)
            if entry is None or record is None:
                return
            snapshot = GroupSnapshot(self._keys.for_run(record.run), entry, time.time())
            try:
                if last_run is None or last_run.value.decode("utf-8", "replace") != record.run:
                    txn = transactions.build_first_master_txn(snapshot, term.fence, last_run_key)
                else:
                    txn = transactions.build_new_master_txn(snapshot, term.fence)
                await ask(self._store.commit, txn.checks, txn.ops)
            except Conflict as error:
                if term.fence in error.failed:
                    return
            else:
                return

    async def _run(self) -> None:
        """Report lost workers of one run after another, while this process is the master."""
        backoff = Backoff(longest_s=_AGAIN_S)
        while not self._closed.is_set() and self._term is not None and self._term.is_leader:
            try:
                await self._report_lost_workers(backoff)
            except Closed:
                return
            except LatchworkError as error:
                _log.info("the master of group %r cannot follow it, retrying: %s", self._keys.group, error)
            with self._notifier.mutex:
                version = self._notifier.version
            if not self._closed.is_set():
                await self._notifier.wait_for_change(version, self._store.clock, backoff.next_s())

    async def _report_lost_workers(self, backoff: Backoff) -> None:
        """Report lost workers of the current run, until the run has ended or this process is no longer the master.

        Args:
            backoff: Pauses after errors; it is reset once the run is watched.
        """
        record = decode_record_or_none(await ask(self._store.get, self._keys.record))
        if record is None:
            return
        keys, detector = self._keys.for_run(record.run), LossDetector()
        mirror = GroupMirror(self._store, keys, self._notifier)
        try:
            backoff.reset()
            while not self._closed.is_set() and self._term is not None and self._term.is_leader:
                with self._notifier.mutex:
                    version = self._notifier.version
                if not mirror.is_ready:
                    await self._notifier.wait_for_change(version, self._store.clock, _AGAIN_S)
                    continue
                current = mirror.record
                if current is None or current.is_final:
                    return
                due, next_s = detector.take_due_losses(mirror.list_missing_workers(), 0, self._store.clock.now())
                for member in due:
                    await report_loss(self._store, keys, member)
                await self._notifier.wait_for_change(
                    version, self._store.clock, 0.2 if due else min(_AGAIN_S, next_s or _AGAIN_S)
                )
        finally:
            mirror.close()


def _election(store: Store, keys: GroupKeys) -> Election:
    """Return the election of a group's master, to read it without being a candidate."""
    return Election(store, keys.master, node_id="looks")


@blocking
async def find_master(store: Store, group: str, *, namespace: str = NAMESPACE) -> MasterInfo | None:
    """Return the group's current master, or None if there is none."""
    leader = await coroutine_of(_election(*resolve_group(store, group, namespace)).leader)()
    return None if leader is None else MasterInfo.from_leader(leader)


@blocking
async def wait_for_master(
    store: Store, group: str, timeout_s: float | None = None, *, namespace: str = NAMESPACE
) -> MasterInfo:
    """Wait until the group has a master, and return it.

    Args:
        store: The store, or a namespace of it.
        group: Name of the group.
        timeout_s: Seconds to wait; None waits forever.
        namespace: Namespace of the group.
    Raises:
        WaitTimeout: The group still has no master.
    """
    store, keys = resolve_group(store, group, namespace)
    election, deadline = _election(store, keys), Deadline(store.clock, timeout_s)
    with store.watch(keys.master) as watch:
        while True:
            try:
                await coroutine_of(watch.next)(deadline.left_s())
            except WaitTimeout:
                raise WaitTimeout(f"group {group!r} has no master after {timeout_s} s; start a GroupMaster") from None
            leader = await coroutine_of(election.leader)()
            if leader is not None:
                return MasterInfo.from_leader(leader)
