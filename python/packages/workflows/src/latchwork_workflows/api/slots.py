"""Who holds the slots of a task group or of a project, and who waits for one, as documents."""

from __future__ import annotations

from typing import Any

from latchwork_workflows.api import models as m
from latchwork_workflows.services.limiting.holding import Held


class SlotTaskRow(m.Document):
    """A task that holds a slot or waits for one; of one that may not be seen only ``since`` is said."""

    task: int | None
    name: str
    workflow: str
    run: int | None
    worker: str
    since: float | None


class HeldDocument(m.Document):
    """``holders``: one for each slot that is taken, null where the store cannot be asked; ``queue``: who is next."""

    holders: list[SlotTaskRow] | None
    queue: list[SlotTaskRow]


def held_fields(held: Held) -> dict[str, Any]:
    """What of it stands in a document."""
    return {"holders": held.holders, "queue": held.waiting}
