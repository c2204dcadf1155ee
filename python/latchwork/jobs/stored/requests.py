"""Runs that somebody asked for by hand, and what became of them.

Keys:   requests/<id>                             JSON; what is asked for
        asked/<id>/progress/<job>/<cell>[/items]  which items were begun and have ended, as for a fire time; see cron/
        asked/<id>/ended/<uuid>                   JSON; how one run of it ended

Only ``trim_requests`` touches the network.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from latchwork.checks import is_number
from latchwork.jobs.stored.packed import commit_all
from latchwork.records import Record
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


@dataclass(frozen=True, slots=True)
class RunRequest:
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
    at_s: float
    until_s: float
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
        body = asdict(self)
        del body["id"]
        return json.dumps(body, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How one run of a request ended.

    Attributes:
        node: where it ran.
        items: how many items it had.
        named: its first items, 20 at most.
        error: what it raised; None when it returned.
    """

    node: str
    items: int
    named: tuple[str, ...]
    error: str | None = None

    def encode(self) -> bytes:
        """The value of its key."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


def decode_request(key: str, value: bytes) -> RunRequest | None:
    """Decode a request; None for what is none of ours."""
    body = Record.or_empty(value).body
    items, job, at_s, until_s = body.get("items"), body.get("job"), _moment(body.get("at_s")), body.get("until_s")
    if not isinstance(job, str) or at_s is None or (until_s := _moment(until_s)) is None:
        return None
    if items is not None and not (isinstance(items, list) and all(isinstance(item, str) for item in items)):
        return None
    listed = None if items is None else tuple(sorted(items[:MOST_ITEMS]))
    return RunRequest(key.rpartition("/")[2], job, listed, at_s, until_s, str(body.get("by", "")))


def decode_end(value: bytes) -> RunEnd | None:
    """Decode how a run ended; None for what is none of ours."""
    body = Record.or_empty(value).body
    items, named, error = body.get("items"), body.get("named"), body.get("error")
    if type(items) is not int or not isinstance(named, list) or not isinstance(error, (str, type(None))):
        return None
    return RunEnd(str(body.get("node", "?")), items, tuple(map(str, named[:NAMED])), error)


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


def _moment(value: object) -> float | None:
    good = not (type(value) is int and value > 2**60) and is_number(value, 0.0)
    return float(value) if good else None  # type: ignore[arg-type]
