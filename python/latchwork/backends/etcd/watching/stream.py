"""Watches, the ranges that they consist of, and the stream of requests of one connection."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from latchwork.backends.base import Sink
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.layout import KeyRange
from latchwork.clock import Clock

_PROGRESS_EVERY_S = 0.9
_ANSWER_WITHIN_S = 5.0
_PROGRESS_REQUEST = pb.WatchRequest(progress_request=pb.WatchProgressRequest())
_END = object()


class WatchRange:
    """One range of a watch, and the revision it goes on from.

    Attributes:
        ticket: number of its newest creation on the stream; 0 when it is not on one.
        watch_id: what the server calls it; None until it has said so.
        behind: revisions that the server had to catch up with when it created this watch.
        resumes: it goes on after a disconnect, rather than after a snapshot just read.
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
    """One running watch. Safe to share between threads.

    ``lock`` is held around the sink, so that ``close`` returns only when no event is being delivered. ``drop`` is told
    which watch was closed: only the owner of the stream can tell the server.
    """

    def __init__(
        self,
        drop: Callable[[EtcdWatch], None],
        spans: Sequence[KeyRange],
        sink: Sink,
        *,
        what: str,
        leaf: bool,
        beats: bool,
    ) -> None:
        #: What it does, in messages; empty for a watch of our own, whose rights nobody looks at.
        self.what = what
        self.lock = threading.RLock()
        self.sink = sink
        self.leaf = leaf
        #: Whether it wants to be told that its state is the newest.
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
        """Stop; nothing is delivered afterwards, except when called from inside the sink."""
        with self.lock:
            self.closed = True
        self._drop(self)


class Stream:
    """The stream from one connect to the next disconnect.

    Attributes:
        parts: those that the server watches, by its ids.
        creating: creations not answered yet; the server answers them in the order of asking.
        call: the server's side, once it is open.
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
        """Have the server watch a part."""
        part.ticket = ticket
        self.creating.append((part, ticket))
        start, end = part.span
        request = pb.WatchCreateRequest(key=start, range_end=end, start_revision=part.resume_at)
        self._requests.put(pb.WatchRequest(create_request=request))

    def cancel(self, watch_id: int) -> None:
        """Ask the server to end a watch."""
        self._requests.put(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=watch_id)))

    def end(self) -> None:
        """End it, from any thread."""
        self._requests.put(_END)
        if self.call is not None:
            self.call.cancel()

    def outgoing(self, closing: threading.Event) -> Iterator[Any]:
        """Requests as they come, and progress requests in between. Runs on gRPC's sending thread."""
        next_at = self._clock.now() + _PROGRESS_EVERY_S
        while True:
            try:
                request = self._requests.get(timeout=max(0.0, next_at - self._clock.now()))
            except queue.Empty:
                request = None if closing.is_set() else self._progress()
                next_at = self._clock.now() + _PROGRESS_EVERY_S
                if request is None:
                    continue
            if request is _END:
                return
            yield request

    def progressed(self) -> float | None:
        """A progress request was answered: since when that proves the state to be current, if it does.

        When the request before it was sent: between two answers the server's sending loop has been idle.
        """
        asked_at, proven_at = self._asked_at, self._answered_ask
        self._answered_ask, self._asked_at = asked_at or proven_at, None
        return proven_at

    def _progress(self) -> Any:
        """A progress request, unless the one before is still open; None when there is nothing to ask."""
        now = self._clock.now()
        if not self.parts or (self._asked_at is not None and now < self._asked_at + _ANSWER_WITHIN_S):
            return None
        self._asked_at = now
        return _PROGRESS_REQUEST
