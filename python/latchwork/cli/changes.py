"""What the commands that change settings have in common: their options, and what they say of a change."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from latchwork.cli.outcome import UsageError

Unset = Annotated[
    list[str] | None,
    typer.Option(
        "--unset",
        "-u",
        metavar="OPTION",
        help="An option that goes back to what the nodes' code says, as `-u threads`; may be given several times.",
    ),
]


def chosen(given: dict[str, Any], unset: list[str] | None) -> dict[str, Any]:
    """What to change: what was given, and None for what goes back to what the code says.

    Raises:
        UsageError: there is nothing to change, or an option to unset is unknown, or given as well.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for each in unset or ():
        name = each.lstrip("-").replace("-", "_")
        if name not in given or name in found:
            raise UsageError(f"--unset {each} cannot be done; give one of {', '.join(given)} that is not set as well")
        found[name] = None
    if not found:
        raise UsageError(f"nothing to change; give a value for one of {', '.join(given)}, or --unset it")
    return found


def described(settings: dict[str, Any]) -> str:
    """Settings in one line."""
    return ", ".join(f"{name}={short(value)}" for name, value in settings.items()) or "nothing set"


def short(value: Any) -> str:
    """A setting's value in one line."""
    return json.dumps(value) if not isinstance(value, dict) else " ".join(f"{k}:{v}" for k, v in value.items())
