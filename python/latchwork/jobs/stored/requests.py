"""Runs that somebody asked for by hand, and what became of them.

Keys:   requests/<id>                             JSON; what is asked for
        asked/<id>/progress/<job>/<cell>[/items]  which items were begun and have ended, as for a fire time; see cron/
        asked/<id>/ended/<uuid>                   JSON; how one run of it ended

Only ``trim_requests`` touches the network.
"""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from latchwork._base.decoding import Decoder, Whole, encode
from latchwork.jobs.stored.packed import commit_all
from latchwork.records import MOST_MOMENT_S
from latchwork.store import Store
from latchwork.types import Check, Delete

REQUESTS = "requests"
ASKED = "asked"
#: A request names at most so many items; without any it is for all.
MOST_ITEMS = 100
#: The end of a run names at most so many of its items.
NAMED = 20
#: What became of a request is kept for so long after its time is over.
_KEPT_S = 86_400.0
_Time = Annotated[float, Meta(ge=0.0, le=MOST_MOMENT_S)]


class RunRequest(Struct, frozen=True):
    """A run of a job that somebody asked for: now and once, by whoever has the items' locks.

    Attributes:
        id: unique for ever.
        job: the job's id.
        items: the items to run; None for all.
        at_s: when it was asked for, in seconds since the epoch.
        until_s: what has not begun then is not begun any more.
        by: the person who asked.
    """

    id: str
    job: str
    items: tuple[str, ...] | None
    at_s: _Time
    until_s: _Time
    by: str = ""

    @property
    def key(self) -> str:
        """Its key."""
        return f"{REQUESTS}/{self.id}"

    @property
    def progress(self) -> str:
        """The prefix of its progress."""
        return f"{ASKED}/{self.id}/progress"

    @property
    def ended(self) -> str:
        """The prefix of how its runs ended."""
        return f"{ASKED}/{self.id}/ended"

    def encode(self) -> bytes:
        """The value of its key."""
        return encode(self)


class RunEnd(Struct, frozen=True):
    """How one run of a request ended.

    Attributes:
        node: where it ran.
        items: how many items it had.
        named: its first items, 20 at most.
        error: what it raised; None when it returned.
    """

    node: str
    items: Whole
    named: tuple[str, ...]
    error: str | None = None

    def encode(self) -> bytes:
        """The value of its key."""
        return encode(self)


_REQUEST: Decoder[RunRequest] = Decoder(RunRequest, "a request of a run")
_END: Decoder[RunEnd] = Decoder(RunEnd, "the end of a run")


def decode_request(key: str, value: bytes) -> RunRequest | None:
    """Return the request of this key; None for what is none of ours."""
    found = _REQUEST.find(value)
    if found is None:
        return None
    items = None if found.items is None else tuple(sorted(found.items[:MOST_ITEMS]))
    return replace(found, id=key.rpartition("/")[2], items=items)


def decode_end(value: bytes) -> RunEnd | None:
    """Return how a run ended; None for what is none of ours."""
    found = _END.find(value)
    return None if found is None else replace(found, named=found.named[:NAMED])


def trim_requests(store: Store, checks: list[Check]) -> int:
    """Delete requests whose time has been over for a day, and what became of them; the leader does it now and then.

    Args:
        store: the cluster's store.
        checks: what must hold for each transaction, the leadership's fence.
    """
    listed = {entry.key: decode_request(entry.key, entry.value) for entry in store.list(REQUESTS)}
    old = [key for key, found in listed.items() if found is None or found.until_s + _KEPT_S < time.time()]
    kept = {key.rpartition("/")[2] for key in listed.keys() - set(old)}
    lost = [name for name in store.children(ASKED) if name not in kept]
    for name in lost:
        entries = store.list(f"{ASKED}/{name}", recursive=True)
        commit_all(store, checks, [Delete(entry.key) for entry in entries])
    commit_all(store, checks, [Delete(key) for key in old])
    return len(old)
