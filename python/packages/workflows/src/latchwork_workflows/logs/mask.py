"""Replaces secrets in a stream of bytes, also across the boundaries of chunks. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

STARS = b"***"
#: The minimum size in bytes of a line of a multi-line secret to be masked alone, so that single braces are not.
_MIN_LINE = 6


class Mask:
    """Replaces secrets in output by stars, also in the forms that they have in URLs, in JSON and line by line.

    Not thread-safe.

    Does not find values that a task has encoded in another way or split.

    Args:
        secrets: The values. Empty ones are ignored.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        values = sorted({form for each in secrets for form in _encodings(each)}, key=len, reverse=True)
        self._values = values
        self._longest = len(values[0]) if values else 0
        self._pattern = re.compile(b"|".join(re.escape(each) for each in values)) if values else None
        self._firsts = frozenset(each[0] for each in values)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Mask the next chunk of a stream and return the bytes that can be passed on.

        A suffix that may be the beginning of a secret is kept for the next call.
        """
        if self._pattern is None:
            return data
        whole = self._held + data
        parts, at = [], 0
        hold = self._find_possible_start(whole, 0)
        for found in self._pattern.finditer(whole):
            if found.start() >= hold:
                break
            parts += [whole[at : found.start()], STARS]
            at = found.end()
            if at > hold:
                hold = self._find_possible_start(whole, at)
        self._held = whole[max(at, hold) :]
        return b"".join([*parts, whole[at : max(at, hold)]])

    def flush(self) -> bytes:
        """Return the bytes that ``feed`` has kept. Called at the end of the stream."""
        rest, self._held = self._held, b""
        return self.mask_bytes(rest)

    def mask_bytes(self, data: bytes) -> bytes:
        """Return a copy of the bytes with all secrets masked. Does not affect the stream of ``feed``."""
        return data if self._pattern is None else self._pattern.sub(STARS, data)

    def mask_text(self, text: str) -> str:
        """Return a copy of the text with all secrets masked. Does not affect the stream of ``feed``."""
        return self.mask_bytes(text.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

    def _find_possible_start(self, whole: bytes, first: int) -> int:
        """Return the position of the longest suffix that may be the beginning of a secret.

        Args:
            whole: The bytes to search.
            first: The first position to consider.
        """
        for at in range(max(first, len(whole) - self._longest + 1), len(whole)):
            if whole[at] in self._firsts:
                end = whole[at:]
                if any(len(each) > len(end) and each.startswith(end) for each in self._values):
                    return at
        return len(whole)


def _encodings(secret: str) -> Iterable[bytes]:
    if not secret:
        return
    lines = [each for line in secret.splitlines() if len(each := line.strip()) >= _MIN_LINE]
    for text in (secret, secret.rstrip("\r\n"), *(lines if len(lines) > 1 else [])):
        for form in (text, quote(text, safe=""), quote(text), quote_plus(text), json.dumps(text)[1:-1]):
            if form:
                yield form.encode("utf-8", "surrogateescape")
