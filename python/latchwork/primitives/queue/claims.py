"""A claimed item: it belongs to its consumer until the consumer ends the claim, or the consumer's session ends.

A take writes the ID of a claim holder into the item. The holder is a session-bound key, one for all claims of a queue
object in a partition. All these claims end when the key disappears. Every end of a claim is one transaction that checks
that the item is unchanged since the take, that its holder exists, and that its session is alive. So of all clients that
ever took an item at most one can end it. If an item is removed while it is claimed, even if it is put again, the old
claim cannot end it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from latchwork._base.event import Signal
from latchwork.errors import Conflict, LatchworkError, LockLost, OutcomeUnknown, OwnershipLost
from latchwork.primitives.queue.items import (
    ClaimHolder,
    QueueItem,
    QueueKeys,
    build_dead_letter_put,
    build_index_put,
    generate_dead_letter_id,
)
from latchwork.primitives.queue.unconfirmed_claims import UnconfirmedClaim, UnconfirmedClaims, delete_later
from latchwork.primitives.waiting.arguments import check_member, check_text
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.ownership import Ownership, OwnershipHolder
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.forks import ForkGuard, make_lost_signal
from latchwork.store.observers import check_listener
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking, coroutine_of, shielded
from latchwork.store.store import Store
from latchwork.types import Check, Committed, Create, Delete, Exists, Fence, Op, Put

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger(__name__)

#: Seconds for which the end of a claim is retried while the server cannot be reached.
TIMEOUT_S = 30.0


class StoredClaimState(Enum):
    """The state of a claim in the store."""

    HELD = "held"
    LOST = "lost"  # the claim holder does not exist, so another client may have the item
    ENDED = "ended"  # the item is not as the take wrote it, and no other client can have taken it
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """The data that all claims of one queue object share.

    Attributes:
        store: The store of the queue.
        keys: Builds the keys of the queue.
        what: Name of the queue for messages: ``queue 'work'``.
        home: The process that created the queue object.
        max_attempts: How often an item is taken before it becomes a dead letter.
        is_bounded: Whether the queue has a capacity, so that its items stay in their partitions.
        is_numbered: Whether it belongs to a ``Queue``: one partition, in which items are numbered.
    """

    store: Store
    keys: QueueKeys
    what: str
    home: ForkGuard
    max_attempts: int
    is_bounded: bool = False
    is_numbered: bool = False

    def describe_item(self, item: QueueItem) -> str:
        """Return the name of an item for messages."""
        return f"item {item.id if self.is_numbered else item.path!r} of {self.what}"


class QueueClaim(OwnershipHolder):
    """One item taken from a queue: ``with queue.take() as claim: handle(claim.value)``.

    The end of the ``with`` block acknowledges the item; an exception releases it. Thread-safe.

    Attributes:
        item: The item as it was taken, with this attempt counted.
        value: The value that was put.
        attempts: How often the item was taken, including this time.
    """

    def __init__(self, info: QueueInfo, item: QueueItem, value: bytes, token: int, *, holder: ClaimHolder) -> None:
        self.item = item
        self.value = value
        self.attempts = item.attempts
        self._info = info
        self._keys = info.keys
        self._store = info.store
        self._token = token
        self._holder = holder
        self._session = holder.session
        self._home = info.home
        self._has_ended = False
        self._is_ending = False
        self._is_in_doubt = False
        self._fence: Fence | None = None
        self._ownership_or_none: Ownership | None = None

    @property
    def _what(self) -> str:
        """The name of the item for messages."""
        return self._info.describe_item(self.item)

    def __repr__(self) -> str:
        return f"<QueueClaim of {self._what}, attempt {self.attempts}, {self.remaining_s():.2f}s>"

    def __enter__(self) -> Self:
        return self

    @shielded
    async def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, *_: object) -> None:
        if self._has_ended:
            return
        try:
            if exc_type is None:
                await coroutine_of(self.ack)()
            else:
                await self._release_quietly(exc)
        except Exception:
            raise
        except BaseException:  # interrupted: the cleanup continues it
            if not self._home.is_foreign:
                self._store.cleanup.add(partial(self._end_quietly, exc))
            raise

    async def _release_quietly(self, exc: BaseException | None) -> None:
        """Release the item after the caller's work has failed. An error of the release is logged and not raised."""
        try:
            await coroutine_of(self.release)(repr(exc))
        except LatchworkError as error:
            _log.warning("%s could not be released; it becomes free when its session ends: %s", self._what, error)

    async def _end_quietly(self, exc: BaseException | None) -> None:
        """End the claim in the background after an interrupt: release after an error, otherwise acknowledge.

        Args:
            exc: The error with which the ``with`` block ended; None if it ended normally.
        """
        if self._has_ended:
            return
        if exc is not None:
            await self._release_quietly(exc)
            return
        try:
            await coroutine_of(self.ack)()
        except LatchworkError as error:
            _log.warning("%s: its acknowledgment was interrupted and then failed: %s", self._what, error)

    # State

    @property
    def id(self) -> str:
        """The ID of the item."""
        return self.item.id

    @property
    def priority(self) -> int | None:
        """The priority of an item of a ``Queue``, 0 (first) to 9 (last). None for an item of a ``WorkQueue``."""
        return self.item.priority

    @property
    def is_last_attempt(self) -> bool:
        """Whether this is the last attempt. A release that counts then makes the item a dead letter."""
        return self.attempts >= self._info.max_attempts

    @property
    def fence(self) -> Fence:
        """The check that this claim still holds the item. Use it in every write that depends on the item."""
        if self._fence is None:
            holder = self._holder
            if holder.fence is None:
                holder.fence = self._store.fence(0, Exists(holder.key), self._session.fence)
            self._fence = self._store.fence(self._token, self.item.check, holder.fence)
        return self._fence

    @property
    def session(self) -> Session:
        """The session that the claim is bound to."""
        return self._session

    @property
    def is_held(self) -> bool:
        """Whether the claim is certainly held now, judged by the local clock. Does no I/O."""
        return self.remaining_s() > 0.0

    @property
    def lost(self) -> Signal:
        """A signal that is set when the claim is lost because its session has expired or was closed."""
        return make_lost_signal() if self._home.is_foreign else self._ownership.lost

    def on_lost(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` if the claim is lost because its session expires or is closed.

        It is not called when the item is acknowledged or released.

        Returns:
            A function that removes the callback.
        """
        self._home.check()
        check_listener(fn)
        return self._session.on_lost(lambda: None if self._has_ended else fn(), or_closed=True)

    def remaining_s(self) -> float:
        """Return for how many seconds the claim is certainly held without a further renewal of the session. Does no
        I/O.
        """
        return 0.0 if self._has_ended or self._is_ending else self._session.remaining_s()

    def _get_ownership(self) -> Ownership:
        return self._ownership

    @property
    def _ownership(self) -> Ownership:
        """The ownership of the item. Work on the item registers with it, to be stopped when the claim is lost.

        Created on first use, because most claims end without it.
        """
        if self._ownership_or_none is None:
            new = Ownership.for_session(self._what, self.fence, self._session, self._store.clock)
            first = self.__dict__.setdefault("_first_ownership", new)
            self._ownership_or_none = first
            if first is not new:  # another thread was faster
                new.end()
            if self._has_ended:
                first.end()
        return self._ownership_or_none

    # Ending the claim

    @blocking
    async def ack(self, checks: Sequence[Check] = (), ops: Sequence[Op] = (), *, timeout_s: float = TIMEOUT_S) -> None:
        """Remove the item because its work is done, optionally in one transaction with writes of yours.

        Your writes are applied once, however often the item was taken.

        Args:
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
            timeout_s: Seconds to retry while the server cannot be reached.
        Raises:
            LockLost: The item is no longer ours, or was removed; nothing was changed.
            Conflict: One of your checks or writes failed; the item is still ours.
            Unavailable: Nothing was changed, and the item is still ours for a while.
            OutcomeUnknown: The item may be removed; the session ended before that was known.
        """
        await self._end([*self._delete_ops(), *ops], checks, timeout_s)

    @blocking
    async def release(
        self,
        why: str = "",
        *,
        count: bool = True,
        failed: bool = False,
        partition: str | None = None,
        checks: Sequence[Check] = (),
        ops: Sequence[Op] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Release the item to its old position. After the last attempt that counts it becomes a dead letter.

        Args:
            why: The reason, stored in the item.
            count: Whether this take counts as an attempt.
            failed: Whether to add one to the item's ``failures``, which has no limit.
            partition: Move the item to this partition, under the same sort key. None keeps its partition. Not in a
                bounded queue.
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
            timeout_s: Seconds to retry while the server cannot be reached.
        Raises:
            Conflict: The partition has an item with this sort key and ID, or one of your checks or writes failed; the
                item is still ours.
            ValueError: The queue is bounded, and ``partition`` is another one.
            LockLost, Unavailable, OutcomeUnknown: As for ``ack``.
        """
        check_text(why, "the reason")
        if count and self.is_last_attempt:
            why = why or f"released {self.attempts} times"
            await coroutine_of(self.move_to_dead_letters)(why, checks, ops, timeout_s=timeout_s)
            return
        released = self._release_ops(why, count=count, failed=failed, partition=partition)
        await self._end([*released, *ops], checks, timeout_s)

    @blocking
    async def move_to_dead_letters(
        self,
        why: str = "",
        checks: Sequence[Check] = (),
        ops: Sequence[Op] = (),
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Make the item a dead letter now, even if it has attempts left.

        Args:
            why: The reason, stored in the dead letter.
            checks: Further preconditions of the transaction.
            ops: Further writes in the same transaction.
            timeout_s: Seconds to retry while the server cannot be reached.
        Raises:
            LockLost, Conflict, Unavailable, OutcomeUnknown: As for ``ack``.
        """
        check_text(why, "the reason")
        item = self.item.with_reason(why)
        dead_letter_id = item.id
        while True:
            dead = build_dead_letter_put(self._keys, item, dead_letter_id)
            try:
                await self._end([*self._delete_ops(keep_data=True), dead, *ops], checks, timeout_s)
            except Conflict:
                if await ask(self._store.get, dead.key) is None:
                    raise
                dead_letter_id = generate_dead_letter_id(item.id)
            else:
                return

    def prepare_ack(self, ops: Sequence[Op] = ()) -> PreparedClaimEnd:
        """Return the checks and writes that acknowledge the item, for the caller to include in its own transaction.

        Args:
            ops: Further writes for the same transaction.
        Raises:
            LockLost: The item is no longer ours.
        """
        return self._prepare_end([*self._delete_ops(), *ops])

    def prepare_release(
        self, why: str = "", *, count: bool = True, failed: bool = False, partition: str | None = None
    ) -> PreparedClaimEnd:
        """Return the checks and writes of ``release``, for a transaction of yours. It makes no dead letters.

        Args:
            why: The reason, stored in the item.
            count: Whether this take counts as an attempt.
            failed: Whether to add one to the item's ``failures``.
            partition: Move the item to this partition instead.
        Raises:
            LockLost: The item is no longer ours.
        """
        check_text(why, "the reason")
        return self._prepare_end(self._release_ops(why, count=count, failed=failed, partition=partition))

    def _prepare_end(self, ops: Sequence[Op]) -> PreparedClaimEnd:
        """Return the checks and these writes as the end of the claim. The claim counts as not held from now on.

        Raises:
            LockLost: The item is no longer ours.
        """
        if self._home.is_foreign:
            raise self._home.error()
        if self._has_ended or self._session.remaining_s() <= 0.0:
            raise self._lost_error()
        return PreparedClaimEnd(self, tuple(ops))

    def _release_ops(self, why: str, *, count: bool, failed: bool, partition: str | None) -> list[Op]:
        """Return the writes that release the item. The arguments are those of ``release``."""
        item = self.item.with_reason(why)
        item = item if count else item.without_last_attempt()
        stored = (item.with_failure() if failed else item).to_bytes()
        if partition is None or partition == item.partition:
            return [Put(item.key, stored)]
        check_member(partition, "partition")
        if self._info.is_bounded:
            raise ValueError(
                f"{self._info.what} has a capacity, so its items stay in their partitions; "
                "release the item to its own partition"
            )
        moved = self._keys.item_key(partition, item.sort_key, item.id)
        index = build_index_put(self._keys, partition, item.sort_key)
        return [Delete(item.key), index, Create(moved, stored)]

    def _delete_ops(self, *, keep_data: bool = False) -> list[Op]:
        """Return the writes that delete the item and, unless ``keep_data`` is True, its large value."""
        data = [Delete(self._keys.data_key(self.item.data_id))] if self.item.data_id and not keep_data else []
        return [Delete(self.item.key), *data]

    # The transaction that ends the claim

    async def _end(self, ops: Sequence[Op], checks: Sequence[Check], timeout_s: float) -> None:
        """Commit the transaction that ends the claim, with retries.

        Args:
            ops: The writes.
            checks: Further preconditions of the caller.
            timeout_s: Seconds to retry while the server cannot be reached.
        Raises:
            OutcomeUnknown: The claim was lost, and an earlier attempt may have ended it.
        """
        self._home.check()
        try:
            await self._try_to_end(ops, checks, timeout_s)
        except OwnershipLost as error:
            if not self._is_in_doubt:
                raise
            raise OutcomeUnknown(str(error)) from error

    async def _try_to_end(self, ops: Sequence[Op], checks: Sequence[Check], timeout_s: float) -> None:
        if self._has_ended or self._session.remaining_s() <= 0.0:
            raise self._lost_error()
        deadline = Deadline(self._store.clock, timeout_s)
        self._is_ending = True  # from the commit on, another client may take the item
        try:
            with closing(Waiter(self._store, self._session)) as waiter:
                await waiter.keep_trying(lambda: self._commit(ops, checks), deadline)
        except BaseException as error:
            # after an interrupt, the next attempt finds out whether the transaction was committed
            self._is_in_doubt = self._is_in_doubt or not isinstance(error, Exception)
            self._is_ending = False
            raise
        self._mark_ended()

    async def _commit(self, ops: Sequence[Op], checks: Sequence[Check]) -> None:
        """Try once to commit the transaction that ends the claim.

        Only this client can end the claim while the session-bound key of its claims exists. So after a conflict or an
        unknown outcome, the state of the claim shows whether an earlier attempt was committed.
        """
        try:
            await ask(self._store.commit, [self.fence, *checks], ops)
        except Conflict as error:
            claim_state = await self._read_state()
            if claim_state is StoredClaimState.HELD:
                raise
            self._raise_unless_settled(claim_state, error)
        except OutcomeUnknown as error:
            self._is_in_doubt = True
            claim_state = await self._read_state()
            if claim_state is StoredClaimState.HELD or self._session.remaining_s() <= 0.0:
                raise
            self._raise_unless_settled(claim_state, error)

    async def _was_committed(self, error: LatchworkError) -> bool:
        """Return whether a commit that raised an error has ended the claim.

        Args:
            error: The error of the commit.
        Raises:
            LockLost: The item is no longer ours, or was removed.
        """
        self._home.check()
        self._is_in_doubt = self._is_in_doubt or isinstance(error, OutcomeUnknown)
        claim_state = await self._read_state()
        if claim_state is StoredClaimState.HELD:
            return False
        self._raise_unless_settled(claim_state, error)
        self._mark_ended()
        return True

    def _raise_unless_settled(self, claim_state: StoredClaimState, error: LatchworkError) -> None:
        """Raise an error, unless an earlier attempt has ended the claim as intended and only its answer was lost.

        Args:
            claim_state: The state of the claim in the store.
            error: The error of the last attempt.

        Raises:
            LockLost: The item is no longer ours, or was removed.
        """
        if claim_state is StoredClaimState.ENDED and self._is_in_doubt:
            return
        self._has_ended = True
        if claim_state is StoredClaimState.REMOVED:
            self._is_in_doubt = False
        self._end_ownership()
        raise self._lost_error(claim_state) from error

    async def _read_state(self) -> StoredClaimState:
        """Read the state of the claim from the store.

        The item is read before the holder: while the holder exists, no other client takes the item.
        """
        item = await ask(self._store.get, self.item.key)
        removed, holder = await ask(self._store.get_many, [self._keys.removed_key(self.item), self._holder.key])
        if holder is None:
            self._holder.is_gone = True
            return StoredClaimState.LOST
        if item is not None and item.version == self.item.version:
            return StoredClaimState.HELD
        return StoredClaimState.ENDED if removed is None and self._is_in_doubt else StoredClaimState.REMOVED

    def _mark_ended(self) -> None:
        """Record that this client has ended the claim."""
        self._has_ended = True
        self._is_ending = self._is_in_doubt = False
        self._end_ownership()

    def _end_ownership(self) -> None:
        if self._ownership_or_none is not None:
            self._ownership_or_none.end()

    def _lost_error(self, claim_state: StoredClaimState = StoredClaimState.LOST) -> LockLost:
        """Return the error of a claim that is no longer ours."""
        if claim_state is StoredClaimState.REMOVED:
            if not self._home.is_foreign:
                delete_later(self._store, self._keys.removed_key(self.item))
            return LockLost(f"{self._what} was removed while it was ours, nothing was changed; stop the work on it")
        if self._is_in_doubt:
            return LockLost(f"{self._what} is not ours any more, and whether we had ended it cannot be found out")
        return LockLost(f"{self._what} is not ours any more, nothing was changed; its next consumer will end it")


class PreparedClaimEnd:
    """The checks and writes that end a claim, as parts of a transaction of yours, which may end many claims.

    Put ``checks`` and ``ops`` into a transaction and commit it. Call ``mark_committed`` after a success, and
    ``was_committed`` after a conflict or an unknown outcome. Until then the claim counts as not held, because another
    client may take the item as soon as the transaction is committed. If the transaction is not sent, call
    ``mark_not_committed``.

    Attributes:
        checks: Preconditions that the item is ours.
        ops: Writes that end the claim.
    """

    def __init__(self, claim: QueueClaim, ops: tuple[Op, ...]) -> None:
        self.checks: tuple[Check, ...] = (claim.fence,)
        self.ops = ops
        self._claim = claim
        claim._is_ending = True  # noqa: SLF001 - both are this file's

    def __repr__(self) -> str:
        return f"<PreparedClaimEnd of {self._claim!r}>"

    def mark_committed(self) -> None:
        """Record that the transaction was committed, so that the claim has ended."""
        self._claim._mark_ended()  # noqa: SLF001

    def mark_not_committed(self) -> None:
        """Record that the transaction was not sent or was certainly refused, so that the claim counts as held again."""
        self._claim._is_ending = False  # noqa: SLF001

    @blocking
    async def was_committed(self, error: LatchworkError) -> bool:
        """Find out whether the transaction was applied, after a ``Conflict`` or ``OutcomeUnknown``.

        Args:
            error: The error that the commit raised.
        Returns:
            True if it was applied: the claim has ended. False if it was not: the claim is still ours. After
                ``OutcomeUnknown`` it may still be applied later; send the same transaction again, which is applied at
                most once.
        Raises:
            LockLost: The item is no longer ours, or was removed.
            Unavailable: The server could not be reached to find out.
        """
        return await self._claim._was_committed(error)  # noqa: SLF001


class CreateClaimed:
    """The writes that create an item and claim it in one transaction of yours, so that no other client sees the item as
    free.

    After the commit, call ``to_claim``. If the outcome is unknown, call ``mark_unconfirmed``. When the session of the
    claim ends, the item is free, with one attempt counted.

    Attributes:
        ops: Writes that put and claim the item, and that create its claim holder if needed.
    """

    def __init__(
        self,
        info: QueueInfo,
        unconfirmed: UnconfirmedClaims,
        item: QueueItem,
        client_info: bytes,
        *,
        holder: ClaimHolder,
    ) -> None:
        self._info = info
        self._unconfirmed = unconfirmed
        self._item = item = replace(item, claim=holder.generate_claim_id())
        self._holder = holder
        self.ops: tuple[Op, ...] = (
            build_index_put(info.keys, item.partition, item.sort_key),
            Create(item.key, item.to_bytes()),
            *(() if holder.exists else (Put(holder.key, client_info, holder.session),)),
        )

    def __repr__(self) -> str:
        return f"<CreateClaimed {self._item.path!r}>"

    def to_claim(self, done: Committed) -> QueueClaim | None:
        """Return the claim of the created item after the transaction was committed. Call this once.

        Args:
            done: The result of the commit.

        Returns:
            The claim, which is the right to process the item. None if the transaction did not contain the writes of
                this object.
        """
        entry = next((entry for entry in done.entries if entry.key == self._item.key), None)
        if entry is None:
            return None
        self._holder.exists = True
        return QueueClaim(self._info, self._item.with_entry(entry), self._item.value, entry.token, holder=self._holder)

    def mark_unconfirmed(self) -> None:
        """Record that the outcome of the transaction is unknown.

        If the item was created, the next take of this client returns it, or it is released after a second.
        """
        self._unconfirmed.add([UnconfirmedClaim(self._item.key, self._item.claim, self._holder, None)])
