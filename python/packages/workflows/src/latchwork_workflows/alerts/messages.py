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
MAX_SUBJECT, MAX_LINE, MAX_TEXT = 200, 1000, 60_000
_WORDS = {
    "success": "succeeded",
    "failure": "failed",
    "stopped": "was stopped",
    "takeover": "was taken over by another master",
    "test": "channel test",
}


@dataclass(frozen=True, slots=True)
class AlertRecord:
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


def build_message(alert: AlertRecord, installation: str, link: str = "") -> Message:
    """Build the message that describes an alert.

    Args:
        alert: The alert.
        installation: ID of the database, which makes the message ID globally unique.
        link: URL of the web UI. Empty: not known.
    """
    details = alert.details
    about = format_as_line(details.get("workflow", "")) or "latchwork"
    where = f"{link.rstrip('/')}/runs/{alert.run}" if link and alert.run is not None else ""
    rows = [
        *_list_detail_lines(alert),
        *_failed_task_lines(details.get("failed")),
        *([f"See {where}"] if where else []),
    ]
    subject = f"[latchwork] {about} {_event_text(alert)}" + (f" (run {alert.run})" if alert.run is not None else "")
    text = "\n".join([f"{about} {_event_text(alert)}", "", *rows, ""])
    body = {
        "alert": alert.id,
        "kind": alert.kind,
        "at": utc_text(alert.at),
        "run": alert.run,
        "task": alert.task or None,
        **{name: each for name, each in details.items() if name not in {"mail", "log_ref"}},
        "url": where or None,
    }
    name = f"<{alert.delivery}.{alert.round}@{installation}.latchwork>"
    return Message(name, format_as_line(subject)[:MAX_SUBJECT], text[:MAX_TEXT], body)


def format_as_line(value: object) -> str:
    """Convert a value to one printable line of at most ``MAX_LINE`` characters."""
    text = printable(" ".join(str(value).split()))
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


def _event_text(alert: AlertRecord) -> str:
    if alert.kind == "timeout":
        return f"is taking too long: {format_as_line(alert.task)}" if alert.task else "is taking too long"
    if alert.kind == "failover":
        return f"lost a worker and runs {format_as_line(alert.task)} again"
    if alert.kind == "rows":
        return f"rows of {format_as_line(alert.task)}"
    return _WORDS.get(alert.kind, format_as_line(alert.kind))


def _list_detail_lines(alert: AlertRecord) -> list[str]:
    """Return the known details of an alert, one per line."""
    details = alert.details
    times = {"Schedule time": "schedule_time", "Started": "started_at"}
    rows = [f"Time: {utc_text(alert.at)}"]
    known = {word: details.get(name) for word, name in times.items()}
    rows += [f"{word}: {utc_text(found)}" for word, found in known.items() if isinstance(found, (int, float))]
    plain = {
        "Workflow": details.get("workflow"),
        "Version": details.get("version"),
        "Run": alert.run,
        "Attempt": details.get("n"),
        "Worker": details.get("worker"),
        "Previous master": details.get("former"),
        "Master": details.get("owner"),
        "Runs taken over": details.get("count"),
        "Error": details.get("error") or details.get("why"),
        "Requested by": details.get("by"),
        "Rows": details.get("count_rows"),
    }
    return rows + [f"{word}: {format_as_line(value)}" for word, value in plain.items() if value not in {None, ""}]


def _failed_task_lines(rows: object) -> list[str]:
    if not isinstance(rows, list) or not rows:
        return []
    return [
        "",
        *(
            f"  {format_as_line(each.get('name'))}: {format_as_line(each.get('error') or each.get('state'))}"
            for each in rows
        ),
        "",
    ]


#: Maximum number of bytes of CSV that are shown as a table, and that are read.
MAX_TABLE, MAX_BYTES = 65_536, 10_000_000
_CELL = 60


class RowsUnavailable(LatchworkError):
    """The rows for a message cannot be read here."""


def attach_query_result(message: Message, alert: AlertRecord, logs: LogStore | None) -> Message:
    """Attach the query result of an alert to its message. An alert without a query result keeps its message unchanged.

    Args:
        message: The message.
        alert: The alert.
        logs: The log store, which contains the rows. None: there is none here.
    Raises:
        RowsUnavailable: This master has no log store.
        LatchworkError, OSError: The log store does not have the rows, or they cannot be read now.
    """
    if alert.kind != "rows":
        return message
    if logs is None:
        raise RowsUnavailable(
            "the rows are in the log store, which this master does not have; start it with --logs, as the workers"
        )
    mail: Any = alert.details["mail"]
    data = _read(logs, str(alert.details["log_ref"]))
    subject = format_as_line(mail.get("subject") or "") or message.subject
    made = replace(message, subject=subject[:200], to=tuple(mail.get("to") or ()))
    if len(data) > MAX_TABLE:
        file = f"{alert.task}.csv"
        more = " (only the first part)" if _count_rows(data) < int(alert.details.get("count_rows") or 0) else ""
        text = f"{made.text}\nThe rows are attached as {file}{more}, {len(data):,} bytes of CSV.\n"
        return replace(made, text=text, files=((file, data),))
    return replace(made, text="\n".join([made.text, *format_csv_table(data.decode("utf-8", "replace")), ""]))


def _count_rows(data: bytes) -> int:
    """Return the number of rows in CSV data, without the header."""
    text = io.TextIOWrapper(io.BytesIO(data), "utf-8", "replace", newline="")
    return max(0, sum(1 for _ in csv.reader(text)) - 1)


def format_csv_table(text: str) -> list[str]:
    """Convert CSV data to the lines of a text table."""
    rows = [[_cell(each) for each in row] for row in csv.reader(io.StringIO(text, newline=""))]
    if not rows:
        return []
    widths = [max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]


def _cell(text: str) -> str:
    short = format_as_line(text)
    return short if len(short) <= _CELL else f"{short[: _CELL - 1]}…"


def _read(logs: LogStore, ref: str) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while offset < MAX_BYTES:
        part = logs.read(ref, offset, min(1_000_000, MAX_BYTES - offset))
        if not part.data:
            break
        parts.append(part.data)
        offset = part.next
    return b"".join(parts)
