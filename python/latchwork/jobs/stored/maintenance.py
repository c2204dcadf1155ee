"""The states that an operator gives to nodes: drained, or about to be restarted. Nothing here touches the network.

Keys:   nodes/<node>                            JSON; absent for a node that takes its part as usual
        nodes/<node>/reserved/<job>[/<chunk>]   the share that waits for a node which is being restarted
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from latchwork.errors import BadRecord
from latchwork.jobs.stored.members import LEAST_WEIGHT
from latchwork.records import Record
from latchwork.types import Entry

NODES = "nodes"


@dataclass(frozen=True, slots=True)
class NodeMark:
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
    timeout_s: float = 0.0
    weight: float | None = None
    jobs: tuple[str, ...] = ()
    by: str = ""
    at: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_reserved(self) -> bool:
        """True once the share of a restarting node is written down."""
        return self.weight is not None

    def reserved(self, weight: float, jobs: tuple[str, ...], labels: Mapping[str, str]) -> NodeMark:
        """The same, with its share written down."""
        return replace(self, weight=weight, jobs=jobs, labels=dict(labels))

    def waits_for(self, incarnation: str, start: str) -> bool:
        """Whether this registration of a restarting node is still of the start that is to go."""
        return start == self.start if start and self.start else incarnation == self.incarnation

    def after(self, before: NodeMark | None) -> NodeMark:
        """This one, given the one that is there: drained stays drained, and a share once reserved stays reserved."""
        if before is None or self.state == "drained":
            return self
        if before.state == "drained":
            return before
        same = before.waits_for(self.incarnation, self.start)
        return replace(self, weight=before.weight, jobs=before.jobs, labels=before.labels) if same else self

    def encode(self) -> bytes:
        """The value of its key."""
        body = asdict(self)
        del body["node"]
        return json.dumps(body).encode()


def decode_mark(node: str, value: bytes) -> NodeMark | None:
    """The mark in a value; None for one that cannot be read, which counts as none."""
    try:
        body = Record.of(value)
        state = _mark_state(body.text("state"))
        return None if state is None else _decode(node, state, body)
    except BadRecord:
        return None


def _mark_state(text: str) -> Literal["drained", "restarting"] | None:
    return "drained" if text == "drained" else "restarting" if text == "restarting" else None


def _decode(node: str, state: Literal["drained", "restarting"], body: Record) -> NodeMark:
    return NodeMark(
        node,
        state,
        incarnation=body.text("incarnation", ""),
        start=body.text("start", ""),
        timeout_s=body.duration_s("timeout_s") if body.has("timeout_s") else 0.0,
        weight=max(body.number("weight"), LEAST_WEIGHT) if body.has("weight") else None,
        jobs=body.texts("jobs", ()),
        by=body.text("by", ""),
        at=body.text("at", ""),
        labels=body.text_map("labels"),
    )


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
