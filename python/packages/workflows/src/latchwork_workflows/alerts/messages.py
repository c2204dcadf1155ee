"""The text of an alert, and the rows that a mail has."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from latchwork.errors import LatchworkError
from latchwork.spi import printable, utc_text
from latchwork_workflows.logs import LogStore

#: Characters of a subject, of a line, and of a text.
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
    """An alert, as the database has it.

    Attributes:
        id: of the alert.
        delivery: of this delivery of it.
        round: 1, and more when somebody asked for it again.
        kind: what happened, in a word.
        at: when, in seconds since the epoch.
        run: of which run; None of a test.
        task: of which task; empty of a run.
        details: what else is known.
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
    """What is sent.

    Attributes:
        id: the same for each sending of this delivery, so that who gets it twice can see that.
        subject: one line.
        text: for people.
        body: for programs: plain JSON.
        to: addresses instead of the channel's; empty: the channel's.
        files: name and content of what is attached.
    """

    id: str
    subject: str
    text: str
    body: Mapping[str, Any]
    to: tuple[str, ...] = ()
    files: tuple[tuple[str, bytes], ...] = field(default=())


def message_of(told: Told, installation: str, link: str = "") -> Message:
    """The message of an alert.

    Args:
        told: the alert.
        installation: the id of the database, which makes the id of the message one of the world.
        link: address of the pages; empty: none is known.
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
    """One harmless line of at most so many characters."""
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
    """What is known, a line each."""
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
