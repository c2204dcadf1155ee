"""Rows of a query in a message, read from the log store: a table in its text, or, above 64 kB, a file of CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import Any

from latchwork.errors import LatchworkError
from latchwork_workflows.alerts.messages import Message, Told, line
from latchwork_workflows.logs import LogStore

#: Bytes of CSV that become a table, and that are read at most.
MOST_TABLE, MOST_BYTES = 65_536, 10_000_000
_CELL = 60


class NoRows(LatchworkError):
    """The rows that a message is about cannot be read here."""


def with_rows(message: Message, told: Told, logs: LogStore | None) -> Message:
    """The message with the rows that its alert is about; of another alert the message itself.

    Raises:
        NoRows: this master has no log store.
        LatchworkError, OSError: it has none of this name, or cannot be read now.
    """
    if told.kind != "rows":
        return message
    if logs is None:
        raise NoRows("this master has no log store, where the rows are; give it the one of the workers")
    mail: Any = told.details["mail"]
    data = _read(logs, str(told.details["log_ref"]))
    subject = line(mail.get("subject") or "") or message.subject
    made = replace(message, subject=subject[:200], to=tuple(mail.get("to") or ()))
    if len(data) > MOST_TABLE:
        file = f"{told.task}.csv"
        more = ", their beginning" if _count(data) < int(told.details.get("count_rows") or 0) else ""
        text = f"{made.text}\nThe rows are attached as {file}{more}: {len(data):,} bytes of CSV.\n"
        return replace(made, text=text, files=((file, data),))
    return replace(made, text="\n".join([made.text, *table(data.decode("utf-8", "replace")), ""]))


def _count(data: bytes) -> int:
    """The rows of CSV, without the names of its columns."""
    text = io.TextIOWrapper(io.BytesIO(data), "utf-8", "replace", newline="")
    return max(0, sum(1 for _ in csv.reader(text)) - 1)


def table(text: str) -> list[str]:
    """CSV as lines of a table."""
    rows = [[_cell(each) for each in row] for row in csv.reader(io.StringIO(text, newline=""))]
    if not rows:
        return []
    widths = [max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]


def _cell(text: str) -> str:
    short = line(text)
    return short if len(short) <= _CELL else f"{short[: _CELL - 1]}…"


def _read(logs: LogStore, ref: str) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while offset < MOST_BYTES:
        part = logs.read(ref, offset, min(1_000_000, MOST_BYTES - offset))
        if not part.data:
            break
        parts.append(part.data)
        offset = part.next
    return b"".join(parts)
