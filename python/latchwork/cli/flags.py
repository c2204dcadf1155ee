"""Flags that are generated from the table of options."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Annotated, Any, TypeVar

import typer

from latchwork.cli.outcome import UsageError
from latchwork.jobs.options import THREADS, OptionRow

F = TypeVar("F", bound=Callable[..., None])

Unset = Annotated[
    list[str] | None,
    typer.Option(
        "--unset",
        "-u",
        metavar="OPTION",
        help="Reset an option to the value in the nodes' code, such as `-u threads`. Repeatable.",
    ),
]


def add_flags(table: Iterable[OptionRow], flag: Callable[[OptionRow], Parameter], *, before: str) -> Callable[[F], F]:
    """Return a decorator that adds command-line flags for options to a command.

    The command gets the values of the flags as ``**given``.

    Args:
        table: The options.
        flag: Creates the flag of an option: ``make_setting_flag`` or ``make_start_flag``.
        before: Name of the argument before which the flags are added.
    """

    def add(command: F) -> F:
        own = inspect.signature(command, eval_str=True).parameters
        rest = [each for each in own.values() if each.kind is not Parameter.VAR_KEYWORD]
        at = list(own).index(before)
        made = [flag(row) for row in table if row.kind.flag is not None]
        command.__signature__ = inspect.Signature([*rest[:at], *made, *rest[at:]])  # type: ignore[attr-defined]
        return command

    return add


def make_setting_flag(row: OptionRow) -> Parameter:
    """Create the flag that changes an option in the store. Without the flag, the stored value is kept."""
    note = "; 0 is one for each item" if row.kind is THREADS else ""
    default = row.none if row.default is None else f"{getattr(row.default, 'limit', row.default):g}"
    text = f"{row.sentence}{note}.  [default if the code sets none: {default}]"
    return _flag(row, None, text, min=row.kind.minimum)


def make_start_flag(row: OptionRow) -> Parameter:
    """Create the flag that sets an option of a node when the node is started."""
    note = f"  [default: {row.none}]" if row.default is None else ""
    return _flag(row, row.default, f"{row.sentence}.{note}")


def _flag(row: OptionRow, default: Any, text: str, **more: Any) -> Parameter:
    metavar = "S" if row.unit else "N"
    text = text[:1].upper() + text[1:].replace("`", "")
    option = typer.Option(default, metavar=metavar, show_default=default is not None, help=text, **more)
    kind: Any = row.kind.flag if default is not None else row.kind.flag | None  # type: ignore[operator]
    return Parameter(row.name, Parameter.KEYWORD_ONLY, default=option, annotation=kind)


def collect_changes(given: dict[str, Any], unset: list[str] | None) -> dict[str, Any]:
    """Collect the options to change, by name: the given values, and None for the options to unset.

    Args:
        given: Value of each flag; None if it is not given.
        unset: Names of the options to unset.
    Raises:
        UsageError: There is nothing to change, or an option to unset is unknown or also given.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for each in unset or ():
        name = each.lstrip("-").replace("-", "_")
        if name not in given or name in found:
            raise UsageError(
                f"--unset {each} is not possible; give one of {', '.join(given)} that is not set in the same command"
            )
        found[name] = None
    if not found:
        raise UsageError("nothing to change; give at least one option, or --unset; see --help")
    return found


def format_settings(settings: dict[str, Any]) -> str:
    """Format settings as one line of text."""
    return ", ".join(f"{name}={format_value(value)}" for name, value in settings.items()) or "nothing set"


def format_value(value: Any) -> str:
    """Format the value of a setting as one line of text."""
    return json.dumps(value) if not isinstance(value, dict) else " ".join(f"{k}:{v}" for k, v in value.items())
