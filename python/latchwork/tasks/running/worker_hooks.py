"""The interface between a worker loop and the system that it serves, such as the executor: callbacks and decisions.

The callbacks (hooks) decide which items to claim, what to run, and how a claim ends. Pure, except for the hooks.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import ClassVar

from msgspec import Struct

from latchwork._base.user_code import call_user
from latchwork.clock import Clock
from latchwork.errors import LatchworkError
from latchwork.primitives import ConsumerShard, QueueClaim, QueueItem
from latchwork.tasks.errors import NotSerializable
from latchwork.tasks.payloads.outcome import Outcome
from latchwork.tasks.retry import Retry
from latchwork.tasks.running.calls import StoredCall
from latchwork.types import Absent, Check, Committed, Op

_log = logging.getLogger(__name__)

#: Maximum length of a reason stored in an item.
_MOST_WHY = 200
#: Seconds for which this node leaves an item that it refused to other nodes.
REFUSED_S = 10.0
#: An item taken this often, and never released with a reason, may have killed its nodes. A node has one such item at a
#: time. Otherwise other suspects on the same node would be dead-lettered together with it.
SUSPECT = 2
_MOST_REFUSED = 10_000


class Run(Struct, frozen=True):
    """A hook's decision to run a call for a claim.

    Attributes:
        call: The call, or a function that returns it and is called in the slot's thread. The function may use the
            store, and may raise.
        task_id: ID of the task in its context and in messages.
        timeout_s: Seconds after which the run is stopped; None for no limit.
        attempt: Number of this attempt; None uses the number of times that the item was claimed.
    """

    call: StoredCall | Callable[[], StoredCall]
    task_id: str
    timeout_s: float | None = None
    attempt: int | None = None


class Done(Struct, frozen=True):
    """A decision to end a claim by deleting its item, in one transaction with additional checks and writes.

    Attributes:
        checks: Additional checks.
        ops: Additional writes.
        on_committed: Called after the commit, with its result, or None if that is not known. Must be quick, and not
            raise.
    """

    checks: tuple[Check, ...] = ()
    ops: tuple[Op, ...] = ()
    on_committed: Callable[[Committed | None], object] = bool


class Release(Struct, frozen=True):
    """A decision to end a claim by returning its item to the queue. During a pause before that, the claim is held
    without a slot.

    Attributes:
        why: The reason, stored in the item.
        after_s: Length of the pause in seconds.
        count: Whether this counts as an attempt.
        failed: Whether to add one to the item's ``failures``.
        partition: Partition to move the item to; None keeps its partition.
    """

    why: str = ""
    after_s: float = 0.0
    count: bool = True
    failed: bool = False
    partition: str | None = None


class DeadLetter(Struct, frozen=True):
    """A decision to end a claim by turning its item into a dead letter, in one transaction with additional writes.

    Attributes:
        why: The reason, stored in the dead letter.
        ops: Additional writes.
        has_hook_ops: Whether to add the checks and writes of the hook ``build_dead_letter_ops``.
    """

    why: str = ""
    ops: tuple[Op, ...] = ()
    has_hook_ops: bool = True


#: How to settle a claim: delete its item, return it to the queue, or turn it into a dead letter.
Settlement = Done | Release | DeadLetter


class WorkerHooks(ABC):
    """The callbacks by which a system, such as the executor, controls its worker loop. Called from several threads.

    If a callback raises, the error is logged, and the claim is released after a pause. This counts as an attempt.
    """

    #: Whether a task may return an ``Instead``: work to be done before its value exists.
    allows_deferred: ClassVar[bool] = False

    @abstractmethod
    def select_partitions(self) -> Sequence[str]:
        """Select the partitions of the queue from which to take items now, and return them in order.

        Called before each search, while the loop claims nothing. Must not use the store.
        """

    def list_watched_partitions(self) -> Sequence[str]:
        """Return the partitions whose new items wake the loop. Called once at the start. Default:
        ``select_partitions()``.
        """
        return self.select_partitions()

    def get_preferred_shard(self, partition: str) -> ConsumerShard:  # noqa: ARG002 - for overrides
        """Return the shard of a partition that this node searches first. Default: no preference.

        See ``WorkQueue.try_take``.
        """
        return ConsumerShard()

    def should_claim(self, item: QueueItem) -> bool:  # noqa: ARG002 - for overrides
        """Return whether this node should claim an item. Must not use the store. Default: True."""
        return True

    def build_claim_ops(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:  # noqa: ARG002 - for overrides
        """Return additional checks and additional writes for the transaction that claims an item. Default: none."""
        return (), ()

    def build_dead_letter_ops(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:  # noqa: ARG002 - for overrides
        """Return additional checks and additional writes for the transaction that dead-letters an item.

        Called for any item that becomes a dead letter; its ``why`` is the reason. A damaged item, whose record cannot
        be decoded, has only its value. May use the store. Default: none.
        """
        return (), ()

    def on_claim_refused(self, item: QueueItem) -> bool:  # noqa: ARG002 - for overrides
        """Handle an item that was not claimed because its additional checks failed. Default: does nothing.

        Returns:
            Whether to search the queue again soon without a notification. Return True if the checks may hold again: a
            mirror of the store reports no change for a key that existed only briefly.
        """
        return False

    def prepare_claims(self, claims: Sequence[QueueClaim]) -> None:  # noqa: B027 - for overrides
        """Prepare the runs of items that were claimed together, before the runs begin. Default: does nothing.

        May use the store. An exception is logged and ignored.
        """

    @abstractmethod
    def prepare_run(self, claim: QueueClaim) -> Run | Settlement:
        """Return the run for a claim, or how to settle the claim if there is nothing to run.

        Must not use the store.
        """

    @abstractmethod
    def handle_outcome(self, claim: QueueClaim, outcome: Outcome) -> Settlement | Future[Settlement]:
        """Return how to settle the claim of a finished run. Called in the slot's thread; may use the store.

        If the transaction that settles the claim is refused because of its checks, this is called again after a short
        pause.

        Args:
            claim: The claim.
            outcome: Outcome of the run.
        Returns:
            The settlement, or a future of it. With a future the slot is free at once, and the settlement may be
            decided together with those of other claims.
        """

    def build_settlement_ops(self, claim: QueueClaim) -> Sequence[Op]:  # noqa: ARG002 - for overrides
        """Return additional writes for the transaction that settles a claim. Must not use the store. Default: none."""
        return ()

    def on_claim_ended(self, claim: QueueClaim) -> bool:  # noqa: ARG002 - for overrides
        """Handle the end of a claim. Must be quick, and must not use the store. Default: does nothing.

        Returns:
            Whether to search for items that were skipped because of this claim.
        """
        return False

    def on_claim_lost(self, claim: QueueClaim) -> None:  # noqa: B027 - for overrides
        """Handle the loss of a claim. Another node may run the task, and the outcome of the run on this node is
        dropped.
        """


def retry_pause_s(retry: Retry, attempt: int, outcome: Outcome) -> float | None:
    """Return the seconds to pause before the next attempt of a failed task; None if there is no next attempt. Pure.

    Args:
        retry: The retry policy of the task.
        attempt: Number of the attempt that has ended, from 1.
        outcome: Outcome of this attempt.
    """
    failure = outcome.failure
    if failure is None or failure.is_final:
        return None
    kind = failure.loaded_class
    kinds = tuple(retry.on)
    is_wanted = kind is None or issubclass(kind, kinds)
    return retry.pause_s(attempt) if attempt < retry.attempts and is_wanted else None


def call_prepare_claims(hooks: WorkerHooks, claims: Sequence[QueueClaim], node_id: str) -> None:
    """Call the hook ``prepare_claims`` if there are claims. An error is logged and ignored, so that the runs begin
    anyway.

    Args:
        hooks: The hooks of the system.
        claims: The claims.
        node_id: ID of the node, for messages.
    """
    try:
        if claims:
            call_user(hooks.prepare_claims, claims)
    except Exception as error:
        text = "node %s did not prepare %d items: %s"
        _log.warning(text, node_id, len(claims), error, exc_info=not isinstance(error, LatchworkError))


def call_on_claim_lost(hooks: WorkerHooks, claim: QueueClaim, node_id: str) -> None:
    """Call the hook ``on_claim_lost``. An error is logged and ignored."""
    try:
        call_user(hooks.on_claim_lost, claim)
    except Exception:
        _log.exception("node %s: the handling of item %s failed", node_id, claim.item.path)


def build_release_if_unfinished(outcome: Outcome, stop_reason: str) -> Release | None:
    """Return a decision to release the item if its task did not run to its end: it refused to run, or the node stopped
    it.

    Args:
        outcome: Outcome of the run.
        stop_reason: Why the node stopped it; empty if it did not.
    Returns:
        None if the run ended by itself. The hooks of the system then decide what to do with the item.
    """
    failure = outcome.failure
    if failure is None:
        return None
    if failure.is_refusal:
        return Release(why=failure.summary[:_MOST_WHY], count=False)
    return Release(why=stop_reason, count=False) if stop_reason else None


def fail_if_deferred(outcome: Outcome, *, is_allowed: bool) -> Outcome:
    """Return the outcome. If it is a deferred result and the system does not allow such results, return a failure
    instead. Pure.

    Args:
        outcome: Outcome of a run.
        is_allowed: Whether the system allows deferred results.
    """
    if not outcome.deferred or is_allowed:
        return outcome
    why = "the task returned a plan, and only tasks of plans may do that"
    return Outcome.from_exception(NotSerializable(why), is_final=True)


class ClaimFilter:
    """Decides which items to claim, with the hooks of a system. A hook that raises cannot stop the node. Thread-safe.

    Args:
        hooks: The hooks of the system.
        clock: The node's clock.
        node_id: ID of the node, for messages.
    """

    def __init__(self, hooks: WorkerHooks, clock: Clock, node_id: str) -> None:
        self._hooks = hooks
        self._clock = clock
        self._node_id = node_id
        self._refused: dict[str, float] = {}
        self._held = ""
        self._wanted = ""
        #: Whether to look soon: an item was refused in this look, and no notification may come when it can be taken.
        self.should_search_soon = False

    def begin_search(self) -> None:
        """Prepare for a new search of the queue: forget what the last search has recorded."""
        self._wanted = ""
        self.should_search_soon = False

    def should_claim(self, item: QueueItem) -> bool:
        """Return whether to claim an item. False for items that were skipped recently, and for those whose hook raises
        an exception.
        """
        until = self._refused.get(item.path) if self._refused else None
        if until is not None:
            if until > self._clock.now():
                return False
            self._refused.pop(item.path, None)
        if item.attempts >= SUSPECT and is_suspect(item) and item.path != (self._held or self._wanted or item.path):
            return False
        try:
            return call_user(self._hooks.should_claim, item)
        except Exception:
            self._skip_broken(item)
            return False

    def build_claim_ops(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """Return additional checks and additional writes for the transaction that claims an item."""
        if item.attempts >= SUSPECT and is_suspect(item):
            self._wanted = item.path
        try:
            return call_user(self._hooks.build_claim_ops, item)
        except Exception:
            self._skip_broken(item)
            return [Absent(item.key)], []  # the item exists, so this check fails and skips it

    def on_claim_refused(self, item: QueueItem) -> None:
        """Call the hook for an item that was not claimed, because its additional checks failed."""
        try:
            self.should_search_soon |= call_user(self._hooks.on_claim_refused, item)
        except Exception:
            self._skip_broken(item)

    def on_claimed(self, item: QueueItem) -> None:
        """Record that an item was claimed. This claim is included in the item's ``attempts``."""
        if item.attempts > SUSPECT and not item.why:
            self._held = item.path

    def on_claim_ended(self, path: str) -> bool:
        """Record that the claim of an item has ended.

        Args:
            path: Path of the item.
        Returns:
            Whether skipped items can be claimed now.
        """
        was_held = bool(self._held) and self._held == path
        if was_held:
            self._held = ""
        return was_held

    def skip_for_now(self, item: QueueItem) -> None:
        """Do not claim an item for the next ``REFUSED_S`` seconds, so that other nodes can claim it."""
        now = self._clock.now()
        if len(self._refused) >= _MOST_REFUSED:
            self._refused = {path: until for path, until in self._refused.items() if until > now}
        self._refused[item.path] = now + REFUSED_S

    def _skip_broken(self, item: QueueItem) -> None:
        """Log the exception of a hook, and skip its item for a while, so that the node can claim other items."""
        _log.exception("node %s does not retry item %s for %g s", self._node_id, item.path, REFUSED_S)
        self.skip_for_now(item)


def is_suspect(item: QueueItem) -> bool:
    """Return whether an item may have killed the nodes that claimed it: it was claimed often, and never released."""
    return item.attempts >= SUSPECT and not item.why
