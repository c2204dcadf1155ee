"""One worker of a group: a process that joins, meets others, comes back, and completes; the loop around its function."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from latchwork.errors import LatchworkError, OutcomeUnknown, SessionLost, Unavailable, WaitTimeout
from latchwork.primitives.waiting import Closes, Patience, Work, check_member
from latchwork.store.session import Session
from latchwork.store.steps import Signal, ask, called, driven, ending, steps_of
from latchwork.store.store import Store
from latchwork.types import Fence
from latchwork.user_code import is_ending, is_interrupt
from latchwork.words import reason
from latchwork.worker_group.core import WorkerCore
from latchwork.worker_group.errors import EpochEnded, GroupTerminated, WorkerRemoved
from latchwork.worker_group.keys import FINAL, INIT
from latchwork.worker_group.membership import Joiner, resolve_key
from latchwork.worker_group.observation import explain_exit
from latchwork.worker_group.records import GroupEvent, GroupRecord, WorkerInfo, read_key, summarize
from latchwork.worker_group.submission import NAMESPACE, check_worker_count, resolve_group
from latchwork.worker_group.transactions import record_or_none

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger(__name__)
T = TypeVar("T")
#: What is no failure of a function: the store could not be reached, or our session ended. As when its process dies, the
#: worker comes back by its key, and all begin again.
TRANSIENT_ERRORS = (Unavailable, OutcomeUnknown, SessionLost)


class ProcessLost(Exception):
    """The function's process has died; the group goes on, and who held the worker comes back with its key."""


async def run_until_complete(
    core: WorkerCore, call: Callable[[], T], prepare: Callable[[], object] | None, *, final_barrier: bool
) -> T | None:
    """Run a function of the user's to its end in an epoch that lasts so long; None if there is nothing to run."""
    is_first = True
    while True:
        try:
            result: T | None = None
            if await core.start_epoch(prepare):
                if not is_first:
                    await core.count_execution()
                is_first = False
                result = await _run(core, call)
                if final_barrier:
                    await core.wait_at_final_barrier()
            await core.complete()
        except EpochEnded as error:
            _log.warning("%s", error)
        else:
            return result


async def _run(core: WorkerCore, call: Callable[[], T]) -> T:
    try:
        return await called(call)
    except BaseException as error:
        if is_failure(error):
            await core.report_failure(reason(error))
        raise


def is_failure(error: BaseException) -> bool:
    """Return whether a worker has failed for good when its code raises this, whatever else it is."""
    is_of_the_group = isinstance(error, (EpochEnded, GroupTerminated, WorkerRemoved, ProcessLost, *TRANSIENT_ERRORS))
    return not (is_of_the_group or is_interrupt(error) or is_ending(error))


class GroupWorker(Closes):
    """One worker of a group: ``with GroupWorker(store, "train", workers=4, info=info) as worker: worker.run(main)``.

    ``with`` joins, and at its end completes, or fails if an error ends it. A worker has an id from 0, without gaps, and
    the same one after a restart, by its key. When a worker is lost while the group is on, all begin again: that is an
    *epoch*. Construction does no I/O. Safe to share between threads, which are then one worker. A paused process may go
    on for a while: pass ``worker.fence`` to every write that matters.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        group: the group's name.
        workers: create the group, with so many workers, if there is none; a group that is there keeps its number. None
            waits for somebody to submit it.
        run: refuse any other run of the group than this one.
        key: who we are, the same after a restart, and nobody else's; one segment of a key. None takes ip and first
            port of ``info``.
        info: what the others see of us.
        namespace: groups groups: those of different namespaces may have the same name.
        session: the session to live by; it stays the caller's. None takes the store's primary session.
        replace: whether to take over at once from a live process of the same key. By default ``join`` waits until the
            session of that process has ended. With ``replace`` its fence is refused from then on, but it may believe
            that it is in the group, and continue its work, until it learns of this or its session ends.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        *,
        workers: int | None = None,
        run: str | None = None,
        key: str | None = None,
        info: WorkerInfo | None = None,
        namespace: str = NAMESPACE,
        session: Session | None = None,
        replace: bool = False,
    ) -> None:
        store, keys = resolve_group(store, group, namespace)
        told = resolve_key(key, info or WorkerInfo(), f"worker of group {group!r}")
        create = None if workers is None else GroupRecord("", check_worker_count(workers))
        joiner = Joiner(store, keys, told, run=run, create=create, replace_live=replace)
        self._core = WorkerCore(store, keys, joiner, session)

    def __repr__(self) -> str:
        membership = self._core.membership
        return f"<GroupWorker {self._core.keys.group!r} {'not joined' if membership is None else membership.info.rank}>"

    @driven
    async def __enter__(self) -> Self:
        await steps_of(self.join)()
        return self

    @ending
    async def __exit__(self, *raised: object) -> None:
        exc = raised[1] if len(raised) > 1 else None
        try:
            if self._core.exit_error is None and self._core.membership is not None:
                if not isinstance(exc, BaseException):
                    await self._core.complete()
                elif is_failure(exc):
                    with suppress(LatchworkError):
                        await self._core.fail(reason(exc))
        finally:
            await steps_of(self.close)()

    # Joiner and leaving

    @driven
    async def join(self, timeout_s: float | None = 60.0) -> WorkerInfo:
        """Take an id: the next one, or, by our key, the one we had before.

        Args:
            timeout_s: seconds to wait for the group to be submitted, for a turn, and for the end of a namesake; None
                for ever, 0 tries once.
        Returns:
            What the group knows of us.
        Raises:
            GroupFull: every id is taken by another.
            WrongRun: the group is in another run than the one we were told.
            RestartsExceeded: our process was started too often; the group has failed.
            GroupTerminated: the group has ended.
            NodeIdInUse: another live process has our key.
            WaitTimeout: nobody submitted the group, or others kept joiner; nothing of us is left count_behind.
        """
        return (await self._core.join(timeout_s)).info

    @driven
    async def complete(self) -> None:
        """Our part is done: we are not run again, and barriers do not wait for us any more. Twice is fine.

        Raises:
            EpochEnded: another worker was lost before: our part has to be run again.
            GroupTerminated, WorkerRemoved, SessionLost: we are not in the group any more.
        """
        await self._core.complete()

    @driven
    async def fail(self, why: str) -> None:
        """We cannot go on, and nobody else can do our part: the group fails. Twice is fine."""
        await self._core.fail(why)

    @driven
    async def leave(self) -> None:
        """Leave the group. The last one to leave a group that has ended removes it.

        While the group is on, this is a fault like a death: all begin again once somebody is back with our key.
        """
        await self._core.leave()

    @ending
    async def close(self) -> None:
        """Leave, if we are in, and stop. From any thread; twice is fine."""
        if not self._core.waits.home.is_foreign:
            await self._core.close()

    # What we know of ourselves, without I/O

    @property
    def info(self) -> WorkerInfo:
        """What the group knew of us when we joined."""
        return self._core.require_membership().info

    @property
    def rank(self) -> int:
        """Our id."""
        return self._core.require_membership().info.rank

    @property
    def run_id(self) -> str:
        """The run of the group that we are in."""
        return self._core.require_membership().keys.run

    @property
    def restarts(self) -> int:
        """How often our process was started again."""
        return self._core.require_membership().info.restarts

    @property
    def epoch(self) -> int:
        """The epoch we are in: that of the last ``initialize``, or in which we joined."""
        return self._core.current_epoch().epoch

    @property
    def fence(self) -> Fence:
        """The check for every write of ours in this epoch; its ``token`` grows with each restart and each epoch."""
        return self._core.current_epoch().fence

    @property
    def lost(self) -> Signal:
        """Set once we are not in the group any more, otherwise than by leaving."""
        return self._core.lost

    @property
    def is_alive(self) -> bool:
        """True while our session lasts, by our own clock, and we have not seen that we are out of the group.

        While it is True no other process is this worker, unless that process joined with ``replace=True``.
        """
        membership = self._core.membership
        return membership is not None and self._core.exit_error is None and membership.session.remaining_s() > 0.0

    def guard_work(self, margin_s: float | None = None) -> Work:
        """A token that tells work to stop when the epoch is over, and before our session can end; see ``Work``."""
        return self._core.current_epoch().ownership.guard_work(margin_s)

    def on_event(self, fn: Callable[[GroupEvent], None]) -> Callable[[], None]:
        """Call ``fn`` with every event of the group, in order, in a thread for that; returns what ends it.

        The first listener gets those since we joined. Who came back gets the last ``all_joined`` first.
        """
        return self._core.events.on_event(fn)

    # The others

    @driven
    async def members(self) -> list[WorkerInfo]:
        """Every worker that has an id, by id: those that are lost, have left or completed, too."""
        return await self._core.members()

    @driven
    async def running(self) -> list[WorkerInfo]:
        """The workers that live, by id."""
        membership = self._core.require_membership()
        live = {entry.key for entry in await ask(self._core.store.list, membership.keys.leases)}
        return [info for info in await self._core.members() if membership.keys.lease(info.rank) in live]

    @driven
    async def wait_for_all(self, timeout_s: float | None = None) -> list[WorkerInfo]:
        """Every worker, by id, once all have joined.

        Raises:
            WaitTimeout: some have not; the message names their ids.
            GroupTerminated, WorkerRemoved, SessionLost: we are not in the group any more.
        """
        core, membership = self._core, self._core.require_membership()
        patience = Patience(core.store.clock, timeout_s)
        with core.store.watch(membership.keys.record) as watch:
            while True:
                try:
                    batch = await steps_of(watch.next)(patience.left_s())
                except WaitTimeout:
                    raise await self._missing(timeout_s) from None
                record = record_or_none(batch[-1].entry if batch else None, membership.keys.run)
                if record is None:
                    raise await explain_exit(core.store, membership) or GroupTerminated(
                        f"{core.what}: the group is no more"
                    )
                if record.is_full:
                    return await core.members()

    async def _missing(self, timeout_s: float | None) -> WaitTimeout:
        snapshot = await self._core.snapshot()
        there = {info.rank for info in await self._core.members()}
        missing = summarize([number for number in range(snapshot.record.workers) if number not in there])
        return WaitTimeout(f"group {self._core.keys.group!r}: no worker has these ids after {timeout_s} s: {missing}")

    @driven
    async def peer(self, number: int) -> WorkerInfo | None:
        """One other worker as it is now, if it lives: two reads, whatever the number of workers."""
        store, keys = self._core.store, self._core.require_membership().keys
        live = await ask(store.get, keys.lease(number))
        key = "" if live is None else read_key(live)
        member = await ask(store.get, keys.member(key)) if key else None
        return None if member is None else WorkerInfo.or_none(member)

    @driven
    async def size(self) -> int:
        """How many workers the group has now."""
        return (await self._core.snapshot()).record.workers

    @driven
    async def update_info(self, info: WorkerInfo) -> None:
        """Say something else of ourselves, from now on: a port that is another one in each epoch.

        Args:
            info: what the others see of us; our id, key and counts stay.
        Raises:
            EpochEnded: another worker was lost: nothing was written.
            GroupTerminated, WorkerRemoved, SessionLost: we are not in the group any more.
        """
        await self._core.update_info(info)

    @driven
    async def check(self) -> None:
        """Ask the store whether we are in the group, and the epoch goes on: sooner than a watch would tell.

        Raises:
            EpochEnded: another worker was lost.
            GroupTerminated, WorkerRemoved, SessionLost: we are not in the group any more.
        """
        await self._core.check()

    # Meeting

    @driven
    async def barrier(self, name: str = "default", timeout_s: float | None = None) -> int:
        """Wait until all workers that have not completed are here.

        Args:
            name: one of any number of barriers; one segment of a key.
            timeout_s: seconds; the time of who comes first holds for all. None waits for ever.
        Returns:
            The generation that passed: 0 for the first one in this epoch.
        Raises:
            BarrierBroken: somebody had no more time; the message names who was missing. The next generation is open.
            EpochEnded: a worker was lost: go back, and ``initialize``.
            GroupTerminated, WorkerRemoved, SessionLost: we are not in the group any more.
        """
        check_member(name, "barrier")
        if name in {INIT, FINAL}:
            raise ValueError(f"barrier {name!r} is latchwork's own; use another name")
        return await self._core.wait_at_barrier(self._core.current_epoch(), name, timeout_s)

    @driven
    async def initialize(self, timeout_s: float | None = None) -> int:
        """Go to the start line of the epoch there is, and wait until all are there: afterwards the group is healthy.

        Args:
            timeout_s: seconds; the time of who comes first holds for all. None waits for ever.
        Returns:
            The epoch.
        Raises:
            BarrierBroken: somebody did not come in time.
            GroupTerminated, WorkerRemoved, SessionLost: we are not in the group any more.
        """
        return (await self._core.initialize(timeout_s)).epoch

    # Running

    @driven
    async def run(
        self,
        main: Callable[[GroupWorker], T],
        *,
        final_barrier: bool = True,
        prepare: Callable[[GroupWorker], object] | None = None,
    ) -> T | None:
        """Go to the start line, call ``main(self)``, wait_at_barrier all at the wait_at_final_barrier, and complete; again after a fault.

        Args:
            main: is called again in each epoch, at most ``max_executions`` times more. What it raises fails the group,
                unless another worker was lost before that: then it is called again. That the store could not be
                reached (``Unavailable``, ``OutcomeUnknown``) or that our session ended (``SessionLost``) is raised
                and fails nothing: join again.
            final_barrier: whether all wait_at_barrier before they complete, so that a worker that is lost late has the others run
                again, too. It has no deadline.
            prepare: is called before the start line of each epoch: what it tells, all know when ``main`` is called.
        Returns:
            What ``main`` returned; None if our part was done before we came back.
        Raises:
            GroupTerminated, WorkerRemoved, SessionLost, RestartsExceeded: we are not in the group any more, or it has failed.
            Exception: what ``main`` raises.
        """
        before = None if prepare is None else partial(prepare, self)
        return await run_until_complete(self._core, partial(main, self), before, final_barrier=final_barrier)
