"""The store as seen by API servers: they notify masters, and list workers and queued tasks."""

from __future__ import annotations

from collections.abc import Sequence

from latchwork.errors import BadRecord
from latchwork.primitives import Group, GroupMember, QueueItem
from latchwork.store import Store
from latchwork.types import Entry
from latchwork_workflows.keys import Keys, get_workflows_store
from latchwork_workflows.messages import RunningRecord, decode_cancel_time
from latchwork_workflows.services import UnclaimedItems, WorkerStatus

#: The order of a partition with more claimed items is not read.
_MAX_TAKEN = 1000
#: Both reads of workers together fail after this time. Scrapes of metrics end after 10 seconds by default.
_WORKERS_TIMEOUT_S = 3.0
#: The number of sort keys that are read concurrently.
_TOGETHER = 16


class StoreCluster:
    """Access to the store. Thread-safe. Does not close the store."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = get_workflows_store(store)
        self._keys = keys

    def notify_master(self, shard: int) -> None:
        """Notify the master of a shard that commands are waiting. The notification may be lost."""
        self._store.put(self._keys.notify_key(shard), b"")

    def get_slot_holders(self) -> dict[str, list[str]]:
        """Return the attempts that hold slots, as ``<task>.<attempt number>``, by pool key."""
        found: dict[str, list[str]] = {}
        for entry in self._store.list(self._keys.slots, recursive=True):
            name, _, slot = entry.key[len(self._keys.slots) + 1 :].partition("/")
            if slot.isdecimal():
                found.setdefault(name, []).append(entry.value.decode("utf-8", "replace"))
        return found

    def list_unclaimed_items(self, partition: str, limit: int) -> UnclaimedItems | None:
        """Return the first queue items of a partition that no worker has claimed.

        Claims are read last, so an item that was just claimed may still be returned.

        Args:
            partition: The partition of the work queue.
            limit: The maximum number of items.
        Returns:
            The items, or None if they cannot be determined, because workers have claimed too many items before them.
        """
        prefix, wanted = f"{self._keys.backlog}/partitions/{partition}", limit + 1
        while True:
            sort_keys = self._names(f"{prefix}/sort_keys", wanted)
            items = self._load_first_items(f"{prefix}/items", sort_keys, wanted)
            holders = self._store.children(f"{prefix}/holders")
            free = [each.key[len(prefix) + len("/items/") :] for each in items if _get_holder(each) not in holders]
            is_whole = max(len(items), len(sort_keys)) < wanted
            if is_whole or len(free) > limit:
                return UnclaimedItems(tuple(free[:limit]), is_whole=is_whole and len(free) <= limit)
            if len(items) - len(free) >= _MAX_TAKEN:
                return None
            wanted *= 2

    def _load_first_items(self, prefix: str, sort_keys: Sequence[str], wanted: int) -> list[Entry]:
        """Return about ``wanted`` queue items, in the order of their sort keys.

        Reads one sort key at a time, because etcd counts the whole range of a list even with a limit.

        Args:
            prefix: Key prefix of the partition.
            sort_keys: The sort keys of the partition, in their order.
            wanted: The number of items.
        """
        found: list[Entry] = []
        for at in range(0, len(sort_keys), _TOGETHER):
            if len(found) >= wanted:
                break
            part = [f"{prefix}/{each}" for each in sort_keys[at : at + _TOGETHER]]
            begun = [self._store.start_call("list", each, limit=wanted - len(found)) for each in part]
            found += [entry for each in begun for entry in each.result()]
        return found

    def _names(self, prefix: str, limit: int) -> list[str]:
        """Return the names of the first keys below a prefix."""
        return [each.key[len(prefix) + 1 :] for each in self._store.list(prefix, limit=limit)]

    def get_cancel_times(self, attempts: Sequence[str]) -> dict[str, float]:
        """Return the times at which attempts were requested to cancel, in seconds since the epoch.

        Args:
            attempts: Attempts as ``<task>.<attempt number>``.
        Returns:
            The times by attempt. 0: time unknown. Attempts without such a request are left out.
        """
        entries = self._store.get_many([self._keys.cancel_key(each) for each in attempts])
        pairs = zip(attempts, entries, strict=True)
        return {x: decode_cancel_time(entry.value) for x, entry in pairs if entry is not None}

    def list_workers(self) -> list[WorkerStatus]:
        """Return the online workers, sorted by name."""
        running: dict[str, list[str]] = {}
        end_s = self._store.clock.now() + _WORKERS_TIMEOUT_S
        limited = self._store.within(lambda: end_s - self._store.clock.now())
        for entry in limited.list(self._keys.shards, recursive=True):
            _, is_running, x = entry.key.rpartition("/running/")
            if is_running:
                running.setdefault(RunningRecord.from_bytes(entry.value).worker, []).append(x)
        with Group(limited, self._keys.workers) as group:
            return sorted(_worker_status(each, running.get(each.id, ())) for each in group.members())


def _get_holder(entry: Entry) -> str:
    """Return the worker that has claimed a queue item. Empty if it is unclaimed or invalid."""
    try:
        return QueueItem.from_entry(entry).holder
    except BadRecord:
        return ""


def _worker_status(member: GroupMember, running: Sequence[str]) -> WorkerStatus:
    labels = {name: each if isinstance(each, str) else "" for name, each in member.labels.items()}
    slots = labels.get("slots", "")
    return WorkerStatus(
        member.id,
        member.host,
        _split_list(labels.get("groups", "")),
        int(slots) if slots.isdecimal() else 0,
        len(running),
        _split_list(labels.get("types", "")),
        labels.get("version", ""),
        labels.get("state", "running"),
        tuple(sorted(running)),
        _split_list(labels.get("tenants", "")),
    )


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(each for each in text.split(",") if each)
