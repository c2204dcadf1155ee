"""What a task hands to those behind it: lines of the file that ``LATCHWORK_OUTPUT`` names. Pure.

rows=17               a value by name: a number or a list as JSON writes it, else text
report<<END           text of many lines, up to one that is END
...
END
#json {"rows": 17}    values of any type by name, as Python tasks write them
# anything            left out, as an empty line is
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from latchwork.errors import BadRecord
from latchwork.spi import read_json, short

#: So many bytes of outputs are read; a result holds less.
MOST_BYTES = 64_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}", re.ASCII)
_JSON = "#json "
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)


class BadOutput(ValueError):
    """The outputs of a task cannot be used."""


def outputs_of(data: bytes) -> dict[str, Any]:
    """The named values of an output file; a later one of a name counts.

    Raises:
        BadOutput: with the line, and what to write instead.
    """
    if len(data) > MOST_BYTES:
        raise BadOutput(
            f"$LATCHWORK_OUTPUT has more than {MOST_BYTES:,} bytes; write large things to files, and hand over names"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadOutput(f"$LATCHWORK_OUTPUT is no UTF-8 text: {error}") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]  # text may have what else ends a line in Unicode
    found: dict[str, Any] = {}
    at = 0
    while at < len(lines):
        line, number = lines[at], at + 1
        at += 1
        if line.startswith(_JSON):
            found.update(_json(line[len(_JSON) :], number))
        elif line.strip() and not line.startswith("#"):
            name, value, at = _named(lines, line, at)
            if _NAME.fullmatch(name) is None:
                raise BadOutput(f"line {number} of $LATCHWORK_OUTPUT, {short(line)}, is no name=value")
            found[name] = value
    return found


def _named(lines: list[str], line: str, at: int) -> tuple[str, Any, int]:
    name, is_equal, value = line.partition("=")
    before, is_block, mark = line.partition("<<")
    if not is_block or (is_equal and len(before) > len(name)):
        return (name.strip() if is_equal else ""), _value(value), at
    mark = mark.strip()
    if mark not in lines[at:]:
        raise BadOutput(f"line {at} of $LATCHWORK_OUTPUT begins a value that ends at a line {short(mark)}; none comes")
    end = lines.index(mark, at)
    return before.strip(), "\n".join(lines[at:end]), end + 1


def _value(text: str) -> Any:
    """A number or a list as its value, anything else as text.

    Digits are not lost: what JSON would write in another way, such as the version ``3.10``, stays text.
    """
    given = text.strip()
    is_number = _NUMBER.fullmatch(given) is not None
    if is_number or given.startswith("["):
        with suppress(BadRecord):
            value = read_json(given.encode())
            if not is_number or (json.dumps(value) == given and abs(value) < 2**63):
                return value
    return text


def _json(text: str, number: int) -> dict[str, Any]:
    try:
        value = read_json(text.encode())
    except BadRecord as error:
        raise BadOutput(f"line {number} of $LATCHWORK_OUTPUT: {error}") from None
    if not isinstance(value, dict):
        raise BadOutput(f"line {number} of $LATCHWORK_OUTPUT has {short(value)} after #json; write an object")
    return value
