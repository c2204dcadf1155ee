"""Records of nodes: of running workers, and of nodes that an operator has drained or is about to restart.

Keys:   alive/<worker>                          JSON, session-bound; a running worker
        nodes/<node>                            JSON; absent for a node in normal operation
        nodes/<node>/reserved/<job>[/<chunk>]   the items that are reserved for a restarting node
        nodes/<node>/damaged/<job>              empty, session-bound; asks the leader to write the assignment again

No I/O.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from latchwork._base.decoding import Decoder, Record, Seconds, Timestamp, Whole
from latchwork.types import Entry

MemberState = Literal["joining", "ready", "leaving"]
#: Least weight of a node.
MIN_WEIGHT = 1e-9
_Weight = Annotated[float, Meta(ge=MIN_WEIGHT)]

NODES = "nodes"


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """The options that a node publishes; see ``NodeRecord``. ``session_ttl_s`` is the requested TTL in seconds."""

    node_id: str
    session_ttl_s: float
    weight: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    unmet_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class NodeRecord(Record, frozen=True):
    """The record of one start of one node.

    Attributes:
        worker: ID of the node.
        state: ``joining`` until its jobs and items are registered, then ``ready``; ``leaving`` while it closes.
        host: Name of its machine.
        pid: Process ID.
        incarnation: Unique ID of each registration of each start.
        since: Start time in seconds since the epoch by the machine's clock; informational.
        ttl_s: Granted TTL of its session in seconds.
        weight: Its capacity relative to other nodes.
        version: Version of latchwork.
        labels: Labels of the node.
        start: Unique ID of the start, the same for all of its registrations; empty in records of older versions.
        unmet_labels: Jobs that the node has but cannot run, with the required labels that it does not have.
    """

    worker: str
    state: MemberState = "joining"
    host: str = "?"
    pid: Whole = 0
    incarnation: str = ""
    since: Timestamp = 0.0
    ttl_s: Seconds = 0.0
    weight: _Weight = 1.0
    version: str = ""
    labels: Mapping[str, str] = {}
    start: str = ""
    unmet_labels: Mapping[str, Mapping[str, str]] = {}

    @classmethod
    def of_this_process(cls, options: MemberOptions, *, since: float, ttl_s: float, start: str = "") -> NodeRecord:
        """Create the record of a node that starts in this process, in state ``joining``.

        Args:
            options: Options that the node publishes.
            since: Start time of the node in seconds since the epoch.
            ttl_s: Granted TTL of the node's session in seconds.
            start: Unique ID of this start of the node.
        """
        return cls(
            worker=options.node_id,
            state="joining",
            host=socket.gethostname(),
            pid=os.getpid(),
            incarnation=uuid.uuid4().hex[:12],
            since=since,
            ttl_s=ttl_s,
            weight=options.weight,
            version=_get_version(),
            labels=dict(options.labels),
            start=start,
            unmet_labels={job: dict(missing) for job, missing in options.unmet_labels.items()},
        )

    def with_state(self, state: MemberState) -> NodeRecord:
        """Return a copy of the record with another state."""
        return replace(self, state=state)

    @classmethod
    def decode(cls, worker: str, value: bytes) -> NodeRecord:
        """Decode the stored record of a node. An unreadable record counts as one of a joining node.

        Args:
            worker: ID of the node.
            value: Stored value.
        """
        found = _MEMBER.find(value)
        return cls(worker) if found is None else replace(found, worker=worker)


_MEMBER: Decoder[NodeRecord] = Decoder(NodeRecord, "a node")


def _get_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("latchwork")
    except PackageNotFoundError:
        return "unknown"


class MaintenanceRecord(Record, frozen=True):
    """A record with which an operator drains a node or announces its restart.

    Attributes:
        node: ID of the node.
        state: ``drained``: the node gets no items until the record is removed. ``restarting``: the node gets no items
            until it has started again, and then the ones that it had.
        incarnation: Incarnation of the restarting node that ends.
        start: ID of the start that ends. The node is not back when the same start registers again. Empty if unknown;
            then any other incarnation counts as back.
        timeout_s: Seconds for which the items of a restarting node are reserved.
        weight: Weight of a restarting node once its items are reserved; None before.
        jobs: Jobs that it could run; set together with ``weight``, like ``labels``.
        by: Person who set the state.
        at: Time, for display.
    """

    node: str
    state: Literal["drained", "restarting"]
    incarnation: str = ""
    start: str = ""
    timeout_s: Seconds = 0.0
    weight: _Weight | None = None
    jobs: tuple[str, ...] = ()
    by: str = ""
    at: str = ""
    labels: Mapping[str, str] = {}

    @property
    def is_reserved(self) -> bool:
        """Whether the work items of a restarting node are stored, so that the node gets them back."""
        return self.weight is not None

    def with_reserved_items(self, weight: float, jobs: tuple[str, ...], labels: Mapping[str, str]) -> MaintenanceRecord:
        """Return a copy of the record of a restarting node, stating that the node's work items are now reserved for it.

        Args:
            weight: Weight of the node.
            jobs: Jobs that the node can run.
            labels: Labels of the node.
        """
        return replace(self, weight=weight, jobs=jobs, labels=dict(labels))

    def is_awaiting_restart(self, incarnation: str, start: str) -> bool:
        """Return whether a registered node is still the process whose restart was announced, so that it has not
        restarted yet.

        Args:
            incarnation: ID of the node's registration.
            start: ID of the node's start; empty if unknown.
        """
        return start == self.start if start and self.start else incarnation == self.incarnation

    def merge_with_stored(self, before: MaintenanceRecord | None) -> MaintenanceRecord:
        """Combine this record with the stored maintenance record of the same node, and return the record to store.

        A drained node stays drained, and reserved items stay reserved.

        Args:
            before: The stored record; None if there is none.
        """
        if before is None or self.state == "drained":
            return self
        if before.state == "drained":
            return before
        same = before.is_awaiting_restart(self.incarnation, self.start)
        return replace(self, weight=before.weight, jobs=before.jobs, labels=before.labels) if same else self


_MAINTENANCE_RECORD: Decoder[MaintenanceRecord] = Decoder(MaintenanceRecord, "the maintenance record of a node")


def decode_maintenance_record(node: str, value: bytes) -> MaintenanceRecord | None:
    """Decode the maintenance record of a node, which shows that the node is drained or restarting. Return None if it is
    unreadable.

    Args:
        node: ID of the node.
        value: Stored value.
    """
    found = _MAINTENANCE_RECORD.find(value)
    return None if found is None else replace(found, node=node)


def maintenance_key(node: str) -> str:
    """Return the key of a node's maintenance record, which exists while the node is drained or restarting."""
    return f"{NODES}/{node}"


def reserved_items_key(node: str, job: str = "") -> str:
    """Return the key that stores the items of a job that are reserved for a restarting node. Without a job, return the
    prefix of these keys.
    """
    return f"{NODES}/{node}/reserved/{job}".rstrip("/")


def damage_report_key(node: str, job: str) -> str:
    """Return the key by which a node reports that its assignment of a job is damaged. The leader deletes it."""
    return f"{NODES}/{node}/damaged/{job}"


def list_damage_reports(stored_keys: Iterable[str]) -> list[str]:
    """Return the keys of the reports that assignments are damaged.

    Args:
        stored_keys: All keys at and below ``nodes``.
    """
    return [key for key in stored_keys if key.split("/")[2:3] == ["damaged"]]


def group_reserved_keys(stored_keys: Iterable[str]) -> dict[str, list[str]]:
    """Group the keys that store reserved items by the restarting node for which the items are reserved.

    Args:
        stored_keys: All keys at and below ``nodes``.
    """
    by_node: dict[str, list[str]] = {}
    for key in stored_keys:
        node, _, below = key[len(NODES) + 1 :].partition("/")
        if below.startswith("reserved/"):
            by_node.setdefault(node, []).append(key)
    return by_node


def decode_maintenance_records(entries: Iterable[Entry]) -> dict[str, MaintenanceRecord]:
    """Decode the maintenance records of drained and restarting nodes, by node. Unreadable records are left out.

    Args:
        entries: Entries at and below ``nodes``.
    """
    values = {entry.key[len(NODES) + 1 :]: entry.value for entry in entries}
    records = {
        node: decode_maintenance_record(node, value) for node, value in values.items() if node and "/" not in node
    }
    return {node: record for node, record in records.items() if record is not None}
