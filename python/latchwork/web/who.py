"""Who asks, found out for each request: by a bearer token, or by a cookie together with proof that our page asks."""

from __future__ import annotations

import hmac
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from latchwork.web.identity import Accounts, Identity
from latchwork.web.problems import Problem

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_HEADER = "x-csrf-token"
CSRF_FIELD = "csrf"


async def who(request: Request) -> Identity:
    """Who asks.

    Raises:
        Problem: nobody that we know (401), or a change that none of our pages asked for (403).
    """
    accounts: Accounts = request.app.state.site.accounts
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind:
        found = await run_in_threadpool(accounts.of_token, token.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise _unknown("this token is not valid; make one on the page of your account")
        return found
    cookie = request.cookies.get(request.app.state.site.cookie, "")
    found = await run_in_threadpool(accounts.of_cookie, cookie) if cookie else None
    if found is None:
        raise _unknown("sign in first, or send a token: `Authorization: Bearer ...`")
    if request.method not in SAFE:
        check_origin(request)
        await _check_csrf(request, found)
    return found


Who = Annotated[Identity, Depends(who)]


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
