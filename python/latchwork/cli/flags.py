"""Flags that are made from the table of options, so that an option needs no word here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any, TypeVar

import typer

from latchwork.jobs.options import THREADS, Row

F = TypeVar("F", bound=Callable[..., None])


def flags(table: Iterable[Row], flag: Callable[[Row], Parameter], *, before: str) -> Callable[[F], F]:
    """Give a command a flag for each of these options that can have one, before another argument in its help.

    The command gets their values as ``**given``. What makes a flag is ``to_set`` or ``to_start``.
    """

    def add(command: F) -> F:
        own = inspect.signature(command, eval_str=True).parameters
        rest = [each for each in own.values() if each.kind is not Parameter.VAR_KEYWORD]
        at = list(own).index(before)
        made = [flag(row) for row in table if row.kind.flag is not None]
        command.__signature__ = inspect.Signature([*rest[:at], *made, *rest[at:]])  # type: ignore[attr-defined]
        return command

    return add


def to_set(row: Row) -> Parameter:
    """A flag that sets an option in the store; what is not given stays as it is."""
    note = "; 0 is one for each item" if row.kind is THREADS else ""
    default = row.none if row.default is None else f"{getattr(row.default, 'limit', row.default):g}"
    text = f"{row.sentence}{note}.  [unless set, here or in the code: {default}]"
    return _flag(row, None, text, min=row.kind.least)


def to_start(row: Row) -> Parameter:
    """A flag that a node is started with."""
    note = f"  [unless given: {row.none}]" if row.default is None else ""
    return _flag(row, row.default, f"{row.sentence}.{note}")


def _flag(row: Row, default: Any, text: str, **more: Any) -> Parameter:
    metavar = "S" if row.unit else "N"
    text = text[:1].upper() + text[1:].replace("`", "")
    option = typer.Option(default, metavar=metavar, show_default=default is not None, help=text, **more)
    kind: Any = row.kind.flag if default is not None else row.kind.flag | None  # type: ignore[operator]
    return Parameter(row.name, Parameter.KEYWORD_ONLY, default=option, annotation=kind)
