"""Checks that all parts of the system can store a value. Pure.

Such values are JSON without lone surrogates, NULs or deep nesting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from latchwork.spi import MAX_DEPTH, is_number

#: The maximum size of start parameters in bytes. They are sent to each task.
MAX_PARAMS_BYTES = 900_000


def find_storage_problems(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield a problem with its path for each part of a value that JSON or a database cannot store.

    Args:
        value: The value.
        path: Its path, to which the paths of its parts are appended.
        depth: Its nesting depth.
    """
    if depth > MAX_DEPTH:
        yield path, f"it is nested more than {MAX_DEPTH} deep"
    elif isinstance(value, Mapping):
        for key, each in value.items():
            name = str(key).encode("ascii", "replace").decode()[:100]
            if not isinstance(key, str) or _problem(key):
                yield path, f"{name!r} is not a JSON key"
            else:
                yield from find_storage_problems(each, f"{path}.{name}" if path else name, depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from find_storage_problems(each, f"{path}[{index}]", depth + 1)
    elif wrong := _problem(value):
        yield path, wrong


def _problem(value: object) -> str:
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        is_wrong = "\0" in value or any("\ud800" <= each <= "\udfff" for each in value)
        return "text contains a NUL or half of a surrogate pair" if is_wrong else ""
    if isinstance(value, (int, float)):
        return "" if is_number(value) else "a number is not finite, or has more digits than a float"
    return f"a {type(value).__name__} is not a JSON value"
