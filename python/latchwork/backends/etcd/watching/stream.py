"""A watch, its ranges, and the stream of requests and answers for all watches of a connection."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from latchwork._base.event import Signal
from latchwork._core import EtcdCodec
from latchwork.backends.base import WatchCallback
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.layout import EtcdKeys, KeyRange
from latchwork.clock import Clock

_PROGRESS_EVERY_S = 0.9
_ANSWER_WITHIN_S = 5.0
_PROGRESS_REQUEST = pb.WatchRequest(progress_request=pb.WatchProgressRequest())
_END = object()


class WatchRange:
    """A range of raw keys in a watch, and the revision from which it continues.

    Attributes:
        ticket: The number of its last create request on the stream. 0 if it is not on a stream.
        watch_id: The ID that the server gave it. None until the server has sent it.
        behind: The number of revisions that it was behind when the server created it.
        resumes: Whether it continues after a disconnect. Otherwise it continues after a new snapshot.
    """

    __slots__ = ("behind", "resume_at", "resumes", "span", "ticket", "watch", "watch_id")

    def __init__(self, watch: EtcdWatch, span: KeyRange) -> None:
        self.watch = watch
        self.span = span
        self.resume_at = 0
        self.ticket = 0
        self.watch_id: int | None = None
        self.behind = 0
        self.resumes = False


class EtcdWatch:
    """A running watch. Thread-safe.

    ``lock`` is held while the callback runs, so ``close`` returns only after a delivery has ended. ``drop`` is called
    with a closed watch, because only the owner of the stream can inform the server.

    Attributes:
        keys, codec: Those of the store, which convert its keys.
    """

    def __init__(
        self,
        drop: Callable[[EtcdWatch], None],
        keys: EtcdKeys,
        codec: EtcdCodec,
        spans: Sequence[KeyRange],
        callback: WatchCallback,
        *,
        what: str,
        single_key: bool,
        heartbeats: bool,
    ) -> None:
        #: Description for messages. Empty for an internal watch, whose permissions are not checked.
        self.what = what
        self.keys = keys
        self.codec = codec
        self.lock = threading.RLock()
        self.callback = callback
        self.single_key = single_key
        #: Whether it is notified when its state is known to be current.
        self.heartbeats = heartbeats
        #: Of a watch of a single key: the responses with events that came before its snapshot. None after the snapshot.
        self.held: list[Any] | None = [] if single_key else None
        #: Of a watch of a single key: the revision of its snapshot. Others begin after it, each range at another one.
        self.read_at = 0
        self.parts = [WatchRange(self, span) for span in spans]
        self.closed = False
        self.denials = 0
        #: Counts the snapshots asked for; the answer to an older question is of no use.
        self.epoch = 0
        #: Local time since which every part is known to the server; None while one is not.
        self.live_at: float | None = None
        self._drop = drop

    def close(self) -> None:
        """Stop the watch. No event is delivered afterwards, except when this is called from the watch's own
        callback.
        """
        with self.lock:
            self.closed = True
        self._drop(self)


class Stream:
    """The stream of watch requests and answers from a connect to the next disconnect.

    Attributes:
        parts: The ranges that the server watches, by its IDs.
        creating: The create requests that were not answered yet. The server answers them in order.
        call: The gRPC call, once the stream is open.
    """

    def __init__(self, clock: Clock) -> None:
        self.parts: dict[int, WatchRange] = {}
        self.creating: deque[tuple[WatchRange, int]] = deque()
        self.call: Any = None
        self._clock = clock
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked_at: float | None = None
        self._answered_ask: float | None = None

    def create(self, part: WatchRange, request_number: int) -> None:
        """Send a request to watch a range.

        Args:
            part: The range.
            request_number: The number of the request.
        """
        part.ticket = request_number
        self.creating.append((part, request_number))
        start, end = part.span
        request = pb.WatchCreateRequest(key=start, range_end=end, start_revision=part.resume_at)
        self._requests.put(pb.WatchRequest(create_request=request))

    def cancel(self, watch_id: int) -> None:
        """Send a request to stop watching a range."""
        self._requests.put(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=watch_id)))

    def end(self) -> None:
        """End the stream. May be called from any thread."""
        self._requests.put(_END)
        if self.call is not None:
            self.call.cancel()

    def yield_requests(self, closing: Signal) -> Iterator[Any]:
        """Yield the requests to send as they arrive, and regular progress requests.

        Runs in gRPC's sending thread.

        Args:
            closing: Set when the store is being closed.
        """
        next_at = self._clock.now() + _PROGRESS_EVERY_S
        while True:
            try:
                request = self._requests.get(timeout=max(0.0, next_at - self._clock.now()))
            except queue.Empty:
                request = None if closing.is_set() else self._progress_request()
                next_at = self._clock.now() + _PROGRESS_EVERY_S
                if request is None:
                    continue
            if request is _END:
                return
            yield request

    def on_progress_answer(self) -> float | None:
        """Handle the response to a progress request.

        Returns:
            The local clock time at which the state is now known to have been up to date, or None. It is the time of the
                previous progress request, because the server sends all earlier events between two responses.
        """
        asked_at, proven_at = self._asked_at, self._answered_ask
        self._answered_ask, self._asked_at = asked_at or proven_at, None
        return proven_at

    def _progress_request(self) -> Any:
        """Return a progress request. None while the previous one is unanswered, or if no watch needs it."""
        now = self._clock.now()
        if not self.parts or (self._asked_at is not None and now < self._asked_at + _ANSWER_WITHIN_S):
            return None
        self._asked_at = now
        return _PROGRESS_REQUEST
