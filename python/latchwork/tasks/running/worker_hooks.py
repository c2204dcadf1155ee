"""What a system tells its feeder, and what a feeder decides: how a claim ends, and which items it takes.

Pure, but for the hooks of the system.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import ClassVar

from latchwork.clock import Clock
from latchwork.errors import LatchworkError
from latchwork.primitives import QueueClaim, QueueItem, Share
from latchwork.tasks.errors import NotSerializable
from latchwork.tasks.payloads.outcome import Outcome
from latchwork.tasks.retry import Retry
from latchwork.tasks.running.calls import StoredCall
from latchwork.types import Absent, Check, Committed, Op
from latchwork.user_code import call_user

_log = logging.getLogger(__name__)

#: So much of a reason is kept in an item.
_MOST_WHY = 200
#: Seconds for which an item that was refused here is left to others.
REFUSED_S = 10.0
#: An item that was taken so often, and came back by itself, may have killed its nodes. A node has one such at a time:
#: else those that were there with it would become dead letters together with it.
SUSPECT = 2
_MOST_REFUSED = 10_000


@dataclass(frozen=True, slots=True)
class Run:
    """What to run for a claim.

    Attributes:
        call: the call, or what makes it in the slot's thread: that may ask the store, and raise.
        task_id: what the task's context, and messages, call it.
        timeout_s: seconds after which the run is stopped; None for never.
        attempt: which try it is; None takes how often the item was taken.
    """

    call: StoredCall | Callable[[], StoredCall]
    task_id: str
    timeout_s: float | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """End the claim, and its item, in one transaction with these.

    Attributes:
        checks: must hold too.
        ops: written in the same transaction.
        landed: called once it was written, with what was, or None if that is not known. Quick, and raises nothing.
    """

    checks: tuple[Check, ...] = ()
    ops: tuple[Op, ...] = ()
    landed: Callable[[Committed | None], object] = bool


@dataclass(frozen=True, slots=True)
class Release:
    """Give the item back, after a pause in which the claim is held, but no slot.

    Attributes:
        why: kept in the item.
        after_s: seconds of the pause.
        count: whether it was a try.
        lane: to this lane; None to its own.
    """

    why: str = ""
    after_s: float = 0.0
    count: bool = True
    lane: str | None = None


@dataclass(frozen=True, slots=True)
class Bury:
    """Put the item among the dead letters, in one transaction with these writes."""

    why: str = ""
    ops: tuple[Op, ...] = ()


Ending = Done | Release | Bury


class WorkerHooks(ABC):
    """What a system does at each step of a task. Methods of one feeder are called by several threads.

    One that raises is logged; the claim is given back after a pause, as a try.
    """

    #: Whether a task may return something that is to be done before its value comes.
    takes_instead: ClassVar[bool] = False

    @abstractmethod
    def lanes(self) -> Sequence[str]:
        """Where to look now, one after the other. Called before each look; asks no store."""

    def waits(self) -> Sequence[str]:
        """The lanes whose news wake the feeder: what ``lanes`` has at the start, unless this says otherwise."""
        return self.lanes()

    def share(self, lane: str) -> Share:  # noqa: ARG002 - likewise
        """Which of the takers of a lane this node is, see ``WorkQueue.try_take``. Default: none knows the others."""
        return Share()

    def accept(self, item: QueueItem) -> bool:  # noqa: ARG002 - of those that say so
        """Whether an item is one for this node. Asks no store. Default: each is."""
        return True

    def extra(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:  # noqa: ARG002 - likewise
        """Checks and writes of the transaction that takes it. Default: none."""
        return (), ()

    def extra_dead(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:  # noqa: ARG002 - likewise
        """The same with the dead letter of one that was taken too often, whose last node died. Default: none."""
        return (), ()

    def refused(self, item: QueueItem) -> bool:  # noqa: ARG002 - likewise
        """Its extra checks did not hold: it stays where it is. Return whether to look again soon, without any news.

        A mirror merges states: it may never report a key that came between two of them, so nothing reports its end.
        Default: no.
        """
        return False

    def taken(self, claims: Sequence[QueueClaim]) -> None:  # noqa: B027 - likewise
        """These were taken together: called once before they are begun, in the thread that looks. It may ask the store.

        What it raises is logged, and changes nothing.
        """

    @abstractmethod
    def begin(self, claim: QueueClaim) -> Run | Ending:
        """What to run for a claim; or its end, without a run. Asks no store: ``Run.call`` may."""

    @abstractmethod
    def finish(self, claim: QueueClaim, outcome: Outcome) -> Ending | Future[Ending]:
        """How the claim of a run ends. It may ask the store: called in the slot's thread.

        A future says it later, in a thread of the system's that decides on many at once: the slot goes on meanwhile.
        Called again, a moment later, when the transaction was refused because of its own checks.
        """

    def at_end(self, claim: QueueClaim) -> Sequence[Op]:  # noqa: ARG002 - of those that say so
        """Writes that go with the end of a claim, whichever end it is. Asks no store. Default: none."""
        return ()

    def why(self, claim: QueueClaim, why: str) -> str:  # noqa: ARG002 - likewise
        """What is kept in an item that is given back, for a reason of the system's or the feeder's. Asks no store."""
        return why

    def at_last(self, claim: QueueClaim, why: str) -> Sequence[Op]:  # noqa: ARG002 - likewise
        """Writes that go with the dead letter of an item that was given back once too often. It may ask the store."""
        return ()

    def claim_over(self, claim: QueueClaim) -> bool:  # noqa: ARG002 - likewise
        """A claim is over; whether to look for items that were left alone while it was there. Asks no store. Quick."""
        return False

    def lost(self, claim: QueueClaim) -> None:  # noqa: B027 - likewise
        """The claim was lost: another may run the task; its outcome here is dropped."""


def after_failure(retry: Retry, attempt: int, outcome: Outcome, chance: float | None = None) -> float | None:
    """Seconds to pause before the next try after an outcome; None when there is none. Pure.

    Args:
        retry: how often the task is tried.
        attempt: which try this was, from 1.
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
    """Tell a system what was taken, if anything was; what it raises keeps nothing from being begun."""
    try:
        if claims:
            call_user(hooks.taken, claims)
    except Exception as error:
        text = "node %s did not prepare %d items: %s"
        _log.warning(text, node_id, len(claims), error, exc_info=not isinstance(error, LatchworkError))


def tell_lost(hooks: WorkerHooks, claim: QueueClaim, node_id: str) -> None:
    """Tell a system that a claim will not be ended by it here."""
    try:
        call_user(hooks.lost, claim)
    except Exception:
        _log.exception("node %s: what was to be done about item %s failed", node_id, claim.item.path)


def decided(outcome: Outcome, cut_short: str) -> Release | None:
    """What a feeder decides by itself: a task that did not run here, or not to its end for a reason of the node's.

    None leaves it to the system.

    Args:
        outcome: how the run ended.
        cut_short: why the node told it to stop; empty when it did not.
    """
    failure = outcome.failure
    if failure is None:
        return None
    if failure.is_refusal:
        return Release(why=failure.summary[:_MOST_WHY], count=False)
    return Release(why=cut_short, count=False) if cut_short else None


def allowed(outcome: Outcome, *, instead: bool) -> Outcome:
    """An outcome, where a system takes such; else what is wrong with it. Pure."""
    if not outcome.instead or instead:
        return outcome
    why = "the task returned what is to be done before its value comes, and only tasks of plans may"
    return Outcome.failed(NotSerializable(why), is_final=True)


class ClaimFilter:
    """The hooks of a system that say what to take, asked so that none of them can stop a node. Safe to share.

    Args:
        hooks: of the system.
        clock: the node's.
        node_id: the node, for messages.
    """

    def __init__(self, hooks: WorkerHooks, clock: Clock, node_id: str) -> None:
        self._hooks = hooks
        self._clock = clock
        self._node_id = node_id
        self._refused: dict[str, float] = {}
        self._held = ""
        self._wanted = ""
        #: Whether to look again soon: an item was refused in this look, and nothing may report when it can be taken.
        self.looks_again = False

    def begin(self) -> None:
        """A look begins."""
        self._wanted = ""
        self.looks_again = False

    def accept(self, item: QueueItem) -> bool:
        """Whether to take an item."""
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
        """Checks and writes of the transaction that takes it."""
        if item.attempts >= SUSPECT and is_suspect(item):
            self._wanted = item.path
        try:
            return call_user(self._hooks.extra, item)
        except Exception:
            self._leave_broken(item)
            return [Absent(item.key)], []  # it is there: so it is left out

    def told_refused(self, item: QueueItem) -> None:
        """Its extra checks did not hold."""
        try:
            self.looks_again |= call_user(self._hooks.refused, item)
        except Exception:
            self._leave_broken(item)

    def taken(self, item: QueueItem) -> None:
        """It was taken; so it says one attempt more."""
        if item.attempts > SUSPECT and not item.why:
            self._held = item.path

    def over(self, path: str) -> bool:
        """We do not have this item any more; whether others may be taken now that were left because of it."""
        was_held = bool(self._held) and self._held == path
        if was_held:
            self._held = ""
        return was_held

    def leave_to_others(self, item: QueueItem) -> None:
        """Do not take it for a while."""
        now = self._clock.now()
        if len(self._refused) >= _MOST_REFUSED:
            self._refused = {path: until for path, until in self._refused.items() if until > now}
        self._refused[item.path] = now + REFUSED_S

    def _leave_broken(self, item: QueueItem) -> None:
        """A hook raised: one item must not keep a node from all others."""
        _log.exception("node %s leaves item %s alone for %g s", self._node_id, item.path, REFUSED_S)
        self.leave_to_others(item)


def is_suspect(item: QueueItem) -> bool:
    """Whether the nodes that had an item may have died of it."""
    return item.attempts >= SUSPECT and not item.why
