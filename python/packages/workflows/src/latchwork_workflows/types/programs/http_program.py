"""Process of an ``http`` task: reads a request from a file, sends it, and reports the response.

Imports no other module of latchwork.
"""

# ruff: noqa: T201 - printed text is the log of the task

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

#: Maximum number of bytes of a response that are read.
_MAX_BYTES = 10_000_000
_MAX_OUTPUT = 10_000
#: Maximum length and nesting depth of a line of outputs. A larger one could be refused.
_MAX_LINE = 60_000
_MAX_DEPTH = 20
#: Headers to keep on a redirect to another origin. Any other header may be a credential.
_KEPT = frozenset({"accept", "accept-language", "user-agent"})


class Truncated(Exception):
    """A response ended too early."""


def main(path: str) -> int:
    """Send the HTTP request that a file describes, and write the outputs of the task."""
    sys.path.pop(0)  # the folder of this file contains other programs
    call = json.loads(Path(path).read_text(encoding="utf-8"))  # noqa: TID251 - written by the worker for this process
    Path(path).unlink()  # it may have a token
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request

    data, headers = None, dict(call["headers"])
    if call["json_body"] is not None:
        data = json.dumps(call["json_body"]).encode()
        headers.setdefault("Content-Type", "application/json")
    elif call["body"] is not None:
        data = call["body"].encode()
    try:
        request = Request(call["url"], data, headers, method=call["method"])  # noqa: S310 - http and https alone
        if request.type not in {"http", "https"}:
            print(f"{request.type} is not a supported scheme", file=sys.stderr)
            return 1
        try:
            answer = build_opener().open(request, timeout=call["timeout_s"])
        except HTTPError as error:
            answer = error
        with answer:
            status, headers, body = answer.status, answer.headers, read_body(answer)
    except (URLError, OSError, ValueError, HTTPException, Truncated) as error:
        print(f"{type(error).__name__}: {getattr(error, 'reason', None) or error}", file=sys.stderr)
        return 1
    text, kind = decode_body(body, headers.get_content_charset()), headers.get_content_type()
    print(f"{call['method']} answered {status}, {len(body)} bytes")
    print(text[:_MAX_OUTPUT])
    write_outputs(status, parse_output(text, kind))
    return compute_exit_code(call, status, text)


def build_opener() -> Any:
    """Return a URL opener that follows only HTTP redirects, and sends no credentials to another origin."""
    from urllib.error import HTTPError
    from urllib.parse import urlsplit
    from urllib.request import HTTPRedirectHandler, build_opener

    def origin(url: str) -> tuple[str, str | None, int | None]:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)

    class Redirects(HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:  # noqa: PLR0917
            if not newurl.startswith(("http://", "https://")):
                raise HTTPError(newurl, code, f"redirected to {newurl[:100]!r}, which is not HTTP", headers, fp)
            made = super().redirect_request(req, fp, code, msg, headers, newurl)
            if made is not None and origin(newurl) != origin(req.full_url):
                made.headers = {name: value for name, value in made.headers.items() if name.lower() in _KEPT}
            return made

    return build_opener(Redirects())


def read_body(answer: Any) -> bytes:
    """Read the body of an HTTP response.

    Raises:
        Truncated: The body is shorter than the length in the response header.
    """
    body: bytes = answer.read(_MAX_BYTES)
    left = getattr(answer, "length", None)  # None: as long as the connection lasts
    if left and len(body) < _MAX_BYTES:
        raise Truncated(f"the answer ended after {len(body):,} bytes; {left:,} more were announced")
    return body


def decode_body(body: bytes, charset: str | None) -> str:
    """Decode the body of a response, in the character set of its header or as UTF-8."""
    try:
        text = body.decode(charset or "utf-8-sig", "replace")
    except (LookupError, ValueError):
        text = body.decode("utf-8-sig", "replace")
    return text.encode("utf-8", "replace").decode("utf-8")  # some character sets decode to surrogates


def parse_output(text: str, kind: str) -> Any:
    """Parse the body of a response. If it is not a JSON value that can be an output, return the start of the text.

    Args:
        text: The body.
        kind: The content type of the response.
    """
    if kind.endswith("json") and len(text) <= _MAX_OUTPUT:
        try:
            value = json.loads(text)  # noqa: TID251 - a separate process, and outputs are checked again
            line = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
            if len(line) <= _MAX_LINE and compute_json_depth(value) <= _MAX_DEPTH:
                return value
        except (ValueError, RecursionError):
            pass
    return text[:_MAX_OUTPUT]


def compute_json_depth(value: Any) -> int:
    """Return the nesting depth of a JSON value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(compute_json_depth, inner), default=0)


def write_outputs(status: int, body: Any) -> None:
    """Write the status and the body of the response as outputs of the task."""
    with Path(os.environ["LATCHWORK_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.write(f"#json {json.dumps({'status': status, 'body': body}, ensure_ascii=False)}\n")


def compute_exit_code(call: dict[str, Any], status: int, text: str) -> int:
    """Return the exit code of the task: 0 if the response counts as success, otherwise 1.

    Args:
        call: The parameters of the task.
        status: The status of the response.
        text: The body of the response.
    """
    wanted = call["success"] or range(200, 300)
    if status not in wanted:
        print(f"status {status} does not count as success", file=sys.stderr)
        return 1
    if call["contains"] not in text:
        print(f"the answer does not contain {call['contains']!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
