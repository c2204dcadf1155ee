"""The hooks by which a system controls its worker loop, and decisions of the loop.

The decisions are which items to take, and how a claim ends. Pure, except for the hooks of the system.
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
from latchwork.primitives import QueueClaim, QueueItem, Share
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
    """The call to run for a claim.

    Attributes:
        call: the call, or a function that makes it in the slot's thread. The function may ask the store, and raise.
        task_id: the name of the task in its context and in messages.
        timeout_s: seconds after which the run is stopped; None for never.
        attempt: number of this attempt; None takes the number of times that the item was taken.
    """

    call: StoredCall | Callable[[], StoredCall]
    task_id: str
    timeout_s: float | None = None
    attempt: int | None = None


class Done(Struct, frozen=True):
    """End the claim and delete its item, in one transaction with these checks and writes.

    Attributes:
        checks: additional checks.
        ops: additional writes.
        landed: called after the commit, with its result, or None if that is not known. Must be quick, and not raise.
    """

    checks: tuple[Check, ...] = ()
    ops: tuple[Op, ...] = ()
    landed: Callable[[Committed | None], object] = bool


class Release(Struct, frozen=True):
    """Release the item, after a pause in which the claim is held, but no slot.

    Attributes:
        why: stored in the item.
        after_s: length of the pause in seconds.
        count: whether this counts as an attempt.
        lane: partition to move the item to; None keeps its partition.
    """

    why: str = ""
    after_s: float = 0.0
    count: bool = True
    lane: str | None = None


class Bury(Struct, frozen=True):
    """Dead-letter the item, in one transaction with these writes."""

    why: str = ""
    ops: tuple[Op, ...] = ()


Ending = Done | Release | Bury


class WorkerHooks(ABC):
    """The hooks of a system for each step of a task. One worker loop calls them from several threads.

    If a hook raises, the error is logged, and the claim is released after a pause; this counts as an attempt.
    """

    #: Whether a task may return an ``Instead``: work to be done before its value exists.
    takes_instead: ClassVar[bool] = False

    @abstractmethod
    def lanes(self) -> Sequence[str]:
        """Return the partitions to look in now, in order. Called before each look; must not ask the store."""

    def waits(self) -> Sequence[str]:
        """Return the partitions whose changes wake the worker loop. Called at the start. Default: ``lanes()``."""
        return self.lanes()

    def share(self, lane: str) -> Share:  # noqa: ARG002 - for overrides
        """Return this node's share among the takers of a partition, see ``WorkQueue.try_take``. Default: no sharing."""
        return Share()

    def accept(self, item: QueueItem) -> bool:  # noqa: ARG002 - for overrides
        """Return whether this node takes an item. Must not ask the store. Default: yes."""
        return True

    def extra(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:  # noqa: ARG002 - for overrides
        """Return additional checks and writes of the transaction that takes an item. Default: none."""
        return (), ()

    def extra_dead(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:  # noqa: ARG002 - for overrides
        """Return additional checks and writes of the transaction that dead-letters an item taken too often. Default:
        none.
        """
        return (), ()

    def refused(self, item: QueueItem) -> bool:  # noqa: ARG002 - for overrides
        """Handle an item whose extra checks failed, so that it was not taken. Default: does nothing.

        A mirror merges states: it may never report a key that existed only between two of them, nor its deletion.

        Returns:
            Whether to look soon, without a notification.
        """
        return False

    def taken(self, claims: Sequence[QueueClaim]) -> None:  # noqa: B027 - for overrides
        """Prepare claims that were taken together. Called once before they begin, in the thread that looks.

        May ask the store. An exception is logged and ignored.
        """

    @abstractmethod
    def begin(self, claim: QueueClaim) -> Run | Ending:
        """Return the call to run for a claim, or its end without a run. Must not ask the store; ``Run.call`` may."""

    @abstractmethod
    def finish(self, claim: QueueClaim, outcome: Outcome) -> Ending | Future[Ending]:
        """Return how the claim of a run ends. May ask the store: called in the slot's thread.

        Return a future to decide later, in a thread of the system that decides on many claims at once. The slot is free
        meanwhile. Called again after a short pause if the transaction was refused because of its checks.
        """

    def at_end(self, claim: QueueClaim) -> Sequence[Op]:  # noqa: ARG002 - for overrides
        """Return writes to add to the end of a claim, whichever end it is. Must not ask the store. Default: none."""
        return ()

    def why(self, claim: QueueClaim, why: str) -> str:  # noqa: ARG002 - for overrides
        """Return the text to store in a released item, given the reason of the release. Must not ask the store."""
        return why

    def at_last(self, claim: QueueClaim, why: str) -> Sequence[Op]:  # noqa: ARG002 - for overrides
        """Return writes to add when an item is dead-lettered after its last attempt was released. May ask the store."""
        return ()

    def claim_over(self, claim: QueueClaim) -> bool:  # noqa: ARG002 - for overrides
        """Handle the end of a claim. Quick; must not ask the store.

        Returns:
            Whether to look for items that were skipped because of this claim.
        """
        return False

    def lost(self, claim: QueueClaim) -> None:  # noqa: B027 - for overrides
        """Handle the loss of a claim: another node may run the task, and the outcome here is dropped."""


def after_failure(retry: Retry, attempt: int, outcome: Outcome, chance: float | None = None) -> float | None:
    """Return the seconds to pause before the next attempt; None if there is none. Pure.

    Args:
        retry: the retry policy of the task.
        attempt: number of the attempt that ended, from 1.
        outcome: how it ended.
        chance: as for ``Retry.pause_s``.
    """
    failure = outcome.failure
    if failure is None or failure.is_final:
        return None
    kind = failure.loaded_class
    kinds = tuple(retry.on)
    is_wanted = kind is None or issubclass(kind, kinds)
    return retry.pause_s(attempt, chance) if attempt < retry.attempts and is_wanted else None


def tell_taken(hooks: WorkerHooks, claims: Sequence[QueueClaim], node_id: str) -> None:
    """Call the ``taken`` hook, if there are claims. Errors are logged, so that the claims begin in any case."""
    try:
        if claims:
            call_user(hooks.taken, claims)
    except Exception as error:
        text = "node %s did not prepare %d items: %s"
        _log.warning(text, node_id, len(claims), error, exc_info=not isinstance(error, LatchworkError))


def tell_lost(hooks: WorkerHooks, claim: QueueClaim, node_id: str) -> None:
    """Call the ``lost`` hook for a claim that this node will not end through the system."""
    try:
        call_user(hooks.lost, claim)
    except Exception:
        _log.exception("node %s: what was to be done about item %s failed", node_id, claim.item.path)


def decided(outcome: Outcome, cut_short: str) -> Release | None:
    """Return the decision of the loop itself: release a task that refused to run here, or that the node stopped.

    None leaves the decision to the system.

    Args:
        outcome: how the run ended.
        cut_short: why the node stopped it; empty if it did not.
    """
    failure = outcome.failure
    if failure is None:
        return None
    if failure.is_refusal:
        return Release(why=failure.summary[:_MOST_WHY], count=False)
    return Release(why=cut_short, count=False) if cut_short else None


def allowed(outcome: Outcome, *, instead: bool) -> Outcome:
    """Return the outcome, or a failure if it is an ``Instead`` that the system does not support. Pure."""
    if not outcome.instead or instead:
        return outcome
    why = "the task returned what is to be done before its value comes, and only tasks of plans may"
    return Outcome.failed(NotSerializable(why), is_final=True)


class ClaimFilter:
    """Asks the hooks of a system which items to take, so that a failing hook cannot stop the node. Safe to share.

    Args:
        hooks: the hooks of the system.
        clock: the node's clock.
        node_id: the node, for messages.
    """

    def __init__(self, hooks: WorkerHooks, clock: Clock, node_id: str) -> None:
        self._hooks = hooks
        self._clock = clock
        self._node_id = node_id
        self._refused: dict[str, float] = {}
        self._held = ""
        self._wanted = ""
        #: Whether to look soon: an item was refused in this look, and no notification may come when it can be taken.
        self.looks_again = False

    def begin(self) -> None:
        """Begin a look."""
        self._wanted = ""
        self.looks_again = False

    def accept(self, item: QueueItem) -> bool:
        """Return whether to take an item."""
        until = self._refused.get(item.path) if self._refused else None
        if until is not None:
            if until > self._clock.now():
                return False
            self._refused.pop(item.path, None)
        if item.attempts >= SUSPECT and is_suspect(item) and item.path != (self._held or self._wanted or item.path):
            return False
        try:
            return call_user(self._hooks.accept, item)
        except Exception:
            self._leave_broken(item)
            return False

    def extra(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """Return additional checks and writes of the transaction that takes an item."""
        if item.attempts >= SUSPECT and is_suspect(item):
            self._wanted = item.path
        try:
            return call_user(self._hooks.extra, item)
        except Exception:
            self._leave_broken(item)
            return [Absent(item.key)], []  # the item exists, so this check fails and skips it

    def told_refused(self, item: QueueItem) -> None:
        """Handle an item whose extra checks failed."""
        try:
            self.looks_again |= call_user(self._hooks.refused, item)
        except Exception:
            self._leave_broken(item)

    def taken(self, item: QueueItem) -> None:
        """Note that an item was taken. Its ``attempts`` includes this one."""
        if item.attempts > SUSPECT and not item.why:
            self._held = item.path

    def over(self, path: str) -> bool:
        """Note that this node no longer has an item. Return whether items skipped because of it can be taken now."""
        was_held = bool(self._held) and self._held == path
        if was_held:
            self._held = ""
        return was_held

    def leave_to_others(self, item: QueueItem) -> None:
        """Do not take an item for ``REFUSED_S`` seconds."""
        now = self._clock.now()
        if len(self._refused) >= _MOST_REFUSED:
            self._refused = {path: until for path, until in self._refused.items() if until > now}
        self._refused[item.path] = now + REFUSED_S

    def _leave_broken(self, item: QueueItem) -> None:
        """Log the exception of a hook, and skip its item, so that it does not keep the node from all others."""
        _log.exception("node %s leaves item %s alone for %g s", self._node_id, item.path, REFUSED_S)
        self.leave_to_others(item)


def is_suspect(item: QueueItem) -> bool:
    """Return whether the nodes that had an item may have died because of it."""
    return item.attempts >= SUSPECT and not item.why
