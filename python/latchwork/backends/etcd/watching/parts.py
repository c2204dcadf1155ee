"""A watch and the ranges it is made of: their state. ``watches`` decides what becomes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from latchwork.backends.base import Sink
from latchwork.backends.etcd.layout import KeyRange


class Part:
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
        self.parts = [Part(self, span) for span in spans]
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
