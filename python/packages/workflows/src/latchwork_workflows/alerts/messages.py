"""The text of an alert, and the rows in a mail."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from latchwork.errors import LatchworkError
from latchwork.spi import printable, utc_text
from latchwork_workflows.logs import LogStore

#: Maximum number of characters of a subject, a line, and a text.
MOST_SUBJECT, MOST_LINE, MOST_TEXT = 200, 1000, 60_000
_WORDS = {
    "success": "succeeded",
    "failure": "failed",
    "stopped": "was stopped",
    "takeover": "has another master",
    "test": "test of a channel",
}


@dataclass(frozen=True, slots=True)
class Told:
    """An alert from the database.

    Attributes:
        id: ID of the alert.
        delivery: ID of this delivery.
        round: Starts at 1 and increases with each resend by a user.
        kind: Kind of event.
        at: Time of the event, in seconds since the epoch.
        run: ID of the run. None for a test.
        task: Name of the task. Empty for a run.
        details: Other details.
    """

    id: int
    delivery: int
    round: int
    kind: str
    at: float
    run: int | None
    task: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send.

    Attributes:
        id: The same for each try of this delivery, so that recipients can detect duplicates.
        subject: One line.
        text: Text for people.
        body: Plain JSON for programs.
        to: Recipients. Empty: those of the channel.
        files: Name and content of attachments.
    """

    id: str
    subject: str
    text: str
    body: Mapping[str, Any]
    to: tuple[str, ...] = ()
    files: tuple[tuple[str, bytes], ...] = field(default=())


def message_of(told: Told, installation: str, link: str = "") -> Message:
    """Return the message of an alert.

    Args:
        told: The alert.
        installation: ID of the database, which makes the message ID globally unique.
        link: URL of the pages. Empty: not known.
    """
    details = told.details
    about = line(details.get("workflow", "")) or "latchwork"
    where = f"{link.rstrip('/')}/runs/{told.run}" if link and told.run is not None else ""
    rows = [*_facts(told), *_failed(details.get("failed")), *([f"See {where}"] if where else [])]
    subject = f"[latchwork] {about} {_what(told)}" + (f" (run {told.run})" if told.run is not None else "")
    text = "\n".join([f"{about} {_what(told)}", "", *rows, ""])
    body = {
        "alert": told.id,
        "kind": told.kind,
        "at": utc_text(told.at),
        "instance": told.run,
        "task": told.task or None,
        **{name: each for name, each in details.items() if name not in {"mail", "log_ref"}},
        "url": where or None,
    }
    name = f"<{told.delivery}.{told.round}@{installation}.latchwork>"
    return Message(name, line(subject)[:MOST_SUBJECT], text[:MOST_TEXT], body)


def line(value: object) -> str:
    """Return a value as one printable line of at most ``MOST_LINE`` characters."""
    text = printable(" ".join(str(value).split()))
    return text if len(text) <= MOST_LINE else f"{text[: MOST_LINE - 1]}…"


def _what(told: Told) -> str:
    if told.kind == "timeout":
        return f"takes too long: {line(told.task)}" if told.task else "takes too long"
    if told.kind == "failover":
        return f"lost a worker, and runs {line(told.task)} again"
    if told.kind == "rows":
        return f"sends rows of {line(told.task)}"
    return _WORDS.get(told.kind, line(told.kind))


def _facts(told: Told) -> list[str]:
    """Return the known details, one per line."""
    details = told.details
    moments = {"Schedule time": "schedule_time", "Began": "started_at"}
    rows = [f"When: {utc_text(told.at)}"]
    known = {word: details.get(name) for word, name in moments.items()}
    rows += [f"{word}: {utc_text(found)}" for word, found in known.items() if isinstance(found, (int, float))]
    plain = {
        "Workflow": details.get("workflow"),
        "Version": details.get("version"),
        "Run": told.run,
        "Attempt": details.get("n"),
        "Worker": details.get("worker"),
        "Former master": details.get("former"),
        "Master": details.get("owner"),
        "Runs that it has": details.get("count"),
        "Error": details.get("error") or details.get("why"),
        "By": details.get("by"),
        "Rows": details.get("count_rows"),
    }
    return rows + [f"{word}: {line(value)}" for word, value in plain.items() if value not in {None, ""}]


def _failed(rows: object) -> list[str]:
    if not isinstance(rows, list) or not rows:
        return []
    return ["", *(f"  {line(each.get('name'))}: {line(each.get('error') or each.get('state'))}" for each in rows), ""]


#: Maximum number of bytes of CSV that are shown as a table, and that are read.
MOST_TABLE, MOST_BYTES = 65_536, 10_000_000
_CELL = 60


class NoRows(LatchworkError):
    """The rows for a message cannot be read here."""


def with_rows(message: Message, told: Told, logs: LogStore | None) -> Message:
    """Return the message with the rows of its alert. Other alerts are returned unchanged.

    Raises:
        NoRows: This master has no log store.
        LatchworkError, OSError: The log store does not have the rows, or cannot be read now.
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
    """Return the number of CSV rows without the header."""
    text = io.TextIOWrapper(io.BytesIO(data), "utf-8", "replace", newline="")
    return max(0, sum(1 for _ in csv.reader(text)) - 1)


def table(text: str) -> list[str]:
    """Return CSV as lines of a table."""
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
