"""A middleware around all routes and static files: response headers, allowed hosts and request size limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from latchwork_workflows.web.problems import HttpProblem

#: Scripts and styles come only from our files, so text from a database cannot become one.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
MAX_BYTES = 5_000_000
_MAX_DRAINED = 20 * MAX_BYTES
_TOO_LARGE = 413


class SafetyMiddleware:
    """Adds headers to every response. Refuses unknown host names and requests that are too large.

    Args:
        app: The wrapped app.
        hosts: The host names that browsers may use, without port. ``*``: any. Otherwise a page of another site whose
            name resolves to this server could use the browser's rights (DNS rebinding).
        larger: The limits in bytes of paths that accept larger requests.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], larger: Mapping[str, int]) -> None:
        self._app = app
        self._hosts = frozenset(each.lower() for each in hosts)
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._larger.get(scope["path"], MAX_BYTES)
        problem = self._check_request(Headers(scope=scope), limit)
        if problem is not None:
            if problem.status == _TOO_LARGE:
                await _drain_request(receive)
            await problem.to_response()(scope, receive, _with_headers(send))
            return
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise _too_large(limit)
            return message

        try:
            await self._app(scope, limited, _with_headers(send))
        except HttpProblem as error:  # raised by ``limited`` above
            await error.to_response()(scope, receive, _with_headers(send))

    def _check_request(self, headers: Headers, limit: int) -> HttpProblem | None:
        host = headers.get("host", "").lower()
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        if "*" not in self._hosts and name not in self._hosts:
            return HttpProblem(
                400,
                f"{name[:100]!r} is not a host name of this server; allow it with --host or --allowed-host",
            )
        length = headers.get("content-length", "0")
        return _too_large(limit) if not length.isdigit() or int(length) > limit else None


async def _drain_request(receive: Receive) -> None:
    """Read and discard the rest of a request, up to a limit. A client that is still sending could miss the response
    otherwise.
    """
    seen, is_more = 0, True
    while is_more and seen < _MAX_DRAINED:
        message = await receive()
        seen += len(message.get("body", b""))
        is_more = message["type"] == "http.request" and message.get("more_body", False)


def _too_large(limit: int) -> HttpProblem:
    return HttpProblem(_TOO_LARGE, f"the request is larger than {limit:,} bytes")


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sending
