"""The record of a living worker, at ``alive/<worker>``. Nothing here touches the network."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from latchwork.records import Record

MemberState = Literal["joining", "ready", "leaving"]
#: The least weight of a node.
LEAST_WEIGHT = 1e-9


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """What a node says about itself, see ``Member``; ``session_ttl_s`` is the TTL to ask for, in seconds."""

    node_id: str
    session_ttl_s: float
    weight: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    lacks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Member:
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
        lacks: the jobs it has and cannot run, with the labels they require and it does not have.
        start: unique for each start, the same for all registrations of it; empty in a record of an older version.
    """

    worker: str
    state: MemberState
    host: str
    pid: int
    incarnation: str
    since: float
    ttl_s: float
    weight: float = 1.0
    version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    start: str = ""
    lacks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

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
            lacks={job: dict(missing) for job, missing in options.lacks.items()},
        )

    def with_state(self, state: MemberState) -> Member:
        """The same start in another state."""
        return replace(self, state=state)

    def encode(self) -> bytes:
        """The value of its key: JSON, readable with the server's own tools."""
        body = asdict(self)
        del body["worker"]
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, worker: str, value: bytes) -> Member:
        """The record in a value; what is missing or unreadable takes a harmless default, newer fields are skipped."""
        body = Record.or_empty(value)
        lacks = Record(body.mapping("lacks", {}))
        return cls(
            worker=worker,
            state=_state(body.text("state", "")),
            host=body.text("host", "?"),
            pid=body.whole("pid", 0),
            incarnation=body.text("incarnation", ""),
            since=body.moment_s("since", 0.0),
            ttl_s=body.duration_s("ttl_s", 0.0),
            weight=max(body.number("weight", 1.0), LEAST_WEIGHT),
            version=body.text("version", ""),
            labels=body.text_map("labels"),
            start=body.text("start", ""),
            lacks={job: lacks.text_map(job) for job in lacks.body},
        )


def _state(value: str) -> MemberState:
    return "ready" if value == "ready" else "leaving" if value == "leaving" else "joining"


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("latchwork")
    except PackageNotFoundError:
        return "unknown"
