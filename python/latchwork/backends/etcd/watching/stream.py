"""Watches, their ranges, and the request stream of a connection."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from latchwork._base.event import Signal
from latchwork._core import EtcdCodec
from latchwork.backends.base import Sink
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.layout import KeyRange, Keys
from latchwork.clock import Clock

_PROGRESS_EVERY_S = 0.9
_ANSWER_WITHIN_S = 5.0
_PROGRESS_REQUEST = pb.WatchRequest(progress_request=pb.WatchProgressRequest())
_END = object()


class WatchRange:
    """A range of a watch, and the revision from which it continues.

    Attributes:
        ticket: The number of its newest creation on the stream; 0 if it is on none.
        watch_id: The server's ID of it; None until the server has sent it.
        behind: The number of revisions that the server had to catch up with when it created this watch.
        resumes: Whether it continues after a disconnect instead of after a fresh snapshot.
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

    ``lock`` is held while the sink is called, so ``close`` returns only after a delivery has ended. ``drop`` is called
    with a closed watch, because only the owner of the stream can inform the server.

    Attributes:
        keys, codec: Those of the store, which convert its keys.
    """

    def __init__(
        self,
        drop: Callable[[EtcdWatch], None],
        keys: Keys,
        codec: EtcdCodec,
        spans: Sequence[KeyRange],
        sink: Sink,
        *,
        what: str,
        leaf: bool,
        beats: bool,
    ) -> None:
        #: What it does, in messages; empty for a watch of our own, whose rights nobody looks at.
        self.what = what
        self.keys = keys
        self.codec = codec
        self.lock = threading.RLock()
        self.sink = sink
        self.leaf = leaf
        #: Whether it is notified when its state is known to be current.
        self.beats = beats
        #: Of a leaf: the answers with events that came before its snapshot; None once that was told.
        self.held: list[Any] | None = [] if leaf else None
        #: Of a leaf: the revision of its snapshot. Others begin behind theirs, each part at one of its own.
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
        """Stop the watch. Nothing is delivered afterwards, except when called from inside the sink."""
        with self.lock:
            self.closed = True
        self._drop(self)


class Stream:
    """The stream from a connect to the next disconnect.

    Attributes:
        parts: The ranges that the server watches, by its IDs.
        creating: Creations that have not been answered. The server answers them in order.
        call: The server's side, once it is open.
    """

    def __init__(self, clock: Clock) -> None:
        self.parts: dict[int, WatchRange] = {}
        self.creating: deque[tuple[WatchRange, int]] = deque()
        self.call: Any = None
        self._clock = clock
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked_at: float | None = None
        self._answered_ask: float | None = None

    def create(self, part: WatchRange, ticket: int) -> None:
        """Ask the server to watch a range."""
        part.ticket = ticket
        self.creating.append((part, ticket))
        start, end = part.span
        request = pb.WatchCreateRequest(key=start, range_end=end, start_revision=part.resume_at)
        self._requests.put(pb.WatchRequest(create_request=request))

    def cancel(self, watch_id: int) -> None:
        """Ask the server to stop watching a range."""
        self._requests.put(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=watch_id)))

    def end(self) -> None:
        """End the stream. May be called from any thread."""
        self._requests.put(_END)
        if self.call is not None:
            self.call.cancel()

    def yield_requests(self, closing: Signal) -> Iterator[Any]:
        """Yield the requests to send as they arrive, and progress requests in between.

        Runs in gRPC's sending thread.
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
        """Handle the answer to a progress request.

        Returns:
            The local clock time as of which the answer proves the state current, or None. That is when the previous
                request was sent, because between two answers the server has sent all events.
        """
        asked_at, proven_at = self._asked_at, self._answered_ask
        self._answered_ask, self._asked_at = asked_at or proven_at, None
        return proven_at

    def _progress_request(self) -> Any:
        """Return a progress request, or None while the previous one is unanswered or nothing needs to be asked."""
        now = self._clock.now()
        if not self.parts or (self._asked_at is not None and now < self._asked_at + _ANSWER_WITHIN_S):
            return None
        self._asked_at = now
        return _PROGRESS_REQUEST
