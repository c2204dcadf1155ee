"""The process of an ``http`` task: reads a request from a file, sends it, says how it was answered.

Imports nothing of ours.
"""

# ruff: noqa: T201 - what it prints is the log of the task

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

#: So much of an answer is read.
_MOST_BYTES = 10_000_000
_MOST_OUTPUT = 10_000


def main(path: str) -> int:
    """Send the request that the file has."""
    sys.path.pop(0)  # the folder of this file, which has names of other programs
    call = json.loads(Path(path).read_text(encoding="utf-8"))  # noqa: TID251 - written by the worker for this process
    Path(path).unlink()  # it may have a token
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, build_opener

    data, headers = None, dict(call["headers"])
    if call["json_body"] is not None:
        data = json.dumps(call["json_body"]).encode()
        headers.setdefault("Content-Type", "application/json")
    elif call["body"] is not None:
        data = call["body"].encode()
    try:
        request = Request(call["url"], data, headers, method=call["method"])  # noqa: S310 - http and https alone
        if request.type not in {"http", "https"}:
            print(f"{request.type} is no scheme of a request", file=sys.stderr)
            return 1
        with build_opener().open(request, timeout=call["timeout_s"]) as answer:
            status, body, kind = answer.status, answer.read(_MOST_BYTES), answer.headers.get_content_type()
    except HTTPError as error:
        status, body, kind = error.code, error.read(_MOST_BYTES), error.headers.get_content_type()
    except (URLError, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {getattr(error, 'reason', None) or error}", file=sys.stderr)
        return 1
    text = body.decode("utf-8", "replace")
    print(f"{call['method']} answered {status}, {len(body)} bytes")
    print(text[:_MOST_OUTPUT])
    write(status, parsed(text, kind))
    return judged(call, status, text)


def parsed(text: str, kind: str) -> Any:
    """JSON as its value, all else as text; as far as it is an output."""
    if kind.endswith("json") and len(text) <= _MOST_OUTPUT:
        try:
            return json.loads(text)  # noqa: TID251 - a process of its own, and an output is checked again
        except ValueError:
            pass
    return text[:_MOST_OUTPUT]


def write(status: int, body: Any) -> None:
    """The outputs."""
    with Path(os.environ["LATCHWORK_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.write(f"#json {json.dumps({'status': status, 'body': body})}\n")


def judged(call: dict[str, Any], status: int, text: str) -> int:
    """Whether that was a success."""
    wanted = call["success"] or range(200, 300)
    if status not in wanted:
        print(f"status {status} is none that counts as success", file=sys.stderr)
        return 1
    if call["contains"] not in text:
        print(f"the answer does not contain {call['contains']!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
