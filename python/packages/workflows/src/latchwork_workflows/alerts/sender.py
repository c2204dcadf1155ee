"""The sender: sends due deliveries and records the results. One process at a time runs it.

SENDING is committed before a message is sent, and its result afterwards. Each active channel has a separate thread, so
a channel that hangs or refuses does not block others. Deliveries that a dead sender left in SENDING are in doubt, and
are sent once more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork.clock import Clock, Signal, SystemClock
from latchwork.errors import LatchworkError
from latchwork.spi import TroubleLog, call_user, mutex, reason
from latchwork_workflows.alerts import apprise_channel, mail, webhook
from latchwork_workflows.alerts.channels import resolve_secrets, validate_channel
from latchwork_workflows.alerts.delivery import NotSent
from latchwork_workflows.alerts.messages import AlertRecord, Message, attach_query_result, build_message, format_as_line
from latchwork_workflows.db import Database, alerts
from latchwork_workflows.db.alerts import ClaimedDelivery, SenderLease
from latchwork_workflows.errors import NotOwner
from latchwork_workflows.installation import load_installation
from latchwork_workflows.logs import LogStore, Mask
from latchwork_workflows.secrets import CHANNELS, Secrets
from latchwork_workflows.state.alerts import DeliveryState, SendResult

_log = logging.getLogger(__name__)

#: Seconds between two polls for due deliveries.
POLL_S = 2.0
#: Maximum number of channels that are used at a time.
MAX_CHANNELS = 16
#: Seconds for which a channel pauses after it has refused a message.
REST_S = 10.0
#: Seconds until the next try to write a result.
_AGAIN_S = 1.0
Send: TypeAlias = Callable[[Message, Any, float], str]
#: Send function by kind of channel.
SEND_FUNCTIONS: Mapping[str, Send] = {"smtp": mail.send, "webhook": webhook.send, "apprise": apprise_channel.send}


class AlertSender:
    """Sends due deliveries until stopped: ``AlertSender(database, secrets, token=fence.token).run()``.

    Args:
        database: Database with the alerts.
        secrets: Secrets of this machine.
        token: Token of the lock under which it sends. It grows with each sender.
        logs: Log store of the workers, with the rows to mail. None: mails with rows wait.
        remaining_s: Returns the seconds for which the lock is certain. Without it, nothing is sent.
        poll_s: Seconds between two polls.
        send_functions: Send function by kind of channel.
        now: Returns seconds since the epoch.
        on_poll: Called after each successful poll.
    """

    def __init__(
        self,
        database: Database,
        secrets: Secrets,
        *,
        token: int,
        logs: LogStore | None = None,
        remaining_s: Callable[[], float] = lambda: 3600.0,
        poll_s: float = POLL_S,
        send_functions: Mapping[str, Send] = SEND_FUNCTIONS,
        now: Callable[[], float] = time.time,
        on_poll: Callable[[], object] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._secrets = secrets
        self._sending = SenderLease(token)
        self._logs = logs
        self._remaining_s = remaining_s
        self._poll_s = poll_s
        self._ways = send_functions
        self._now = now
        self._on_poll = on_poll
        self._trouble = TroubleLog(_log)
        self._clock = clock or SystemClock()
        self._mutex = mutex()
        self._threads: dict[str, threading.Thread] = {}
        self._mine: set[int] = set()
        self._rests: dict[str, float] = {}
        self._news = Signal()
        self._stopping = Signal()
        self._installation = ""

    def stop(self) -> None:
        """Request to stop sending. ``run`` waits for the messages that are being sent. Thread-safe."""
        self._stopping.set()
        self._news.set()

    def run(self) -> None:
        """Send due deliveries until ``stop`` is called.

        Raises:
            NotOwner: Another process has become the sender.
            DatabaseUnavailable: The database cannot be reached.
        """
        self._installation = load_installation(self._database).id
        with self._database.write() as connection:
            self._sending.acquire(connection)
        try:
            while not self._stopping.is_set():
                self._news.clear()
                self._start_due()
                self._on_poll()
                if not self._stopping.is_set():
                    self._clock.wait(self._news, self._poll_s)
        finally:
            self._stopping.set()
            for each in self._active_threads():
                each.join()

    def _start_due(self) -> None:
        """Start a thread for each channel with due deliveries."""
        now = self._now()
        with self._mutex:
            busy, mine = set(self._threads), set(self._mine)
            self._rests = {name: until for name, until in self._rests.items() if until > now}
            without = busy | self._rests.keys()
        with self._database.read() as connection:
            strays = alerts.has_other_unfinished_sends(connection, mine)
            found = alerts.list_due_deliveries(connection, now, exclude=without)
        if strays and self._remaining_s() > 0.0:
            self._mark_in_doubt()
        by_channel: dict[str, list[int]] = {}
        for each in found:
            by_channel.setdefault(each.channel, []).append(each.id)
        for name, ids in list(by_channel.items())[: max(0, MAX_CHANNELS - len(busy))]:
            self._start_thread(name, ids)

    def _mark_in_doubt(self) -> None:
        """Mark the unfinished deliveries of another sender as in doubt, so that each is sent at most once more."""
        with self._database.write() as connection:
            count = self._sending.mark_in_doubt(connection, self._mine.__contains__, self._now())
        if count:
            _log.warning("%d alerts were being sent when their sender ended; each is sent at most once more", count)

    def _start_thread(self, channel: str, ids: list[int]) -> None:
        thread = threading.Thread(target=self._send_batch, args=(channel, ids), name=f"latchwork-alerts-{channel}")
        thread.daemon = True
        with self._mutex:
            self._threads[channel] = thread
        thread.start()

    def _active_threads(self) -> list[threading.Thread]:
        with self._mutex:
            return list(self._threads.values())

    # In the thread of a channel

    def _send_batch(self, channel: str, ids: list[int]) -> None:
        """Send deliveries of one channel, in order, until one fails. Runs in the thread of the channel.

        Args:
            channel: Name of the channel.
            ids: IDs of the deliveries.
        """
        try:
            for each in ids:
                if self._stopping.is_set() or self._remaining_s() <= 0.0 or not self._deliver(each):
                    return
        except NotOwner as error:
            _log.info("another master sends the alerts: %s", error)
            self.stop()
        except (LatchworkError, sa.exc.SQLAlchemyError, OSError) as error:
            self._trouble.record_failure(error, "alerts by channel %s are sent later", channel, item=channel)
            self._pause_channel(channel, self._now())
        finally:
            with self._mutex:
                del self._threads[channel]
            self._news.set()

    def _deliver(self, delivery_id: int) -> bool:
        """Send one delivery.

        Returns:
            False if its channel must pause because sending failed.
        """
        with self._mutex:  # before it is SENDING: a poll that finds it in SENDING checks whether it is ours
            self._mine.add(delivery_id)
        try:
            with self._database.write() as connection:
                taken = self._sending.claim(connection, delivery_id, self._now())
            if taken is None:
                return True
            answer, error = self._send(taken)
            answered_at = self._now()
            self._record_result(taken, answer, error, answered_at)
        finally:
            with self._mutex:
                self._mine.discard(delivery_id)
        if answer in {SendResult.REFUSED, SendResult.DOUBT}:
            self._pause_channel(taken.by, answered_at)
            return False
        return True

    def _pause_channel(self, channel: str, since: float) -> None:
        """Send nothing to a channel for ``REST_S`` seconds.

        Args:
            channel: The name of the channel.
            since: When the failed attempt began.
        """
        with self._mutex:
            self._rests[channel] = since + REST_S

    def _record_result(self, delivery: ClaimedDelivery, answer: SendResult, error: str, answered_at: float) -> None:
        """Store the result of a delivery. Retries until the result is stored or another sender owns the delivery.

        If the result were lost, the message would be sent again.

        Args:
            delivery: The delivery.
            answer: The result.
            error: The error message. Empty if the alert was accepted.
            answered_at: Seconds since the epoch.
        """
        while True:
            try:
                with self._database.write() as connection:
                    state = self._sending.record_result(connection, delivery.id, answer, error, answered_at)
            except (LatchworkError, sa.exc.SQLAlchemyError) as trouble:
                text = "the result of alert delivery %d is written later"
                self._trouble.record_failure(trouble, text, delivery.id, item=delivery.by)
                if self._clock.wait(self._stopping, _AGAIN_S):
                    return
                continue
            self._trouble.record_success("alerts by all channels are sent again", item=delivery.by)
            if state in {DeliveryState.FAILED, DeliveryState.UNSURE}:
                _log.error("alert delivery %d by channel %s is %s: %s", delivery.id, delivery.by, state, error)
            return

    def _send(self, delivery: ClaimedDelivery) -> tuple[SendResult, str]:
        """Send the message of a delivery.

        Returns:
            The result, and the error message or an empty text.
        """
        if delivery.channel is None:
            return SendResult.REFUSED, f"there is no channel {delivery.by!r}; an administrator can create it"
        if not delivery.channel.enabled:
            return SendResult.REJECTED, "the channel is disabled"
        used: list[str] = []
        try:
            options, used = self._options(delivery)
            message = self._message(delivery, getattr(options, "link", ""))
        except (LatchworkError, OSError) as error:  # a missing secret, an unavailable log store
            return SendResult.REFUSED, format_as_line(error)
        except Exception as error:
            _log.exception("the message of alert delivery %d cannot be built", delivery.id)
            return SendResult.REJECTED, f"its message cannot be built: {Mask(used).mask_text(reason(error))}"
        mask = Mask(used)
        try:
            return SendResult.SENT, format_as_line(
                mask.mask_text(call_user(self._ways[delivery.channel.kind], message, options, self._now()))
            )
        except NotSent as error:
            return error.answer, format_as_line(mask.mask_text(str(error)))
        except ValueError as error:
            return SendResult.REJECTED, format_as_line(mask.mask_text(str(error)))
        except Exception as error:
            _log.exception("alert delivery %d failed unexpectedly", delivery.id)
            return SendResult.DOUBT, format_as_line(mask.mask_text(reason(error)))

    def _options(self, delivery: ClaimedDelivery) -> tuple[Any, list[str]]:
        row = delivery.channel
        return resolve_secrets(validate_channel(row.name, row.kind, row.options), self._secret)

    def _secret(self, name: str) -> str:
        return self._secrets.get(name, CHANNELS)

    def _message(self, delivery: ClaimedDelivery, link: str) -> Message:
        row = delivery.alert
        record = AlertRecord(row.id, delivery.id, delivery.round, row.kind, row.at, row.run_id, row.task, row.details)
        return attach_query_result(build_message(record, self._installation, link), record, self._logs)
