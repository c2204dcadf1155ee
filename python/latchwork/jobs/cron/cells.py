"""The stored format of a share's progress through its fire times. Pure.

Keys:   fired/<job>/<cell>         JSON; how far the items of one cell are, rewritten at each start and each end
        fired/<job>/<cell>/items   JSON list; the items of the cell, sorted, written once

A cell belongs to one holder of locks and names the greatest fencing token of its items' locks. A later holder of an
item has a greater token, so of two cells with one item that with the greater token is newer, whenever it was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from latchwork.errors import BadRecord
from latchwork.records import Record, read_json, short
from latchwork.schedules import Fired

FIRED = "fired"


class BadCell(BadRecord):
    """Stored progress cannot be read: something else wrote it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The progress of some items that one holder has locked; its name is never used twice.

    Attributes:
        items: sorted, unique, not empty.
        fired: the progress of each item, in the same order.
    """

    name: str
    token: int
    owner: str
    items: tuple[str, ...]
    fired: tuple[Fired, ...]

    def state(self, nonce: str) -> bytes:
        """The value of its state key; the nonce tells one write from another."""
        kinds = list(dict.fromkeys(self.fired))
        number = {kind: index for index, kind in enumerate(kinds)}
        body: dict[str, Any] = {
            "token": self.token,
            "owner": self.owner,
            "nonce": nonce,
            "fired": [[kind.through, kind.running] for kind in kinds],
        }
        if any(kind.rule for kind in kinds):
            body["rules"] = [kind.rule for kind in kinds]
        if len(kinds) > 1:
            body["of"] = [[index, len(list(run))] for index, run in groupby(number[each] for each in self.fired)]
        return json.dumps(body, separators=(",", ":")).encode()

    def names(self) -> bytes:
        """The value of its items key."""
        return json.dumps(self.items, ensure_ascii=False, separators=(",", ":")).encode()


def decode_cell(name: str, state: bytes, items: bytes) -> Cell:
    """Decode a cell.

    Raises:
        BadCell: the values are no cell.
    """
    try:
        body = Record.of(state)
        listed = Record({"items": read_json(items)}).texts("items")
        fired = _decode_fired(body, len(listed))
        return Cell(name, body.whole("token"), body.text("owner"), listed, fired)
    except BadRecord as error:
        raise BadCell(f"progress cell {name} cannot be read: {error}") from None


def _decode_fired(body: Record, count: int) -> tuple[Fired, ...]:
    """The progress of each of so many items; nothing is made before the runs are known to be as long."""
    if not count:
        raise BadRecord("it has no items")
    pairs = _lists_of_two(body, "fired")
    rules = body.texts("rules") if body.has("rules") else ("",) * len(pairs)
    if len(rules) != len(pairs):
        raise BadRecord(f"it has {len(pairs)} states and {len(rules)} rules")
    kinds = [_decode_kind(pair[0], pair[1], rule) for pair, rule in zip(pairs, rules, strict=True)]
    runs = _lists_of_two(body, "of") if body.has("of") else [[0, count]]
    for index, length in runs:
        if type(index) is not int or not 0 <= index < len(kinds) or type(length) is not int or not 0 < length <= count:
            raise BadRecord(f"it has a run of states {short([index, length])}")
    if sum(length for _, length in runs) != count:
        raise BadRecord(f"it has {count} items, and states for {sum(length for _, length in runs)}")
    return tuple(kinds[index] for index, length in runs for _ in range(length))


def _decode_kind(through: object, running: object, rule: str) -> Fired:
    both = Record({"through": through, "running": running})
    return Fired(both.moment_s("through"), both.moment_s("running") if both.has("running") else None, rule)


def _lists_of_two(body: Record, name: str) -> list[list[Any]]:
    found = body.body.get(name)
    if not isinstance(found, list) or not all(isinstance(each, list) and len(each) == 2 for each in found):
        raise BadRecord(f"field {name!r} is {short(found)}, and has to be a list of pairs")
    return found


def newest_by_item(cells: Iterable[Cell]) -> dict[str, tuple[Cell, Fired]]:
    """Item to its newest cell, and its progress there."""
    found: dict[str, tuple[Cell, Fired]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.token, cell.name)):
        found.update({item: (cell, fired) for item, fired in zip(cell.items, cell.fired, strict=True)})
    return found


def useless(cells: Sequence[Cell], pool: frozenset[str] | None = None) -> list[Cell]:
    """The cells whose every item has a newer one, or is not in the pool any more."""
    newest = newest_by_item(cells)
    return [
        cell
        for cell in cells
        if all(newest[item][0] is not cell or (pool is not None and item not in pool) for item in cell.items)
    ]
