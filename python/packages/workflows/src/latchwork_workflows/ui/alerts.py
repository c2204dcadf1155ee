"""Pages of alerts, their deliveries and channels."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from latchwork_workflows.alerts import KINDS
from latchwork_workflows.api.models import MAX_ID, Id
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.model import format_as_yaml, parse_yaml
from latchwork_workflows.services import alerts as service
from latchwork_workflows.services.context import get_context
from latchwork_workflows.ui.page_helpers import paginate, redirect, render_page
from latchwork_workflows.web import CurrentUser, HttpProblem, Identity, Role

router = APIRouter()
_MAX = 50
_Word = Annotated[str, Form(max_length=200)]
_Options = Annotated[str, Form(max_length=20_000)]


@router.get("/alerts", response_class=HTMLResponse)
def list_alerts(
    request: Request,
    user: CurrentUser,
    state: Annotated[str, Query(max_length=20)] = "",
    run: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
    before: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
) -> HTMLResponse:
    """Show alerts with their deliveries, newest first. Administrators also see the channels."""
    rows = service.list_alerts(get_context(request), user, state=state, run=run, before=before, limit=_MAX + 1)
    shown, more = rows[:_MAX], ""
    if len(rows) > _MAX:
        _, more = paginate(rows, _MAX, "/alerts", state=state, run=run)
    return _shown(request, user, rows=shown, older=more, state=state, run=run)


@router.post("/alerts/{delivery_id}/resend")
def resend_delivery(request: Request, user: CurrentUser, delivery_id: Id) -> Response:
    """Send an alert again to one of its channels."""
    service.resend_delivery(get_context(request), user, delivery_id)
    return redirect("/alerts")


@router.post("/channels", response_class=HTMLResponse)
def set_channel(
    *, request: Request, user: CurrentUser, name: _Word, kind: _Word, options: _Options = "", enabled: _Word = "yes"
) -> Response:
    """Create or change an alert channel."""
    try:
        given = parse_yaml(options) if options.strip() else {}
    except DefinitionInvalid as error:
        raise HttpProblem(422, f"options: {error}", errors=[("options", str(error))]) from None
    service.set_channel(get_context(request), user, name, kind, given, enabled=enabled != "no")
    return redirect("/alerts")


@router.post("/channels/{name}/test")
def send_test_alert(request: Request, user: CurrentUser, name: str) -> Response:
    """Send a test message through an alert channel."""
    service.send_test_alert(get_context(request), user, name[:100])
    return redirect("/alerts")


@router.post("/channels/{name}/remove")
def remove_channel(request: Request, user: CurrentUser, name: str) -> Response:
    """Delete an alert channel."""
    service.remove_channel(get_context(request), user, name[:100])
    return redirect("/alerts")


def _shown(request: Request, user: Identity, **values: Any) -> HTMLResponse:
    ways = service.list_channels(get_context(request), user) if user.has_role(Role.ADMIN) else None
    texts = {each.name: format_as_yaml(each.options) for each in ways or ()}
    states = service.STATES
    return render_page(
        request, user, "alerts.html", channels=ways, texts=texts, kinds=list(KINDS), states=states, **values
    )
