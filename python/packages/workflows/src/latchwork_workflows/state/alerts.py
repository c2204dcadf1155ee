"""Decides which timeline events cause alerts, and how a delivery is retried. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from latchwork_workflows.state.records import AlertRule, TimelineEvent

#: A delivery fails after this many refusals.
MAX_TRIES = 8
#: Sending stops after this many attempts whose result is unknown.
MAX_DOUBTS = 2
#: Seconds before the second try, doubled with each further try, and the maximum.
FIRST_WAIT_S, MAX_WAIT_S = 15.0, 3600.0
_ENDS = {
    "none": frozenset[str](),
    "success": frozenset({"success"}),
    "failure": frozenset({"failure"}),
    "all": frozenset({"success", "failure", "stopped"}),
}


def select_events_to_alert(
    rule: AlertRule | None, timeline_events: Iterable[TimelineEvent], *, dry: bool = False
) -> tuple[TimelineEvent, ...]:
    """Return the events of a run that must cause an alert, in the given order.

    Args:
        rule: Selects kinds of events. None: no alerts.
        timeline_events: Events of the run and its tasks, such as a failure or a retry.
        dry: Whether the run is a dry run, which causes no alerts.
    """
    if rule is None or dry:
        return ()
    return tuple(each for each in timeline_events if _is_reported(rule, each))


def _is_reported(rule: AlertRule, timeline_event: TimelineEvent) -> bool:
    if timeline_event.kind == "timeout":
        return rule.timeouts
    if timeline_event.kind == "failover":
        return rule.failover
    return (
        not timeline_event.task and timeline_event.kind in _ENDS[rule.on]
    )  # the alert at the end of the run names the failed tasks


class DeliveryState(StrEnum):
    """State of a delivery."""

    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"
    UNSURE = "unsure"


class SendResult(StrEnum):
    """Result of one attempt to send."""

    SENT = "sent"  # accepted
    REFUSED = "refused"  # not accepted, may succeed later
    REJECTED = "rejected"  # not accepted, a retry cannot succeed
    DOUBT = "doubt"  # unknown: the connection broke, or the sender died


@dataclass(frozen=True, slots=True)
class DeliveryStatus:
    """Delivery of one alert to one channel.

    Attributes:
        state: Current state.
        tries: Number of times that the channel refused the alert.
        unknown_results: Number of attempts whose result is unknown.
        next_at: Time of the next attempt, in seconds since the epoch. None: there is none.
        error: Why the alert was not accepted. Empty if it was accepted or never tried.
    """

    state: DeliveryState = DeliveryState.PENDING
    tries: int = 0
    unknown_results: int = 0
    next_at: float | None = None
    error: str = ""


def apply_send_result(delivery: DeliveryStatus, result: SendResult, error: str, now: float) -> DeliveryStatus:
    """Return the new status of a delivery after one attempt to send it.

    Args:
        delivery: The status before the attempt. Its state must be SENDING.
        result: Result of the attempt.
        error: Error message of the attempt. Empty if it succeeded.
        now: Seconds since the epoch.
    """
    if result is SendResult.SENT:
        return replace(delivery, state=DeliveryState.SENT, next_at=None, error=error)
    if result is SendResult.DOUBT:
        doubts = delivery.unknown_results + 1
        made = replace(delivery, unknown_results=doubts, error=error)
        if doubts >= MAX_DOUBTS:
            return replace(made, state=DeliveryState.UNSURE, next_at=None)
        return replace(made, state=DeliveryState.PENDING, next_at=now + FIRST_WAIT_S)
    tries = delivery.tries + 1
    made = replace(delivery, tries=tries, error=error)
    if result is SendResult.REJECTED or tries >= MAX_TRIES:
        return replace(made, state=DeliveryState.FAILED, next_at=None)
    return replace(made, state=DeliveryState.PENDING, next_at=now + get_retry_delay_s(tries))


def get_retry_delay_s(tries: int) -> float:
    """Return the number of seconds to wait before a refused alert is sent again.

    Args:
        tries: Number of refusals so far.
    """
    return min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** max(0, tries - 1))
