"""What people did to a cluster by hand: runs that they asked for and what became of them, and a record of the rest.

Keys:   requests/<id>                             JSON; what is asked for
        manual/<id>/progress/<job>/<cell>[/items]  which items were begun and have ended, as for a fire time; see cron/
        manual/<id>/ended/<uuid>                   JSON; how one run of it ended

Only ``trim_requests`` touches the network.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from latchwork._base.decoding import MOST_MOMENT_S, Count, Decoder, Whole, encode
from latchwork.jobs.stored.keys import cluster_store
from latchwork.jobs.stored.packed import commit_all
from latchwork.store import Store
from latchwork.types import Check, Delete, Entry

REQUESTS = "requests"
MANUAL = "manual"
#: A request names at most so many items; without any it is for all.
MAX_REQUEST_ITEMS = 100
#: The end of a run names at most so many of its items.
MAX_NAMED = 20
#: What became of a request is kept for so long after its time is over.
_KEPT_S = 86_400.0
_Time = Annotated[float, Meta(ge=0.0, le=MOST_MOMENT_S)]
AUDIT = "audit"
MAX_AUDIT_RECORDS = 1000


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
        return f"{MANUAL}/{self.id}/progress"

    @property
    def ended(self) -> str:
        """The prefix of how its runs ended."""
        return f"{MANUAL}/{self.id}/ended"

    def encode(self) -> bytes:
        """The value of its key."""
        return encode(self)


class RunResult(Struct, frozen=True):
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
_END: Decoder[RunResult] = Decoder(RunResult, "the end of a run")


def decode_request(key: str, value: bytes) -> RunRequest | None:
    """Return the request of this key; None for what is none of ours."""
    found = _REQUEST.find(value)
    if found is None:
        return None
    items = None if found.items is None else tuple(sorted(found.items[:MAX_REQUEST_ITEMS]))
    return replace(found, id=key.rpartition("/")[2], items=items)


def decode_result(value: bytes) -> RunResult | None:
    """Return how a run ended; None for what is none of ours."""
    found = _END.find(value)
    return None if found is None else replace(found, named=found.named[:MAX_NAMED])


def trim_requests(store: Store, checks: list[Check]) -> int:
    """Delete requests whose time has been over for a day, and what became of them; the leader does it now and then.

    Args:
        store: the cluster's store.
        checks: what must hold for each transaction, the leadership's fence.
    """
    listed = {entry.key: decode_request(entry.key, entry.value) for entry in store.list(REQUESTS)}
    old = [key for key, found in listed.items() if found is None or found.until_s + _KEPT_S < time.time()]
    kept = {key.rpartition("/")[2] for key in listed.keys() - set(old)}
    lost = [name for name in store.children(MANUAL) if name not in kept]
    for name in lost:
        entries = store.list(f"{MANUAL}/{name}", recursive=True)
        commit_all(store, checks, [Delete(entry.key) for entry in entries])
    commit_all(store, checks, [Delete(key) for key in old])
    return len(old)


class AuditRecord(Struct, frozen=True):
    """A lock that was freed by hand.

    Attributes:
        job: the job's id.
        item: the work item.
        token: the fencing token of the holder that lost the lock: writes with it are refused.
        holder: the holder that lost the lock.
        by: the person who freed it.
        at: when, for people.
        reason: the reason that the person gave.
        what: ``force-release``.
    """

    job: str
    item: str
    token: Count
    holder: str
    by: str
    at: str
    reason: str
    what: str = "force-release"

    def encode(self) -> bytes:
        """The value of its key."""
        return encode(self)


_RECORD: Decoder[AuditRecord] = Decoder(AuditRecord, "a record of the audit")


def decode_record(value: bytes) -> AuditRecord | None:
    """The record in a value; None for what is none of ours."""
    return _RECORD.find(value)


def read_audit(store: Store) -> list[AuditRecord]:
    """The records, the oldest first."""
    return [record for entry in cluster_store(store).list(AUDIT) if (record := decode_record(entry.value)) is not None]


def force_released(entries: Iterable[Entry]) -> dict[tuple[str, str], int]:
    """Job and item to the greatest token whose holder lost the lock by hand."""
    found: dict[tuple[str, str], int] = {}
    for entry in entries:
        record = decode_record(entry.value)
        if record is not None and record.what == "force-release":
            key = (record.job, record.item)
            found[key] = max(record.token, found.get(key, 0))
    return found


def trim_audit(store: Store, checks: list[Check]) -> int:
    """Delete all but the last records and return how many; the leader does it now and then."""
    names = store.children(AUDIT)
    gone = names[: max(0, len(names) - MAX_AUDIT_RECORDS)]
    for name in gone:
        store.commit(checks, [Delete(f"{AUDIT}/{name}")])
    return len(gone)
