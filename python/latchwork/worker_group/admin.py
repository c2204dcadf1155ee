"""Inspection of groups, workers and barriers."""

from __future__ import annotations

from dataclasses import dataclass

from latchwork.errors import BadRecord
from latchwork.primitives.barrier import BarrierState, barrier_state
from latchwork.primitives.waiting import check_name
from latchwork.store.store import Store
from latchwork.worker_group.keys import GroupKeys
from latchwork.worker_group.master import MasterInfo, find_master
from latchwork.worker_group.records import GroupEvent, GroupRecord, WorkerInfo
from latchwork.worker_group.submission import NAMESPACE, GroupHandle, GroupStatus, get_group_store, resolve_group
from latchwork.worker_group.transactions import decode_members, decode_record_or_none


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group with all of its workers and barriers.

    Attributes:
        status: Status of the group.
        workers: Records of the workers, sorted by rank.
        running_ranks: Ranks of the running workers, sorted.
        barriers: Names and states of the barriers that were used since the last restart of all workers.
        master: Master of the group, or None.
    """

    status: GroupStatus
    workers: tuple[WorkerInfo, ...]
    running_ranks: tuple[int, ...]
    barriers: tuple[tuple[str, BarrierState], ...]
    master: MasterInfo | None


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """All groups of a namespace.

    Attributes:
        groups: Status of each group with a current run, sorted by name.
        ended: Final record of the last run of all other groups, sorted by name.
    """

    groups: tuple[GroupStatus, ...]
    ended: tuple[tuple[str, GroupRecord], ...]


def inspect(store: Store, *, namespace: str = NAMESPACE) -> GroupOverview:
    """Return an overview of all groups of a namespace.

    Args:
        store: The store, or a namespace of it.
        namespace: Namespace of the groups.
    """
    store = get_group_store(store, "inspection")
    check_name(namespace, "workers namespace")
    groups, ended = [], []
    for group in store.children(f"{namespace}/groups"):
        keys = GroupKeys(namespace, group)
        record = decode_record_or_none(store.get(keys.record))
        if record is not None:
            groups.append(GroupHandle(store, keys, record.run).status())
    current = {status.name for status in groups}
    for group in store.children(f"{namespace}/ended"):
        record = decode_record_or_none(store.get(GroupKeys(namespace, group).ended))
        if record is not None and group not in current:
            ended.append((group, record))
    return GroupOverview(tuple(groups), tuple(ended))


def inspect_group(store: Store, group: str, *, namespace: str = NAMESPACE) -> GroupDetails | None:
    """Return the details of a group: its status, workers, barriers and master. Return None if it has no current run.

    Args:
        store: The store, or a namespace of it.
        group: Name of the group.
        namespace: Namespace of the group.
    """
    store, keys = resolve_group(store, group, namespace)
    record = decode_record_or_none(store.get(keys.record))
    if record is None:
        return None
    run = keys.for_run(record.run)
    status = GroupHandle(store, keys, record.run).status()
    running_ranks = tuple(sorted(int(name) for name in store.children(run.leases) if name.isdecimal()))
    barriers = []
    for name in store.children(run.barriers_prefix(status.epoch)):
        state = _read_barrier(store, run.barrier_key(status.epoch, name))
        if state is not None:
            barriers.append((name, state))
    members = tuple(decode_members(store.list(run.members)))
    master = find_master(store, group, namespace=namespace)
    return GroupDetails(status, members, running_ranks, tuple(barriers), master)


def _read_barrier(store: Store, name: str) -> BarrierState | None:
    """Return the state of a barrier; None if it is unreadable."""
    try:
        return barrier_state(store, name)
    except BadRecord:
        return None


def list_events(store: Store, group: str, after: int = 0, *, namespace: str = NAMESPACE) -> list[GroupEvent]:
    """Return the events of a group's current run, in order. The last 1,000 events are kept.

    Args:
        store: The store, or a namespace of it.
        group: Name of the group.
        after: Only events with a greater number.
        namespace: Namespace of the group.
    """
    store, keys = resolve_group(store, group, namespace)
    record = decode_record_or_none(store.get(keys.record))
    if record is None:
        return []
    run = keys.for_run(record.run)
    entries = store.list(run.events, start_after=run.event_key(after))
    found = (GroupEvent.decode_or_none(entry) for entry in entries)
    return [event for event in found if event is not None]
