"""Records of operator actions: requests for manual runs with their results, and the audit log.

Keys:   requests/<id>                              JSON; a request for a manual run
        manual/<id>/items[/<chunk>]                for a request for all items: the items at its time; see chunked_set
        manual/<id>/progress/<job>/<record>[/items] items that have started and ended; see cron_progress
        manual/<id>/ended/<uuid>                   JSON; the result of one run

Only the functions whose names begin with ``read`` or ``delete`` do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from latchwork._base.decoding import MAX_TIME_S, Count, Decoder, Record, Whole
from latchwork.errors import Conflict
from latchwork.jobs.stored.chunked_set import commit_all, read_set
from latchwork.jobs.stored.keys import cluster_store
from latchwork.store import Store
from latchwork.types import Absent, Check, Delete, Entry

REQUESTS = "requests"
MANUAL = "manual"
#: Maximum number of items that a request names.
MAX_REQUEST_ITEMS = 100
#: Maximum number of items that a result names.
MAX_NAMED = 20
#: Seconds for which results are kept after a request has expired: more than wall clocks differ.
_KEPT_S = 86_400.0
_Time = Annotated[float, Meta(ge=0.0, le=MAX_TIME_S)]
AUDIT = "audit"
MAX_AUDIT_RECORDS = 1000


class RunRequest(Record, frozen=True):
    """A request to run a job's items once, now, on the nodes that hold their locks.

    Attributes:
        id: Unique ID.
        job: ID of the job.
        items: Items to run; None for all that existed at the time of the request; see ``read_requested_items``.
        at_s: Time of the request in seconds since the epoch.
        until_s: Time after which no run starts anymore, by the clock of the requester.
        by: Person who made the request.
    """

    id: str
    job: str
    items: tuple[str, ...] | None
    at_s: _Time
    until_s: _Time
    by: str = ""

    @property
    def key(self) -> str:
        """The key that stores the request."""
        return f"{REQUESTS}/{self.id}"

    @property
    def start_window_s(self) -> float:
        """The seconds within which a node may start runs for the request, counted from when the node first sees it."""
        return self.until_s - self.at_s

    def is_outdated(self, now_s: float) -> bool:
        """Return whether the request expired more than a day ago.

        Args:
            now_s: Current time in seconds since the epoch.
        """
        return self.until_s + _KEPT_S < now_s

    @property
    def progress_prefix(self) -> str:
        """The prefix of the keys that store which items have run for this request."""
        return f"{MANUAL}/{self.id}/progress"

    @property
    def items_key(self) -> str:
        """The key that stores the items that existed at the time of the request."""
        return f"{MANUAL}/{self.id}/items"

    @property
    def results_prefix(self) -> str:
        """The prefix of the keys that store the results of the runs for this request."""
        return f"{MANUAL}/{self.id}/ended"


class RunResult(Record, frozen=True):
    """The result of one run of a request.

    Attributes:
        node: ID of the node.
        items: Number of items.
        named: The first items, at most 20.
        error: Error that the run raised; None if it succeeded.
    """

    node: str
    items: Whole
    named: tuple[str, ...]
    error: str | None = None


_REQUEST: Decoder[RunRequest] = Decoder(RunRequest, "a request of a run")
_END: Decoder[RunResult] = Decoder(RunResult, "the end of a run")


def decode_request(key: str, value: bytes) -> RunRequest | None:
    """Decode a request for a manual run. Return None if it is unreadable.

    Args:
        key: Key of the request, which ends in its ID.
        value: Stored value.
    """
    found = _REQUEST.find(value)
    if found is None:
        return None
    items = None if found.items is None else tuple(sorted(found.items[:MAX_REQUEST_ITEMS]))
    return replace(found, id=key.rpartition("/")[2], items=items)


def read_requested_items(store: Store, request: RunRequest) -> frozenset[str] | None:
    """Read the items that a request is for.

    Returns:
        The items; None for all items of the job, because no node had the job at the time of the request.
    """
    if request.items is not None:
        return frozenset(request.items)
    stored = read_set(store, request.items_key)
    return None if stored.manifest is None else frozenset(stored.chunked.items)


def decode_result(value: bytes) -> RunResult | None:
    """Decode the result of a manual run. Return None if it is unreadable."""
    found = _END.find(value)
    return None if found is None else replace(found, named=found.named[:MAX_NAMED])


def delete_expired_requests(store: Store, now_s: float, checks: list[Check]) -> int:
    """Delete requests that expired more than a day ago, with their results. The leader calls this from time to time.

    Args:
        store: The cluster's store.
        now_s: Current time in seconds since the epoch.
        checks: Checks for each transaction, such as the leader's fence.
    Returns:
        The number of deleted requests.
    """
    listed = {entry.key: decode_request(entry.key, entry.value) for entry in store.list(REQUESTS)}
    old = [key for key, found in listed.items() if found is None or found.is_outdated(now_s)]
    kept = {key.rpartition("/")[2] for key in listed.keys() - set(old)}
    orphans = [request_id for request_id in store.children(MANUAL) if request_id not in kept]
    commit_all(store, checks, [Delete(key) for key in old])
    for request_id in orphans:
        entries = store.list(f"{MANUAL}/{request_id}", recursive=True)
        no_request = Absent(f"{REQUESTS}/{request_id}")  # it may have been created since the requests were listed
        try:
            commit_all(store, [*checks, no_request], [Delete(entry.key) for entry in entries])
        except Conflict as error:
            if list(error.failed) != [no_request]:
                raise
    return len(old)


class AuditRecord(Record, frozen=True):
    """An entry of the audit log: a lock that an operator released by force.

    Attributes:
        job: ID of the job.
        item: Work item.
        token: Fencing token of the holder that lost the lock; its writes are refused.
        holder: Holder that lost the lock.
        by: Person who released it.
        at: Time, for display.
        reason: Reason given by that person.
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


_RECORD: Decoder[AuditRecord] = Decoder(AuditRecord, "a record of the audit")


def decode_audit_record(value: bytes) -> AuditRecord | None:
    """Decode a record of the audit log. Return None if it is unreadable."""
    return _RECORD.find(value)


def read_audit(store: Store) -> list[AuditRecord]:
    """Read the audit log, oldest record first."""
    return [
        record for entry in cluster_store(store).list(AUDIT) if (record := decode_audit_record(entry.value)) is not None
    ]


def find_force_released_tokens(entries: Iterable[Entry]) -> dict[tuple[str, str], int]:
    """Find the locks that operators have released by force: the greatest released fencing token of each job and item.

    Args:
        entries: Entries of the audit log.
    Returns:
        The fencing tokens by job and item.
    """
    found: dict[tuple[str, str], int] = {}
    for entry in entries:
        record = decode_audit_record(entry.value)
        if record is not None and record.what == "force-release":
            key = (record.job, record.item)
            found[key] = max(record.token, found.get(key, 0))
    return found


def delete_old_audit_records(store: Store, checks: list[Check]) -> int:
    """Delete all but the newest 1,000 records of the audit log. The leader calls this from time to time.

    Args:
        store: The cluster's store.
        checks: Checks for each transaction, such as the leader's fence.
    Returns:
        The number of deleted records.
    """
    names = store.children(AUDIT)
    gone = names[: max(0, len(names) - MAX_AUDIT_RECORDS)]
    for name in gone:
        store.commit(checks, [Delete(f"{AUDIT}/{name}")])
    return len(gone)
