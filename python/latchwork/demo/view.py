"""The views of a running demo: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from latchwork._base.text import printable

_PLAIN_EVERY_S = 1.0
_STATE_STYLES = {"manager": "green", "worker": "", "killed": "bold red", "starting": "dim"}


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """The progress of one worker.

    Attributes:
        state: ``starting``, ``worker``, ``manager`` (which also works) or ``killed``.
        items: The number of items with which its last run began.
        done: The number of items that it has finished.
    """

    node: str
    pid: int
    state: str
    items: int
    done: int
    running: str | None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the demo."""

    elapsed_s: float
    done: int
    total: int
    nodes: Sequence[NodeProgress]


class DemoView(Protocol):
    """Shows progress. For one thread."""

    def show(self, progress: Progress) -> None:
        """Show the progress. Called several times a second."""
        ...

    def say(self, line: str) -> None:
        """Print a message that stays visible."""
        ...

    def close(self) -> None:
        """End the view. Idempotent."""
        ...


class LiveView:
    """A table that is redrawn in place, with events above it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def show(self, progress: Progress) -> None:
        """Redraw the table with the current progress."""
        self._live.start()  # once: it does nothing the next time
        self._live.update(build_table(progress), refresh=True)

    def say(self, line: str) -> None:
        """Print a message above the table."""
        self._live.console.print(Text(printable(line)))

    def close(self) -> None:
        """End the view. The table stays as it is."""
        self._live.stop()


class PlainView:
    """One line per second and one per event, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def show(self, progress: Progress) -> None:
        """Print the progress as a line if the last line is old enough."""
        if progress.elapsed_s < self._next_s and progress.done < progress.total:
            return
        self._next_s = progress.elapsed_s + _PLAIN_EVERY_S
        nodes = ", ".join(_plain(node) for node in progress.nodes)
        self.say(f"{progress.elapsed_s:5.1f} s  {progress.done}/{progress.total} items  {nodes}")

    def say(self, line: str) -> None:
        """Print a message."""
        self._console.print(Text(printable(line)), soft_wrap=True)

    def close(self) -> None:
        """Do nothing."""


def build_table(progress: Progress) -> RenderableType:
    """Build the table and the progress bar that are printed."""
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
