"""A worker of a group, and the loop that runs its function again in each epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from latchwork._base.event import Signal
from latchwork._base.text import reason
from latchwork._base.user_code import is_ending, is_interrupt
from latchwork.errors import LatchworkError, OutcomeUnknown, SessionLost, Unavailable, WaitTimeout
from latchwork.primitives.waiting import Closable, Deadline, GuardedWork, check_member
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking, call_user_function, coroutine_of, shielded
from latchwork.store.store import Store
from latchwork.types import Fence
from latchwork.worker_group.errors import EpochEnded, GroupTerminated, WorkerRemoved
from latchwork.worker_group.keys import FINAL, INIT
from latchwork.worker_group.membership import Joiner, with_default_key
from latchwork.worker_group.observation import explain_exit
from latchwork.worker_group.records import GroupEvent, GroupRecord, WorkerInfo, decode_worker_key, format_first_values
from latchwork.worker_group.submission import NAMESPACE, check_worker_count, resolve_group
from latchwork.worker_group.transactions import decode_record_or_none
from latchwork.worker_group.worker_core import WorkerCore

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger(__name__)
T = TypeVar("T")
#: Errors that do not fail the group: the store was unreachable or the session ended. The worker can rejoin by its key.
TRANSIENT_ERRORS = (Unavailable, OutcomeUnknown, SessionLost)


class ProcessLost(Exception):
    """The process that runs the function has died. The agent rejoins with the worker's key, and the group continues."""


async def run_until_complete(
    core: WorkerCore, call: Callable[[], T], prepare: Callable[[], object] | None, *, final_barrier: bool
) -> T | None:
    """Run a user function until this worker has completed. After each loss of a worker, run it again.

    Args:
        core: The worker.
        call: User function.
        prepare: Called before each run, before all workers meet at the first barrier.
        final_barrier: Whether to wait for all workers before completing.
    Returns:
        The result of the function; None if the worker had already completed.
    """
    is_first = True
    while True:
        try:
            result: T | None = None
            if await core.initialize_unless_completed(prepare):
                if not is_first:
                    await core.count_execution()
                is_first = False
                result = await _call_user_function(core, call)
                if final_barrier:
                    await core.wait_at_final_barrier()
            await core.complete()
        except EpochEnded as error:
            _log.warning("%s", error)
        else:
            return result


async def _call_user_function(core: WorkerCore, call: Callable[[], T]) -> T:
    try:
        return await call_user_function(call)
    except BaseException as error:
        if is_permanent_failure(error):
            await core.report_failure(reason(error))
        raise


def is_permanent_failure(error: BaseException) -> bool:
    """Return whether an exception that user code raised fails the worker permanently.

    Errors of the group and the store, interrupts and cancellations do not fail it.
    """
    is_of_the_group = isinstance(error, (EpochEnded, GroupTerminated, WorkerRemoved, ProcessLost, *TRANSIENT_ERRORS))
    return not (is_of_the_group or is_interrupt(error) or is_ending(error))


class GroupWorker(Closable):
    """One worker of a group: ``with GroupWorker(store, "train", workers=4, info=info) as worker: worker.run(main)``.

    ``with`` joins the group. At its end the worker completes, or fails if an error leaves the block. Ranks start at 0,
    have no gaps, and are kept over restarts by key. When a worker is lost while the group runs, all workers restart in
    the next *epoch*. Construction does no I/O. Thread-safe: threads that share it act as one worker. A paused process
    may continue for a while after it was replaced: pass ``worker.fence`` to every write that matters.

    Args:
        store: The store, or a namespace of it. It is not closed.
        group: Name of the group.
        workers: Create the group with this number of workers if it does not exist; an existing group keeps its number.
            None waits until another client submits the group.
        run: Required run of the group; any other is refused.
        key: Unique name that identifies this worker over restarts; one segment of a key. None uses the IP address and
            first port of ``info``.
        info: Information that the other workers see.
        namespace: Namespace of the group; groups of different namespaces may have the same name.
        session: Session that the worker uses; it is not closed. None uses the store's primary session.
        replace: Whether to take over at once from a running process with the same key. By default ``join`` waits until
            the session of that process has ended. With ``replace`` its fence is refused from then on, but it may
            continue its work until it learns of the takeover or its session ends.
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
        own_info = with_default_key(key, info or WorkerInfo(), f"worker of group {group!r}")
        create = None if workers is None else GroupRecord("", check_worker_count(workers))
        joiner = Joiner(store, keys, own_info, run=run, create=create, replace_running=replace)
        self._core = WorkerCore(store, keys, joiner, session)

    def __repr__(self) -> str:
        membership = self._core.membership
        return f"<GroupWorker {self._core.keys.group!r} {'not joined' if membership is None else membership.info.rank}>"

    @blocking
    async def __enter__(self) -> Self:
        await coroutine_of(self.join)()
        return self

    @shielded
    async def __exit__(self, *raised: object) -> None:
        exc = raised[1] if len(raised) > 1 else None
        try:
            if self._core.exit_error is None and self._core.membership is not None:
                if not isinstance(exc, BaseException):
                    await self._core.complete()
                elif is_permanent_failure(exc):
                    with suppress(LatchworkError):
                        await self._core.fail(reason(exc))
        finally:
            await coroutine_of(self.close)()

    # Joining and leaving

    @blocking
    async def join(self, timeout_s: float | None = 60.0) -> WorkerInfo:
        """Join the group with the next rank, or with the previous rank of this key.

        Args:
            timeout_s: Seconds to wait for the group to be submitted, for a turn, and for the end of an earlier process
                with the same key. None waits forever, 0 tries once.
        Returns:
            The worker's record.
        Raises:
            GroupFull: Every rank is taken by another worker.
            WrongRun: The group is in another run than the required one.
            RestartsExceeded: This worker was restarted too often. The group has failed.
            GroupTerminated: The group has ended.
            NodeIdInUse: Another running process has the same key.
            WaitTimeout: The group was not submitted, or other workers kept joining. Nothing is left behind.
        """
        return (await self._core.join(timeout_s)).info

    @blocking
    async def complete(self) -> None:
        """Record that this worker has completed. It is not run again, and barriers do not wait for it. Idempotent.

        Raises:
            EpochEnded: Another worker was lost before, so the work must be repeated.
            GroupTerminated, WorkerRemoved, SessionLost: This worker is not in the group anymore.
        """
        await self._core.complete()

    @blocking
    async def fail(self, why: str) -> None:
        """Fail the group, because this worker cannot continue and no other worker can do its part. Idempotent.

        Args:
            why: The reason, for messages.
        """
        await self._core.fail(why)

    @blocking
    async def leave(self) -> None:
        """Leave the group. The last worker to leave an ended group removes the group.

        Leaving a running group has the effect of a crash: all workers restart once a process with this key has joined
        again.
        """
        await self._core.leave()

    @shielded
    async def close(self) -> None:
        """Leave the group if the worker has joined, and stop. Idempotent; callable from any thread."""
        if not self._core.waits.home.is_foreign:
            await self._core.close()

    # Own state, without I/O

    @property
    def info(self) -> WorkerInfo:
        """The worker's information as published when it joined, with its rank and counters. No I/O."""
        return self._core.require_membership().info

    @property
    def rank(self) -> int:
        """The worker's rank. No I/O."""
        return self._core.require_membership().info.rank

    @property
    def run_id(self) -> str:
        """The ID of the run that the worker has joined. No I/O."""
        return self._core.require_membership().keys.run

    @property
    def restarts(self) -> int:
        """The number of times that the worker's process was restarted. No I/O."""
        return self._core.require_membership().info.restarts

    @property
    def epoch(self) -> int:
        """The number of the current epoch, which grows when all workers restart after a loss. ``join`` and
        ``initialize`` update it.
        """
        return self._core.current_epoch().epoch

    @property
    def fence(self) -> Fence:
        """The fence for this worker's writes, valid until all workers restart. Its ``token`` grows with each
        restart.
        """
        return self._core.current_epoch().fence

    @property
    def lost(self) -> Signal:
        """A signal that is set when the worker is no longer in the group, unless it has left by itself."""
        return self._core.lost

    @property
    def is_alive(self) -> bool:
        """Whether the session is valid by the local clock, and the worker is not known to have lost its place in the
        group.

        While this is True, no other process can act as this worker, unless that process joined with ``replace=True``.
        """
        membership = self._core.membership
        return membership is not None and self._core.exit_error is None and membership.session.remaining_s() > 0.0

    def guard_work(self, margin_s: float | None = None) -> GuardedWork:
        """Return a cancellation token for work. It is set when a worker of the group is lost, and before the session
        can expire.

        Args:
            margin_s: Seconds before the end of the session at which the token is set; None uses the default of
                ``GuardedWork``.
        """
        return self._core.current_epoch().ownership.guard_work(margin_s)

    def on_event(self, fn: Callable[[GroupEvent], None]) -> Callable[[], None]:
        """Call a function with every event of the group, in order, in a separate thread.

        The first listener gets the events since this worker joined. After a restart it gets the last ``all_joined``
        event first.

        Args:
            fn: The function.
        Returns:
            A function that removes the listener.
        """
        return self._core.events.on_event(fn)

    # Members

    @blocking
    async def members(self) -> list[WorkerInfo]:
        """Return the records of all workers with a rank, sorted by rank, including lost and completed ones."""
        return await self._core.members()

    @blocking
    async def running(self) -> list[WorkerInfo]:
        """Return the records of the running workers, sorted by rank."""
        membership = self._core.require_membership()
        lease_keys = {entry.key for entry in await ask(self._core.store.list, membership.keys.leases)}
        return [info for info in await self._core.members() if membership.keys.lease_key(info.rank) in lease_keys]

    @blocking
    async def wait_for_all(self, timeout_s: float | None = None) -> list[WorkerInfo]:
        """Wait until all workers have joined, and return their records sorted by rank.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Raises:
            WaitTimeout: Some have not joined; the message names their ranks.
            GroupTerminated, WorkerRemoved, SessionLost: This worker is not in the group anymore.
        """
        core, membership = self._core, self._core.require_membership()
        deadline = Deadline(core.store.clock, timeout_s)
        with core.store.watch(membership.keys.record) as watch:
            while True:
                try:
                    batch = await coroutine_of(watch.next)(deadline.left_s())
                except WaitTimeout:
                    raise await self._build_timeout_error(timeout_s) from None
                record = decode_record_or_none(batch[-1].entry if batch else None, membership.keys.run)
                if record is None:
                    raise await explain_exit(core.store, membership) or GroupTerminated(
                        f"{core.what}: the group no longer exists"
                    )
                if record.is_full:
                    return await core.members()

    async def _build_timeout_error(self, timeout_s: float | None) -> WaitTimeout:
        """Build the timeout error whose message names the ranks that no worker has taken.

        Args:
            timeout_s: Seconds that were waited.
        """
        snapshot = await self._core.snapshot()
        taken = {info.rank for info in await self._core.members()}
        missing = format_first_values([rank for rank in range(snapshot.record.workers) if rank not in taken])
        return WaitTimeout(f"group {self._core.keys.group!r}: no worker has these ranks after {timeout_s} s: {missing}")

    @blocking
    async def peer(self, rank: int) -> WorkerInfo | None:
        """Return the record of the running worker with this rank, or None if it is not running.

        This costs two reads, whatever the size of the group.

        Args:
            rank: The rank.
        """
        store, keys = self._core.store, self._core.require_membership().keys
        lease = await ask(store.get, keys.lease_key(rank))
        key = "" if lease is None else decode_worker_key(lease)
        member = await ask(store.get, keys.member_key(key)) if key else None
        return None if member is None else WorkerInfo.decode_or_none(member)

    @blocking
    async def size(self) -> int:
        """Return the current number of workers of the group."""
        return (await self._core.snapshot()).record.workers

    @blocking
    async def update_info(self, info: WorkerInfo) -> None:
        """Replace the information that the other workers see, such as a port that changes in each epoch.

        Args:
            info: New information. Rank, key and counters are kept.
        Raises:
            EpochEnded: Another worker was lost; nothing was written.
            GroupTerminated, WorkerRemoved, SessionLost: This worker is not in the group anymore.
        """
        await self._core.update_info(info)

    @blocking
    async def check(self) -> None:
        """Ask the store whether this worker is still in the group and no other worker was lost.

        The answer may be newer than what this worker has been notified of.

        Raises:
            EpochEnded: Another worker was lost.
            GroupTerminated, WorkerRemoved, SessionLost: This worker is not in the group anymore.
        """
        await self._core.check()

    # Barriers

    @blocking
    async def barrier(self, name: str = "default", timeout_s: float | None = None) -> int:
        """Wait at a barrier until all workers that have not completed have arrived.

        Args:
            name: Name of the barrier, one segment of a key. A group may use any number of barriers.
            timeout_s: Seconds to wait. The timeout of the first worker to arrive applies to all. None waits forever.
        Returns:
            The generation that passed: 0 for the first one in this epoch.
        Raises:
            BarrierBroken: The timeout has passed; the message names the missing workers. The next generation is usable.
            EpochEnded: A worker was lost: call ``initialize`` again.
            GroupTerminated, WorkerRemoved, SessionLost: This worker is not in the group anymore.
        """
        check_member(name, "barrier")
        if name in {INIT, FINAL}:
            raise ValueError(f"barrier {name!r} is reserved; use another name")
        return await self._core.wait_at_barrier(self._core.current_epoch(), name, timeout_s)

    @blocking
    async def initialize(self, timeout_s: float | None = None) -> int:
        """Enter the current epoch and wait until all workers have entered it.

        Args:
            timeout_s: Seconds to wait. The timeout of the first worker to arrive applies to all. None waits forever.
        Returns:
            The number of the epoch.
        Raises:
            BarrierBroken: A worker did not arrive in time.
            GroupTerminated, WorkerRemoved, SessionLost: This worker is not in the group anymore.
        """
        return (await self._core.initialize(timeout_s)).epoch

    # Running

    @blocking
    async def run(
        self,
        main: Callable[[GroupWorker], T],
        *,
        final_barrier: bool = True,
        prepare: Callable[[GroupWorker], object] | None = None,
    ) -> T | None:
        """Run a function once in each epoch, until all workers have finished an epoch without a loss. Then complete.

        Args:
            main: The function, called with this worker. It is repeated at most ``max_executions`` times. An error that
                it raises fails the group, unless another worker was lost before: then ``main`` is called again. Errors
                of the store (``Unavailable``, ``OutcomeUnknown``) and the end of the session (``SessionLost``) are
                raised without failing the group: join again.
            final_barrier: Whether all workers meet before they complete, so that a late loss makes the others run again
                too. This barrier has no timeout.
            prepare: Called in each epoch before all workers meet, for example to publish information for ``main``.
        Returns:
            The result of ``main``; None if this worker had already completed.
        Raises:
            GroupTerminated, WorkerRemoved, SessionLost: The worker is not in the group anymore, or the group has
                failed.
            RestartsExceeded: The function was run too often.
            Exception: The error of ``main``.
        """
        call_prepare = None if prepare is None else partial(prepare, self)
        return await run_until_complete(self._core, partial(main, self), call_prepare, final_barrier=final_barrier)
