"""The views of commands with `--watch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from latchwork._base.event import Signal
from latchwork._base.text import utc_text
from latchwork.cli.outcome import format_error
from latchwork.cli.text import Line, console, say_json, show
from latchwork.clock import Clock
from latchwork.errors import LatchworkError

T = TypeVar("T")

IntervalS = Annotated[float, typer.Option(min=0.1, help="Seconds between refreshes of --watch.")]


def watch_state(
    read: Callable[[], T],
    parts: Callable[[T], Sequence[RenderableType]],
    document: Callable[[T], object],
    *,
    clock: Clock,
    interval_s: float,
    as_json: bool,
    has_ended: Callable[[T], bool] | None = None,
) -> None:
    """Show a state repeatedly, until it has ended or until interrupted. A failed read is shown instead of the state.

    On a terminal the view is updated in place. In a pipe, or as JSON, one state follows the other.

    Args:
        read: Reads the state.
        parts: Returns the parts of the view, from top to bottom.
        document: Returns the state for programs.
        clock: Measures the pauses.
        interval_s: Seconds between two reads.
        as_json: Print documents for programs.
        has_ended: Returns whether the state will not change any more. None: it always can, and a terminal is used as a
            whole screen.
    """
    found: object
    body: Sequence[RenderableType]
    out, never = console(), Signal()
    is_screen = has_ended is None and out.is_terminal and not as_json
    with Live(console=out, auto_refresh=False, screen=is_screen) as live:
        while True:
            is_last = False
            try:
                state = read()
            except LatchworkError as error:
                failure = format_error(error)
                found, body = {"error": failure}, [Line(f"error: {failure}", "red")]
            else:
                found, body = document(state), parts(state)
                is_last = has_ended is not None and has_ended(state)
            now = Line(utc_text(time.time()), "dim")
            if as_json:
                say_json(found, one_line=True)
            elif out.is_terminal:
                live.update(Group(now, *body), refresh=True)
            else:
                show(now, *body)
            if is_last:
                return
            clock.wait(never, interval_s)
