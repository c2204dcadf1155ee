"""Pages of alerts, their deliveries and channels."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from latchwork_workflows.alerts import KINDS
from latchwork_workflows.api.models import MOST_ID, Id
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.model import as_yaml, read
from latchwork_workflows.services import alerts as desk
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.ui.frame import led, older, page
from latchwork_workflows.web import Identity, Problem, Role, Who

router = APIRouter()
_MOST = 50
_Word = Annotated[str, Form(max_length=200)]
_Options = Annotated[str, Form(max_length=20_000)]


@router.get("/alerts", response_class=HTMLResponse)
def alerts(
    request: Request,
    who: Who,
    state: Annotated[str, Query(max_length=20)] = "",
    run: Annotated[int | None, Query(ge=1, le=MOST_ID)] = None,
    before: Annotated[int | None, Query(ge=1, le=MOST_ID)] = None,
) -> HTMLResponse:
    """Show alerts and their deliveries, newest first. Administrators also see the channels."""
    rows = desk.listed(parts_of(request), who, state=state, run=run, before=before, most=_MOST + 1)
    shown, more = rows[:_MOST], ""
    if len(rows) > _MOST:
        _, more = older(rows, _MOST, "/alerts", state=state, run=run)
    return _shown(request, who, rows=shown, older=more, state=state, run=run)


@router.post("/alerts/{delivery_id}/resend")
def resend(request: Request, who: Who, delivery_id: Id) -> Response:
    """Send a delivery again."""
    desk.resend(parts_of(request), who, delivery_id)
    return led("/alerts")


@router.post("/channels", response_class=HTMLResponse)
def set_channel(
    *, request: Request, who: Who, name: _Word, kind: _Word, options: _Options = "", enabled: _Word = "yes"
) -> Response:
    """Create or change a channel."""
    try:
        given = read(options) if options.strip() else {}
    except DefinitionInvalid as error:
        raise Problem(422, f"options: {error}", errors=[("options", str(error))]) from None
    desk.set_channel(parts_of(request), who, name, kind, given, enabled=enabled != "no")
    return led("/alerts")


@router.post("/channels/{name}/test")
def test_channel(request: Request, who: Who, name: str) -> Response:
    """Send a test through a channel."""
    desk.test_channel(parts_of(request), who, name[:100])
    return led("/alerts")


@router.post("/channels/{name}/remove")
def remove_channel(request: Request, who: Who, name: str) -> Response:
    """Delete a channel."""
    desk.remove_channel(parts_of(request), who, name[:100])
    return led("/alerts")


def _shown(request: Request, who: Identity, **values: Any) -> HTMLResponse:
    ways = desk.channels(parts_of(request), who) if who.may(Role.ADMIN) else None
    texts = {each.name: as_yaml(each.options) for each in ways or ()}
    states = desk.STATES
    return page(request, who, "alerts.html", channels=ways, texts=texts, kinds=list(KINDS), states=states, **values)
