"""Who is told of what, and how a delivery goes on. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from latchwork_workflows.state.records import AlertRule, Fact

#: Refusals after which a delivery is given up.
MOST_TRIES = 8
#: Sendings whose end nobody knows, after which nothing is sent any more.
MOST_DOUBTS = 2
#: Seconds before the second try, doubled with each; and at most.
FIRST_WAIT_S, MOST_WAIT_S = 15.0, 3600.0
_ENDS = {
    "none": frozenset[str](),
    "success": frozenset({"success"}),
    "failure": frozenset({"failure"}),
    "all": frozenset({"success", "failure", "stopped"}),
}


def told(rule: AlertRule | None, facts: Iterable[Fact], *, dry: bool = False) -> tuple[Fact, ...]:
    """Those of these facts that people are told of, in their order. A run that only pretends tells nothing."""
    if rule is None or dry:
        return ()
    return tuple(each for each in facts if _is_told(rule, each))


def _is_told(rule: AlertRule, fact: Fact) -> bool:
    if fact.kind == "timeout":
        return rule.timeouts
    if fact.kind == "failover":
        return rule.failover
    return not fact.task and fact.kind in _ENDS[rule.on]  # the end of the run names the tasks that failed


class DeliveryState(StrEnum):
    """Where a delivery is."""

    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"
    UNSURE = "unsure"


class Answer(StrEnum):
    """How a sending ended."""

    SENT = "sent"  # it was accepted
    REFUSED = "refused"  # it was not, and may be later
    REJECTED = "rejected"  # it was not, and never will
    DOUBT = "doubt"  # nobody knows: the connection broke, or the sender died


@dataclass(frozen=True, slots=True)
class Delivery:
    """One alert by one channel.

    Attributes:
        state: where it is.
        tries: how often it was refused.
        doubts: of how many sendings nobody knows how they ended.
        next_at: when it is looked at again; None: never.
        error: why it was not accepted; empty if it was, or was never tried.
    """

    state: DeliveryState = DeliveryState.PENDING
    tries: int = 0
    doubts: int = 0
    next_at: float | None = None
    error: str = ""


def answered(delivery: Delivery, answer: Answer, error: str, now: float) -> Delivery:
    """What becomes of a delivery that was SENDING."""
    if answer is Answer.SENT:
        return replace(delivery, state=DeliveryState.SENT, next_at=None, error=error)
    if answer is Answer.DOUBT:
        doubts = delivery.doubts + 1
        made = replace(delivery, doubts=doubts, error=error)
        if doubts >= MOST_DOUBTS:
            return replace(made, state=DeliveryState.UNSURE, next_at=None)
        return replace(made, state=DeliveryState.PENDING, next_at=now + FIRST_WAIT_S)
    tries = delivery.tries + 1
    made = replace(delivery, tries=tries, error=error)
    if answer is Answer.REJECTED or tries >= MOST_TRIES:
        return replace(made, state=DeliveryState.FAILED, next_at=None)
    return replace(made, state=DeliveryState.PENDING, next_at=now + wait_s(tries))


def wait_s(tries: int) -> float:
    """Seconds after so many refusals until the next try."""
    return min(MOST_WAIT_S, FIRST_WAIT_S * 2.0 ** max(0, tries - 1))
