"""Which strategies placed the items, as the guard ``versions/assignment`` says it. Nothing here touches the network."""

from __future__ import annotations

import json
from collections.abc import Mapping

from latchwork.types import Entry

_LONGEST_NOTE = 2_000  # characters


def strategies_note(described: Mapping[str, str]) -> dict[str, object]:
    """What the guard says of the strategies; nothing when that would be long, for it is written with each change."""
    return {"strategies": dict(described)} if sum(map(len, [*described, *described.values()])) <= _LONGEST_NOTE else {}


def noted_strategies(guard: Entry | None) -> dict[str, str]:
    """The strategies that a guard says; none when it says nothing of them."""
    try:
        document = json.loads(guard.value) if guard is not None else {}
    except ValueError:
        document = {}
    found = document.get("strategies") if isinstance(document, dict) else None
    return {str(job): str(word) for job, word in found.items()} if isinstance(found, dict) else {}
