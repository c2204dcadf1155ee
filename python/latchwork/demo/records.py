"""The records of the demo in the store, and their JSON.

Times are those of the machine's clock since boot, which all processes of the machine share.
"""

from __future__ import annotations

from msgspec import Struct

from latchwork._base.decoding import Decoder, Seconds, Whole
from latchwork.demo.corpus import Counts
from latchwork.types import Entry

PREFIX = "demo"
RUNNING = f"{PREFIX}/running"
STARTS = f"{PREFIX}/starts"
RESULTS = f"{PREFIX}/results"
ASSIGNED = f"{PREFIX}/assignments"


class Running(Struct, frozen=True):
    """The item that a node runs; `item` is None between items."""

    item: str | None
    pid: Whole


class Start(Struct, frozen=True):
    """A start of an item."""

    node: str
    pid: Whole
    at_s: Seconds


class Result(Struct, frozen=True):
    """The counts of an item, and the process that found them."""

    node: str
    pid: Whole
    counts: Counts


class AssignmentRecord(Struct, frozen=True):
    """The items with which a run of a node began, and the time."""

    node: str
    at_s: Seconds
    items: tuple[str, ...]


_RUNNING: Decoder[Running] = Decoder(Running, "what a node runs")
_STARTS: Decoder[tuple[Start, ...]] = Decoder(tuple[Start, ...], "starts of an item")
_RESULT: Decoder[Result] = Decoder(Result, "a result")
_ASSIGNED: Decoder[AssignmentRecord] = Decoder(AssignmentRecord, "an assignment")


def decode_running(entry: Entry | None) -> Running:
    """Decode which item a node is counting. A missing record means that it is counting none."""
    return Running(None, 0) if entry is None else _RUNNING.decode(entry.value)


def decode_starts(entry: Entry | None) -> tuple[Start, ...]:
    """Decode all starts of an item, the oldest first. A missing record means no starts."""
    return () if entry is None else _STARTS.decode(entry.value)


def decode_result(entry: Entry) -> Result:
    """Decode the result of an item."""
    return _RESULT.decode(entry.value)


def decode_assignment(entry: Entry) -> AssignmentRecord:
    """Decode the record of the items that were assigned to a node when one of its runs began."""
    return _ASSIGNED.decode(entry.value)
