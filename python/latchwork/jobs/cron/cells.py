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

from latchwork.errors import LatchworkError
from latchwork.schedules import Fired

FIRED = "fired"


class BadCell(LatchworkError, ValueError):
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
        body, listed = json.loads(state), json.loads(items)
        rules = body.get("rules", [""] * len(body["fired"]))
        kinds = [
            Fired(float(through), None if running is None else float(running), str(rule))
            for (through, running), rule in zip(body["fired"], rules, strict=True)
        ]
        runs = body.get("of", [[0, len(listed)]])
        fired = [kinds[index] for index, count in runs for _ in range(count)]
        cell = Cell(name, int(body["token"]), str(body["owner"]), tuple(map(str, listed)), tuple(fired))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        msg = f"progress cell {name} cannot be read: {type(error).__name__}: {error}"
        raise BadCell(msg) from error
    if len(cell.items) != len(cell.fired) or not cell.items:
        msg = f"progress cell {name} cannot be read: it has {len(cell.items)} items and {len(cell.fired)} states"
        raise BadCell(msg)
    return cell


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
