"""Who asks, found out for each request: by a bearer token, or by a cookie together with proof that our page asks."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from latchwork.errors import Unavailable
from latchwork_workflows.web.identity import Accounts, Identity
from latchwork_workflows.web.live import aside
from latchwork_workflows.web.problems import Problem

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_HEADER = "x-csrf-token"
CSRF_FIELD = "csrf"
#: Who may not see something any more.
_NO = frozenset({401, 403, 404})


async def who(request: Request) -> Identity:
    """Who asks.

    Raises:
        Problem: nobody that we know (401), or a change that none of our pages asked for (403).
    """
    found = await run_in_threadpool(_identified, request)
    if request.headers.get("authorization"):
        return found
    if request.method not in SAFE:
        check_origin(request)
        await _check_csrf(request, found)
    return found


Who = Annotated[Identity, Depends(who)]


async def may_still(request: Request, look: Callable[[Identity], object]) -> bool:
    """Whether who asked for a stream may go on with it: the token or session is good, and they may see what it is of.

    Args:
        request: by which they did.
        look: raises a ``Problem`` if they may not see it; blocks.
    """
    try:
        await aside(lambda: look(_identified(request)))
    except Problem as problem:
        return problem.status not in _NO
    except Unavailable:
        return True  # nobody can say; the stream's own looks fail by themselves
    return True


def _identified(request: Request) -> Identity:
    """Who asks; blocks. Raises 401."""
    accounts: Accounts = request.app.state.site.accounts
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind:
        found = accounts.of_token(token.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise _unknown("this token is not valid; make one on the page of your account")
        return found
    cookie = request.cookies.get(request.app.state.site.cookie, "")
    found = accounts.of_cookie(cookie) if cookie else None
    if found is None:
        raise _unknown("sign in first, or send a token: `Authorization: Bearer ...`")
    return found


def check_origin(request: Request) -> None:
    """Refuse a change that a page of another origin asks for. Browsers say which; programs say nothing.

    Raises:
        Problem: it does.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site not in {None, "same-origin", "none"}:
        raise Problem(403, f"this change was asked for by a page of another site ({site[:20] if site else ''})")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise Problem(403, "this change was asked for by a page of another origin")


async def _check_csrf(request: Request, identity: Identity) -> None:
    given = request.headers.get(CSRF_HEADER, "")
    if not given and request.headers.get("content-type", "").startswith(
        ("application/x-www-form-urlencoded", "multipart/form-data")
    ):
        value = (await request.form()).get(CSRF_FIELD, "")
        given = value if isinstance(value, str) else ""
    if not identity.csrf or not hmac.compare_digest(given.encode(), identity.csrf.encode()):
        raise Problem(
            403, f"the change has no valid proof that our page asked for it; load the page again ({CSRF_HEADER})"
        )


def _unknown(detail: str) -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": 'Bearer realm="latchwork"'})
