"""Who asks, and what they may do.

Found out for each request: by a bearer token, or by a cookie together with proof that our page asks.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Annotated, NamedTuple, Protocol
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from latchwork.errors import Unavailable
from latchwork_workflows.web.live import aside
from latchwork_workflows.web.problems import Problem

#: The project that stands for all, and for what belongs to none.
EVERYWHERE = ""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_HEADER = "x-csrf-token"
CSRF_FIELD = "csrf"
#: Who may not see something any more.
_NO = frozenset({401, 403, 404})
#: Where the scope of a request has its identity, if the app is called in the same process.
_KNOWN = "latchwork.identity"


class Role(IntEnum):
    """What somebody may do; each role may do what those before it may."""

    VIEWER = 1
    OPERATOR = 2
    EDITOR = 3
    ADMIN = 4

    @property
    def word(self) -> str:
        """As people write it."""
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Role:
        """The role of this name.

        Raises:
            ValueError: there is none.
        """
        try:
            return cls[word.upper()]
        except KeyError:
            known = ", ".join(each.word for each in cls)
            raise ValueError(f"there is no role {word[:40]!r}; there are {known}") from None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks.

    Attributes:
        name: of the account.
        roles: by project; that of the empty project counts in all.
        csrf: what a browser sends with each change; empty: this is no browser.
        by_token: whether a token proved it, which is less than a person who signed in.
    """

    name: str
    roles: Mapping[str, Role] = field(default_factory=dict)
    csrf: str = ""
    by_token: bool = False

    def may(self, role: Role, project: str = EVERYWHERE) -> bool:
        """Whether they have this role, or a higher one, in a project."""
        return max(self.roles.get(EVERYWHERE, 0), self.roles.get(project, 0)) >= role

    def may_somewhere(self, role: Role) -> bool:
        """Whether they have it in some project."""
        return any(each >= role for each in self.roles.values())

    def projects(self, role: Role = Role.VIEWER) -> frozenset[str] | None:
        """The projects in which they have it; None: all."""
        if self.may(role):
            return None
        return frozenset(name for name, each in self.roles.items() if each >= role)

    def at_most(self, role: Role | None) -> Identity:
        """The same with no role above this one."""
        if role is None:
            return self
        return replace(self, roles={name: min(each, role) for name, each in self.roles.items()})


class SignedIn(NamedTuple):
    """A browser that was signed in.

    Attributes:
        cookie: what it shows from now on.
        lasts_s: seconds until it is asked again.
    """

    cookie: str
    lasts_s: float


class Accounts(Protocol):
    """Where accounts are. Its methods block, and are called by several threads at once."""

    def of_cookie(self, cookie: str) -> Identity | None:
        """Whose browser this is; None: nobody's, or no more."""
        ...

    def of_token(self, token: str) -> Identity | None:
        """Whose program this is; None: nobody's, or no more."""
        ...

    def sign_in(self, name: str, password: str) -> SignedIn | None:
        """A new session of a browser; None: wrong name or password, which of the two is not told.

        Raises:
            TooManyTries: this name was tried too often.
        """
        ...

    def sign_in_by_link(self, link: str) -> SignedIn | None:
        """A new session by a link that is good once; None: it was used, or its time is over."""
        ...

    def sign_out(self, cookie: str) -> None:
        """End the session of a browser."""
        ...


async def who(request: Request) -> Identity:
    """Who asks.

    Raises:
        Problem: nobody that we know (401), or a change that none of our pages asked for (403).
    """
    found = await run_in_threadpool(_identified, request)
    if _KNOWN in request.scope or request.headers.get("authorization"):
        return found
    if request.method not in SAFE:
        check_origin(request)
        await _check_csrf(request, found)
    return found


Who = Annotated[Identity, Depends(who)]


def asked_by(app: ASGIApp, identity: Identity) -> ASGIApp:
    """Return an app that takes every request as one of this identity, for calls in the same process.

    Servers make the scope of a request themselves, so that no request of the network can have an identity in it.
    """

    async def known(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, _KNOWN: identity}, receive, send)

    return known


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
    if _KNOWN in request.scope:
        known: Identity = request.scope[_KNOWN]
        return known
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
