"""One attempt: how it went, and its log, followed while it grows."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from latchwork_workflows.api.models import MOST_ID
from latchwork_workflows.api.runs import AttemptId
from latchwork_workflows.services import attempts as desk
from latchwork_workflows.services import runs
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.ui.frame import page
from latchwork_workflows.web import Who

router = APIRouter()
_PART = 65_536


@router.get("/attempts/{attempt_id}", response_class=HTMLResponse)
def show_attempt(
    request: Request, who: Who, attempt_id: AttemptId, offset: Annotated[int | None, Query(ge=0, le=MOST_ID)] = None
) -> HTMLResponse:
    """The end of the log, or the part that begins at an offset."""
    parts = parts_of(request)
    found = desk.find(parts, who, attempt_id)
    row = runs.row_of(parts, who, found.task.instance)
    part = None
    if parts.logs is not None:
        part = desk.tail(parts, found, _PART) if offset is None else desk.read(parts, found, offset, _PART)
    values = {"attempt": found.attempt, "task": found.task, "row": row, "part": part, "attempt_id": attempt_id}
    earlier = max(0, part.offset - _PART) if part is not None and part.offset else None
    return page(request, who, "attempt.html", earlier=earlier, is_end=offset is None, **values)
