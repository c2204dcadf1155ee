"""The records of nodes: of a living worker, and of a node that an operator drained or is about to restart.

Keys:   alive/<worker>                          JSON, session-bound; a living worker
        nodes/<node>                            JSON; absent for a node that takes its part as usual
        nodes/<node>/reserved/<job>[/<chunk>]   the share that waits for a node which is being restarted

No network here.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from latchwork._base.decoding import Decoder, Seconds, Timestamp, Whole, encode
from latchwork.types import Entry

MemberState = Literal["joining", "ready", "leaving"]
#: The least weight of a node.
MIN_WEIGHT = 1e-9
_Weight = Annotated[float, Meta(ge=MIN_WEIGHT)]

NODES = "nodes"


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """What a node says about itself, see ``Member``; ``session_ttl_s`` is the TTL to ask for, in seconds."""

    node_id: str
    session_ttl_s: float
    weight: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    unmet_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Member(Struct, frozen=True):
    """One start of one node.

    Attributes:
        worker: the node's id.
        state: ``joining`` until its jobs and their items are registered, then ``ready``; ``leaving`` while it closes.
        host: the machine's name.
        pid: the process.
        incarnation: unique for each registration of each start.
        since: seconds since the epoch, by that machine's wall clock; for people only.
        ttl_s: the granted TTL of its session, in seconds.
        weight: how much it takes, relative to others.
        version: the version of latchwork it runs.
        labels: what it says about itself.
        unmet_labels: the jobs it has and cannot run, with the labels they require and it does not have.
        start: unique for each start, the same for all registrations of it; empty in a record of an older version.
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
        """A new incarnation in this process, in state ``joining``."""
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
        """The same start in another state."""
        return replace(self, state=state)

    def encode(self) -> bytes:
        """The value of its key: JSON, readable with the server's own tools."""
        return encode(self)

    @classmethod
    def decode(cls, worker: str, value: bytes) -> Member:
        """Return the member of this id that a value describes; one that is joining if it cannot be read."""
        found = _MEMBER.find(value)
        return cls(worker) if found is None else replace(found, worker=worker)


_MEMBER: Decoder[Member] = Decoder(Member, "a node")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("latchwork")
    except PackageNotFoundError:
        return "unknown"


class NodeMark(Struct, frozen=True):
    """The state that an operator gave to one node.

    Attributes:
        node: its id.
        state: ``drained``: it gets no items until the mark is removed. ``restarting``: it gets none until it is back
            from another start, then exactly those it had.
        incarnation: the incarnation of a restarting node that ends.
        start: the start of a restarting node that ends: the node is not back when this start registers anew. Empty if
            unknown; then any other incarnation counts as back.
        timeout_s: seconds that its share is kept for a restarting node.
        weight: the weight of a restarting node, once its share is reserved; None before.
        jobs: the jobs that it could run; like ``labels``, set together with ``weight``.
        by: the person who said so.
        at: when, for people.
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
        """True once the share of a restarting node is written down."""
        return self.weight is not None

    def with_reserved(self, weight: float, jobs: tuple[str, ...], labels: Mapping[str, str]) -> NodeMark:
        """The same, with its share written down."""
        return replace(self, weight=weight, jobs=jobs, labels=dict(labels))

    def is_same_start(self, incarnation: str, start: str) -> bool:
        """Whether this registration of a restarting node is still of the start that is to go."""
        return start == self.start if start and self.start else incarnation == self.incarnation

    def merged_with(self, before: NodeMark | None) -> NodeMark:
        """This one, given the one that is there: drained stays drained, and a share once reserved stays reserved."""
        if before is None or self.state == "drained":
            return self
        if before.state == "drained":
            return before
        same = before.is_same_start(self.incarnation, self.start)
        return replace(self, weight=before.weight, jobs=before.jobs, labels=before.labels) if same else self

    def encode(self) -> bytes:
        """The value of its key."""
        return encode(self)


_MARK: Decoder[NodeMark] = Decoder(NodeMark, "the mark of a node")


def decode_mark(node: str, value: bytes) -> NodeMark | None:
    """Return the mark of this node in a value; None for one that cannot be read, which counts as none."""
    found = _MARK.find(value)
    return None if found is None else replace(found, node=node)


def mark_key(node: str) -> str:
    """The key of a node's mark."""
    return f"{NODES}/{node}"


def reserved_key(node: str, job: str = "") -> str:
    """The head of the share that is reserved for a node; without a job the prefix of them."""
    return f"{NODES}/{node}/reserved/{job}".rstrip("/")


def reserved_nodes(found: Iterable[str]) -> dict[str, list[str]]:
    """Node to the keys of what is reserved for it, of all keys at and below ``nodes``."""
    by_node: dict[str, list[str]] = {}
    for key in found:
        node, _, below = key[len(NODES) + 1 :].partition("/")
        if below.startswith("reserved/"):
            by_node.setdefault(node, []).append(key)
    return by_node


def decode_marks(entries: Iterable[Entry]) -> dict[str, NodeMark]:
    """The marks among the entries at and below ``nodes``, by node; what cannot be read is left out."""
    values = {entry.key[len(NODES) + 1 :]: entry.value for entry in entries}
    marks = {node: decode_mark(node, value) for node, value in values.items() if node and "/" not in node}
    return {node: mark for node, mark in marks.items() if mark is not None}
