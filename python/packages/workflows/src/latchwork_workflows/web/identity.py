"""Identities and roles of users.

Each request is authenticated: by a bearer token, or by a cookie together with a proof that our page sent it.
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
from latchwork_workflows.web.live import run_in_stream_thread
from latchwork_workflows.web.problems import HttpProblem

#: The project that means all projects, and that of objects without a project.
EVERYWHERE = ""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_HEADER = "x-csrf-token"
CSRF_FIELD = "csrf"
#: The statuses that end a stream: the user may no longer see its contents.
_NO = frozenset({401, 403, 404})
#: The key of the identity in the scope of a request, if the app is called in the same process.
_KNOWN = "latchwork.identity"


class Role(IntEnum):
    """The roles, each of which includes the permissions of the ones before."""

    VIEWER = 1
    OPERATOR = 2
    EDITOR = 3
    ADMIN = 4

    @property
    def label(self) -> str:
        """The name of the role in lower case, as users see it."""
        return self.name.lower()

    @classmethod
    def from_label(cls, label: str) -> Role:
        """Return the role with this name.

        Raises:
            ValueError: There is no such role.
        """
        try:
            return cls[label.upper()]
        except KeyError:
            known = ", ".join(each.label for each in cls)
            raise ValueError(f"there is no role {label[:40]!r}; there are {known}") from None


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated user.

    Attributes:
        name: The name of the account.
        roles: Roles by project. The role of the empty project applies to all projects.
        csrf: The token that a browser sends with each change. Empty: not a browser session.
        by_token: Whether the user was authenticated by an API token, which has fewer rights than a signed-in user.
    """

    name: str
    roles: Mapping[str, Role] = field(default_factory=dict)
    csrf: str = ""
    by_token: bool = False

    def has_role(self, role: Role, project: str = EVERYWHERE) -> bool:
        """Return whether the user has this role or a higher one in a project."""
        return max(self.roles.get(EVERYWHERE, 0), self.roles.get(project, 0)) >= role

    def has_any_role(self, role: Role) -> bool:
        """Return whether the user has this role or a higher one in any project."""
        return any(each >= role for each in self.roles.values())

    def get_projects(self, role: Role = Role.VIEWER) -> frozenset[str] | None:
        """Return the projects in which the user has at least this role, or None if the user has it in all projects."""
        if self.has_role(role):
            return None
        return frozenset(name for name, each in self.roles.items() if each >= role)

    def limit_to(self, role: Role | None) -> Identity:
        """Return a copy of the identity whose roles are at most this one."""
        if role is None:
            return self
        return replace(self, roles={name: min(each, role) for name, each in self.roles.items()})


class SignedIn(NamedTuple):
    """A new session of a browser.

    Attributes:
        cookie: The value of the session cookie.
        lasts_s: Seconds until it expires.
    """

    cookie: str
    lasts_s: float


class Accounts(Protocol):
    """The interface to accounts. Its methods block. Thread-safe."""

    def find_identity_by_cookie(self, cookie: str) -> Identity | None:
        """Return the identity of a session cookie, or None if there is no such session or it has expired."""
        ...

    def find_identity_by_token(self, token: str) -> Identity | None:
        """Return the identity of an API token, or None if there is no such token or it has expired."""
        ...

    def sign_in(self, name: str, password: str) -> SignedIn | None:
        """Create a session for a browser, or return None if the name or the password is wrong.

        Raises:
            TooManyAttempts: There were too many attempts for this name.
        """
        ...

    def sign_in_by_link(self, link: str) -> SignedIn | None:
        """Create a session from a one-time link, or return None if the link was used or has expired."""
        ...

    def sign_out(self, cookie: str) -> None:
        """End the session of a browser."""
        ...


async def current_user(request: Request) -> Identity:
    """Return the user who made a request.

    Raises:
        HttpProblem: 401 (unauthorized) if the user is unknown, 403 (forbidden) if a page of another site sent the
            request.
    """
    found = await run_in_threadpool(_authenticate, request)
    if _KNOWN in request.scope or request.headers.get("authorization"):
        return found
    if request.method not in SAFE:
        check_origin(request)
        await _check_csrf(request, found)
    return found


CurrentUser = Annotated[Identity, Depends(current_user)]


def wrap_with_identity(app: ASGIApp, identity: Identity) -> ASGIApp:
    """Wrap an app so that every request is handled as this user, for calls within the process.

    Requests from the network cannot set a user, because servers build the scope of a request themselves.
    """

    async def known(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, _KNOWN: identity}, receive, send)

    return known


async def is_still_allowed(request: Request, check_access: Callable[[Identity], object]) -> bool:
    """Return whether a stream may continue: the token or session of its request is still valid and allows its contents.

    Args:
        request: The request that opened the stream.
        check_access: Raises ``HttpProblem`` if this account may not see the contents of the stream. It may block.
    """
    try:
        await run_in_stream_thread(lambda: check_access(_authenticate(request)))
    except HttpProblem as problem:
        return problem.status not in _NO
    except Unavailable:
        return True  # unknown: the stream fails by itself if it cannot read
    return True


def _authenticate(request: Request) -> Identity:
    """Return the user that the cookie or the token of a request belongs to. Blocks.

    Raises:
        HttpProblem: 401 (unauthorized) if there is no such user.
    """
    if _KNOWN in request.scope:
        known: Identity = request.scope[_KNOWN]
        return known
    accounts: Accounts = request.app.state.site.accounts
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind:
        found = accounts.find_identity_by_token(token.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise _unauthorized("this token is not valid; create one on the page of your account")
        return found
    cookie = request.cookies.get(request.app.state.site.cookie, "")
    found = accounts.find_identity_by_cookie(cookie) if cookie else None
    if found is None:
        raise _unauthorized("sign in first, or send a token: `Authorization: Bearer ...`")
    return found


def check_origin(request: Request) -> None:
    """Check that a request that changes something was not sent by a page of another origin.

    Browsers send the origin. Programs do not send it, and are accepted.

    Raises:
        HttpProblem: The request comes from another origin.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site not in {None, "same-origin", "none"}:
        raise HttpProblem(403, f"a page of another site requested this change ({site[:20] if site else ''})")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise HttpProblem(403, "a page of another origin requested this change")


async def _check_csrf(request: Request, identity: Identity) -> None:
    given = request.headers.get(CSRF_HEADER, "")
    if not given and request.headers.get("content-type", "").startswith(
        ("application/x-www-form-urlencoded", "multipart/form-data")
    ):
        value = (await request.form()).get(CSRF_FIELD, "")
        given = value if isinstance(value, str) else ""
    if not identity.csrf or not hmac.compare_digest(given.encode(), identity.csrf.encode()):
        raise HttpProblem(403, f"the CSRF token of this change is not valid; reload the page ({CSRF_HEADER})")


def _unauthorized(detail: str) -> HttpProblem:
    return HttpProblem(401, detail, headers={"WWW-Authenticate": 'Bearer realm="latchwork"'})
