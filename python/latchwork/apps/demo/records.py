"""The demo's records in the store: where they are, and how they are written as JSON.

Times are those of the machine's own clock since boot, which all processes of one machine share.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from latchwork.apps.demo.corpus import Counts
from latchwork.records import Record, read_json
from latchwork.types import Entry

PREFIX = "demo"
RUNNING = f"{PREFIX}/running"
STARTS = f"{PREFIX}/starts"
RESULTS = f"{PREFIX}/results"
SHARES = f"{PREFIX}/shares"


@dataclass(frozen=True, slots=True)
class Running:
    """The item that a node runs; `item` is None between items."""

    item: str | None
    pid: int


@dataclass(frozen=True, slots=True)
class Start:
    """One start of one item."""

    node: str
    pid: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """The counts of one item, and the process that found them."""

    node: str
    pid: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class Share:
    """The items that a run of a node began with, and when."""

    node: str
    at_s: float
    items: tuple[str, ...]


def encode(record: Running | Result | Share | list[Start]) -> bytes:
    """A record, or all starts of an item, oldest first, as JSON."""
    body = [asdict(start) for start in record] if isinstance(record, list) else asdict(record)
    return json.dumps(body, separators=(",", ":")).encode()


def running(entry: Entry | None) -> Running:
    """The record of a node; of one that wrote none, that it runs nothing."""
    body = Record.of(entry.value) if entry is not None else Record({"pid": 0})
    return Running(body.text("item") if body.has("item") else None, body.whole("pid"))


def starts(entry: Entry | None) -> tuple[Start, ...]:
    """All starts of an item, oldest first."""
    bodies = Record({"starts": read_json(entry.value)}).parts("starts") if entry is not None else []
    return tuple(Start(body.text("node"), body.whole("pid"), body.duration_s("at_s")) for body in bodies)


def result(entry: Entry) -> Result:
    """The result of an item."""
    body = Record.of(entry.value)
    counts = Record(body.mapping("counts"))
    numbers = {each.name: counts.whole(each.name) for each in fields(Counts)}
    return Result(body.text("node"), body.whole("pid"), Counts(**numbers))


def share(entry: Entry) -> Share:
    """One share of one node."""
    body = Record.of(entry.value)
    return Share(body.text("node"), body.duration_s("at_s"), body.texts("items"))
