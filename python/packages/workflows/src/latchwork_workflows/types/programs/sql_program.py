"""Process of an ``sql``, ``procedure`` or ``connect`` task: runs the statements in a file, in one transaction.

Imports no other module of latchwork.
"""

# ruff: noqa: T201 - printed text is the log of the task

from __future__ import annotations

import csv
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

#: Maximum number of characters of a cell that are shown.
_CELL = 60
#: Maximum number of characters of rows that are kept for a mail. The last row may exceed it.
_MAX_CSV = 9_000_000
#: Maximum length of the outputs in bytes. Larger outputs are refused.
_MAX_LINE = 60_000


def main(path: str) -> int:
    """Run the SQL statements that a file describes, and write the outputs of the task."""
    sys.path.pop(0)  # the folder of this file contains other programs
    call = json.loads(Path(path).read_text(encoding="utf-8"))  # noqa: TID251 - written by the worker for this process
    Path(path).unlink()  # it has the password
    import sqlalchemy as sa
    from sqlalchemy.engine import make_url

    try:
        url = make_url(call["url"])
        if call["password"] and url.password is None:
            url = url.set(password=call["password"])
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        with engine.begin() as connection:
            outputs: dict[str, Any] = {} if call["statements"] else get_server_version(connection)
            for number, text in enumerate(call["statements"], 1):
                outputs = run_statement(sa, connection, text, call, f"statement {number} of {len(call['statements'])}")
    except (sa.exc.SQLAlchemyError, ImportError) as error:
        first = str(getattr(error, "orig", None) or error).strip().splitlines()
        print(f"{type(error).__name__}: {first[0] if first else error}", file=sys.stderr)
        return 1
    with Path(os.environ["LATCHWORK_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.write(f"#json {format_outputs(outputs)}\n")
    return 0


def format_outputs(outputs: dict[str, Any]) -> str:
    """Return the outputs as one line of JSON.

    The first row is left out if it is too large, because the transaction is already committed and cannot fail any more.
    """
    line = json.dumps(outputs, default=str)
    if len(line) > _MAX_LINE:
        print(f"the first row takes {len(line):,} bytes, too many for an output")
        line = json.dumps({**outputs, "first": {}}, default=str)
    return line


def get_server_version(connection: Any) -> dict[str, Any]:
    """Return the name and the version of the database server, for a connection test."""
    version = getattr(connection.dialect, "server_version_info", None) or ()
    text = " ".join([connection.dialect.name, ".".join(map(str, version))]).strip()
    print(f"connected to {text}")
    return {"server": text}


def run_statement(sa: Any, connection: Any, text: str, call: dict[str, Any], what: str) -> dict[str, Any]:
    """Run one SQL statement, print its rows, and return its outputs.

    Args:
        sa: The module ``sqlalchemy``.
        connection: The connection.
        text: The statement.
        call: The parameters of the task.
        what: Describes the statement in messages.
    """
    statement = sa.text(text)
    wanted = set(statement._bindparams)  # noqa: SLF001 - only this attribute has the names
    missing = sorted(wanted - call["bound"].keys())
    if missing:
        raise sa.exc.ArgumentError(f"{what} binds :{missing[0]}, but there is no parameter or output of this name")
    result = connection.execute(statement, {name: call["bound"][name] for name in wanted})
    if not result.returns_rows:
        count = max(result.rowcount, 0)
        print(f"{what}: {count} rows changed")
        return {"rows": count}
    names = list(result.keys())
    first: dict[str, Any] = {}
    shown: list[list[str]] = []
    count = 0
    file = open_rows_file(call, names)
    writer = csv.writer(file) if file is not None else None
    size = 0
    for row in result:
        count += 1
        if writer is not None and size < _MAX_CSV:
            size += writer.writerow(["" if each is None else each for each in row])
        if count == 1:
            first = dict(zip(names, row, strict=True))
        if len(shown) < call["rows"]:
            shown.append([format_cell(each) for each in row])
    if file is not None:
        file.close()
    print(f"{what}: {count} rows")
    for line in format_table(names, shown) if shown else []:
        print(line)
    return {"rows": count, "first": {name: to_json_value(each) for name, each in first.items()}}


def open_rows_file(call: dict[str, Any], names: list[str]) -> Any:
    """Open the file for the rows of a statement that will be mailed, or return None if no rows are mailed.

    The rows of each statement replace those of earlier statements.

    Args:
        call: The parameters of the task.
        names: The names of the columns.
    """
    if not call.get("csv"):
        return None
    file = Path(call["csv"]).open("w", encoding="utf-8", newline="", errors="backslashreplace")  # noqa: SIM115
    csv.writer(file).writerow(names)
    return file


def format_table(names: list[str], rows: list[list[str]]) -> list[str]:
    """Format rows as the lines of a text table."""
    widths = [max(len(each[at]) for each in [names, *rows]) for at in range(len(names))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(each, widths, strict=True)) for each in [names, *rows]]
    return [line.rstrip() for line in (lines[0], "  ".join("-" * width for width in widths), *lines[1:])]


def format_cell(value: object) -> str:
    """Format a value as a single line of text."""
    text = " ".join(("" if value is None else str(value)).split())
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def to_json_value(value: object) -> Any:
    """Convert a value for JSON: numbers, text and booleans are kept, anything else becomes text."""
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)[:10_000]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
