"""Records of what people did to a cluster by hand, and which locks they freed.

Keys:   audit/<number>      JSON, one each, in order; the leader keeps the last 1,000
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from latchwork._base.decoding import Count, Decoder, encode
from latchwork.jobs.stored.keys import cluster_store
from latchwork.store import Store
from latchwork.types import Check, Delete, Entry

AUDIT = "audit"
KEPT = 1000


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


def freed_by_hand(entries: Iterable[Entry]) -> dict[tuple[str, str], int]:
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
    gone = names[: max(0, len(names) - KEPT)]
    for name in gone:
        store.commit(checks, [Delete(f"{AUDIT}/{name}")])
    return len(gone)
