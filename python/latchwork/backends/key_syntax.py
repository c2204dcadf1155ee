"""The syntax of keys, also for backends that may find keys of other programs below their root.

Invalid keys are skipped: they are not listed, imply no parents and change nothing. They are counted, and each is named
once in a warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from latchwork._base.interrupts import mutex
from latchwork.errors import QuotaExceeded

_log = logging.getLogger(__name__)

#: Maximum number of characters of a segment.
MAX_SEGMENT = 120
#: Number of digits in the suffix of a sequential key.
SUFFIX_DIGITS = 10
#: Maximum number of characters and segments of a key with its namespaces, without the root of the URL.
MAX_KEY_CHARS, MAX_KEY_SEGMENTS = 5_000, 64
#: The same limits for a namespace including the ones around it, and for the root of a URL.
MAX_PREFIX_CHARS, MAX_PREFIX_SEGMENTS = 400, 12
#: The same limits for the name of a primitive, such as the lock of an item of a job. Even in the longest namespace,
#: they leave 600 characters and 12 segments for the keys below the name.
MAX_NAME_CHARS, MAX_NAME_SEGMENTS = 4_000, 40
SEGMENT = rf"(?!\.{{1,2}}(?:/|\Z))[A-Za-z0-9._~%@:+=,-]{{1,{MAX_SEGMENT}}}"
_KEY = re.compile(rf"{SEGMENT}(?:/{SEGMENT})*\Z")
#: Maximum number of invalid keys that are remembered, and that one warning names; and characters shown of each.
_MAX_REMEMBERED, _MAX_NAMED, _SHOWN_CHARS = 1_000, 5, 100


def append_number(key: str, number: int) -> str:
    """Return a key with a sequential number appended, padded with zeros to ten digits.

    Raises:
        QuotaExceeded: The number has more digits, so that the key would sort before others.
    """
    if number >= 10**SUFFIX_DIGITS:
        raise QuotaExceeded(f"all numbers of sequential keys next to {key!r} have been used; use another parent")
    return f"{key}{number:0{SUFFIX_DIGITS}d}"


def is_too_long(text: str, chars: int = MAX_KEY_CHARS, segments: int = MAX_KEY_SEGMENTS) -> bool:
    """Return whether a key has more characters or segments than allowed."""
    return len(text) > chars or text.count("/") >= segments


def describe_size(text: str, chars: int = MAX_KEY_CHARS, segments: int = MAX_KEY_SEGMENTS) -> str:
    """Describe the size of a key that is too long, for an error message.

    Args:
        text: The key.
        chars: The allowed number of characters.
        segments: The allowed number of segments.
    """
    return (
        f"has {len(text):,} characters and {text.count('/') + 1:,} segments, "
        f"and may have {chars:,} and {segments}; use a shorter one"
    )


def is_key(text: str) -> bool:
    """Return whether a text is a valid key, relative to the root of the store. Reserved keys count as valid.

    Takes time proportional to the length of the text.
    """
    return _KEY.match(text) is not None


class InvalidKeys:
    """Counts invalid keys below a root, and logs a warning once for each. Thread-safe.

    Args:
        where: The root, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = mutex()
        self._seen: set[bytes | str] = set()

    @property
    def count(self) -> int:
        """The number of invalid keys that were found, at most a thousand."""
        return len(self._seen)

    def record(self, found: Iterable[bytes | str]) -> None:
        """Record invalid keys. Keys that were recorded before are ignored."""
        if not found:
            return
        with self._lock:
            left = _MAX_REMEMBERED - len(self._seen)
            new = [key for key in dict.fromkeys(found) if key not in self._seen][:left]
            self._seen.update(new)
            is_full = bool(new) and len(self._seen) == _MAX_REMEMBERED
        if new:
            named = ", ".join(ascii(key)[:_SHOWN_CHARS] for key in new[:_MAX_NAMED])
            more = f" and {len(new) - _MAX_NAMED} more" if len(new) > _MAX_NAMED else ""
            last = "; further ones are skipped without a warning" if is_full else ""
            _log.warning(
                "%d names below %s are not valid keys (another program wrote them) and are skipped: %s%s%s",
                len(new),
                self._where,
                named,
                more,
                last,
            )
