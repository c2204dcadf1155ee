"""What a command that waits for a task shows meanwhile: one line on stderr, when that is a terminal.

Nothing is asked of the store, and nothing is shown, when it is not.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from latchwork.cli.text import console
from latchwork.errors import LatchworkError
from latchwork.executor import TaskState
from latchwork.words import counted, printable

#: Seconds between two looks at the task.
_LOOK_S = 1.0


def progress_line(task_id: str, state: TaskState) -> str:
    """What a task does, in a line. Pure."""
    where = f" on {', '.join(state.running_on)}" if state.running_on else ""
    again = f", taken {counted(state.attempts, 'time')}" if state.attempts > 1 else ""
    why = f": {state.why}" if state.why else ""
    return f"{task_id} {state.phase}{where}{again}{why}"


@contextmanager
def waiting(task_id: str, state: Callable[[], TaskState]) -> Iterator[None]:
    """Show what a task does while the ``with`` waits for it.

    Args:
        task_id: what it is called.
        state: asks the store; called again and again in a thread of its own.
    """
    if not sys.stderr.isatty():
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True) as shown:
        line, over = shown.add_task(printable(f"{task_id} submitted"), total=None), threading.Event()

        def look() -> None:
            while not over.wait(_LOOK_S):
                try:
                    text = progress_line(task_id, state())
                except LatchworkError as error:
                    text = f"{task_id}: {error}"
                shown.update(line, description=printable(text))

        thread = threading.Thread(target=look, name="latchwork-cli-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_LOOK_S)
