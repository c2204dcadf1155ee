"""The record of a living worker, at ``alive/<worker>``. Nothing here touches the network."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from latchwork.checks import is_number

MemberState = Literal["joining", "ready", "leaving"]


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
        try:
            body = json.loads(value)
        except ValueError:
            body = None
        body = body if isinstance(body, dict) else {}
        lacks = body.get("lacks")
        return cls(
            worker=worker,
            state=_state(body.get("state")),
            host=str(body.get("host", "?")),
            pid=int(_number(body.get("pid"), 0)),
            incarnation=str(body.get("incarnation", "")),
            since=_number(body.get("since"), 0.0),
            ttl_s=_number(body.get("ttl_s"), 0.0),
            weight=max(_number(body.get("weight"), 1.0), 1e-9),
            version=str(body.get("version", "")),
            labels=_texts(body.get("labels")),
            start=str(body.get("start", "")),
            lacks={str(job): _texts(missing) for job, missing in lacks.items()} if isinstance(lacks, dict) else {},
        )


def _state(value: object) -> MemberState:
    return "ready" if value == "ready" else "leaving" if value == "leaving" else "joining"


def _texts(value: object) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}


def _number(value: object, default: float) -> float:
    return float(value) if is_number(value) else default


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("latchwork")
    except PackageNotFoundError:
        return "unknown"
