"""Output to terminals and pipes: escaped text, lines wrapped between words, tables that fit.

Everything from a store passes through ``printable`` here. On a terminal, long lines are wrapped between words, and a
table that is too wide is printed as one block per row. In a pipe nothing is wrapped, for grep and awk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from latchwork._base.text import printable

T = TypeVar("T")
#: A line into a pipe may be as long as it is.
_ENDLESS = 1_000_000
_GAP = 2


def console(*, err: bool = False) -> Console:
    """Create an object that prints to stdout or stderr. It wraps long lines on a terminal, but not in a pipe.

    Args:
        err: Print to stderr.
    """
    made = Console(highlight=False, markup=False, emoji=False, stderr=err)
    if not made.is_terminal:
        made.width = _ENDLESS
    return made


def show(*parts: RenderableType) -> None:
    """Print tables, lines and texts, one after the other."""
    out = console()
    for part in parts:
        out.print(Line(part) if isinstance(part, str) else part)


def say(line: str) -> None:
    """Print one line of text."""
    show(line)


def say_json(document: object, *, one_line: bool = False, default: Callable[[object], str] | None = None) -> None:
    """Print a JSON document for programs. Characters that are not ASCII are escaped.

    Args:
        document: The document.
        one_line: Print it on one line.
        default: Converts values that JSON does not support.
    """
    console().out(json.dumps(document, indent=None if one_line else 2, default=default), highlight=False)


def print_change(line: str, document: object, *, as_json: bool) -> None:
    """Report a change that a command has made, as a line of text or as a JSON document.

    Args:
        line: The report for people.
        document: The report for programs.
        as_json: Print the document instead of the line.
    """
    if as_json:
        say_json(document)
    else:
        say(line)


def print_list(
    kind: str,
    rows: Sequence[T],
    row: Callable[[T], Mapping[str, str]],
    *,
    plain: Callable[[T], object],
    right: Iterable[str] = (),
    empty: str,
    as_json: bool,
) -> None:
    """Print a list as a table, or as a JSON document for programs.

    Args:
        kind: The name of the list, which is the only field of the document.
        rows: The rows.
        row: Returns the cells of a row, by column.
        plain: Returns the form of a row in the document.
        right: The columns with numbers.
        empty: The line to print if the list is empty.
        as_json: Print the document.
    """
    if as_json:
        say_json({kind: [plain(each) for each in rows]})
    elif rows:
        show(Grid(map(row, rows), right=right))
    else:
        say(empty)


def join_first(items: Iterable[str], max_count: int | None) -> str:
    """Join the first of the sorted items into one text. If there are more, add the number of further ones.

    Args:
        items: The items.
        max_count: Maximum number of items to join; None joins all.
    """
    ordered: Sequence[str] = sorted(items)
    shown = ordered if max_count is None else ordered[:max_count]
    rest = f" and {len(ordered) - len(shown):,} more" if len(shown) < len(ordered) else ""
    return ", ".join(shown) + rest


def styled(text: str, style: str = "") -> Text:
    """Create an escaped text with a style, for use as a part of a line.

    Args:
        text: The text.
        style: Its style, such as ``bold``.
    """
    return Text(printable(text), style)


class Line:
    """A line. If it is too long for a terminal, it continues indented on the next line."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text = text
        self._style = style

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Render the line."""
        indent = len(self._text) - len(self._text.lstrip(" "))
        hang = indent + _GAP
        text = styled(self._text[indent:], self._style)
        if not out.is_terminal or text.cell_len + indent <= options.max_width:
            yield Text(" " * indent) + text
            return
        for number, part in enumerate(text.wrap(out, max(10, options.max_width - hang))):
            part.rstrip()
            yield Text(" " * (hang if number else indent)) + part


class Grid:
    """A table. On a terminal that is too narrow for its widest row, each row is a block.

    Args:
        rows: Cells by column; all rows have the same columns.
        right: The columns with numbers.
        title: A line above the table.
    """

    def __init__(self, rows: Iterable[Mapping[str, str]], *, right: Iterable[str] = (), title: str = "") -> None:
        self._rows = [{name: printable(cell) for name, cell in row.items()} for row in rows]
        self._right = frozenset(right)
        self._title = title

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table."""
        if self._title:
            yield Line(self._title, "bold")
        if not self._rows:
            return
        table = [{name: name for name in self._rows[0]}, *self._rows]
        widths = {name: max(Text(row[name]).cell_len for row in table) for name in self._rows[0]}
        if sum(widths.values()) + _GAP * (len(widths) - 1) <= options.max_width:
            for number, row in enumerate(table):
                yield Text(self._line(row, widths), "" if number else "bold")
        else:
            yield from self._blocks()

    def _line(self, row: Mapping[str, str], widths: Mapping[str, int]) -> str:
        cells = []
        for name, width in widths.items():
            space = " " * (width - Text(row[name]).cell_len)
            cells.append(space + row[name] if name in self._right else row[name] + space)
        return (" " * _GAP).join(cells).rstrip()

    def _blocks(self) -> Iterable[Line]:
        for row in self._rows:
            (_, first), *others = row.items()
            yield Line(first or "-", "bold")
            yield Line("  " + "; ".join(f"{name}: {cell}" for name, cell in others if cell))
