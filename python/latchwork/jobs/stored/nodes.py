"""Records of nodes: of running workers, and of nodes that an operator has drained or is about to restart.

Keys:   alive/<worker>                          JSON, session-bound; a running worker
        nodes/<node>                            JSON; absent for a node in normal operation
        nodes/<node>/reserved/<job>[/<chunk>]   the share that is reserved for a restarting node

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
    """The options that a node publishes; see ``Member``. ``session_ttl_s`` is the requested TTL in seconds."""

    node_id: str
    session_ttl_s: float
    weight: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    unmet_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Member(Record, frozen=True):
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
    def of_this_process(cls, options: MemberOptions, *, since: float, ttl_s: float, start: str = "") -> Member:
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
            version=_version(),
            labels=dict(options.labels),
            start=start,
            unmet_labels={job: dict(missing) for job, missing in options.unmet_labels.items()},
        )

    def with_state(self, state: MemberState) -> Member:
        """Return the same record with another state."""
        return replace(self, state=state)

    @classmethod
    def decode(cls, worker: str, value: bytes) -> Member:
        """Decode the stored record of a node. An unreadable record counts as one of a joining node.

        Args:
            worker: ID of the node.
            value: Stored value.
        """
        found = _MEMBER.find(value)
        return cls(worker) if found is None else replace(found, worker=worker)


_MEMBER: Decoder[Member] = Decoder(Member, "a node")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("latchwork")
    except PackageNotFoundError:
        return "unknown"


class NodeMark(Record, frozen=True):
    """A record with which an operator drains a node or announces its restart.

    Attributes:
        node: ID of the node.
        state: ``drained``: the node gets no items until the mark is removed. ``restarting``: the node gets no items
            until it has started again, and then the ones that it had.
        incarnation: Incarnation of the restarting node that ends.
        start: ID of the start that ends. The node is not back when the same start registers again. Empty if unknown;
            then any other incarnation counts as back.
        timeout_s: Seconds for which the share of a restarting node is reserved.
        weight: Weight of a restarting node once its share is reserved; None before.
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
        """Whether the share of a restarting node is stored for its return."""
        return self.weight is not None

    def with_reserved_share(self, weight: float, jobs: tuple[str, ...], labels: Mapping[str, str]) -> NodeMark:
        """Return the mark of a restarting node whose share is now stored for its return.

        Args:
            weight: Weight of the node.
            jobs: Jobs that the node can run.
            labels: Labels of the node.
        """
        return replace(self, weight=weight, jobs=jobs, labels=dict(labels))

    def is_same_start(self, incarnation: str, start: str) -> bool:
        """Return whether a registered node was started before the announced restart, and is therefore about to end.

        Args:
            incarnation: Incarnation of the registered node.
            start: ID of its start; empty if unknown.
        """
        return start == self.start if start and self.start else incarnation == self.incarnation

    def merged_with(self, before: NodeMark | None) -> NodeMark:
        """Return the mark to store when another mark of the node is already stored.

        A drained node stays drained, and a reserved share stays reserved.

        Args:
            before: The stored mark; None if there is none.
        """
        if before is None or self.state == "drained":
            return self
        if before.state == "drained":
            return before
        same = before.is_same_start(self.incarnation, self.start)
        return replace(self, weight=before.weight, jobs=before.jobs, labels=before.labels) if same else self


_MARK: Decoder[NodeMark] = Decoder(NodeMark, "the mark of a node")


def decode_mark(node: str, value: bytes) -> NodeMark | None:
    """Decode the mark that an operator has set for a node. Return None if it is unreadable.

    Args:
        node: ID of the node.
        value: Stored value.
    """
    found = _MARK.find(value)
    return None if found is None else replace(found, node=node)


def mark_key(node: str) -> str:
    """Return the key of the mark with which an operator drains or restarts a node."""
    return f"{NODES}/{node}"


def reserved_share_key(node: str, job: str = "") -> str:
    """Return the key of the items of a job that are reserved for a restarting node. Without a job, return the prefix of
    the node's keys of this kind.
    """
    return f"{NODES}/{node}/reserved/{job}".rstrip("/")


def group_reserved_keys(stored_keys: Iterable[str]) -> dict[str, list[str]]:
    """Group the keys of reserved shares by node.

    Args:
        stored_keys: All keys at and below ``nodes``.
    """
    by_node: dict[str, list[str]] = {}
    for key in stored_keys:
        node, _, below = key[len(NODES) + 1 :].partition("/")
        if below.startswith("reserved/"):
            by_node.setdefault(node, []).append(key)
    return by_node


def decode_marks(entries: Iterable[Entry]) -> dict[str, NodeMark]:
    """Decode the marks that operators have set, by node. Unreadable marks are left out.

    Args:
        entries: Entries at and below ``nodes``.
    """
    values = {entry.key[len(NODES) + 1 :]: entry.value for entry in entries}
    marks = {node: decode_mark(node, value) for node, value in values.items() if node and "/" not in node}
    return {node: mark for node, mark in marks.items() if mark is not None}
