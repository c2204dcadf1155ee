"""The views of the running demo: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from latchwork.words import printable

_PLAIN_EVERY_S = 1.0
_STATE_STYLES = {"manager": "green", "worker": "", "killed": "bold red", "starting": "dim"}


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """One worker at one moment.

    Attributes:
        state: ``starting``, ``worker``, ``manager`` (a worker too) or ``killed``.
        items: how many items its last run began with.
        done: how many it has finished so far.
    """

    node: str
    pid: int
    state: str
    items: int
    done: int
    running: str | None


@dataclass(frozen=True, slots=True)
class Progress:
    """The demo at one moment."""

    elapsed_s: float
    done: int
    total: int
    nodes: Sequence[NodeProgress]


class View(Protocol):
    """Where progress is shown. One thread only."""

    def show(self, progress: Progress) -> None:
        """Show the state; called several times a second."""
        ...

    def say(self, line: str) -> None:
        """Show something that happened; it stays."""
        ...

    def close(self) -> None:
        """The last call. Twice is fine."""
        ...


class LiveView:
    """A table that is redrawn in place, with what happened above it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def show(self, progress: Progress) -> None:
        """Redraw the table."""
        self._live.start()  # once: it does nothing the next time
        self._live.update(draw(progress), refresh=True)

    def say(self, line: str) -> None:
        """Print a line above the table."""
        self._live.console.print(Text(printable(line)))

    def close(self) -> None:
        """Leave the table as it is."""
        self._live.stop()


class PlainView:
    """One line a second, and one for each thing that happened: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def show(self, progress: Progress) -> None:
        """Print a line if the last one is old enough."""
        if progress.elapsed_s < self._next_s and progress.done < progress.total:
            return
        self._next_s = progress.elapsed_s + _PLAIN_EVERY_S
        nodes = ", ".join(_plain(node) for node in progress.nodes)
        self.say(f"{progress.elapsed_s:5.1f} s  {progress.done}/{progress.total} items  {nodes}")

    def say(self, line: str) -> None:
        """Print a line."""
        self._console.print(Text(printable(line)), soft_wrap=True)

    def close(self) -> None:
        """Nothing is left to be done."""


def draw(progress: Progress) -> RenderableType:
    """The table and the bar."""
    table = Table(expand=False)
    for name in ("worker", "pid", "state"):
        table.add_column(name)
    table.add_column("items", justify="right")
    table.add_column("done", justify="right")
    table.add_column("runs now", min_width=24)
    for node in progress.nodes:
        state, running = Text(node.state, style=_STATE_STYLES.get(node.state, "")), Text(printable(node.running or "-"))
        table.add_row(node.node, str(node.pid), state, str(node.items or "-"), str(node.done), running)
    text = Text(f" {progress.done}/{progress.total} items, {progress.elapsed_s:.1f} s")
    bar = Table.grid()
    bar.add_row(ProgressBar(total=max(1, progress.total), completed=progress.done, width=44), text)
    return Group(table, bar)


def _plain(node: NodeProgress) -> str:
    doing = f" running {node.running}" if node.running else ""
    return f"{node.node} ({node.state}) {node.done} done{doing}"
